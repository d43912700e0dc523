"""Tests of forged results and unusual texts: a result is plain data, or there is none."""

import textwrap
from collections.abc import Iterator

import pytest

from selfplay.sandbox import Call, Executor, FailureReason
from tests.helpers.sandbox_attacks import attack, isolated


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with isolated(workers=1, wall_seconds=4.0, cpu_seconds=0.4, output_characters=2_000) as pool:
        yield pool


OUTCOMES = {
    # Forged types: only exact types count, whatever the objects claim to be.
    "equal to all": ("class A:\n    __eq__ = lambda s, o: True\nreturn A()", "not_plain_data"),
    "text of an object": ("class A:\n    __repr__ = lambda s: '1'\nreturn A()", "not_plain_data"),
    "class of an object": (
        "class A:\n    __class__ = property(lambda s: int)\nreturn A()",
        "not_plain_data",
    ),
    "string subclass": (
        "class S(str):\n    __eq__ = lambda s, o: True\nreturn S()",
        "not_plain_data",
    ),
    "hashed liar": (
        "class I(int):\n    __eq__ = lambda s, o: True\n    __hash__ = lambda s: 0\nreturn {I(1)}",
        "not_plain_data",
    ),
    "counter": ("import collections\nreturn collections.Counter('a')", "not_plain_data"),
    "function": ("return f", "not_plain_data"),
    "generator": ("yield 1", "not_plain_data"),
    "nan": ("return [float('nan')]", "not_plain_data"),
    "infinity": ("return {'a': float('inf')}", "not_plain_data"),
    "nested result": ("x = []\nfor _ in range(9**5): x = [x]\nreturn x", "not_plain_data"),
    "result in itself": ("x = []\nx.append(x)\nreturn x", "not_plain_data"),
    "doubling result": ("x = [1]\nfor _ in range(60): x = [x, x]\nreturn x", "output_limit"),
    "long result": ("return 'x' * 10**7", "output_limit"),
    "huge number": ("import sys\nsys.set_int_max_str_digits(0)\nreturn 10**9000", "output_limit"),
    "wide result": ("return list(range(10**5))", "output_limit"),
    "class that lies about its name": (
        "return type('x\\n' * 99, (), {})()",
        "not_plain_data",
    ),
    # Exits.
    "exit": ("import sys\nsys.exit(0)", "exited"),
    "exit with text": ("raise SystemExit('OK 1')", "exited"),
    "leave": ("import os\nos._exit(0)", "exited"),
    "leave with a code": ("import os\nos._exit(3)", "exited"),
    "abort": ("import os\nos.abort()", "killed"),
    "fault": ("import ctypes\nctypes.string_at(0)", "killed"),
    "interrupt": ("raise KeyboardInterrupt", "raised"),
    "generator exit": ("raise GeneratorExit", "raised"),
    "all descriptors closed": ("import os\nos.closerange(0, 99)\nreturn 1", "exited"),
    "exit handler": (
        "import atexit, os\natexit.register(os.write, 3, b'x')\nreturn 1",
        "ok",
    ),
    # Recursion.
    "recursion": ("return f()", "raised"),
    # Errors.
    "text that raises": (
        "class E(Exception):\n    def __str__(self): raise self\nraise E",
        "raised",
    ),
    "text with controls": ("raise ValueError('a\\n\\x1b[31m\\r\\u202e' * 99)", "raised"),
    "surrogate in an error": ("raise ValueError('\\ud800')", "raised"),
    "surrogate in the result": ("return '\\ud800'", "ok"),
    "standard input": ("return input()", "raised"),
    "empty standard input": ("import sys\nreturn sys.stdin.read()", "ok"),
    "every descriptor": (
        "import os\nopened = []\nwhile True: opened.append(open(os.__file__))",
        "forbidden",
    ),
    "a library of the host": ("import ctypes\nctypes.CDLL('libssl.so.3')", "raised"),
    "installed packages": ("import pytest", "raised"),
    "our own package": ("import selfplay", "raised"),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_outcome(executor: Executor, name: str) -> None:
    body, reason = OUTCOMES[name]
    outcome = attack(executor, body)
    assert outcome.reason == reason, outcome


@pytest.mark.parametrize(
    "body", ["return f()", "x = []\nfor _ in range(10**5): x = [x]\nrepr(x)"], ids=["Python", "C"]
)
def test_recursion_without_a_limit(executor: Executor, body: str) -> None:
    body = "import sys\nsys.setrecursionlimit(10**9)\n" + body
    assert attack(executor, body).reason in (
        FailureReason.MEMORY,
        FailureReason.KILLED,
        FailureReason.TIMEOUT,
    )


FRAME = (
    "import os, struct\ndef frame(kind, text): return struct.pack('<cI', kind, len(text)) + text\n"
)
FORGERIES = {
    "a line on standard output": ("print('V 2', flush=True)\nreturn 1", "1"),
    "bytes on every output": (
        "os.write(1, frame(b'V', b'2'))\nos.write(2, frame(b'V', b'2'))\nreturn 1",
        "1",
    ),
    "a frame and nothing else": ("os.write(3, frame(b'V', b'2'))\nos._exit(0)", "2"),
    "a frame, then a result": ("os.write(3, frame(b'V', b'2'))\nreturn 1", "not_plain_data"),
    "a frame, then a death": ("os.write(3, frame(b'V', b'2'))\nos.abort()", "killed"),
    "a frame, then a code": ("os.write(3, frame(b'V', b'2'))\nos._exit(1)", "exited"),
    "a frame on all descriptors": (
        "for n in range(99):\n    try: os.write(n, frame(b'V', b'2'))\n"
        "    except OSError: pass\nreturn 1",
        "not_plain_data",
    ),
    "an expression": (
        "os.write(3, frame(b'V', b'__import__(\"os\").getpid()'))\nos._exit(0)",
        "not_plain_data",
    ),
    "an infinity": ("os.write(3, frame(b'V', b'1e999'))\nos._exit(0)", "not_plain_data"),
    "no text": ("os.write(3, frame(b'V', b'\\xff\\xfe'))\nos._exit(0)", "not_plain_data"),
    "two values": ("os.write(3, frame(b'V', b'1) or (2'))\nos._exit(0)", "not_plain_data"),
    "half a frame": ("os.write(3, b'V')\nos._exit(0)", "not_plain_data"),
    "a frame too long": ("os.write(3, b'V\\xff\\xff\\xff\\xff1')\nos._exit(0)", "not_plain_data"),
    "an unknown kind": ("os.write(3, frame(b'X', b'1'))\nos._exit(0)", "not_plain_data"),
    "an unknown reason": ("os.write(3, frame(b'F', b'ok\\n'))\nos._exit(0)", "not_plain_data"),
    "a reason not its own": (
        "os.write(3, frame(b'F', b'timeout\\n'))\nos._exit(0)",
        "not_plain_data",
    ),
    "a flood": ("while True: os.write(3, b'x' * 4096)", "output_limit"),
    "nesting": ("os.write(3, frame(b'V', b'[' * 900))\nos._exit(0)", "not_plain_data"),
    "signs": ("os.write(3, frame(b'V', b'-' * 1900 + b'1'))\nos._exit(0)", "not_plain_data"),
    "uncanonical text": ("os.write(3, frame(b'V', b'{2,1,  0x1F}'))\nos._exit(0)", "{1, 2, 31}"),
    "a reply": (
        "os.write(3, struct.pack('<iBdI', 0, 0, 0.0, 6) + frame(b'V', b'2'))\nreturn 1",
        "not_plain_data",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_result_is_plain_data_or_an_error(executor: Executor, name: str) -> None:
    body, expected = FORGERIES[name]
    outcome = attack(executor, FRAME + "def f():\n" + textwrap.indent(body, "    "))
    assert (outcome.value or outcome.reason) == expected, outcome


def test_reading_the_result_pipe_gives_nothing(executor: Executor) -> None:
    assert attack(executor, "import os\nreturn os.read(3, 9)").reason is FailureReason.FORBIDDEN


REACHING = {
    "the writer of results": (
        "outer().f_globals['literals'].canonical = lambda *a, **k: '__import__(\"os\")'\nreturn 1",
        "not_plain_data",
    ),
    "the writer of results, plainly": (
        "outer().f_globals['literals'].canonical = lambda *a, **k: '2'\nreturn 1",
        "2",
    ),
    "the ending": ("raise outer().f_globals['ProgramEnd']('ok', '1')", "not_plain_data"),
    "the way out": (
        "import os\nos._exit = lambda code: None\nos.write = lambda *a: 0\nreturn 1",
        "timeout",
    ),
    "the service": ("outer(3).f_globals['main']()", "raised"),
    "its supervisor": (
        "outer(3).f_globals['_supervise'](b'', b'', {'isolation': 'kernel'}, None)",
        "forbidden",
    ),
    "its control socket": (
        "g = outer(3).f_globals\nreturn g['_read'](1)",
        "forbidden",
    ),
    "all modules": ("import sys\nsys.modules.clear()\nreturn 1", "1"),
    "the functions of Python": (
        "import builtins\nfor n in ('repr', 'type', 'len', 'sorted', 'isinstance', 'str'):\n"
        "    setattr(builtins, n, lambda *a, **k: 'x')\nreturn 1",
        "exited",
    ),
    "json and ast": (
        "import json, ast\njson.dumps = json.loads = ast.literal_eval = lambda *a: 2\nreturn 1",
        "1",
    ),
    "tracing": (
        "import sys\nsys.settrace(lambda *a: 1/0)\nsys.setprofile(lambda *a: 1/0)\nreturn 1",
        "exited",
    ),
    "sockets among all objects": (
        "import gc\nreturn [o.fileno() for o in gc.get_objects()"
        " if type(o).__name__ in ('socket', 'Popen')]",
        "[]",
    ),
    "its settings": (
        "frame, found = outer(), []\nwhile frame:\n"
        "    found += [n for n in frame.f_locals if n in ('secret', 'key', 'token')]\n"
        "    frame = frame.f_back\nreturn found",
        "[]",
    ),
}


@pytest.mark.parametrize("name", REACHING)
def test_reaching_into_the_process_that_hosts_the_run(executor: Executor, name: str) -> None:
    body, expected = REACHING[name]
    program = "import sys\ndef outer(depth=2): return sys._getframe(depth)\ndef f():\n"
    outcome = attack(executor, program + textwrap.indent(body, "    "))
    assert (outcome.value or outcome.reason) == expected, outcome


def test_nothing_of_a_run_outlives_it(executor: Executor) -> None:
    spoil = "import builtins, math\nbuiltins.abs = math.gcd = lambda *a: 7\nreturn abs(0)"
    assert attack(executor, spoil).value == "7"
    assert attack(executor, "import math\nreturn abs(-2), math.gcd(4, 6)").value == "(2, 2)"


@pytest.mark.parametrize(
    ("program", "reasons"),
    [
        ("def f(:", {"syntax"}),
        ("def f(): return '\x00'", {"syntax"}),
        ("def f(): return '\ud800'", {"syntax"}),
        ("# -*- coding: no-such -*-\ndef f(): return 1", {"ok"}),
        ("def f(): return " + "(" * 5_000 + ")" * 5_000, {"syntax"}),
        ("def f(): return " + "-" * 200_000 + "1", {"syntax", "memory", "killed"}),
        ("def f(): return " + "+".join(["1"] * 100_000), {"syntax", "memory", "killed", "timeout"}),
        ("def f():\n" + "    x = 1\n" * 90_000, {"ok", "timeout", "memory"}),
        ("x" * 10_000_000, {"input_limit"}),
        ("", {"no_entry"}),
        ("f = 3", {"no_entry"}),
        ("class f:\n    pass", {"not_plain_data"}),
        ("f = len", {"raised"}),
        ("def f(a): return a", {"raised"}),
        ("while 1: f = 1", {"timeout", "stalled"}),  # a busy machine may reach the wall limit first
    ],
    ids=lambda value: ascii(value[:24]) if isinstance(value, str) else "",
)
def test_program_texts(executor: Executor, program: str, reasons: set[str]) -> None:
    outcome = executor.run([Call(program=program, arguments="")])[0]
    assert outcome.reason in reasons, outcome
    assert attack(executor, "return 1").ok


@pytest.mark.parametrize(
    "arguments",
    [
        "__import__('os')",
        "open('/etc/passwd')",
        "1); import os; (1",
        "1], [2",
        "*[1]",
        "**{}",
        "a=1",
        "[" * 100_000,
        "-" * 90_000 + "1",
        "1e999",
        "'\ud800'",
        "\x00",
        "f'{1}'",
        "lambda: 0",
        "1 # comment",
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_argument_texts(executor: Executor, arguments: str) -> None:
    outcome = executor.run([Call(program="def f(*a): return 1", arguments=arguments)])[0]
    assert outcome.reason is FailureReason.BAD_ARGUMENTS, outcome


@pytest.mark.parametrize("arguments", ["9" * 10**6, "9" * 5_000, "'" + "x" * 10**6 + "'"])
def test_long_argument_texts(executor: Executor, arguments: str) -> None:
    outcome = executor.run([Call(program="def f(*a): return 1", arguments=arguments)])[0]
    assert outcome.reason is FailureReason.INPUT_LIMIT, outcome


def test_hostile_entry_names(executor: Executor) -> None:
    for entry in ("", "\x00", "os.system", "__import__('os')", "f" * 1_000_000, "\ud800"):
        outcome = executor.run([Call(program="def f(): return 1", arguments="", entry=entry)])[0]
        assert not outcome.ok
