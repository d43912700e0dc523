"""Tests of tool calls in metrics, on pages, in the export and in damaged records."""

import json
from pathlib import Path

import pytest

from selfplay.credit.shaping import Shaping, ToolCost
from selfplay.errors import RunError
from selfplay.run.chat_export import ChatExport, Selection
from selfplay.run.metrics import Outcomes, of_episodes
from selfplay.run.record_reader import record_of
from selfplay.run.report import html
from selfplay.run.report.transcripts import show
from selfplay.types import Episode, ToolCall, Turn, to_json
from tests.helpers.builders import episode, group, turn


def call(*calls: ToolCall, prompt: tuple[int, ...] = (1,), text: str = "") -> Turn:
    return turn(
        "solver_0",
        prompt_ids=prompt,
        completion_ids=(7, 8),
        action=None,
        final=False,
        stage=0,
        tool_calls=calls,
        text=text,
        messages=({"role": "user", "content": "What is 2 + 2?"},),
    )


GOOD = ToolCall(name="calculator", arguments='{"expression": "2 + 2"}', result="4")
BAD = ToolCall(name="calculator", result="error: syntax: <b>", error="syntax")
MADE_UP = ToolCall(name="invented", result="error: ...", error="unknown_tool")


def played() -> Episode:
    """Return an episode: two completions with calls, results of 4 and 5 tokens, an answer."""
    return episode(
        call(GOOD, BAD, text="<calculator>2 + 2</calculator>"),
        call(MADE_UP, prompt=(1, 7, 8, 0, 0, 0, 0), text="<invented>"),
        turn(
            "solver_0",
            1.0,
            prompt_ids=(1, 7, 8, 0, 0, 0, 0, 7, 8, 0, 0, 0, 0, 0),
            stage=0,
            text="4",
            messages=({"role": "user", "content": "<tool_response>\n4\n</tool_response>"},),
        ),
    )


def test_metrics_count_calls_per_move_and_failures_by_reason() -> None:
    answered = episode(turn("solver_0", 0.0, action=None, info={"invalid": "empty"}))
    found = of_episodes([played(), answered])
    assert found["role/solver/valid"] == found["role/solver/invalid/empty"] == 0.5
    assert found["role/solver/tool_calls"] == found["role/solver/tool_calls/default"] == 1.5
    assert found["role/solver/tool_tokens"] == 4.5
    assert found["role/solver/tool_errors"] == pytest.approx(2 / 3)
    assert found["role/solver/tool_error/syntax"] == pytest.approx(1 / 3)
    assert found["role/solver/tool_error/unknown_tool"] == pytest.approx(1 / 3)
    assert found["role/solver/tool/calculator"] == 1.0
    assert not any("invented" in name for name in found)
    assert found["role/solver/reward"] == 0.5
    assert not any("tool" in name for name in of_episodes([answered]))


def test_a_step_without_calls_has_zeros_after_one_with_calls() -> None:
    outcomes = Outcomes()
    outcomes.complete(of_episodes([played()]))
    later = outcomes.complete(of_episodes([episode(turn("solver_0"))]))
    assert later["role/solver/tool_calls"] == later["role/solver/tool_error/syntax"] == 0.0
    assert later["role/solver/tool/calculator"] == later["role/solver/tool_calls/default"] == 0.0


def test_a_page_shows_calls_with_results_as_text() -> None:
    shown = show(played().turns[0], 0.5, True)
    assert [each.result for each in shown.calls] == ["4", "error: syntax: <b>"]
    assert shown.invalid == ""
    page = _page(shown)
    assert "tool call" in page and "&lt;b&gt;" in page and "<b>&" not in page
    assert "No action" not in page


def _page(shown: object) -> str:
    template = html._environment().from_string(
        '{% from "turns.html.jinja" import turn_of %}{{ turn_of(shown) }}'
    )
    return str(template.render(shown=shown))


def test_the_cost_of_calls_is_paid_where_they_are_made() -> None:
    (shaped,) = Shaping({"cost": ToolCost(cost=0.25)}).apply([group(played())])
    assert [turn.reward for turn in shaped[0].episodes[0].turns] == [-0.5, -0.25, 1.0]


def test_the_export_has_calls_and_results(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "episodes").mkdir(parents=True)
    (folder / "config.yaml").write_text("roles: {solver: {memory: none}}\n")
    line = {"group": "1.0.0", "member": 0, "advantages": [], "episode": to_json(played())}
    (folder / "episodes/000001.jsonl").write_text(json.dumps(line) + "\n")
    found = list(ChatExport(run=folder, selection=Selection()).lines())
    assert len(found) == 3
    last = found[-1]["messages"]
    assert [m["role"] for m in last] == ["user", "assistant"] * 3
    assert last[1] == {
        "role": "assistant",
        "content": "<calculator>2 + 2</calculator>",
        "weight": 0,
    }
    assert last[4]["content"] == "<tool_response>\n4\n</tool_response>"


def test_a_record_with_calls_without_a_move_is_refused() -> None:
    broken = to_json(episode(call(GOOD)))
    with pytest.raises(RunError, match="tool calls without a move after them"):
        record_of({"episode": broken}, step=1, line=1, path=Path("x"))
