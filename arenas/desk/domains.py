"""The domains of the service desk, by name, and all their operations."""

from arenas.desk.bookings import Bookings
from arenas.desk.domain import DeskDomain
from arenas.desk.loans import Loans
from arenas.desk.orders import Orders
from selfplay.errors import nearest

DOMAINS: dict[str, DeskDomain] = {each.name: each for each in (Bookings(), Orders(), Loans())}
"""Domains by name."""
OPERATIONS = {
    name: operation for domain in DOMAINS.values() for name, operation in domain.operations.items()
}
"""Operations of all domains, by the name of their tool."""


def domain_of(name: str) -> DeskDomain:
    """Return the domain of a name; raises ValueError for an unknown name."""
    if name not in DOMAINS:
        raise ValueError(f"no domain {str(name)[:40]!r}; {nearest(str(name)[:40], DOMAINS)}")
    return DOMAINS[name]
