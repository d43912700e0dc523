"""Test of the advice that an interrupted training prints."""

from pathlib import Path

import pytest

from selfplay.cli.stage import Stage
from selfplay.run.directory import Run

AGAIN = "selfplay train resume=runs/a"


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (None, f"there is no checkpoint yet, so {AGAIN} begins the run again"),
        (2, f"{AGAIN} continues after the checkpoint of step 2"),
        (3, f"all steps are done; {AGAIN} makes what is left, such as the report"),
    ],
)
def test_the_advice_depends_on_the_newest_checkpoint(
    step: int | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "newest_checkpoint", lambda self: step)
    run = object.__new__(Run)
    run.folder = Path("runs/a")
    stage = Stage(lambda: run, {"run": {"steps": 3}})
    stage.run = run
    assert stage._how_to_continue() == words
