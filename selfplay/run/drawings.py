"""Drawings of recorded episodes in a run folder: `drawings/000012.jsonl`, a line per episode.

`selfplay replay RUN --draw` writes them, because only the arena can draw; pages read them as data.
A line names its episode by a hash of task, seed and actions, so that the drawings of an episode
that was played again are not shown with it.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from selfplay.drawing import MOST_SHAPES, StateDrawing
from selfplay.errors import RunError
from selfplay.run.record_reader import Recorded, decode
from selfplay.run.untrusted import open_regular, write_text_confined
from selfplay.types import Episode, from_json, to_json

FOLDER = "drawings"
"""Folder of a run with its drawings."""
LONGEST_LINE = 50_000_000
"""Largest number of bytes of an episode's drawings."""


@dataclass(frozen=True, kw_only=True)
class DrawnEpisode:
    """The drawings of one episode."""

    line: int
    """Line of the episode in the step's file, from 1."""
    match: str
    """Hash of the episode, from `match_of`."""
    drawings: tuple[StateDrawing, ...]
    """Drawings of the states; equal ones are listed once."""
    turns: tuple[int | None, ...]
    """[turns] index of the drawing of the state before the turn; None without one."""
    end: int | None
    """Index of the drawing of the last state; None without one."""

    def before(self, turn: int) -> StateDrawing | None:
        """Return the drawing of the state before a turn; None without one."""
        return self._at(self.turns[turn] if turn < len(self.turns) else None)

    def last(self) -> StateDrawing | None:
        """Return the drawing of the last state; None without one."""
        return self._at(self.end)

    def _at(self, place: int | None) -> StateDrawing | None:
        return (
            None if place is None or not 0 <= place < len(self.drawings) else self.drawings[place]
        )


def match_of(episode: Episode) -> str:
    """Return a hash of task, seed and actions, which determine the states of an episode."""
    moves = [[turn.agent, turn.action, turn.final] for turn in episode.turns]
    text = json.dumps([episode.arena, to_json(episode.task), episode.seed, moves], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def write_drawings(run: Path, step: int, episodes: Iterable[DrawnEpisode]) -> Path:
    """Write the drawings of a step in place of older ones; return the file.

    Raises RunError, in one line, if they cannot be written inside the run folder.
    """
    lines = (json.dumps(to_json(each), separators=(",", ":")) + "\n" for each in episodes)
    path = _file(run, step)
    try:
        path.parent.mkdir(exist_ok=True)
        return write_text_confined(run, path, "".join(lines))
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from error


def read_drawings(run: Path, record: Recorded) -> DrawnEpisode | None:
    """Return the drawings of an episode; None if it was not drawn, or was played again since.

    Raises RunError, in one line, if they are damaged.
    """
    path = _file(run, record.step)
    try:
        with open_regular(path, root=run) as file:
            while data := file.readline(LONGEST_LINE + 1):
                if len(data) > LONGEST_LINE:
                    raise ValueError(f"a line of more than {LONGEST_LINE:,} bytes")
                if data.startswith(b'{"line":%d,' % record.line):
                    drawn = from_json(DrawnEpisode, decode(data))
                    if any(len(each.shapes) > MOST_SHAPES for each in drawn.drawings):
                        raise ValueError(f"a drawing of more than {MOST_SHAPES:,} shapes")
                    return drawn if drawn.match == match_of(record.episode) else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0][:200]
        raise RunError(f"{path}: no drawings of line {record.line} ({reason})") from error
    return None


def _file(run: Path, step: int) -> Path:
    return run / FOLDER / f"{step:06d}.jsonl"
