"""pass@k of the policy before and after training: sharper, or able to do more?

**Definition.** pass@k of a task is the chance that one of k samples is right; the mean over tasks
is reported for k = 1, 2, 4, ... up to the number of samples. Trained above untrained at small k and
below at large k is sharpening; above at every k, with tasks that the untrained policy never solves,
is a candidate for discovery. A task is newly solvable (or no longer) where all samples of one are
wrong and Fisher's exact test tells the two apart at a false discovery rate of 5 %. majority@k is
the chance that the answer which most of k samples give is right, ties split: what one gets of k
samples without knowing which is right. Cover@tau is the share of tasks of which at least that share
of the samples is right.

**Source.** Chen et al. 2021, 2107.03374, for the estimator; Yue et al. 2025, 2504.13837, for the
question; Wang et al. 2022, 2203.11171, for the vote; 2510.08325 for Cover@tau.

**Estimator.** 1 - C(n - c, k) / C(n, k) of n samples with c right: unbiased for k <= n, and never
extrapolated. majority@k is the mean over all C(n, k) subsets, counted exactly. Tasks are drawn
again for the interval, all samples of one together.

**Limits.** Votes need answers that mean the same where they are the same text, and only then: the
arena says which are (`Arena.canonical_answer`), and other tasks have no majority@k, such as those
whose answers are programs. A sample that holds no answer has no vote; where none votes nobody is
right. Cover@tau is of n samples, and of more of them another figure. "Not found in n samples" is
not "cannot": with none of n right the chance may be as high as 1 - 0.05^(1/n). With few possible
answers guessing alone makes pass@k rise. The same temperature is not the same diversity for both. A
verifier that errs makes large k look good.

The vote of k samples: how often most of them are right, counted over all subsets of k.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from selfplay.errors import ConfigError, nearest
from selfplay.study.matches import StudyMatches
from selfplay.study.players import StudyPlayer
from selfplay.study.plots import CurvePlot
from selfplay.study.result import Result, Table
from selfplay.study.stats.bootstrap import Draws, Estimate, benjamini_hochberg
from selfplay.types import Episode, Status, Turn


@dataclass(frozen=True, kw_only=True)
class AnswerVotes:
    """What the samples of a task answered. Those that held no answer are in neither list."""

    right: Sequence[int]
    """How many samples gave each right answer."""
    wrong: Sequence[int]
    """The same of wrong ones."""


def ballots(answers: Sequence[tuple[str | None, bool]]) -> AnswerVotes | None:
    """The votes of a task's samples, (answer, right) each; "" is no answer.

    None where votes are no figure: an answer that cannot be compared (None), or rightness that is
    not of the answer: one text both right and wrong, or right without an answer.
    """
    right = Counter(text for text, good in answers if good)
    wrong = Counter(text for text, good in answers if not good)
    if None in right or None in wrong or "" in right or set(right) & set(wrong):
        return None
    return AnswerVotes(
        right=list(right.values()), wrong=[count for text, count in wrong.items() if text]
    )


def majority_at_k(voted: AnswerVotes, samples: int, k: int) -> float:
    """The chance that k of the samples, drawn without replacement, elect a right answer.

    The answer of the most wins, of several with equally many one at random. Samples without an
    answer are drawn but do not vote; nobody wins where none votes. Exact up to rounding: counts
    of the answers among k drawn are independent binomials, given that they add up to k. NaN for k
    beyond the samples.
    """
    if not 1 <= k <= samples:
        return math.nan
    silent = samples - sum(voted.right) - sum(voted.wrong)
    found = 0.0
    for mine, alike in Counter(voted.right).items():
        others = [*voted.right, *voted.wrong]
        others.remove(mine)
        for most in range(1, min(mine, k) + 1):
            tied = _tied(others, silent, most, k - most, (samples, k))
            shares = tied / np.arange(1, len(tied) + 1)
            found += alike * _chance(mine, most, (samples, k)) * float(shares.sum())
    return found / _chance(samples, k, (samples, k))


def _tied(
    others: Sequence[int], silent: int, most: int, drawn: int, of: tuple[int, int]
) -> np.ndarray:
    """[T] the chance that t other answers have `most` votes and none has more, where `drawn`
    samples are theirs or silent."""
    found = np.zeros((drawn // most + 1, drawn + 1))
    # Those that cannot have as many are one crowd: so many different wrong answers cost nothing.
    crowd = silent + sum(count for count in others if count < most)
    found[0] = [_chance(crowd, x, of) for x in range(drawn + 1)]
    for count in filter(most.__le__, others):
        after = np.zeros_like(found)
        for x in range(min(count, most, drawn) + 1):
            before = _chance(count, x, of) * found[:, : drawn + 1 - x]
            if x < most:
                after[:, x:] += before
            else:
                after[1:, x:] += before[:-1]
        found = after
    last: np.ndarray = found[:, drawn]
    return last


def _chance(count: int, drawn: int, of: tuple[int, int]) -> float:
    """Of `drawn` successes in `count` trials. Any chance of a success would do; near k of n the
    sums stay far from the smallest numbers there are."""
    if drawn > count:
        return 0.0
    n, k = of
    p = k / (n + 1)
    ways = math.lgamma(count + 1) - math.lgamma(drawn + 1) - math.lgamma(count - drawn + 1)
    return math.exp(ways + drawn * math.log(p) + (count - drawn) * math.log1p(-p))


RIGHT = "correct"
"""The verdict of a right answer."""
RATE = 0.05
"""False discovery rate."""
TAUS = (0.25, 0.5, 0.75, 1.0)
"""Shares of right samples for Cover@tau."""

Places: TypeAlias = Sequence[float]
Lines: TypeAlias = Mapping[str, Sequence[Estimate]]
"""Player to its figure at each place."""


@dataclass(frozen=True, kw_only=True)
class AttemptCounts:
    """What samples of each task came to."""

    tasks: Sequence[str]
    """[T] ids."""
    samples: np.ndarray
    """[T] n."""
    right: np.ndarray
    """[T] c."""
    voted: Sequence[AnswerVotes | None] = ()
    """[T] what the samples answered; None where answers cannot be compared as text."""


def study(
    games: StudyMatches,
    trained: StudyPlayer,
    base: StudyPlayer,
    *,
    samples: int,
    role: str | None = None,
) -> Result:
    """Sample every task of the games by both players."""
    if not games.tasks:
        raise ConfigError(
            "passk: this run has no evaluation, and default tasks are never the same twice; name a "
            "run whose evaluation has a list of tasks"
        )
    asked = [seat for name, seat in games.seats.items() if role in (None, name)]
    if asked and all(seat.temperature == 0 for seat in asked):
        raise ConfigError(
            "passk: this evaluation is greedy (temperature 0), so that all samples of a task are "
            "one; name one that samples, with --evaluation"
        )
    if role is None:  # what cannot be counted is refused before all of it is played
        counts(games, games.rollout().run(games.jobs(trained.seats(games.agents), count=1)))
    games.episodes = len(games.tasks) * samples
    found = {
        player.label: counts(games, games.run(player.seats(games.agents)), role=role)
        for player in (trained, base)
    }
    after, before = found[trained.label], found[base.label]
    most = int(min(after.samples.min(), before.samples.min()))
    if most < 1:
        games.record()  # refuses a metric that no episode has
        having = f"an answer of {role}" if role else games.metrics[0]
        raise ConfigError(
            f"passk: a task has no sample that was played to its end and has {having}; name an "
            "evaluation all of whose tasks have it, with --evaluation"
        )
    ks = [2**power for power in range(most.bit_length()) if 2**power <= most]
    draws = Draws(tasks=after.tasks, seed=games.seed)

    def curves(
        name: str, values: Callable[[AttemptCounts, float], np.ndarray], at: Places
    ) -> Lines:
        return {
            label: [draws.mean(f"{name}{x:g}, {label}", values(each, x)) for x in at]
            for label, each in found.items()
        }

    passed, covered = curves("pass@", per_task, ks), curves("Cover@", cover, TAUS)
    comparable = [None not in pair for pair in zip(after.voted, before.voted, strict=True)]
    voted = curves("majority@", lambda each, k: votes(each, int(k), comparable), ks)
    gains = [
        draws.mean(f"gain at k = {k}", per_task(after, k) - per_task(before, k), null=0.0)
        for k in ks
    ]
    if any(comparable):
        gained = votes(after, ks[-1], comparable) - votes(before, ks[-1], comparable)
        gains.append(draws.mean(f"gain of majority@{ks[-1]}", gained, null=0.0))
    new, lost = discovered(after, before), discovered(before, after)
    crossing = first_crossing(*([e.value for e in each] for each in passed.values()))
    crosses = f"at k = {ks[crossing]}" if crossing is not None else f"nowhere up to k = {ks[-1]}"
    shown = {"pass@k": passed, **({"majority@k": voted} if any(comparable) else {})}
    return Result(
        measure="passk",
        title=f"pass@k of {trained.label} and {base.label} in {games.arena().name}",
        definition="The chance that at least one of k samples is right, and that the answer of the "
        "most of them is. Better at small k alone is sharpening; better at every k is more.",
        estimates=[*gains, _count("newly solvable tasks", new), _count("no longer solvable", lost)],
        tables=[
            *(_table(title, "k", ks, lines) for title, lines in shown.items()),
            _table("Cover@tau: tasks with this share of right samples", "tau", TAUS, covered),
            Table(
                title="Tasks by what was found",
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
            ),
        ],
        drawings=[
            CurvePlot(
                title=f"{title}, with 95 % intervals",
                x=ks,
                series={label: [e.value for e in each] for label, each in lines.items()},
                bands={
                    label: ([e.low for e in each], [e.high for e in each])
                    for label, each in lines.items()
                },
                xlabel="k",
                logarithmic=True,
            )
            for title, lines in shown.items()
        ],
        params={**games.record(), "samples_per_task": most, "role": role or "the whole episode"},
        notes=[
            *games.notes,
            f"the untrained curve reaches the trained one {crosses}",
            f"a task of which none of {most} samples is right may still be solved with a chance of "
            f"up to {1 - 0.05 ** (1 / most):.3g}",
            *_incomparable(comparable),
        ],
    )


def _table(title: str, head: str, at: Places, lines: Lines) -> Table:
    ends = [f"{label}{end}" for label in lines for end in ("", " low", " high")]
    rows = [
        [x, *(v for e in each for v in (e.value, e.low, e.high))]
        for x, *each in zip(at, *lines.values(), strict=True)
    ]
    return Table(title=title, columns=[head, *ends], rows=rows)


def _incomparable(comparable: Sequence[bool]) -> list[str]:
    """The note on tasks without majority@k."""
    left = len(comparable) - sum(comparable)
    if not left:
        return []
    of = "no" if left == len(comparable) else f"majority@k is of {sum(comparable)} tasks; no"
    return [f"{of} majority@k of {left} tasks, whose answers cannot be compared as text"]


def counts(
    games: StudyMatches, episodes: Sequence[Episode], *, role: str | None = None
) -> AttemptCounts:
    """How many samples of each task were right: episodes, or first answers of a role's agents.

    A later answer knows the first, and what others said of it: it is no sample of its own.
    """
    known = {turn.role for episode in episodes for turn in episode.turns}
    if role is not None and role not in known:
        raise ConfigError(f"--role {role}: nobody of that role answers; {nearest(role, known)}")
    samples: dict[str, list[tuple[str | None, bool]]] = {task.id: [] for task in games.tasks}
    arena = games.arena()

    def said(episode: Episode, turn: Turn) -> str | None:
        return arena.canonical_answer(episode.task, turn.agent, turn.action)

    scores = games.scores(episodes) if role is None else np.zeros(len(episodes))
    if role is None and not set(scores[np.isfinite(scores)].tolist()) <= {0.0, 1.0}:
        judged = {turn.role for e in episodes for turn in e.turns if "verdict" in turn.info}
        answers = f", or whose answers count (--role {max(judged)})" if judged else ""
        raise ConfigError(
            f"passk: {games.metrics[0]} of an episode is not 0 or 1, so that no sample is right or "
            f"wrong; name a metric that is (--metric){answers}"
        )
    for episode, score in zip(episodes, scores, strict=True):
        if episode.status is Status.FAILED or np.isnan(score):  # what was not measured is not wrong
            continue
        found = samples[episode.task.id]
        if role is not None:
            mine = {turn.agent: turn for turn in reversed(episode.turns) if turn.role == role}
            found += [(said(episode, t), t.info.get("verdict") == RIGHT) for t in mine.values()]
        elif episode.status is Status.TRUNCATED:  # cut off before it answered
            found.append(("", score == 1.0))
        else:  # its answer is the last word, where that is one agent's
            end = max((turn.stage for turn in episode.turns), default=0)
            last = [turn for turn in episode.turns if turn.stage == end]
            found.append((said(episode, last[0]) if len(last) == 1 else None, score == 1.0))
    return AttemptCounts(
        tasks=list(samples),
        samples=np.array([len(each) for each in samples.values()]),
        right=np.array([sum(good for _, good in each) for each in samples.values()]),
        voted=[ballots(each) for each in samples.values()],
    )


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The unbiased estimate; NaN for k beyond the samples."""
    if k > samples:
        return math.nan
    if samples - right < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(samples - right + 1, samples + 1))


def per_task(counted: AttemptCounts, k: float) -> np.ndarray:
    """[T] pass@k."""
    pairs = zip(counted.samples.tolist(), counted.right.tolist(), strict=True)
    return np.array([pass_at_k(n, c, int(k)) for n, c in pairs])


def votes(counted: AttemptCounts, k: int, comparable: Sequence[bool]) -> np.ndarray:
    """[T] majority@k; NaN of tasks that are not comparable."""
    rows = zip(counted.voted, counted.samples.tolist(), comparable, strict=True)
    return np.array([majority_at_k(v, n, k) if v and ok else math.nan for v, n, ok in rows])


def cover(counted: AttemptCounts, tau: float) -> np.ndarray:
    """[T] 1 where at least this share of the samples is right."""
    return (counted.right >= tau * counted.samples - 1e-9).astype(float)


def first_crossing(trained: Sequence[float], base: Sequence[float]) -> int | None:
    """The first place where the untrained curve is no lower, behind one where it is."""
    below = False
    for place, (mine, theirs) in enumerate(zip(trained, base, strict=True)):
        if below and theirs >= mine:
            return place
        below = below or theirs < mine
    return None


def discovered(one: AttemptCounts, other: AttemptCounts) -> int:
    """Tasks that `other` never solved and that `one` solves, by Fisher's test and q-values."""
    rows = zip(one.right, one.samples, other.right, other.samples, strict=True)
    found = [tuple(map(int, row)) for row in rows]
    qs = benjamini_hochberg([fisher(*row) for row in found])
    return sum(q < RATE and row[2] == 0 < row[0] for row, q in zip(found, qs, strict=True))


def fisher(right: int, samples: int, others: int, of: int) -> float:
    """Two-sided exact p that two shares are the same."""
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
