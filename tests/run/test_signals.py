"""Tests of Ctrl-C and SIGTERM: the command ends with one line and a fixed exit code."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from selfplay.cli.main import main
from selfplay.errors import ConfigError
from selfplay.run import signals
from tests.helpers.repository import ROOT

SLOW = """
import time
time.sleep({seconds})
done = True
"""


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a module that takes 0.5 s to import."""
    (tmp_path / "slow_module.py").write_text(SLOW.format(seconds=0.5))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def restored() -> object:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_import_is_finished_before_the_interrupt(number: int, slow: Path) -> None:
    signals.install()
    threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
    with pytest.raises(KeyboardInterrupt):
        import slow_module  # noqa: F401

        time.sleep(5)
    assert sys.modules.pop("slow_module").done


class Closing:
    """An object that interrupts the process in its finalizer, which takes 0.3 s."""

    removed = False

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        Closing.removed = True


def test_an_interrupt_is_not_lost_in_a_finalizer() -> None:
    signals.install()
    with pytest.raises(KeyboardInterrupt):
        Closing()
        time.sleep(5)
    assert Closing.removed


def test_an_import_that_does_not_end_is_interrupted(
    slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "PATIENCE", 0.2)
    (slow / "endless_module.py").write_text("import time\nwhile True: time.sleep(0.01)\n")
    signals.install()
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        import endless_module  # noqa: F401


def test_outside_of_imports_the_interrupt_is_immediate_and_remembered() -> None:
    signals.install()
    signals.check()
    assert signals.reason() == ""
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    with pytest.raises(KeyboardInterrupt):
        signals.check()
    assert signals.reason() == "interrupted by SIGTERM"


def test_an_interrupt_that_became_another_error_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(error: type[BaseException]) -> Any:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            raise error("something") from None

    for error in (TypeError, ConfigError, OSError):
        monkeypatch.setattr("selfplay.cli.main._parser", lambda words, error=error: lost(error))
        assert main(["list"]) == signals.EXIT_CODE
        assert capsys.readouterr().err.startswith("selfplay: interrupted")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["hydra", "transformers"])
def test_a_command_that_still_imports_ends_in_one_line(
    module: str, number: int, tmp_path: Path
) -> None:
    # Python loads this file at its start; it announces and delays the import of `module`.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            print('importing', flush=True)\n"
        "            time.sleep(1)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, "-m", "selfplay", "train", "+experiment=tiny/smoke", "run.name=x"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(number)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == signals.EXIT_CODE, stderr
    assert len(stderr.splitlines()) == 1 and stderr.startswith("selfplay: interrupted"), stderr
