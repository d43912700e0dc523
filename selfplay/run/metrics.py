"""Metrics of a step: means over episodes and turns, staleness of samples, seconds per phase.

Metrics are flat. Their names are paths: `role/solver/reward`, `arena/deduction/solve_rate`.
"""

import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress, islice
from typing import Any

from selfplay.credit.base import pay_by_agent
from selfplay.credit.shaping import UNSHAPED
from selfplay.run.activity import ACTIVITY
from selfplay.run.formatting import counted
from selfplay.types import Episode, Sample, Status, StopReason, role_of


class StepTimer:
    """A timer of the wall-clock seconds of a step and of each of its phases.

    It also reports the present phase to `ACTIVITY`.
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._phases: dict[str, float] = {}
        self._open: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a phase, and make it the phase of this process's activity."""
        ACTIVITY.begin(phase)
        self._open[phase] = time.perf_counter()
        try:
            yield
        finally:
            self._phases[phase] = time.perf_counter() - self._open.pop(phase)

    def metrics(self) -> dict[str, float]:
        """Return `seconds/<phase>` of the phases that ended, and `seconds/total` so far."""
        total = time.perf_counter() - self._start
        return {
            **{f"seconds/{name}": value for name, value in self._phases.items()},
            "seconds/total": total,
        }


OUT_OF_TIME = {"timeout": "timed out", "stalled": "stalled"}
"""Outcome of a program run that ended because of a time limit, to its words in a sentence."""
UNNAMED = frozenset({"unknown_tool", "malformed", "call_limit"})
"""Errors of calls that are not counted by tool, because the policy may have invented the name."""
FACTS = ("invalid", "verdict")
"""Notes of turns whose values are names; the metric is the fraction of turns per name."""


_FAMILIES = re.compile(
    r"role/[^/]+/(invalid|verdict|tool|tool_error|tool_calls)/.|role/[^/]+/tool_[a-z]+$|episodes/(failed|truncated)/.|service/[^/]+/."
    r"|policy/[^/]+/skipped$"
    r"|engine/[^/]+/(requests|retries|malformed|refused|prompt_tokens|completion_tokens|dollars)$",
    re.DOTALL,
)
"""Patterns of metrics that count an outcome: a step without the outcome has no value."""


class Outcomes:
    """A memory of outcomes: it adds a 0 for each one that the run has seen and that a step lacks.

    Without the 0 the last value above 0 would look like the latest one, and fractions that belong
    together would add up to more than 1. The names of the outcomes are part of a checkpoint, so
    that a resumed run writes the same metrics as one that was never stopped.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def complete(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return a step's metrics, with a 0 for every outcome that was seen before and is missing.

        A role that took no turn at the step has no fractions, so none of its outcomes is added.
        """
        self._seen.update(name for name in metrics if _FAMILIES.match(name))
        return {**{name: 0.0 for name in sorted(self._seen) if _counted(name, metrics)}, **metrics}

    def state_dict(self) -> list[str]:
        """Return the names seen so far, as plain data."""
        return sorted(self._seen)

    def load_state_dict(self, names: Iterable[str]) -> None:
        """Restore the names that `state_dict` returned."""
        self._seen = set(names)


def _counted(name: str, metrics: Mapping[str, float]) -> bool:
    """Return True if the outcome `name` could occur at a step with these metrics.

    An outcome of a role could occur if the role took a turn; any other always could.
    """
    section, role, _ = name.split("/", 2)
    return section != "role" or f"role/{role}/valid" in metrics


def of_episodes(episodes: Iterable[Episode]) -> dict[str, float]:
    """Compute the metrics of a step's episodes: counts, and means over episodes and turns.

    `episodes/`: the number of episodes, of failed ones (also by kind of error) and of truncated
    ones (also of those with a prompt that was too long). All other metrics leave out failed
    episodes. `arena/`: means of the arena's metrics over the episodes that have them, in all and
    by task type; for a type a/b also over all types under a/. `role/`: mean
    reward per agent and episode, fraction of moves whose action parsed, tokens per turn, and for
    each verdict its fraction of the role's moves; for roles that call tools, see `_of_tools`. The
    reward of an agent that was paid without a turn counts too. A turn that an episode shares with
    the episode that it branches from counts once, but its reward is part of both returns.

    `role/` covers only agents that play with their role's own policy. `versus/`: rewards of these
    agents in episodes in which another agent plays with another policy, by that policy.
    """
    everything = list(episodes)
    metrics = {"episodes/count": float(len(everything))}
    for status in (Status.FAILED, Status.TRUNCATED):
        metrics[f"episodes/{status}"] = float(sum(e.status is status for e in everything))
        kinds = Counter(e.error.partition(":")[0] for e in everything if e.status is status)
        metrics |= {
            f"episodes/{status}/{kind}": float(n) for kind, n in sorted(kinds.items()) if kind
        }
    played = [episode for episode in everything if episode.status is not Status.FAILED]
    measured: dict[str, list[float]] = defaultdict(list)
    for episode in played:
        for name, value in episode.metrics.items():
            measured[f"arena/{name}"].append(value)
            for kind in _and_above(episode.task.type):
                measured[f"arena/{kind}/{name}"].append(value)
    metrics |= _means(measured)
    return metrics | _by_role(played) | _versus(played)


def of_troubles(rows: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """Count the faults in the steps `rows` that did not end the run; return {} if there are none.

    "timeout" and "stalled": program runs that used up their CPU time or their wall-clock time.
    "failed_episodes": episodes that failed, and "failed_kinds": how many by kind of error.
    "failed_evaluation_episodes": episodes of evaluations that failed.
    """
    found: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for row in rows:
        for name, value in row.items():
            if not math.isfinite(value):
                continue
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


def describe_troubles(troubles: Mapping[str, Any]) -> str:
    """Return one sentence about the faults that `of_troubles` counted; "" without faults."""
    parts = [
        f"{counted(troubles[name], 'program run')} {what}"
        for name, what in OUT_OF_TIME.items()
        if name in troubles
    ]
    if failed := troubles.get("failed_episodes"):
        kinds = ", ".join(f"{kind}: {n:,}" for kind, n in troubles.get("failed_kinds", {}).items())
        parts.append(f"{counted(failed, 'episode')} failed" + f" ({kinds})" * bool(kinds))
    if failed := troubles.get("failed_evaluation_episodes"):
        parts.append(f"{counted(failed, 'episode')} of evaluations failed")
    differ = "the groups of this run therefore differ from those of a run without these faults"
    return f"{', '.join(parts)}: {differ}" if parts else ""


def commonest_error(episodes: Iterable[Episode]) -> str:
    """Return a description of the most common error of failed episodes; "" if no episode failed.

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


def of_staleness(samples: Iterable[Sample], *, version: int) -> dict[str, float]:
    """Return `staleness_mean` and `staleness_max` over the tokens that the policy sampled.

    The staleness of a token is `version`, the version of the weights that learn from it, minus the
    version of the weights that sampled it. Return {} if there is no such token.
    """
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


def _by_role(episodes: Sequence[Episode]) -> dict[str, float]:
    """Compute the metrics under `role/`; see `of_episodes`."""
    sums: dict[str, list[float]] = defaultdict(list)
    noted: dict[str, list[float]] = defaultdict(list)
    named: dict[str, Counter[str]] = defaultdict(Counter)
    drawn: dict[str, tuple[float, int]] = {}  # sum of log-probabilities, number of tokens
    for episode in episodes:
        for turn in episode.turns[episode.shared_turns :]:
            if turn.agent in episode.policy_map:
                continue
            prefix = f"role/{turn.role}"
            if turn.trainable:
                own = list(compress(turn.logprobs, turn.loss_mask))
                nats, tokens = drawn.get(prefix, (0.0, 0))
                drawn[prefix] = nats + math.fsum(own), tokens + len(own)
            if turn.final:
                sums[f"{prefix}/valid"].append(float(turn.action is not None))
            sums[f"{prefix}/cut_off"].append(float(turn.stop_reason is StopReason.LENGTH))
            sums[f"{prefix}/completion_tokens"].append(len(turn.completion_ids))
            sums[f"{prefix}/prompt_tokens"].append(len(turn.prompt_ids))
            for name, value in turn.info.items():
                if name == UNSHAPED:
                    continue  # a reward, which is summed for each agent
                if name in FACTS:
                    named[prefix][f"{name}/{value}"] += 1
                elif isinstance(value, int | float):
                    noted[f"{prefix}/{name}"].append(float(value))
        shaped = _shaped(episode)
        for agent, reward in _own_pay(episode).items():
            prefix = f"role/{role_of(agent)}/reward"
            sums[prefix].append(reward)
            sums[f"{prefix}/{episode.task.type}"].append(reward)
            if agent in shaped:
                sums[f"role/{role_of(agent)}/{UNSHAPED}"].append(reward - shaped[agent])
    metrics = _means(noted) | _means(sums)  # a note never replaces a metric of the library
    metrics |= _of_tools(episodes)
    metrics |= {f"{role}/surprisal": -nats / n for role, (nats, n) in drawn.items() if n}
    for prefix, counts in named.items():
        turns = len(sums[f"{prefix}/valid"])
        metrics |= {f"{prefix}/{name}": count / turns for name, count in counts.items()}
    return metrics


def _own_pay(episode: Episode) -> dict[str, float]:
    """Return the sum of the rewards of each agent that plays with its role's own policy."""
    paid = pay_by_agent(episode)
    return {agent: pay for agent, pay in paid.items() if agent not in episode.policy_map}


def _shaped(episode: Episode) -> dict[str, float]:
    """Return the sum of what shaping added to the rewards of each agent with shaped turns."""
    added: dict[str, float] = defaultdict(float)
    for turn in episode.turns:
        if UNSHAPED in turn.info:
            added[turn.agent] += turn.reward - turn.info[UNSHAPED]
    return added


def _of_tools(episodes: Iterable[Episode]) -> dict[str, float]:
    """Compute the metrics of tools under `role/`, for the roles that called one.

    `tool_calls`: calls per move, also by task type. `tool_tokens`: prompt tokens of results per
    move. `tool_errors`: fraction of the calls that failed. `tool_error/<reason>`: the same by
    reason. `tool/<name>`: calls of a tool per move, without calls of unknown tools.
    """
    moves: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    errors: dict[str, Counter[str]] = defaultdict(Counter)
    tools: dict[str, Counter[str]] = defaultdict(Counter)
    by_type: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for episode in episodes:
        own = enumerate(episode.turns[episode.shared_turns :], episode.shared_turns)
        for place, turn in own:
            if turn.agent in episode.policy_map:
                continue
            prefix = f"role/{turn.role}"
            moves[prefix] += turn.final
            calls[prefix] += len(turn.tool_calls)
            kind = f"{prefix}/tool_calls/{episode.task.type}"
            by_type[kind][0] += len(turn.tool_calls)
            by_type[kind][1] += turn.final
            errors[prefix].update(call.error for call in turn.tool_calls if call.error)
            tools[prefix].update(call.name for call in turn.tool_calls if call.error not in UNNAMED)
            if not turn.final:  # the agent's next turn follows it
                before = len(turn.prompt_ids) + len(turn.completion_ids)
                after = len(episode.turns[place + 1].prompt_ids)
                tokens[prefix] += max(after - before, 0)
    metrics: dict[str, float] = {}
    for prefix, count in calls.items():
        if not count:
            continue
        made = moves[prefix]
        metrics[f"{prefix}/tool_calls"] = count / made
        metrics |= {
            kind: made_calls / max(in_moves, 1)
            for kind, (made_calls, in_moves) in sorted(by_type.items())
            if kind.startswith(f"{prefix}/")
        }
        metrics[f"{prefix}/tool_tokens"] = tokens[prefix] / made
        metrics[f"{prefix}/tool_errors"] = errors[prefix].total() / count
        for name, number in sorted(tools[prefix].items()):
            metrics[f"{prefix}/tool/{name}"] = number / made
        for reason, number in sorted(errors[prefix].items()):
            metrics[f"{prefix}/tool_error/{reason}"] = number / count
    return metrics


def _versus(episodes: Iterable[Episode]) -> dict[str, float]:
    """Compute `versus/<policy>/<role>/reward`, a mean per agent and episode, and
    `versus/<policy>/episodes`."""
    paid: dict[str, list[float]] = defaultdict(list)
    met: Counter[str] = Counter()
    for episode in episodes:
        own = _own_pay(episode)
        seated = {*episode.agents(), *episode.other_pay}  # also agents without a turn or pay
        met_here = set(episode.policy_map.values()) if seated - {*episode.policy_map} else set()
        for policy in sorted(met_here):
            met[f"versus/{policy}/episodes"] += 1
            for agent, reward in own.items():
                paid[f"versus/{policy}/{role_of(agent)}/reward"].append(reward)
    return {name: float(number) for name, number in met.items()} | _means(paid)


def _and_above(kind: str) -> list[str]:
    """Return a type and the types above it in its path, the topmost first: for a/b, a and a/b."""
    parts = kind.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _means(values: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: sum(numbers) / len(numbers) for name, numbers in sorted(values.items())}
