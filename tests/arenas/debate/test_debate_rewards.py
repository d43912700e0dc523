"""Tests of MAPoRL's incentives one by one, of verifiers, and of the questions of debates."""

from dataclasses import fields
from typing import Any

import pytest

from arenas.debate.rewards import Incentives, debate_return, persuasion
from arenas.questions.arithmetic import evaluate, is_held_out, questions
from arenas.questions.verifiers import Matches, meaning, number_in

# Two rounds of scores (own, other, other), the field that pays for the change, and its sign. The
# others count as right if their mean is above 0.5.
CHANGES = [
    ([0, 1, 1], [1, 1, 1], "corrected_by_others", 1.0),
    ([0, 0, 1], [1, 0, 1], "corrected_alone", 1.0),
    ([1, 0, 0], [0, 0, 0], "misled_by_others", -1.0),
    ([1, 1, 1], [0, 1, 1], "misled_alone", -1.0),
    # The others' scores of the first round count, although they change too.
    ([0, 1, 1], [1, 0, 0], "corrected_by_others", 1.0),
    ([1, 0, 0], [0, 1, 1], "misled_by_others", -1.0),
    ([0.5, 1, 1], [1, 1, 1], "corrected_by_others", 1.0),
]
INFLUENCES = [
    ([1, 0, 0], [1, 1, 1], "helped_by_being_right", 1.0),
    ([0, 0, 1], [0, 1, 1], "helped_though_wrong", 1.0),
    ([0, 1, 1], [0, 0, 1], "harmed_by_being_wrong", -1.0),
    ([1, 1, 1], [1, 0, 0], "harmed_though_right", -1.0),
    # The own score of the first round counts, although it changes too.
    ([1, 0, 0], [0, 1, 1], "helped_by_being_right", 1.0),
    ([0, 1, 1], [1, 0, 0], "harmed_by_being_wrong", -1.0),
]
SIZES = {field.name: 2.0**place for place, field in enumerate(fields(Incentives))}


@pytest.mark.parametrize(("before", "after", "name", "sign"), CHANGES)
def test_the_incentive_for_an_own_change(before: Any, after: Any, name: str, sign: float) -> None:
    incentives = Incentives(**SIZES)
    assert incentives.change([before, after], 1, 0) == sign * SIZES[name]
    assert incentives.change([before, after], 0, 0) == 0.0
    assert Incentives().change([before, after], 1, 0) == 0.0
    assert incentives.change([before, before], 1, 0) == 0.0


@pytest.mark.parametrize(("before", "after", "name", "sign"), INFLUENCES)
def test_the_incentive_for_an_influence_on_the_others(
    before: Any, after: Any, name: str, sign: float
) -> None:
    incentives = Incentives(**SIZES)
    assert incentives.influence([before, after], 0, 0) == sign * SIZES[name]
    assert incentives.influence([before, after], 1, 0) == 0.0
    assert incentives.influence([before, before], 0, 0) == 0.0


def test_an_answer_with_half_a_score_is_not_right() -> None:
    assert Incentives(**SIZES).change([[0, 1, 1], [0.5, 1, 1]], 1, 0) == 0.0


def test_a_debater_without_an_answer_does_not_conform() -> None:
    answers = [["1", None, "2"], [None, None, "2"]]
    assert persuasion(answers, [[0.0] * 3] * 2)["conformity"] == 0.0


def test_a_debater_alone_has_no_incentives() -> None:
    incentives = Incentives(**SIZES)
    assert incentives.change([[0], [1]], 1, 0) == incentives.influence([[0], [1]], 0, 0) == 0.0


def test_a_negative_incentive_is_refused() -> None:
    with pytest.raises(ValueError, match="misled_alone must be 0 or more"):
        Incentives(misled_alone=-1.0)


def test_the_papers_discounted_return() -> None:
    # gamma 0.3, two debaters: (0.2 + 0.3 * 0.6 + 0.09 * 0.5) / 1.39
    scores = [[0.2, 0.9], [0.4, 0.8], [0.0, 1.0]]
    assert debate_return(scores, 0, 0) == pytest.approx(0.425 / 1.39)
    assert debate_return(scores, 1, 1) == pytest.approx((0.8 + 0.15) / 1.3)
    assert debate_return(scores, 2, 0) == 0.0 and debate_return(scores, 2, 1) == 1.0


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        ("5", "5", 1.0),
        ("5.0", "5", 1.0),
        (" 10/4 ", "2.5", 1.0),
        ("1,000.", "1000", 1.0),
        ("-5", "5", 0.0),
        ("- 5", "5", 0.0),
        ("15", "1.5", 0.0),
        ("5 apples", "5", 0.0),
        ("the Cat!", "cat", 1.0),
        ("1e3", "1000", 0.0),
        ("1/0", "5", 0.0),
        ("?", "!", 0.0),
        ("\u0665", "5", 0.0),
    ],
)
def test_answers_are_compared_by_meaning(answer: str, gold: str, score: float) -> None:
    assert Matches()(answer, {"answer": gold}) == score
    assert (meaning(answer) == meaning(gold)) == bool(score)


def test_a_number_of_a_million_digits_is_not_read() -> None:
    assert number_in("9" * 1_000_000) is None and number_in("") is None


def test_sums_have_right_answers_and_are_split_by_question() -> None:
    train = questions(count=400, split="train", seed=3)
    held_out = questions(count=200, split="held_out", seed=3)
    texts = [{task.payload["question"] for task in tasks} for tasks in (train, held_out)]
    assert [len(found) for found in texts] == [400, 200] and not texts[0] & texts[1]
    assert all(map(is_held_out, texts[1])) and not any(map(is_held_out, texts[0]))
    for task in [*train, *held_out]:
        question, answer = task.payload["question"], task.payload["answer"]
        assert answer == str(eval(question)) == str(evaluate(question))
        assert 1 <= abs(int(task.payload["wrong"]) - int(answer)) <= 2
    assert train == questions(count=400, seed=3) != questions(count=400, seed=4)
    with pytest.raises(ValueError, match="at most 1"):
        questions(count=50, terms=1)
    with pytest.raises(ValueError, match="at least 1"):
        questions(count=0)
