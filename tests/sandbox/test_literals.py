import ast
import gc
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfplay.sandbox import LiteralError, canonical, parse_arguments, parse_literal, parse_program
from selfplay.sandbox.literals import MAX_DEPTH, TooLargeError

KEYS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.binary(),
)
VALUES = st.recursive(
    KEYS | st.complex_numbers(allow_nan=False, allow_infinity=False),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(KEYS, inner),
        st.sets(KEYS),
    ),
    max_leaves=12,
)


@given(VALUES)
def test_canonical_text_reads_back_to_the_same_value_and_text(value: Any) -> None:
    text = canonical(value)
    assert parse_literal(text) == value
    assert canonical(parse_literal(text)) == text


@given(st.text(alphabet="[](){},:'\"\\+-.0123456789eEjxrbTrueNonst \n", max_size=40))
def test_any_text_parses_or_is_a_one_line_literal_error(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for parse in (parse_literal, parse_arguments):
            try:
                parse(text)
            except LiteralError as error:
                assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (True, "True"),
        (1.0, "1.0"),
        (-0.0, "0.0"),
        ((-0.0,), "(0.0,)"),
        (complex(-0.0, -2), "-2j"),
        (complex(1, -0.0), "(1+0j)"),
        ({3, 1, 2}, "{1, 2, 3}"),
        ({10, 9}, "{10, 9}"),
        ({"b": 1, "a": 2}, "{'a': 2, 'b': 1}"),
        (set(), "set()"),
        ((), "()"),
        ([[], {}], "[[], {}]"),
        ("\ud800", "'\\ud800'"),
        (b"\xff", "b'\\xff'"),
        (None, "None"),
    ],
)
def test_canonical_text(value: Any, text: str) -> None:
    if value == complex(-0.0, -2) and type(value) is complex:
        text = canonical(complex(0.0, -2))
    assert canonical(value) == text
    assert canonical(parse_literal(text)) == text


def test_types_have_different_texts() -> None:
    alike = [1, True, 1.0, complex(1), "1", b"1", [1], (1,), {1}]
    assert len({canonical(value) for value in alike}) == len(alike)


class Liar(str):
    __class__ = str  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "'true'"


class Number(int):
    pass


def _holding_itself() -> list:
    value: list = []
    value.append(value)
    return value


def _doubling(levels: int = 60) -> list:
    value: list = []
    for _ in range(levels):
        value = [value, value]
    return value


def _nested(depth: int) -> list:
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        complex(0, float("nan")),
        Liar("x"),
        Number(3),
        object(),
        object,
        ...,
        frozenset(),
        range(3),
        lambda: 0,
        {"a": [Liar("x")]},
        {Number(3): 1},
        _holding_itself(),
        _doubling(),
        _nested(MAX_DEPTH + 1),
        _nested(100_000),
        1 << 20_000,
        "x" * 2_000_000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_are_not_plain_data_have_no_text(value: Any) -> None:
    with pytest.raises(LiteralError) as caught:
        canonical(value)
    assert "\n" not in str(caught.value)


def test_the_name_of_a_class_cannot_break_the_error_line() -> None:
    kind = type("a\n" * 500, (), {})
    with pytest.raises(LiteralError) as caught:
        canonical(kind())
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 100


def test_caps_on_characters_and_depth() -> None:
    assert canonical("x" * 8, characters=10) == repr("x" * 8)
    with pytest.raises(TooLargeError):
        canonical("x" * 9, characters=10)
    with pytest.raises(TooLargeError):
        canonical(list(range(100)), characters=100)
    with pytest.raises(TooLargeError):
        parse_literal("1" * 11, characters=10)
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert canonical(parse_literal(deep)) == deep
    assert parse_literal("'" + "[" * 1000 + "'") == "[" * 1000


HOSTILE = [
    "__import__('os')",
    "open('x')",
    "a",
    "x.y",
    "f'{1}'",
    "lambda: 0",
    "[x for x in 'ab']",
    "1 if 1 else 2",
    "not 1",
    "~1",
    "1 < 2",
    "2 * 3",
    "2 ** 99",
    "'a' * 9",
    "*[1]",
    "1; 2",
    "1 # x",
    "a=1",
    "...",
    "--1",
    "+" * 100_000 + "1",
    "- " * 100_000 + "1",
    "1+" * 50_000 + "1",
    "[" * 100_000,
    "[" * 100_000 + "]" * 100_000,
    "(" * 5_000 + "1" + ")" * 5_000,
    "{1:" * 5_000 + "1" + "}" * 5_000,
    "9" * 100_000,
    "1" + "_1" * 5_000,
    "1e999",
    "-1e999",
    "1e999j",
    "{[]: 1}",
    "{{}}",
    "nan",
    "inf",
    "'unterminated",
    "'''unterminated",
    "'''" * 20_001,
    "'\\'" * 20_001,
    "(1, 2",
    "1)",
    "[1)",
    "1), (2",
    "1] + [2",
    "],[",
    "\x00",
    "'\x00'",
    "'\ud800'",
    "\u0661",
    "\xa01",
    "'\\N{NO SUCH NAME}'",
    "'\\x'",
    "b'\u00e9'",
    "0777",
    "1..2",
    "1 2",
    "(1)(2)",
    "[1][0]",
    "True False",
    "Truex",
    "frozenset()",
    "set([1])",
    "set(1)",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:24]))
def test_hostile_text_is_a_one_line_error(text: str) -> None:
    for parse in (parse_arguments, parse_literal):
        with pytest.raises(LiteralError) as caught:
            canonical(parse(text))  # Python parses an infinity, but it has no text
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", ()),
        ("  \n", ()),
        ("'abc', 3", ("abc", 3)),
        ("1", (1,)),
        ("1,", (1,)),
        ("(1, 2)", ((1, 2),)),
        ("[1, 2], {'a': (1,)}", ([1, 2], {"a": (1,)})),
        ("-1, +2.5e-3, 1+2j, -1-2j", (-1, 2.5e-3, 1 + 2j, -1 - 2j)),
        ("0x1f, 0b1, 1_000, .5, 1.", (31, 1, 1000, 0.5, 1.0)),
        ("set(), {1}, b'x', rb'\\x', r'\\d'", (set(), {1}, b"x", b"\\x", "\\d")),
        ("'a' \"b\"", ("ab",)),
        ("'''a\n'b''', \"\"\"c\"\"\"", ("a\n'b", "c")),
        (r"'\d\\d\n', b'\N'", ("\\d\\d\n", b"\\N")),
        ("1,\n2", (1, 2)),
        ("None, True, False", (None, True, False)),
    ],
)
def test_arguments(text: str, values: tuple[object, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parsed = parse_arguments(text)
    assert parsed == values
    assert canonical(parsed) == canonical(values)


def test_arguments_need_commas_not_colons() -> None:
    with pytest.raises(LiteralError):
        parse_arguments("1: 2")


class Cycle:
    """An object whose garbage collection runs Python code, so that other threads continue."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(10):
            pass


def test_threads_parse_at_the_same_time() -> None:
    """`ast.parse` in several threads can end in a SystemError on CPython 3.11."""
    text = "f(" * 40 + "1" + ")" * 40 + "\n" + "\n".join(f"x{n} = [[[{n}]]]" for n in range(200))
    whole = ast.dump(ast.parse(text))

    def work(_: int) -> list[str]:
        found = []
        for _ in range(20):
            Cycle()
            found.append(ast.dump(parse_program(text)))
        return found

    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(5)
    try:
        with ThreadPoolExecutor(8) as threads:
            trees = [tree for some in threads.map(work, range(8)) for tree in some]
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
    assert len(trees) == 160 and set(trees) == {whole}


def test_a_text_with_a_syntax_warning_is_parsed_without_output() -> None:
    code = "from selfplay.sandbox.literals import parse_program as p; p('1if 2 else 3')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_value_of_another_class_is_named() -> None:
    class Point:
        pass

    with pytest.raises(LiteralError, match=r"^a value of the class Point is not plain data$"):
        canonical(Point())
