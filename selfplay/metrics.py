"""Flat figures of a step. Names are paths: `role/solver/reward`, `arena/deduction/solve_rate`."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice

from selfplay.types import Episode, Sample, Status

FACTS = ("invalid", "verdict")
"""Notes on turns that are names: counted as shares of the role's turns."""


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


def of_age(samples: Iterable[Sample], *, version: int) -> dict[str, float]:
    """`staleness_mean` and `_max`: versions that the weights that sampled a token lie behind
    `version`, those that are about to learn from it, over the tokens that the policy chose."""
    ages: Counter[int] = Counter()
    for sample in samples:
        own = iter(sample.turn.trainable)
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
            if turn.agent in episode.seating:
                continue
            paid[turn.role, turn.agent] += turn.reward
            if place < episode.stem:
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
        own = {t.agent: t.role for t in episode.turns if t.agent not in episode.seating}
        for policy in sorted(set(episode.seating.values())) if own else ():
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
