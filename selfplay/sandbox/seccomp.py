"""The filter of system calls, which kills a sandboxed program that makes any other call.

The parent builds it once with libseccomp (through `pyseccomp`) and sends it to the warmed processes
as a finished BPF program, so that a run pays for one system call and not for building the filter.
"""

import errno
import os
import socket
import tempfile
from functools import cache

# Memory, reading of files (limited by the root file system), the clock, and exit. Nothing that
# makes a process, a thread, a socket or a signal, or that writes except to an open descriptor.
_ALLOWED = """
    brk mmap munmap mprotect mremap madvise
    read readv pread64 write writev close close_range lseek fstat newfstatat stat lstat statx
    access faccessat faccessat2 readlink readlinkat getdents64 getcwd
    clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time
    poll ppoll select pselect6 futex sched_yield sched_getaffinity getrandom
    getppid getuid geteuid getgid getegid uname getrlimit
    rt_sigprocmask rt_sigreturn restart_syscall exit exit_group
"""

# Harmless calls that library code makes while it is imported: they fail and do not kill. A call
# with error number 0 returns 0, so every run has the same process number.
_FAILING = {
    "getpid": 0,
    "gettid": 0,
    "getrusage": errno.ENOSYS,  # this and the next show how busy the machine is
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
    """Raised if libseccomp or its binding is not installed; the message is one line."""


@cache
def system_call_filter() -> tuple[bytes, int]:
    """Return the BPF program and the number of the pivot_root system call on this machine.

    Raises SeccompMissingError if libseccomp cannot be loaded.
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
    # The C library looks for a name service before it looks for files, which do not exist here.
    add(pyseccomp.ERRNO(errno.EACCES), "socket", Arg(0, pyseccomp.EQ, socket.AF_UNIX))
    for question in _DESCRIPTOR_QUESTIONS:
        add(pyseccomp.ALLOW, "fcntl", Arg(1, pyseccomp.EQ, question))
    # Reading limits and handlers is allowed, setting them is not.
    add(pyseccomp.ALLOW, "prlimit64", Arg(0, pyseccomp.EQ, 0), Arg(2, pyseccomp.EQ, 0))
    add(pyseccomp.ALLOW, "rt_sigaction", Arg(1, pyseccomp.EQ, 0))
    # abort() of a crashing interpreter. Its signal reaches no process, because the process number
    # is not known. It then restores the handler and ends the process by an invalid instruction.
    add(pyseccomp.ALLOW, "tgkill", Arg(2, pyseccomp.EQ, _ABORT))
    add(pyseccomp.ALLOW, "rt_sigaction", Arg(0, pyseccomp.EQ, _ABORT))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read(), pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, "pivot_root")
