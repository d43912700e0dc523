"""Tests of the divisions of a problem: two halves fit if they are of the same division."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest

from arenas.collaboration.arena import HELPER, MAIN, raw_env
from arenas.collaboration.code_reward import Test, grade
from arenas.collaboration.demonstrations import ALONE, CODE, DIVISIONS, DividedWork, written
from arenas.collaboration.problems import FOLDS, STEPS, problems
from selfplay.sandbox import Executor
from selfplay.types import Demonstration, Task

PROBLEMS = problems(count=30, tests=2)
HELPERS = {name: halves[0] for name, halves in DIVISIONS.items()}
MAINS = {name: halves[1] for name, halves in DIVISIONS.items()}


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(workers=1, wall_seconds=20.0) as running:
        yield running


def shown(count: int, **settings: float) -> list[Demonstration]:
    source = DividedWork(problems=PROBLEMS, **settings)
    return list(islice(source.stream(Random(0), 0.0), count))


def reward(helper: str, main: str, task: Task, executor: Executor) -> float:
    tests = [Test(arguments=a, expected=e) for a, e in task.payload["tests"]]
    codes = (written(code, task.payload) for code in (helper, main))
    return grade(*codes, entry="f", tests=tests, executor=executor).reward


def test_the_code_of_a_phrase_computes_what_the_phrase_says() -> None:
    xs = [7, -13, 4, 7]
    assert set(CODE) == {*STEPS, *FOLDS}
    assert all(eval(CODE[name], {"x": x}) == STEPS[name](x) for name in STEPS for x in xs)
    assert all(eval(CODE[name], {"xs": xs}) == FOLDS[name](xs) for name in FOLDS)


@pytest.mark.parametrize("name", DIVISIONS)
def test_the_two_halves_of_a_division_are_a_perfect_program(name: str, executor: Executor) -> None:
    for task in PROBLEMS[:8]:
        assert reward(HELPERS[name], MAINS[name], task, executor) == 4.0
        assert reward(HELPERS[name], ALONE, task, executor) == 2.5


def test_halves_of_different_divisions_do_not_fit(executor: Executor) -> None:
    task = next(t for t in PROBLEMS if t.payload["fold"] == "the sum" and t.id.startswith("three"))
    for helper, code in HELPERS.items():
        for main, other in MAINS.items():
            if helper != main:
                assert reward(code, other, task, executor) == 1.5, (helper, main)


def test_all_divisions_are_shown_equally_often_and_alone_seldom() -> None:
    count = 8000
    found = shown(count, alone=0.1)
    texts = [demonstration.observation.fields["problem"] for demonstration in found]
    assert set(texts) == {task.payload["text"] for task in PROBLEMS}
    by_text = {task.payload["text"]: task.payload for task in PROBLEMS}
    counts: Counter[tuple[str, str]] = Counter()
    for demonstration, text in zip(found, texts, strict=True):
        table = HELPERS if demonstration.role == "helper" else {**MAINS, "alone": ALONE}
        names = [
            n for n, c in table.items() if written(c, by_text[text]) == demonstration.completion
        ]
        counts[demonstration.role, names[0]] += 1
    for part, name, fraction in [
        *(("helper", name, 1 / 8) for name in DIVISIONS),
        *(("main", name, 0.9 / 8) for name in DIVISIONS),
        ("main", "alone", 0.1 / 2),
    ]:
        spread = (fraction * (1 - fraction) / count) ** 0.5
        assert counts[part, name] / count == pytest.approx(fraction, abs=4.5 * spread)


def test_demonstrations_have_the_observations_of_the_arena(executor: Executor) -> None:
    arena = raw_env(executor=executor, turns=2, shown_tests=2)
    for demonstration in shown(40, again=0.5):
        fields = demonstration.observation.fields
        (task,) = [t for t in PROBLEMS if t.payload["text"] == fields["problem"]]
        arena.begin(task, seed=0)
        agent = f"{demonstration.role}_0"
        if fields["turn"] == 2:
            arena.play_stage({HELPER: fields["helper"], MAIN: fields["main"]})
            if arena.finished or arena.view(agent).fields["feedback"][0]["outcome"] != "raised":
                continue  # a pair that fits, or that fails in another way
            assert arena.view(agent).fields["helper"] == fields["helper"]
            assert arena.view(agent) == demonstration.observation
        else:
            seen = arena.view(agent)
            assert seen.text == demonstration.observation.text
            assert {**seen.fields, "turns": 1} == dict(fields)


def test_after_halves_that_do_not_fit_each_agent_changes_half_the_time() -> None:
    found = shown(400, again=1.0)
    assert all(each.observation.fields["turn"] == 2 for each in found)
    own = [each.observation.fields[each.role] == each.completion for each in found]
    assert 0.4 < sum(own) / len(own) < 0.6
    with pytest.raises(ValueError, match="fractions"):
        DividedWork(problems=PROBLEMS, again=1.5)
