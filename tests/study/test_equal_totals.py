"""Tests of comparisons at equal cost: where a record ends, and `compare metrics --equal`."""

import json
from pathlib import Path
from typing import Any

import pytest

from selfplay.cli.main import main
from selfplay.errors import ConfigError
from selfplay.study.equal_totals import EqualTotal, total

KEYS = "population: {}\nroles: {}\nwarmstart: null\n"
"""Keys that the config of every run has."""
TOKENS, ACCURACY = "engine/base/completion_tokens", "evaluation/held_out/accuracy"


def recorded(run: Path, tokens: float, *, seed: int, steps: int = 10) -> Path:
    """Write a run whose accuracy at a step is the step divided by 100."""
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(f"seed: {seed}\n{KEYS}")
    rows: list[dict[str, Any]] = [{"step": 0, ACCURACY: 0.0}]
    rows += [{"step": n, TOKENS: tokens, ACCURACY: n / 100} for n in range(1, steps + 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_a_record_ends_at_the_last_step_within_the_total() -> None:
    rows = {step: {TOKENS: 10.0 * (step > 0)} for step in range(6)}
    assert total(rows, TOKENS) == 50.0
    assert list(EqualTotal(metric=TOKENS, most=30.0).ended(rows)) == [0, 1, 2, 3]
    assert list(EqualTotal(metric=TOKENS, most=29.8).ended(rows)) == [0, 1, 2, 3]  # within 1 %
    assert list(EqualTotal(metric=TOKENS, most=29.0).ended(rows)) == [0, 1, 2]
    assert list(EqualTotal(metric=TOKENS, most=50.0).ended(rows)) == list(rows)


def test_a_step_without_a_finite_cost_adds_nothing() -> None:
    rows = {0: {}, 1: {TOKENS: 5.0}, 2: {TOKENS: float("nan")}, 3: {TOKENS: 5.0}}
    assert total(rows, TOKENS) == 10.0
    assert list(EqualTotal(metric=TOKENS, most=5.0).ended(rows)) == [0, 1, 2]


def test_a_metric_that_is_unknown_or_negative_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--equal engine/base/tokns: no such metric; .*_tokens"):
        total({1: {TOKENS: 1.0}}, "engine/base/tokns")
    with pytest.raises(ConfigError, match=r"^--equal gain: it is negative at a step"):
        total({1: {"gain": 1.0}, 2: {"gain": -1.0}}, "gain")
    with pytest.raises(ConfigError, match=r"^--equal gain: it is 0 at every step"):
        total({1: {"gain": 0.0}}, "gain")


def test_a_run_whose_first_step_is_too_dear_is_refused() -> None:
    cheap = EqualTotal(metric=TOKENS, most=5.0)
    with pytest.raises(
        ConfigError, match=r"the first step costs 10, more than the cheapest of the"
    ):
        cheap.ended({1: {TOKENS: 10.0}, 2: {TOKENS: 10.0}})


def test_sets_are_compared_at_the_tokens_of_the_cheapest_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (0, 1):
        recorded(tmp_path / f"cheap-{seed}", 10.0, seed=seed)
        recorded(tmp_path / f"dear-{seed}", 20.0 + 5 * seed, seed=seed)
    words = ["study", "compare", "metrics", f"cheap={tmp_path}/cheap-*", f"dear={tmp_path}/dear-*"]
    given = ["--only", ACCURACY, "--json", "--equal"]
    assert main([*words, *given, TOKENS]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = {each["name"]: each["value"] for each in answer["estimates"]}
    assert found[f"{ACCURACY}, latest: cheap"] == pytest.approx(0.10)
    assert found[f"{ACCURACY}, latest: dear"] == pytest.approx((0.05 + 0.04) / 2)
    assert found[f"{ACCURACY}, latest: dear less cheap"] == pytest.approx(-0.055)
    (note,) = [each for each in answer["notes"] if "smallest total" in each]
    assert note.endswith(
        f"{TOKENS} is at most 1% above 100, the smallest total of the compared runs"
    )

    derived = ["--derive", f"double={{{TOKENS}}} * 2"]
    assert main([*words, *given, "double", *derived]) == 0
    again = json.loads(capsys.readouterr().out)["estimates"]
    assert {each["name"]: each["value"] for each in again} == found


def test_one_run_and_other_measures_have_nothing_to_equalise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(tmp_path / "run", 10.0, seed=0)
    assert main(["study", "metrics", str(run), "--equal", TOKENS]) != 0
    assert "use it in `selfplay study compare metrics`" in capsys.readouterr().err
    assert main(["study", "compare", "dynamics", f"a={run}", "--equal", TOKENS]) != 0
    assert "--equal: dynamics has no such option" in capsys.readouterr().err
