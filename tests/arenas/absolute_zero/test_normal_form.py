"""Tests of the normal form, which is equal for programs that differ only in notation."""

import pytest

from arenas.absolute_zero.normal_form import normal_form

PLAIN = "def f(a):\n    return a * 3 + 1"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (PLAIN, "def f(a):  # why\n\n  return (a*3) + 1"),
        ("def f(a):\n    return 'x'", 'def f(a):\n    return "x"'),
        (PLAIN, "def f(b):\n    return b * 3 + 1"),
        (PLAIN, "def f(a, /):\n    return a * 3 + 1"),
        (PLAIN, "def f(a: int) -> int:\n    'Text.'\n    pass\n    return a * 3 + 1"),
        (PLAIN, "import re\nfrom math import pi\ndef f(a):\n    return a * 3 + 1"),
        (
            "import math, re\ndef f(a):\n    return re.sub('x', 'y', a), math.pi",
            "import re\nimport math\ndef f(b):\n    return re.sub('x', 'y', b), math.pi",
        ),
        (
            "def f(a, *rest, k=1, **more):\n    b = a\n    b += k\n    return b, rest, more",
            "def f(x, *y, z=1, **w):\n    a: int = x\n    a += z\n    return a, y, w",
        ),
        (
            "def f(a):\n    if a:\n        b = 1\n    else:\n        pass\n    return b",
            "def f(b):\n    if b:\n        a = 1\n    return a",
        ),
        (
            "def f(a):\n    return [a for a in a], (lambda a, b=a: a + b)(1)",
            "def f(x):\n    return [y for y in x], (lambda z, y=x: z + y)(1)",
        ),
        (
            "def f(a):\n    return {k: v for k, v in a.items() if (n := v) > 0}, n",
            "def f(v):\n    return {a: b for a, b in v.items() if (k := b) > 0}, k",
        ),
        (
            "def f(a):\n    try:\n        return a[0]\n    except KeyError as e: return str(e)",
            "def f(x):\n    try:\n        return x[0]\n    except KeyError as a: return str(a)",
        ),
        (
            "def f(a):\n    match a:\n        case [b, *c]:\n            return c\n"
            "        case {'k': d, **e}:\n            return e\n        case g: return g",
            "def f(x):\n    match x:\n        case [a, *b]:\n            return b\n"
            "        case {'k': g, **h}:\n            return h\n        case i: return i",
        ),
    ],
)
def test_notation_makes_no_difference(one: str, other: str) -> None:
    assert normal_form(one) == normal_form(other)


def test_the_normal_form_is_a_program_that_uses_free_letters() -> None:
    assert normal_form(PLAIN) == PLAIN
    wide = "def f(x):\n    " + "; ".join(f"x{n} = a + b(a=x)" for n in range(30))
    found = normal_form(f"{wide}\n    return x29")
    assert found.startswith("def f(c):\n    d = a + b(a=c)\n    e = a + b(a=c)\n")
    assert normal_form(found) == found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (PLAIN, "def f(a):\n    return a * 3 + 2"),
        ("def f(a, b):\n    return a - b", "def f(a, b):\n    return b - a"),
        ("def f(a):\n    return sum(a)", "def f(a):\n    return max(a)"),
        ("def f(a):\n    return a.real", "def f(a):\n    return a.imag"),
        ("def f(a):\n    return dict(x=a)", "def f(a):\n    return dict(y=a)"),
        ("def f(a):\n    b = 1\n    return locals()", "def f(a):\n    c = 1\n    return locals()"),
        ("def f(a):\n    return a if a else f(1)", "def f(f):\n    return f if f else f(1)"),
        (
            "def f(a, b=0):\n    return a or f(a=1, b=2)",
            "def f(b, a=0):\n    return b or f(a=1, b=2)",
        ),
        (
            "def f(a):\n    class C:\n        x = 1\n    return C.x",
            "def f(a):\n    class C:\n        y = 1\n    return C.x",
        ),
        (
            "def f(a):\n    global b\n    b = a\n    return b",
            "def f(a):\n    global c\n    c = a\n    return c",
        ),
        ("def f(a):\n    return [a for b in a]", "def f(a):\n    return [b for b in a]"),
        ("def f(a):\n    return lambda b: a", "def f(a):\n    return lambda b: b"),
    ],
)
def test_other_programs_have_other_normal_forms(one: str, other: str) -> None:
    assert normal_form(one) != normal_form(other)


def test_names_of_inner_and_outer_functions_are_kept_apart() -> None:
    inner = "def f(a):\n    def g(x):\n        {0} = x\n        return {0}\n    return {0}(a)"
    assert normal_form(inner.format("len")) != normal_form(inner.format("sum"))
