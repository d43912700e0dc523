"""Figures of a step, by hand."""

import pytest
from building import episode, turn

from selfplay.metrics import of_episodes
from selfplay.types import Status, Task

HARD, EASY = Task(id="h", type="hard"), Task(id="e", type="easy")
EPISODES = [
    episode(
        turn("solver_0", 1.0, info={"verdict": "correct", "depth": 2}),
        turn("solver_0", 0.5, info={"verdict": "correct"}, completion_ids=(1, 2, 3)),
        turn("solver_1", -1.0, action=None, info={"invalid": "no answer", "name": "x"}),
        task=HARD,
        metrics={"solve_rate": 0.5},
    ),
    episode(
        turn("solver_0", 0.0, info={"verdict": "wrong", "depth": 4}),
        task=EASY,
        metrics={"solve_rate": 1.0},
        status=Status.TRUNCATED,
    ),
    episode(turn("solver_0", 99.0), metrics={"solve_rate": 9.0}, status=Status.FAILED),
]


def test_figures_by_hand() -> None:
    assert of_episodes(EPISODES) == {
        "episodes/count": 3,
        "episodes/failed": 1,
        "episodes/truncated": 1,
        "arena/solve_rate": 0.75,
        "arena/hard/solve_rate": 0.5,
        "arena/easy/solve_rate": 1.0,
        "role/solver/reward": pytest.approx(0.5 / 3),
        "role/solver/reward/hard": 0.25,
        "role/solver/reward/easy": 0.0,
        "role/solver/valid": 0.75,
        "role/solver/completion_tokens": 1.5,
        "role/solver/prompt_tokens": 2.0,
        "role/solver/depth": 3.0,
        "role/solver/verdict/correct": 0.5,
        "role/solver/verdict/wrong": 0.25,
        "role/solver/invalid/no answer": 0.25,
    }


def test_nothing_played_is_no_figure_of_play() -> None:
    counts = {"episodes/count": 0, "episodes/failed": 0, "episodes/truncated": 0}
    assert of_episodes([]) == counts


def test_a_note_named_like_a_figure_does_not_replace_it() -> None:
    noted = turn("solver_0", 1.0, info={"valid": 0, "reward": 7.0, "verdict": "correct"})
    figures = of_episodes([episode(noted)])
    assert figures["role/solver/valid"] == 1 and figures["role/solver/reward"] == 1
    assert figures["role/solver/verdict/correct"] == 1
