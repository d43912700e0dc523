"""The domain of a service desk: its tables, the changes that tools make, and the policy."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from selfplay.tools import ToolError

Tables: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""The database: table name to rows by id, each a mapping of plain values."""

CUSTOMERS = ("Ann", "Bob", "Eve", "Joe")
"""Names of customers."""
SHOWN = 20
"""Number of characters of an unknown id that an error quotes."""


class Change(NamedTuple):
    """A call of a tool that changes the database."""

    name: str
    """Name of the tool."""
    arguments: Mapping[str, Any]
    """Arguments by name."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A database with a customer and wishes. `DeskDomain.draw` makes it; `desk_tasks` solves it."""

    tables: Tables
    """The database at the beginning."""
    customer: str
    """Name of the customer, who has signed in."""
    rules: Mapping[str, int]
    """Numbers in the policy, by name."""
    wishes: Sequence[Sequence[Change]]
    """The customer's wishes in the order of asking; each is a list of changes."""


class DeskDomain(Protocol):
    """A kind of desk. `arenas.desk.domains.DOMAINS` lists them."""

    name: ClassVar[str]
    """Name of the domain, and of its table of records."""
    operations: ClassVar[Mapping[str, Callable[..., str]]]
    """Functions (tables, arguments by name) -> the text for the agent; the tools call them."""
    writes: ClassVar[frozenset[str]]
    """Names of the operations that change the database."""

    def policy(self, rules: Mapping[str, int]) -> list[str]:
        """Return the policy document, one sentence per rule."""
        ...

    def forbidden(
        self, tables: Tables, customer: str, rules: Mapping[str, int], change: Change
    ) -> str:
        """Return the reason why the policy forbids a change now; "" if it allows the change."""
        ...

    def changes(self, tables: Tables) -> Iterator[Change]:
        """Yield every change that could be asked for in this database."""
        ...

    def look_ups(self, tables: Tables, change: Change) -> Iterator[Change]:
        """Yield the calls that show all records on which the policy's decision on a change
        depends."""
        ...

    def draw(self, rng: Random) -> Scenario:
        """Draw a scenario."""
        ...

    def words(self, change: Change, *, terse: bool) -> str:
        """Return a change as a customer asks for it."""
        ...


def row(tables: Tables, table: str, key: str) -> dict[str, Any]:
    """Return a row; raises ToolError, with the reason no_table or not_found, if there is none."""
    if table not in tables:
        raise ToolError("no_table", f"this desk has no {table}")
    if key not in tables[table]:
        raise ToolError("not_found", f"{key[:SHOWN]!r} is not in {table}")
    return tables[table][key]


def shown(key: str, values: Mapping[str, Any]) -> str:
    """Return the text of a row that the agent sees."""
    return f"{key}: " + ", ".join(f"{name} {value}" for name, value in values.items())


def apply(domain: DeskDomain, tables: Tables, change: Change) -> str:
    """Make a change in the tables; raises ToolError if it is impossible."""
    return domain.operations[change.name](tables, **change.arguments)


def after(domain: DeskDomain, tables: Tables, changes: Sequence[Change]) -> Tables | None:
    """Return a copy of the tables after some changes; None if one of them is impossible."""
    made = copied(tables)
    try:
        for change in changes:
            apply(domain, made, change)
    except ToolError:
        return None
    return made


def copied(tables: Tables) -> Tables:
    """Return a copy of the tables that shares no row with them."""
    return {
        table: {key: dict(values) for key, values in rows.items()} for table, rows in tables.items()
    }


def key_of(tables: Tables) -> str:
    """Return a text that is the same for equal tables."""
    return json.dumps(tables, sort_keys=True)
