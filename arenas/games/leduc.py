"""Leduc poker (1207.1411): one hand with six cards, two betting rounds and a shared card.

The deck is J, Q, K, each twice. Both players put in one chip and get a card. The first player opens
each round. A move is call (match the other's chips), raise (two chips more in the first round, four
in the second; at most two raises per round) or, with fewer chips in, fold. After the first round
the shared card is revealed. At the end a card that pairs with the shared card wins, otherwise the
higher card; equal cards split the pot. The game is zero-sum.

An observation contains the own card, the shared card and all moves, so that each of the 288
information sets has a unique text.

Version history: v0, first version.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from random import Random
from typing import Any

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.games.two_player import TurnGame, words_of
from selfplay.drawing import StateDrawing, cards
from selfplay.types import InformationSet, Metric, Observation, Task

CARDS = ("J", "Q", "K")
MOVES = ("fold", "call", "raise")
SIZES = (2, 4)
MOST_RAISES = 2

Rounds = tuple[tuple[str, ...], tuple[str, ...]]
"""Moves of the first round and of the second."""


class Leduc(TurnGame):
    """One hand between player_0 and player_1."""

    name = "leduc_v0"
    measures = {
        **TurnGame.measures,
        "*_payoff": Metric(unit="chips"),
        "raises": Metric(unit="count"),
    }
    chief = ("player_0_payoff",)

    def __init__(self, *, illegal_reward: float = -13.0, other_reward: float = 13.0, **rest: Any):
        """Take the settings of `TurnGame`; by default an illegal move costs the maximum loss.

        Args:
            illegal_reward: Reward of the player that makes an illegal move.
            other_reward: Reward of the other player in that case.
            rest: Other settings of `TurnGame`.
        """
        super().__init__(illegal_reward=illegal_reward, other_reward=other_reward, **rest)

    def start(self, task: Task, rng: Random) -> None:
        """Deal, unless the task names the cards of player_0 and player_1 and the shared card."""
        dealt = list(task.payload.get("cards") or rng.sample(CARDS * 2, 3))
        if len(dealt) != 3 or not set(dealt) <= set(CARDS) or len(set(dealt)) < 2:
            raise ValueError(f"task {task.id}: needs three cards of J, J, Q, Q, K, K, not {dealt}")
        self.cards: list[str] = dealt
        self.rounds: Rounds = ((), ())

    def mover(self) -> int:
        """Return the player in turn; player 0 opens each round."""
        return len(self.rounds[second(self.rounds)]) % 2

    def legal(self) -> list[str]:
        """Return the legal moves of the player in turn."""
        return list(legal_moves(self.rounds))

    def seen(self, player: int, refused: str) -> Observation:
        """Return the player's own card, the shared card and all moves."""
        return shown(
            self.cards[player],
            self.cards[2] if second(self.rounds) else "",
            self.rounds,
            [] if self.finished else self.legal(),
            refused,
        )

    def move(self, text: str) -> None:
        """Play one move; a fold or the end of the second round ends the hand."""
        self.rounds = after(self.rounds, text)
        if is_over(self.rounds):
            won = payoff(self.cards, self.rounds)
            self.settle([won, -won], raises=self._raises())

    def forfeited(self) -> dict[str, float]:
        """Return the number of raises until now."""
        return {"raises": self._raises()}

    def _raises(self) -> int:
        return sum(moves.count("raise") for moves in self.rounds)

    def draw(self, agent: str | None = None) -> StateDrawing:
        """Return the cards, face down if the agent does not see them, the moves and the chips."""
        dealt = [
            (name, card if agent in (None, name) else "")
            for name, card in zip(self.players, self.cards, strict=False)
        ]
        dealt.append(("shared", self.cards[2] if second(self.rounds) else ""))
        moves = [", ".join(each) for each in self.rounds if each] or ["no move yet"]
        chips = f"chips {' and '.join(map(str, stakes(self.rounds)))}"
        return cards(dealt, title=f"Leduc poker: {'; '.join(moves)}", lines=[*moves, chips])

    def openspiel(self, pyspiel: Any) -> Any:
        """Return the same game in OpenSpiel, which also ignores suits."""
        return pyspiel.load_game("leduc_poker(suit_isomorphism=true)")

    def information_sets(self) -> list[InformationSet]:
        """Return all 288 information sets, with OpenSpiel's names."""
        return [
            InformationSet(
                key=_key(player, card, opened, rounds),
                agent=self.players[player],
                observation=shown(card, opened, rounds, legal, ""),
                actions={move: MOVES.index(move) for move in legal},
            )
            for rounds in histories()
            for player in (len(rounds[second(rounds)]) % 2,)
            for legal in (legal_moves(rounds),)
            for card, opened in product(CARDS, CARDS if second(rounds) else ("",))
        ]


def shown(
    card: str, opened: str, rounds: Rounds, legal: Sequence[str], refused: str
) -> Observation:
    """Return the observation of a player, unique per information set.

    Args:
        card: The player's own card.
        opened: The shared card; "" before it is revealed.
        rounds: Moves of both rounds.
        legal: Legal moves.
        refused: The player's latest move if that was illegal, else "".
    """
    words = [card, *rounds[0], *([opened] if opened else []), *rounds[1]]
    return Observation(
        text=words_of(" ".join(words), refused),
        fields={
            "card": card,
            "opened": opened,
            "first": list(rounds[0]),
            "second": list(rounds[1]),
            "stakes": list(stakes(rounds)),
            "legal": list(legal),
            "refused": refused,
        },
    )


def second(rounds: Rounds) -> bool:
    """Return True if the first round has ended without a fold."""
    return _ends(rounds[0])


def _ends(moves: Sequence[str]) -> bool:
    """Return True if a round has ended without a fold."""
    return len(moves) > 1 and moves[-1] == "call"


def is_over(rounds: Rounds) -> bool:
    """Return True after a fold or at the end of the second round."""
    return "fold" in rounds[0] + rounds[1] or _ends(rounds[1])


def after(rounds: Rounds, move: str) -> Rounds:
    """Return the moves of both rounds, with `move` appended."""
    first, last = rounds
    return (first, (*last, move)) if second(rounds) else ((*first, move), last)


@cache
def stakes(rounds: Rounds) -> tuple[int, ...]:
    """Return the chips that each player has put in."""
    chips = [1, 1]
    for size, moves in zip(SIZES, rounds, strict=True):
        for number, move in enumerate(moves):
            if move != "fold":
                chips[number % 2] = max(chips) + (size if move == "raise" else 0)
    return tuple(chips)


@cache
def legal_moves(rounds: Rounds) -> tuple[str, ...]:
    """Return the legal moves of the player in turn."""
    chips, moves = stakes(rounds), rounds[second(rounds)]
    may_fold = chips[0] != chips[1]
    may_raise = moves.count("raise") < MOST_RAISES
    return (*(["fold"] if may_fold else []), "call", *(["raise"] if may_raise else []))


def payoff(cards: Sequence[str], rounds: Rounds) -> float:
    """Return the payoff of player_0 for these cards and the moves of a finished hand."""
    chips = stakes(rounds)
    for moves in rounds:
        if "fold" in moves:
            return float(-chips[0] if len(moves) % 2 else chips[1])
    mine, theirs = ((card == cards[2], CARDS.index(card)) for card in cards[:2])
    return 0.0 if mine == theirs else float(chips[1] if mine > theirs else -chips[0])


def histories(rounds: Rounds = ((), ())) -> Iterator[Rounds]:
    """Yield all histories after which a player has to move, starting from `rounds`."""
    if not is_over(rounds):
        yield rounds
        for move in legal_moves(rounds):
            yield from histories(after(rounds, move))


def deals() -> list[Task]:
    """Return all 120 deals, with distinct suits; playing them equally often removes luck."""
    deck = [(card, suit) for card in CARDS for suit in "ab"]
    chosen = [hand for hand in product(deck, repeat=3) if len(set(hand)) == 3]
    return [
        Task(
            id=f"deal-{''.join(card + suit for card, suit in hand)}",
            payload={"cards": [card for card, _ in hand]},
        )
        for hand in chosen
    ]


def _key(player: int, card: str, opened: str, rounds: Rounds) -> str:
    """Return OpenSpiel's name of an information set."""
    chips = stakes(rounds)
    numbers = [" ".join(str(MOVES.index(move)) for move in moves) for moves in rounds]
    parts = [
        f"Observer: {player}",
        f"Private: {CARDS.index(card)}",
        f"Round {second(rounds) + 1}",
        f"Player: {player}",
        f"Pot: {sum(chips)}",
        f"Money: {100 - chips[0]} {100 - chips[1]}",
        *([f"Public: {CARDS.index(opened)}"] if opened else []),
        f"Round1: {numbers[0]}",
        f"Round2: {numbers[1]}",
    ]
    return "".join(f"[{part}]" for part in parts)


def raw_env(**settings: Any) -> Leduc:
    """Return the arena without a wrapper."""
    return Leduc(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
