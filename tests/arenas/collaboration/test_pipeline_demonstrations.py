"""Tests of the pipeline demonstrations: how often each role is careful, and what it is shown."""

from itertools import islice
from random import Random

import pytest

from arenas.collaboration.pipeline import GENERATOR, REFINER, VERIFIER, raw_env
from arenas.collaboration.pipeline_demonstrations import (
    APPROVAL,
    PipelineDemonstrations,
    critique_of,
    working,
)
from arenas.questions.arithmetic import evaluate, is_held_out
from roles.debater import Debater
from selfplay.types import Demonstration, Task


def shown(count: int, **settings: float) -> list[Demonstration]:
    source = PipelineDemonstrations(**settings)  # type: ignore[arg-type]
    return list(islice(source.stream(Random(0), 0.0), count))


def test_a_question_is_worked_out_products_first_from_left_to_right() -> None:
    assert working("3 + 4 * 2") == ["4 * 2 = 8", "3 + 8 = 11"]
    assert working("1 - 4 + 2") == ["1 - 4 = -3", "-3 + 2 = -1"]
    assert critique_of("2 * 2 * 3") == "2 * 2 = 4\n4 * 3 = 12\nit is 12"


def test_no_question_is_held_out_and_fractions_are_as_set() -> None:
    found = shown(6000)
    assert not any(is_held_out(each.observation.fields["question"]) for each in found)
    outcomes: dict[str, list[bool]] = {role: [] for role in ("worked", "right", "checked", "heard")}
    for each in found:
        fields, said = each.observation.fields, each.completion
        right = str(evaluate(fields["question"]))
        if each.role == "generator":
            outcomes["worked"].append("=" in said)
            if "=" not in said:
                outcomes["right"].append(said == f"<answer>{right}</answer>")
            else:
                assert said.endswith(f"= {right}<answer>{right}</answer>")
        elif each.role == "verifier":
            outcomes["checked"].append(said == critique_of(fields["question"]))
            assert outcomes["checked"][-1] or said == APPROVAL
        elif fields["critique"] != APPROVAL and fields["answer"] != right:
            outcomes["heard"].append(said == f"<answer>{right}</answer>")
        else:
            assert said == f"<answer>{fields['answer']}</answer>"
    for name, values in outcomes.items():
        assert sum(values) / len(values) == pytest.approx(
            0.3, abs=4.5 * (0.21 / len(values)) ** 0.5
        )
        assert len(values) > 500, name


def test_demonstrations_have_the_observations_of_the_arena() -> None:
    arena, role = raw_env(), Debater()
    for each in shown(60):
        fields = each.observation.fields
        arena.begin(Task(id="t", payload={"question": fields["question"], "answer": "0"}), seed=0)
        agent = GENERATOR
        if each.role != "generator":
            arena.play_stage({GENERATOR: role.parse(f"<answer>{fields['answer']}</answer>")})
            agent = VERIFIER
        if each.role == "refiner":
            arena.play_stage({VERIFIER: fields["critique"]})
            agent = REFINER
        assert arena.view(agent) == each.observation
    with pytest.raises(ValueError, match="fractions"):
        PipelineDemonstrations(worked=1.5)
