"""Tests of the demonstrations of the answer form: each role answers with a random number."""

from collections import Counter
from itertools import islice
from random import Random

import pytest

from arenas.collaboration.answer_form import ROLES, AnswerForm
from arenas.collaboration.pipeline import GENERATOR, REFINER, VERIFIER, raw_env
from arenas.questions.comparisons import is_held_out
from roles.debater import Debater
from selfplay.types import Demonstration, Task


def shown(count: int) -> list[Demonstration]:
    return list(islice(AnswerForm().stream(Random(0), 0.0), count))


def test_answers_are_random_numbers_of_questions_that_are_not_held_out() -> None:
    places = Counter[tuple[str, int]]()
    found = shown(3000)
    for each in found:
        question = str(each.observation.fields["question"])
        numbers = question.partition(": ")[2].strip("?").replace(" or ", ", ").split(", ")
        assert not is_held_out([int(number) for number in numbers])
        answer = each.completion.removeprefix("The answer is ").removesuffix(".")
        places[each.role, sorted(numbers, key=int).index(answer)] += 1
    assert [each.role for each in found[:6]] == [*ROLES, *ROLES]
    assert len(places) == 9
    deviation = (1000 * (1 / 3) * (2 / 3)) ** 0.5
    assert all(abs(count - 1000 / 3) < 4.5 * deviation for count in places.values())


def test_demonstrations_have_the_observations_of_the_arena() -> None:
    role = Debater(game="generator", style="sentence", opening="answer is", closing=".")
    found = shown(60)
    for first, check, last in zip(found[::3], found[1::3], found[2::3], strict=True):
        payload = {**first.observation.fields, "answer": "0"}
        arena = raw_env()
        arena.begin(Task(id="t", payload=payload), seed=0)
        assert arena.view(GENERATOR) == first.observation
        arena.play_stage({GENERATOR: role.parse(first.completion)})
        assert arena.view(VERIFIER).text == check.observation.text
        arena.play_stage({VERIFIER: check.completion})
        assert arena.view(REFINER).text == last.observation.text


@pytest.mark.parametrize(
    "settings", [{"kinds": ["longest"]}, {"largest": 12}, {"form": "It is."}, {"kinds": []}]
)
def test_impossible_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"kinds: some of|at least 9 more|does not contain"):
        AnswerForm(**settings)  # type: ignore[arg-type]
