"""Tests of demonstrations of the answers of a taskset, with a stand-in for verifiers."""

import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from arenas.questions._reasoning_program import is_held_out
from arenas.questions.arena import question_view
from arenas.questions.taskset import VerifiersTaskset, tasks
from arenas.questions.taskset_answers import TasksetAnswers
from selfplay.errors import ConfigError
from selfplay.types import Demonstration
from tests.helpers import fake_verifiers


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifiersTaskset]:
    """Yield the taskset of sums."""
    with pytest.MonkeyPatch.context() as patch:
        fake_verifiers.install(tmp_path_factory.mktemp("library"), patch)
        service = VerifiersTaskset(id="sums", python=sys.executable)
        yield service
        service.close()


def _shown(number: int, rng: int = 0, **settings: Any) -> list[Demonstration]:
    source = TasksetAnswers(**settings)
    return list(islice(source.stream(Random(rng), 0.0), number))


def test_answers_are_those_of_the_tasks_in_their_form(sums: VerifiersTaskset) -> None:
    for each in _shown(50, taskset=sums, form="It is {answer}."):
        first, second = map(int, re.findall(r"\d+", each.observation.text))
        assert (each.role, each.completion) == ("solver", f"It is {first + second}.")
    (shown,) = _shown(1, taskset=sums, field="idx", count=1, role="generator")
    first_task = tasks(taskset=sums, split="train", count=1)[0]
    assert shown == Demonstration(
        role="generator",
        observation=question_view(first_task.payload["question"]),
        completion=str(first_task.payload["taskset"]["data"]["idx"]),
    )


def test_all_questions_that_are_not_held_out_are_shown_equally_often(
    sums: VerifiersTaskset,
) -> None:
    trained = len(tasks(taskset=sums, split="train"))
    shown = [each.observation.text for each in _shown(2 * trained, taskset=sums)]
    assert len(set(shown[:trained])) == len(set(shown[trained:])) == trained
    assert shown[:trained] != shown[trained:]
    assert not any(map(is_held_out, shown))


def test_the_seed_decides_the_order(sums: VerifiersTaskset) -> None:
    one, same, other = (_shown(20, rng, taskset=sums, count=20) for rng in (1, 1, 2))
    assert one == same != other


def test_the_processes_end_after_the_tasks_are_read(sums: VerifiersTaskset) -> None:
    reported: list[str] = []
    TasksetAnswers(taskset=sums, count=3).prepare(reported.append)
    assert reported == ["warm start: field answer of 3 tasks of the taskset sums"]
    assert all(process._process is None for process in sums._processes)


@pytest.mark.parametrize("field", ["solution", "image"])
def test_a_task_without_the_answer_is_refused(sums: VerifiersTaskset, field: str) -> None:
    with pytest.raises(ConfigError, match=rf"has no text or number under '{field}'.*answer, idx"):
        _shown(1, taskset=sums, field=field)


def test_a_form_without_a_place_for_the_answer_is_refused(sums: VerifiersTaskset) -> None:
    with pytest.raises(ValueError, match=r"does not contain \{answer\} once"):
        TasksetAnswers(taskset=sums, form="answer")


def test_a_taskset_in_a_folder_of_its_own_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_verifiers.install(tmp_path / "library", monkeypatch)
    there = tmp_path / "there"
    there.mkdir()
    (tmp_path / "library" / "sums.py").rename(there / "moved.py")
    with pytest.raises(ConfigError, match="No module named 'moved'"):
        tasks(taskset=VerifiersTaskset(id="moved", python=sys.executable), count=1)
    monkeypatch.chdir(tmp_path)
    service = VerifiersTaskset(id="moved", python=sys.executable, folder="there")
    assert tasks(taskset=service, count=1)[0].payload["question"] == "0 + 0 ="
    service.close()
