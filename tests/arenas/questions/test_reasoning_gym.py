"""Tests of questions of reasoning_gym, with a stand-in for the package."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from arenas.collaboration.pipeline import Pipeline
from arenas.debate.arena import Debate
from arenas.questions._reasoning_program import is_held_out
from arenas.questions.arena import Questions
from arenas.questions.reasoning_gym import (
    BLOCK,
    ReasoningGym,
    ReasoningTasks,
    ReasoningVerifier,
    Split,
    tasks,
)
from selfplay.arena import Arena
from selfplay.curriculum.levels import LevelDraw
from selfplay.errors import ConfigError
from selfplay.types import Task, from_json, to_json
from tests.helpers import fake_reasoning_gym


@pytest.fixture(scope="module")
def gym(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReasoningGym]:
    """Yield the service, which uses the stand-in."""
    with pytest.MonkeyPatch.context() as patch:
        fake_reasoning_gym.install(tmp_path_factory.mktemp("fake"), patch)
        service = ReasoningGym(memory_mb=512)
        service.levels(["sums"])  # the processes import the stand-in while it is on the path
        _score(service, "sums", "1")
        yield service
        service.close()


def _one(gym: ReasoningGym, name: str, **settings: Any) -> Task:
    return tasks(reasoning_gym=gym, generators=[name], count=1, **settings)[0]


def _score(service: ReasoningGym, name: str, answer: str, **payload: Any) -> float:
    return service.score(answer, {**_one(service, name).payload, **payload})


def test_the_error_for_a_missing_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("selfplay.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^reasoning_gym: .*pip install 'selfplay\[reasoning\]'"):
        ReasoningGym()


def test_the_splits_share_no_question_and_no_seed(gym: ReasoningGym) -> None:
    splits: tuple[Split, ...] = ("train", "held_out")
    made = {
        split: tasks(reasoning_gym=gym, generators=["sums"], count=40, split=split, level=0)
        for split in splits
    }
    questions = {split: {t.payload["question"] for t in found} for split, found in made.items()}
    assert {len(found) for found in questions.values()} == {40}
    assert not questions["train"] & questions["held_out"]
    assert all(map(is_held_out, questions["held_out"]))
    seeds: dict[Split, list[range]] = {split: [] for split in splits}
    for split in splits:
        for number in range(200):
            source = ReasoningTasks(reasoning_gym=gym, split=split, seed=number % 7)
            request = source.request("sums", number % 3, 500, number)
            seeds[split].append(range(request["seed"], request["seed"] + request["size"]))
    blocks = {split: {each.start // BLOCK for each in found} for split, found in seeds.items()}
    assert not blocks["train"] & blocks["held_out"]
    assert all(each.stop <= 2**31 for found in seeds.values() for each in found)
    assert all(len(each) <= BLOCK for found in seeds.values() for each in found)


def test_a_draw_depends_only_on_its_request_and_the_seed(gym: ReasoningGym) -> None:
    source = ReasoningTasks(reasoning_gym=gym, seed=3)
    ask = LevelDraw(generator="sums", level=1, count=4, number=7)
    other = replace(ask, number=8)
    first, second = source.draw([ask, other])
    assert source.draw([ask]) == [first] and first != second
    assert all(int(word) <= 5000 for t in first for word in _terms(t))
    assert any(int(word) > 50 for t in first for word in _terms(t))
    assert ReasoningTasks(reasoning_gym=gym, seed=4).draw([ask]) != [first]


def _terms(task: Task) -> list[str]:
    return str(task.payload["question"]).rstrip("?").split(" + ")


def test_a_task_is_plain_data_and_its_verdict_survives_the_record(gym: ReasoningGym) -> None:
    task = _one(gym, "sums")
    again = from_json(Task, json.loads(json.dumps(to_json(task))))
    assert again == task and task.type == "sums" and task.payload["gym"]["version"] == "0.1.25"
    right = str(sum(map(int, _terms(task))))
    # The stand-in's verifier needs a tuple and a number as key, which JSON alone would lose.
    assert gym.score(right, again.payload) == 1.0 and task.payload["answer"] == right
    assert gym.score("no", again.payload) == 0.25


def test_partial_scores_count_only_on_request(gym: ReasoningGym) -> None:
    payload = _one(gym, "sums").payload
    assert ReasoningVerifier(reasoning_gym=gym)("no", payload) == 0.0
    assert ReasoningVerifier(reasoning_gym=gym, partial=True)("no", payload) == 0.25
    assert ReasoningVerifier(reasoning_gym=gym)(payload["answer"], payload) == 1.0


def test_a_verifier_that_needs_its_data_gets_it(gym: ReasoningGym) -> None:
    task = _one(gym, "loaded")
    assert gym.score(task.payload["answer"], task.payload) == 1.0  # 0.5 would mean a hidden error


def test_an_answer_that_is_a_program_has_no_effect(gym: ReasoningGym, tmp_path: Path) -> None:
    target = tmp_path / "written"
    attack = f"__import__('pathlib').Path({str(target)!r}).write_text('x')"
    assert _score(gym, "evaluated", attack) == 0.0
    assert not target.exists()
    assert _score(gym, "evaluated", "open('/etc/passwd').read()") == 0.0
    assert _score(gym, "evaluated", "(") == 0.0
    assert _score(gym, "evaluated", "\ud800") == 0.0
    assert _score(gym, "evaluated", "7" * 200_000) == 0.0
    right = _one(gym, "evaluated").payload["answer"]
    assert _score(gym, "evaluated", f"int('{right}')") == 1.0


def test_a_foreign_task_is_refused_or_scored_zero(gym: ReasoningGym) -> None:
    good = _one(gym, "sums").payload["gym"]
    bad: tuple[Any, ...] = (None, 3, [], {}, {**good, "entry": 3}, {**good, "generator": None})
    for gym_entry in bad:
        with pytest.raises(ConfigError, match="no entry of reasoning_gym"):
            _score(gym, "sums", "1", gym=gym_entry)
    with pytest.raises(ConfigError, match=r"made by version '9\.9'"):
        _score(gym, "sums", "1", gym={**good, "version": "9.9"})
    for changed in (
        {"entry": "__import__('os')"},
        {"generator": "os.system"},
        {"entry": "(" * 999},
    ):
        assert _score(gym, "sums", "1", gym={**good, **changed}) == 0.0


def test_unknown_names_and_too_many_questions_are_refused(gym: ReasoningGym) -> None:
    with pytest.raises(ConfigError, match=r"no generator 'sumz'; .*sums"):
        gym.levels(["sumz"])
    with pytest.raises(ConfigError, match="no generator 'composite'"):
        gym.levels(["composite"])
    with pytest.raises(ConfigError, match=r"sums: raised \(TypeError.*large"):
        _one(gym, "sums", config={"sums": {"large": 3}})
    with pytest.raises(ConfigError, match=r"pair has \d different questions"):
        tasks(reasoning_gym=gym, generators=["pair"], count=3)
    with pytest.raises(ConfigError, match="count is from 1"):
        tasks(reasoning_gym=gym, generators=["sums"], count=0)
    assert gym.levels(["sums", "loaded"]) == [3, 1]


def test_a_task_without_an_answer_has_none(gym: ReasoningGym) -> None:
    assert "answer" not in _one(gym, "sums", labelled=False).payload
    pair = tasks(reasoning_gym=gym, generators=["pair"], count=1, split="train")
    assert "answer" not in pair[0].payload


def _arenas(gym: ReasoningGym) -> list[Arena]:
    verifier = ReasoningVerifier(reasoning_gym=gym)
    return [
        Questions(proposers=0, solvers=2, label="verifier", verifier=verifier),
        Debate(verifier=verifier, debaters=2, rounds=2),
        Pipeline(verifier=verifier),
    ]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_arena_of_questions_plays_and_replays_a_task(gym: ReasoningGym, number: int) -> None:
    arena = _arenas(gym)[number]
    task = _one(gym, "sums")
    rng = Random(0)
    arena.begin(task, 0)
    while not arena.finished:
        arena.play_stage(
            {
                agent: json.dumps({"answer": rng.choice([task.payload["answer"], "no"])})
                for agent in arena.stage
            }
        )
    metrics, paid = dict(arena.metrics), dict(arena.paid)
    arena.replay(arena.history[:])
    assert (dict(arena.metrics), dict(arena.paid)) == (metrics, paid)
    assert 0.0 <= metrics.get("solve_rate", metrics.get("accuracy", -1.0)) <= 1.0


def test_votes_need_no_answer_and_the_oracle_measures(gym: ReasoningGym) -> None:
    arena = Questions(proposers=0, solvers=3, oracle=ReasoningVerifier(reasoning_gym=gym))
    task = _one(gym, "sums", labelled=False)
    arena.begin(task, 0)
    right = str(sum(map(int, _terms(task))))
    said = {
        a: json.dumps({"answer": w}) for a, w in zip(arena.stage, [right, right, "no"], strict=True)
    }
    arena.play_stage(said)
    assert arena.metrics["true_accuracy"] == pytest.approx(2 / 3)
    assert arena.metrics["label_accuracy"] == 1.0 and arena.paid["solver_0"] == 1.0
