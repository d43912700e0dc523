"""Threads of torch: how long they spin while they wait, and how many there are by default.

This module loads no torch: its OpenMP library reads the environment when it is loaded.
"""

import os
import time
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path

SPIN_COUNT = 10_000
"""Number of rounds that a waiting thread spins before it sleeps; the default of libgomp is 300,000.
docs/performance.md has the measurements."""
SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Environment variables that say how the threads of libgomp wait."""
COUNT_VARIABLE = "OMP_NUM_THREADS"
"""Environment variable of the user's own number of threads."""
CGROUPS = Path("/sys/fs/cgroup")
"""Mount point of control groups, which limit the processor time of containers."""
STATISTICS = Path("/proc/stat")
"""Processor time of each core since the start of the system, in ticks of the clock."""
IDLE_COLUMNS = (3, 4, 8, 9)
"""Columns of `STATISTICS` to leave out: idle time, waits for disks, and the time of virtual
machines, which other columns contain too."""
NICE_COLUMN = 1
"""Column of `STATISTICS` with the time of processes that give way to others."""
SHORTEST = 0.2
"""Seconds in which the clock's ticks are too coarse to measure how busy cores are."""


def limit_spinning() -> None:
    """Let the threads of libgomp, which torch uses, sleep soon when they wait.

    A thread that spins takes processor time from the thread that it waits for, where other
    processes keep the machine busy. Call this before torch is imported. It changes nothing if the
    user has chosen how threads wait.
    """
    if not any(name in os.environ for name in SPIN_VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)


def default_count(own: int) -> int:
    """Return the number of threads of a process that `run.threads` does not limit.

    Args:
        own: The number that torch has chosen: OMP_NUM_THREADS, or the cores of the machine.
    """
    if COUNT_VARIABLE in os.environ:
        return own
    return max(1, min(own, cores()))


def cores() -> int:
    """Return the number of cores that this process may use, by its affinity and control groups."""
    quota = cgroup_quota(Path("/proc/self/cgroup"), CGROUPS)
    return max(1, ceil(min(len(_allowed()), quota)))


def _allowed() -> set[int]:
    """Return the numbers of the cores that this process may use, by its affinity."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


@dataclass(frozen=True)
class ProcessorTime:
    """Processor time until one moment, on the cores that this process may use."""

    moment: float
    """Seconds on a clock that only goes forward."""
    everyone: float
    """Seconds of all processes, without those that give way to others."""
    own: float
    """Seconds of this process, and of its child processes that ended."""

    @classmethod
    def now(cls) -> "ProcessorTime | None":
        """Return the time until now, or None on a system that does not report it."""
        try:
            ticks = used_ticks(STATISTICS.read_text(encoding="utf-8"), _allowed())
        except OSError:
            return None
        times = os.times()
        return cls(
            moment=time.monotonic(),
            everyone=ticks / os.sysconf("SC_CLK_TCK"),
            own=times.user + times.system + times.children_user + times.children_system,
        )


def used_ticks(statistics: str, allowed: set[int]) -> int:
    """Return the processor time, in ticks, that cores gave to processes that do not give way.

    Args:
        statistics: Text of /proc/stat.
        allowed: Numbers of the cores.
    """
    used = 0
    for line in statistics.splitlines():
        name, *columns = line.split()
        if name.removeprefix("cpu").isdecimal() and int(name.removeprefix("cpu")) in allowed:
            spent = [int(ticks) for ticks in columns]
            left_out = {NICE_COLUMN, *IDLE_COLUMNS}
            used += sum(ticks for column, ticks in enumerate(spent) if column not in left_out)
    return used


def count_on_busy_machine(since: ProcessorTime | None) -> int:
    """Return the number of threads for a machine on which other processes are busy.

    The result is 0 if all cores are free, if the user has set OMP_NUM_THREADS, or if `since` is
    None or less than `SHORTEST` ago.

    Threads wait for each other, and a thread without a core keeps all others waiting. So there is
    one thread for each core that other processes have left free since `since`, and at least one.

    Args:
        since: Processor time at the start of the command.
    """
    now = ProcessorTime.now()
    if COUNT_VARIABLE in os.environ or since is None or now is None:
        return 0
    seconds = now.moment - since.moment
    if seconds < SHORTEST:
        return 0
    others = max(0.0, (now.everyone - since.everyone) - (now.own - since.own)) / seconds
    free = max(1, round(len(_allowed()) - others))
    return free if free < cores() else 0


def cgroup_quota(membership: Path, mount: Path) -> float:
    """Return the number of cores whose time the control groups of a process allow, or inf.

    A group has at most what every group above it has. Inside a container, the group's own folder
    may be missing, and the mount point then holds the limit.

    Args:
        membership: A file with the groups of a process, such as /proc/self/cgroup.
        mount: Folder of all groups: of version 2 itself, or with a folder `cpu` of version 1.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:  # a system without control groups
        return inf
    quota = inf
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = mount / "cpu" if controllers else mount
        folder = top / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(top):
                quota = min(quota, _quota(group))
    return quota


def _quota(group: Path) -> float:
    """Return the number of cores that a group allows, or inf without a limit."""
    try:
        if (limit := group / "cpu.max").is_file():
            allowed, period = limit.read_text(encoding="utf-8").split()
        else:
            allowed = (group / "cpu.cfs_quota_us").read_text(encoding="utf-8")
            period = (group / "cpu.cfs_period_us").read_text(encoding="utf-8")
    except OSError:  # the root has no limit, and a container sees only a part of the groups
        return inf
    return inf if allowed.strip() in ("max", "-1") else int(allowed) / int(period)
