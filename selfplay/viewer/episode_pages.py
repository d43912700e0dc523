"""The pages of episodes: those of runs, and the games that a person played.

A completion token by token: what each was, how likely, and what it was credited with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from tokenizers import Tokenizer

from selfplay.errors import RunError
from selfplay.run.declarations import read_declared
from selfplay.run.formatting import figure, number
from selfplay.run.records import Advantage, Recorded
from selfplay.run.report.html import render
from selfplay.run.report.transcripts import show
from selfplay.run.untrusted import is_confined
from selfplay.types import Turn
from selfplay.viewer.catalog import ListedRun, RunCatalogue
from selfplay.viewer.index import PAGE, EpisodeFilter, EpisodeIndex, links
from selfplay.viewer.memory_bank import time_line
from selfplay.viewer.saved_games import SavedGames

LIKELY = (-0.05, -0.25, -0.7, -2.0)
"""Log-probabilities, in nats, at which the shade of a token changes."""
MOST_TOKENS = 4_000
"""Tokens of one completion that are shown."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token as it is shown."""

    text: str
    """What it reads as."""
    shade: str
    """Its class: likely-0 (almost certain) to likely-4, gain-0 to gain-2, loss-1, loss-2."""
    learned: bool
    """Whether it carries loss."""
    title: str
    """Its figures, in words."""


def tokens(turn: Turn, advantage: Advantage, *, run: Path, colour: str) -> list[Token]:
    """The completion's tokens, coloured by `likelihood` or by `advantage`.

    Texts come from the tokenizer in the run's checkpoint; without it a token reads as its number.
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
    """As many values as tokens, whatever a record holds."""
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
    """The policy's own, or that of the policy that it is a snapshot of: no other fits its ids."""
    name = policy.partition("@")[0]
    found = sorted((run / "checkpoints").glob("*/policies/*/tokenizer.json"), reverse=True)
    for path in found:
        if path.parent.name == name and path.is_file() and is_confined(run, path):
            try:
                return _tokenizer(path, path.stat().st_mtime_ns)
            except Exception:  # the library's own: a checkpoint that was dropped, or is damaged
                continue
    return None


@lru_cache(maxsize=8)
def _tokenizer(path: Path, stamp: int) -> Tokenizer:
    """Loaded once for each version of the file."""
    return Tokenizer.from_file(str(path))


PATIENCE = 1.0
"""Seconds that a request spends on indexing; what is left is told, and read at the next."""
FEW_TURNS = 12
"""Turns of an episode up to which all of them are shown unfolded."""


class EpisodePages:
    """Makes pages; keeps the indexes of the runs that were asked for."""

    def __init__(self, catalogue: RunCatalogue, cache: Path) -> None:
        """`cache` is where index files go."""
        self.catalogue, self.cache = catalogue, cache
        self._indexes: dict[Path, EpisodeIndex] = {}
        self._lock = Lock()

    def episodes(self, name: str, asked: EpisodeFilter, page: int) -> str:
        """A page of the list of episodes."""
        run = self.catalogue.run(name)
        index = self._index(run)
        left = index.update(PATIENCE)
        if left:
            index.update_behind()
        rows, total = index.find(asked, page)
        plain = {key: value for key, value in vars(asked).items() if value not in ("", None, False)}
        return render(
            "viewer_episodes.html.jinja",
            title=f"Episodes of {name}",
            run=run,
            asked=asked,
            rows=rows,
            total=total,
            left=left,
            nothing=not left and not total and asked == EpisodeFilter(),
            roles=index.roles(),
            page=page,
            links=links(page, total, plain),
        )

    def episode(self, name: str, step: int, line: int, colour: str) -> str:
        """One episode, turn by turn; with `colour`, token by token."""
        run = self.catalogue.run(name)
        index = self._index(run)
        index.update(PATIENCE, first=step)
        record = index.read(step, line)
        return self._whole(run, record, colour, title=f"Episode {line} of step {step}")

    def games(self, name: str, page: int) -> str:
        """A page of the list of games that a person played."""
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
        """One of these games, as an episode is shown."""
        run = self.catalogue.run(name)
        return self._whole(run, SavedGames(run.games).read(game), colour, title=game, game=True)

    def _whole(
        self, run: ListedRun, record: Recorded, colour: str, *, title: str, game: bool = False
    ) -> str:
        advantages, declared = _advantages(record), read_declared(run.folder)
        few = len(record.episode.turns) <= FEW_TURNS
        turns = [
            {
                "shown": show(turn, advantage, few, declared),
                "tokens": tokens(turn, advantage, run=run.folder, colour=colour) if colour else (),
            }
            for turn, advantage in zip(record.episode.turns, advantages, strict=True)
        ]
        return render(
            "viewer_episode.html.jinja",
            title=title,
            run=run,
            game=game,
            line=time_line(record.episode),
            record=record,
            measured=[
                (name, figure(declared.of(f"arena/{record.episode.task.type}/{name}"), value))
                for name, value in record.episode.metrics.items()
            ],
            turns=turns,
            agents=list(record.episode.agents()),
            colour=colour,
        )

    def group(self, name: str, step: int, group: str) -> str:
        """The siblings of a group side by side, and what each agent was paid and credited with."""
        run = self.catalogue.run(name)
        index = self._index(run)
        index.update(PATIENCE, first=step)
        siblings = [index.read(row.step, row.line) for row in index.group(step, group)]
        if not siblings:
            raise RunError(f"no group {group!r} in step {step} of {name}")
        declared = read_declared(run.folder)
        agents = list(dict.fromkeys(a for each in siblings for a in each.episode.agents()))
        return render(
            "viewer_group.html.jinja",
            title=f"Group {group} of step {step}",
            run=run,
            step=step,
            siblings=[
                {
                    "record": record,
                    "turns": [
                        show(turn, advantage, False, declared)
                        for turn, advantage in zip(
                            record.episode.turns, _advantages(record), strict=True
                        )
                    ],
                }
                for record in siblings
            ],
            table=[(agent, *_returns(agent, siblings)) for agent in agents],
        )

    # Parts -------------------------------------------------------------------------------------

    def _index(self, run: ListedRun) -> EpisodeIndex:
        with self._lock:  # requests come on several threads
            if run.folder not in self._indexes:
                self._indexes[run.folder] = EpisodeIndex(run.folder, self.cache)
            return self._indexes[run.folder]


def _advantages(record: Recorded) -> list[Any]:
    missing = len(record.episode.turns) - len(record.advantages)
    return [*record.advantages, *[None] * missing][: len(record.episode.turns)]


def _returns(agent: str, siblings: Sequence[Recorded]) -> tuple[list[str], str]:
    """What an agent was paid in each sibling, with its first advantage; and their mean."""
    cells, paid = [], []
    for record in siblings:
        mine = [place for place, turn in enumerate(record.episode.turns) if turn.agent == agent]
        if not mine:
            cells.append("-")
            continue
        paid.append(sum(record.episode.turns[place].reward for place in mine))
        first = _advantages(record)[mine[0]]
        shown = (
            number(sum(first) / max(len(first), 1)) if isinstance(first, list) else number(first)
        )
        cells.append(f"{number(paid[-1])} ({shown})")
    return cells, number(sum(paid) / len(paid)) if paid else "-"
