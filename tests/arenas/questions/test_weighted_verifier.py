"""Tests of a verifier of several weighted parts, each of which the arena measures."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from arenas.questions.arena import Questions, question_task
from arenas.questions.verifiers import Matches
from arenas.questions.weighted import Weighted


class Short:
    """A verifier that gives score 1 to an answer of one character."""

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        return float(len(answer) == 1)


class Odd:
    """A verifier that returns a number that is no score."""

    blocking = True

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        return 3.0


def weighted(**weights: float) -> Weighted:
    return Weighted(parts={"right": Matches(), "short": Short()}, weights=weights)


@pytest.mark.parametrize(
    ("answer", "weights", "score"),
    [
        ("7", {}, 1.0),
        ("07", {}, 0.5),
        ("8", {"right": 3.0}, 0.25),
        ("07", {"right": 3.0}, 0.75),
        ("8", {"short": 0.0}, 0.0),
    ],
)
def test_the_score_is_the_weighted_mean(
    answer: str, weights: dict[str, float], score: float
) -> None:
    assert weighted(**weights)(answer, {"answer": "7"}) == score


def test_the_arena_pays_the_mean_and_measures_each_part() -> None:
    arena = Questions(
        proposers=0, solvers=4, label="verifier", verifier=weighted(right=3.0), wrong=-1.0
    )
    arena.begin(question_task("sum", "3 + 4?", "7"), seed=0)
    said = ["7", "07", "8", None]
    moves = {
        f"solver_{number}": None if each is None else json.dumps({"answer": each, "argument": ""})
        for number, each in enumerate(said)
    }
    pay = arena.play_stage(moves)
    assert arena.metrics["score/right"] == 0.5 and arena.metrics["score/short"] == 0.5
    assert arena.metrics["solve_rate"] == (1.0 + 0.75 + 0.25) / 4
    assert [pay[f"solver_{n}"] for n in range(4)] == [1.0, 0.5, -0.5, 0.0]


def test_a_single_verifier_has_no_parts() -> None:
    arena = Questions(proposers=0, solvers=1, label="verifier")
    arena.begin(question_task("sum", "3 + 4?", "7"), seed=0)
    arena.play_stage({"solver_0": json.dumps({"answer": "7", "argument": ""})})
    assert not [name for name in arena.metrics if name.startswith("score/")]


def test_wrong_settings_and_scores_are_refused() -> None:
    for parts, weights, text in (
        ({}, {}, "parts is empty"),
        ({"right": Matches()}, {"rigth": 1.0}, "no part 'rigth'; did you mean 'right'"),
        ({"right": Matches()}, {"right": -1.0}, "at least 0"),
        ({"right": Matches()}, {"right": float("nan")}, "at least 0"),
        ({"right": Matches()}, {"right": 0.0}, "at least one is above 0"),
    ):
        with pytest.raises(ValueError, match=text):
            Weighted(parts=parts, weights=weights)
    with pytest.raises(ValueError, match="verifier Odd returned 3"):
        Weighted(parts={"odd": Odd()})("7", {})
    assert Weighted(parts={"odd": Odd(), "right": Matches()}).blocking
    assert not Weighted(parts={"right": Matches()}).blocking
    with pytest.raises(ValueError, match="can check any proposed question"):
        Questions(label="verifier", verifier=Weighted(parts={"right": Matches()}))
