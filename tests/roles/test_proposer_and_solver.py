"""Tests of the prompts of the proposer and the solver, and of reading proposals."""

import json
from pathlib import Path
from typing import Any

import pytest

from arenas.absolute_zero.arena import proposer_view, solver_view
from roles.proposer import Proposer
from roles.solver import Solver
from selfplay.errors import ConfigError
from selfplay.types import InvalidAction

STYLES = ("full", "terse")
PROBLEM: dict[str, Any] = {
    "program": "def f(a):\n    return a + 'PROGRAM'",
    "inputs": ["'IN0'", "'IN1'", "'IN2'", "'IN3'"],
    "outputs": ["'OUT0'", "'OUT1'", "'OUT2'", "'OUT3'"],
    "message": "MESSAGE",
}


def shown(role: Solver | Proposer, observation: Any) -> str:
    (message,) = role.prompt(observation)
    return str(message["content"])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("kind", "seen", "hidden"),
    [
        ("deduction", ["PROGRAM", "IN0"], ["OUT0", "MESSAGE"]),
        ("abduction", ["PROGRAM", "OUT0"], ["IN0", "MESSAGE"]),
        (
            "induction",
            ["IN0", "IN1", "OUT0", "OUT1", "MESSAGE"],
            ["PROGRAM", "IN2", "IN3", "OUT2", "OUT3"],
        ),
    ],
)
def test_a_solver_is_shown_only_its_side(
    style: str, kind: str, seen: list[str], hidden: list[str]
) -> None:
    prompt = shown(Solver(style=style), solver_view(kind, PROBLEM))
    assert [word for word in seen if word not in prompt] == []
    assert [word for word in hidden if word in prompt] == []


@pytest.mark.parametrize("style", STYLES)
def test_a_proposer_is_shown_references_or_the_given_program(style: str) -> None:
    role = Proposer(style=style)
    other = {**PROBLEM, "program": "def f(a):\n    return 'OTHER'"}
    payload = {"references": [PROBLEM, other], "given": None}
    prompt = shown(role, proposer_view("deduction", payload, pairs=4))
    assert "PROGRAM" in prompt and "OTHER" in prompt and "IN0" in prompt
    prompt = shown(role, proposer_view("induction", {"given": PROBLEM}, pairs=4))
    assert "PROGRAM" in prompt and "IN0" not in prompt and "OUT0" not in prompt
    assert shown(role, proposer_view("abduction", {"references": []}, pairs=4))


def test_the_full_prompt_says_how_many_inputs_and_the_form() -> None:
    prompt = shown(Proposer(), proposer_view("induction", {"given": PROBLEM}, pairs=7))
    assert "7 different inputs" in prompt and "<answer>" in prompt


def test_a_template_shows_template_code_in_data_and_never_runs_it() -> None:
    hostile = {**PROBLEM, "program": "{{ 7 * 7 }}{% raw %}", "inputs": ["'{{ 8 * 8 }}'"]}
    prompt = shown(Solver(), solver_view("deduction", hostile))
    assert "{{ 7 * 7 }}{% raw %}" in prompt and "{{ 8 * 8 }}" in prompt


def test_a_style_is_a_name_or_a_file(tmp_path: Path) -> None:
    own = tmp_path / "mine.jinja"
    own.write_text("Do {{ type }}", encoding="utf-8")
    assert shown(Solver(style=str(own)), solver_view("deduction", PROBLEM)) == "Do deduction"
    with pytest.raises(ConfigError, match="did you mean 'terse'"):
        Solver(style="ters")
    with pytest.raises(ConfigError, match="no template file"):
        Solver(style=str(tmp_path / "missing.jinja"))


def answer(*blocks: str) -> str:
    return "<think>so</think><answer>\n" + "\n".join(blocks) + "\n</answer>"


PYTHON, INPUT = "```python\ndef f(a):\n    return a\n```", "```input\n 'x', 1 \n```"
MESSAGE = "```message\n hint \n```"


def test_a_proposal_is_read_from_its_fences() -> None:
    read = json.loads(Proposer().parse(answer(PYTHON, INPUT)))
    assert read == {"program": "def f(a):\n    return a", "inputs": ["'x', 1"]}
    read = json.loads(Proposer().parse(answer(INPUT, INPUT, MESSAGE)))
    assert read == {"inputs": ["'x', 1", "'x', 1"], "message": "hint"}


@pytest.mark.parametrize(
    "blocks",
    [
        [PYTHON],
        [INPUT],
        [MESSAGE],
        [PYTHON, PYTHON, INPUT],
        [INPUT, MESSAGE, MESSAGE],
        ["```python\ndef f(a):\n    return a"],
        [],
    ],
)
def test_other_blocks_are_refused(blocks: list[str]) -> None:
    with pytest.raises(InvalidAction, match="bad_form"):
        Proposer().parse(answer(*blocks))
