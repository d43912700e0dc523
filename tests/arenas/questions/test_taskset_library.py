"""Tests with the real library verifiers in its own environment; skipped if there is none.

`scripts/setup verifiers` makes the environment; `SELFPLAY_VERIFIERS_PYTHON` names another Python.
"""

import os
import subprocess
from pathlib import Path

import pytest

from arenas.questions.taskset import TasksetVerifier, VerifiersTaskset, tasks
from selfplay.config import compose
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import check
from selfplay.experiment.trial_game import games

PLACE = Path(__file__).parents[3] / ".venv-verifiers"
GIVEN = os.environ.get("SELFPLAY_VERIFIERS_PYTHON")
PYTHON = GIVEN or str(PLACE / "bin" / "python")
INSTALLED = (PLACE / "installed-verifiers").exists()  # the last file that scripts/setup writes
pytestmark = pytest.mark.skipif(not (GIVEN or INSTALLED), reason="needs verifiers")

TASKSET = """
import verifiers.v1 as vf

__all__ = ["Sums"]


class Config(vf.TasksetConfig):
    count: int = 8


class Data(vf.TaskData):
    answer: int


class Sum(vf.Task[Data]):
    @vf.reward(weight=0.9)
    async def right(self, trace: vf.Trace) -> float:
        return float(str(self.data.answer) == trace.last_reply)

    @vf.reward(weight=0.1)
    async def short(self, task, trace) -> float:
        return float(len(trace.last_reply) < 5 and task.prompt in trace.transcript)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class Sums(vf.Taskset[Sum, Config]):
    def load(self):
        for number in range(self.config.count):
            prompt = f"{number} + {number} = ?"
            data = Data(prompt=prompt, answer=2 * number, system_prompt="Answer with a number.")
            yield Sum(data, self.config.task)
"""
PROGRAMS = """
import verifiers.v1 as vf

__all__ = ["Programs"]


class Program(vf.Task[vf.TaskData]):
    async def setup(self, runtime: vf.Runtime) -> None:
        await runtime.write("known.txt", b"42")

    @vf.reward
    async def right(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        result = await runtime.run(["cat", "known.txt"], {})
        return float(result.stdout.strip() == trace.last_reply)


class Programs(vf.Taskset[Program, vf.TasksetConfig]):
    def load(self):
        yield Program(vf.TaskData(prompt="The answer?"), self.config.task)
"""


TALKS = """
import verifiers.v1 as vf

__all__ = ["Talks"]


class Hits(vf.State):
    hits: int = 0


class Data(vf.TaskData):
    words: tuple[str, ...] = ()


class Talk(vf.Task[Data, Hits]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        trace.state.hits += 1
        return float(trace.last_reply in self.data.words) * trace.state.hits


class Talks(vf.Taskset[Talk, vf.TasksetConfig]):
    def load(self):
        said = [vf.SystemMessage(content="Be short."), vf.UserMessage(content="Hello?")]
        yield Talk(Data(prompt=said, words=("Hi", "Yes")), self.config.task)
"""


@pytest.fixture(autouse=True)
def _tasksets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "doubles_v1.py").write_text(TASKSET)
    (tmp_path / "programs_v1.py").write_text(PROGRAMS)
    (tmp_path / "talks_v1.py").write_text(TALKS)
    monkeypatch.chdir(tmp_path)  # a module of the current folder is a taskset


def test_tasks_are_read_and_replies_scored() -> None:
    service = VerifiersTaskset(id="doubles-v1", python=PYTHON, config={"count": 3})
    made = tasks(taskset=service)
    assert [task.payload["question"] for task in made] == [
        f"Answer with a number.\n\n{number} + {number} = ?" for number in range(3)
    ]
    verifier = TasksetVerifier(taskset=service)
    assert [verifier(reply, made[2].payload) for reply in ("4", "5", "abcdef")] == [1.0, 0.1, 0.0]
    assert service.drain_metrics() == {"scored": 3}
    service.close()


def test_prompts_of_several_messages_and_states_are_supported() -> None:
    service = VerifiersTaskset(id="talks-v1", python=PYTHON)
    (task,) = tasks(taskset=service)
    assert task.payload["question"] == "Be short.\n\nHello?"
    assert [service.reward(reply, task.payload) for reply in ("Hi", "No", "Yes")] == [1.0, 0.0, 1.0]
    service.close()


def test_an_answer_that_takes_too_long_leaves_no_program(tmp_path: Path) -> None:
    slow = PROGRAMS.replace('["cat", "known.txt"]', '["sleep", "4321"]')
    (tmp_path / "programs_v1.py").write_text(slow)
    service = VerifiersTaskset(
        id="programs-v1", python=PYTHON, runtime="subprocess", answer_seconds=2.0
    )
    (task,) = tasks(taskset=service)
    assert service.reward("42", task.payload) == 0.0
    assert service.drain_metrics() == {"timeout": 1}
    assert not subprocess.run(["pgrep", "-f", "sleep 4321"], capture_output=True).stdout
    service.close()


def test_a_package_that_a_taskset_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "needy_v1.py").write_text("import lacking_here\n")
    with pytest.raises(ConfigError, match=r"taskset 'needy-v1' not found .*'lacking_here'$"):
        tasks(taskset=VerifiersTaskset(id="needy-v1", python=PYTHON))


def test_a_runtime_is_used_only_on_request() -> None:
    refused = VerifiersTaskset(id="programs-v1", python=PYTHON)
    with pytest.raises(ConfigError, match="its method setup needs a runtime"):
        tasks(taskset=refused)
    refused.close()
    service = VerifiersTaskset(id="programs-v1", python=PYTHON, runtime="subprocess")
    (task,) = tasks(taskset=service)
    assert [service.reward(reply, task.payload) for reply in ("42", "41")] == [1.0, 0.0]
    service.close()


def test_the_shipped_experiment_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    settings = ["services.taskset.config={count: 600}", f"services.taskset.python={PYTHON}"]
    config = compose.load(["+experiment=smollm2/taskset", *settings])
    check(config)
    played = list(games(config, seed=0))
    assert len(played) == 2 and not any(game.faults for game in played)


def test_the_example_pays_the_right_order_and_its_pairs() -> None:
    scripts = str(Path(__file__).parents[3] / "scripts")
    settings = {"count": 40, "words": 3}
    service = VerifiersTaskset(id="word_order", python=PYTHON, folder=scripts, config=settings)
    sets = set()
    for task in tasks(taskset=service):
        data = task.payload["taskset"]["data"]
        first, second, third = right = data["answer"].split(", ")
        assert right == sorted(right) == sorted(data["example"].split(", "))
        asked = task.payload["question"].removeprefix("Put these words in alphabetical order: ")
        assert sorted(asked.split(", ")) == right
        sets.add(data["answer"])
        replies = [
            right,
            [first, third, second],
            [third, second, first],
            [first, second],
            [first] * 3,
        ]
        scores = [service.reward(", ".join(reply), task.payload) for reply in replies]
        assert scores == pytest.approx([1.0, 1 / 3, 0.0, 0.0, 0.0])
    assert len(sets) == 40
    service.close()


def test_the_controls_of_the_example_pay_words_in_any_order_or_at_random() -> None:
    scripts = str(Path(__file__).parents[3] / "scripts")
    scores: dict[str, list[float]] = {}
    for pay in ("words", "chance"):
        settings = {"count": 1, "pay": pay, "unseen": True}
        service = VerifiersTaskset(id="word_order", python=PYTHON, folder=scripts, config=settings)
        (task,) = tasks(taskset=service)
        data = task.payload["taskset"]["data"]
        right = data["answer"].split(", ")
        assert right == sorted(data["example"].split(", "))
        replies = (", ".join(right), ", ".join(reversed(right)), ", ".join(right[:2]), "apple")
        scores[pay] = [service.reward(reply, task.payload) for reply in replies]
        service.close()
    assert scores["words"] == [1.0, 1.0, 0.0, 0.0]
    assert len(set(scores["chance"])) == 4
    assert all(0.0 < score < 1.0 for score in scores["chance"])
