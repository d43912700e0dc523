"""Tests of `scripts/rare_lines.py`: the fraction of rare lines, and solve rates with them."""

from pathlib import Path

import pytest

from arenas.absolute_zero.arena import solve_task
from selfplay.config import compose
from selfplay.run.directory import Run
from selfplay.types import Episode
from tests.helpers.builders import episode, group
from tests.helpers.scripts import script

rare_lines = script("rare_lines")
RARE, COMMON = "a[::-1]", "a[1:] + 'c'"


def proposal(*lines: str, solved: float) -> Episode:
    body = "".join(f"    a = {line}\n" for line in lines)
    program = f"def f(a):\n{body}    return a"
    task = solve_task("deduction", {"program": program, "inputs": ["'abcd'"]})
    return episode(created=(task,), metrics={"solve_rate": solved})


def test_flags_name_the_rare_lines_of_a_program() -> None:
    program = proposal(COMMON, RARE, "a[:2] + a[:2]", solved=0).created[0].payload["program"]
    assert rare_lines.rare_flags(program) == [False, True, True]


def test_cells_give_rare_lines_and_the_solve_rates_without_and_with_one() -> None:
    played = rare_lines.played(
        [
            proposal(COMMON, COMMON, solved=1.0),
            proposal(COMMON, COMMON, solved=0.5),
            proposal(RARE, COMMON, solved=0.25),
            episode(metrics={"valid_proposal": 0.0}),  # an invalid proposal creates no task
        ]
    )
    assert rare_lines.cells(played) == ["16.7%", "75.0%", "25.0%"]
    assert rare_lines.cells([]) == ["-", "-", "-"]


def test_the_row_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.create(tmp_path / "run", compose.load(["+experiment=tiny/rare_lines"]))
    for step in range(1, 21):
        lines = (COMMON, COMMON) if step <= 10 else (RARE, COMMON)
        run.record(step, {}, [group(proposal(*lines, solved=step / 20))], [])
    rare_lines.main([str(run.folder)])
    row = capsys.readouterr().out.splitlines()[-1]
    assert row == f"| {run.folder} | 0.0% → 50.0% | 27.5% → - | - → 77.5% |"
    rare_lines.main([str(run.folder), "--until", "10"])
    row = capsys.readouterr().out.splitlines()[-1]
    assert row == f"| {run.folder} | 0.0% → 0.0% | 27.5% → 27.5% | - → - |"
