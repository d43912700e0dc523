"""Tests of demonstrations of right answers of reasoning_gym, with a stand-in package."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from arenas.questions._reasoning_program import is_held_out
from arenas.questions.reasoning_answers import ReasoningAnswers
from arenas.questions.reasoning_gym import ReasoningGym
from roles.debater import Debater
from selfplay.errors import ConfigError
from selfplay.types import Demonstration
from tests.helpers import fake_reasoning_gym


@pytest.fixture
def gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReasoningGym]:
    fake_reasoning_gym.install(tmp_path, monkeypatch)
    service = ReasoningGym(memory_mb=512)
    yield service
    service.close()


def _shown(source: ReasoningAnswers, count: int, seed: int = 0) -> list[Demonstration]:
    return list(islice(source.stream(Random(seed), 0.0), count))


def _sum(demonstration: Demonstration) -> int:
    first, second = map(int, re.findall(r"\d+", demonstration.observation.text))
    return first + second


def test_completions_are_right_and_can_be_read_by_the_role(gym: ReasoningGym) -> None:
    source = ReasoningAnswers(reasoning_gym=gym, generators=["sums", "evaluated"], count=30)
    for each in _shown(source, 60):
        assert each.role == "solver"
        assert Debater(game="generator", style="short").split(each.completion)[0] == str(_sum(each))


def test_no_question_is_held_out(gym: ReasoningGym) -> None:
    source = ReasoningAnswers(reasoning_gym=gym, generators=["sums"], count=200)
    texts = {each.observation.text for each in _shown(source, 2000)}
    assert len(texts) > 150
    assert not any(map(is_held_out, texts))


def test_generators_are_shown_equally_often(gym: ReasoningGym) -> None:
    source = ReasoningAnswers(reasoning_gym=gym, generators=["sums", "evaluated"], count=5, level=2)
    large = [_sum(each) > 200 for each in _shown(source, 400)]  # sums of level 2 reach 18,000
    assert abs(sum(large) - 200) < 20


def test_a_level_above_a_generators_highest_is_its_highest(gym: ReasoningGym) -> None:
    most, above = (
        ReasoningAnswers(reasoning_gym=gym, generators=["sums"], count=5, level=level)
        for level in (2, 9)
    )
    assert _shown(most, 20) == _shown(above, 20)


def test_demonstrations_are_determined_by_the_seed(gym: ReasoningGym) -> None:
    one, same, other = (
        ReasoningAnswers(reasoning_gym=gym, generators=["sums"], seed=seed) for seed in (1, 1, 2)
    )
    shown = _shown(one, 10)
    assert shown == _shown(same, 10)
    assert shown != _shown(other, 10)


def test_a_generator_without_answers_is_refused(gym: ReasoningGym) -> None:
    source = ReasoningAnswers(reasoning_gym=gym, generators=["sums", "pair"])
    with pytest.raises(ConfigError, match=r"pair gives no answers at level 0; leave it out"):
        _shown(source, 1)


@pytest.mark.parametrize("form", ["<answer></answer>", "{answer} {answer}"])
def test_a_form_has_one_place_for_the_answer(gym: ReasoningGym, form: str) -> None:
    with pytest.raises(ValueError, match="once"):
        ReasoningAnswers(reasoning_gym=gym, generators=["sums"], form=form)
