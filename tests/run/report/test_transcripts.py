"""Tests of transcripts: the choice of episodes, and the text of a turn."""

from pathlib import Path

import pytest

from selfplay.errors import RunError
from selfplay.run.report.transcripts import choose, show, split
from tests.helpers.recorded_run import make_run, proposal, turn


def test_only_the_first_middle_and_last_step_are_read(tmp_path: Path) -> None:
    choices = choose(make_run(tmp_path / "zero", steps=60))
    assert sorted({choice.step for choice in choices}) == [1, 30, 60]
    first = [choice for choice in choices if choice.step == 1]
    assert [choice.line for choice in first] == [1, 2, 4]
    assert first[0].reasons == ["the first proposal that failed (proposer_0)"]
    assert len(first[1].reasons) == 3 and first[1].marked == {0, 1, 2}
    assert [shown.advantage for shown in first[1].turns()][:2] == ["0.225", "0.600"]
    first[1].advantages = [0.5]  # one value for nine turns: its turn is unknown
    assert {shown.advantage for shown in first[1].turns()} == {"-"}
    broken = make_run(tmp_path / "run", steps=10)
    (broken / "episodes" / "000002.jsonl").write_text("nonsense\n")
    assert choose(broken)
    (broken / "episodes" / "000005.jsonl").write_text('{"episode": {}}\n')
    with pytest.raises(RunError, match=r"000005\.jsonl, line 1: not a recorded episode"):
        choose(broken)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>a</think><answer>b</answer>", [("thinking", "a"), ("answer", "b")]),
        ("a</think><answer>b</answer>", [("thinking", "a"), ("answer", "b")]),
        ("hi <answer>b", [("words", "hi "), ("answer", "b")]),
        ("say <action_start>go<action_end>", [("words", "say "), ("answer", "go")]),
        ("plain", [("words", "plain")]),
        ("", [("words", "")]),
        ("<think></think>", [("thinking", "")]),
    ],
)
def test_thinking_and_answer_are_separated(text: str, parts: list[tuple[str, str]]) -> None:
    assert [(part.kind, part.text) for part in split(text)] == parts


def test_splitting_is_fast_on_hostile_text() -> None:
    for text in ("</think>" * 50_000, "<think>" * 50_000, "<answer></answer>" * 20_000):
        assert split(text)


def test_turn_shows_why_it_is_invalid_and_its_advantage() -> None:
    bad = show(proposal(-1.0, action=None, info={"invalid": "no_answer"}), [0.5, 1.5], True)
    assert bad.invalid == "no_answer" and bad.advantage == "1 (per token, 0.500 to 1.50)"
    assert show(proposal(1.0, info={"verdict": "valid"}), 1.0, False).verdict == "valid"
    good = show(turn("solver_0", "<answer>13</answer>", 1.0, info={"tries": [1]}), None, False)
    assert (good.invalid, good.action, good.advantage) == ("", "", "-")
    assert good.facts == (("tries", "[1]"),)
    image = {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image"}]}
    assert show(turn("a_0", "x", 0.0, messages=(image,)), 1.0, False).prompt == (
        ("user", "see\n[image]"),
    )
