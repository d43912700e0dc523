"""One program in its own process: run it, and put into words how it ended.

Loaded by path inside the warmed process and used in its forks alone. Whatever a program does to
this code it does to its own report, which is judged outside.
"""

import builtins
import errno
import sys
import types

from selfplay.sandbox import literals

FILE = "<program>"  # the file name of the program's code


class ProgramEnd(Exception):
    """How a program ended without a value: the reason's name and a detail."""


def run(program: str, arguments: str, entry: str, characters: int) -> str:
    """The canonical text of what the program's function returns."""
    try:
        code = compile(program, FILE, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, OverflowError) as error:
        raise ProgramEnd("syntax", f"{type(error).__name__}: {error}") from None
    module = types.ModuleType("program")
    # Classes look up their module by name. Ours is no business of the program.
    sys.modules["program"] = sys.modules["__main__"] = module
    exec(code, module.__dict__)
    function = module.__dict__.get(entry)
    if not callable(function):
        raise ProgramEnd("no_entry", f"the program defines no function {entry!r}")
    # Canonical text of plain data, written outside; the program can only spoil its own reading.
    values = eval(f"[{arguments}]", {"__builtins__": builtins})
    result = function(*values)
    try:
        return literals.canonical(result, characters=characters)
    except literals.TooLargeError as error:
        raise ProgramEnd("output_limit", str(error)) from None
    except literals.LiteralError as error:
        raise ProgramEnd("not_plain_data", str(error)) from None


def _line(traceback: types.TracebackType | None) -> int:
    """The last line of the program that the exception passed, 0 if none."""
    line = 0
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == FILE:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def ending(error: BaseException) -> tuple[str, str]:
    """The reason and the detail of an exception that left the program."""
    if isinstance(error, ProgramEnd):
        return error.args
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return "memory", ""
    try:
        line = _line(error.__traceback__)
        text = f"{type(error).__name__}: {error}"[:200]
    except BaseException:  # even its text is the program's own code
        line, text = 0, "an exception without a readable text"
    if isinstance(error, SystemExit):
        return "exited", text
    # The kernel's refusals carry a number; a program's own OSError seldom does.
    reason = "forbidden" if isinstance(number, int) else "raised"
    return reason, f"{text} (line {line})" if line else text
