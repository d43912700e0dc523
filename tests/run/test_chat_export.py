"""Tests of the export of recorded turns as chats: their selection, and the written lines."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from selfplay.cli.export import _write
from selfplay.cli.main import main
from selfplay.errors import ConfigError, RunError
from selfplay.learner.chat_file import ChatFile
from selfplay.run.chat_export import ChatExport, Selection
from selfplay.run.directory import Run
from selfplay.types import Episode, Status, StopReason
from tests.helpers.builders import episode, group, turn


def text_turn(agent: str, reward: float, text: str = "hi", **fields: Any) -> Any:
    messages = ({"role": "user", "content": f"ask {agent}"},)
    return turn(agent, reward, **{"messages": messages, "text": text, **fields})


def record(folder: Path, *steps: Sequence[Episode], roles: dict[str, Any] | None = None) -> Path:
    """Create a run folder with these episodes; the episodes of a step are one group."""
    run = Run.create(folder, {"roles": roles or {}})
    for step, episodes in enumerate(steps):
        run.record(step, {}, [group(*episodes, name=f"{step}.0")], [])
    return folder


def exported(run: Path, **chosen: Any) -> list[dict[str, Any]]:
    return list(ChatExport(run=run, selection=Selection(**chosen)).lines())


def texts(lines: list[dict[str, Any]]) -> list[str]:
    return [line["messages"][-1]["content"] for line in lines]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    first = [
        episode(text_turn("a_0", 1.0, "one"), text_turn("b_0", -1.0, "two")),
        episode(text_turn("a_0", -1.0, "three"), text_turn("b_0", 1.0, "four")),
    ]
    second = [
        episode(
            text_turn("a_0", 0.5, "five"), text_turn("a_0", 0.25, "six"), text_turn("b_0", 0.0, "x")
        )
    ]
    return record(tmp_path / "run", first, second)


def test_a_line_is_a_turn_with_its_prompt_and_its_episode(run: Path) -> None:
    line = exported(run)[0]
    assert line["messages"] == [
        {"role": "user", "content": "ask a_0"},
        {"role": "assistant", "content": "one"},
    ]
    assert line["metadata"] == {
        "run": "run",
        "step": 0,
        "episode": "0.0/0",
        "role": "a",
        "agent": "a_0",
        "policy": "base",
        "reward": 1.0,
    }


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({}, ["one", "two", "three", "four", "five", "six", "x"]),
        ({"role": "b"}, ["two", "four", "x"]),
        ({"min_reward": 0.75}, ["one", "four", "five", "six"]),
        ({"best": 0.5}, ["one", "four", "five", "six", "x"]),
        ({"best": 0.1}, ["one", "four"]),
        ({"role": "a", "best": 0.5, "first": 1}, ["five", "six"]),
        ({"last": 0, "min_reward": -1.0}, ["one", "two", "three", "four"]),
    ],
)
def test_episodes_are_chosen_by_the_return_of_the_agent(
    run: Path, chosen: dict[str, Any], found: list[str]
) -> None:
    assert texts(exported(run, **chosen)) == found


def test_the_best_fraction_is_not_rounded_up_by_a_float_error(tmp_path: Path) -> None:
    run = record(tmp_path / "run", [episode(text_turn("a_0", float(n), str(n))) for n in range(25)])
    assert texts(exported(run, best=0.28)) == [str(n) for n in range(18, 25)]


def test_a_conversation_has_the_earlier_answers_without_weight(tmp_path: Path) -> None:
    talk = [
        text_turn("a_0", 0.0, "one", prompt_ids=(1, 2), completion_ids=(3,)),
        text_turn("a_0", 0.0, "two", prompt_ids=(1, 2, 3, 4), completion_ids=(5,)),
        text_turn("a_0", 0.0, "three", prompt_ids=(9,), completion_ids=(5,)),
    ]
    lines = exported(record(tmp_path / "ids", [episode(*talk)]))
    asked = {"role": "user", "content": "ask a_0"}
    earlier = {"role": "assistant", "content": "one", "weight": 0}
    assert lines[1]["messages"] == [asked, earlier, asked, {"role": "assistant", "content": "two"}]
    assert len(lines[2]["messages"]) == 2
    roles = {"a": {"memory": "conversation"}}
    lines = exported(record(tmp_path / "config", [episode(*talk)], roles=roles))
    assert [len(line["messages"]) for line in lines] == [2, 4, 6]


def test_turns_unfit_for_training_are_left_out_and_counted(tmp_path: Path) -> None:
    turns = [
        text_turn("a_0", 0.0, "good"),
        text_turn("a_0", 0.0, "bad", action=None),
        text_turn("a_0", 0.0, "long", stop_reason=StopReason.LENGTH),
        text_turn("a_0", 0.0, "bare", messages=()),
        text_turn("a_0", 0.0, "seen", messages=({"role": "user", "content": [{"type": "image"}]},)),
        text_turn("b_0", 9.0, "frozen", trainable=False),
    ]
    broken = episode(text_turn("a_0", 9.0, "failed"), status=Status.FAILED, error="x")
    export = ChatExport(
        run=record(tmp_path / "run", [episode(*turns), broken]), selection=Selection()
    )
    assert texts(list(export.lines())) == ["good"]
    assert sum(export.left_out.values()) == 4 and len(export.left_out) == 4


def test_a_turn_that_is_left_out_is_not_exported_and_counts_in_the_return(tmp_path: Path) -> None:
    mixed = episode(
        text_turn("a_0", 1.0, "learned"), text_turn("a_0", -5.0, "left out", trainable=False)
    )
    good = episode(text_turn("a_0", 2.0, "good"))
    run = record(tmp_path / "run", [mixed, good])
    export = ChatExport(run=run, selection=Selection())
    lines = list(export.lines())
    assert texts(lines) == ["learned", "good"]
    assert [line["metadata"]["reward"] for line in lines] == [-4.0, 2.0]
    assert export.left_out == {"that no policy learns from": 1}
    assert texts(exported(run, min_reward=0.5)) == ["good"]


def test_a_run_without_turns_that_learn_says_so(tmp_path: Path) -> None:
    run = record(tmp_path / "run", [episode(text_turn("a_0", 1.0, trainable=False))])
    with pytest.raises(RunError, match="no recorded turn is of a policy that learns"):
        exported(run)


def test_turns_that_branches_share_are_written_once(tmp_path: Path) -> None:
    stem = text_turn("a_0", 1.0, "stem", completion_ids=(7,))
    first = episode(stem, text_turn("a_0", 0.0, "left"))
    second = episode(stem, text_turn("a_0", 1.0, "right"), branch_of=0, shared_turns=1)
    run = record(tmp_path / "run", [first, second])
    assert texts(exported(run)) == ["stem", "left", "right"]
    assert texts(exported(run, min_reward=2.0)) == ["stem", "right"]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"role": "c"}, "--role c: no such turns; choose from: a, b"),
        ({"first": 5}, "--steps names no recorded step; 0 to 1 are there"),
        ({"min_reward": 7.0}, "no episode has a reward of at least 7.0"),
    ],
)
def test_an_empty_selection_is_a_one_line_error(run: Path, chosen: Any, message: str) -> None:
    with pytest.raises(RunError, match=message):
        exported(run, **chosen)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"best": 0.0}, "--best 0"),
        ({"best": 1.5}, "--best 1.5"),
        ({"min_reward": float("nan")}, "--min-reward nan"),
        ({"min_reward": 1.0, "best": 0.5}, "choose one of them"),
        ({"first": 3, "last": 2}, "--steps 3:2"),
    ],
)
def test_impossible_choices_are_refused(chosen: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Selection(**chosen)


def test_a_folder_that_is_no_run_or_has_no_record(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        exported(tmp_path)
    with pytest.raises(RunError, match="no episodes are recorded"):
        exported(record(tmp_path / "empty"))
    run = record(tmp_path / "run", [episode(text_turn("a_0", 1.0))])
    (run / "config.yaml").write_text("a: [")
    with pytest.raises(RunError, match="cannot be read as the config of a run"):
        exported(run)


def test_the_command_writes_a_new_file_that_can_be_learned(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "chats.jsonl"
    assert main(["export", str(run), "--out", str(out), "--role", "b", "--steps", "0"]) == 0
    assert capsys.readouterr().out == f"{out}: 2 turns\n"
    assert [example.completion for example in ChatFile(path=str(out)).examples()] == ["two", "four"]
    assert main(["export", str(run), "--out", str(out)]) == 2
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert main(["export", str(run), "--best", "0.1", "--format", "sft"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert texts([json.loads(line) for line in lines]) == ["one", "four"]
    for wrong in (["--steps", "a:b"], ["--format", "dpo"], ["more"]):
        assert main(["export", str(run), *wrong]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()].count("chats.jsonl") == 1


def test_a_full_disk_is_one_line_that_names_the_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "chats.jsonl"
    export = ChatExport(run=run, selection=Selection())
    monkeypatch.setattr(export, "lines", lambda: iter([{"text": "x" * 100_000}]))
    full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
    monkeypatch.setattr("pathlib.Path.open", lambda *given, **settings: full)
    with pytest.raises(RunError, match=r"--out .*chats.jsonl: cannot be written \(No space left"):
        _write(out, export)
    assert not out.exists()


def test_a_run_with_code_that_is_not_trusted_is_exported_without_importing_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roles = {"a": {"_target_": "no_such_package.Role"}}
    run = record(tmp_path / "run", [episode(text_turn("a_0", 1.0))], roles=roles)
    assert main(["export", str(run)]) == 0
    assert json.loads(capsys.readouterr().out)["metadata"]["reward"] == 1.0
