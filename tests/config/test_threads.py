"""Tests of torch's threads: their number, and how they wait."""

import os
import subprocess
import sys
import time
from math import inf
from pathlib import Path

import pytest

from selfplay.config import threads
from selfplay.config.threads import (
    SPIN_COUNT,
    SPIN_VARIABLES,
    ProcessorTime,
    cgroup_quota,
    count_on_busy_machine,
    default_count,
    used_ticks,
)
from selfplay.runtime.cluster import environment
from tests.helpers.repository import ROOT

COMMAND = """
import sys
import selfplay.cli.main
try:
    selfplay.cli.main.main(["--version"])
except SystemExit:
    assert "torch" not in sys.modules
import torch
"""
LIBRARY = """
import selfplay.config.run_config, selfplay.config.threads
import torch
"""


def shown(code: str, **given: str) -> str:
    """Return what libgomp prints of its settings when a program loads torch."""
    kept = {name: text for name, text in os.environ.items() if name not in SPIN_VARIABLES}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "OMP_DISPLAY_ENV": "VERBOSE", **given},
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert "OMP_WAIT_POLICY" in ran.stderr
    return ran.stderr


@pytest.mark.parametrize(
    ("given", "count"),
    [({}, SPIN_COUNT), ({"GOMP_SPINCOUNT": "7"}, 7), ({"OMP_WAIT_POLICY": "PASSIVE"}, 0)],
)
def test_a_command_limits_spinning_before_torch_unless_the_user_chose(
    given: dict[str, str], count: int
) -> None:
    assert f"GOMP_SPINCOUNT = '{count}'" in shown(COMMAND, **given)


def test_the_library_alone_does_not_limit_spinning() -> None:
    assert f"GOMP_SPINCOUNT = '{SPIN_COUNT}'" not in shown(LIBRARY)


def test_actors_wait_as_the_driver_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SPIN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert not set(SPIN_VARIABLES) & set(environment())
    threads.limit_spinning()
    assert environment()["GOMP_SPINCOUNT"] == str(SPIN_COUNT)
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    threads.limit_spinning()
    assert environment()["OMP_WAIT_POLICY"] == "ACTIVE"
    assert "GOMP_SPINCOUNT" not in environment()


def groups(folder: Path, membership: str, **files: str) -> tuple[Path, Path]:
    """Write a file of memberships, and files of control groups below a mount point."""
    member, mount = folder / "cgroup", folder / "mount"
    member.write_text(membership)
    for name, text in files.items():
        path = mount / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return member, mount


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/\n", {}, inf),
        ("0::/job\n", {"job/cpu.max": "max 100000\n"}, inf),
        ("0::/job\n", {"job/cpu.max": "250000 100000\n"}, 2.5),
        # The group above has less: 1 core.
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "50000 50000\n"}, 1.0),
        # A container that sees its own group as the mount point.
        ("0::/host/job\n", {"cpu.max": "300000 100000\n"}, 3.0),
        ("4:memory:/job\n0::/\n", {"job/cpu.max": "100000 100000\n"}, inf),
        (
            "2:cpu,cpuacct:/job\n0::/\n",
            {"cpu/job/cpu.cfs_quota_us": "150000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            1.5,
        ),
        (
            "2:cpu:/job\n",
            {"cpu/job/cpu.cfs_quota_us": "-1\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            inf,
        ),
    ],
)
def test_the_quota_of_control_groups(
    membership: str, files: dict[str, str], quota: float, tmp_path: Path
) -> None:
    assert cgroup_quota(*groups(tmp_path, membership, **files)) == quota


def test_a_system_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path / "nothing", tmp_path) == inf


@pytest.mark.parametrize(
    ("own", "affinity", "quota", "count"),
    [
        (8, 8, inf, 8),
        (8, 4, inf, 4),
        (8, 8, 2.5, 3),
        (8, 2, 2.5, 2),
        (8, 8, 0.2, 1),
        (4, 64, inf, 4),  # torch has chosen fewer than there are cores
    ],
)
def test_there_are_as_many_threads_as_torch_chose_and_cores_allow(
    own: int, affinity: int, quota: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(affinity)))
    monkeypatch.setattr(threads, "cgroup_quota", lambda membership, mount: quota)
    assert default_count(own) == count
    monkeypatch.setenv("OMP_NUM_THREADS", str(own))
    assert default_count(own) == own


def test_ticks_of_allowed_cores_without_idle_and_nice_time() -> None:
    statistics = """cpu  999 999 999 999 999 9 9 9 9 9
cpu0 100 50 20 5000 300 4 3 2 70 60
cpu1 1000 0 0 0 0 0 0 0 0 0
cpu11 1 0 0 7 0 0 0 0 0 0
intr 12 34
cpufreq 5
"""
    assert used_ticks(statistics, {0}) == 100 + 20 + 4 + 3 + 2
    assert used_ticks(statistics, {0, 11}) == 129 + 1
    assert used_ticks("", {0}) == 0


def at(moment: float, everyone: float, own: float) -> ProcessorTime:
    """Return the processor time of all processes and of this process at a moment."""
    return ProcessorTime(moment=moment, everyone=everyone, own=own)


@pytest.mark.parametrize(
    ("affinity", "quota", "now", "count"),
    [
        (8, inf, at(2.0, 2.0, 2.0), 0),  # alone
        (8, inf, at(2.0, 2.8, 2.0), 0),  # 0.4 cores: noise
        (8, inf, at(2.0, 8.0, 2.0), 5),
        (2, inf, at(2.0, 3.0, 1.0), 1),
        (2, inf, at(2.0, 4.0, 0.4), 1),  # nothing is left
        (2, inf, at(2.0, 1.0, 1.5), 0),  # clocks of different resolution
        (1, inf, at(2.0, 2.0, 1.0), 0),  # never less than one
        (64, 4.0, at(2.0, 20.0, 2.0), 0),  # 55 cores are free, of which 4 may be used
        (8, 6.0, at(2.0, 8.0, 2.0), 5),
        (8, inf, at(0.1, 0.4, 0.0), 0),  # too short to measure
    ],
)
def test_one_thread_for_each_core_that_others_leave_free(
    affinity: int, quota: float, now: ProcessorTime, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(affinity)))
    monkeypatch.setattr(threads, "cgroup_quota", lambda membership, mount: quota)
    monkeypatch.setattr(ProcessorTime, "now", lambda: now)
    assert count_on_busy_machine(at(0.0, 0.0, 0.0)) == count
    assert count_on_busy_machine(None) == 0
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert count_on_busy_machine(at(0.0, 0.0, 0.0)) == 0


def test_a_system_without_processor_times_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "STATISTICS", tmp_path / "nothing")
    assert ProcessorTime.now() is None
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert count_on_busy_machine(at(0.0, 0.0, 0.0)) == 0


def test_the_time_of_all_processes_includes_this_process() -> None:
    before = ProcessorTime.now()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    after = ProcessorTime.now()
    assert before and after
    assert after.own - before.own >= 0.28
    assert after.everyone - before.everyone >= 0.2 or os.nice(0) > 0
