"""Absolute Zero's static filters: every refusal has a name, and nothing breaks them."""

import random

import pytest

from arenas.program_checks import LONGEST_PROGRAM, fault, normal_form

GOOD = "def f(a):\n    return a"


@pytest.mark.parametrize(
    "program",
    [
        GOOD,
        "import math\nfrom collections import Counter\ndef f(*a):\n    return math.pi",
        "def f(a, /, b=1):\n    return [x for x in a if (lambda y: y)(x)]",
        "def f(a):\n    if a:\n        return 1",
        "def f(randomness):\n    return 'import os' + randomness",
    ],
)
def test_a_task_is_imports_and_one_function_that_returns(program: str) -> None:
    assert fault(program) is None


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("", "no_entry"),
        ("def f(a) return a", "syntax"),
        ("def f(a):\n    return 'a\x00'", "syntax"),
        ("def f(a):\n    return '\ud800'", "syntax"),
        ("def g(a):\n    return a", "no_entry"),
        ("async def f(a):\n    return a", "no_entry"),
        ("class C:\n    def f(a):\n        return a", "no_entry"),
        (GOOD + "\ndef g(a):\n    return a", "several_functions"),
        ("def f(a):\n    def g():\n        return a\n    return g()", "several_functions"),
        (GOOD + "\nf(1)", "stray_code"),
        ("x = 1\n" + GOOD, "stray_code"),
        ("def f():\n    return 1", "no_parameter"),
        ("def f(*, a=1):\n    return a", "no_parameter"),
        ("def f(a):\n    return", "no_return"),
        ("import random\n" + GOOD, "banned"),
        ("import os.path as p\n" + GOOD, "banned"),
        ("from datetime import date\n" + GOOD, "banned"),
        ("def f(a):\n    import sys\n    return a", "banned"),
        ("def f(a):\n    return input()", "banned"),
        ("def f(a):\n    return __import__('os')", "banned"),
        (GOOD + " " * LONGEST_PROGRAM, "too_long"),
        ("def f(a):\n    return " + "(" * 250 + ")" * 250, "syntax"),
        ("def f(a):\n    return " + "not " * 2000 + "a", "syntax"),
        ("def f(a):\n    return 0x" + "f" * 9000, "syntax"),
    ],
)
def test_every_refusal_has_a_name(program: str, reason: str) -> None:
    assert fault(program) == reason


def test_the_normal_form_forgets_spacing_comments_and_quotes() -> None:
    assert normal_form('def f(a):  # why\n\n  return ("x")') == normal_form(
        "def f(a):\n    return 'x'"
    )
    assert normal_form(GOOD) != normal_form("def f(b):\n    return b")


def test_noise_is_refused_and_what_passes_has_a_normal_form() -> None:
    rng = random.Random(0)
    words = ["def f(a):", "\n", "    ", "return ", "a", "(", ")", ":", "lambda", "'", "\\", "\x00"]
    passed = 0
    for _ in range(3000):
        body = "".join(rng.choices(words, k=rng.randint(0, 5)))
        program = "def f(a):\n    return a" + body
        if fault(program) is None:
            passed += 1
            normal_form(program)
    assert 0 < passed < 3000
    for _ in range(20):
        assert fault("".join(chr(rng.randrange(0x110000)) for _ in range(LONGEST_PROGRAM)))
