"""Evaluations of a question file score answers as the run's own arena does."""

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from arenas.questions.files import read
from selfplay import AgentSpec, EpisodeSpec, Observation, Role, Rollout, RolloutSettings
from selfplay.config import compose
from selfplay.config.instantiate import build
from selfplay.engines.scripted import ScriptedEngine
from selfplay.errors import ConfigError
from selfplay.models.renderer import ByteRenderer
from selfplay.rollout.setup import Components

LONG = "x" * 150
QUESTIONS = ["arena=questions", "arena.proposers=0", "roles=solver", "evaluations=question_file"]
OWN = [f"+arena.verifier._target_={__name__}.HasX", "arena.label=verifier"]


class HasX:
    """A verifier that reads no `answer`."""

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        return 0.75 * ("x" in answer)


def says(text: str) -> Any:
    def say(agent: str, observation: Observation, rng: Random) -> str:
        return json.dumps({"answer": text})

    return say


def asked(tmp_path: Path, line: dict[str, Any], said: str, *overrides: str) -> dict[str, Any]:
    """Return the metrics of the evaluation's first episode, in which all agents say `said`."""
    path = tmp_path / "asked.jsonl"
    path.write_text(json.dumps(line))
    config = compose.load([*overrides, f"evaluations.asked.tasks.path={path}"])
    node = config["evaluations"]["asked"]
    parts = Components(config)
    try:
        make = parts.arena_factory(node["arena"], where="evaluations.asked.arena")
        tasks = build(node["tasks"], where="evaluations.asked.tasks")
        spec = AgentSpec(role=Role(), policy="p", renderer=ByteRenderer())
        rollout = Rollout(
            arena=make,
            agent_specs=dict.fromkeys(make().roles, spec),
            engines={"p": ScriptedEngine({"p": says(said)})},
            settings=RolloutSettings(),
        )
        (episode,) = rollout.run([EpisodeSpec(task=tasks[0], seed=0)])
        return dict(episode.metrics)
    finally:
        parts.close()


@pytest.mark.parametrize("line", [{"question": "1 + 1"}, {"question": "1 + 1", "answer": 2}])
def test_the_verifier_of_the_run_scores_answers(tmp_path: Path, line: dict[str, Any]) -> None:
    """The verifier decides without an `answer`, and ignores an `answer` that it does not read."""
    assert asked(tmp_path, line, "x", *QUESTIONS, *OWN)["solve_rate"] == 0.75


def test_an_answer_may_be_as_long_as_in_training(tmp_path: Path) -> None:
    longer = [*QUESTIONS, *OWN, "arena.answer_length=200"]
    assert asked(tmp_path, {"question": "q"}, LONG, *longer)["solve_rate"] == 0.75


@pytest.mark.parametrize("run", [QUESTIONS, [*QUESTIONS, "arena.label=verifier"]])
def test_without_a_verifier_the_answer_of_the_file_decides(tmp_path: Path, run: list[str]) -> None:
    labelled = {"question": "1 + 1", "answer": 2}
    for said, score in (("2", 1.0), ("x", 0.0)):
        found = asked(tmp_path, labelled, said, *run)
        assert found["solve_rate"] == found["majority_accuracy"] == score


def test_the_solvers_agreement_is_not_an_accuracy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs an 'answer' in every task"):
        asked(tmp_path, {"question": "1 + 1"}, "2", *QUESTIONS)


@pytest.mark.parametrize("arena", ["debate", "pipeline"])
def test_a_discussion_is_scored_by_its_own_verifier(tmp_path: Path, arena: str) -> None:
    run = [f"arena={arena}", f"roles={arena}", "evaluations=question_file_discussion"]
    own = f"arena.verifier._target_={__name__}.HasX"
    assert asked(tmp_path, {"question": "q"}, "x", *run, own)["accuracy"] == 0.75


class ReadsLimit:
    """A verifier that reads a further field of the file."""

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        return float(len(answer) <= payload["limit"]["characters"])


def test_a_verifier_reads_further_fields(tmp_path: Path) -> None:
    """The evaluation takes the fields of the curriculum."""
    line = {"question": "q", "limit": {"characters": 3}, "other": 1}
    own = [
        *QUESTIONS,
        f"+arena.verifier._target_={__name__}.ReadsLimit",
        "arena.label=verifier",
        "curriculum=question_file",
        "curriculum.tasks.fields=[limit]",
    ]
    assert asked(tmp_path, line, "abc", *own)["solve_rate"] == 1.0
    assert asked(tmp_path, line, "abcd", *own)["solve_rate"] == 0.0
    (task,) = read(path=str(tmp_path / "asked.jsonl"), fields=["limit"])
    assert task.payload == {"mode": "solve", "question": "q", "limit": {"characters": 3}}
    assert read(path=str(tmp_path / "asked.jsonl"))[0].payload == {"mode": "solve", "question": "q"}


def test_wrong_fields_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text('{"question": "q", "limit": 1}\n{"question": "q", "limit": 2}\n')
    for fields, text in (
        (["size"], "line 1: it has no key 'size'"),
        (["answer"], "'answer' is no further key"),
        ("limit", r"write \[limit\]"),
        (["limit"], "line 2: the question of an earlier line, with other values"),
    ):
        with pytest.raises(ConfigError, match=text):
            read(path=str(path), fields=fields)
    assert len(read(path=str(path))) == 1
