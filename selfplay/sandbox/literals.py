"""Reading and writing of plain data as text, with limits and in one canonical form.

Plain data is None, bool, int, float, complex, str, bytes, and lists, tuples, dicts and sets of
plain data, of exactly these types. Reading never evaluates the text, and fails only with a one-line
`LiteralError`, however long, deep or hostile the text is. This file imports nothing else of the
library, because the sandboxed process loads it too.
"""

import ast
import math
import re
import warnings
from _thread import allocate_lock

MAX_CHARACTERS = 1_000_000
"""Default of the largest number of characters that are read or written."""
MAX_DEPTH = 64  # CPython's own tokenizer stops at 200 brackets
MAX_DIGITS = 4_300  # CPython's own cap on converting between int and text
_MAX_BITS = math.ceil(MAX_DIGITS * math.log2(10))


_PARSING = allocate_lock()
# Python warns about some valid texts, such as "1if 2 else 3". This filter is permanent, because
# `catch_warnings` for each text is not safe with threads and makes Python repeat other warnings.
warnings.filterwarnings("ignore", category=SyntaxWarning, module=re.escape("<unknown>"))


class LiteralError(ValueError):
    """Raised for a text or a value that is not plain data; the message is one line."""


class TooLargeError(LiteralError):
    """Raised for plain data that is longer than the caller allows."""


# A quote followed by two more always opens a triple-quoted string. The lookaheads express this, so
# that an unterminated one is an error at once and is not read a second time.
_STRING = r"""
    '''(?:[^\\]|\\.)*?''' | \"\"\"(?:[^\\]|\\.)*?\"\"\"
    | '(?!'')[^'\\\n]*(?:\\.[^'\\\n]*)*' | \"(?!\"\")[^\"\\\n]*(?:\\.[^\"\\\n]*)*\"
"""
_NUMBER = r"""
    0[xXoObB][0-9a-fA-F_]+
    | (?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9_]+)?[jJ]?
"""
_TOKEN = re.compile(
    rf"""
    (?P<space>[ \t\r\n\f]+)
    | (?P<string>(?P<prefix>[bB][rR]?|[rR][bB]?|[uU])?(?:{_STRING}))
    | (?P<number>{_NUMBER})
    | (?P<name>(?:True|False|None|set[ ]?\(\))(?![0-9A-Za-z_]))
    | (?P<open>[\[({{]) | (?P<close>[\])}}]) | (?P<sign>[+-]) | (?P<mark>[,:])
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSES = {"(": ")", "[": "]", "{": "}"}
# Python keeps the backslash of an unknown escape and warns. Doubling the backslash has the same
# meaning without the warning, which a caller may have turned into an error.
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("\n\r\\'\"abfnrtvx01234567")


def _quiet(token: str, prefix: str) -> str:
    if "r" in prefix.lower() or "\\" not in token:
        return token
    known = _KNOWN_ESCAPES if "b" in prefix.lower() else _KNOWN_ESCAPES | frozenset("NuU")
    return _ESCAPE.sub(lambda m: m[0] if m[1] in known else "\\" + m[0], token)


def _vetted(text: str, characters: int) -> str:
    """Check that every token belongs to a literal; return the text with unchanged meaning."""
    if len(text) > characters:
        raise TooLargeError(f"literal of {len(text)} characters, more than {characters}")
    parts: list[str] = []
    closers: list[str] = []
    position, signed = 0, False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise LiteralError(
                f"not plain data at character {position}: {text[position : position + 20]!a}"
            )
        kind, token, position = match.lastgroup, match[0], match.end()
        if kind == "space":
            parts.append(token)
            continue
        if kind == "sign" and signed:
            raise LiteralError("not plain data: two signs in a row")
        signed = kind == "sign"
        if kind == "open":
            closers.append(_CLOSES[token])
            if len(closers) > MAX_DEPTH:
                raise LiteralError(f"nested deeper than {MAX_DEPTH}")
        elif kind == "close":
            if not closers or closers.pop() != token:
                raise LiteralError(f"unbalanced {token!r} before character {position}")
        elif kind == "number" and len(token) > MAX_DIGITS:
            raise TooLargeError(f"number of more than {MAX_DIGITS} digits")
        elif kind == "string":
            token = _quiet(token, match["prefix"] or "")
        parts.append(token)
    if closers:
        raise LiteralError(f"missing {closers[-1]!r} at the end")
    return "".join(parts)


def parse_program(text: str) -> ast.Module:
    """Return the syntax tree of a program.

    Call this or `parse_expression`, and not `ast.parse`. CPython counts the depth of a new tree in
    one place for all threads, so that two threads that parse at the same time can end in a
    SystemError ("AST constructor recursion depth mismatch"). A lock lets one thread parse at a
    time.

    Raises what `ast.parse` raises.
    """
    with _PARSING:
        return ast.parse(text)


def parse_expression(text: str) -> ast.Expression:
    """Return the syntax tree of one expression; see `parse_program`."""
    with _PARSING:
        return ast.parse(text, mode="eval")


def _evaluated(text: str) -> object:
    try:
        return ast.literal_eval(parse_expression(text.lstrip(" \t")))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        reason = str(error).partition("\n")[0][:120] or type(error).__name__
        raise LiteralError(f"not plain data: {reason}") from None


def parse_literal(text: str, *, characters: int = MAX_CHARACTERS) -> object:
    """Return the value of one Python literal.

    Raises `LiteralError` for anything else, e.g. names, calls, more than `MAX_DEPTH` nested
    brackets or numbers of more than `MAX_DIGITS` digits, and `TooLargeError` beyond `characters`.
    """
    return _evaluated(_vetted(text, characters).strip())


def parse_arguments(text: str, *, characters: int = MAX_CHARACTERS) -> tuple[object, ...]:
    """Return the values of comma-separated positional literals, e.g. `"'abc', 3"` -> `("abc", 3)`.

    Raises `LiteralError` as `parse_literal` does; empty text is an empty tuple.
    """
    # Unbalanced brackets were refused above, so the text cannot close the list.
    values = _evaluated(f"[{_vetted(text, characters)}]")
    if not isinstance(values, list):
        raise LiteralError("not plain data: arguments must be separated by commas")
    return tuple(values)


def canonical(value: object, *, characters: int = MAX_CHARACTERS) -> str:
    """Return the canonical text of a value; equal texts mean equal values of equal types.

    1, True and 1.0 differ; -0.0 is written 0.0; sets and dicts are sorted by the text of their
    elements and keys, so the hash seed has no effect. `parse_literal` reads the text back.

    Raises LiteralError for a value that is not plain data (also for subclasses, nan, infinities and
    values that contain themselves), and TooLargeError beyond `characters`.
    """
    return _written(value, 0, [characters])


def _spend(budget: list[int], characters: int) -> None:
    budget[0] -= characters
    if budget[0] < 0:
        raise TooLargeError("value too long")


def _written(value: object, depth: int, budget: list[int]) -> str:
    # Exact types, compared by identity, which a subclass cannot forge.
    kind = type(value)
    if kind in _WRITERS:
        text = _WRITERS[kind](value, budget)
        _spend(budget, len(text))
        return text
    if depth >= MAX_DEPTH:
        raise LiteralError(f"nested deeper than {MAX_DEPTH}")
    _spend(budget, 2)
    if type(value) is dict:
        pairs = []
        for key, item in value.items():
            written_key = _written(key, depth + 1, budget)
            pairs.append((written_key, _written(item, depth + 1, budget)))
            _spend(budget, 4)
        return "{" + ", ".join(f"{key}: {item}" for key, item in sorted(pairs)) + "}"
    if type(value) is list or type(value) is tuple or type(value) is set:
        texts = []
        for item in value:
            texts.append(_written(item, depth + 1, budget))
            _spend(budget, 2)
        if type(value) is list:
            return "[" + ", ".join(texts) + "]"
        if type(value) is tuple:
            return "(" + ", ".join(texts) + ("," if len(texts) == 1 else "") + ")"
        return "{" + ", ".join(sorted(texts)) + "}" if texts else "set()"
    raise LiteralError(f"a value of the class {_name(kind)} is not plain data")


def _name(kind: type) -> str:
    # A program can override the name of a class, but not the slot of `type` itself.
    return ascii(type.__dict__["__name__"].__get__(kind))[1:-1][:60]


def _integer(value: int, budget: list[int]) -> str:
    if value.bit_length() > _MAX_BITS:
        raise TooLargeError(f"number of more than {MAX_DIGITS} digits")
    try:
        return str(value)
    except ValueError as error:  # the interpreter's own cap may be set lower
        raise TooLargeError(f"number of more than {MAX_DIGITS} digits") from error


def _real(value: float, budget: list[int]) -> str:
    if not math.isfinite(value):
        raise LiteralError(f"{value!r} is not plain data")
    return repr(value + 0.0)  # -0.0 + 0.0 is 0.0


def _complex(value: complex, budget: list[int]) -> str:
    if not (math.isfinite(value.real) and math.isfinite(value.imag)):
        raise LiteralError(f"{value!r} is not plain data")
    return repr(complex(value.real + 0.0, value.imag + 0.0))


def _string(value: str | bytes, budget: list[int]) -> str:
    if len(value) > budget[0]:  # checked before the text of a huge string is made
        raise TooLargeError("value too long")
    return repr(value)


_WRITERS = {
    type(None): lambda value, budget: "None",
    bool: lambda value, budget: "True" if value else "False",
    int: _integer,
    float: _real,
    complex: _complex,
    str: _string,
    bytes: _string,
}
