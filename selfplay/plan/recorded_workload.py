"""The workload of an existing run: recorded lengths, counts and shared prefixes."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from statistics import fmean, median
from typing import Any

from selfplay.errors import RunError
from selfplay.models.population import Population
from selfplay.plan.checkpoint_size import KeptCheckpoints
from selfplay.plan.workload import (
    Flow,
    LengthDistribution,
    Lesson,
    Workload,
    frozen_in,
    limit_of,
    passes_of,
)
from selfplay.run.record_reader import Recorded, episodes_of, read_metrics, recorded_steps
from selfplay.run.run_folder import METRICS

NEWEST = 20
"""Number of newest steps that are read; older ones are from a policy that has changed since."""


def of_run(config: Mapping[str, Any], folder: Path, *, on_gpu: bool = False) -> Workload:
    """Return the mean workload of the newest recorded steps of a run.

    Raises RunError if the run recorded no episodes.
    """
    population = Population.of(config)
    steps = recorded_steps(folder)[-NEWEST:]
    if not steps:
        raise RunError(
            f"{folder} recorded no episodes to read lengths from; train with run.episodes_every=1"
        )
    flows: dict[tuple[int, str, str], list[list[_Turn]]] = defaultdict(list)
    learned: dict[str, list[list[_Turn]]] = defaultdict(list)
    frozen = frozen_in(population)
    idle = any(v for line in lines(folder) for k, v in line.items() if k.endswith("idle_samples"))
    episodes = 0
    for number in steps:
        step: dict[tuple[int, str, str], list[_Turn]] = defaultdict(list)
        for record in episodes_of(folder, number):
            episodes += 1
            for turn in _turns(record, idle=idle):
                step[turn.stage, turn.role, turn.policy].append(turn)
        for key, turns in step.items():
            flows[key].append(turns)
        lesson: dict[str, list[_Turn]] = defaultdict(list)
        for (_, _, policy), turns in step.items():
            lesson[policy] += [turn for turn in turns if turn.trainable and policy not in frozen]
        for policy, turns in lesson.items():
            if turns:
                learned[policy].append(turns)
    stages: dict[int, list[Flow]] = defaultdict(list)
    for (stage, role, policy), played in sorted(flows.items()):
        turns = [turn for step in played for turn in step]
        stages[stage].append(
            Flow(
                role=role,
                policy=policy,
                requests=len(turns) / len(steps),
                prompts=sum(len({turn.prompt for turn in step}) for step in played) / len(steps),
                prompt=fmean(len(turn.prompt) for turn in turns),
                completion=LengthDistribution.of(
                    [len(t.completion) for t in turns], limit_of(config, role)
                ),
            )
        )
    lessons = {
        policy: _lesson(taught, len(steps), passes_of(config, population, policy, on_gpu=on_gpu))
        for policy, taught in learned.items()
    }
    return Workload(
        stages=[stages[stage] for stage in sorted(stages)],
        lessons=lessons,
        frozen=frozen,
        episodes=episodes / len(steps),
        calls=_calls(folder),
        basis="recorded",
        notes=[f"lengths and counts: the episodes of {len(steps)} step(s) of {folder}"],
        checkpoints=KeptCheckpoints.of(config),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Turn:
    stage: int
    role: str
    policy: str
    prompt: Sequence[int]
    completion: Sequence[int]
    trainable: bool


def _turns(record: Recorded, *, idle: bool) -> Iterator[_Turn]:
    """Yield the turns of an episode, except those shared with the episode that it branches from.

    If `idle`, the learner skips samples with an advantage of 0, so these turns are not trainable.
    """
    # A record may have fewer advantages than turns, or none.
    turns = zip(record.episode.turns, chain(record.advantages, repeat(None)), strict=False)
    for turn, advantage in islice(turns, record.episode.shared_turns, None):
        flat = advantage if isinstance(advantage, list) else [advantage]
        yield _Turn(
            stage=turn.stage,
            role=turn.role,
            policy=turn.policy,
            prompt=turn.prompt_ids,
            completion=turn.completion_ids,
            trainable=turn.trainable and not (idle and set(flat) == {0}),
        )


def _lesson(steps: Sequence[Sequence[_Turn]], count: int, passes: Mapping[str, Any]) -> Lesson:
    turns = [turn for step in steps for turn in step]
    lengths = [len(turn.prompt) + len(turn.completion) for turn in turns]
    distinct = sum(map(_distinct, steps))
    return Lesson(
        samples=len(turns) / count,
        tokens=sum(lengths) / count,
        distinct=distinct / count,
        completions=sum(len(turn.completion) for turn in turns) / count,
        squares=sum(length**2 for length in lengths) / count,
        **passes,
    )


def _distinct(turns: Sequence[_Turn]) -> int:
    """Count the tokens of turns, with common prefixes once."""
    count = 0
    previous: tuple[int, ...] = ()
    for ids in sorted((*turn.prompt, *turn.completion) for turn in turns):
        pairs = zip(previous, ids, strict=False)
        least = min(len(previous), len(ids))
        shared = next((index for index, (a, b) in enumerate(pairs) if a != b), least)
        count, previous = count + len(ids) - shared, ids
    return count


def _calls(folder: Path) -> float:
    """Return the median number of service calls of a step, without those that a cache answered."""
    found = []
    for row in lines(folder):
        named = {name: value for name, value in row.items() if name.startswith("service/")}
        found.append(sum(v for name, v in named.items() if not name.endswith("/cached")))
    return median(found) if found else 0.0


def lines(folder: Path) -> list[dict[str, float]]:
    """Read the metrics of a run's newest steps, except step 0, at most `NEWEST`.

    Raises RunError if the run has no metrics; the result is empty if it has those of step 0 alone.
    """
    found = read_metrics(folder / METRICS)
    if not found:
        raise RunError(f"{folder} has no line in metrics.jsonl")
    return [row for step, row in found.items() if step > 0][-NEWEST:]


def seconds(folder: Path) -> dict[str, float]:
    """Return the median seconds of a run's newest steps: `rollout`, `learn`, and `step` without
    evaluations. Raises RunError if the run has no step."""
    found = lines(folder)
    if not found:
        raise RunError(f"{folder} has no step to compare with")
    return {
        "rollout": median(line["seconds/rollout"] for line in found),
        "learn": median(line["seconds/learn"] for line in found),
        "step": median(
            line["seconds/total"] - line.get("seconds/evaluation", 0.0) for line in found
        ),
    }
