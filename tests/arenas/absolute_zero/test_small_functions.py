"""Tests of small functions of ordinary Python: their outputs are those that Python computes."""

from collections.abc import Mapping
from itertools import islice
from random import Random
from statistics import mean
from typing import Any

import pytest

from arenas.absolute_zero.arena import IDENTITY, AbsoluteZero, programs_of
from arenas.absolute_zero.program_checks import fault
from arenas.absolute_zero.small_functions import (
    KINDS,
    SmallFunction,
    SmallFunctionDemonstrations,
    function,
    held_out,
    is_held_out,
    proposals,
    seeds,
)
from roles.proposer import Proposer
from roles.solver import Solver
from selfplay.errors import ConfigError
from selfplay.sandbox import Call, Executor
from selfplay.types import InvalidAction


def test_outputs_are_those_of_the_isolated_executor() -> None:
    rng = Random(0)
    kinds = list(KINDS)
    drawn = [function(rng, kinds=kinds, held_out=number % 2 == 0) for number in range(400)]
    found = [each.problem() for each in drawn]
    assert not any(fault(each["program"]) for each in found)
    assert [is_held_out(each["program"]) for each in found] == [True, False] * 200
    calls = [Call(program=each["program"], arguments=each["inputs"][0]) for each in found]
    with Executor() as executor:
        outcomes = executor.run(calls)
    assert [outcome.value for outcome in outcomes] == [each["outputs"][0] for each in found]
    assert len({each["program"] for each in found}) > 250


def test_splits_share_no_function() -> None:
    tasks = held_out(count=100)
    programs = [task.payload["program"] for task in tasks]
    assert len(set(programs)) == 100 and all(map(is_held_out, programs))
    assert "outputs" not in tasks[0].payload and tasks == held_out(count=100)
    shown = [*seeds(count=50), *seeds(count=50, seed=1)]
    assert not programs_of(shown) & programs_of(tasks)
    for task in proposals(count=20, references=2):
        assert len(task.payload["references"]) == 2
        assert not any(is_held_out(each["program"]) for each in task.payload["references"])


def test_demonstrations_are_valid_proposals_and_right_answers() -> None:
    proposer = Proposer(style="short", thinking=False)
    solver = Solver(style="short")
    worked = []
    with Executor() as executor:
        arena = AbsoluteZero(executor=executor, solvers=1)
        source = SmallFunctionDemonstrations(references=1, worked_share=0.5)
        for each in islice(source.stream(Random(0), 0.0), 200):
            if each.role == "proposer":
                task = proposals(count=1)[0]
                arena.begin(task, seed=0)
                arena.play_stage({"proposer_0": proposer.parse(each.completion)})
                assert arena.metrics["valid_proposal"] == 1.0
                text = proposer.prompt(each.observation)[0]["content"]
                assert each.observation.fields["references"][0]["program"] in str(text)
            else:
                fields = each.observation.fields
                answer = str(solver.parse(each.completion))
                arena.problem = {"outputs": [_output(executor, fields)]}
                assert arena._judge_output(answer) == "correct"
                worked.append(solver.metrics(each.completion)["worked"])
                text = str(solver.prompt(each.observation)[0]["content"])
                assert fields["program"] in text and f"f({fields['input']})" in text
    with pytest.raises(ValueError, match="at least 0"):
        SmallFunctionDemonstrations(references=-1)
    with pytest.raises(ValueError, match="worked_share is a fraction"):
        SmallFunctionDemonstrations(worked_share=1.5)
    assert len(worked) == 160 and 0.4 < mean(worked) < 0.6


def _output(executor: Executor, fields: Mapping[str, Any]) -> str:
    call = Call(program=fields["program"], arguments=fields["input"])
    return str(executor.run([call])[0].value)


def test_work_shows_the_value_after_each_line() -> None:
    drawn = SmallFunction("xs", [3, 1], (("sorted(xs)", [1, 3]), ("xs[1:]", [3])), ("len(xs)", 1))
    assert drawn.program == ("def f(xs):\n    xs = sorted(xs)\n    xs = xs[1:]\n    return len(xs)")
    assert drawn.trace() == "xs = [3, 1]\nxs = [1, 3]\nxs = [3]"
    assert drawn.problem()["outputs"] == ["1"] and drawn.problem()["inputs"] == ["[3, 1]"]


def test_kinds_of_arguments_are_chosen() -> None:
    words = held_out(count=30, kinds=["word"])
    assert all(task.payload["program"].startswith("def f(s):") for task in words)
    shown = [task.payload["program"] for task in seeds(count=300)]
    lists = sum(program.startswith("def f(xs):") for program in shown)
    assert not any(program.startswith("def f(s):") for program in shown)
    assert 170 < lists < 230  # 200 expected
    for kinds in ([], ["word", "letter"]):
        with pytest.raises(ValueError, match="kinds are one or more of number, word, list"):
            held_out(kinds=kinds)


def test_a_role_without_thinking_reads_its_whole_text() -> None:
    solver, thinking = Solver(style="short", thinking=False), Solver(style="short")
    assert solver.parse(" [1, 2]\n") == "[1, 2]" and solver.metrics("[1]") == {}
    assert solver.parse("```output\n7\n```") == "7"
    assert thinking.parse("<think></think><answer>7</answer>") == "7"
    assert thinking.metrics("<think>so</think><answer>7</answer>") == {"worked": 1.0}
    for role, text in ((solver, ""), (solver, "```"), (thinking, "7")):
        with pytest.raises(InvalidAction):
            role.parse(text)
    assert Solver(style="short", thinking=False, skip_thinking=True).parse("7") == "7"
    with pytest.raises(ConfigError, match="skip_thinking must be false"):
        Solver(style="short", skip_thinking=True)
    with pytest.raises(InvalidAction):
        Proposer(style="short", thinking=False).parse(IDENTITY)
