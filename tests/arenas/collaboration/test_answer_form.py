"""The demonstrations of the form of an answer: right answers of all roles to small sums."""

from itertools import islice
from random import Random

import pytest

from arenas.collaboration.answer_form import ROLES, AnswerForm
from arenas.collaboration.pipeline import GENERATOR, REFINER, VERIFIER, raw_env
from arenas.questions.arithmetic import evaluate, is_held_out
from roles.debater import Debater
from selfplay.types import Demonstration, Task

ANSWER = "The answer is {}."


def shown(count: int) -> list[Demonstration]:
    source = AnswerForm(largest=9, operations=["+", "-"])
    return list(islice(source.stream(Random(0), 0.0), count))


def test_every_role_gives_the_right_answer_and_half_of_the_answers_it_sees_are_wrong() -> None:
    found = shown(3000)
    seen: dict[str, list[bool]] = {"answer": [], "critique": []}
    for each in found:
        fields = each.observation.fields
        question, right = fields["question"], evaluate(fields["question"])
        numbers = [int(word) for word in question.split()[::2]]
        assert len(numbers) == 2 and max(numbers) <= 9 and not is_held_out(question)
        assert each.completion == ANSWER.format(right)
        if each.role != "generator":
            seen["answer"].append(fields["answer"] == str(right))
        if each.role == "refiner":
            seen["critique"].append(fields["critique"] == ANSWER.format(right))
    assert [each.role for each in found[:6]] == [*ROLES, *ROLES]
    for values in seen.values():
        assert sum(values) / len(values) == pytest.approx(
            0.5, abs=4.5 * (0.25 / len(values)) ** 0.5
        )


def test_demonstrations_show_what_the_arena_shows_and_the_roles_read_them() -> None:
    arena = raw_env()
    role = Debater(game="generator", style="sentence", opening="answer is", closing=".")
    for each in shown(60):
        fields = each.observation.fields
        answer = str(evaluate(fields["question"]))
        arena.begin(Task(id="t", payload={**fields, "answer": answer}), seed=0)
        agent = GENERATOR
        if each.role != "generator":
            arena.play_stage({GENERATOR: role.parse(ANSWER.format(fields["answer"]))})
            agent = VERIFIER
        if each.role == "refiner":
            arena.play_stage({VERIFIER: fields["critique"]})
            agent = REFINER
        assert arena.view(agent).text == each.observation.text
        if each.role == "refiner":
            arena.play_stage({REFINER: role.parse(each.completion)})
            assert arena.metrics["accuracy"] == 1.0


@pytest.mark.parametrize(
    "settings", [{"largest": 0}, {"operations": []}, {"operations": ["/"]}, {"form": "It is."}]
)
def test_impossible_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"largest is at least 1|does not contain"):
        AnswerForm(**settings)  # type: ignore[arg-type]
