"""Tests of the help texts of commands."""

import re

import pytest

from selfplay.cli.main import main


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the help text of a command in one line."""
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        ("transfer", "Transfer: the gain of training in one game, measured in another game."),
        ("payoffs", "or cycles. It needs selfplay[studies]: run ./scripts/setup studies first."),
        ("exploitability", "It needs selfplay[games]: run ./scripts/setup games first."),
    ],
)
def test_a_measure_is_described(
    measure: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in help_of(capsys, "study", measure)


def test_average_says_what_it_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unless --trust PACKAGE allows it" in help_of(capsys, "average")


def test_plan_says_which_keys_it_takes_and_what_its_exit_code_means(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = help_of(capsys, "plan")
    assert "workload.KEY=VALUE" in text and "3 if it does not fit" in text
    assert "compare predicted with measured seconds" in text


@pytest.mark.parametrize("command", ["train", "check", "plan", "replay", "play"])
@pytest.mark.parametrize("width", [60, 79, 80, 81, 82, 83, 84, 85, 100, 300])
def test_usage_fits_the_width_of_the_terminal(
    command: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit):
        main([command, "--help"])
    usage = capsys.readouterr().out.split("\n\n")[0]
    assert max(map(len, usage.splitlines())) <= width and usage.endswith("[key=value ...]")


@pytest.mark.parametrize("command", ["replay", "show", "export", "average", "evaluate"])
def test_help_names_the_run_as_its_usage_does(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    usage, *rest = capsys.readouterr().out.split("\n\n")
    assert " RUN" in usage and re.search(r"\n  RUN +\S", "\n\n".join(rest))
