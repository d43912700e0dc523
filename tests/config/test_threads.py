"""Threads of torch: how they wait and how many there are."""

import os
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

from selfplay.config import threads
from selfplay.config.threads import SPIN_COUNT, SPIN_VARIABLES, cgroup_quota, default_count
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


def test_the_library_alone_leaves_spinning_as_it_is() -> None:
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
    """A file of memberships, and the files of control groups below a mount point."""
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
