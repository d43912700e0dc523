"""Tests of descriptions of configs: the comment of a file, or the docstring of its class."""

from pathlib import Path

import pytest

from selfplay.config.descriptions import describe, first_sentence

GRPO = "GRPO (2402.03300). Credit: reward minus the mean."


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Kuhn poker: one hand of two players. More.", "Kuhn poker: one hand of two players."),
        ("One\n   GPU.", "One GPU."),
        (f"{GRPO} Objective: none.", GRPO),
        ("Wins 0.5 chips a hand vs. the rest.", "Wins 0.5 chips a hand vs. the rest."),
        ("These five words are enough. selfplay train seed=0", "These five words are enough."),
        ("", ""),
    ],
)
def test_a_first_sentence_has_at_least_five_words(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("# @package _global_\n# One line,\n#   and another.\na: 1\n", "One line, and another."),
        ("_target_: selfplay.sandbox.Executor\n", "A pool of warmed processes, "),
        ("deeper: [{_target_: selfplay.curriculum.fixed.FixedTasks}]\n", "Draws the tasks of "),
        ("_target_: no_such_package.Thing\n", ""),
        ("_target_: __main__.Thing\n", ""),
        ("_target_: .Thing\n", ""),
        ("a: 1\n", ""),
        ("a: [\n", "(cannot be read: ParserError"),
    ],
)
def test_a_config_is_described_by_its_comment_or_its_first_class(
    text: str, description: str, tmp_path: Path
) -> None:
    (tmp_path / "one.yaml").write_text(text)
    found = describe(tmp_path / "one.yaml")
    assert found.startswith(description) and bool(found) == bool(description)
