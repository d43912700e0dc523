"""Runs one program in its own process and describes how it ended.

Loaded by path inside the warmed process and used only in its forks. A program can tamper with this
code, but only to change its own report, which the parent judges.
"""

import builtins
import errno
import sys
import types

from selfplay.sandbox import literals

FILE = "<program>"  # file name of the program's code in tracebacks


class ProgramEnd(Exception):
    """Raised if a program ends without a value; holds the reason's name and a detail."""


def run(program: str, arguments: str, entry: str, characters: int) -> str:
    """Run a program's function and return the canonical text of its result."""
    try:
        code = compile(program, FILE, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, OverflowError) as error:
        raise ProgramEnd("syntax", f"{type(error).__name__}: {error}") from None
    module = types.ModuleType("program")
    # Classes look up their module by name; the program must not find this module.
    sys.modules["program"] = sys.modules["__main__"] = module
    exec(code, module.__dict__)
    function = module.__dict__.get(entry)
    if not callable(function):
        raise ProgramEnd("no_entry", f"the program defines no function {entry!r}")
    # The text is canonical plain data from the parent. A program that has changed the builtins
    # changes only its own arguments.
    values = eval(f"[{arguments}]", {"__builtins__": builtins})
    result = function(*values)
    try:
        return literals.canonical(result, characters=characters)
    except literals.TooLargeError as error:
        raise ProgramEnd("output_limit", str(error)) from None
    except literals.LiteralError as error:
        raise ProgramEnd("not_plain_data", str(error)) from None


def _line(traceback: types.TracebackType | None) -> int:
    """Return the last line of the program in a traceback, 0 if none."""
    line = 0
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == FILE:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def ending(error: BaseException) -> tuple[str, str]:
    """Return the reason and the detail of an exception that the program did not catch."""
    if isinstance(error, ProgramEnd):
        return error.args
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return "memory", ""
    try:
        line = _line(error.__traceback__)
        text = f"{type(error).__name__}: {error}"[:200]
    except BaseException:  # the text, too, is made by the program's code
        line, text = 0, "an exception without a readable text"
    if isinstance(error, SystemExit):
        return "exited", text
    # Errors of the kernel have a number; a program's own OSError seldom has one.
    reason = "forbidden" if isinstance(number, int) else "raised"
    return reason, f"{text} (line {line})" if line else text
