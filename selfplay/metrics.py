"""Flat figures of a step. Names are paths: `role/solver/reward`, `arena/deduction/solve_rate`."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from selfplay.types import Episode, Status

FACTS = ("invalid", "verdict")
"""Notes on turns that are names: counted as shares of the role's turns."""


def of_episodes(episodes: Iterable[Episode]) -> dict[str, float]:
    """Means over episodes and turns.

    episodes: how many, and how many failed (by kind of error too) or were truncated. arena: what
    the arena measured, over all and by task type. role: pay per agent and episode, share of actions
    that parsed, tokens, named verdicts as shares of the role's turns. Turns that an episode shares
    with its parent are the parent's, but what they were paid is part of both returns.
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
            measured[f"arena/{episode.task.type}/{name}"].append(value)
    figures |= _means(measured)
    return figures | _by_role(played)


def _by_role(episodes: Iterable[Episode]) -> dict[str, float]:
    sums: dict[str, list[float]] = defaultdict(list)
    noted: dict[str, list[float]] = defaultdict(list)
    named: dict[str, Counter[str]] = defaultdict(Counter)
    for episode in episodes:
        paid: dict[tuple[str, str], float] = defaultdict(float)
        for place, turn in enumerate(episode.turns):
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


def _means(values: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: sum(found) / len(found) for name, found in sorted(values.items())}
