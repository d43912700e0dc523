"""Tests of declared metrics: their unit, their direction, and their use on pages."""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path

import pytest

from arenas.collaboration.pipeline import Pipeline
from arenas.collaboration.repair import Repair
from arenas.games.kuhn import Kuhn
from arenas.games.tic_tac_toe import TicTacToe
from arenas.mixture.arena import Mixture
from selfplay.arena import Arena
from selfplay.errors import ConfigError, RunError
from selfplay.run.declarations import (
    FILE,
    OWN,
    ArenaMetrics,
    RunMetrics,
    measured_by,
    read_declared,
    reported,
    write_declared,
)
from selfplay.run.record_reader import read_metrics
from selfplay.run.report.charts import arrange
from selfplay.types import Metric
from tests.helpers.command_process import finished
from tests.helpers.repository import ROOT

ARENAS = ROOT / "arenas"
GOOD = Metric(unit="fraction", better="higher")
BAD = Metric(unit="fraction", better="lower")


def measured_names(source: str) -> Iterator[str]:
    """Return the keywords that a source file passes to `measure` or `settle`."""
    for node in ast.walk(ast.parse(source)):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in ("measure", "settle", "_close"):
            assert isinstance(node, ast.Call)
            yield from (each.arg for each in node.keywords if each.arg)


def classes(module: str) -> list[type[Arena]]:
    found = vars(import_module(f"arenas.{module}")).values()
    return [
        each
        for each in found
        if isinstance(each, type)
        and issubclass(each, Arena)
        and each.__module__ == f"arenas.{module}"
    ]


@pytest.mark.parametrize(
    "module",
    sorted(
        ".".join(path.relative_to(ARENAS).with_suffix("").parts)
        for path in ARENAS.rglob("*.py")
        if "self.measure(" in path.read_text()
    ),
)
def test_every_shipped_arena_declares_what_it_measures(module: str) -> None:
    source = (ARENAS / f"{module.replace('.', '/')}.py").read_text()
    known: set[str] = set()
    for each in classes(module):
        known |= set(each.measures)
    if module == "collaboration.repair":
        known |= set(Repair(arena=Pipeline()).measures)
    missing = [
        name
        for name in measured_names(source)
        if not any(fnmatchcase(name, pattern) for pattern in known)
    ]
    assert not missing, f"arenas/{module}.py measures and does not declare in `measures`: {missing}"


@pytest.mark.parametrize(
    "module",
    [
        "absolute_zero.arena",
        "collaboration.arena",
        "debate.arena",
        "games.kuhn",
        "games.matrix",
        "memory.arena",
        "questions.arena",
    ],
)
def test_the_chief_metric_is_one_that_is_declared(module: str) -> None:
    assert classes(module)
    for each in classes(module):
        assert each.chief and set(each.chief) <= set(each.measures)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (
            {"measures": {"found": "fraction"}},
            "Odd.measures: 'found' is 'fraction', not a Metric; write {'found': "
            "Metric(unit='fraction')}",
        ),
        ({"measures": {"found": None}}, "not a Metric; write {'found': Metric(unit='fraction')}"),
        ({"measures": ["found"]}, "Odd.measures is ['found'], not a mapping of names to Metric; "),
        ({"chief": "found"}, "Odd.chief is 'found', not a tuple of names; write for example ('"),
        ({"chief": (1,)}, "Odd.chief is (1,), not a tuple of names; write for example ('solved',)"),
    ],
)
def test_a_wrong_declaration_is_refused_when_the_arena_is_built(
    declared: dict[str, object], words: str
) -> None:
    kind: type[Arena] = type("Odd", (Arena,), declared)
    with pytest.raises(ConfigError, match=re.escape(words)):
        kind()
    later: type[Arena] = type("Odd", (Arena,), {})
    arena = later()
    for name, value in declared.items():
        setattr(arena, name, value)
    with pytest.raises(ConfigError, match=re.escape(words)):
        measured_by(arena)


def test_an_undeclared_metric_is_a_plain_number() -> None:
    empty = RunMetrics()
    for key in ("arena/solve_rate", "evaluation/e/accuracy", "role/a/note", "lonely", "", "a/b"):
        assert empty.of(key) == Metric()


def test_units_are_declared_and_not_guessed_from_names() -> None:
    count = Metric(unit="count", better="higher")
    declared = RunMetrics(arena=ArenaMetrics(metrics={"solved": count, "solve_rate": GOOD}))
    assert declared.of("arena/solved") == declared.of("arena/deduction/solved") == count
    assert declared.of("arena/a/b/solve_rate") == GOOD
    assert declared.of("curriculum/solved").unit == "count"
    assert declared.of("curriculum/roots_solved").unit == "fraction"


def test_a_verdict_is_good_or_bad_as_declared() -> None:
    declared = RunMetrics(
        arena=ArenaMetrics(metrics={"verdict/*": BAD, "verdict/held_out": Metric()})
    )
    assert declared.verdict("solver", "correct") == "good"
    assert declared.verdict("solver", "wrong") == "bad"
    assert declared.verdict("proposer", "output_limit") == "bad"
    assert declared.verdict("proposer", "held_out") == ""
    assert RunMetrics().verdict("manager", "noop") == ""
    assert RunMetrics().of("role/manager/verdict/noop").unit == "fraction"


def test_a_note_named_like_a_metric_of_the_library_does_not_replace_it() -> None:
    declared = RunMetrics(arena=ArenaMetrics(metrics={"reward": BAD, "f1": GOOD}))
    assert declared.of("role/solver/reward").unit == "reward"
    assert declared.of("role/solver/f1") == GOOD


def test_a_mixture_passes_on_what_its_parts_declare() -> None:
    mixture = Mixture(parts={"kuhn": Kuhn(), "board": TicTacToe()})
    declared = RunMetrics(arena=measured_by(mixture))
    assert declared.of("arena/kuhn/deal/illegal") == BAD  # a fraction of hands
    assert declared.of("arena/board/game/illegal").unit == "count"  # a number of moves
    assert declared.of("arena/illegal") == Metric()  # a mean over both parts mixes two units
    assert declared.of("arena/bets").unit == "count"
    assert mixture.chief == ("kuhn/player_0_payoff",)
    shown = reported(
        measured_by(mixture), {"bets": "bets", "worth": "player_0_payoff"}, type="kuhn/default"
    )
    assert shown.chief == ("worth",) and shown.of("worth") == Metric(unit="reward")


def test_the_parts_of_a_mixture_judge_their_own_verdicts() -> None:
    parts = {"a/verdict/*": BAD, "b/verdict/*": GOOD}
    declared = RunMetrics(arena=ArenaMetrics(metrics=parts))
    assert declared.verdict("a_solver", "x") == "bad"
    assert declared.verdict("b_solver", "x") == "good"


def test_a_wrapped_arena_passes_on_what_is_declared() -> None:
    repair = Repair(arena=Pipeline())
    assert repair.measures["accuracy"] == repair.measures["unaided_accuracy"] == GOOD
    assert repair.chief[0] == "accuracy"


def test_with_opponents_the_chief_metric_is_the_return() -> None:
    shown = reported(
        measured_by(TicTacToe()), {"illegal": "illegal", "moves": "moves"}, opponents=("minimax",)
    )
    assert shown.chief == ("versus/minimax/return",)


def test_declarations_are_kept_in_the_run_folder(tmp_path: Path) -> None:
    declared = RunMetrics(
        arena=measured_by(Kuhn()),
        evaluations={"hands": reported(measured_by(Kuhn()), {"payoff": "player_0_payoff"})},
    )
    write_declared(tmp_path, declared)
    assert read_declared(tmp_path) == declared
    assert read_declared(tmp_path / "none") == RunMetrics()


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", '{"arena": 1}', '{"arena": {"metrics": {"a": {"unit": "%"}}}}']
)
def test_damaged_declarations_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(RunError, match=FILE) as raised:
        read_declared(tmp_path)
    assert "\n" not in str(raised.value)


def test_training_writes_what_its_arenas_declare() -> None:
    declared = read_declared(finished())
    assert declared.of("arena/deduction/solve_rate") == GOOD
    assert declared.of("evaluation/held_out_sampled/accuracy") == GOOD
    assert declared.of("evaluation/held_out_sampled/deduction/accuracy") == GOOD
    assert declared.is_chief("held_out_sampled", "accuracy")
    assert declared.of("evaluation/proposals/valid") == GOOD


def test_every_metric_of_a_run_is_declared() -> None:
    run = finished()
    declared = read_declared(run)
    plain = {
        key
        for row in read_metrics(run / "metrics.jsonl").values()
        for key in row
        if declared.of(key) == Metric()
    }
    numbers = ("loss", "gradient_norm", "lr", "staleness_mean", "staleness_max")
    assert plain <= {f"policy/base/{name}" for name in numbers}


def test_no_pattern_of_the_library_is_hidden_by_an_earlier_one() -> None:
    patterns = list(OWN)
    for place, pattern in enumerate(patterns):
        sample = pattern.replace("*", "xx")
        first = next(each for each in patterns if fnmatchcase(sample, each))
        assert first == pattern or place < patterns.index(first), f"{first} hides {pattern}"


def test_charts_are_in_per_cent_where_the_metric_is_a_fraction() -> None:
    rows = {1: {"arena/solved": 7.298, "arena/solve_rate": 0.5}}
    metrics = {"solved": Metric(unit="count"), "solve_rate": GOOD}
    (section,) = arrange(rows, RunMetrics(arena=ArenaMetrics(metrics=metrics)))
    shown = {chart.title: (chart.share, chart.series[0].latest) for chart in section.charts}
    assert shown["Solved"] == (False, "7.30")
    assert shown["Solve rate by task type"] == (True, "50.0%")


def test_a_collapse_rule_that_has_not_fired_is_shown_as_not_fired() -> None:
    (section,) = arrange({1: {"collapse/entropy": 0.0}, 2: {"collapse/entropy": 0.0}})
    (chart,) = section.charts
    assert chart.title == "Rule entropy: 1 where it fired"
    assert chart.series[0].latest == "not fired"


def test_an_older_value_names_its_step() -> None:
    rows = {78: {"role/a/invalid/empty": 0.08, "role/a/valid": 0.9}, 200: {"role/a/valid": 0.95}}
    (section,) = arrange(rows)
    latest = {series.label: series.latest for c in section.charts for series in c.series}
    assert latest == {"a": "95.0%", "empty": "8.0% (step 78)"}
