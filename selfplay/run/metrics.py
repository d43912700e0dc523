"""Flat figures of a step. Names are paths: `role/solver/reward`, `arena/deduction/solve_rate`.

The clock: wall-clock seconds of a step.
"""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

from selfplay.types import Episode, Sample, Status


class StepTimer:
    """Wall-clock seconds of a step by phase."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._phases: dict[str, float] = {}
        self._open: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a phase."""
        self._open[phase] = time.perf_counter()
        try:
            yield
        finally:
            self._phases[phase] = time.perf_counter() - self._open.pop(phase)

    def metrics(self) -> dict[str, float]:
        """`seconds/<phase>` of the phases that ended, and `seconds/total` so far."""
        total = time.perf_counter() - self._start
        return {
            **{f"seconds/{name}": value for name, value in self._phases.items()},
            "seconds/total": total,
        }


OUT_OF_TIME = {"timeout": "timed out", "stalled": "stalled"}
"""Outcomes of program runs that ended because of a time limit, and the words for them."""
FACTS = ("invalid", "verdict")
"""Notes on turns that are names: counted as shares of the role's turns."""


_FAMILIES = re.compile(
    r"role/[^/]+/(invalid|verdict)/.|episodes/failed/.|service/[^/]+/."
    r"|engine/[^/]+/(requests|retries|malformed|prompt_tokens|completion_tokens|dollars)$",
    re.DOTALL,
)
"""Patterns of metrics that count an outcome: a step without the outcome has no value."""


class Outcomes:
    """Names of the outcomes that a run has seen; an outcome that a step lacks is 0 at this step.

    Without the 0 the last value above 0 would look like the latest one, and fractions that belong
    together would add up to more than 1. The names are part of a checkpoint, so that a resumed
    run writes the same metrics as one that was never stopped.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def complete(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Return a step's metrics, with a 0 for every outcome that was seen before and is missing.

        A role that took no turn at the step has no fractions, so none of its outcomes is added.
        """
        self._seen.update(name for name in figures if _FAMILIES.match(name))
        return {**{name: 0.0 for name in sorted(self._seen) if _counted(name, figures)}, **figures}

    def state_dict(self) -> list[str]:
        """The names seen so far, as plain data."""
        return sorted(self._seen)

    def load_state_dict(self, names: Iterable[str]) -> None:
        """Restore what `state_dict` gave."""
        self._seen = set(names)


def _counted(name: str, figures: Mapping[str, float]) -> bool:
    """Return True if the outcome `name` could occur at a step with these metrics.

    An outcome of a role could occur if the role took a turn; any other always could.
    """
    section, whose, _ = name.split("/", 2)
    return section != "role" or f"role/{whose}/valid" in figures


def of_episodes(episodes: Iterable[Episode]) -> dict[str, float]:
    """Means over episodes and turns.

    episodes: how many, and how many failed (by kind of error too) or were truncated. arena: what
    the arena measured, over all and by task type (and by what is above it, where the type is a
    path). role: pay per agent and episode, share of actions that parsed, tokens, named verdicts as
    shares of the role's turns. Turns that an episode shares with its parent are the parent's, but
    what they were paid is part of both returns.

    role is about the roles' own policies: an agent that a job seated otherwise has no part in it.
    versus: what the others of such an episode were paid, by whom they met.
    """
    everything = list(episodes)
    figures = {"episodes/count": float(len(everything))}
    for status in (Status.FAILED, Status.TRUNCATED):
        figures[f"episodes/{status}"] = float(sum(e.status is status for e in everything))
    kinds = Counter(e.error.partition(":")[0] for e in everything if e.status is Status.FAILED)
    figures |= {f"episodes/failed/{kind}": float(n) for kind, n in sorted(kinds.items()) if kind}
    played = [episode for episode in everything if episode.status is not Status.FAILED]
    measured: dict[str, list[float]] = defaultdict(list)
    for episode in played:
        for name, value in episode.metrics.items():
            measured[f"arena/{name}"].append(value)
            for kind in _and_above(episode.task.type):
                measured[f"arena/{kind}/{name}"].append(value)
    figures |= _means(measured)
    return figures | _by_role(played) | _versus(played)


def of_troubles(rows: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """Count the faults in the steps `rows` that did not end the run; empty if there were none.

    "timeout" and "stalled": program runs that used up their CPU time or their wall-clock time.
    "failed_episodes": episodes that failed, and "failed_kinds": how many by kind of error.
    "failed_evaluation_episodes": episodes of evaluations that failed.
    """
    found: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for row in rows:
        for name, value in row.items():
            first, _, rest = name.partition("/")
            if first == "service" and rest.rpartition("/")[2] in OUT_OF_TIME:
                found[rest.rpartition("/")[2]] += int(value)
            elif name == f"episodes/{Status.FAILED}":
                found["failed_episodes"] += int(value)
            elif first == "evaluation" and rest.endswith("/failed_episodes"):
                found["failed_evaluation_episodes"] += int(value)
            elif name.startswith(f"episodes/{Status.FAILED}/"):
                kinds[name.split("/", 2)[2]] += int(value)
    troubles: dict[str, Any] = {name: number for name, number in sorted(found.items()) if number}
    return {**troubles, "failed_kinds": dict(kinds.most_common())} if kinds else troubles


def told(troubles: Mapping[str, Any]) -> str:
    """Describe the faults that `of_troubles` counted in one sentence; empty without faults."""
    parts = [
        f"{troubles[name]:,} program {_plural(troubles[name], 'run')} {what}"
        for name, what in OUT_OF_TIME.items()
        if name in troubles
    ]
    if failed := troubles.get("failed_episodes"):
        kinds = ", ".join(f"{kind}: {n:,}" for kind, n in troubles.get("failed_kinds", {}).items())
        parts.append(
            f"{failed:,} {_plural(failed, 'episode')} failed" + f" ({kinds})" * bool(kinds)
        )
    if failed := troubles.get("failed_evaluation_episodes"):
        verb = "counts" if failed == 1 else "count"
        parts.append(
            f"{failed:,} {_plural(failed, 'episode')} of evaluations failed and {verb} as 0"
        )
    return f"{', '.join(parts)}: their groups differ from a run without them" if parts else ""


def _plural(number: int, word: str) -> str:
    return word if number == 1 else f"{word}s"


def commonest_error(episodes: Iterable[Episode]) -> str:
    """The most common error of the failed episodes, in words; empty if no episode failed.

    Errors are compared by their kind, which is the part before the first colon, because messages
    of one kind often differ in a number. The message shown is the most common one of that kind.
    """
    errors = [e.error for e in episodes if e.status is Status.FAILED]
    kinds = Counter(error.partition(":")[0] for error in errors)
    if not kinds:
        return ""
    ((kind, count),) = kinds.most_common(1)
    ((error, _),) = Counter(e for e in errors if e.partition(":")[0] == kind).most_common(1)
    return f"{count} of {len(errors)} with {error}"


def of_age(samples: Iterable[Sample], *, version: int) -> dict[str, float]:
    """`staleness_mean` and `_max`: versions that the weights that sampled a token lie behind
    `version`, those that are about to learn from it, over the tokens that the policy chose."""
    ages: Counter[int] = Counter()
    for sample in samples:
        own = iter(sample.turn.loss_mask)
        for sampler, tokens in sample.turn.spans():
            ages[version - sampler] += sum(islice(own, tokens))
    ages = +ages
    if not ages:
        return {}
    mean = sum(age * tokens for age, tokens in ages.items()) / ages.total()
    return {"staleness_mean": mean, "staleness_max": float(max(ages))}


def _by_role(episodes: Iterable[Episode]) -> dict[str, float]:
    sums: dict[str, list[float]] = defaultdict(list)
    noted: dict[str, list[float]] = defaultdict(list)
    named: dict[str, Counter[str]] = defaultdict(Counter)
    for episode in episodes:
        paid: dict[tuple[str, str], float] = defaultdict(float)
        for place, turn in enumerate(episode.turns):
            if turn.agent in episode.policy_map:
                continue
            paid[turn.role, turn.agent] += turn.reward
            if place < episode.shared_turns:
                continue
            here = f"role/{turn.role}"
            sums[f"{here}/valid"].append(float(turn.action is not None))
            sums[f"{here}/completion_tokens"].append(len(turn.completion_ids))
            sums[f"{here}/prompt_tokens"].append(len(turn.prompt_ids))
            for name, value in turn.info.items():
                if name in FACTS:
                    named[here][f"{name}/{value}"] += 1
                elif isinstance(value, int | float):
                    noted[f"{here}/{name}"].append(float(value))
        for (role, _), reward in paid.items():
            sums[f"role/{role}/reward"].append(reward)
            sums[f"role/{role}/reward/{episode.task.type}"].append(reward)
    figures = _means(noted) | _means(sums)  # a note named like one of ours does not replace it
    for here, counts in named.items():
        turns = len(sums[f"{here}/valid"])
        figures |= {f"{here}/{name}": count / turns for name, count in counts.items()}
    return figures


def _versus(episodes: Iterable[Episode]) -> dict[str, float]:
    """`versus/<policy>/<role>/reward` per agent and episode, and `versus/<policy>/episodes`."""
    paid: dict[str, list[float]] = defaultdict(list)
    met: Counter[str] = Counter()
    for episode in episodes:
        own = {t.agent: t.role for t in episode.turns if t.agent not in episode.policy_map}
        for policy in sorted(set(episode.policy_map.values())) if own else ():
            met[f"versus/{policy}/episodes"] += 1
            for agent, role in own.items():
                reward = sum(t.reward for t in episode.turns if t.agent == agent)
                paid[f"versus/{policy}/{role}/reward"].append(reward)
    return {name: float(number) for name, number in met.items()} | _means(paid)


def _and_above(kind: str) -> list[str]:
    """A type and, where it is a path, those above it: a/b is of the types a/b and a."""
    parts = kind.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _means(values: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: sum(found) / len(found) for name, found in sorted(values.items())}
