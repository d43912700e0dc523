"""Demonstrations of random play: a warm start that knows the rules of a small game and no more.

A tiny model that is trained to move at random has no reason to tell one situation from another, and
then learns slowly: whatever it is paid for in one, it does in all. So it also learns to give every
situation a name, half of the time at first and seldom at the end. A name is no legal move, so that
self-play drops it soon. In Kuhn poker the second eigenvalue of the moves' tangent kernel is 0.13 of
the first with the names, and 0.00001 of it without.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random

from selfplay.arena import Arena
from selfplay.types import Demonstration, Observation


class RandomPlay:
    """Every legal move of every situation, equally often, in all situations that play comes to."""

    def __init__(
        self,
        *,
        arena: Arena,
        messages: Sequence[str] = (),
        hands: int = 1000,
        named_first: float = 0.5,
        named_last: float = 0.06,
        first: float = 0.6,
        most: int = 256,
        whole: bool = True,
    ) -> None:
        """Args:
        arena: Whose observations have the legal moves in the field `legal`.
        messages: What is said where anything may be said, which is where `legal` is empty.
        hands: Episodes of random play that look for situations.
        named_first: Share of demonstrations that name their situation in the first part.
        named_last: The same in the second part: about what is illegal when self-play begins.
        first: Where the second part begins, as a share of the warm start.
        most: Situations that are shown; the rest of a larger game is left to generalisation.
        whole: Each situation is one token, so that all are alike to a model; else it is read by its
            characters, so that what is learned of one situation bears on similar ones.
        """
        if not 0 <= named_first < 1 or not 0 <= named_last < 1:
            raise ValueError("named_first and named_last lie in [0, 1)")
        self.messages = list(messages)
        self.named_first, self.named_last, self.first = named_first, named_last, first
        self.whole = whole
        self.situations = self._explore(arena, hands, most)

    def _explore(self, arena: Arena, hands: int, most: int) -> list[tuple[str, Observation]]:
        """(role, observation) of the situations that random play comes to, in a fixed order."""
        rng = Random(0)
        found: dict[tuple[str, str], Observation] = {}
        for hand in range(hands):
            arena.begin(arena.default_task(rng), hand)
            while not arena.finished:
                moves = {}
                for agent in arena.stage:
                    seen = arena.view(agent)
                    if len(found) < most:
                        found.setdefault((agent.rpartition("_")[0], seen.text), seen)
                    moves[agent] = rng.choice(self.legal(seen))
                arena.play(moves)
        return [(role, found[role, text]) for role, text in sorted(found)]

    def legal(self, seen: Observation) -> list[str]:
        """What may be done or said; raises ValueError where that is nothing."""
        legal = list(seen.fields.get("legal", ())) or self.messages
        if not legal:
            raise ValueError(f"nothing to say at {seen.text!r}; set messages")
        return legal

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """All situations in turn, in a new order each time, each with its moves and its name."""
        share = self.named_first if progress < self.first else self.named_last
        for lap in count(rng.randrange(1000)):
            for number in rng.sample(range(len(self.situations)), len(self.situations)):
                role, seen = self.situations[number]
                named = rng.random() < share
                completion = _name(number) if named else self.move(seen, lap + number, rng)
                yield Demonstration(role=role, observation=seen, completion=completion)

    def move(self, seen: Observation, turn: int, rng: Random) -> str:
        """What is shown: all that is legal, by turns."""
        legal = self.legal(seen)
        return legal[turn % len(legal)]

    def pieces(self) -> list[str]:
        """Moves and messages, names where they are used, and what is seen if `whole`: one token
        each."""
        moves = [move for _, seen in self.situations for move in self.legal(seen)]
        named = max(self.named_first, self.named_last) > 0
        names = [_name(number) for number in range(len(self.situations)) if named]
        texts = [seen.text for _, seen in self.situations if self.whole]
        return list(dict.fromkeys([*moves, *names, *texts]))


def _name(number: int) -> str:
    return f"({number})"
