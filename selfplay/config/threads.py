"""Threads of torch: how long they spin while they wait, and how many there are by default.

This module loads no torch: its OpenMP library reads the environment when it is loaded.
"""

import os
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
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cgroup_quota(Path("/proc/self/cgroup"), CGROUPS)
    return max(1, ceil(min(allowed or 1, quota)))


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
