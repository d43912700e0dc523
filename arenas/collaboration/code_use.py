"""Check if a program that passes its tests needs the result of one of its functions.

The text of a program cannot show this: the result of a call may be unused, thrown away or
multiplied by zero. So the function is replaced by another one with results of the same types.
If every passed test still passes, the result does not matter. A test that also fails if the
replacing function returns the same results proves nothing: the program notices the replacement, for
example by its `__name__`.
"""

from typing import Literal

Kind = Literal["same", "other", "empty"]
"""Results of a replacing function: the same, others, or the zero or empty value of each type."""

OTHER = '''
import copy
import itertools

LIMIT = 1000

def changed(value, salt, empty):
    """Another value of the same type, which depends on the value and on the arguments only."""
    if isinstance(value, bool):
        return False if empty else not value
    if isinstance(value, (int, float)):
        return type(value)(0 if empty else -3 * value - 1007 - salt)
    if isinstance(value, str):
        return "" if empty else "~" + value[::-1] + str(salt)
    if isinstance(value, (list, tuple)):
        return type(value)([] if empty else [changed(one, salt, empty) for one in value])
    if isinstance(value, (set, frozenset)):
        return type(value)([] if empty else [changed(one, salt, empty) for one in value])
    if isinstance(value, dict):
        return {} if empty else {key: changed(one, salt, empty) for key, one in value.items()}
    if callable(value):
        return lambda *args, **named: changed(value(*args, **named), salt, empty)
    return 0 if value is None else object()

def other(function, kind):
    state = {"inside": False, "calls": 0, "last": None}

    def replaced(*args, **named):
        if state["inside"]:
            return function(*args, **named)
        state["calls"] += 1
        if state["calls"] > LIMIT and state["last"] and kind != "same":
            return state["last"]()
        try:
            salt = sum(map(ord, repr((args, named)))) % 997
        except Exception:  # an argument's own __repr__ may raise any error
            salt = 0
        try:
            copied = copy.deepcopy((args, named))
        except Exception:  # an argument's own code of copying may raise any error
            copied = args, named
        if kind != "same":
            args, named = copied
        state["inside"] = True
        try:
            value = function(*args, **named)
            several = hasattr(value, "__next__")
            if several:
                rest, value = value, list(itertools.islice(value, LIMIT))
        finally:
            state["inside"] = False
        if kind == "same":
            return itertools.chain(value, rest) if several else value
        try:
            found = changed(value, salt, kind == "empty")
        except Exception:  # the value's own methods may raise any error
            found = object()
        state["last"] = lambda: iter(found) if several else found
        return state["last"]()

    return replaced
'''
"""Source of `other(function, kind)`, which returns a function that replaces `function`.

The replacing function returns results of the given `Kind`, of the types of `function`'s results.
Equal arguments give equal results. Unless the kind is same, `function` gets copies of its arguments
and cannot change the originals. After `LIMIT` calls the last result is returned again, because each
call of `function` takes time."""
HOLDER = "_the_other_function_of_the_test"
"""Name of the namespace of `OTHER`, which no program is expected to use."""


def with_other(before: str, name: str, after: str, kind: Kind) -> str:
    """Return the program `before` + `after`, with the function `name` of `before` replaced.

    The replacing code runs in its own namespace, so that the program's names do not disturb it.
    """
    replaced = f"{name} = {HOLDER}['other']({name}, {kind!r})"
    begun = f"{HOLDER} = {{}}\nexec({OTHER!r}, {HOLDER})\n{replaced}\ndel {HOLDER}"
    return f"{before.rstrip()}\n\n{begun}\n\n{after.rstrip()}\n"
