"""Kernel isolation of the warmed process and of the runs that it forks.

Loaded by path inside the warmed process, so it imports nothing but the standard library. `enter`
is called once per warmed process, `confine` once per run, in the run's own process.

After `enter`, the process has a user without capabilities, sees no other process and no network,
and has a read-only root file system with only Python's own library. After `confine`, it is also
limited to a list of system calls, and in memory, CPU time, files and processes.
"""

import ctypes
import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence

UNPRIVILEGED = 65534  # user and group id without rights
RESULT = 3  # the only descriptor of a run besides the three to /dev/null
MAX_DESCRIPTORS = 64

_NEW_MOUNTS, _NEW_UTS, _NEW_IPC = 0x00020000, 0x04000000, 0x08000000
_NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_NAMESPACES = _NEW_MOUNTS | _NEW_UTS | _NEW_IPC | _NEW_PROCESSES | _NEW_NETWORK

_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXECUTION = 1, 2, 4, 8
_REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 32, 4096, 16384, 1 << 18
_DETACH = 2
# The new root is built over /proc, which always exists, is not needed afterwards, and never
# contains the library that must be reachable while the root is being built.
_SCAFFOLD = "/proc"

_SET_DEATH_SIGNAL, _SET_DUMPABLE, _DROP_BOUND = 1, 4, 24
_SET_SECCOMP, _SECCOMP_FILTER, _SET_NO_NEW_PRIVILEGES = 22, 2, 38
_AMBIENT, _AMBIENT_CLEAR = 47, 4
_CAPABILITY_VERSION = 0x20080522


class IsolationFailure(RuntimeError):
    """Raised if the kernel refuses a part of the isolation; the one-line message says which."""


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


def enter(*, pivot_root: int, control: int, folders: Sequence[str]) -> None:
    """Move into fresh namespaces and give up all rights; returns in a new, inner process.

    The calling process stays outside as a handle: killing it kills the inner process, and with it
    all processes in its namespaces.

    Args:
        pivot_root: Number of that system call on this machine.
        control: Descriptor that only the inner process keeps.
        folders: Folders that stay readable. Folders inside one of them follow it.

    Raises IsolationFailure.
    """
    user, group = os.geteuid(), os.getegid()
    privileged = user == 0 and _library().unshare(_NAMESPACES) == 0
    if not privileged:
        _check(
            _library().unshare(_NEW_USER | _NAMESPACES),
            "user, mount, process and network namespaces",
        )
        _map_user(user, group)
    # Opened before the fork, because the inner process replaces the root of both processes.
    null = os.open("/dev/null", os.O_RDWR)
    inner = os.fork()
    if inner:
        os.close(control)
        os.dup2(null, 2)  # the parent then sees the end of standard error
        os._exit(0 if os.waitpid(inner, 0)[1] == 0 else 1)
    os.close(null)
    close_standard_streams()
    _build_root(pivot_root, folders)
    if privileged:
        os.setgroups([])
    _drop_rights(privileged)
    _control(_SET_DEATH_SIGNAL, signal.SIGKILL, "a death signal")


def _map_user(user: int, group: int) -> None:
    # The inner user is unprivileged too: id 0 would regain capabilities by executing a program.
    try:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{UNPRIVILEGED} {user} 1"),
            ("gid_map", f"{UNPRIVILEGED} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    except OSError as error:
        raise IsolationFailure(f"user namespaces ({error.strerror} at {error.filename})") from error


def close_standard_streams() -> None:
    """Connect standard input, output and error to /dev/null."""
    reading, writing = os.open("/dev/null", os.O_RDONLY), os.open("/dev/null", os.O_WRONLY)
    for descriptor, source in ((0, reading), (1, writing), (2, writing)):
        os.dup2(source, descriptor)
    os.close(reading)
    os.close(writing)


def python_folders() -> list[str]:
    """Return the folders of Python's own library; none is inside another one."""
    folders: list[str] = []
    for path in sorted(os.path.abspath(path) for path in sys.path if os.path.isdir(path)):
        if not any(path.startswith(folder + "/") for folder in folders):
            folders.append(path)
    return folders


def _build_root(pivot_root: int, folders: Sequence[str]) -> None:
    libc = _library()
    hidden: list[str] = []

    def mount(source: str, target: str, kind: str, flags: int, options: str, what: str) -> None:
        texts = [os.fsencode(text) if text else None for text in (source, target, kind)]
        _check(
            libc.mount(*texts, ctypes.c_ulong(flags), options.encode() or None),
            f"mounts: {what}",
        )

    mount("none", "/", "", _RECURSIVE | _PRIVATE, "", "private propagation")
    mount("none", _SCAFFOLD, "tmpfs", _NO_SUID | _NO_DEVICES, "mode=755,size=64k", "a new root")
    os.umask(0o022)
    for folder in folders:
        target = _SCAFFOLD + folder
        os.makedirs(target, exist_ok=True)
        mount(os.path.realpath(folder), target, "", _BIND | _RECURSIVE, "", f"binding {folder}")
        # The kernel does not allow a bind mount to drop flags, so all are repeated.
        kept = os.statvfs(target).f_flag & (_NO_SUID | _NO_DEVICES | _NO_EXECUTION)
        flags = _BIND | _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEVICES | kept
        mount("none", target, "", flags, "", f"making {folder} read-only")
        for name in ("site-packages", "dist-packages"):
            if os.path.isdir(f"{target}/{name}"):
                flags = _NO_SUID | _NO_DEVICES  # read-only at the end: packages may be put there
                mount("none", f"{target}/{name}", "tmpfs", flags, "mode=755", f"hiding {name}")
                hidden.append(f"{target}/{name}")
    for target in hidden:
        flags = _BIND | _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEVICES
        mount("none", target, "", flags, "", f"making {target} read-only")
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
    if ctypes.get_errno() != errno.EINVAL or capability == 0:  # EINVAL: after the last capability
        raise IsolationFailure("dropping capabilities")
    libc.prctl(_AMBIENT, ctypes.c_ulong(_AMBIENT_CLEAR), 0, 0, 0)  # unknown to old kernels
    if privileged:
        os.setresgid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
        os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _check(libc.capset(header, (ctypes.c_uint32 * 6)()), "dropping capabilities")
    # No core dumps: the host would handle one for every killed program.
    _control(_SET_DUMPABLE, 0, "no core dumps")


def confiner(*, rules: bytes, memory_bytes: int, cpu_seconds: float) -> Callable[[], None]:
    """Return a function that confines the calling process for one run, and is cheap to call.

    Args:
        rules: The seccomp BPF program; empty for none.
        memory_bytes: Maximum address space.
        cpu_seconds: CPU time at which SIGPROF ends the run; SIGKILL follows at the next full
            second.
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
    """Set the limits of all runs: no file writes or core dumps, few descriptors, 8 MiB of stack."""
    for limit, value in (
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, MAX_DESCRIPTORS),
    ):
        resource.setrlimit(limit, (value, value))
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    stack = 8 * 2**20
    if hard == resource.RLIM_INFINITY or hard > stack:
        resource.setrlimit(resource.RLIMIT_STACK, (stack, stack))
