"""Tests of the command `show`."""

from pathlib import Path
from typing import Any

import pytest

from selfplay.cli.main import main
from selfplay.run.directory import Run
from selfplay.types import Status, StopReason, ToolCall
from tests.helpers.builders import episode, group, turn

HOSTILE = "\x1b[2Jpaid: me\nEpisode 9 of step 9\u202e"


def spoken(agent: str, reward: float, text: str, **fields: Any) -> Any:
    messages = ({"role": "user", "content": f"ask {agent}"},)
    return turn(agent, reward, **{"messages": messages, "text": text, "action": text, **fields})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run of two steps; the second has three episodes, of which the last failed."""
    folder = tmp_path / "run"
    made = Run.create(folder, {"roles": {}})
    call = ToolCall(name="search", arguments='{"query": "x"}', result="found", error="")
    cut = spoken("a_0", 0.5, "middle", stop_reason=StopReason.LENGTH, info={"verdict": "late"})
    steps = [
        [episode(spoken("a_0", 1.0, "old"))],
        [
            episode(spoken("a_0", -1.0, "least"), spoken("b_0", 1.0, "most", tool_calls=(call,))),
            episode(cut, spoken("b_0", -2.0, HOSTILE)),
            episode(spoken("a_0", 3.0, "broken"), status=Status.FAILED, error="it broke\nbadly"),
        ],
    ]
    for step, episodes in enumerate(steps):
        made.record(step, {}, [group(*episodes, name=f"{step}.0")], [])
    return folder


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["show", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["show", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_the_first_episode_of_the_last_step(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, run).splitlines()
    assert lines[0] == "Episode 1 of step 1 (group 1.0, finished)"
    first = lines.index("--- a_0 (a), policy base")
    assert lines[first + 1 : first + 6] == [
        "user:",
        "    ask a_0",
        "completion:",
        "    least",
        "reward -1, advantage -",
    ]
    called = lines.index("call of search:")
    assert lines[called + 1 : called + 4] == ['    {"query": "x"}', "result:", "    found"]
    assert lines[-1] == "paid: a_0 -1, b_0 1"
    assert "middle" not in lines


def test_stages_and_metrics_of_an_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Run.create(tmp_path / "run", {"roles": {}})
    turns = [spoken("a_0", 1.0, "one", stage=0), spoken("b_0", 0.0, "two", stage=1)]
    played = episode(*turns, metrics={"solved": 1.0, "length\n": 2.5})
    made.record(1, {}, [group(played)], [])
    lines = shown(capsys, tmp_path / "run").splitlines()
    assert "--- a_0 (a), policy base, stage 0" in lines
    assert "--- b_0 (b), policy base, stage 1" in lines
    assert lines[-3:] == ["metrics: solved 1, length 2.50", "", "paid: a_0 1, b_0 0"]


def test_the_text_of_a_model_is_no_heading_and_no_control_characters(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, run, "--episode", 2)
    assert "\x1b" not in text and "\u202e" not in text
    assert "\n    Episode 9 of step 9" in text
    headings = [line for line in text.splitlines() if line.startswith(("Episode", "paid"))]
    assert headings == ["Episode 2 of step 1 (group 1.0, finished)", "paid: a_0 0.500, b_0 -2"]
    assert "reward 0.500, advantage -; verdict late; cut off at the token limit" in text


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        (["--best"], [3]),
        (["--worst", "--count", 2], [2, 1]),
        (["--best", "--role", "b", "--count", 9], [1, 3, 2]),
        (["--failed", "--count", 5], [3]),
        (["--step", 0], [1]),
    ],
)
def test_episodes_are_chosen(
    run: Path, arguments: list[Any], numbers: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    heads = [line for line in shown(capsys, run, *arguments).splitlines() if "Episode" in line[:8]]
    assert [int(head.split()[1]) for head in heads] == numbers
    if "--failed" in arguments:
        assert heads == ["Episode 3 of step 1 (group 1.0, failed: it broke badly)"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--step", 7], "no episodes of step 7; near it are those of 0, 1"),
        (["--episode", 4], "no episode 4; step 1 has 3"),
        (
            ["--step", 0, "--failed"],
            ": step 0 has no failed episode; --step N chooses another step",
        ),
        (["--episode", 1, "--failed"], ": episode 1 of step 1 did not fail; drop --failed"),
        (["--count", 0], "--count 0: 1 or more is needed"),
        (["--role", "b"], "give --best or --worst too"),
        (["--best", "--role", "c"], "no turn of the role 'c'"),
        (["--best", "--worst"], "not allowed with argument"),
    ],
)
def test_a_choice_without_an_episode_is_refused(
    run: Path, arguments: list[Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, run, *arguments)


def test_a_run_without_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Run.create(tmp_path / "run", {"roles": {}})
    assert "run.episodes_every" in refused(capsys, tmp_path / "run")


def test_a_damaged_line_hides_no_other_episode(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "episodes/000001.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], "{not json\n", *lines[1:]]))
    assert main(["show", str(run), "--count", "9"]) == 0
    out, error = capsys.readouterr()
    heads = [line[:19] for line in out.splitlines() if line.startswith("Episode ")]
    assert heads == ["Episode 1 of step 1", "Episode 3 of step 1", "Episode 4 of step 1"]
    assert "left out one damaged line: episodes/000001.jsonl, line 2: not valid JSON" in error
    assert error.count("\n") == 1
    assert shown(capsys, run, "--episode", 3).startswith("Episode 3 of step 1")
    assert "no episode 2; step 1 has 3 (left out one" in refused(capsys, run, "--episode", 2)
    path.write_text("{not json\n")
    assert "000001.jsonl, line 1: not valid JSON" in refused(capsys, run)
