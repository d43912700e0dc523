"""The solver: every database that a policy lets an agent reach, and the shortest way to one."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from arenas.desk.domain import Change, DeskDomain, Tables, after, apply, copied, key_of
from selfplay.tools import ToolError

MOST_STATES = 20_000
"""Largest number of databases that are searched."""


def reachable(
    domain: DeskDomain, tables: Tables, customer: str, rules: Mapping[str, int]
) -> Iterator[tuple[Tables, tuple[Change, ...]]]:
    """Yield all databases that permitted changes reach, the nearest first, each with its changes.

    The search is exhaustive. Raises ValueError if there are more than `MOST_STATES`.
    """
    seen = {key_of(tables)}
    waiting: deque[tuple[Tables, tuple[Change, ...]]] = deque([(tables, ())])
    while waiting:
        now, path = waiting.popleft()
        yield now, path
        for change in domain.changes(now):
            if domain.forbidden(now, customer, rules, change):
                continue
            later = copied(now)
            try:
                apply(domain, later, change)
            except ToolError:
                continue
            if (key := key_of(later)) not in seen:
                seen.add(key)
                waiting.append((later, (*path, change)))
                if len(seen) > MOST_STATES:
                    raise ValueError(f"more than {MOST_STATES} databases can be reached")


def solve(
    domain: DeskDomain,
    tables: Tables,
    customer: str,
    rules: Mapping[str, int],
    wish: Sequence[Change],
) -> tuple[Change, ...] | None:
    """Return the shortest permitted changes that lead to the same database as the wish.

    The whole database must be the same. None proves that the policy does not allow the wish in any
    order or by any detour, or that the wish is impossible. Raises ValueError if more than
    `MOST_STATES` databases can be reached before the result is known.
    """
    wanted = after(domain, tables, wish)
    if wanted is None:
        return None
    return next(
        (path for now, path in reachable(domain, tables, customer, rules) if now == wanted), None
    )
