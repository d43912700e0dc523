"""Tests of programs with rare lines: their operations, held-out programs and demonstrations."""

from collections import Counter
from itertools import islice
from random import Random

import pytest

from arenas.absolute_zero.normal_form import normal_form
from arenas.absolute_zero.rare_lines import (
    COMMON,
    HELD_OUT,
    LENGTH,
    MOVED,
    RARE,
    RareDemonstrations,
    forbidden,
    held_out,
    shown,
)
from arenas.absolute_zero.tiny_python import Domain, Operation
from roles.proposer import Proposer
from roles.solver import Solver
from selfplay.config import compose
from selfplay.errors import ConfigError

SOURCES = {line.source.strip() for line in RARE}


def rare_lines(program: str) -> int:
    return sum(line.strip() in SOURCES for line in program.splitlines()[1:-1])


@pytest.mark.parametrize("operation", MOVED, ids=lambda operation: operation.name)
def test_an_operation_does_what_its_source_says_and_can_be_undone(operation: Operation) -> None:
    for word in Domain().words(Random(0), 50):
        result = operation.run(word, "")
        assert result == eval(operation.source, {"a": word})
        assert len(result) == len(word)
        assert operation.run(operation.undo(result), "") == result


def test_there_are_eight_rare_lines_and_forty_common_ones() -> None:
    assert (len(RARE), len(COMMON)) == (8, 40)
    assert not SOURCES & {line.source.strip() for line in COMMON}


def test_held_out_tasks_are_fixed_different_and_have_their_number_of_rare_lines() -> None:
    for number in HELD_OUT:
        tasks = held_out(rare_lines=number)
        assert tasks == held_out(rare_lines=number)
        programs = {task.payload["program"] for task in tasks}
        assert len(programs) == 60
        assert {rare_lines(program) for program in programs} == {number}
        assert {len(program.splitlines()) - 2 for program in programs} == {LENGTH}
        assert {normal_form(program) for program in programs} <= forbidden()
    with pytest.raises(ConfigError, match="rare_lines: 3 is not one of"):
        held_out(rare_lines=3)


def test_each_rare_line_is_in_at_least_two_held_out_programs() -> None:
    programs = " ".join(task.payload["program"] for task in held_out(rare_lines=1))
    counts = Counter({source: programs.count(source) for source in SOURCES})
    assert sum(counts.values()) == 60 and min(counts.values()) >= 2


def test_tasks_to_train_on_contain_no_held_out_program() -> None:
    tasks = shown(rare=0.5, count=800, seed=0)
    assert len({task.payload["program"] for task in tasks}) == 800
    assert not {normal_form(task.payload["program"]) for task in tasks} & forbidden()


def test_rare_lines_are_as_rare_in_demonstrations_as_the_settings_say() -> None:
    source = RareDemonstrations(solved_rare=0.06, proposed_rare=0.3, proposals=0.5)
    proposer, solver = Proposer(style="terse"), Solver(style="terse")
    held = {task.payload["program"] for number in HELD_OUT for task in held_out(rare_lines=number)}
    rare: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for demonstration in islice(source.stream(Random(4), 0.0), 4000):
        fields, role = demonstration.observation.fields, demonstration.role
        if role == "proposer":
            assert "f(a)" in str(proposer.parse(demonstration.completion))
            program = demonstration.completion.split("```python\n")[1].split("\n```")[0]
        else:
            assert solver.parse(demonstration.completion)
            program = str(fields["program"])
        assert program not in held
        rare[role] += rare_lines(program)
        lines[role] += LENGTH
    for role, fraction in {"solver": 0.06, "proposer": 0.3}.items():  # 4 standard deviations
        error = (fraction * (1 - fraction) / lines[role]) ** 0.5
        assert abs(rare[role] / lines[role] - fraction) < 4 * error


def test_a_rare_line_is_one_token_so_that_kinds_of_lines_cost_the_same() -> None:
    assert {line.source for line in RARE} <= set(RareDemonstrations().pieces())


def test_the_evaluations_are_the_programs_that_training_excludes() -> None:
    config = compose.load(["+experiment=tiny/rare_lines"])
    named = {each["tasks"]["rare_lines"] for each in config["evaluations"].values()}
    assert named == set(HELD_OUT)
    assert config["arena"]["forbidden"]["_target_"] == "arenas.absolute_zero.rare_lines.forbidden"
