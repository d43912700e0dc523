"""Orders of a shop: cancel one, send it back, or change its item."""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import ClassVar

from arenas.desk.domain import CUSTOMERS, Change, Scenario, Tables, row, shown
from selfplay.tools import ToolError

ITEMS = ("cup", "hat", "pen")
STATES = ("open", "shipped", "delivered")


def find_order(tables: Tables, id: str) -> str:
    """Shows an order: its customer, its item, its status, days since delivery, and if on sale."""
    return shown(id, row(tables, "orders", id))


def cancel_order(tables: Tables, id: str) -> str:
    """Cancels an order that is not delivered."""
    order = row(tables, "orders", id)
    if order["status"] not in ("open", "shipped"):
        raise ToolError("closed", f"the order is {order['status']}")
    order["status"] = "cancelled"
    return "done"


def return_order(tables: Tables, id: str) -> str:
    """Takes a delivered order back and refunds it."""
    order = row(tables, "orders", id)
    if order["status"] != "delivered":
        raise ToolError("closed", f"the order is {order['status']}")
    order["status"] = "returned"
    return "done"


def change_item(tables: Tables, id: str, item: str) -> str:
    """Changes the item of an order that is not delivered."""
    order = row(tables, "orders", id)
    if item not in ITEMS:
        raise ToolError("not_found", f"no such item; the shop has {', '.join(ITEMS)}")
    if order["status"] not in ("open", "shipped"):
        raise ToolError("closed", f"the order is {order['status']}")
    if order["item"] == item:
        raise ToolError("same_item", "the order has this item already")
    order["item"] = item
    return "done"


class Orders:
    """Orders of a shop. The policy's number is `window`, in days."""

    name: ClassVar[str] = "orders"
    operations: ClassVar[Mapping[str, Callable[..., str]]] = {
        each.__name__: each for each in (find_order, cancel_order, return_order, change_item)
    }
    writes: ClassVar[frozenset[str]] = frozenset({"cancel_order", "return_order", "change_item"})

    def policy(self, rules: Mapping[str, int]) -> list[str]:
        """Return the policy document."""
        return [
            "Change only orders of the customer you talk with.",
            "Cancel or change an order only while it is open, not once it is shipped.",
            f"Take an order back only within {rules['window']} days of its delivery.",
            "Do not take back an order that was on sale.",
        ]

    def forbidden(
        self, tables: Tables, customer: str, rules: Mapping[str, int], change: Change
    ) -> str:
        """Return the reason why the policy forbids a change; "" if it allows it."""
        order = tables["orders"][change.arguments["id"]]
        if order["customer"] != customer:
            return "not_own"
        if change.name != "return_order":
            return "" if order["status"] == "open" else "shipped"
        if order["days"] > rules["window"]:
            return "window"
        return "on_sale" if order["sale"] == "yes" else ""

    def changes(self, tables: Tables) -> Iterator[Change]:
        """Yield every cancellation, return and change of an item."""
        for id in tables["orders"]:
            yield Change("cancel_order", {"id": id})
            yield Change("return_order", {"id": id})
            for item in ITEMS:
                yield Change("change_item", {"id": id, "item": item})

    def look_ups(self, tables: Tables, change: Change) -> Iterator[Change]:
        """Yield the call that shows the order."""
        yield Change("find_order", {"id": change.arguments["id"]})

    def draw(self, rng: Random) -> Scenario:
        """Draw three orders, and one or two wishes about one of them."""
        customer = rng.choice(CUSTOMERS)
        ids = [f"o{number}" for number in sorted(rng.sample(range(1, 10), 3))]
        wanted = rng.choice(ids)
        orders = {}
        for id in ids:
            own = id == wanted and rng.random() < 0.85
            status = rng.choice(STATES)
            orders[id] = {
                "customer": customer
                if own
                else rng.choice([name for name in CUSTOMERS if name != customer]),
                "item": rng.choice(ITEMS),
                "status": status,
                "days": rng.randint(1, 9) if status == "delivered" else 0,
                "sale": rng.choice(("no", "no", "yes")),
            }
        other = rng.choice([item for item in ITEMS if item != orders[wanted]["item"]])
        first = "return_order" if orders[wanted]["status"] == "delivered" else "cancel_order"
        wishes = [
            [Change(first, {"id": wanted})],
            [Change("change_item", {"id": wanted, "item": other})],
        ]
        rng.shuffle(wishes)
        return Scenario(
            tables={"orders": orders},
            customer=customer,
            rules={"window": rng.randint(2, 8)},
            wishes=wishes[: rng.randint(1, 2)],
        )

    def words(self, change: Change, *, terse: bool) -> str:
        """Return a change as a customer asks for it."""
        id, item = change.arguments["id"], change.arguments.get("item")
        if change.name == "change_item":
            return f"change {id} to {item}" if terse else f"please send a {item} as order {id}"
        verb = change.name.partition("_")[0]
        if terse:
            return f"{verb} {id}"
        return f"I want to {verb} order {id}" + (" and get my money back" * (verb == "return"))
