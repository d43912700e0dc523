"""Negotiation: two parties divide items that each values in private (as in 1706.05125).

The parties move in turn. A move is exactly one line in one of these forms:

    offer book=1 hat=0 ball=2     items that the speaker keeps; every item once, in any order
    accept                        takes the items that the other's latest offer leaves
    leave                         ends without a deal

Further lines are a message to the other party. If there is no deal after the last turn, or a party
leaves, both rewards are 0. A party's reward is its value of the items that it gets, as a fraction
of its value of all items.

Version history: v0, first version.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from random import Random
from typing import Any

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.games.two_player import TurnGame
from arenas.quotes import in_one_line
from selfplay.types import Metric, Observation, Task

_ITEM = re.compile(r"([a-z]+)=([0-9]{1,3})")


class Negotiation(TurnGame):
    """One negotiation, in which the first player makes the first offer."""

    name = "negotiation_v0"
    measures = {
        **TurnGame.measures,
        "agreed": Metric(unit="fraction", better="higher"),
        "efficiency": Metric(unit="fraction", better="higher"),
        "turns": Metric(unit="count"),
    }
    chief = ("efficiency",)

    def __init__(
        self,
        *,
        items: Sequence[str] = ("book", "hat", "ball"),
        most: int = 4,
        total: int = 10,
        turns: int = 8,
        message_length: int = 200,
        other_reward: float = 0.0,
        **rest: Any,
    ) -> None:
        """Args:
        items: Kinds of items: lower-case words.
        most: Maximum number of items of a kind; the minimum is 1.
        total: Value of all items together, for each party.
        turns: Total moves of both parties, after which there is no deal.
        message_length: Maximum characters of a message that the other party sees; the rest is cut
            off.
        other_reward: Reward of a party if the other one loses by an illegal move.

        **rest: Settings of `TurnGame`.
        """
        super().__init__(other_reward=other_reward, **rest)
        if len(set(items)) < max(len(items), 1) or not all(
            re.fullmatch("[a-z]+", i) for i in items
        ):
            raise ValueError(f"items: {list(items)}: needs different words of the letters a to z")
        if most < 1 or turns < 1 or message_length < 0:
            raise ValueError("most and turns are at least 1, message_length is not negative")
        if total < 1:
            raise ValueError(f"total: {total} is less than 1, set 1 or more")
        self.items, self.most, self.total = tuple(items), most, total
        self.turns, self.message_length = turns, message_length

    def start(self, task: Task, rng: Random) -> None:
        """Draw the items and their values, unless the task names `counts` and `values`."""
        given = task.payload
        counts = list(given.get("counts", ()))
        values = [list(each) for each in given.get("values", ())]
        if not given:
            counts = self._draw_counts(rng)
            values = [self._draw_values(counts, rng) for _ in range(2)]
        lengths = {len(each) for each in (counts, *values)}
        if len(values) != 2 or lengths != {len(self.items)} or min(counts) < 1:
            raise ValueError(f"task {task.id}: needs counts and two lists of values, for each item")
        if min(min(each) for each in values) < 0 or not all(map(any, values)):
            raise ValueError(f"task {task.id}: values must be 0 or more, and not all 0")
        self.counts: list[int] = counts
        self.values: list[list[int]] = values
        self.offers: list[list[int]] = []
        self.said: list[dict[str, Any]] = []

    def _draw_counts(self, rng: Random) -> list[int]:
        """Draw the counts; one kind has a single item, so that `total` can always be reached."""
        counts = [rng.randint(1, self.most) for _ in self.items]
        counts[rng.randrange(len(counts))] = 1
        return counts

    def _draw_values(self, counts: Sequence[int], rng: Random) -> list[int]:
        """Draw values uniformly among those that give all items together the value `total`."""
        single = list(counts).index(1)
        while True:
            values = [rng.randint(0, self.total // count) for count in counts]
            values[single] = 0
            rest = self.total - sum(n * value for n, value in zip(counts, values, strict=True))
            if rest >= 0:
                values[single] = rest
                return values

    def mover(self) -> int:
        """Return the party in turn."""
        return len(self.said) % 2

    def legal(self) -> list[str]:
        """Return all offers, leave and, after an offer, accept."""
        shares = product(*(range(count + 1) for count in self.counts))
        offers = [self._written(share) for share in shares]
        return [*(["accept"] if self.offers else []), "leave", *offers]

    def _written(self, share: Sequence[int]) -> str:
        words = [f"{item}={number}" for item, number in zip(self.items, share, strict=True)]
        return " ".join(["offer", *words])

    def read(self, text: str) -> str | None:
        """Return the move with its items in order, and the message; None for any other form."""
        line, _, message = text.partition("\n")
        word, *rest = line.split()[: len(self.items) + 2] or [""]
        if word in ("accept", "leave"):
            fits = not rest and (word == "leave" or bool(self.offers))
        else:
            found = [_ITEM.fullmatch(each) for each in rest]
            share = {match[1]: int(match[2]) for match in found if match}
            fits = word == "offer" and len(found) == len(self.items) and set(share) == {*self.items}
            fits = fits and all(share[i] <= n for i, n in zip(self.items, self.counts, strict=True))
            word = self._written([share[item] for item in self.items]) if fits else ""
        return f"{word}\n{message[: self.message_length]}" if fits else None

    def is_legal(self, observation: Observation, action: str) -> bool:
        """Return True for a listed move with its items in any order, and any message below it."""
        legal = observation.fields.get("legal")
        return not legal or _form(action.partition("\n")[0]) in map(_form, legal)

    def move(self, text: str) -> None:
        """Record an offer, or end the negotiation."""
        line, _, message = text.partition("\n")
        # A message has one line, so that it cannot look like a move.
        one_line = in_one_line(message)
        self.said.append({"player": self.mover(), "move": line, "message": one_line})
        if line == "accept":
            kept = self.offers[-1]
            left = [count - number for count, number in zip(self.counts, kept, strict=True)]
            # The latest offer is the other party's; the accepting party gets the remaining items.
            shares = (left, kept) if self.said[-1]["player"] == 0 else (kept, left)
            self._close([self._worth(player, shares[player]) for player in (0, 1)])
        elif line == "leave" or len(self.said) == self.turns:
            self._close([0.0, 0.0], agreed=False)
        else:
            self.offers.append([int(number) for number in re.findall(r"=(\d+)", line)])

    def forfeited(self) -> dict[str, float]:
        """Return the metrics of a negotiation without an agreement."""
        return {"agreed": 0, "efficiency": 0, "turns": len(self.said)}

    def _worth(self, player: int, share: Sequence[int]) -> float:
        """Return a player's value of some items, as a fraction of its value of all items."""
        values = self.values[player]
        everything = sum(n * value for n, value in zip(self.counts, values, strict=True))
        return sum(n * value for n, value in zip(share, values, strict=True)) / everything

    def _close(self, pay: Sequence[float], *, agreed: bool = True) -> None:
        best = max(
            self._worth(0, share)
            + self._worth(1, [n - k for n, k in zip(self.counts, share, strict=True)])
            for share in product(*(range(count + 1) for count in self.counts))
        )
        self.settle(pay, agreed=agreed, efficiency=sum(pay) / best, turns=len(self.said))

    def seen(self, player: int, refused: str) -> Observation:
        """Return the items, the player's values, and all moves and messages."""
        mine = self.values[player]
        things = [
            {"item": item, "count": count, "value": value}
            for item, count, value in zip(self.items, self.counts, mine, strict=True)
        ]
        said = [
            {"mine": each["player"] == player, "move": each["move"], "message": each["message"]}
            for each in self.said
        ]
        words = [f"{t['count']} {t['item']} worth {t['value']}" for t in things]
        lines = [
            ", ".join(words),
            *(f"{'you' if each['mine'] else 'they'}: {_line(each)}" for each in said),
            *([f"not legal: {refused}"] if refused else []),
        ]
        mine_to_move = not self.finished and player == self.mover()
        return Observation(
            text="\n".join(lines),
            fields={
                "things": things,
                "said": said,
                "may_accept": bool(self.offers),
                "turns_left": self.turns - len(self.said),
                "message_length": self.message_length,
                "legal": self.legal() if mine_to_move else [],
                "refused": refused,
            },
        )


def _form(line: str) -> tuple[str, list[str]]:
    """Return the first word of a move and the other words, sorted, because any order is legal."""
    word, *rest = line.split() or [""]
    return word, sorted(rest)


def _line(said: Mapping[str, Any]) -> str:
    return f"{said['move']} ({said['message']})" if said["message"] else str(said["move"])


def raw_env(**settings: Any) -> Negotiation:
    """Return the arena without a wrapper."""
    return Negotiation(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
