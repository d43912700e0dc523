"""Usage of words and moves: how often each agent says or plays what, by what it saw.

The counts come from recorded episodes alone. `usage_of` makes the table of each agent at one step.
Studies and the viewer read it.

Kinds of tables:

- *message*: messages to other agents (`Turn.spoken`);
- *move*: moves where the observation lists the legal ones (`Turn.legal`);
- *answer*: moves of repeated games by the last moves of both players, which is the memory-one
  vector (Press and Dyson 2012) for any number of moves;
- *text*: the actions of all other turns;
- *message words*, *text words*: the words in messages or texts that have at least two different
  words. A word counts once per message.

What an agent saw is the text of the new messages before its move, without the system's. A turn that
calls tools is no move: the move after the calls counts, with the view that the agent had before
them. A turn that did not parse counts as no valid action. So does a move that the arena called
illegal; a message counts with its words all the same, because it was said. Turns of frozen
opponents are left out where a policy that learns plays the same agent in the same step; so are
failed episodes, and the turns that a branch shares with its parent.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, TypeAlias, cast, get_args

import numpy as np

from selfplay.study.stats.mutual_information import (
    corrected,
    entropy,
    plug_in,
    random_pairings,
)
from selfplay.study.stats.text import MOST_WORDS, words
from selfplay.types import Episode, Message, Status, Turn

Kind: TypeAlias = Literal["message", "move", "answer", "text", "message words", "text words"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SPEECH: tuple[Kind, ...] = ("message", "message words", "text", "text words")
"""Kinds of the language page."""
PLAY: tuple[Kind, ...] = ("move", "answer")
"""Kinds of the behaviour page."""
WHOLE: Mapping[Kind, Kind] = {"message words": "message", "text words": "text"}
"""Kind of words to the kind of the texts that they occur in."""
PAIRINGS = 20
"""Number of random pairings whose mean information is the information by chance."""
FIRST = ""
"""View of an answer in the first round, which answers nothing."""


@dataclass(kw_only=True)
class UsageTable:
    """Table of one agent and kind at one step.

    `usage_of` makes it; studies read it, and the viewer's index stores it.
    """

    lines: dict[tuple[str, str | None], list[int]] = field(default_factory=dict)
    """(view, action) to the episode of each use, as the number that `usage_of` was given. None is
    an action that did not parse, or a move that the arena called illegal."""
    legal: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """View to its legal moves."""

    def add(self, view: str, action: str | None, line: int, legal: tuple[str, ...] = ()) -> None:
        """Count one use."""
        self.lines.setdefault((view, action), []).append(line)
        if legal:
            self.legal.setdefault(view, legal)

    def counts(self) -> dict[tuple[str, str | None], int]:
        """Return the number of uses by (view, action)."""
        return {cell: len(lines) for cell, lines in self.lines.items()}


@dataclass(frozen=True, kw_only=True)
class UsageSummary:
    """Numbers of one table. All information is in nats."""

    uses: int
    """Number of uses."""
    views: int
    """Number of different views."""
    actions: int
    """Number of different actions."""
    entropy: float
    """Plug-in entropy of the actions."""
    information: float
    """Mutual information of action and view, see `corrected`; it may be negative. NaN for tables of
    words, whose uses depend on each other, and for tables with too many rare values."""
    plug_in: float
    """Plug-in estimate of the same, which is biased up."""
    chance: float
    """Mean plug-in estimate of `PAIRINGS` random pairings of actions and views."""


def usage_of(episodes: Iterable[tuple[int, Episode]]) -> dict[tuple[str, Kind], UsageTable]:
    """Return the tables of one step by agent and kind, from (number, episode) pairs."""
    kept = [(n, episode) for n, episode in episodes if episode.status is not Status.FAILED]
    learning = learning_agents(episode for _, episode in kept)
    tables: dict[tuple[str, Kind], UsageTable] = {}

    def table(agent: str, kind: Kind) -> UsageTable:
        return tables.setdefault((agent, kind), UsageTable())

    for line, episode in kept:
        for turn, view in _moves(episode):
            if turn.agent in learning and not turn.trainable:
                continue
            kind, action = kind_of(turn), action_of(turn)
            table(turn.agent, kind).add(view, action, line, turn.legal)
            if kind != "move" and action is not None:
                spoken = dict.fromkeys(words(action)[:MOST_WORDS])
                if len(spoken) > 1:
                    by_word = table(turn.agent, cast("Kind", f"{kind} words"))
                    for word in spoken:
                        by_word.add(view, word, line)
        for turn, view, action in _answers(episode):
            if turn.agent not in learning or turn.trainable:
                table(turn.agent, "answer").add(view, action, line, turn.legal)
    return tables


def learning_agents(episodes: Iterable[Episode]) -> set[str]:
    """Return the agents that a policy which learns plays in at least one of these episodes."""
    return {turn.agent for episode in episodes for turn in episode.turns if turn.trainable}


def _moves(episode: Episode) -> Iterator[tuple[Turn, str]]:
    """Yield (turn, view) of each move that is not shared; a move with tool calls is one move."""
    views: dict[str, str] = {}
    for place, turn in enumerate(episode.turns):
        view = views.setdefault(turn.agent, view_of(turn.messages))
        if turn.final:
            del views[turn.agent]
            if place >= episode.shared_turns:
                yield turn, view


def summary_of(table: UsageTable, kind: Kind) -> UsageSummary:
    """Return the numbers of a table."""
    pairs = [cell for cell, lines in table.lines.items() for _ in lines]
    views, actions = [view for view, _ in pairs], [action for _, action in pairs]
    used = np.array(list(Counter(actions).values())) / max(len(pairs), 1)
    whole = kind not in WHOLE
    found = plug_in(views, actions) if whole else math.nan
    chance = _chance(views, actions) if whole and pairs else math.nan
    return UsageSummary(
        uses=len(pairs),
        views=len(set(views)),
        actions=len(used),
        entropy=float(entropy(used)),
        information=corrected(views, actions, chance=chance) if whole else math.nan,
        plug_in=found,
        chance=chance,
    )


def _chance(views: Sequence[str], actions: Sequence[str | None]) -> float:
    if len(set(views)) < 2 or len(set(actions)) < 2:
        return 0.0
    return float(random_pairings(views, actions, times=PAIRINGS).mean())


@dataclass(kw_only=True)
class Word:
    """History of one action of a table over the steps.

    The studies of recorded usage and the viewer's index of usage make it.
    """

    text: str
    """The action."""
    first: int
    """First recorded step with the action."""
    last: int
    """Last recorded step with the action."""
    times: int
    """Number of its uses at all recorded steps."""
    peak: float
    """Largest fraction of the uses of a step."""
    peak_step: int
    """First step with this fraction."""

    def add(self, step: int, times: int, share: float) -> None:
        """Count the uses of another step, in any order of the steps."""
        self.first, self.last = min(self.first, step), max(self.last, step)
        self.times += times
        if (share, -step) > (self.peak, -self.peak_step):
            self.peak, self.peak_step = share, step


MOST_FRAMES = 60
"""Largest number of steps whose cells a page or a study shows."""
LISTED = 8
"""Number of listed new and of listed dying words."""
SEEN = 0.02
"""Smallest peak of a word that is listed as new."""
FEWEST = 3
"""Smallest number of uses of a listed word."""
KNOWN = 0.1
"""Smallest peak of a word that can be dying."""
FADED = 0.25
"""Largest fraction of its peak that a dying word has at the last step."""


def newest(vocabulary: Sequence[Word], begin: int) -> list[Word]:
    """Return at most `LISTED` words that were first used after step `begin`, the newest first.

    Words with fewer than `FEWEST` uses, or a peak below `SEEN`, are left out.
    """
    new = [w for w in vocabulary if w.first > begin and w.peak >= SEEN and w.times >= FEWEST]
    return sorted(new, key=lambda word: (-word.first, -word.peak, word.text))[:LISTED]


def dying(vocabulary: Sequence[Word], now: Mapping[str, float]) -> list[Word]:
    """Return at most `LISTED` words that lost the most since their peak.

    A word is dying if it has at most the fraction `FADED` of its peak now. `now` maps each word to
    its fraction of the uses at the last step.
    """

    def lost(word: Word) -> float:
        return word.peak - now.get(word.text, 0.0)

    known = [word for word in vocabulary if word.peak >= KNOWN and word.times >= FEWEST]
    gone = [word for word in known if now.get(word.text, 0.0) <= FADED * word.peak]
    return sorted(gone, key=lambda word: (-lost(word), word.text))[:LISTED]


def frames(steps: Sequence[int]) -> list[int]:
    """Return at most `MOST_FRAMES` of these steps, evenly spaced, with the first and the last."""
    if len(steps) <= MOST_FRAMES:
        return list(steps)
    last = len(steps) - 1
    places = (round(place * last / (MOST_FRAMES - 1)) for place in range(MOST_FRAMES))
    return [steps[place] for place in dict.fromkeys(places)]


def shares_of(table: UsageTable) -> dict[str, tuple[int, float]]:
    """Return the number of uses of each valid action, and the fraction of all uses."""
    used: Counter[str] = Counter()
    for (_, action), lines in table.lines.items():
        if action is not None:
            used[action] += len(lines)
    total = sum(map(len, table.lines.values()))
    return {action: (times, times / total) for action, times in used.most_common()}


def kind_of(turn: Turn) -> Kind:
    """Return the kind of a turn's action."""
    return "message" if turn.spoken else "move" if turn.legal else "text"


def view_of(messages: Iterable[Message]) -> str:
    """Return the text of the new messages of a turn, without the system's messages."""
    shown = (m for m in messages if m.get("role") not in ("system", "assistant"))
    return "\n".join(map(_content, shown)).strip()


def _content(message: Message) -> str:
    parts = message.get("content", "")
    if isinstance(parts, str):
        return parts
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def action_of(turn: Turn) -> str | None:
    """Return the action as it is counted; None if it did not parse or is an illegal move."""
    illegal = turn.action not in turn.legal and turn.info.get("verdict") == "illegal"
    return None if kind_of(turn) == "move" and illegal else turn.action


def _answers(episode: Episode) -> Iterator[tuple[Turn, str, str | None]]:
    """Yield (turn, last moves, move) of a repeated game of two players who move at once."""
    rounds = []
    moves = ((place, turn) for place, turn in enumerate(episode.turns) if turn.final)
    for _, group in groupby(moves, key=lambda pair: pair[1].stage):
        stage = list(group)
        if len(stage) == 2 and all(turn.legal and not turn.spoken for _, turn in stage):
            rounds.append(stage)
    if len(rounds) < 2 or len({turn.agent for stage in rounds for _, turn in stage}) != 2:
        return
    last: dict[str, str | None] = {}
    for number, stage in enumerate(rounds):
        made = {turn.agent: action_of(turn) for _, turn in stage}
        for place, turn in stage:
            own = last.get(turn.agent)
            other = next((move for agent, move in last.items() if agent != turn.agent), None)
            known = own is not None and other is not None
            if place >= episode.shared_turns and (known or number == 0):
                yield turn, f"{own} / {other}" if known else FIRST, made[turn.agent]
        last = made
