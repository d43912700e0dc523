"""Tests of `scripts/program_depths.py`: the depth of demonstrated, proposed and given programs."""

from pathlib import Path
from typing import Any

import pytest

from arenas.absolute_zero.arena import solve_task
from arenas.absolute_zero.tiny_python import FOOTER, HEADER, Program
from selfplay.config import compose
from selfplay.run.directory import Run
from selfplay.types import Episode, Task
from tests.helpers.builders import episode, group, turn
from tests.helpers.scripts import script

depths = script("program_depths")


def source(lines: int) -> str:
    return HEADER + "    a = a[::-1]\n" * lines + FOOTER


def task(lines: int) -> Task:
    return solve_task("deduction", {"program": source(lines), "inputs": ["'abcd'"]})


def proposed(*lines: int) -> Episode:
    asked = Task(id="p", type="deduction", payload={"mode": "propose", "references": []})
    return episode(task=asked, created=tuple(map(task, lines)))


def test_proposals_are_separate_from_other_tasks() -> None:
    steps = [(1, [proposed(5), proposed(), episode(task=task(2))]), (2, [proposed(6, 3)])]
    assert depths.attempted(steps) == {
        "proposals": [[source(5)], [source(6), source(3)]],
        "other tasks": [[source(2)], []],
    }


def test_a_row_gives_the_largest_depth_and_the_fraction_of_deeper_programs() -> None:
    other = "def f(a):\n    return a * 2"
    steps = [[source(2), source(4)], [], *[[source(1)]] * 8, [source(6), other], [source(5)]]
    assert depths.row("name", steps, 4) == "| name | 13 | 1 | 6 | 16.7% | 1.40 → 1.90 |"


@pytest.mark.parametrize("longest", [2, 4])
def test_demonstrations_are_those_of_the_solvers_in_the_warm_start(longest: int) -> None:
    config: dict[str, Any] = compose.load(
        [
            "+experiment=tiny/growing_programs",
            f"warmstart.demonstrations.solved_lines=[1,{longest}]",
            "warmstart.steps=5",
            "warmstart.batch=100",
        ]
    )
    found = depths.demonstrated(config)
    assert 300 < len(found) < 400  # 0.7 of 500
    assert max(depths.depths(found)) == longest


def test_lines_of_work_are_counted_by_the_lines_of_the_program() -> None:
    def answer(lines: int) -> Any:
        work = "    a = a[::-1]\nabcd\n" * lines
        return turn("solver_0", text=f"<think>{work}</think><answer>'a = b'</answer>")

    made = episode(turn("proposer_0", text=source(5)), answer(4), answer(5), created=(task(5),))
    given = episode(answer(2), task=task(2))
    assert depths.worked([made, given, proposed(), proposed(3)]) == {5: [4, 5], 2: [2]}


def test_a_line_can_be_left_out_without_harm() -> None:
    program = Program.parse(
        "def f(a):\n    a = a[::-1]\n    a = a[::-1]\n    a = 'd' + a[1:]\n    return a"
    )
    assert depths.right_without(program, "abca", missing=1) == 0  # all three lines matter
    assert depths.right_without(program, "dbca", missing=1) == 1 / 3  # the letter is there already
    assert depths.right_without(program, "abca", missing=2) == 1 / 3  # the two reversals
    assert depths.right_without(program, "abca", missing=0) == 1


def test_the_tables_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = compose.load(["+experiment=tiny/growing_programs", "warmstart.steps=1"])
    run = Run.create(tmp_path / "run", config)
    solved = turn("solver_0", text="<think>    a = a[::-1]\nabcd\n</think>")
    run.record(1, {}, [group(episode(solved, task=task(3)))], [])
    depths.main([str(run.folder)])
    first, work, chances = capsys.readouterr().out.split("\n\n")
    assert (
        "demonstrations | 4" in first and "other tasks | 1 | 0 | 3 | 0.0% | 3.00 → 3.00 |" in first
    )
    assert "| 0%, 1.0 lines | - |" in work
    assert "| 6 lines, depth 6 | 0.0% |" in chances
