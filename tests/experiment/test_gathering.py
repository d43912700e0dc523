"""Test that failed episodes during the gathering of first tasks end the run with their error."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from markupsafe import escape

from arenas.absolute_zero.arena import AbsoluteZero
from selfplay.cli.main import main
from selfplay.run.sessions import ending
from selfplay.types import Action
from tests.helpers.command_process import SMOKE

pytestmark = pytest.mark.usefixtures("without_charts")


class Forgetful(AbsoluteZero):
    """A user's arena that raises a KeyError."""

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        raise KeyError("ledger")


def test_the_error_of_an_arena_is_not_blamed_on_the_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [
        f"arena._target_={__name__}.Forgetful",
        *("run.name=r", f"run.folder={tmp_path}", "run.threads=1"),
    ]
    assert main(["train", SMOKE, *overrides]) != 0
    error = capsys.readouterr().err
    assert "gathering first tasks, round 1: 100% of the episodes failed" in error
    assert "KeyError" in error and "ledger" in error and "set more steps for the warm" not in error
    line = error.splitlines()[-1].removeprefix("selfplay: ")
    assert line.startswith("gathering first tasks, round 1") and ending(tmp_path / "r") == line
    shown = Path(tmp_path / "r/report.html").read_text()
    assert f"The run stopped early: {escape(line)}" in shown
