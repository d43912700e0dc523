"""Demonstrations of random play: a warm start that teaches only the rules of a game.

A tiny model that is trained to move at random has no reason to distinguish situations, and then
learns slowly: a reward in one situation changes the moves in all others too. So the model also
learns to give every situation a name, half of the time at first and rarely at the end. A name is
not a legal move, so self-play drops it soon. In Kuhn poker the second eigenvalue of the moves'
tangent kernel is 0.13 of the first with the names, and 0.00001 of the first without.

This method is for games with few situations. If random play finds more than `most` situations, the
demonstrations are the observations that it met, with their frequency. Situations then have no
names, and texts are tokenized by character, so learning transfers to similar situations.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from random import Random
from typing import Literal, get_args

from arenas.games.opponents import legal_moves
from selfplay.arena import Arena
from selfplay.arena.demonstrations import ExampleSource
from selfplay.errors import ConfigError, SelfplayError, with_place
from selfplay.types import Demonstration, Observation, role_of

Report = Callable[[str], None]
Visit = tuple[str, Observation]
"""(role, observation) of one agent at one stage."""

Names = Literal["number", "text"]
"""Kind of the names of situations."""

SECONDS = 5.0
"""Seconds between two lines of progress."""
QUESTIONS = 200
"""Number of situations in the test after the warm start, if the demonstrations are incomplete."""


@dataclass(kw_only=True)
class Found:
    """Result of random play."""

    different: dict[tuple[str, str, tuple[str, ...]], Observation] = field(default_factory=dict)
    """Observation by role, text and legal moves, each situation once."""
    visits: list[Visit] = field(default_factory=list)
    """First observations, in the order in which random play met them."""
    games: int = 0
    """Number of games begun."""
    stages: int = 0
    """Number of stages played in these games."""
    cut: int = 0
    """Number of games cut off."""
    turns: int = 0
    """Largest number of turns that one agent took in one game."""


class RandomPlay(ExampleSource):
    """Stream of legal moves, uniform in each situation that random play reaches."""

    def __init__(
        self,
        *,
        arena: Arena,
        messages: Sequence[str] = (),
        hands: int = 1000,
        named_first: float = 0.5,
        named_last: float = 0.06,
        names: Names = "number",
        first: float = 0.6,
        most: int = 256,
        shown: int = 3000,
        longest: int = 1000,
        work: int = 50_000,
        whole: bool | None = None,
    ) -> None:
        """Args:
        arena: Arena with the legal moves in the field `legal` of its observations.
        messages: Texts to say if `legal` is empty because any text is allowed.
        hands: Maximum number of games of random play that look for situations.
        named_first: Fraction of demonstrations that name their situation in the first part.
        named_last: The same in the second part: about the fraction of answers that are illegal
            when self-play begins.
        names: Name of a situation: its number, for a new model, or the text of its observation,
            for a pretrained one, which copies text after a few examples.
        first: Fraction of the warm start after which the second part begins.
        most: Number of situations up to which all are shown, equally often. A situation is a role,
            an observation's text and its legal moves.
        shown: Number of observations that are shown if there are more situations than `most`.
            Random play ends when it has met this number.
        longest: Number of stages after which a game of random play is cut off.
        work: Maximum total number of stages of random play.
        whole: True: each situation's text is one token, so that all situations are alike to a
            model. False: texts are tokenized by character, so that learning
            transfers to similar situations. None: True if all situations are shown.
        """
        if not 0 <= named_first < 1 or not 0 <= named_last < 1:
            raise ValueError("named_first and named_last lie in [0, 1)")
        if names not in get_args(Names):
            raise ValueError(f"names is number or text, not {names!r}")
        if min(hands, most, shown, longest, work) < 1:
            raise ValueError("hands, most, shown, longest and work must be at least 1")
        self.arena, self.messages = arena, list(messages)
        self.named_first, self.named_last, self.first = named_first, named_last, first
        self.names = names
        self.hands, self.most, self.shown = hands, most, shown
        self.longest, self.work, self.asked_whole = longest, work, whole
        self._report: Report = lambda text: None

    # Situations --------------------------------------------------------------------------------

    def prepare(self, report: Report) -> None:
        """Look for situations now, and report on it every few seconds."""
        self._report = report
        _ = self.found

    @cached_property
    def found(self) -> Found:
        """Result of random play, computed at the first access."""
        return self._explore(Random(0), games=range(self.hands), visits=self.shown)

    @property
    def complete(self) -> bool:
        """True if there are at most `most` situations, so that all are shown equally often."""
        return len(self.found.different) <= self.most

    @property
    def whole(self) -> bool:
        """True if each situation's text is one token."""
        return self.complete if self.asked_whole is None else self.asked_whole

    @property
    def turns(self) -> int:
        """Largest number of turns that one agent took in one game."""
        return self.found.turns

    @cached_property
    def situations(self) -> list[Visit]:
        """Roles and observations that are shown: every situation once, or the first `shown`
        observations of random play."""
        found = self.found
        if self.complete:
            return [(key[0], found.different[key]) for key in sorted(found.different)]
        return found.visits[: self.shown]

    def summary(self) -> str:
        """Return one line about the situations and the way in which they are shown."""
        found, number = self.found, len(self.found.different)
        cut = f" ({found.cut} cut off after {self.longest} stages)" if found.cut else ""
        how = "all are shown, equally often"
        if not self.complete:
            how = (
                f"more than most={self.most}, so {len(self.situations)} observations are shown as "
                "random play met them"
            )
        return f"{found.games} games of random play{cut} found {number} situations; {how}"

    def _explore(self, rng: Random, *, games: range, visits: int) -> Found:
        """Play the games of these seeds at random.

        Play ends when the games or the stages are used up, or when the situations are too many to
        show all of them and `visits` observations have been met.
        """
        found, began = Found(), time.monotonic()
        reported = began
        for hand in games:
            self._play(found, rng, hand, visits)
            if found.stages >= self.work:
                break
            if len(found.different) > self.most and len(found.visits) >= visits:
                break
            if time.monotonic() - reported > SECONDS:
                reported = time.monotonic()
                self._report(
                    f"warm start: random play, game {found.games} of at most {len(games)}, "
                    f"{found.stages} stages, {len(found.different)} situations, "
                    f"{reported - began:.0f} s"
                )
        return found

    def _play(self, found: Found, rng: Random, hand: int, visits: int) -> None:
        """Play one game and record up to `visits` observations; ConfigError if the arena fails."""
        arena, turns = self.arena, dict[str, int]()
        found.games += 1
        try:
            arena.begin(arena.default_task(rng), hand)
            for stage in count():
                if arena.finished:
                    break
                if stage >= self.longest or found.stages >= self.work:
                    found.cut += 1
                    break
                moves = {}
                for agent in arena.stage:
                    seen, role = arena.view(agent), role_of(agent)
                    legal = self.legal(seen)
                    found.different.setdefault((role, seen.text, tuple(legal)), seen)
                    if len(found.visits) < visits:
                        found.visits.append((role, seen))
                    turns[agent] = turns.get(agent, 0) + 1
                    moves[agent] = rng.choice(legal)
                arena.play_stage(moves)
                found.stages += 1
        except SelfplayError:
            raise
        except Exception as error:  # the arena's code may raise any error
            raise ConfigError(
                f"warmstart.demonstrations: random play of {arena.name} failed: {with_place(error)}"
            ) from error
        found.turns = max([found.turns, *turns.values()])

    def legal(self, seen: Observation) -> list[str]:
        """Return the legal moves, or the messages if there are none; ConfigError without both."""
        legal = legal_moves(seen) or self.messages
        if not legal:
            raise ConfigError(
                f"warmstart.demonstrations: nothing to say at {seen.text[:80]!r}, which lists no "
                "legal moves; set messages to a few texts, such as [hello]"
            )
        return legal

    # Demonstrations ----------------------------------------------------------------------------

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield all situations in turn, reshuffled in every pass, with their moves and names. If
        there are too many, yield the observations of random play, each with a legal move."""
        if not self.complete:
            while True:
                role, seen = rng.choice(self.situations)
                completion = self.move(seen, rng.randrange(2**16), rng)
                yield Demonstration(role=role, observation=seen, completion=completion)
        share = self.named_first if progress < self.first else self.named_last
        for lap in count(rng.randrange(1000)):
            for number in rng.sample(range(len(self.situations)), len(self.situations)):
                role, seen = self.situations[number]
                named = rng.random() < share
                completion = self.name(number) if named else self.move(seen, lap + number, rng)
                yield Demonstration(role=role, observation=seen, completion=completion)

    def move(self, seen: Observation, turn: int, rng: Random) -> str:
        """Return the move to show; successive values of `turn` give all legal moves."""
        legal = self.legal(seen)
        return legal[turn % len(legal)]

    def name(self, number: int) -> str:
        """Return the name of a situation, by its index."""
        return f"({number})" if self.names == "number" else self.situations[number][1].text

    def pieces(self) -> list[str]:
        """Return moves, messages, names if they are used, and the observations' texts if `whole`;
        each is one token."""
        moves = [move for _, seen in self.situations for move in self.legal(seen)]
        named = self.complete and max(self.named_first, self.named_last) > 0
        names = [self.name(number) for number in range(len(self.situations)) if named]
        texts = [seen.text for _, seen in self.situations if self.whole]
        return list(dict.fromkeys([*moves, *names, *texts]))

    def questions(self) -> list[tuple[str, Observation, list[str]]]:
        """Return (role, observation, legal moves) for the test of the model: all situations that
        list legal moves or, if they are incomplete, some of new games."""
        asked = self.situations
        if not self.complete:
            games = range(self.hands, self.hands + QUESTIONS)
            asked = self._explore(Random("new games"), games=games, visits=QUESTIONS).visits
        listed = [(role, seen) for role, seen in asked if seen.fields.get("legal")]
        chosen = Random(0).sample(listed, min(len(listed), max(QUESTIONS, self.most)))
        return [(role, seen, self.legal(seen)) for role, seen in chosen]
