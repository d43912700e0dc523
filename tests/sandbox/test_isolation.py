"""Tests of isolation: errors where it is missing, the weaker mode, an unprivileged user."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from selfplay.errors import ConfigError
from selfplay.sandbox import Executor, IsolationError
from selfplay.sandbox import process as worker_module
from selfplay.sandbox.seccomp import SeccompMissingError
from tests.helpers.repository import ROOT
from tests.helpers.sandbox_attacks import isolated, run


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with isolated(workers=1, wall_seconds=10.0, cpu_seconds=5.0) as pool:
        yield pool


def test_importing_loads_no_heavy_package() -> None:
    text = (
        "import sys, selfplay.sandbox\n"
        "print([m for m in ('torch', 'numpy', 'pyseccomp', 'pettingzoo') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def _refusal(pool: Executor) -> str:
    with pytest.raises(IsolationError) as caught:
        run(pool, "def f(): return 1")
    text = str(caught.value)
    assert "\n" not in text and 'isolation="rlimits"' in text
    return text


def test_a_missing_library_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> tuple[bytes, int]:
        raise SeccompMissingError("libseccomp (Unable to find libseccomp)")

    monkeypatch.setattr(worker_module, "system_call_filter", missing)
    assert "missing: libseccomp" in _refusal(Executor(workers=1))


def test_a_refusing_kernel_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, executor: Executor
) -> None:
    program, _ = worker_module.system_call_filter()
    monkeypatch.setattr(worker_module, "system_call_filter", lambda: (program, 1 << 20))
    assert "missing: mounts: pivot_root (ENOSYS" in _refusal(Executor(workers=1))


def test_a_filter_that_does_not_hold_is_found_out(
    monkeypatch: pytest.MonkeyPatch, executor: Executor
) -> None:
    _, pivot_root = worker_module.system_call_filter()
    allow_all = (0x06).to_bytes(2, "little") + bytes(2) + (0x7FFF0000).to_bytes(4, "little")
    monkeypatch.setattr(worker_module, "system_call_filter", lambda: (allow_all, pivot_root))
    assert "missing: seccomp filter" in _refusal(Executor(workers=1))


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "missing: Linux" in _refusal(Executor(workers=1))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("def f(): return 1", "ok"),
        ("def f(): return list(set('abcdefghijklmnop'))", "nondeterministic"),
        ("def f():\n    while True: pass", "timeout"),
        ("import time\ndef f(): time.sleep(9)", "stalled"),
        ("def f(): return len('x' * 10**10)", "memory"),
        ("import os\ndef f(): os._exit(0)", "exited"),
        (
            "import os\ndef f(): os.write(os.open(FILE, os.O_WRONLY | os.O_CREAT), b'x')",
            "forbidden",
        ),
        ("import os\ndef f(): os.write(3, b'x'); return 1", "not_plain_data"),
        ("import os\ndef f(): return os.environ['PATH']", "raised"),
    ],
)
def test_the_weaker_mode_keeps_the_limits(
    weak: Executor, program: str, reason: str, tmp_path: Path
) -> None:
    outcome = run(weak, f"FILE = {str(tmp_path / 'file')!r}\n{program}", runs=2)
    # On a busy machine the limit on wall-clock time may end a loop before that on processor time.
    ends = {"timeout", "stalled"} if reason == "timeout" else {reason}
    assert outcome.reason in ends, outcome


@pytest.fixture(scope="module")
def weak() -> Iterator[Executor]:
    with pytest.MonkeyPatch.context() as patch:  # the programs above are harmless
        patch.setattr(os, "geteuid", lambda: 1000)
        pool = Executor(workers=1, wall_seconds=4.0, cpu_seconds=1.0, isolation="rlimits")
    with pool:
        yield pool


def test_the_weaker_mode_is_refused_to_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError, match="'rlimits' is refused to root") as caught:
        Executor(isolation="rlimits")
    assert "\n" not in str(caught.value)


UNPRIVILEGED = """
from selfplay.sandbox import Call, Executor
import os
assert os.getuid() == 65534
bodies = ["return 1", "import os; os.fork()", "open('/etc/passwd')", "open('/x', 'w')"]
calls = [Call(program="def f():\\n " + body, arguments="") for body in bodies]
print(*[outcome.reason for outcome in Executor(workers=1).run(calls, runs=2)])
"""


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can change its user")
def test_an_unprivileged_user_is_isolated_too(executor: Executor, tmp_path: Path) -> None:
    import pyseccomp

    paths = os.pathsep.join([str(ROOT), str(Path(pyseccomp.__file__).parent)])
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            found = subprocess.run(
                [python, "-B", "-c", UNPRIVILEGED],
                user=65534,
                group=65534,
                extra_groups=[],
                cwd="/",
                env={"PYTHONPATH": paths},
                capture_output=True,
                text=True,
                timeout=600,
            )
        except (PermissionError, FileNotFoundError):
            continue
        if "No module named" in found.stderr or "StrEnum" in found.stderr:
            continue  # an older Python, or a checkout that only its owner can read
        if "missing: user" in found.stderr:
            continue  # this kernel grants user namespaces only to root
        assert found.stdout.split() == ["ok", "forbidden", "forbidden", "forbidden"], found.stderr
        return
    pytest.skip("no interpreter that an unprivileged user can run here")
