"""Kernel isolation of the warmed process and of the runs that it forks.

Loaded by path inside the warmed process, so it imports nothing but the standard library. `enter`
is called once per warmed process, `confine` once per run, in the run's own process.

After `enter` there is: one user without capabilities, no other process in sight, no network, and a
root file system that holds only Python's own library, read-only. After `confine` there is also a
list of the system calls that remain, and caps on memory, CPU time, files and processes.

The system calls that a sandboxed program may make: everything else kills it.

Built once, outside, with libseccomp (through `pyseccomp`) and handed to the warmed processes as
a finished BPF program, so that a run pays for one system call and not for building it.
"""

import ctypes
import errno
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache

# Memory, reading files (the root file system decides which), the clock, and leaving. Nothing that
# makes a process, a thread, a socket, a signal, or writes anywhere but to an open descriptor.
_ALLOWED = """
    brk mmap munmap mprotect mremap madvise
    read readv pread64 write writev close close_range lseek fstat newfstatat stat lstat statx
    access faccessat faccessat2 readlink readlinkat getdents64 getcwd
    clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time
    poll ppoll select pselect6 futex sched_yield sched_getaffinity getrandom
    getppid getuid geteuid getgid getegid uname getrlimit
    rt_sigprocmask rt_sigreturn restart_syscall exit exit_group
"""

# Harmless questions that library code asks while it is imported: they fail instead of killing.
# Without an error number the answer is 0: every run has the same process number.
_FAILING = {
    "getpid": 0,
    "gettid": 0,
    "getrusage": errno.ENOSYS,  # these two show how busy the machine is
    "sysinfo": errno.ENOSYS,
    "epoll_create": errno.EPERM,
    "epoll_create1": errno.EPERM,
    "ioctl": errno.ENOTTY,
    "statfs": errno.ENOSYS,
    "fstatfs": errno.ENOSYS,
    "membarrier": errno.ENOSYS,
    "rseq": errno.ENOSYS,
}

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0o20000000  # tmpfile
_DESCRIPTOR_QUESTIONS = (1, 2, 3)  # F_GETFD, F_SETFD, F_GETFL
_ABORT = 6


class SeccompMissingError(RuntimeError):
    """libseccomp or its binding is not installed; the message is one line."""


@cache
def system_call_filter() -> tuple[bytes, int]:
    """The BPF program and the number of the pivot_root system call on this machine.

    Raises `SeccompMissingError` when libseccomp cannot be loaded.
    """
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError) as error:
        raise SeccompMissingError(
            f"libseccomp ({error}; install libseccomp2 and pip install pyseccomp)"
        ) from error
    Arg = pyseccomp.Arg
    rules = pyseccomp.SyscallFilter(pyseccomp.KILL_PROCESS)
    rules.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.KILL_PROCESS)

    def add(action: int, name: str, *conditions: pyseccomp.Arg) -> None:
        number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
        if number >= 0:  # negative: this architecture has no such call
            rules.add_rule(action, number, *conditions)

    for name in _ALLOWED.split():
        add(pyseccomp.ALLOW, name)
    for name, code in _FAILING.items():
        add(pyseccomp.ERRNO(code), name)
    add(pyseccomp.ALLOW, "open", Arg(1, pyseccomp.MASKED_EQ, _WRITING, 0))
    add(pyseccomp.ALLOW, "openat", Arg(2, pyseccomp.MASKED_EQ, _WRITING, 0))
    # The C library looks for a name service before it falls back to files that are not there.
    add(pyseccomp.ERRNO(errno.EACCES), "socket", Arg(0, pyseccomp.EQ, socket.AF_UNIX))
    for question in _DESCRIPTOR_QUESTIONS:
        add(pyseccomp.ALLOW, "fcntl", Arg(1, pyseccomp.EQ, question))
    # Asking for limits and handlers, never setting them.
    add(pyseccomp.ALLOW, "prlimit64", Arg(0, pyseccomp.EQ, 0), Arg(2, pyseccomp.EQ, 0))
    add(pyseccomp.ALLOW, "rt_sigaction", Arg(1, pyseccomp.EQ, 0))
    # abort() of a crashing interpreter: its signal reaches no process, as the process number is not
    # known. It then restores the handler, and at last ends the process by an invalid instruction.
    add(pyseccomp.ALLOW, "tgkill", Arg(2, pyseccomp.EQ, _ABORT))
    add(pyseccomp.ALLOW, "rt_sigaction", Arg(0, pyseccomp.EQ, _ABORT))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read(), pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, "pivot_root")


NOBODY = 65534
RESULT = 3  # the one descriptor of a run, besides three to /dev/null
MAX_DESCRIPTORS = 64

_NEW_MOUNTS, _NEW_UTS, _NEW_IPC = 0x00020000, 0x04000000, 0x08000000
_NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_NAMESPACES = _NEW_MOUNTS | _NEW_UTS | _NEW_IPC | _NEW_PROCESSES | _NEW_NETWORK

_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXECUTION = 1, 2, 4, 8
_REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 32, 4096, 16384, 1 << 18
_DETACH = 2
# The new root is built over /proc: it always exists, is of no use afterwards, and never holds
# the library that has to be reachable while the root is being built.
_SCAFFOLD = "/proc"

_SET_DEATH_SIGNAL, _SET_DUMPABLE, _DROP_BOUND = 1, 4, 24
_SET_SECCOMP, _SECCOMP_FILTER, _SET_NO_NEW_PRIVILEGES = 22, 2, 38
_AMBIENT, _AMBIENT_CLEAR = 47, 4
_CAPABILITY_VERSION = 0x20080522


class IsolationFailure(RuntimeError):
    """The kernel refused a part of the isolation; the message says which, in one line."""


class _Program(ctypes.Structure):
    """`struct sock_fprog`: a BPF program and its length in instructions of 8 bytes."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise IsolationFailure(f"{what} ({errno.errorcode.get(code, code)}: {os.strerror(code)})")


def _control(option: int, value: int, what: str) -> None:
    _check(_library().prctl(option, ctypes.c_ulong(value), 0, 0, 0), what)


def enter(*, pivot_root: int, control: int) -> None:
    """Move into fresh namespaces and give up every right; returns in a new, inner process.

    pivot_root: number of that system call here. control: descriptor that only the inner process
    keeps. The process that called stays outside as a mere handle: killing it kills the inner one,
    and with it everything that runs in its namespaces. Raises `IsolationFailure`.
    """
    user, group = os.geteuid(), os.getegid()
    privileged = user == 0 and _library().unshare(_NAMESPACES) == 0
    if not privileged:
        _check(
            _library().unshare(_NEW_USER | _NAMESPACES),
            "user, mount, process and network namespaces",
        )
        _map_user(user, group)
    # Opened before the fork: the inner process swaps the root of both, sooner or later.
    null = os.open("/dev/null", os.O_RDWR)
    inner = os.fork()
    if inner:
        os.close(control)
        os.dup2(null, 2)  # so that the parent sees the end of our standard error
        os._exit(0 if os.waitpid(inner, 0)[1] == 0 else 1)
    os.close(null)
    _silence()
    _build_root(pivot_root)
    if privileged:
        os.setgroups([])
    _drop_rights(privileged)
    _control(_SET_DEATH_SIGNAL, signal.SIGKILL, "a death signal")


def _map_user(user: int, group: int) -> None:
    # Nobody inside too: an id of 0 would regain capabilities if anything were ever executed.
    try:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{NOBODY} {user} 1"),
            ("gid_map", f"{NOBODY} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    except OSError as error:
        raise IsolationFailure(f"user namespaces ({error.strerror} at {error.filename})") from error


def _silence() -> None:
    reading, writing = os.open("/dev/null", os.O_RDONLY), os.open("/dev/null", os.O_WRONLY)
    for descriptor, source in ((0, reading), (1, writing), (2, writing)):
        os.dup2(source, descriptor)
    os.close(reading)
    os.close(writing)


def silence() -> None:
    """Point standard input, output and error at nothing."""
    _silence()


def library_folders() -> list[str]:
    """The folders of Python's own library; none lies inside another one of them."""
    folders: list[str] = []
    for path in sorted(os.path.abspath(path) for path in sys.path if os.path.isdir(path)):
        if not any(path.startswith(folder + "/") for folder in folders):
            folders.append(path)
    return folders


def _build_root(pivot_root: int) -> None:
    libc = _library()

    def mount(source: str, target: str, kind: str, flags: int, options: str, what: str) -> None:
        texts = [os.fsencode(text) if text else None for text in (source, target, kind)]
        _check(
            libc.mount(*texts, ctypes.c_ulong(flags), options.encode() or None),
            f"mounts: {what}",
        )

    mount("none", "/", "", _RECURSIVE | _PRIVATE, "", "private propagation")
    mount("none", _SCAFFOLD, "tmpfs", _NO_SUID | _NO_DEVICES, "mode=755,size=64k", "a new root")
    os.umask(0o022)
    for folder in library_folders():
        target = _SCAFFOLD + folder
        os.makedirs(target, exist_ok=True)
        mount(os.path.realpath(folder), target, "", _BIND | _RECURSIVE, "", f"binding {folder}")
        # The kernel lets no one drop a flag of the mount that is bound, so all are repeated.
        kept = os.statvfs(target).f_flag & (_NO_SUID | _NO_DEVICES | _NO_EXECUTION)
        flags = _BIND | _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEVICES | kept
        mount("none", target, "", flags, "", f"making {folder} read-only")
        for name in ("site-packages", "dist-packages"):
            if os.path.isdir(f"{target}/{name}"):
                flags = _READ_ONLY | _NO_SUID | _NO_DEVICES
                mount("none", f"{target}/{name}", "tmpfs", flags, "mode=755", f"hiding {name}")
    os.chdir(_SCAFFOLD)
    _check(libc.syscall(pivot_root, b".", b"."), "mounts: pivot_root")
    _check(libc.umount2(b".", _DETACH), "mounts: leaving the old root")
    os.chdir("/")
    flags = _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | _NO_DEVICES
    mount("none", "/", "", flags, "", "a read-only root")
    _check(libc.sethostname(b"sandbox", 7), "a host name")


def _drop_rights(privileged: bool) -> None:
    libc = _library()
    _control(_SET_NO_NEW_PRIVILEGES, 1, "no_new_privs")
    capability = 0
    while libc.prctl(_DROP_BOUND, ctypes.c_ulong(capability), 0, 0, 0) == 0:
        capability += 1
    if ctypes.get_errno() != errno.EINVAL or capability == 0:  # EINVAL: past the last one
        raise IsolationFailure("dropping capabilities")
    libc.prctl(_AMBIENT, ctypes.c_ulong(_AMBIENT_CLEAR), 0, 0, 0)  # unknown to old kernels
    if privileged:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _check(libc.capset(header, (ctypes.c_uint32 * 6)()), "dropping capabilities")
    # No core dumps: the host's handler of them would run for every killed program.
    _control(_SET_DUMPABLE, 0, "no core dumps")


def confiner(*, rules: bytes, memory_bytes: int, cpu_seconds: float) -> Callable[[], None]:
    """A function that confines the calling process for one run; built once, cheap to call.

    rules: the seccomp BPF program, empty for none. memory_bytes: cap on the address space.
    cpu_seconds: SIGPROF ends the run there, SIGKILL at the next full second.
    """
    load = _loader(rules) if rules else None
    whole_seconds = int(cpu_seconds) + 1
    limits: Sequence[tuple[int, int]] = (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, whole_seconds),
        (resource.RLIMIT_NPROC, 0),
    )

    def confine() -> None:
        for limit, value in limits:
            resource.setrlimit(limit, (value, value))
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        if load is not None and load() != 0:
            raise IsolationFailure("seccomp filter")

    return confine


def _loader(rules: bytes) -> Callable[[], int]:
    prctl = _library().prctl
    prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)
    instructions = ctypes.create_string_buffer(rules, len(rules))
    structure = _Program(len(rules) // 8, ctypes.addressof(instructions))

    def load(keep: object = instructions) -> int:
        return prctl(_SET_SECCOMP, _SECCOMP_FILTER, ctypes.addressof(structure), 0, 0)

    return load


def limit_files() -> None:
    """Cap what never varies by run: no writing to files, few descriptors, no core dumps."""
    for limit, value in (
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, MAX_DESCRIPTORS),
    ):
        resource.setrlimit(limit, (value, value))
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    stack = 8 * 2**20
    if hard == resource.RLIM_INFINITY or hard > stack:
        resource.setrlimit(resource.RLIMIT_STACK, (stack, stack))
    elif soft > hard:
        resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))
