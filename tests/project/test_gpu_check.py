"""Tests of the check of a machine with GPUs: its page, and its sections for a CPU."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.repository import ROOT
from tests.helpers.scripts import script

sys.path.insert(0, str(ROOT / "scripts"))  # scripts import each other


check: Any = script("gpu_check_page")
PACKAGES = {"vllm": False, "ray": True}


def section(code: str, **settings: Any) -> Any:
    """Return a section that runs a few lines of Python."""
    named = {"name": "fake", "title": "A fake", "remedy": "Mend the fake.", "limit": 30.0}
    command = [sys.executable, "-c", code]
    return check.Section(**{**named, "command": command, **settings})


def outcome(code: str, **settings: Any) -> Any:
    return check.run(section(code, **settings), gpus=0, packages=PACKAGES)


GOOD = 'print(\'RESULT [["speed", "3 GB/s", true], ["a | b", "x", null]]\')'


def test_a_section_that_passes_shows_its_rows() -> None:
    found = outcome(GOOD)
    assert (found.state, found.reason) == ("passed", "")
    assert found.rows == [("speed", "3 GB/s", True), ("a | b", "x", None)] and not found.output
    page = check.page([found])
    assert "| speed | 3 GB/s | ok |" in page and "a \\| b" in page and "Mend" not in page


FAILING = {
    "raise SystemExit('no such kernel')": "it ended with exit code 1",
    f"{GOOD}; import os; os.kill(os.getpid(), 11)": "it ended with signal SIGSEGV",
    "pass": "it printed no result",
    "print('RESULT nonsense')": "it printed no result",
    "print('RESULT []')": "it printed no result",
    "print('RESULT [[1]]')": "it printed no result",
    'print(\'RESULT [["peak", "9 GB", false]]\')': "not as it should be: peak",
}


@pytest.mark.parametrize("code", FAILING)
def test_a_section_that_fails_says_why_and_what_to_do(code: str) -> None:
    found = outcome(code)
    assert (found.state, found.reason) == ("failed", FAILING[code])
    page = check.page([found])
    assert f"**Failed**: {FAILING[code]}." in page and "What to do: Mend the fake." in page


def test_a_crash_shows_the_end_of_the_output() -> None:
    found = outcome("print('x' * 5000); [print(n) for n in range(99)]; 1 / 0")
    assert found.output[-1].startswith("ZeroDivisionError") and len(found.output) == check.KEPT
    assert "    ZeroDivisionError" in check.page([found])


def test_a_section_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    place = tmp_path / "child"
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(place)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    began = time.monotonic()
    found = outcome(code, limit=3.0)
    assert time.monotonic() - began < 20
    assert (found.state, found.reason) == ("failed", "it took longer than its limit of 3 s")
    child = Path("/proc", place.read_text(), "stat")
    deadline = time.monotonic() + 10
    while child.exists() and child.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_a_section_that_cannot_run_here_says_what_it_needs() -> None:
    found = outcome(GOOD, gpus=2)
    assert (found.state, found.reason) == ("skipped", "it needs 2 GPU(s), and torch sees 0")
    found = outcome(GOOD, packages=["ray", "vllm"])
    assert found.state == "skipped" and "the package vllm is not installed" in found.reason


TESTS = {
    "print('3 passed in 1s')": ("passed", ""),
    "print('3 passed in 1s'); print('CUDA Error: invalid argument')": ("passed", ""),
    "print('16 skipped in 1s')": ("failed", "every test was skipped"),
    "print('1 failed, 2 passed in 1s'); raise SystemExit(1)": (
        "failed",
        "pytest ended with exit code 1",
    ),
    "print('no tests ran'); raise SystemExit(5)": ("failed", "pytest selected no test"),
}


@pytest.mark.parametrize("code", TESTS)
def test_a_run_of_tests_is_judged_by_its_last_line(code: str) -> None:
    found = outcome(code, tests=True)
    assert (found.state, found.reason) == TESTS[code]


def test_one_failure_does_not_end_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "runs/page.md"
    chosen = [
        section("import os; os._exit(3)", name="first"),
        section(f"assert 'not yet run' in open({str(place)!r}).read(); {GOOD}", name="second"),
        section(GOOD, name="third", gpus=1),
    ]
    assert check.check(chosen, place=place, gpus=0, packages=PACKAGES) == 1
    page = place.read_text()
    states = [line.split("|")[2].strip(" *") for line in page.splitlines() if "(`" in line]
    assert states == ["failed", "passed", "skipped"]
    assert "first failed" in capsys.readouterr().out
    assert check.check(chosen[2:], place=place, gpus=0, packages=PACKAGES) == 0


def test_every_section_has_an_own_name_and_advice() -> None:
    known = check.sections()
    names = [each.name for each in known]
    assert len(set(names)) == len(names) >= 10
    inner = script("gpu_check_sections").SECTIONS
    for each in known:
        assert each.remedy.endswith(".") and each.limit > 0
        assert each.tests or each.command[-1] == each.name in inner


@pytest.mark.slow
def test_the_sections_for_a_cpu(tmp_path: Path) -> None:
    place = tmp_path / "page.md"
    ran = subprocess.run(
        [ROOT / "scripts/gpu_check", "--page", place],
        env={**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    page = place.read_text()
    assert "it needs 1 GPU(s), and torch sees 0" in page
    for name in (
        "machine",
        "speed",
        "kernels",
        "weights",
        "updates",
        "throughput",
        "sampling",
        "packing",
        "one_gpu",
        "split",
        "colocated",
        "resume",
    ):
        assert f"{name}: passed" in ran.stdout
    for name in ("vllm_v1", "vllm_v2", "shards", "tests"):
        assert f"{name}: skipped" in ran.stdout
