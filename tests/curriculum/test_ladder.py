"""Tests of the ladder: a failed task waits for variants and reopens when they are solved."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from arenas.questions.integrals import INTEGRANDS, Integrals, integrands
from selfplay.curriculum.ladder import Ladder
from selfplay.errors import ConfigError
from selfplay.types import Group, Status, Task
from tests.helpers.builders import episode, group, turn

ROOT = Task(id="root", type="sum", payload={"question": "hard"})


def made(roots: Sequence[Task] = (ROOT,), **changes: Any) -> Ladder:
    settings = {"batch": 4, "proposals": 2, "variants": 3, "climb": 2, "depth": 2}
    return Ladder(roots=list(roots), **{**settings, **changes})


def tried(task: Task, solved: int, **fields: Any) -> Group:
    """Return a group of eight attempts at a task."""
    metrics = {"attempts": 8, "solved": solved}
    return group(episode(turn("solver_0"), task=task, metrics=metrics, **fields))


def variant(asked: Task, name: str, solved: int) -> Group:
    """Return a group of a proposal that became a variant and of the attempts at it."""
    created = (Task(id=name, type="sum", payload={"question": name}),)
    return tried(asked, solved, created=created)


def asked(tasks: Sequence[Task]) -> list[Task]:
    return [task for task in tasks if task.payload.get("mode") == "propose"]


def ids(tasks: Sequence[Task]) -> set[str]:
    return {task.id for task in tasks if task.payload.get("mode") != "propose"}


def test_a_failed_task_waits_and_reopens_when_its_variants_are_solved() -> None:
    ladder = made()
    assert ladder.tasks(1) == [ROOT]
    ladder.observe([tried(ROOT, 0)], 1)
    assert ladder.metrics()["waiting"] == 1
    first, second = ladder.tasks(3)
    assert first.payload["given"] == {"question": "hard"} and first.payload["parent"] == "root"
    assert first.type == "sum" and first.id != second.id
    ladder.observe([variant(first, "a", 4), variant(second, "b", 7)], 3)
    assert ids(ladder.tasks(4)) == {"a", "b"}  # a is open; b is solved and fills the batch
    assert ladder.rungs["root"].climbed == ["b"] and ladder.rungs["root"].state == "waiting"
    ladder.observe([tried(ladder.rungs["a"].task, 6)], 4)
    assert ladder.rungs["root"].state == "open" and "root" in ids(ladder.tasks(5))
    ladder.observe([tried(ROOT, 8)], 5)
    assert ladder.metrics()["roots_solved"] == 1.0


def test_a_variant_that_fails_has_variants_of_its_own_down_to_the_depth() -> None:
    ladder = made(depth=2)
    ladder.observe([tried(ROOT, 0)], 1)
    (one, *_) = asked(ladder.tasks(2))
    ladder.observe([variant(one, "a", 0)], 2)
    assert ladder.rungs["a"].state == "waiting" and ladder.rungs["a"].depth == 1
    below = next(t for t in asked(ladder.tasks(3)) if t.payload["parent"] == "a")
    ladder.observe([variant(below, "b", 0)], 3)
    assert (ladder.rungs["b"].state, ladder.rungs["b"].depth) == ("open", 2)
    assert ladder.metrics()["deepest"] == 2


def test_a_task_without_valid_variants_is_tried_again() -> None:
    ladder = made(variants=3, proposals=2)
    ladder.observe([tried(ROOT, 0)], 1)
    assert len(asked(ladder.tasks(2))) == 2
    ladder.observe([], 2)
    assert len(asked(ladder.tasks(3))) == 1  # the third of three variants
    ladder.observe([], 3)
    assert ladder.rungs["root"].state == "open"


def test_a_solved_task_that_is_forgotten_is_open_again() -> None:
    ladder = made()
    ladder.observe([tried(ROOT, 8)], 1)
    assert ladder.metrics()["solved"] == 1 and ids(ladder.tasks(2)) == {"root"}
    ladder.observe([tried(ROOT, 3)], 2)
    assert ladder.metrics()["open"] == 1


def test_solved_tasks_fill_a_step_up_to_the_batch_and_no_further() -> None:
    ladder = made([ROOT, Task(id="other")], batch=1)
    ladder.observe([tried(ROOT, 8)], 1)
    assert ids(ladder.tasks(2)) == {"other"}


def test_a_variant_that_is_solved_twice_counts_once() -> None:
    ladder = made()
    ladder.observe([tried(ROOT, 0)], 1)
    first, second = asked(ladder.tasks(2))
    ladder.observe([variant(first, "a", 8), variant(second, "b", 0)], 2)
    for step, solved in ((3, 2), (4, 8)):  # forgotten, and solved again
        ladder.observe([tried(ladder.rungs["a"].task, solved)], step)
    assert ladder.rungs["root"].climbed == ["a"] and ladder.rungs["root"].state == "waiting"


def test_a_full_ladder_asks_for_no_more_variants() -> None:
    ladder = made(capacity=1)
    ladder.observe([tried(ROOT, 0)], 1)
    (one,) = asked(ladder.tasks(2))
    ladder.observe([variant(one, "a", 8), variant(one, "a", 8)], 2)
    assert not asked(ladder.tasks(3)) and ladder.rungs["root"].state == "open"


def test_failed_episodes_and_unknown_tasks_change_nothing() -> None:
    ladder = made()
    stray = Task(id="stray", payload={"mode": "propose", "parent": "nobody"})
    broken = tried(ROOT, 0, status=Status.FAILED)
    ladder.observe([broken, variant(stray, "x", 0), tried(Task(id="y"), 0)], 1)
    assert set(ladder.rungs) == {"root"} and ladder.rungs["root"].state == "open"


def test_the_state_survives_json_and_continues_identically() -> None:
    roots = [Task(id=f"r{n}", payload={"question": str(n)}) for n in range(9)]
    ladder = made(roots)
    ladder.observe([tried(task, n % 3) for n, task in enumerate(roots)], 1)
    ladder.observe([variant(task, task.id, 8) for task in asked(ladder.tasks(2))], 2)
    twin = made(roots)
    twin.load_state_dict(json.loads(json.dumps(ladder.state_dict())))
    for step in (3, 4, 5):
        assert twin.tasks(step) == ladder.tasks(step)
        assert twin.metrics() == ladder.metrics()


def test_a_root_that_is_listed_twice_is_one_task() -> None:
    ladder = made([ROOT, ROOT], capacity=1)
    ladder.observe([tried(ROOT, 0)], 1)
    ladder.observe([variant(task, "one", 0) for task in asked(ladder.tasks(2))], 2)
    assert ladder.metrics()["variants"] == 1 and asked(ladder.tasks(3)) == []
    ladder.observe([tried(ROOT, 8)], 3)
    assert ladder.metrics()["roots_solved"] == 1.0


def test_a_checkpoint_of_other_roots_is_refused() -> None:
    with pytest.raises(ConfigError, match="the checkpoint has no task 'root'"):
        made().load_state_dict(made([Task(id="other")]).state_dict())


def test_invalid_settings_are_refused() -> None:
    for changes, message in (
        ({"roots": ()}, "no roots"),
        ({"proposals": 0}, "at least 1"),
        ({"depth": -1}, "at least 0"),
        ({"failed": 0.8, "solved": 0.5}, "failed < solved"),
    ):
        with pytest.raises(ConfigError, match=message):
            made(**changes)


@pytest.mark.parametrize(
    ("question", "answer", "score"),
    [
        ("x**2", "x^3/3 + C", 1.0),
        ("x**2", "x**3 / 3 + 7", 1.0),
        ("x**2", "x**3", 0.0),
        ("1/x", "log(x)", 1.0),
        ("log(x) * x**2", "x**3 * log(x) / 3 - x**3 / 9", 1.0),
        ("atan(x)", "x * atan(x) - ln(x**2 + 1) / 2", 1.0),
        ("cos(x)", "-sin(x)", 0.0),
        ("x", "sqrt(-1 - x**2)", 0.0),
        ("x", "9**9**9**9", 0.0),
        ("x", "__import__('os').system('true')", 0.0),
        ("x", "(" * 300 + "x" + ")" * 300, 0.0),
        ("x", "x" * 1_000_000, 0.0),
        ("x", "\ud800", 0.0),
        ("x", "1" + "0" * 390, 0.0),
        ("x", "f(x=1)", 0.0),
        ("x / 10**12", "0", 0.0),
        ("x / 10**12", "x**2 / (2 * 10**12)", 0.0),  # right, but too close to 0 to check
        ("x / 10**6", "0", 0.0),
        ("x / 10**6", "x**2 / (2 * 10**6)", 1.0),
        ("exp(-x**2 / 2) * x", "-exp(-x**2 / 2)", 1.0),  # too small at most points
        ("exp(-x**2 / 2) * x", "1", 0.0),
        ("0", "x / 10**3", 0.0),
    ],
)
def test_an_antiderivative_is_checked_numerically(question: str, answer: str, score: float) -> None:
    assert Integrals()(answer, {"question": question}) == score


def test_integrands_are_formulas_with_values() -> None:
    verifier = Integrals()
    assert [verifier.fault(text) for text in INTEGRANDS] == [None] * len(INTEGRANDS)
    assert len({task.id for task in integrands()}) == len(INTEGRANDS)
    assert verifier.fault("x / 10**12") == verifier.fault("0 * x") == "too_small"
    assert verifier.fault("sqrt(-1)") == "no_values" and verifier.fault("dx") == "no_formula"
    with pytest.raises(ValueError, match="above 0"):
        Integrals(width=0.0)
