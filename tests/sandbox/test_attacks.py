"""Tests of attacks: each ends with its reason within the limits, and the executor continues."""

import os
import platform
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from selfplay.sandbox import Call, Executor, FailureReason
from tests.helpers.sandbox_attacks import attack, isolated

OWN_FILE = str(Path(__file__).resolve())


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with isolated(workers=1, wall_seconds=4.0, cpu_seconds=0.4, output_characters=2_000) as pool:
        yield pool


FORBIDDEN = {
    "fork": "import os\nreturn os.fork()",
    "fork bomb": "import os\nwhile True: os.fork()",
    "forkpty": "import os\nreturn os.forkpty()[0]",
    "caught fork": "import os\ntry:\n    os.fork()\nexcept BaseException:\n    pass\nreturn 1",
    "system": "import os\nreturn os.system('true')",
    "exec": "import os\nos.execv('/bin/sh', ['sh'])",
    "exec python": "import os, sys\nos.execv(sys.executable, ['python'])",
    "spawn": "import os\nreturn os.posix_spawn('/bin/true', ['true'], {})",
    "subprocess": "import subprocess\nreturn subprocess.run(['/bin/true']).returncode",
    "popen": "import os\nreturn os.popen('id').read()",
    "multiprocessing": (
        "import multiprocessing\nmultiprocessing.get_context('fork').Process(target=f).start()"
    ),
    "shared memory": (
        "from multiprocessing.shared_memory import SharedMemory\nSharedMemory(create=True, size=9)"
    ),
    "thread": "import threading\nthreading.Thread(target=print, daemon=True).start()\nreturn 1",
    "thread bomb": "import _thread\nwhile True: _thread.start_new_thread(f, ())",
    "executor": (
        "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor().submit(len, '')"
    ),
    "asyncio": "import asyncio\nasyncio.run(asyncio.sleep(0))\nreturn 1",
    "socket": "import socket\nsocket.socket()",
    "unix socket": "import socket\nsocket.socket(socket.AF_UNIX).connect('/run/x')",
    "socket pair": "import socket\nsocket.socketpair()",
    "name look-up": "import socket\nsocket.getaddrinfo('localhost', 1)",
    "url": "import urllib.request as u\nu.urlopen('http://127.0.0.1:1').read()",
    "pipe": "import os\nos.pipe()",
    "write a file": "open('/x', 'w').write('x')",
    "append to the library": "import os\nopen(os.__file__, 'a').write('x')",
    "update the library": "import os\nopen(os.__file__, 'r+').write('x')",
    "create": "import os\nos.open('/x', os.O_CREAT)",
    "truncate by opening": "import os\nos.open(os.__file__, os.O_TRUNC)",
    "temporary file": "import os\nos.open('/', 0o20200002)",
    "named temporary file": "import tempfile\ntempfile.NamedTemporaryFile()",
    "make a folder": "import os\nos.mkdir('/x')",
    "remove": "import os\nos.unlink(os.__file__)",
    "rename": "import os\nos.rename(os.__file__, '/x')",
    "link": "import os\nos.link(os.__file__, '/x')",
    "symbolic link": "import os\nos.symlink('/', '/x')",
    "change mode": "import os\nos.chmod(os.__file__, 0o777)",
    "change owner": "import os\nos.chown('/', 0, 0)",
    "memory file": "import os\nos.memfd_create('x')",
    "truncate": "import os\nos.truncate(os.__file__, 0)",
    "device": "import os\nos.mknod('/x')",
    "change folder": "import os\nos.chdir('/')",
    "change root": "import os\nos.chroot('/')",
    "kill all": "import os\nos.kill(-1, 9)",
    "kill the parent": "import os\nos.kill(os.getppid(), 9)",
    "kill the first process": "import os\nos.kill(1, 9)",
    "kill a group": "import os\nos.killpg(0, 9)",
    "stop itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "stop by raising": "import signal\nsignal.raise_signal(signal.SIGSTOP)",
    "descriptor of a process": "import os\nos.pidfd_open(1)",
    "wait for others": "import os\nos.waitpid(-1, 0)",
    "new session": "import os\nos.setsid()",
    "new group": "import os\nos.setpgid(0, 0)",
    "become root": "import os\nos.setuid(0)",
    "groups": "import os\nos.setgroups([0])",
    "raise a limit": "import resource as r\nr.setrlimit(r.RLIMIT_AS, (-1, -1))",
    "raise the limit of another": "import resource as r\nr.prlimit(1, r.RLIMIT_CPU, (1, 1))",
    "priority": "import os\nos.nice(-5)",
    "processors": "import os\nos.sched_setaffinity(0, {0})",
    "scheduler": "import os\nos.sched_setscheduler(0, 1, os.sched_param(99))",
    "handler": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "alarm": "import signal\nsignal.alarm(1)",
    "timer": "import signal\nsignal.setitimer(signal.ITIMER_PROF, 0)",
    "wait for a signal": "import signal\nsignal.pause()",
    "fault handler": "import faulthandler\nfaulthandler.dump_traceback_later(1)",
    "duplicate over the result": "import os\nos.dup2(1, 3)",
    "duplicate the result": "import os\nos.dup(3)",
    "duplicate by fcntl": "import fcntl\nfcntl.fcntl(3, fcntl.F_DUPFD, 9)",
    "signals from a descriptor": "import fcntl\nfcntl.fcntl(3, fcntl.F_SETOWN, 1)",
    "lock": "import fcntl\nfcntl.flock(0, fcntl.LOCK_EX)",
    "platform": "import platform\nreturn platform.platform()",
    "close all descriptors, then fork": "import os\nos.closerange(0, 99)\nos.fork()",
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_acting_on_the_system_is_forbidden(executor: Executor, name: str) -> None:
    outcome = attack(executor, FORBIDDEN[name])
    assert outcome.reason is FailureReason.FORBIDDEN, outcome


LIBC = """
def f():
    import ctypes
    libc = ctypes.CDLL(None)
    return libc.{}
"""


@pytest.mark.parametrize(
    "call",
    [
        "fork()",
        "ptrace(16, 1, 0, 0)",
        "unshare(0x10000000)",
        "setns(0, 0)",
        "mount(b'none', b'/', b'tmpfs', 0, 0)",
        "umount2(b'/', 2)",
        "process_vm_readv(1, 0, 0, 0, 0, 0)",
        "prctl(4, 1, 0, 0, 0)",
        "prctl(22, 2, 0, 0, 0)",
        "personality(0x0040000)",
        "kill(1, 9)",
        "syscall(1 << 20)",
        "syscall(425, 8, 0)",  # io_uring_setup
        "syscall(435, 0, 88)",  # clone3
        "syscall(434, 1, 0)",  # pidfd_open
        "syscall(438, 0, 0, 0)",  # pidfd_getfd
    ],
)
def test_system_calls_that_bypass_python_are_forbidden(executor: Executor, call: str) -> None:
    assert attack(executor, LIBC.format(call)).reason is FailureReason.FORBIDDEN


@pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code of x86-64")
@pytest.mark.parametrize(
    "code",
    [
        b"\xb8\x39\x00\x00\x00\x0f\x05\xc3",  # fork
        b"\xb8\x39\x00\x00\x40\x0f\x05\xc3",  # fork by the x32 numbering
        b"\xb8\x02\x00\x00\x00\xcd\x80\xc3",  # fork by the 32-bit entry
        b"\xb8\x3b\x00\x00\x00\x0f\x05\xc3",  # execve
        b"\xb8\x65\x00\x00\x00\x0f\x05\xc3",  # ptrace
    ],
)
def test_system_calls_of_machine_code_are_stopped_by_the_kernel(
    executor: Executor, code: bytes
) -> None:
    body = f"""
        import ctypes, mmap
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write({code!r})
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return ctypes.CFUNCTYPE(ctypes.c_long)(address)()
    """
    # A kernel without the 32-bit entry ends the process with SIGSEGV.
    assert attack(executor, body).reason in (FailureReason.FORBIDDEN, FailureReason.KILLED)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/etc/hostname",
        "/proc/self/environ",
        "/proc/self/maps",
        "/proc/self/mem",
        "/proc/1/environ",
        "/proc/self/cwd/../etc/passwd",
        "/proc/1/cwd/etc/passwd",
        "/proc/self/fd/3",
        "/sys/kernel/hostname",
        "/dev/null",
        "/dev/mem",
        os.path.join(os.path.expanduser("~"), ".bashrc"),
        "/bin/sh",
        "../../../../../../etc/passwd",
        OWN_FILE,
        os.path.dirname(OWN_FILE),
    ],
)
def test_files_are_out_of_reach(executor: Executor, path: str) -> None:
    outcome = attack(executor, f"return open({path!r}, 'rb').read(99)")
    assert outcome.reason is FailureReason.FORBIDDEN, outcome


def test_only_the_standard_library_is_visible(executor: Executor) -> None:
    body = """
        import os, sys
        library = [path for path in sys.path if os.path.isdir(path)]
        others = []
        for folder, _, files in os.walk("/"):
            if not any(folder.startswith(path) for path in library):
                others.extend(files)
        inside = [n for path in library for n in os.listdir(path) if n.endswith("-packages")]
        hidden = [n for path in library for d in inside if os.path.isdir(f"{path}/{d}")
                  for n in os.listdir(f"{path}/{d}")]
        return others, hidden, len(library) > 0
    """
    generous = Executor(workers=1, cpu_seconds=5.0, wall_seconds=20.0)
    with generous:
        assert attack(generous, body).value == "([], [], True)"


def test_there_is_no_environment_and_no_name_of_the_host(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "secret")
    body = "import os, sys\nreturn dict(os.environ), os.uname().nodename, sys.argv, os.getcwd()"
    assert attack(executor, body).value == "({}, 'sandbox', [''], '/')"


def test_user_group_and_parent_are_not_those_of_the_host(executor: Executor) -> None:
    body = "import os\nreturn os.getuid(), os.getgid(), os.getppid()"
    assert attack(executor, body).value == "(65534, 65534, 1)"


def test_the_library_may_be_imported(executor: Executor) -> None:
    body = """
        import asyncio, collections, ctypes, hashlib, json, math, multiprocessing, random
        import selectors, signal, socket, subprocess, tempfile, threading, uuid
        return hashlib.sha256(b"").hexdigest()[:4] + str(math.gcd(4, 6))
    """
    with Executor(workers=1, cpu_seconds=5.0, wall_seconds=20.0) as generous:
        assert attack(generous, body).value == "'e3b02'"


def test_attacks_do_not_disturb_their_neighbours(executor: Executor) -> None:
    bodies = list(FORBIDDEN.values())[::2]
    calls = []
    for number, body in enumerate(bodies):
        body = "def f(x):\n" + textwrap.indent(body, "    ")
        calls.append(Call(program=body, arguments=str(number)))
        calls.append(Call(program=f"def f(x): return [x, {number}]", arguments=str(number)))
    with Executor(workers=2, cache_size=0) as pool:
        outcomes = pool.run(calls, runs=2)
    for number in range(len(bodies)):
        assert outcomes[2 * number + 1].value == f"[{number}, {number}]"
