"""The methods that a credit method consists of."""

from typing import Any

from selfplay.credit.by_role import ByRole


def methods_of(credit: object, where: str) -> dict[str, Any]:
    """Return the methods that a credit method consists of, by key path.

    `where` is the key path of `credit`, usually "credit". A method that has no parts, and an object
    of another kind, is the only entry of the result.
    """
    if not isinstance(credit, ByRole):
        return {where: credit}
    return {
        path: method
        for role, own in credit.methods.items()
        for path, method in methods_of(own, f"{where}.methods.{role}").items()
    }


def method_of(credit: object, role: str) -> object:
    """Return the method that credits the turns of a role; None if it has none."""
    while isinstance(credit, ByRole):
        credit = credit.methods.get(role, credit.methods.get("default"))
    return credit
