"""Tests of the lines at the end of a training."""

import pytest

from selfplay.cli.stage import print_summary, without_repeats
from selfplay.run.declarations import ArenaMetrics, RunMetrics


def test_metrics_of_the_only_type_of_task_are_not_shown_twice() -> None:
    values = {"bets": 1.0, "question/bets": 1.0, "pay": 2.0, "question/pay": 3.0}
    assert list(without_repeats(values)) == ["bets", "pay", "question/pay"]
    types = {"bets": 1.0, "easy/bets": 1.0, "hard/bets": 1.0}
    assert list(without_repeats(types)) == list(types)


def test_names_in_a_run_print_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    results = {"before": {"won": 0.1}, "after": {"won": 0.2}}
    evaluations = {"e\x1b]0;x": results}
    summary = {"experiment": "a\x1b[2J", "steps": 1, "seconds": 2.0, "troubles": {}}
    print_summary({**summary, "evaluations": evaluations}, RunMetrics())
    printed = capsys.readouterr().out
    assert "e?]0;x/won" in printed and "a?[2J: 1 step" in printed and "\x1b" not in printed


def test_the_end_shows_chief_metrics_and_those_of_whole_evaluations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chief = "versus/minimax/return"
    values = {"illegal": 0.5, chief: 0.25, "versus/minimax/won": 0.0, "hard/illegal": 1.0}
    results = {"e": {"before": values, "after": values}}
    ended = {"experiment": "x", "steps": 1, "seconds": 1.0, "troubles": {}, "evaluations": results}
    print_summary(ended, RunMetrics(evaluations={"e": ArenaMetrics(chief=(chief,))}))
    _, *shown, last = capsys.readouterr().out.strip().splitlines()
    assert [line.split()[0] for line in shown] == ["e/illegal", f"e/{chief}"]
    assert last == "  e: the report has 2 further metrics"
