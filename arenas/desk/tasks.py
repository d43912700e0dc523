"""Tasks of the service desk, each with its known solution."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, get_args

from arenas.desk.domain import Change, DeskDomain, Tables, after, key_of
from arenas.desk.domains import DOMAINS, domain_of
from arenas.desk.solver import solve
from arenas.splits import Split
from selfplay.errors import check_choice, nearest
from selfplay.rng import derive
from selfplay.types import Task

Kind = Literal["first", "second", "refuse"]
"""Right outcome of a task: the first wish is granted, the second one is, or none is."""

TEMPERS = ("plain", "curt", "pushy", "sly")
"""Tempers of the scripted customer; see `arenas.desk.customer`."""
MOST_DRAWN = 100_000
"""Largest number of scenarios that are drawn to find one task."""


@dataclass(frozen=True, kw_only=True)
class DeskTask:
    """Checked content of a task. `read_task` makes it; the arena and its customer read it.

    `customer`, `rules`, `tables` and `wishes` are as in `arenas.desk.domain.Scenario`.
    """

    domain: DeskDomain
    customer: str
    rules: Mapping[str, int]
    tables: Tables
    wishes: tuple[tuple[Change, ...], ...]
    granted: int | None
    """Index of the wish that the policy allows; None if it allows none."""
    solution: tuple[Change, ...]
    """Shortest permitted changes that grant this wish; empty if the policy allows none."""
    temper: str

    @property
    def wanted(self) -> Tables:
        """The right database at the end."""
        found = after(self.domain, self.tables, self.solution)
        if found is None:
            raise ValueError("the solution of the task is impossible in its tables")
        return found

    def targets(self) -> list[Tables | None]:
        """Return the database that each wish would make; None for an impossible wish."""
        return [after(self.domain, self.tables, wish) for wish in self.wishes]


def desk_tasks(
    *,
    count: int,
    domains: Sequence[str] = tuple(DOMAINS),
    tempers: Sequence[str] = ("plain",),
    split: Split = "train",
    seed: int = 0,
) -> list[Task]:
    """Return different tasks that go through all domains, outcomes and tempers in a fixed order.

    A hash of the scenario decides whether a task is held out, so that the splits share no task.
    Raises ValueError for an unknown name, and if too few different tasks are found.

    Args:
        count: Number of tasks.
        domains: Names of the desks, such as bookings.
        tempers: Tempers of the customer.
        split: train or held_out.
        seed: Seed of the draw.
    """
    if count < 1 or not domains or not tempers:
        raise ValueError("count is at least 1, and domains and tempers name at least one each")
    check_choice("split", split, get_args(Split))
    for temper in tempers:
        _check_temper(temper)
    rng = Random(derive(seed, "desk", split))
    found: dict[str, Task] = {}
    kinds = get_args(Kind)
    while len(found) < count:
        number = len(found)
        domain = domain_of(domains[number % len(domains)])
        kind = kinds[number // len(domains) % len(kinds)]
        temper = tempers[number // (len(domains) * len(kinds)) % len(tempers)]
        task = _drawn(rng, domain, kind, temper, split, found)
        found[task.id] = task
    return list(found.values())


def _drawn(
    rng: Random,
    domain: DeskDomain,
    kind: Kind,
    temper: str,
    split: Split,
    known: Mapping[str, Task],
) -> Task:
    for _ in range(MOST_DRAWN):
        drawn = domain.draw(rng)
        number = derive("desk", domain.name, drawn.customer, key_of(drawn.tables), repr(drawn))
        if (number % 5 == 0) != (split == "held_out") or f"desk-{number:x}" in known:
            continue
        granted: int | None = None
        solution: tuple[Change, ...] = ()
        for place, wish in enumerate(drawn.wishes):
            found = solve(domain, drawn.tables, drawn.customer, drawn.rules, wish)
            if found is not None:
                granted, solution = place, found
                break
        if kind != ("refuse" if granted is None else get_args(Kind)[granted]):
            continue
        payload = {
            "domain": domain.name,
            "customer": drawn.customer,
            "rules": dict(drawn.rules),
            "tables": drawn.tables,
            "wishes": [[_plain(change) for change in wish] for wish in drawn.wishes],
            "granted": granted,
            "solution": [_plain(change) for change in solution],
            "temper": temper,
        }
        return Task(id=f"desk-{number:x}", type=domain.name, payload=payload)
    raise ValueError(f"no new task of {domain.name} was found; ask for fewer tasks")


def read_task(task: Task) -> DeskTask:
    """Return the content of a task; raises ValueError if it does not fit."""
    given = task.payload
    try:
        domain = domain_of(str(given["domain"]))
        read = DeskTask(
            domain=domain,
            customer=str(given["customer"]),
            rules={str(name): int(value) for name, value in given["rules"].items()},
            tables={
                str(table): {str(key): dict(values) for key, values in rows.items()}
                for table, rows in given["tables"].items()
            },
            wishes=tuple(tuple(_change(domain, each) for each in wish) for wish in given["wishes"]),
            granted=given["granted"],
            solution=tuple(_change(domain, each) for each in given["solution"]),
            temper=_check_temper(str(given.get("temper", "plain"))),
        )
        if not read.wishes or read.granted not in (None, *range(len(read.wishes))):
            raise ValueError("wishes is not empty, and granted is null or the index of a wish")
        domain.policy(read.rules)
        if read.granted is None and read.solution:
            raise ValueError("a task without a granted wish has no solution")
        _ = read.wanted  # raises ValueError for an impossible solution
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ValueError(f"task {task.id[:60]}: not a task of the desk: {problem}") from error
    return read


def _plain(change: Change) -> list[Any]:
    return [change.name, dict(change.arguments)]


def _change(domain: DeskDomain, given: Any) -> Change:
    name, arguments = given
    if name not in domain.writes:
        raise ValueError(f"no change {str(name)[:40]!r}; {nearest(str(name)[:40], domain.writes)}")
    return Change(name, dict(arguments))


def _check_temper(temper: str) -> str:
    if temper not in TEMPERS:
        raise ValueError(f"no temper {temper[:40]!r}; {nearest(temper[:40], TEMPERS)}")
    return temper
