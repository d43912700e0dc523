"""Tests of programs that grow by edits, and of their held-out programs."""

from collections import Counter
from itertools import islice
from random import Random

import pytest

from arenas.absolute_zero.edits import (
    DEPTHS,
    HELD_OUT,
    EditDemonstrations,
    deductions,
    edited,
    forbidden,
    held_out,
    held_out_depth,
    shown,
)
from arenas.absolute_zero.normal_form import normal_form
from arenas.absolute_zero.tiny_python import Domain, Program
from roles.proposer import Proposer
from roles.solver import Solver
from selfplay.config import compose
from selfplay.errors import ConfigError


def lines_of(source: str) -> int:
    return len(source.splitlines()) - 2


def test_held_out_tasks_are_fixed_different_and_have_the_lines_of_their_range() -> None:
    for low, high in HELD_OUT:
        tasks = held_out(lines=(low, high))
        assert tasks == held_out(lines=(low, high))
        lines = Counter(lines_of(task.payload["program"]) for task in tasks)
        assert set(lines) == set(range(low, high + 1)) and len(set(lines.values())) == 1
        assert {normal_form(task.payload["program"]) for task in tasks} <= forbidden()
    assert len(forbidden()) == 4 * 60 + 7 * 60


def test_held_out_tasks_by_depth_have_its_depth_and_are_neither_shown_nor_accepted() -> None:
    never = EditDemonstrations().exclude
    for lines, depth in DEPTHS:
        tasks = held_out_depth(lines=lines, depth=depth)
        assert tasks == held_out_depth(lines=lines, depth=depth)
        sources = {task.payload["program"] for task in tasks}
        programs = [Program.parse(source) for source in sources]
        found = [(len(each.lines), each.depth()) for each in programs if each is not None]
        assert found == [(lines, depth)] * 60
        assert all("'" in source for source in sources)  # each program writes a letter
        assert sources <= never and {normal_form(source) for source in sources} <= forbidden()


def test_the_evaluations_by_depth_are_the_pairs_that_training_excludes() -> None:
    config = compose.load(["+experiment=tiny/growing_programs", "evaluations=program_depths"])
    named = {
        (each["tasks"]["lines"], each["tasks"]["depth"]): name
        for name, each in config["evaluations"].items()
    }
    assert named == {pair: "lines_{}_depth_{}".format(*pair) for pair in DEPTHS}


@pytest.mark.parametrize(("lines", "depth", "count"), [(3, 4, 1), (1, 1, 41)])
def test_programs_of_a_depth_that_are_too_few_are_refused(
    lines: int, depth: int, count: int
) -> None:
    with pytest.raises(ConfigError, match="no further program of this depth"):
        deductions(lines=(lines, lines), depth=depth, count=count, seed=0)


def test_tasks_to_train_on_contain_no_held_out_program() -> None:
    tasks = shown(lines=(2, 3), count=3000, seed=0)
    assert len({task.payload["program"] for task in tasks}) == 3000
    assert not {normal_form(task.payload["program"]) for task in tasks} & forbidden()
    leaking = deductions(lines=(2, 3), count=3000, seed=0)
    assert {normal_form(task.payload["program"]) for task in leaking} & forbidden()


@pytest.mark.parametrize(("lines", "count"), [((1, 1), 44), ((0, 3), 4), ((1, 6), 3000)])
def test_more_programs_than_there_are_is_refused(lines: tuple[int, int], count: int) -> None:
    with pytest.raises(ConfigError, match="raise lines or lower count"):
        deductions(lines=lines, count=count, seed=0)
    assert len(deductions(lines=(1, 1), count=43, seed=0)) == 43


@pytest.mark.parametrize(
    ("lines", "expected"),
    [(5, {4: 1 / 3, 5: 1 / 3, 6: 1 / 3}), (1, {1: 2 / 3, 2: 1 / 3}), (9, {8: 1 / 3, 9: 2 / 3})],
)
def test_an_edit_adds_replaces_or_removes_one_line_equally_often(
    lines: int, expected: dict[int, float]
) -> None:
    rng, count = Random(3), 3000
    domain = Domain(operations=(lines, lines))
    found: Counter[int] = Counter()
    for _ in range(count):
        program = domain.program(rng)
        new = edited(program, rng, longest=9)
        found[len(new.lines)] += 1
        kept = Counter(program.lines) & Counter(new.lines)
        assert kept.total() >= min(lines, len(new.lines)) - 1
    assert set(found) == set(expected)
    for length, fraction in expected.items():  # 4 standard deviations of a binomial count
        assert (
            abs(found[length] - count * fraction) < 4 * (count * fraction * (1 - fraction)) ** 0.5
        )


def test_demonstrations_are_read_by_their_roles_and_show_no_held_out_program() -> None:
    source = EditDemonstrations(solved_lines=(1, 6), edited_lines=(1, 12), proposals=0.5)
    proposer, solver = Proposer(style="terse"), Solver(style="terse")
    lines: Counter[int] = Counter()
    held = {task.payload["program"] for low in HELD_OUT for task in held_out(lines=low)}
    for demonstration in islice(source.stream(Random(4), 0.0), 2000):
        fields = demonstration.observation.fields
        if demonstration.role == "proposer":
            assert "f(a)" in str(proposer.parse(demonstration.completion))
            assert len(fields["references"]) == 1
            continue
        assert solver.parse(demonstration.completion)
        assert fields["program"] not in held
        lines[lines_of(fields["program"])] += 1
    assert set(lines) == set(range(1, 7))
    assert all(1.4 < lines[n] / lines[n + 1] < 2.8 for n in (1, 2, 3))
