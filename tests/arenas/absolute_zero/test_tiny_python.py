"""Tests of the tiny sub-language: demonstrations are right and show no held-out program."""

from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest

from arenas.absolute_zero.arena import AbsoluteZero, programs_of, solve_task
from arenas.absolute_zero.demonstrations import TinyDemonstrations, solution
from arenas.absolute_zero.normal_form import normal_form
from arenas.absolute_zero.program_checks import fault
from arenas.absolute_zero.rare_lines import RARE
from arenas.absolute_zero.tiny_python import (
    LINES,
    OPERATIONS,
    Domain,
    Program,
    ProgramLine,
    held_out,
    problem,
    proposals,
)
from roles.proposer import Proposer
from roles.solver import Solver
from selfplay.sandbox import Executor

KINDS = ("deduction", "abduction", "induction")


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(workers=1) as running:
        yield running


def test_a_program_is_its_normal_form() -> None:
    """`task_of` relies on this property, so that a task has the id of its proposal."""
    for line in (*LINES.values(), *RARE):
        program = Program(lines=(line, line))
        assert normal_form(program.source) == program.source
    (task,) = held_out(per_type=1)[:1]
    assert task.id == solve_task(task.type, task.payload).id


def test_held_out_tasks_are_fixed_and_all_different() -> None:
    tasks = held_out()
    assert tasks == held_out() and tasks != held_out(seed=1)
    assert [sum(task.type == kind for task in tasks) for kind in KINDS] == [100, 100, 100]
    assert len(programs_of(tasks)) == 300
    assert not any(fault(task.payload["program"]) for task in tasks)


def program(*lines: str) -> Program:
    return Program(lines=tuple(LINES[f"    a = {line}\n"] for line in lines))


REVERSE, LEFT, PUSH = "a[::-1]", "a[1:] + a[:1]", "a[1:] + 'c'"
FIRST, LAST = "'d' + a[1:]", "a[:-1] + 'e'"


@pytest.mark.parametrize(
    ("lines", "depth"),
    [
        ((), 0),
        ((REVERSE,), 1),
        ((FIRST,), 1),
        ((FIRST, LAST), 1),  # each line writes a different letter
        ((FIRST, FIRST, FIRST), 1),  # each line starts a new chain
        ((REVERSE, LEFT), 2),
        ((REVERSE, REVERSE), 2),  # lines are counted, although they do nothing together
        ((REVERSE, FIRST, LAST, LEFT), 2),
        ((PUSH,) * 3, 3),
        ((PUSH,) * 4, 4),
        ((PUSH,) * 5, 4),  # the first letter that was pushed is lost
        ((FIRST, LEFT, REVERSE, LAST), 3),
    ],
)
def test_depth_is_the_longest_chain_of_lines_that_make_a_letter(
    lines: tuple[str, ...], depth: int
) -> None:
    assert program(*lines).depth() == depth


def test_depth_depends_on_the_length_of_the_input() -> None:
    assert program(REVERSE).depth(1) == 0  # a single letter stays in its place
    assert program(*[PUSH] * 12).depth(20) == 12
    assert program(*[PUSH] * 12).depth(2) == 2


def test_a_program_is_read_from_its_source() -> None:
    rng, domain = Random(5), Domain(operations=(1, 12))
    for _ in range(100):
        made = domain.program(rng)
        assert Program.parse(made.source) == made
        assert 1 <= made.depth() <= len(made.lines)
    source = program(REVERSE, PUSH).source
    for other in (source.replace("'c'", "'cc'"), source + "\n", source[1:], "", f"\n{source}"):
        assert Program.parse(other) is None


def test_no_demonstration_shows_a_held_out_program() -> None:
    tasks = held_out(per_type=300)  # so many that a leak would show at once
    forbidden = {task.payload["program"] for task in tasks}
    source = TinyDemonstrations(held_out=tasks, references=2)
    for shown in islice(source.stream(Random(0), 0.0), 3000):
        text = (str(shown.observation) + shown.completion).replace("\\n", "\n")
        assert not any(program in text for program in forbidden)


def test_running_and_undoing_an_operation() -> None:
    rng, domain = Random(1), Domain()
    for operation in OPERATIONS:
        for _ in range(50):
            line = ProgramLine(
                operation=operation, letter=rng.choice("abc") if operation.takes_letter else ""
            )
            value = Program(lines=(line,)).trace(domain.word(rng))[0]
            assert operation.run(operation.undo(value), line.letter) == value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("worked", [True, False])
def test_every_demonstrated_solution_is_judged_correct(
    executor: Executor, kind: str, worked: bool
) -> None:
    rng, domain, solver = Random(2), Domain(), Solver(style="terse")
    right = 0
    for _ in range(25):
        program = domain.program(rng)
        words = domain.words(rng, 4 if kind == "induction" else 1)
        content = problem(program, words)
        arena = AbsoluteZero(executor=executor, solvers=1, pairs=4)
        arena.begin(solve_task(kind, {k: content[k] for k in ("program", "inputs", "message")}), 0)
        assert arena.problem["outputs"] == content["outputs"]  # the trace agrees with Python
        text = solution(kind, program, words[0], worked=worked)
        assert bool(solver.metrics(text)["worked"]) == worked
        arena.play_stage({"solver_0": solver.parse(text)})
        right += arena.paid["solver_0"] == 1.0
    # For induction all are right too, because the lines alone decide if a letter is lost.
    assert right == 25


def test_every_demonstrated_proposal_is_valid(executor: Executor) -> None:
    proposer, seen = Proposer(style="terse"), 0
    stream = TinyDemonstrations(references=2).stream(Random(3), 0.0)
    for shown in islice((d for d in stream if d.role == "proposer"), 40):
        kind = shown.observation.fields["type"]
        given = {"program": shown.observation.fields["program"]} if kind == "induction" else None
        arena = AbsoluteZero(executor=executor, solvers=1, pairs=4)
        task = proposals(per_type=1)[KINDS.index(kind)]
        arena.begin(task, 0)
        arena.task = type(task)(
            id="t", type=kind, payload={"mode": "propose", "given": given, "known": 0}
        )
        arena.play_stage({"proposer_0": proposer.parse(shown.completion)})
        assert arena.notes["proposer_0"]["verdict"] == "valid"
        seen += 1
    assert seen == 40


def test_equal_programs_have_one_normal_form() -> None:
    assert normal_form("def f(a):  # x\n  return (a)") == normal_form("def f(a):\n    return a")


def test_worked_solutions_become_rare_during_a_warm_start() -> None:
    source = TinyDemonstrations()
    fractions = []
    for progress in (0.0, 0.9):
        shown = islice((d for d in source.stream(Random(4), progress) if d.role == "solver"), 400)
        fractions.append(sum("<think></think>" not in d.completion for d in shown) / 400)
    assert fractions[0] > 0.8 and 0.1 < fractions[1] < 0.3
