"""pass@k of the policy before and after training: sharper, or able to do more?

**Definition.** pass@k of a task is the chance that one of k samples is right; the mean over tasks
is reported for k = 1, 2, 4, ... up to the number of samples. Trained above untrained at small k and
below at large k is sharpening; above at every k, with tasks that the untrained policy never solves,
is a candidate for discovery. A task is newly solvable (or no longer) where all samples of one are
wrong and Fisher's exact test tells the two apart at a false discovery rate of 5 %.

**Source.** Chen et al. 2021, 2107.03374, for the estimator; Yue et al. 2025, 2504.13837, for the
question.

**Estimator.** 1 - C(n - c, k) / C(n, k) of n samples with c right: unbiased for k <= n, and never
extrapolated. Tasks are drawn again for the interval, all samples of one together.

**Limits.** "Not found in n samples" is not "cannot": with none of n right the chance may be as high
as 1 - 0.05^(1/n). With few possible answers guessing alone makes pass@k rise. The same temperature
is not the same diversity for both. A verifier that errs makes large k look good.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from selfplay.errors import ConfigError, nearest
from selfplay.study.games import Games
from selfplay.study.intervals import Draws, Estimate, benjamini_hochberg
from selfplay.study.players import Player
from selfplay.study.plots import Curves
from selfplay.study.result import Result, Table
from selfplay.types import Episode, Status

RIGHT = "correct"
"""The verdict of a right answer."""
RATE = 0.05
"""False discovery rate."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What samples of each task came to."""

    tasks: Sequence[str]
    """[T] ids."""
    samples: np.ndarray
    """[T] n."""
    right: np.ndarray
    """[T] c."""


def study(
    games: Games, trained: Player, base: Player, *, samples: int, role: str | None = None
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
        counts(games, games.rollout().play(games.jobs(trained.seats(games.agents), count=1)))
    games.episodes = len(games.tasks) * samples
    found = {
        player.label: counts(games, games.play(player.seats(games.agents)), role=role)
        for player in (trained, base)
    }
    after, before = found[trained.label], found[base.label]
    most = int(min(after.samples.min(), before.samples.min()))
    if most < 1:
        raise ConfigError("passk: a task has no sample that was played to its end")
    ks = [2**power for power in range(most.bit_length()) if 2**power <= most]
    draws = Draws(tasks=after.tasks, seed=games.seed)
    curves = {
        label: [draws.mean(f"pass@{k}, {label}", per_task(each, k)) for k in ks]
        for label, each in found.items()
    }
    gains = [
        draws.mean(f"gain at k = {k}", per_task(after, k) - per_task(before, k), null=0.0)
        for k in ks
    ]
    new, lost = discovered(after, before), discovered(before, after)
    crossing = first_crossing(
        [e.value for e in curves[trained.label]], [e.value for e in curves[base.label]]
    )
    crosses = f"at k = {ks[crossing]}" if crossing is not None else f"nowhere up to k = {ks[-1]}"
    return Result(
        measure="passk",
        title=f"pass@k of {trained.label} and {base.label} in {games.arena().name}",
        definition="The chance that at least one of k samples is right. Better at small k alone is "
        "sharpening; better at every k is more than that.",
        estimates=[*gains, _count("newly solvable tasks", new), _count("no longer solvable", lost)],
        tables=[
            Table(
                title="pass@k",
                columns=[
                    "k",
                    *(f"{label}{end}" for label in curves for end in ("", " low", " high")),
                ],
                rows=[
                    [
                        k,
                        *(
                            v
                            for each in curves.values()
                            for v in (each[i].value, each[i].low, each[i].high)
                        ),
                    ]
                    for i, k in enumerate(ks)
                ],
            ),
            Table(
                title="Tasks by what was found",
                columns=[
                    "",
                    "tasks",
                    "never solved",
                    "always solved",
                    "solved half the time or more",
                ],
                rows=[
                    [
                        label,
                        len(each.tasks),
                        int((each.right == 0).sum()),
                        int((each.right == each.samples).sum()),
                        int((each.right * 2 >= each.samples).sum()),
                    ]
                    for label, each in found.items()
                ],
            ),
        ],
        drawings=[
            Curves(
                title="pass@k, with 95 % intervals",
                x=ks,
                series={label: [e.value for e in each] for label, each in curves.items()},
                bands={
                    label: ([e.low for e in each], [e.high for e in each])
                    for label, each in curves.items()
                },
                xlabel="k",
                logarithmic=True,
            )
        ],
        params={**games.record(), "samples_per_task": most, "role": role or "the whole episode"},
        notes=[
            *games.notes,
            f"the untrained curve reaches the trained one {crosses}",
            f"a task of which none of {most} samples is right may still be solved with a chance of "
            f"up to {1 - 0.05 ** (1 / most):.3g}",
        ],
    )


def counts(games: Games, episodes: Sequence[Episode], *, role: str | None = None) -> Counts:
    """How many samples of each task were right: episodes, or first answers of a role's agents.

    A later answer knows the first, and what others said of it: it is no sample of its own.
    """
    known = {turn.role for episode in episodes for turn in episode.turns}
    if role is not None and role not in known:
        raise ConfigError(f"--role {role}: nobody of that role answers; {nearest(role, known)}")
    samples: dict[str, list[bool]] = {task.id: [] for task in games.tasks}
    scores = games.scores(episodes) if role is None else np.zeros(len(episodes))
    if role is None and not set(scores[np.isfinite(scores)].tolist()) <= {0.0, 1.0}:
        judged = {turn.role for e in episodes for turn in e.turns if "verdict" in turn.info}
        answers = f", or whose answers count (--role {max(judged)})" if judged else ""
        raise ConfigError(
            f"passk: {games.metrics[0]} of an episode is not 0 or 1, so that no sample is right or "
            f"wrong; name a metric that is (--metric){answers}"
        )
    for episode, score in zip(episodes, scores, strict=True):
        if episode.status is Status.FAILED:
            continue
        if role is None:
            samples[episode.task.id].append(
                bool(score == 1.0)
            )  # cut off before it was measured: no
        else:
            mine = {turn.agent: turn for turn in reversed(episode.turns) if turn.role == role}
            samples[episode.task.id] += [t.info.get("verdict") == RIGHT for t in mine.values()]
    return Counts(
        tasks=list(samples),
        samples=np.array([len(each) for each in samples.values()]),
        right=np.array([sum(each) for each in samples.values()]),
    )


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The unbiased estimate; NaN for k beyond the samples."""
    if k > samples:
        return math.nan
    if samples - right < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(samples - right + 1, samples + 1))


def per_task(counted: Counts, k: int) -> np.ndarray:
    """[T] pass@k."""
    pairs = zip(counted.samples.tolist(), counted.right.tolist(), strict=True)
    return np.array([pass_at_k(n, c, k) for n, c in pairs])


def first_crossing(trained: Sequence[float], base: Sequence[float]) -> int | None:
    """The first place where the untrained curve is no lower, behind one where it is."""
    below = False
    for place, (mine, theirs) in enumerate(zip(trained, base, strict=True)):
        if below and theirs >= mine:
            return place
        below = below or theirs < mine
    return None


def discovered(one: Counts, other: Counts) -> int:
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
