"""Tests of demonstrations about sums: their numbers, errors and easier variants."""

from itertools import islice
from random import Random
from typing import Any

import pytest

from arenas.questions.arithmetic import evaluate, is_held_out
from arenas.questions.demonstrations import QuestionDemonstrations
from selfplay.types import Demonstration

COUNT = 2000


def shown(kind: str, **settings: Any) -> list[Demonstration]:
    made = QuestionDemonstrations(kinds={kind: 1.0}, **settings)
    return list(islice(made.stream(Random(0), 1.0), COUNT))


def numbers(question: str) -> list[int]:
    return [int(word) for word in question.split()[::2]]


def test_few_demonstrations_have_rare_numbers() -> None:
    made = shown("solver", largest=30, common=9, rare_share=0.1)
    largest = [max(numbers(each.observation.text)) for each in made]
    assert max(largest) == 30
    # A tenth of the questions have rare numbers, and of these the fraction 1 - (10 / 31) ** 2 has a
    # number above 9. Four standard deviations of such a fraction of 2000 questions are 0.026.
    found = sum(each > 9 for each in largest) / COUNT
    assert abs(found - 0.1 * (1 - (10 / 31) ** 2)) < 0.026


def test_grades_have_a_fraction_of_errors_of_their_own() -> None:
    right = 0
    for each in shown("answer_grade", right_share=0.0, grade_share=0.8):
        question, answer = each.observation.text.split(" | ")
        right += (int(answer) == evaluate(question)) == (each.completion == "<score>9</score>")
    assert abs(right / COUNT - 0.8) < 4 * (0.8 * 0.2 / COUNT) ** 0.5


def test_an_easier_variant_has_lower_numbers() -> None:
    for each in shown("easier", largest=30, lower=8):
        given = str(each.observation.fields["given"])
        easier = each.completion.removeprefix("<question>").removesuffix("</question>")
        assert easier != given and not is_held_out(easier) and not is_held_out(given)
        assert easier.split()[1::2] == given.split()[1::2]
        for old, new in zip(numbers(given), numbers(easier), strict=True):
            assert max(0, old - 8) <= new < max(old, 1)


def test_an_easier_variant_omits_terms() -> None:
    for each in shown("easier", harder=2):
        given = str(each.observation.fields["given"])
        easier = each.completion.removeprefix("<question>").removesuffix("</question>")
        assert not is_held_out(easier) and not is_held_out(given)
        assert given.startswith(easier) and len(numbers(given)) - len(numbers(easier)) in (1, 2)


@pytest.mark.parametrize("wrong", [{"grade_share": 1.5}, {"rare_share": -0.1}, {"lower": -1}])
def test_wrong_fractions_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"lie in \[0, 1\]; lower is 0 or more"):
        QuestionDemonstrations(kinds={"solver": 1.0}, **wrong)
