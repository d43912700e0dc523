"""Bookings of a guest house: cancel one, or move it to another day."""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import ClassVar

from arenas.desk.domain import CUSTOMERS, Change, Scenario, Tables, row, shown
from selfplay.tools import ToolError

DAYS = range(1, 7)
"""Days from now on which a booking can begin."""


def find_booking(tables: Tables, id: str) -> str:
    """Shows a booking: its guest, its day, its fare and its status."""
    return shown(id, row(tables, "bookings", id))


def free_rooms(tables: Tables, day: int) -> str:
    """Shows the number of free rooms on a day, counted from today."""
    return shown(str(day), row(tables, "rooms", str(day)))


def cancel_booking(tables: Tables, id: str) -> str:
    """Cancels a booking and frees its room."""
    booking = _open(tables, id)
    booking["status"] = "cancelled"
    tables["rooms"][str(booking["day"])]["free"] += 1
    return "done"


def move_booking(tables: Tables, id: str, day: int) -> str:
    """Moves a booking to another day, counted from today."""
    booking = _open(tables, id)
    wanted = row(tables, "rooms", str(day))
    if booking["day"] == day:
        raise ToolError("same_day", "the booking is on this day already")
    if not wanted["free"]:
        raise ToolError("full", "no room is free on this day")
    wanted["free"] -= 1
    tables["rooms"][str(booking["day"])]["free"] += 1
    booking["day"] = day
    return "done"


def _open(tables: Tables, id: str) -> dict[str, object]:
    booking = row(tables, "bookings", id)
    if booking["status"] != "booked":
        raise ToolError("closed", "the booking is cancelled already")
    return booking


class Bookings:
    """Bookings of a guest house. The policy's number is `notice`, in days."""

    name: ClassVar[str] = "bookings"
    operations: ClassVar[Mapping[str, Callable[..., str]]] = {
        each.__name__: each for each in (find_booking, free_rooms, cancel_booking, move_booking)
    }
    writes: ClassVar[frozenset[str]] = frozenset({"cancel_booking", "move_booking"})

    def policy(self, rules: Mapping[str, int]) -> list[str]:
        """Return the policy document."""
        return [
            "Change only bookings of the customer you talk with.",
            f"Do not change a booking that begins in fewer than {rules['notice']} days.",
            "Do not cancel a booking with a fixed fare; it may be moved.",
        ]

    def forbidden(
        self, tables: Tables, customer: str, rules: Mapping[str, int], change: Change
    ) -> str:
        """Return the reason why the policy forbids a change; "" if it allows it."""
        booking = tables["bookings"][change.arguments["id"]]
        if booking["guest"] != customer:
            return "not_own"
        if booking["day"] < rules["notice"]:
            return "notice"
        if change.name == "cancel_booking" and booking["fare"] == "fixed":
            return "fixed_fare"
        return ""

    def changes(self, tables: Tables) -> Iterator[Change]:
        """Yield every cancellation and every move."""
        for id in tables["bookings"]:
            yield Change("cancel_booking", {"id": id})
            for day in DAYS:
                yield Change("move_booking", {"id": id, "day": day})

    def look_ups(self, tables: Tables, change: Change) -> Iterator[Change]:
        """Yield the call that shows the booking."""
        yield Change("find_booking", {"id": change.arguments["id"]})

    def draw(self, rng: Random) -> Scenario:
        """Draw three bookings, and one or two wishes about one of them."""
        customer = rng.choice(CUSTOMERS)
        ids = [f"b{number}" for number in sorted(rng.sample(range(1, 10), 3))]
        wanted = rng.choice(ids)
        bookings = {
            id: {
                "guest": customer
                if id == wanted and rng.random() < 0.85
                else rng.choice([name for name in CUSTOMERS if name != customer]),
                "day": rng.choice(DAYS),
                "fare": rng.choice(("fixed", "flexible")),
                "status": "booked",
            }
            for id in ids
        }
        rooms = {str(day): {"free": rng.choice((0, 1, 1, 2))} for day in DAYS}
        day = rng.choice([day for day in DAYS if day != bookings[wanted]["day"]])
        wishes = [
            [Change("cancel_booking", {"id": wanted})],
            [Change("move_booking", {"id": wanted, "day": day})],
        ]
        rng.shuffle(wishes)
        return Scenario(
            tables={"bookings": bookings, "rooms": rooms},
            customer=customer,
            rules={"notice": rng.randint(1, 4)},
            wishes=wishes[: rng.randint(1, 2)],
        )

    def words(self, change: Change, *, terse: bool) -> str:
        """Return a change as a customer asks for it."""
        id, day = change.arguments["id"], change.arguments.get("day")
        if change.name == "cancel_booking":
            return f"cancel {id}" if terse else f"please cancel my booking {id}"
        return f"move {id} to {day}" if terse else f"please move my booking {id} to day {day}"
