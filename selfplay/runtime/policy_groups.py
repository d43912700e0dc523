"""Groups of workers by policy: `runtime.workers: {proposer: 2, judge: 1}`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from selfplay.errors import ConfigError, nearest


@dataclass(frozen=True, kw_only=True)
class PolicyGroup:
    """Workers that hold the same policies."""

    policies: tuple[str, ...]
    """Names of the policies; the first one has the number of workers in the config."""
    workers: int
    """Number of workers."""

    def __str__(self) -> str:
        return f"{' and '.join(self.policies)} on {self.workers} worker(s)"


def policy_groups(workers: Mapping[str, int | str]) -> tuple[PolicyGroup, ...]:
    """Return the groups of a config's mapping from policies to workers.

    Args:
        workers: Policy name to its number of workers, or to the name of the policy whose workers
            hold it too.

    Raises ValueError for an impossible number or name.
    """
    held = {name: [name] for name, value in workers.items() if isinstance(value, int)}
    for name, value in workers.items():
        if isinstance(value, int):
            if value < 1:
                raise ValueError(f"workers.{name} must be at least 1, not {value}")
        elif value not in held:
            raise ValueError(
                f"workers.{name}: {value!r} is not a policy with workers of its own; "
                f"{nearest(value, held)}"
            )
        else:
            held[value].append(name)
    if not held:
        raise ValueError("workers names no policy; give a number, or one for each policy")
    return tuple(
        PolicyGroup(policies=tuple(names), workers=int(workers[first]))
        for first, names in held.items()
    )


def check_groups(groups: Sequence[PolicyGroup], served: Iterable[str]) -> None:
    """Raise ConfigError for an unknown policy, or for one without workers.

    Args:
        groups: The groups.
        served: Names of the policies and of the opponents that are saved models.
    """
    served, placed = list(served), [name for group in groups for name in group.policies]
    for name in placed:
        if name not in served:
            raise ConfigError(f"runtime.workers: no policy {name!r}; {nearest(name, served)}")
    for name in served:
        if name not in placed:
            raise ConfigError(
                f"runtime.workers: policy {name!r} has no workers; add {name}: NUMBER, or "
                f"{name}: {placed[0]}, whose workers then hold it too"
            )
