"""The study of recorded metrics: the choice of metrics, their curves, and sets of runs."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from selfplay.cli.main import main
from selfplay.errors import ConfigError, RunError
from selfplay.study import page
from selfplay.study.derived_metrics import DerivedMetric
from selfplay.study.measures.metrics import MOST_METRICS, study
from selfplay.study.plots import CurvePlot
from selfplay.study.result import Result

REWARD, LOSS = "role/solver/reward", "policy/base/loss"
ACCURACY = "evaluation/held_out/accuracy"


def recorded(run: Path, rows: list[dict[str, Any]], *, seed: int = 0) -> Path:
    run.mkdir(parents=True)
    keys = "population: {}\nroles: {}\nwarmstart: null\n"
    (run / "config.yaml").write_text(f"seed: {seed}\n{keys}")
    text = "".join(json.dumps({"step": step, **row}) + "\n" for step, row in enumerate(rows))
    (run / "metrics.jsonl").write_text(text)
    return run


def curves(result: Result) -> list[CurvePlot]:
    return [each for each in result.drawings if isinstance(each, CurvePlot)]


def shown(result: Result) -> list[str]:
    """Return the names of the metrics with a latest value."""
    latest = [each.name for each in result.estimates if each.name.endswith(", latest")]
    return [name.removesuffix(", latest") for name in latest]


def test_the_chief_metrics_are_chosen_with_their_latest_values_and_means(tmp_path: Path) -> None:
    rows = [
        {ACCURACY: 0.25, REWARD: 0.5, LOSS: 9.0},
        {REWARD: 0.75, LOSS: 8.0},
        {ACCURACY: 0.5, REWARD: math.nan, LOSS: 7.0},
        {ACCURACY: 1.0},
    ]
    result = study(recorded(tmp_path / "a", rows))
    assert [(each.name, each.value, each.notes) for each in result.estimates] == [
        (f"{REWARD}, latest", 0.75, "step 1"),
        (f"{REWARD}, mean", 0.625, "steps 0 to 1"),
        (f"{ACCURACY}, first", 0.25, "step 0"),
        (f"{ACCURACY}, latest", 1.0, "step 3"),
        (f"{ACCURACY}, gain", 0.75, "steps 0 to 3"),
        # Two steps have the mean 0.375, and the third step has 0.75.
        (f"{ACCURACY}, mean", 0.5, "steps 0 to 3"),
    ]
    reward, accuracy = curves(result)
    assert (reward.x, reward.series, reward.percent) == ([0, 1], {REWARD: [0.5, 0.75]}, False)
    assert (accuracy.x, accuracy.series) == ([0, 2, 3], {ACCURACY: [0.25, 0.5, 1.0]})
    assert (reward.label, accuracy.label) == ("solver, reward", "held out, accuracy")


def test_metrics_are_named_whole_or_by_words(tmp_path: Path) -> None:
    names = {f"policy/base/loss{more}": 1.0 for more in ("", "_of_value", "/other")}
    run = recorded(tmp_path / "a", [{**names, "seconds/total": 2.0}])
    whole = study(run, only=[LOSS])
    assert shown(whole) == [LOSS]
    found = study(run, only=["loss_", "seconds"])
    assert shown(found) == [f"{LOSS}_of_value", "seconds/total"]
    assert curves(found)[1].label == "total, seconds"
    with pytest.raises(ConfigError, match="--only lss: no such metric"):
        study(run, only=["lss"])
    with pytest.raises(ConfigError, match="no chief metric"):
        study(run)


def test_the_only_type_of_task_repeats_no_metric(tmp_path: Path) -> None:
    typed = "evaluation/held_out/default/accuracy"
    one = recorded(tmp_path / "one", [{ACCURACY: 0.5, typed: 0.5}])
    assert shown(study(one, only=["held_out"])) == [ACCURACY]
    assert shown(study(one, only=[typed])) == [typed]
    assert shown(study(one, only=["default"])) == [typed]
    hard = "evaluation/held_out/hard/accuracy"
    two = recorded(tmp_path / "two", [{ACCURACY: 0.5, typed: 0.5, hard: 0.5}])
    assert shown(study(two, only=["held_out"])) == [ACCURACY, typed, hard]
    against = {"evaluation/random/return": 1.0, "evaluation/random/versus/random/return": 1.0}
    fights = recorded(tmp_path / "fights", [against])
    assert shown(study(fights, only=["random"])) == list(against)


def test_a_run_without_steps_is_refused_with_advice_to_evaluate_it(tmp_path: Path) -> None:
    """`selfplay average` writes such a run."""
    run = recorded(tmp_path / "mean", [])
    for only in ([], ["accuracy"]):
        with pytest.raises(ConfigError, match=r"no training step is recorded; .*evaluate .*mean"):
            study(run, only=only)


def test_long_curves_are_running_means_and_thinned_from_the_last_step(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", [{REWARD: float(step % 2)} for step in range(1500)])
    (curve,) = curves(study(run))
    assert len(curve.x) == 500 and curve.x[-1] == 1499 and curve.x[1] - curve.x[0] == 3
    # The window has 60 points, half of them 1; the first points have shorter windows.
    assert curve.series[REWARD][-1] == pytest.approx(0.5)


def test_a_curve_of_fewer_than_twice_the_points_is_thinned_too(tmp_path: Path) -> None:
    (curve,) = curves(study(recorded(tmp_path / "a", [{REWARD: 0.0}] * 999)))
    assert len(curve.x) == 500 and curve.x[-1] == 998


def test_a_run_is_named_in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recorded(tmp_path / "mine", [{REWARD: 0.0}]))
    assert study(Path()).title == "Metrics of mine by step"


def test_no_more_than_a_few_metrics_are_shown_unasked(tmp_path: Path) -> None:
    rows = [{f"role/r{number}/reward": 1.0 for number in range(40)}]
    assert len(study(recorded(tmp_path / "a", rows)).drawings) == MOST_METRICS


def test_numbers_that_are_too_large_are_left_out_with_a_note(tmp_path: Path) -> None:
    """A picture cannot show 1e308, and the product of 1e99 and 1e99 is too large too."""
    rows = [{REWARD: 1e308, LOSS: 1e99}, {REWARD: 2.0, LOSS: -1e308}, {REWARD: 4.0}]
    run = recorded(tmp_path / "a", rows)
    squared = DerivedMetric.parse(f"squared={{{LOSS}}} * {{{LOSS}}}")
    result = study(run, only=[REWARD, LOSS, "squared"], derived=[squared])
    assert [(each.name, each.value) for each in result.estimates] == [
        (f"{REWARD}, latest", 4.0),
        (f"{REWARD}, mean", 3.0),
        (f"{LOSS}, latest", 1e99),
    ]
    assert result.notes == [
        f"{REWARD}: 1 of 3 values are beyond 1e+100: left out",
        f"{LOSS}: 1 of 2 values are beyond 1e+100: left out",
        "squared: 1 of 1 values are beyond 1e+100: left out",
    ]
    assert page.write(result, tmp_path / "out", command="study").exists()


def test_a_damaged_record_is_a_one_line_error(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", [{REWARD: 1.0}])
    (run / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 1"):
        study(run)


def test_sets_of_runs_have_means_differences_and_bands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, offset in (("slow", 0.0), ("fast", 0.3)):
        for seed in (0, 1):
            value = 0.1 * seed + offset
            rows = [{REWARD: value / 2}, {REWARD: value}]
            recorded(tmp_path / f"{name}-{seed}", rows, seed=seed)
    words = ["study", "compare", "metrics", f"slow={tmp_path}/slow-*", f"fast={tmp_path}/fast-*"]
    assert main([*words, "--json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["estimates"]}
    assert found[f"{REWARD}, latest: slow"]["value"] == pytest.approx(0.05)
    assert found[f"{REWARD}, latest: fast less slow"]["value"] == pytest.approx(0.3)
    names = {path.name for path in (tmp_path / "slow-0/studies").iterdir()}
    assert {"compare-metrics.html", "compare-metrics-2.svg", "compare-metrics-2.pdf"} <= names


def test_gains_of_evaluations_are_compared_by_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, (method, control) in enumerate([(0.5, 0.3), (0.6, 0.5), (0.7, 0.4)]):
        for name, after in (("method", method), ("control", control)):
            rows = [{ACCURACY: 0.1}, {REWARD: 1.0}, {ACCURACY: after}]
            recorded(tmp_path / f"{name}-{seed}", rows, seed=seed)
    sets = [f"{name}={tmp_path}/{name}-*" for name in ("method", "control")]
    assert main(["study", "compare", "metrics", *sets, "--only", "held_out", "--json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["estimates"]}
    gain = found[f"{ACCURACY}, gain: method"]
    # The standard deviation is 0.1, and 4.303 * 0.1 / sqrt(3) is 0.248.
    assert (gain["value"], gain["ci_low"], gain["ci_high"]) == pytest.approx(
        (0.5, 0.252, 0.748), abs=1e-3
    )
    less = found[f"{ACCURACY}, latest: control less method"]
    assert (less["value"], less["ci_low"], less["ci_high"]) == pytest.approx(
        (-0.2, -0.448, 0.048), abs=1e-3
    )
    assert found[f"{ACCURACY}, first: control"]["value"] == pytest.approx(0.1)


def test_a_config_that_is_not_of_a_run_is_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(tmp_path / "a", [{REWARD: 1.0}])
    (run / "config.yaml").write_text("seed: 0\n")
    assert main(["study", "compare", "metrics", f"one={run}"]) == 2
    assert "has no 'population'" in capsys.readouterr().err


def test_means_over_ranges_of_steps_and_their_change(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", [{REWARD: float(value)} for value in (1, 2, 3, 4, 6)])
    result = study(run, only=[REWARD], ranges=["0:1", "3:", "2"])
    found = {each.name: each.value for each in result.estimates}
    assert found[f"{REWARD}, steps 0:1"] == 1.5
    assert found[f"{REWARD}, steps 3:"] == 5.0
    assert found[f"{REWARD}, steps 3: less 0:1"] == 3.5
    assert found[f"{REWARD}, steps 2 less 0:1"] == 1.5
    with pytest.raises(ConfigError, match=r"--steps 7:: no chosen metric has a value .* 0 to 4"):
        study(run, only=[REWARD], ranges=["7:"])
    with pytest.raises(ConfigError, match="A:B is needed"):
        study(run, only=[REWARD], ranges=["x"])


def test_a_metric_without_a_value_in_a_range_is_left_out_of_it(tmp_path: Path) -> None:
    rows = [{ACCURACY: 0.5}, {REWARD: 2.0}, {REWARD: 4.0}, {REWARD: 6.0, ACCURACY: 0.75}]
    run = recorded(tmp_path / "a", rows)
    found = study(run, only=[REWARD, ACCURACY], ranges=["1:2", "3"]).estimates
    values = {each.name: each.value for each in found if "steps" in each.name}
    assert values == {
        f"{REWARD}, steps 1:2": 3.0,
        f"{REWARD}, steps 3": 6.0,
        f"{REWARD}, steps 3 less 1:2": 3.0,
        f"{ACCURACY}, steps 3": 0.75,
    }


def test_a_derived_metric_is_computed_at_each_step_that_has_its_terms(tmp_path: Path) -> None:
    rows = [{ACCURACY: 0.25, "evaluation/held_out/majority": 0.5}, {ACCURACY: 0.5}]
    rows.append({ACCURACY: 0.75, "evaluation/held_out/majority": 0.25})
    run = recorded(tmp_path / "a", rows)
    added = DerivedMetric.parse(f"added={{{ACCURACY}}} - {{evaluation/held_out/majority}}")
    ratio = DerivedMetric.parse(f"ratio = ({{added}} + 1) / -(2 * {{{ACCURACY}}})")
    found = {each.name: each.value for each in study(run, derived=[added, ratio]).estimates}
    assert found["added, first"] == -0.25
    assert found["added, latest"] == 0.5
    assert found["added, gain"] == 0.75
    assert found["ratio, latest"] == -1.0
    assert not any(ACCURACY in name for name in found)


def test_a_metric_derived_from_a_derived_evaluation_has_a_gain(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", [{ACCURACY: 0.25}, {ACCURACY: 0.75}])
    once = DerivedMetric.parse(f"once={{{ACCURACY}}} * 2")
    twice = DerivedMetric.parse("twice={once} * 2")
    found = {each.name: each.value for each in study(run, derived=[once, twice]).estimates}
    assert found["twice, gain"] == 2.0


def test_an_error_of_one_run_of_a_set_names_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "long", [{REWARD: 1.0}] * 6)
    recorded(tmp_path / "short", [{REWARD: 1.0}] * 2)
    sets = [f"{name}={tmp_path}/{name}" for name in ("long", "short")]
    assert main(["study", "compare", "metrics", *sets, "--only", REWARD, "--steps", "4:5"]) == 2
    assert f"{tmp_path}/short: --steps 4:5" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["5:3", "", "a:b"])
def test_a_text_that_is_not_a_range_is_refused(tmp_path: Path, text: str) -> None:
    run = recorded(tmp_path / "a", [{REWARD: 1.0}] * 6)
    with pytest.raises(ConfigError, match=r"--steps .*: A:B"):
        study(run, only=[REWARD], ranges=[text])


def test_a_division_by_zero_has_no_value(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", [{REWARD: 0.0}, {REWARD: 2.0}, {REWARD: 0.0}])
    one = DerivedMetric.parse(f"one={{{REWARD}}} / {{{REWARD}}}")
    (only,) = study(run, derived=[one]).estimates
    assert (only.value, only.notes) == (1.0, "step 1")


@pytest.mark.parametrize(
    "text",
    [
        "no name",
        "={a} - {b}",
        "x=",
        "x={a} -",
        "x=1 + 2",
        "x={a} ** 9",
        "x={a}; {b}",
        "x=__import__('os').getcwd() + {a}",
        "x=abs({a})",
        "x={a} if {b} else 1",
        "x={a} + True",
        "x={a} + 'b'",
        "x={a} m1",
        "x={a} + m0",
        "x={a} # + {b}",
        "x, mean={a}",
        "run@3: x={a}",
        "x=" + "(" * 250 + "{a}" + ")" * 240,
        "x={a}" + " + 1" * 400,
        "x={a}\x00",
    ],
)
def test_a_text_that_is_not_arithmetic_of_metrics_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--derive .*needed; write NAME=EXPRESSION"):
        DerivedMetric.parse(text)


def test_unknown_terms_and_taken_names_are_refused(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", [{REWARD: 1.0}])
    with pytest.raises(ConfigError, match=r"--derive x: no metric 'role/solver/rewart'; .*reward"):
        study(run, derived=[DerivedMetric.parse("x={role/solver/rewart} * 2")])
    with pytest.raises(ConfigError, match="a recorded metric has this name"):
        study(run, derived=[DerivedMetric.parse(f"{REWARD}={{{REWARD}}} * 2")])


def test_sets_compare_derived_metrics_and_ranges_by_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, offset in (("slow", 1.0), ("fast", 3.0)):
        for seed in (0, 1):
            rows = [{REWARD: offset + seed + step, LOSS: 1.0} for step in range(4)]
            recorded(tmp_path / f"{name}-{seed}", rows, seed=seed)
    words = ["study", "compare", "metrics", f"slow={tmp_path}/slow-*", f"fast={tmp_path}/fast-*"]
    given = ["--derive", f"more={{{REWARD}}} - {{{LOSS}}}", "--steps", "0:1", "--steps", "2:3"]
    assert main([*words, *given, "--json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["estimates"]}
    assert found["more, steps 0:1: slow"]["value"] == pytest.approx(1.0)
    assert found["more, steps 2:3 less 0:1: fast"]["value"] == pytest.approx(2.0)
    assert found["more, steps 2:3: fast less slow"]["value"] == pytest.approx(2.0)
    page = (tmp_path / "slow-0/studies/compare-metrics.html").read_text()
    assert "--derive" in page and "--steps 0:1 --steps 2:3" in page


def test_a_whole_name_keeps_first_value_gain_and_mean_in_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = f"{ACCURACY}_of_all"
    for name in ("a", "b"):
        rows = [{ACCURACY: 0.1, longer: 0.2}, {ACCURACY: 0.4, longer: 0.3}]
        recorded(tmp_path / name, rows)
    sets = [f"{name}={tmp_path}/{name}" for name in ("a", "b")]
    assert main(["study", "compare", "metrics", *sets, "--only", ACCURACY, "--json"]) == 0
    names = [each["name"] for each in json.loads(capsys.readouterr().out)["estimates"]]
    assert f"{ACCURACY}, gain: a" in names and not any(longer in name for name in names)


RAISED, VALID = "role/injector/verdict/raised", "role/injector/valid"


def test_the_mean_of_a_rare_outcome_is_over_all_steps_at_which_its_role_moved(
    tmp_path: Path,
) -> None:
    rows: list[dict[str, Any]] = [{}, *[{VALID: 1.0}] * 3, {VALID: 1.0, RAISED: 0.5}]
    run = recorded(tmp_path / "a", rows)
    doubled = DerivedMetric.parse(f"doubled={{{RAISED}}} * 2")
    result = study(run, only=["raised", "doubled"], derived=[doubled], ranges=["1:2"])
    found = {each.name: (each.value, each.notes) for each in result.estimates}
    # The area of the last triangle is 1/4, over three steps.
    assert found[f"{RAISED}, mean"] == (pytest.approx(0.25 / 3), "steps 1 to 4")
    assert found[f"{RAISED}, steps 1:2"] == (0.0, "mean of 2 values")
    assert found["doubled, mean"] == (pytest.approx(0.5 / 3), "steps 1 to 4")
    assert curves(result)[0].x == [1, 2, 3, 4]


def test_an_outcome_that_never_occurred_in_one_run_is_compared_as_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "learning-0", [{VALID: 1.0}, {VALID: 1.0, RAISED: 0.5, REWARD: 1.0}])
    recorded(tmp_path / "frozen-0", [{VALID: 1.0}] * 2)
    sets = [f"{name}={tmp_path}/{name}-*" for name in ("learning", "frozen")]
    words = ["study", "compare", "metrics", *sets, "--json", "--only"]
    assert main([*words, RAISED]) == 0
    found = {
        each["name"]: each["value"] for each in json.loads(capsys.readouterr().out)["estimates"]
    }
    assert found[f"{RAISED}, mean: learning"] == 0.25
    assert found[f"{RAISED}, mean: frozen"] == 0.0
    assert found[f"{RAISED}, latest: frozen less learning"] == -0.5
    for name, run in (("role/injector/verdict/rised", "learning-0"), (REWARD, "frozen-0")):
        assert main([*words, name]) == 2
        assert f"{run}: --only {name}: no such metric" in capsys.readouterr().err
    recorded(tmp_path / "idle-0", [{REWARD: 1.0}] * 2)
    assert main([*words[:3], *sets, f"idle={tmp_path}/idle-0", "--only", RAISED]) == 2
    assert f"idle-0: --only {RAISED}: no such metric" in capsys.readouterr().err
