"""Pages of recorded episodes and of games played by a person.

A page can colour the tokens of each completion by log-probability or by advantage.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import quote

from markupsafe import Markup
from starlette.requests import Request
from tokenizers import Tokenizer

from selfplay.drawing import StateDrawing
from selfplay.errors import RunError
from selfplay.run.declarations import read_declared
from selfplay.run.drawings import read_drawings
from selfplay.run.formatting import format_value, number
from selfplay.run.record_reader import Advantage, Recorded
from selfplay.run.report.html import render
from selfplay.run.report.transcripts import advantages_of, show
from selfplay.run.run_folder import CHECKPOINTS
from selfplay.run.untrusted import is_confined
from selfplay.types import Turn, to_json
from selfplay.viewer.catalog import ListedRun, RunCatalogue
from selfplay.viewer.drawing_svg import svg_of
from selfplay.viewer.episode_filter import PAGE, links
from selfplay.viewer.heard import heard, heard_by
from selfplay.viewer.index import EpisodeIndex
from selfplay.viewer.index_files import is_damaged
from selfplay.viewer.memory_bank import time_line
from selfplay.viewer.requests import run_of
from selfplay.viewer.saved_games import SavedGames

T = TypeVar("T")

LIKELY = (-0.05, -0.25, -0.7, -2.0)
"""Log-probabilities, in nats, at which the shade of a token changes."""
MOST_TOKENS = 4_000
"""Largest number of tokens shown of one completion."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token prepared for display."""

    text: str
    """Decoded text, or the id in brackets without a tokenizer."""
    shade: str
    """CSS class: likely-0 (almost certain) to likely-4, gain-0 to gain-2, loss-1 or loss-2."""
    learned: bool
    """True if the token contributes to the loss."""
    title: str
    """Id, log-probability and advantage of the token, as text."""


def tokens(turn: Turn, advantage: Advantage, *, run: Path, colour: str) -> list[Token]:
    """Prepare a completion's tokens; `colour` is "likelihood" or "advantage".

    Texts come from the tokenizer in the run's checkpoint; without it a token's text is its id.
    """
    ids = turn.completion_ids[:MOST_TOKENS]
    texts = _texts(ids, run, turn.policy)
    given = advantage if isinstance(advantage, list) else [advantage or 0.0] * len(ids)
    largest = max(map(abs, given), default=0.0)
    return [
        Token(
            text=text,
            shade=_gain(value, largest) if colour == "advantage" else _likely(logprob),
            learned=bool(learned),
            title=f"token {number_}: log-probability {number(logprob)} nats, advantage "
            f"{number(value)}{'' if learned else ', no loss'}",
        )
        for number_, text, logprob, learned, value in zip(
            ids,
            texts,
            _padded(turn.logprobs, len(ids), 0.0),
            _padded(turn.loss_mask, len(ids), 1),
            _padded(given, len(ids), 0.0),
            strict=True,
        )
    ]


def _padded(values: Sequence[float], length: int, filler: float) -> list[float]:
    """Cut or extend values to `length`, because a record may have a wrong number of them."""
    return [*values[:length], *[filler] * (length - len(values))]


def _likely(logprob: float) -> str:
    return f"likely-{sum(logprob < bound for bound in LIKELY)}"


def _gain(value: float, largest: float) -> str:
    if value == 0 or not largest:
        return "gain-0"
    return f"{'gain' if value > 0 else 'loss'}-{2 if abs(value) > largest / 2 else 1}"


def _texts(ids: Sequence[int], run: Path, policy: str) -> list[str]:
    known = _tokenizer_of(run, policy)
    if known is None:
        return [f"\u27e8{each}\u27e9" for each in ids]
    return [known.decode([each], skip_special_tokens=False) for each in ids]


def _tokenizer_of(run: Path, policy: str) -> Tokenizer | None:
    """Return the tokenizer of a policy, or of the policy that it is a snapshot of; else None."""
    name = policy.partition("@")[0]
    found = sorted((run / CHECKPOINTS).glob("*/policies/*/tokenizer.json"), reverse=True)
    for path in found:
        if path.parent.name == name and path.is_file() and is_confined(run, path):
            try:
                return _tokenizer(path, path.stat().st_mtime_ns)
            except Exception:  # what tokenizers raises for a removed or damaged checkpoint
                continue
    return None


@lru_cache(maxsize=8)
def _tokenizer(path: Path, stamp: int) -> Tokenizer:
    """Load a tokenizer; the cache reloads it if `stamp`, the file's time, changes."""
    return Tokenizer.from_file(str(path))


PATIENCE = 1.0
"""Seconds that a request spends on indexing; the page shows how many steps are left."""
FEW_TURNS = 12
"""Largest number of turns of an episode that is shown with all turns unfolded."""


class EpisodePages:
    """Renders the pages of episodes and holds the indexes of the runs they belong to."""

    def __init__(self, catalogue: RunCatalogue, cache: Path) -> None:
        """`cache`: folder of the index files."""
        self.catalogue, self.cache = catalogue, cache
        self._indexes: dict[Path, EpisodeIndex] = {}
        self._lock = Lock()

    def episode_data(self, name: str, step: int, line: int) -> dict[str, Any]:
        """Return an episode as plain data, with its drawings if it was drawn."""
        run = self.catalogue.run(name)
        index = self.index_of(run)
        index.update(PATIENCE, first=step)
        record = index.read(step, line)
        drawn = read_drawings(run.folder, record)
        return {
            "step": record.step,
            "line": record.line,
            "group": record.group,
            "member": record.member,
            "advantages": record.advantages,
            "episode": to_json(record.episode),
            "drawings": None if drawn is None else to_json(drawn),
        }

    def episode(self, name: str, step: int, line: int, colour: str) -> str:
        """Render an episode, turn by turn; with a `colour` also its tokens."""
        run = self.catalogue.run(name)
        index = self.index_of(run)
        index.update(PATIENCE, first=step)
        record = index.read(step, line)
        with index.lock:
            around = index.list.around(step, line)
        home = f"/run/{quote(name, safe='')}/episodes"
        previous, following = (f"{home}/{each[0]}/{each[1]}" if each else "" for each in around)
        return self._whole(
            run,
            record,
            colour,
            title=f"Episode {line} of step {step}",
            previous=previous,
            next=following,
        )

    def games(self, name: str, page: int) -> str:
        """Render a page of the list of games played by a person."""
        run = self.catalogue.run(name)
        games = SavedGames(run.games)
        names = games.names()
        return render(
            "viewer_games.html.jinja",
            title=f"Games of {name}" if run.state != "games" else name,
            run=run,
            games=games.listed(names[page * PAGE : (page + 1) * PAGE]),
            total=len(names),
            page=page,
            links=links(page, len(names), {}),
        )

    def game(self, name: str, game: str, colour: str) -> str:
        """Render a game played by a person like an episode."""
        run = self.catalogue.run(name)
        return self._whole(run, SavedGames(run.games).read(game), colour, title=game, game=True)

    def _whole(
        self,
        run: ListedRun,
        record: Recorded,
        colour: str,
        *,
        title: str,
        game: bool = False,
        previous: str = "",
        next: str = "",
    ) -> str:
        advantages, declared = advantages_of(record), read_declared(run.folder)
        drawn = None if game else read_drawings(run.folder, record)
        few = len(record.episode.turns) <= FEW_TURNS
        hears = heard(record.episode.turns)
        readers = heard_by(hears)
        turns = [
            {
                "shown": show(turn, advantage, few, declared),
                "drawing": _picture(drawn.before(place) if drawn else None),
                "hears": [(n, record.episode.turns[n].agent) for n in hears[place]],
                "heard_by": [(n, record.episode.turns[n].agent) for n in readers[place]],
                "tokens": tokens(turn, advantage, run=run.folder, colour=colour) if colour else (),
            }
            for place, (turn, advantage) in enumerate(
                zip(record.episode.turns, advantages, strict=True)
            )
        ]
        return render(
            "viewer_episode.html.jinja",
            title=title,
            run=run,
            game=game,
            previous=previous,
            next=next,
            line=time_line(record.episode),
            record=record,
            measured=[
                (name, format_value(declared.of(f"arena/{record.episode.task.type}/{name}"), value))
                for name, value in record.episode.metrics.items()
            ],
            turns=turns,
            end=_picture(drawn.last() if drawn else None),
            agents=list(record.episode.agents()),
            colour=colour,
        )

    # Parts -------------------------------------------------------------------------------------

    def with_rebuild(self, make: Callable[[Request], T]) -> Callable[[Request], T]:
        """Return the function that makes an answer; it rebuilds a damaged index and tries again."""

        def answer(request: Request) -> T:
            try:
                return make(request)
            except (sqlite3.DatabaseError, RunError) as error:
                if not is_damaged(error):
                    raise
            self.index_of(self.catalogue.run(run_of(request))).rebuild()
            return make(request)

        return answer

    def index_of(self, run: ListedRun) -> EpisodeIndex:
        """Return the index of a run; it is opened once."""
        with self._lock:  # requests run on several threads
            if run.folder not in self._indexes:
                self._indexes[run.folder] = EpisodeIndex(run.folder, self.cache)
            return self._indexes[run.folder]


def _picture(drawing: StateDrawing | None) -> Markup | None:
    return None if drawing is None else svg_of(drawing)
