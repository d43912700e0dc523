"""A person at a table: one game at a time, played on a thread of its own while pages are shown."""

import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from selfplay.engines.person import news
from selfplay.errors import RunError, SelfplayError, one_line
from selfplay.play import Table
from selfplay.types import Episode, Message

Phase: TypeAlias = Literal["idle", "others", "yours", "left", "over", "broken"]
"""idle: no game was begun. others: it is their move. yours: the person is asked. left: the person
has gone, and the game is being played out. over: it has ended. broken: nothing more can be played
here."""


class Late(RunError):
    """A move for which the game has gone on since."""


class _Closed(Exception):
    """The server ends in the middle of a game."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What the seat was shown at one of its moves, and what it said."""

    shown: tuple[Message, ...]
    """The messages that are new."""
    said: str | None = None
    """Its words; None while it is asked."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The game as the person's seat knows it."""

    phase: Phase = "idle"
    """Where it stands."""
    number: int = 0
    """Which game it is, from 1; 0 before the first."""
    agent: str = ""
    """The person's seat."""
    exchanges: tuple[Exchange, ...] = ()
    """All that the seat was shown and said, and nothing that it was not."""
    episode: Episode | None = None
    """The whole game, once it is over."""
    path: Path | None = None
    """Where it was saved; None where it was not, because the person left."""
    problem: str = ""
    """Why it is broken."""

    @property
    def stamp(self) -> str:
        """Another whenever there is something new."""
        return f"{self.number}.{self.phase}.{len(self.exchanges)}"


class Sitting:
    """Plays the games of one person. What its methods refuse is a RunError in one line."""

    def __init__(self, *, seed: int) -> None:
        """`seed` is of all games; each draws its own chances from it."""
        self.seed = seed
        self._changed = threading.Condition()
        self._seen = Seen()
        self._answer: str | None = None
        self._closed = False
        self._game: threading.Thread | None = None

    @property
    def seen(self) -> Seen:
        """The game as it is now."""
        with self._changed:
            return self._seen

    def ask(self, agent: str, messages: Sequence[Message]) -> str:
        """What a person as an engine asks with: waits for the move. On the game's thread."""
        with self._changed:
            if self._seen.phase == "left":
                return ""
            exchange = Exchange(shown=tuple(news(messages)))
            self._set(phase="yours", exchanges=(*self._seen.exchanges, exchange))
            self._changed.wait_for(lambda: self._answer is not None or self._closed)
            if self._closed:
                raise _Closed
            text, self._answer = self._answer, None
            assert text is not None
            return text

    def begin(self, table: Table, agent: str, number: int) -> None:
        """Begin game `number`; asked again for one that was begun already, nothing happens."""
        table.check(agent)
        with self._changed:
            if number == self._seen.number and self._seen.agent == agent:
                return
            if self._seen.phase not in ("idle", "over") or number != self._seen.number + 1:
                raise Late("another game goes on at this table")
            self._seen = Seen(phase="others", number=number, agent=agent)
            self._game = threading.Thread(target=self._play, args=(table, agent), daemon=True)
            self._game.start()

    def move(self, number: int, turn: int, text: str) -> None:
        """The words of turn `turn` (from 1) of a game.

        The same words a second time change nothing: a button was pressed twice, or a page loaded
        again. Others are Late: another window was faster.
        """
        with self._changed:
            mine = self._seen.exchanges
            if number == self._seen.number and 1 <= turn <= len(mine):
                if mine[turn - 1].said == text:
                    return
                if self._seen.phase == "yours" and mine[turn - 1].said is None:
                    self._answer = text
                    made = replace(mine[-1], said=text)
                    self._set(phase="others", exchanges=(*mine[:-1], made))
                    return
            raise Late("the game has gone on since this page was shown; the move was not taken")

    def leave(self, number: int) -> None:
        """Leave a game: whatever it still asks is answered with nothing, and it is not saved."""
        with self._changed:
            if number == self._seen.number and self._seen.phase in ("others", "yours"):
                asked = self._seen.phase == "yours"
                self._set(phase="left")
                if asked:
                    self._answer = ""

    def settle(self, seconds: float) -> None:
        """Wait until it is not the others' move any more, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._seen.phase not in ("others", "left"), seconds)

    def close(self) -> bool:
        """End; whether the person was in a game, which is not saved."""
        with self._changed:
            self._closed = True
            playing = self._seen.phase in ("others", "yours")
            self._changed.notify_all()
        if self._game is not None:
            self._game.join(5.0)
        return playing

    def _set(self, **fields: object) -> None:
        self._seen = replace(self._seen, **fields)  # type: ignore[arg-type]
        self._changed.notify_all()

    def _play(self, table: Table, agent: str) -> None:
        try:
            episode = table.game(agent, seed=self.seed, number=self.seen.number - 1)
            with self._changed:  # whoever leaves meanwhile is told that it is not saved
                gone = self._closed or self._seen.phase == "left"
                path = None if gone else table.save(episode)
                self._set(phase="over", episode=episode, path=path)
        except _Closed:
            return
        except Exception as error:
            if self._closed:
                return  # the arena and its services were closed under the game
            fault = not isinstance(error, SelfplayError)
            if fault:  # its page says so, the terminal says where
                traceback.print_exc()
            self._break(one_line(error) if fault else str(error))

    def _break(self, problem: str) -> None:
        with self._changed:
            self._set(phase="broken", problem=" ".join(problem.split()))
