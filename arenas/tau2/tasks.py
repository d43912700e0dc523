"""Tasks of tau2-bench."""

from arenas.tau2.package import DomainName, domain_of
from selfplay.errors import nearest
from selfplay.types import Task


def tau2_tasks(
    *, domain: DomainName = "airline", split: str = "base", count: int | None = None
) -> list[Task]:
    """Return the tasks of a split of a domain, in the package's order.

    Tasks that begin in the middle of a conversation are left out (two of `mock`, no others).
    Raises ValueError for an unknown domain or split, and for a `count` that does not fit.

    Args:
        domain: airline, retail, telecom, or mock, which is for tests.
        split: The package's name of a split: train, test or base, which is both; telecom has also
            small and full.
        count: Number of tasks, the first of the split; None: all.
    """
    home = domain_of(domain)
    if split not in home.splits:
        raise ValueError(f"{domain}: no split {split[:40]!r}; {nearest(split[:40], home.splits)}")
    chosen = set(home.splits[split])
    found = [
        Task(id=f"tau2-{domain}-{name}", type=domain, payload={"domain": domain, "task": name})
        for name, task in home.tasks.items()
        if name in chosen and not (task.initial_state and task.initial_state.message_history)
    ]
    if count is not None and not 1 <= count <= len(found):
        raise ValueError(f"{domain}: count is from 1 to {len(found)}, the tasks of {split}")
    return found[:count]


def package_task(task: Task, domain: DomainName) -> str:
    """Return the package's id of a task; raises ValueError if it does not fit the domain."""
    name = str(task.payload.get("task"))
    if task.payload.get("domain") != domain or name not in domain_of(domain).tasks:
        raise ValueError(
            f"task {task.id[:60]}: not a task of tau2-bench's {domain}; use arenas.tau2.tasks."
            f"tau2_tasks with domain={domain}"
        )
    return name
