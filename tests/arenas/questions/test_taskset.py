"""Tests of tasksets of the library verifiers, with a stand-in: reading, scoring and errors."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

import pytest

from arenas.collaboration.pipeline import Pipeline
from arenas.debate.arena import Debate
from arenas.questions import taskset as module
from arenas.questions.arena import Questions
from arenas.questions.taskset import TasksetVerifier, VerifiersTaskset, tasks
from roles.debater import Replier
from selfplay.arena import Arena
from selfplay.errors import ConfigError
from selfplay.types import InvalidAction, Task, from_json, to_json
from tests.helpers import fake_verifiers


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install the stand-in, which processes of this interpreter import."""
    with pytest.MonkeyPatch.context() as patch:
        fake_verifiers.install(tmp_path_factory.mktemp("library"), patch)
        yield


def _service(**settings: Any) -> VerifiersTaskset:
    return VerifiersTaskset(**{"id": "sums", "python": sys.executable, **settings})


@pytest.fixture(scope="module")
def sums(library: None) -> Iterator[VerifiersTaskset]:
    """Yield the taskset of sums."""
    service = _service()
    yield service
    service.close()


@pytest.fixture(scope="module")
def task(sums: VerifiersTaskset) -> Task:
    """Return the task with the question `0 + 0 =`."""
    return tasks(taskset=sums, count=1)[0]


def test_tasks_are_read_in_order_and_splits_are_disjoint(sums: VerifiersTaskset) -> None:
    made = {
        split: [task.payload["question"] for task in tasks(taskset=sums, split=split)]
        for split in ("all", "train", "held_out")
    }
    assert made["all"] == [f"{number} + {number % 7} =" for number in range(450)]
    assert sorted(made["train"] + made["held_out"]) == sorted(made["all"])
    assert 0.1 < len(made["held_out"]) / 450 < 0.3
    assert [t.payload["question"] for t in tasks(taskset=sums, count=2)] == made["all"][:2]


def test_tasks_can_be_read_with_other_settings(sums: VerifiersTaskset) -> None:
    few = tasks(taskset=sums, config={"count": 3})
    assert few == tasks(taskset=sums, count=3)
    assert len(tasks(taskset=sums)) == 450
    (joined,) = tasks(taskset=sums, config={"kind": "parts"})
    assert joined.payload["question"] == "Add.\n\n1 + 2 ="
    assert sums.reward(joined.payload["taskset"]["data"]["answer"], joined.payload) == 0.9
    with pytest.raises(ConfigError, match="extra"):
        tasks(taskset=sums, config={"unknown": 1})


def test_a_task_is_plain_data_and_its_reward_survives_the_record(
    sums: VerifiersTaskset, task: Task
) -> None:
    again = from_json(Task, json.loads(json.dumps(to_json(task))))
    assert again == task and task.type == "sums"
    assert sums.reward("0", again.payload) == 0.9
    assert sums.reward("a long answer", again.payload) == pytest.approx(-0.1)


def test_the_score_is_a_fraction_of_the_best_reward(sums: VerifiersTaskset, task: Task) -> None:
    assert TasksetVerifier(taskset=sums)("0", task.payload) == 0.9
    assert TasksetVerifier(taskset=sums, best=0.9)("0", task.payload) == 1.0
    assert TasksetVerifier(taskset=sums, best=9.0)("0", task.payload) == pytest.approx(0.1)
    assert TasksetVerifier(taskset=sums)("a long answer", task.payload) == 0.0
    assert TasksetVerifier(taskset=sums)("large", task.payload) == 1.0
    assert TasksetVerifier(taskset=sums, form="+{answer}")("0", task.payload) == 0.0
    with pytest.raises(ValueError, match="once"):
        TasksetVerifier(taskset=sums, form="answer")
    with pytest.raises(ValueError, match="above 0"):
        TasksetVerifier(taskset=sums, best=0.0)


@pytest.mark.parametrize(
    ("reply", "outcome"), [("raise", "raised"), ("nan", "raised"), ("exit", "ended")]
)
def test_an_answer_that_breaks_a_reward_has_the_reward_0(
    library: None, task: Task, reply: str, outcome: str
) -> None:
    service = _service()
    assert service.reward(reply, task.payload) == 0.0
    assert service.reward("0", task.payload) == 0.9  # by a new process, if the first one ended
    assert service.drain_metrics() == {outcome: 1, "scored": 1}
    assert service.drain_metrics() == {}
    service.close()


@pytest.mark.parametrize("reply", ["sleep", "block"])
def test_an_answer_that_takes_too_long_has_the_reward_0(
    library: None, task: Task, reply: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", 3.0)
    service = _service(answer_seconds=2.0)
    assert service.reward(reply, task.payload) == 0.0
    assert service.reward("0", task.payload) == 0.9
    assert service.drain_metrics() == {"timeout": 1, "scored": 1}
    service.close()


def test_an_answer_without_a_score_can_fail_the_episode(library: None, task: Task) -> None:
    service = _service(errors="fail")
    with pytest.raises(ValueError, match="an answer has no score: KeyError"):
        service.reward("raise", task.payload)
    assert service.reward("0", task.payload) == 0.9
    service.close()


def test_a_taskset_that_scores_nothing_ends_the_run(library: None, task: Task) -> None:
    service = _service(most_errors=3)
    for replies in (["raise", "raise", "0"], ["raise", "raise"]):
        for reply in replies:  # one score resets the count
            service.reward(reply, task.payload)
    with pytest.raises(ConfigError, match=r"3 answers in a row .* KeyError: 'what the reply"):
        service.reward("raise", task.payload)
    assert service.reward("1", task.payload) == 0.0
    service.close()


def test_equal_replies_are_scored_once(library: None, task: Task) -> None:
    service = _service()
    assert [service.reward(reply, task.payload) for reply in "0010"] == [0.9, 0.9, 0.0, 0.9]
    assert service.drain_metrics() == {"scored": 2, "remembered": 2}
    service.close()


@pytest.mark.parametrize("reply", ["\ud800", "\n\n", '{"error": "mine"}\n', "é" * 100_000, "talk"])
def test_odd_answers_are_scored(library: None, task: Task, reply: str) -> None:
    service = _service()
    assert service.reward(reply, task.payload) in (0.0, -0.1)
    assert service.reward("0", task.payload) == 0.9
    assert service.drain_metrics() == {"scored": 2}
    assert os.fstat(service._processes[0]._errors.fileno()).st_size < 10_000
    service.close()


def test_a_reward_cannot_read_the_requests(library: None, task: Task) -> None:
    service = _service()
    assert service.reward("read", task.payload) == 0.9  # the reward read an empty text
    assert service.reward("0", task.payload) == 0.9
    service.close()


def test_an_interrupted_answer_does_not_give_its_reward_to_the_next(
    library: None, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = _service()
    service.reward("1", task.payload)

    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("arenas.questions._taskset_process.os.read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            service.reward("0", task.payload)
    assert [service.reward(reply, task.payload) for reply in ("2", "0", "3")] == [0.0, 0.9, 0.0]
    service.close()


def test_several_threads_get_their_own_rewards(library: None) -> None:
    service = _service(workers=2)
    made = tasks(taskset=service, count=40)
    right = [str(task.payload["taskset"]["data"]["answer"]) for task in made]
    said = [answer if number % 3 else "exit" for number, answer in enumerate(right)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(service.reward, said, [task.payload for task in made]))
    assert found == [0.9 if number % 3 else 0.0 for number in range(40)]
    service.close()


def test_closing_ends_an_answer_that_is_scored(library: None, task: Task) -> None:
    service = _service()
    service.reward("1", task.payload)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(service.reward, "block", task.payload)
        sleep(0.5)
        service.close()
        assert waiting.result(timeout=20) == 0.0
    assert service.reward("0", task.payload) == 0.9
    service.close()


def test_a_forked_process_does_not_end_the_process_of_its_parent(
    sums: VerifiersTaskset, task: Task
) -> None:
    sums.reward("1", task.payload)
    process = sums._processes[0]._process
    child = os.fork()
    if child == 0:
        sums.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert sums._processes[0]._process is process and process is not None
    assert process.poll() is None
    assert sums.reward("0", task.payload) == 0.9


def test_the_process_ends_with_the_one_that_started_it(library: None) -> None:
    program = (
        "import sys; from time import sleep; from arenas.questions.taskset import *\n"
        f"service = VerifiersTaskset(id='sums', python={sys.executable!r})\n"
        "(task,) = tasks(taskset=service, count=1)\n"
        "print(service._processes[0]._process.pid, flush=True)\n"
        "service.reward('block', task.payload)\n"
    )
    running = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    started = int(running.stdout.readline())
    sleep(0.5)
    running.kill()
    running.wait()
    running.stdout.close()
    until = monotonic() + 20
    while monotonic() < until and _lives(started):
        sleep(0.1)
    assert not _lives(started)


def _lives(process: int) -> bool:
    """Return True for a process that exists and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("contained", "its tasks need a container"),
        ("boxed", "task 0 needs a container"),
        ("tooled", "its tasks have tools"),
        ("unpaid", "its tasks have no reward"),
        ("prepared", "its method finalize needs a runtime; .*runtime=subprocess"),
        ("changing", "its tasks change requests or replies"),
        ("remembering", "task 0 has an attribute 'tests' that is not in its data"),
        ("hiding", "task 0 is not the same when it is made again"),
        ("endless", r"it has no end; set the number of tasks \(count\)"),
        ("failing", "OSError: download failed"),
        ("silent", "task 0 has no prompt"),
        ("seen", "its prompts have images"),
        ("shown", "messages of the role assistant"),
        ("run", "its reward right needs a runtime; .*runtime=subprocess"),
    ],
)
def test_an_unsuitable_taskset_is_a_one_line_error(library: None, kind: str, words: str) -> None:
    service = _service(config={"kind": kind})
    for _ in range(2):  # the second attempt fails too
        with pytest.raises(ConfigError, match=f"^taskset sums: .*{words}") as caught:
            tasks(taskset=service)
        assert "\n" not in str(caught.value)
    service.close()


def test_an_endless_taskset_is_read_up_to_count(library: None) -> None:
    service = _service(config={"kind": "endless"})
    assert len(tasks(taskset=service, count=500)) == 500
    service.close()


def test_each_answer_gets_a_new_state_of_the_taskset(library: None) -> None:
    service = _service(config={"kind": "stateful"})
    made = tasks(taskset=service, count=2)
    assert [service.reward("0", task.payload) for task in made] == [1.0, 1.0]
    service.close()


def test_messages_are_one_question(library: None) -> None:
    service = _service(config={"kind": "parts", "count": 3})
    (only,) = tasks(taskset=service)  # the same question three times
    assert only.payload["question"] == "Add.\n\n1 + 2 ="
    assert service.reward("0", only.payload) == 0.9
    service.close()


def test_a_reward_may_run_programs_on_request(library: None) -> None:
    service = _service(config={"kind": "run"}, runtime="subprocess")
    last = tasks(taskset=service)[-1]
    assert service.reward("450", last.payload) == 1.0 == service.reward("450", last.payload)
    assert service.reward("451", last.payload) == 0.0
    service.close()


def test_a_taskset_that_cannot_be_loaded_is_refused(
    library: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, task: Task
) -> None:
    loud = tmp_path / "python"
    loud.write_text("#!/bin/sh\necho welcome\nsleep 60\n")
    loud.chmod(0o755)
    for settings, words in (
        ({"id": "broken"}, "taskset broken: RuntimeError: no data here$"),
        ({"id": "nothing"}, "taskset nothing: ModuleNotFoundError"),
        ({"config": {"county": 3}}, "taskset sums: ValidationError: .*county"),
        ({"python": "/nowhere/python"}, "taskset sums: /nowhere/python: No such file.*python"),
        ({"python": str(loud)}, r"taskset sums: its process wrote 'welcome' in place of"),
        ({"python": "/bin/false"}, r"taskset sums: its process ended with code 1 \(no message\)"),
    ):
        with pytest.raises(ConfigError, match=f"^{words}"):
            tasks(taskset=_service(**settings))
        known = {"id": settings.get("id", "sums"), "data": {}}
        with pytest.raises(ConfigError, match=f"^{words}"):
            _service(**settings).reward("0", {**task.payload, "taskset": known})
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs the library verifiers.*taskset\.python"):
        VerifiersTaskset(id="sums")


def test_the_cause_of_a_failed_import_is_named(library: None, tmp_path: Path) -> None:
    """The library reports every module that it cannot import as not found."""
    hidden = "try:\n    import lacking_here\nexcept ImportError as error:\n"
    (tmp_path / "needy.py").write_text(f"{hidden}    raise ValueError('not found') from error\n")
    with pytest.raises(
        ConfigError, match=r"^taskset needy: ValueError: not found; .*'lacking_here'$"
    ):
        tasks(taskset=_service(id="needy", folder=str(tmp_path)))


def test_an_error_that_is_its_own_cause_is_repeated_once(library: None, tmp_path: Path) -> None:
    (tmp_path / "circle.py").write_text("error = ValueError('round')\nraise error from error\n")
    said = "ValueError: round; caused by ValueError: round$"
    with pytest.raises(ConfigError, match=said):
        tasks(taskset=_service(id="circle", folder=str(tmp_path)))


def test_a_foreign_task_is_refused_or_scored_0(sums: VerifiersTaskset, task: Task) -> None:
    unknown: tuple[Any, ...] = (None, 3, [], {}, {"id": "other", "data": {}})
    for odd in unknown:
        with pytest.raises(ConfigError, match="no data of this taskset"):
            sums.reward("0", {**task.payload, "taskset": odd})
    sums.drain_metrics()
    broken: tuple[Any, ...] = (None, 3, {"answer": 4}, {"answer": "0", "prompt": None})
    for data in broken:
        assert sums.reward("0", {**task.payload, "taskset": {"id": "sums", "data": data}}) == 0.0
    assert sums.drain_metrics() == {"raised": len(broken)}


def test_wrong_settings_are_refused(sums: VerifiersTaskset) -> None:
    with pytest.raises(ValueError, match="workers"):
        _service(workers=0)
    with pytest.raises(ValueError, match="runtime"):
        _service(runtime="docker")
    with pytest.raises(ValueError, match="split"):
        tasks(taskset=sums, split="test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="count"):
        tasks(taskset=sums, count=0)
    with pytest.raises(ValueError, match="errors"):
        _service(errors="ignore")
    with pytest.raises(ConfigError, match="the split all has 450 different questions, not 451"):
        tasks(taskset=sums, count=451)


def _arenas(sums: VerifiersTaskset) -> list[Arena]:
    verifier = TasksetVerifier(taskset=sums)
    return [
        Questions(proposers=0, solvers=2, label="verifier", verifier=verifier),
        Debate(verifier=verifier, debaters=2, rounds=2),
        Pipeline(verifier=verifier),
    ]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_arena_of_questions_plays_and_replays_a_task(
    sums: VerifiersTaskset, task: Task, number: int
) -> None:
    arena = _arenas(sums)[number]
    rng = Random(0)
    arena.begin(task, 0)
    while not arena.finished:
        arena.play_stage({a: json.dumps({"answer": rng.choice("01")}) for a in arena.stage})
    metrics, paid = dict(arena.metrics), dict(arena.paid)
    arena.replay(arena.history[:])
    assert (dict(arena.metrics), dict(arena.paid)) == (metrics, paid)


def test_a_whole_reply_is_the_answer() -> None:
    role = Replier()
    assert json.loads(role.parse(" so\n\\boxed{4} "))["answer"] == "so\n\\boxed{4}"
    with pytest.raises(InvalidAction):
        role.parse(" \n")
