"""The system calls that a sandboxed program may make: everything else kills it.

Built once, outside, with libseccomp (through `pyseccomp`) and handed to the warmed processes as
a finished BPF program, so that a run pays for one system call and not for building it.
"""

import errno
import os
import socket
import tempfile
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
