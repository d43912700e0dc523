"""Tests of the real package reasoning_gym in the sandbox; skipped if it is not installed."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from arenas.questions.reasoning_gym import ReasoningGym, ReasoningTasks, tasks
from selfplay.curriculum.levels import LevelDraw
from selfplay.sandbox.types import Call

pytestmark = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="needs reasoning-gym")

NAMES = ("basic_arithmetic", "gcd", "countdown", "spell_backward", "graph_color", "arc_1d")


@pytest.fixture(scope="module")
def gym() -> Iterator[ReasoningGym]:
    service = ReasoningGym()
    yield service
    service.close()


def test_right_answers_have_the_full_score_and_others_do_not(gym: ReasoningGym) -> None:
    for task in tasks(reasoning_gym=gym, generators=NAMES, count=2, level=0):
        if "answer" in task.payload:
            assert gym.score(task.payload["answer"], task.payload) == 1.0, task.type
        assert gym.score("nonsense", task.payload) < 0.5, task.type


def test_an_answer_is_evaluated_in_the_sandbox_only(gym: ReasoningGym) -> None:
    (task,) = tasks(reasoning_gym=gym, generators=["countdown"], count=1)
    assert gym.score("__import__('os')._exit(0)", task.payload) == 0.0
    assert gym.score("9**9**9**9", task.payload) == 0.0
    assert gym.drain_metrics()["timeout"] >= 1


def test_levels_are_those_of_the_package(gym: ReasoningGym) -> None:
    assert gym.levels(["basic_arithmetic", "gsm_symbolic"]) == [5, 1]
    source = ReasoningTasks(reasoning_gym=gym)
    easy, hard = source.draw(
        [LevelDraw(generator="products", level=level, count=8, number=0) for level in (0, 10)]
    )
    lengths = [max(len(task.payload["answer"]) for task in found) for found in (easy, hard)]
    assert lengths[0] < lengths[1]
    assert all(gym.score(t.payload["answer"], t.payload) == 1.0 for t in easy + hard)


@pytest.mark.slow
def test_every_generator_makes_questions_that_its_verifier_accepts(gym: ReasoningGym) -> None:
    (names,) = [gym._value("names", gym._makes.run([_names()])[0])]
    slow = {"sokoban", "sudoku", "knight_swap"}
    for name in sorted(set(names) - slow):
        for task in tasks(reasoning_gym=gym, generators=[name], count=1):
            if "answer" in task.payload:
                assert gym.score(task.payload["answer"], task.payload) == 1.0, name


def _names() -> Call:
    from arenas.questions.reasoning_gym import _call

    return _call("names")
