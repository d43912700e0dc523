"""Tests of Absolute Zero's static filters: every refusal has a reason, and no text raises."""

import importlib
import random
import types

import pytest

from arenas.absolute_zero.normal_form import normal_form
from arenas.absolute_zero.program_checks import LONGEST_PROGRAM, PURE, fault

GOOD = "def f(a):\n    return a"


@pytest.mark.parametrize(
    "program",
    [
        GOOD,
        "import math\nfrom collections import Counter\ndef f(*a):\n    return math.pi",
        "def f(a, /, b=1):\n    return [x for x in a if (lambda y: y)(x)]",
        "def f(a):\n    if a:\n        return 1",
        "def f(randomness):\n    return 'import os' + randomness",
        "import collections.abc as c\ndef f(a):\n    return isinstance(a, c.Sized)",
        "import string\ndef f(a):\n    return string.ascii_letters.index(a)",
        "import re\ndef f(a):\n    return re.match('a', a).string",
        "from copy import copy\ndef f(a):\n    return copy(a), type(a).__name__",
        "import math as m, heapq\ndef f(a):\n    return m.sqrt(heapq.nlargest(1, a)[0])",
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
def test_every_refusal_has_its_reason(program: str, reason: str) -> None:
    assert fault(program) == reason


@pytest.mark.parametrize(
    ("head", "value"),
    [
        ("import posix", "posix.getpid()"),
        ("import timeit", "timeit.default_timer()"),
        ("import timeit as t", "t.time.time()"),
        ("import email.utils", "email.utils.time.time()"),
        ("from email.utils import localtime", "localtime()"),
        ("import typing", "typing.sys.modules['time']"),
        ("import collections", "collections._sys"),
        ("import collections as c", "c._sys"),
        ("import statistics", "statistics.random.random()"),
        ("from statistics import random", "random.random()"),
        ("from collections import _sys", "_sys"),
        ("import collections", "[collections][0]._sys"),
        ("import collections", "getattr(collections, '_sys')"),
        ("import collections", "(c := collections)._sys"),
        ("import collections", "collections.namedtuple.__globals__['_sys']"),
        ("import re", "f.__builtins__"),
        ("import re", "__builtins__"),
        ("import re", "().__class__.__base__.__subclasses__()"),
        ("import re", "hash(a) % 2"),
        ("import re", "a.__hash__()"),
        ("import re", "id(a) % 2"),
        ("import re", "max(a, key=hash)"),
        ("import re", "sorted(a, key=str.__hash__)"),
        ("import re", "eval('hash(a)')"),
        ("import re", "exec('import time')"),
        ("import re", "globals()['__builtins__']"),
        ("import operator", "operator.index(hash(a))"),
        ("from . import sys", "a"),
        ("import re", "re.enum.bltns.hash(a)"),
        ("import enum as e", "e.bltns"),
        ("from enum import bltns as b", "b.hash(a)"),
        ("import json.tool", "json.tool.sys"),
        ("import json.tool as t", "t.sys"),
        ("from json.tool import sys as s", "s.flags"),
        ("from json import tool as t", "t.sys"),
        ("import builtins", "builtins.hash(a)"),
        ("import no_such_module", "a"),
        ("import hashlib", "hashlib.md5(a)"),
        ("import zlib", "zlib.crc32(a) % 2"),
        ("import base64", "base64.binascii.crc32(a) % 2"),
        ("import zoneinfo", "a"),
        ("import uuid", "uuid.uuid4()"),
        ("import gc", "gc.get_count()"),
        ("import _random", "_random.Random()"),
    ],
)
def test_a_program_may_depend_only_on_its_input(head: str, value: str) -> None:
    assert fault(f"{head}\ndef f(a):\n    return {value}") == "banned"


@pytest.mark.parametrize("parts", [3, 250, 900])
def test_a_module_that_does_not_exist_is_no_error_of_the_arena(parts: int) -> None:
    assert fault(f"import {'.'.join(['json'] * parts)}\n{GOOD}") is None


def test_no_pure_module_leads_to_another_by_its_names() -> None:
    for name in sorted(PURE):
        for key, value in vars(importlib.import_module(name)).items():
            if isinstance(value, types.ModuleType):
                pure = value.__name__.partition(".")[0].strip("_") in PURE
                reached = fault(f"import {name}\ndef f(a):\n    return {name}.{key}.x") is None
                assert pure or not reached, f"{name}.{key} is {value.__name__}"


def test_noise_is_refused_and_accepted_programs_have_a_normal_form() -> None:
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
