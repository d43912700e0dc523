"""Loans of a library: renew a loan, if needed after a small fine has been waived."""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, ClassVar

from arenas.desk.domain import CUSTOMERS, Change, Scenario, Tables, row, shown
from selfplay.tools import ToolError

PERIOD = 7
"""Days by which a renewal extends a loan."""


def find_loan(tables: Tables, id: str) -> str:
    """Shows a loan: its member, the days until it is due, its renewals, and if it is reserved."""
    return shown(id, row(tables, "loans", id))


def find_member(tables: Tables, name: str) -> str:
    """Shows the fine of a member, in euros."""
    return shown(name, row(tables, "members", name))


def renew_loan(tables: Tables, id: str) -> str:
    """Renews a loan for seven days."""
    loan = row(tables, "loans", id)
    loan["due"] += PERIOD
    loan["renewals"] += 1
    return "done"


def waive_fine(tables: Tables, name: str) -> str:
    """Waives the whole fine of a member."""
    member = row(tables, "members", name)
    if not member["fine"]:
        raise ToolError("no_fine", "the member has no fine")
    member["fine"] = 0
    return "done"


class Loans:
    """Loans of a library. The policy's numbers are `renewals`, and `waive` in euros."""

    name: ClassVar[str] = "loans"
    operations: ClassVar[Mapping[str, Callable[..., str]]] = {
        each.__name__: each for each in (find_loan, find_member, renew_loan, waive_fine)
    }
    writes: ClassVar[frozenset[str]] = frozenset({"renew_loan", "waive_fine"})

    def policy(self, rules: Mapping[str, int]) -> list[str]:
        """Return the policy document."""
        return [
            "Serve only the member you talk with.",
            f"A loan is renewed at most {rules['renewals']} times.",
            "Do not renew a loan that another member has reserved.",
            "Do not renew a loan while its member has a fine.",
            f"Do not waive a fine of more than {rules['waive']} euros.",
        ]

    def forbidden(
        self, tables: Tables, customer: str, rules: Mapping[str, int], change: Change
    ) -> str:
        """Return the reason why the policy forbids a change; "" if it allows it."""
        if change.name == "waive_fine":
            name = change.arguments["name"]
            if name != customer:
                return "not_own"
            return "fine" if tables["members"][name]["fine"] > rules["waive"] else ""
        loan = tables["loans"][change.arguments["id"]]
        if loan["member"] != customer:
            return "not_own"
        if loan["renewals"] >= rules["renewals"]:
            return "renewals"
        if loan["reserved"] == "yes":
            return "reserved"
        return "fine" if tables["members"][customer]["fine"] else ""

    def changes(self, tables: Tables) -> Iterator[Change]:
        """Yield every renewal and every waiver."""
        for id in tables["loans"]:
            yield Change("renew_loan", {"id": id})
        for name in tables["members"]:
            yield Change("waive_fine", {"name": name})

    def look_ups(self, tables: Tables, change: Change) -> Iterator[Change]:
        """Yield the calls that show the loan and, if it exists, its member, or the member alone."""
        if change.name == "waive_fine":
            yield Change("find_member", {"name": change.arguments["name"]})
            return
        id = change.arguments["id"]
        yield Change("find_loan", {"id": id})
        if id in tables["loans"]:
            yield Change("find_member", {"name": tables["loans"][id]["member"]})

    def draw(self, rng: Random) -> Scenario:
        """Draw two loans and their members, and one or two wishes.

        The first wish is the renewal of one loan, alone or after a waiver of the customer's fine; a
        second wish is the waiver alone.
        """
        customer = rng.choice(CUSTOMERS)
        others = [name for name in CUSTOMERS if name != customer]
        ids = [f"l{number}" for number in sorted(rng.sample(range(1, 10), 2))]
        wanted = rng.choice(ids)
        loans = {
            id: {
                "member": customer if id == wanted and rng.random() < 0.9 else rng.choice(others),
                "due": rng.randint(1, 6),
                "renewals": rng.randint(0, 3),
                "reserved": rng.choice(("no", "no", "yes")),
            }
            for id in ids
        }
        names = sorted({customer, *(str(loan["member"]) for loan in loans.values())})
        members: dict[str, dict[str, Any]] = {
            name: {"fine": rng.choice((0, 0, rng.randint(1, 9)))} for name in names
        }
        renew = Change("renew_loan", {"id": wanted})
        waive = Change("waive_fine", {"name": customer})
        wishes = [[renew]]
        if members[customer]["fine"]:
            wishes = rng.choice([[[renew]], [[waive, renew]], [[waive, renew], [waive]]])
        return Scenario(
            tables={"loans": loans, "members": members},
            customer=customer,
            rules={"renewals": rng.randint(1, 3), "waive": rng.randint(1, 9)},
            wishes=wishes,
        )

    def words(self, change: Change, *, terse: bool) -> str:
        """Return a change as a member asks for it."""
        if change.name == "waive_fine":
            return "waive fine" if terse else "please waive my fine"
        id = change.arguments["id"]
        return f"renew {id}" if terse else f"please renew my loan {id}"
