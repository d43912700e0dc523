"""The warmed process: a bare interpreter, isolated once, that forks a fresh process per run.

`selfplay.sandbox.process` starts it by its path with an empty environment; it never imports the
rest of the library. It holds no secret and decides nothing: it relays bytes and an exit status,
and the parent judges them. Hostile code runs only in its forks. A fork inherits the memory of the
warmed process, which therefore erases the program, arguments and result of each run before the
next one.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import types
from collections.abc import Callable
from time import monotonic, sleep  # the real ones: a run's clocks are replaced
from typing import Any, NoReturn

if __name__ == "__main__":
    # Started by path, this file does not know its package. Empty modules stand in for the packages,
    # so that only modules of this folder can be imported.
    for _name in ("selfplay", "selfplay.sandbox"):
        sys.modules[_name] = types.ModuleType(_name)
        sys.modules[_name].__path__ = [os.path.dirname(os.path.abspath(__file__))]

from selfplay.sandbox import isolation, program, protocol, surroundings

CONTROL = 3  # replaced by the result pipe in every fork

# Modules that programs often use, imported before the fork to save time in each run.
_PRELOADED = """
    abc array bisect cmath collections collections.abc copy dataclasses datetime decimal enum
    fractions functools heapq itertools json keyword math numbers operator random re statistics
    string struct textwrap time types typing unicodedata zlib
"""


def _fill(view: memoryview) -> None:
    """Fill a buffer from the control socket; exit if the other side has closed it."""
    while view:
        received = os.readv(CONTROL, [view])
        if not received:
            os._exit(0)
        view = view[received:]


def _read(count: int) -> bytearray:
    data = bytearray(count)
    _fill(memoryview(data))
    return data


def _write(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _child(request: bytearray, writer: int, begin: Callable[[], None], characters: int) -> NoReturn:
    """Execute one run in its own process; its only output is the result pipe."""
    leave, write, pack = os._exit, _write, protocol.FRAME.pack
    memory = b"memory\n"
    out_of_memory = pack(protocol.FAILURE, len(memory)) + memory  # made before memory can run out
    try:
        os.dup2(writer, isolation.RESULT)
        os.closerange(isolation.RESULT + 1, isolation.MAX_DESCRIPTORS)
        begin()
        try:
            kind, text = protocol.VALUE, program.run(*_parts(request), characters)
        except BaseException as error:
            reason, detail = program.ending(error)
            kind, text = protocol.FAILURE, f"{reason}\n{detail}"
        data = text.encode("utf-8", "backslashreplace")
        write(isolation.RESULT, pack(kind, len(data)) + data)
    except MemoryError:
        with contextlib.suppress(BaseException):
            write(isolation.RESULT, out_of_memory)
    except BaseException:
        leave(1)
    finally:
        leave(0)


def _parts(request: bytearray) -> tuple[str, str, str]:
    """Return the program, the arguments and the entry's name."""
    first, second, _ = protocol.REQUEST.unpack_from(request)
    start = protocol.REQUEST.size
    texts = request[start : start + first], request[start + first :][:second]
    return texts[0].decode(), texts[1].decode(), request[start + first + second :].decode()


def _kill(pid: int, group: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)


def _supervise(
    request: bytearray, result: memoryview, settings: dict[str, Any], begin: Callable[[], None]
) -> None:
    """Fork one run, relay its result pipe within a size and time limit, and wait for its end."""
    kernel = settings["isolation"] == "kernel"
    reader, writer = os.pipe()
    deadline = monotonic() + settings["wall_seconds"]
    pid = os.fork()
    if pid == 0:
        if not kernel:
            os.setpgid(0, 0)
        _child(request, writer, begin, settings["output_characters"])
    request[:] = bytes(len(request))
    os.close(writer)
    size, flags = 0, 0
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    poller.register(CONTROL, 0)  # reports only that the other side has closed
    while not flags:
        remaining = deadline - monotonic()
        if remaining <= 0:
            flags = protocol.TIMED_OUT
            break
        events = poller.poll(remaining * 1000)
        if any(descriptor == CONTROL for descriptor, _ in events):
            _kill(pid, group=not kernel)
            os._exit(0)
        if events:
            received = os.readv(reader, [result[size:]])
            if not received:
                break
            size += received
            flags = protocol.OVERFLOWED if size == len(result) else 0
    os.close(reader)
    # The process may have closed the pipe and still be alive.
    pause = 0.00002
    while not flags:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            break
        if monotonic() > deadline:
            flags = protocol.TIMED_OUT
        else:
            sleep(pause)
            pause = min(2 * pause, 0.005)
    if flags:
        _kill(pid, group=not kernel)
        _, status, usage = os.wait4(pid, 0)
    elif not kernel:
        with contextlib.suppress(PermissionError):  # processes that the run started
            _kill(pid, group=True)
    kept = 0 if flags else size
    seconds = usage.ru_utime + usage.ru_stime
    _write(CONTROL, protocol.REPLY.pack(status, flags, seconds, kept))
    _write(CONTROL, result[:kept])
    result[:size] = bytes(size)


def _probe(confine: Callable[[], None]) -> None:
    """Check that a confined process is killed by a forbidden system call."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            confine()
            os.setpgid(0, 0)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGSYS:
        raise isolation.IsolationFailure("seccomp filter")


def _import(names: list[str], paths: list[str]) -> list[str]:
    """Import packages; return the folders of all packages below `paths` that are loaded then."""
    sys.path.extend(paths)  # modules that are imported later, in runs, are found too
    for name in names:
        importlib.import_module(name)
    homes = [home for module in list(sys.modules.values()) for home in _homes(module)]
    return sorted({home for home in homes if os.path.dirname(home) in paths})


def _homes(module: types.ModuleType) -> list[str]:
    """Return the absolute folders of a package; [] for a module without a folder."""
    return [os.path.abspath(home) for home in getattr(module, "__path__", [])]


def _warm(lane: surroundings.Surroundings, names: list[str], paths: list[str]) -> list[str]:
    """Import what programs may need; return the folders of the packages `names`."""
    sys.dont_write_bytecode = True
    # `random` would seed itself again in every fork, which costs more than most programs. Its
    # state differs between the lanes, so random results are still detected.
    register, os.register_at_fork = os.register_at_fork, lambda **hooks: None
    # Before the clocks and `_datetime` are replaced, because modules in C may need the real ones.
    folders = _import(names, paths) if names else []
    lane.replace()
    for name in _PRELOADED.split():
        with contextlib.suppress(ImportError):  # some interpreters are built without it
            importlib.import_module(name)
    os.register_at_fork = register
    for name in [name for name in sys.modules if name.partition(".")[0] == "selfplay"]:
        del sys.modules[name]  # a program must not find these modules
    os.environ.clear()
    sys.modules["posix"].environ.clear()  # a second copy, which contains the hash seed
    sys.argv[:] = [""]
    # A program's signal handlers must not depend on the parent process.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGPROF, signal.SIGXCPU, signal.SIGABRT, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    return folders


def main() -> None:
    """Isolate this process, then serve requests until the control socket closes."""
    descriptor = int(sys.argv[1])
    if descriptor != CONTROL:
        os.dup2(descriptor, CONTROL)
        os.close(descriptor)
    os.closerange(CONTROL + 1, 1024)
    settings = json.loads(_read(int.from_bytes(_read(4), "little")))
    rules = bytes.fromhex(settings["filter"])
    lane = surroundings.Surroundings(int(os.environ["PYTHONHASHSEED"]))
    folders = isolation.python_folders()
    try:
        folders += _warm(lane, settings["packages"], settings["paths"])
        if settings["isolation"] == "kernel":
            isolation.enter(pivot_root=settings["pivot_root"], control=CONTROL, folders=folders)
        else:
            isolation.close_standard_streams()
        isolation.limit_files()
        confine = isolation.confiner(
            rules=rules,
            memory_bytes=settings["memory_mb"] << 20,
            cpu_seconds=settings["cpu_seconds"],
        )
        if rules:
            _probe(confine)
    except (isolation.IsolationFailure, OSError, ImportError) as error:
        _write(CONTROL, f"{error}\n".encode())
        os._exit(1)
    _write(CONTROL, b"\n")
    # A character takes at most ten bytes, as an escape of a code point.
    most = protocol.FRAME.size + 10 * settings["output_characters"] + 1024
    result = memoryview(bytearray(most + 1))

    def begin() -> None:
        confine()
        lane.begin()

    gc.collect()
    gc.freeze()
    while True:
        header = _read(protocol.REQUEST.size)
        # Read in place, because a copy would stay in memory.
        request = bytearray(len(header) + sum(protocol.REQUEST.unpack(header)))
        request[: len(header)] = header
        _fill(memoryview(request)[len(header) :])
        _supervise(request, result, settings, begin)


if __name__ == "__main__":
    main()
