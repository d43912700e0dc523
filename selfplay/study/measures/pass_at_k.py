"""pass@k before and after training: sharpening, or new abilities?

**Definition.** pass@k of a task is the probability that at least one of k samples is right. The
mean over tasks is reported for k = 1, 2, 4, ... up to the number of samples. A trained curve above
the untrained one at small k and below it at large k is sharpening. A trained curve above at every
k, with tasks that the untrained policy never solves, is a candidate for discovery. A task is newly
solvable if all samples of the untrained policy are wrong and Fisher's exact test separates the
policies at a false discovery rate of 5 %; a task is no longer solvable in the opposite case.
majority@k is the probability that the most frequent answer of k samples is right, with ties split:
the accuracy of k samples without a verifier. Cover@tau is the fraction of tasks with at least the
fraction tau of right samples.

**Source.** Chen et al. 2021, 2107.03374, for the estimator; Yue et al. 2025, 2504.13837, for the
question; Wang et al. 2022, 2203.11171, for the vote; 2510.08325 for Cover@tau.

**Estimator.** 1 - C(n - c, k) / C(n, k) for n samples with c right: unbiased for k <= n, and never
extrapolated. majority@k is the exact mean over all C(n, k) subsets. The interval draws tasks again,
with all their samples.

**Limits.** Votes need canonical answers: two answers mean the same if and only if their texts are
equal. The arena provides them (`Arena.canonical_answer`); other tasks, such as those whose answers
are programs, have no majority@k. A sample without an answer does not vote; without any vote the
result is wrong. Cover@tau depends on the number n of samples. "Not found in n samples" is not
"cannot": if none of n samples is right, the probability may be as high as 1 - 0.05^(1/n). With few
possible answers, guessing alone makes pass@k rise. The same temperature does not give the same
diversity to both policies. A verifier with errors makes large k look good.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from selfplay.errors import ConfigError, nearest
from selfplay.study.matches import StudyMatches
from selfplay.study.measure import (
    CHANGES,
    EVALUATION,
    METRIC,
    ROLE,
    SAMPLES,
    SEED,
    Measure,
    open_games,
    start_of,
)
from selfplay.study.players import Reference, StudyPlayer
from selfplay.study.plots import CurvePlot
from selfplay.study.result import Result, Table
from selfplay.study.stats.bootstrap import Draws, Estimate, benjamini_hochberg
from selfplay.study.stats.majority_vote import AnswerVotes, count_votes, majority_at_k
from selfplay.types import Episode, Status, Turn

RIGHT = "correct"
"""Verdict of a right answer."""
RATE = 0.05
"""False discovery rate."""
TAUS = (0.25, 0.5, 0.75, 1.0)
"""Fractions of right samples for Cover@tau."""

Places: TypeAlias = Sequence[float]
"""Values of k or tau."""
Lines: TypeAlias = Mapping[str, Sequence[Estimate]]
"""Player to its estimate at each k or tau."""


@dataclass(frozen=True, kw_only=True)
class AttemptCounts:
    """Outcomes of the samples of each task. `counts` makes it; the curves read it."""

    tasks: Sequence[str]
    """[T] ids of the tasks."""
    samples: np.ndarray
    """[T] number n of samples."""
    right: np.ndarray
    """[T] number c of right samples."""
    voted: Sequence[AnswerVotes | None] = ()
    """[T] votes of the samples; None if answers cannot be compared as text."""


def study(
    games: StudyMatches,
    trained: StudyPlayer,
    base: StudyPlayer,
    *,
    samples: int,
    role: str | None = None,
) -> Result:
    """Sample every task of the games with both players, and compare.

    Args:
        games: The games of an evaluation.
        trained: Player after training.
        base: Player before training.
        samples: Number of samples per task and player.
        role: Role whose first answers are the samples; None: a sample is a whole episode.
    Raises:
        ConfigError: If the games have no list of tasks, if sampling is greedy, or if no sample of a
            task can be judged.
    """
    _check_games(games, trained, role)
    games.episodes = len(games.tasks) * samples
    found = {
        player.label: counts(games, games.run(player.seats(games.agents)), role=role)
        for player in (trained, base)
    }
    most = _samples_per_task(games, found, role)
    curves = _Curves(found, ks=[2**power for power in range(most.bit_length())], seed=games.seed)
    passed, voted = curves.passed(), curves.voted()
    after, before = curves.after, curves.before
    new, lost = discovered(after, before), discovered(before, after)
    mine, theirs = ([each.value for each in curve] for curve in passed.values())
    shown = {"pass@k": passed, **({"majority@k": voted} if any(curves.comparable) else {})}
    return Result(
        measure="passk",
        title=f"pass@k of {trained.label} and {base.label} in {games.arena().name}",
        definition="pass@k: the probability that at least one of k samples is right. majority@k: "
        "the probability that their most frequent answer is right. Better only at small k is "
        "sharpening; better at every k is a sign of new abilities.",
        estimates=[
            *curves.gains(),
            _count("newly solvable tasks", new),
            _count("no longer solvable", lost),
        ],
        tables=[
            *(_table(title, "k", curves.ks, lines) for title, lines in shown.items()),
            _table(
                "Cover@tau: tasks with this fraction of right samples",
                "tau",
                TAUS,
                curves.covered(),
            ),
            _outcomes(found),
        ],
        drawings=[_plot(title, curves.ks, lines) for title, lines in shown.items()],
        params={**games.record(), "samples_per_task": most, "role": role or "the whole episode"},
        notes=[
            *games.notes,
            crossing_note(mine, theirs, curves.ks),
            f"a task without a right answer in {most} samples may still be solved with a "
            f"probability of up to {1 - 0.05 ** (1 / most):.3g}",
            *_incomparable(curves.comparable),
        ],
    )


def _check_games(games: StudyMatches, trained: StudyPlayer, role: str | None) -> None:
    """Raise ConfigError, before all games are played, for games without pass@k."""
    if not games.tasks:
        raise ConfigError(
            "passk: this run has no evaluation, and default tasks differ in every episode; name a "
            "run whose evaluation has a list of tasks"
        )
    asked = [agent_spec for name, agent_spec in games.agent_specs.items() if role in (None, name)]
    if asked and all(agent_spec.temperature == 0 for agent_spec in asked):
        raise ConfigError(
            "passk: this evaluation is greedy (temperature 0), so all samples of a task are equal; "
            "name one that samples, with --evaluation"
        )
    if role is None:  # a game that is not right or wrong raises
        specs = games.episode_specs(trained.seats(games.agents), count=1)
        counts(games, games.rollout().run(specs))


def _samples_per_task(
    games: StudyMatches, found: Mapping[str, AttemptCounts], role: str | None
) -> int:
    """Return the number of samples that each task has of both players; ConfigError is raised if a
    task has none."""
    most = min(int(each.samples.min()) for each in found.values())
    if most < 1:
        games.record()  # raises for a metric that no episode has
        having = f"an answer of {role}" if role else games.metrics[0]
        raise ConfigError(
            f"passk: a task has no finished sample with {having}; name an evaluation in which all "
            "tasks have it, with --evaluation"
        )
    return most


class _Curves:
    """The curves of both players, with intervals from the same resampled tasks."""

    def __init__(self, found: Mapping[str, AttemptCounts], *, ks: Sequence[int], seed: int) -> None:
        """Args:
        found: Counts by the label of the player: the trained one, then the untrained one.
        ks: Values of k.
        seed: Seed of the resampling.
        """
        self.found, self.ks = found, ks
        self.after, self.before = found.values()
        self.comparable = [
            None not in pair for pair in zip(self.after.voted, self.before.voted, strict=True)
        ]
        """[T] True for tasks whose answers can be compared as text."""
        self._draws = Draws(tasks=self.after.tasks, seed=seed)

    def passed(self) -> Lines:
        """Return pass@k by player."""
        return self._lines("pass@", per_task, self.ks)

    def voted(self) -> Lines:
        """Return majority@k by player."""
        return self._lines("majority@", self._votes, self.ks)

    def covered(self) -> Lines:
        """Return Cover@tau by player."""
        return self._lines("Cover@", cover, TAUS)

    def gains(self) -> list[Estimate]:
        """Return the gains by training: of pass@k, and of majority@k at the largest k."""
        gains = [
            self._gain(f"gain at k = {k}", per_task(self.after, k) - per_task(self.before, k))
            for k in self.ks
        ]
        if any(self.comparable):
            k = self.ks[-1]
            votes_gained = self._votes(self.after, k) - self._votes(self.before, k)
            gains.append(self._gain(f"gain of majority@{k}", votes_gained))
        return gains

    def _lines(
        self, name: str, values: Callable[[AttemptCounts, float], np.ndarray], at: Places
    ) -> Lines:
        return {
            label: [
                self._draws.mean(f"{name}{x:g}, {label}", values(each, x), bounds=(0.0, 1.0))
                for x in at
            ]
            for label, each in self.found.items()
        }

    def _gain(self, name: str, values: np.ndarray) -> Estimate:
        return self._draws.mean(name, values, bounds=(-1.0, 1.0), null=0.0)

    def _votes(self, counted: AttemptCounts, k: float) -> np.ndarray:
        return votes(counted, int(k), self.comparable)


def _table(title: str, head: str, at: Places, lines: Lines) -> Table:
    ends = [f"{label}{end}" for label in lines for end in ("", " low", " high")]
    rows = [
        [x, *(v for e in each for v in (e.value, e.low, e.high))]
        for x, *each in zip(at, *lines.values(), strict=True)
    ]
    return Table(title=title, columns=[head, *ends], rows=rows)


def _outcomes(found: Mapping[str, AttemptCounts]) -> Table:
    """Return the table of each player's numbers of tasks by outcome."""
    return Table(
        title="Tasks by outcome",
        columns=["", "tasks", "never solved", "always solved"],
        rows=[
            [
                label,
                len(each.tasks),
                int((each.right == 0).sum()),
                int((each.right == each.samples).sum()),
            ]
            for label, each in found.items()
        ],
    )


def _plot(title: str, ks: Sequence[int], lines: Lines) -> CurvePlot:
    """Return the curves of all players by k, with their intervals."""
    return CurvePlot(
        title=f"{title}, with 95 % intervals",
        x=ks,
        series={label: [e.value for e in each] for label, each in lines.items()},
        bands={
            label: ([e.low for e in each], [e.high for e in each]) for label, each in lines.items()
        },
        xlabel="k",
        label="probability",
        logarithmic=True,
    )


def _incomparable(comparable: Sequence[bool]) -> list[str]:
    """Return the note on tasks without majority@k."""
    left = len(comparable) - sum(comparable)
    if not left:
        return []
    of = "no" if left == len(comparable) else f"majority@k is of {sum(comparable)} tasks; no"
    return [f"{of} majority@k of {left} tasks, whose answers cannot be compared as text"]


def counts(
    games: StudyMatches, episodes: Sequence[Episode], *, role: str | None = None
) -> AttemptCounts:
    """Count the right samples of each task: episodes, or first answers of a role's agents.

    A later answer depends on the first one and on the words of others, so it is not a sample.
    Raises ConfigError for an unknown role, or if the main metric of an episode is not 0 or 1.
    """
    known = {turn.role for episode in episodes for turn in episode.turns}
    if role is not None and role not in known:
        raise ConfigError(f"--role {role}: no agent has this role; {nearest(role, known)}")
    samples: dict[str, list[tuple[str | None, bool]]] = {task.id: [] for task in games.tasks}
    arena = games.arena()

    def said(episode: Episode, turn: Turn) -> str | None:
        return arena.canonical_answer(episode.task, turn.agent, turn.action)

    scores = games.scores(episodes) if role is None else np.zeros(len(episodes))
    if role is None and not set(scores[np.isfinite(scores)].tolist()) <= {0.0, 1.0}:
        judged = {turn.role for e in episodes for turn in e.turns if "verdict" in turn.info}
        answers = f", or whose answers count (--role {max(judged)})" if judged else ""
        raise ConfigError(
            f"passk: {games.metrics[0]} of an episode is not 0 or 1, so no sample is right or "
            f"wrong; name a metric that is (--metric){answers}"
        )
    for episode, score in zip(episodes, scores, strict=True):
        if episode.status is Status.FAILED or np.isnan(score):  # not measured
            continue
        found = samples[episode.task.id]
        if role is not None:
            mine = {turn.agent: turn for turn in reversed(episode.moves()) if turn.role == role}
            found += [(said(episode, t), t.info.get("verdict") == RIGHT) for t in mine.values()]
        elif episode.status is Status.TRUNCATED:  # truncated before an answer
            found.append(("", score == 1.0))
        else:  # the answer is the last turn, if a single agent has it
            end = max((turn.stage for turn in episode.turns), default=0)
            last = [turn for turn in episode.moves() if turn.stage == end]
            found.append((said(episode, last[0]) if len(last) == 1 else None, score == 1.0))
    return AttemptCounts(
        tasks=list(samples),
        samples=np.array([len(each) for each in samples.values()]),
        right=np.array([sum(good for _, good in each) for each in samples.values()]),
        voted=[count_votes(each) for each in samples.values()],
    )


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Return the unbiased estimate of pass@k; NaN for k larger than the number of samples."""
    if k > samples:
        return math.nan
    if samples - right < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(samples - right + 1, samples + 1))


def per_task(counted: AttemptCounts, k: float) -> np.ndarray:
    """Return [T] pass@k."""
    pairs = zip(counted.samples.tolist(), counted.right.tolist(), strict=True)
    return np.array([pass_at_k(n, c, int(k)) for n, c in pairs])


def votes(counted: AttemptCounts, k: int, comparable: Sequence[bool]) -> np.ndarray:
    """Return [T] majority@k; NaN for tasks that are not comparable."""
    rows = zip(counted.voted, counted.samples.tolist(), comparable, strict=True)
    return np.array([majority_at_k(v, n, k) if v and ok else math.nan for v, n, ok in rows])


def cover(counted: AttemptCounts, tau: float) -> np.ndarray:
    """Return [T] 1 if at least this fraction of the samples is right, else 0."""
    return (counted.right >= tau * counted.samples - 1e-9).astype(float)


def crossing_note(trained: Sequence[float], base: Sequence[float], ks: Sequence[int]) -> str:
    """Return the note that says where the untrained curve reaches the trained one."""
    if all(theirs >= mine for mine, theirs in zip(trained, base, strict=True)):
        return "the trained curve is above the untrained one at no k"
    crossing = first_crossing(trained, base)
    where = f"at k = {ks[crossing]}" if crossing is not None else f"nowhere up to k = {ks[-1]}"
    return f"the untrained curve reaches the trained one {where}"


def first_crossing(trained: Sequence[float], base: Sequence[float]) -> int | None:
    """Return the first index at which the untrained curve reaches the trained one from below; None
    if there is none."""
    below = False
    for place, (mine, theirs) in enumerate(zip(trained, base, strict=True)):
        if below and theirs >= mine:
            return place
        below = below or theirs < mine
    return None


def discovered(one: AttemptCounts, other: AttemptCounts) -> int:
    """Count the tasks that `one` solves and `other` never solved, by Fisher's test and q-values."""
    rows = zip(one.right, one.samples, other.right, other.samples, strict=True)
    found = [tuple(map(int, row)) for row in rows]
    qs = benjamini_hochberg([fisher(*row) for row in found])
    return sum(q < RATE and row[2] == 0 < row[0] for row, q in zip(found, qs, strict=True))


def fisher(right: int, samples: int, others: int, of: int) -> float:
    """Return the two-sided p of Fisher's exact test that two proportions are equal.

    The proportions are `right` of `samples`, and `others` of `of`.
    """
    total, drawn = samples + of, right + others
    chances: Mapping[int, float] = {
        k: math.comb(samples, k) * math.comb(of, drawn - k) / math.comb(total, drawn)
        for k in range(max(0, drawn - of), min(samples, drawn) + 1)
    }
    seen = chances[right]
    return min(1.0, sum(chance for chance in chances.values() if chance <= seen * (1 + 1e-9)))


def _count(name: str, number: int) -> Estimate:
    return Estimate(
        name=name, value=number, direction="lower_bound", notes=f"false discovery rate {RATE:g}"
    )


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    if options.samples < 1:
        raise ConfigError(f"--samples {options.samples}: at least 1 is needed")
    reference = Reference.parse(options.run)
    start = start_of(reference, "passk")
    with open_games(options, reference.run) as games:
        trained, base = games.admit([reference, start])
        return study(games, trained, base, samples=options.samples, role=options.role)


MEASURE = Measure(
    name="passk",
    help="pass@k before and after training: sharpening, or new abilities",
    target="player",
    run=from_options,
    options=(EVALUATION, METRIC, ROLE, SAMPLES, SEED, CHANGES),
)
"""The measure `passk` of the command line."""
