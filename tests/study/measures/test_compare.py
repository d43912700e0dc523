"""Comparison of sets of runs: means, pairs and missing metrics, worked out by hand."""

from dataclasses import replace
from math import inf, isnan, nan, sqrt
from pathlib import Path

import pytest

from selfplay.errors import ConfigError
from selfplay.study.measures.compare import MeasuredRun, parse_sets, study
from selfplay.study.players import Reference
from selfplay.study.plots import CurvePlot, DotPlot, inline
from selfplay.study.result import Result
from selfplay.study.stats.bootstrap import Direction, Estimate

T = 4.302653  # Student's 97.5 % point with two degrees of freedom


def measured(
    run: str, seed: int, curve: dict[int, float] | None = None, **values: float
) -> MeasuredRun:
    at = curve or {}
    series = {"c": list(at.values())}
    drawing = CurvePlot(title="by round", x=list(at), series=series, bands={}, label="fraction")
    result = Result(
        measure="m",
        title=f"Kindness of {run}@9 in game",
        definition="How kind.",
        estimates=[Estimate(name=name, value=value) for name, value in values.items()],
        drawings=[drawing],
    )
    return MeasuredRun(reference=Reference(run=Path(run)), seed=seed, result=result)


def by_name(result: Result) -> dict[str, Estimate]:
    return {each.name: each for each in result.estimates}


def test_means_over_runs_and_differences_by_seed() -> None:
    """Runs differ by seed, but at every seed the two sets differ by the same amount."""
    found = by_name(
        study(
            "m",
            {
                "before": [measured(f"a{seed}", seed, x=seed / 10) for seed in (1, 5, 9)],
                # The order of the seeds differs, because runs are paired by seed.
                "after": [measured(f"b{seed}", seed, x=seed / 10 + 0.3) for seed in (9, 1, 5)],
            },
        )
    )
    before = found["x: before"]
    half = T * 0.4 / sqrt(3)
    assert before.value == pytest.approx(0.5) and before.unit == "training run"
    assert (before.low, before.high) == pytest.approx((0.5 - half, 0.5 + half), rel=1e-5)
    gain = found["x: after less before"]
    assert gain.value == pytest.approx(0.3) and gain.null == 0 and gain.count == 3
    assert gain.high - gain.low == pytest.approx(0, abs=1e-9)


def test_means_and_differences_report_their_direction_of_bias() -> None:
    """A mean of lower bounds is a lower bound; a difference of two of them is not a bound."""

    def of(run: str, seed: int, value: float, direction: Direction) -> MeasuredRun:
        made = measured(run, seed)
        (each,) = [Estimate(name="x", value=value, direction=direction)]
        return replace(made, result=replace(made.result, estimates=[each]))

    cases: list[tuple[Direction, str, str]] = [
        ("exact", "unbiased", "unbiased"),
        ("lower_bound", "lower_bound", "unknown"),
        ("biased_down", "biased_down", "unknown"),
    ]
    for one, of_mean, of_difference in cases:
        sets = {s: [of(f"{s}{n}", n, n + 0.5, one) for n in (1, 2)] for s in ("a", "b")}
        found = by_name(study("m", sets))
        assert [found[n].direction for n in ("x: a", "x: b")] == [of_mean, of_mean]
        assert found["x: b less a"].direction == of_difference
        assert (of_mean.replace("_", " ") in found["x: b less a"].notes) == (
            of_difference == "unknown"
        )


def test_metrics_that_a_set_lacks_are_left_out_with_a_note() -> None:
    result = study(
        "m",
        {
            "one": [measured("a", 0, x=0.1, y=0.5), measured("b", 1, x=nan, y=0.7)],
            "two": [measured("c", 2, x=0.4)],
        },
    )
    found = by_name(result)
    assert set(found) == {"x: one", "x: two"}
    assert found["x: one"].value == 0.1 and isnan(found["x: one"].low)
    assert any("not in every set: y" in note for note in result.notes)
    assert any("one and two have no common seeds" in note for note in result.notes)
    rows = result.tables[0].rows
    assert result.tables[0].columns == ["metric", "set", "run 1", "run 2"]
    assert rows[1] == ["x", "two", 0.4, None]


def test_seeds_that_a_set_has_several_times_are_in_a_note() -> None:
    sets = {
        "one": [measured(f"a{n}", seed, x=0.1) for n, seed in enumerate((0, 1, 1, 2, 2, 7, 7))],
        "two": [measured(f"b{seed}", seed, x=0.4) for seed in (0, 1, 2, 3)],
    }
    result = study("m", sets)
    assert by_name(result)["x: two less one"].count == 1
    assert result.notes == ["differences leave out the runs of one that share a seed: 1, 2"]
    del sets["one"][0]  # now both common seeds are left out, so there is no difference
    result = study("m", sets)
    assert "x: two less one" not in by_name(result)
    assert result.notes == ["differences leave out the runs of one that share a seed: 1, 2"]


def test_a_seed_is_paired_only_if_each_set_has_it_once() -> None:
    """Two runs of one set have seed 1, so neither is paired with the other set's run of seed 1."""
    sets = {
        "one": [measured("a0", 0, x=0.0), measured("a1", 1, x=0.0)],
        "two": [
            measured(f"b{n}", seed, x=value) for n, (seed, value) in enumerate(SEED_1_REPEATED)
        ],
    }
    result = study("m", sets)
    gain = by_name(result)["x: two less one"]
    assert (gain.value, gain.count) == (0.5, 1)
    assert result.notes == ["differences leave out the runs of two that share a seed: 1"]


SEED_1_REPEATED = ((0, 0.5), (1, 0.7), (1, 0.9))
"""Seed and value of the runs of a set that has seed 1 twice."""


def at_steps(run: str, steps: tuple[int, int], *, at: int | None = None) -> MeasuredRun:
    """Return a run with two metrics, recorded last at these steps."""
    made = measured(run, ord(run))
    found = [
        Estimate(name=name, value=0.0, notes=f"{words} {step}")
        for name, words, step in zip(("x", "y"), ("step", "steps 0 to"), steps, strict=True)
    ]
    result = replace(made.result, title="Metrics", estimates=found)
    return replace(made, result=result, reference=Reference(run=Path(run), step=at))


def test_values_of_different_steps_are_in_a_note() -> None:
    def notes(*runs: MeasuredRun) -> list[str]:
        return list(study("m", {"one": runs[:1], "two": runs[1:]}).notes)

    none = "one and two have no common seeds, so there is no difference"
    why = "because the runs differ in length or in their recorded steps"
    assert notes(at_steps("a", (40, 30)), at_steps("b", (100, 30))) == [
        none,
        f"values of the steps 40 to 100 are compared, {why}: x",
    ]
    both = notes(at_steps("a", (40, 30)), at_steps("b", (40, 30)), at_steps("c", (50, 45)))
    assert both == [none, f"values of the steps 30 to 50 are compared, {why}: x; y"]
    assert notes(at_steps("a", (40, 30)), at_steps("b", (40, 30))) == [none]
    assert notes(at_steps("a", (40, 30), at=40), at_steps("b", (90, 90))) == [none]


def test_newest_checkpoints_of_different_steps_are_in_a_note() -> None:
    def checked(run: str, step: int, *, at: int | None = None) -> MeasuredRun:
        made = measured(run, 0, x=0.5)
        result = replace(made.result, title=f"Reciprocity of {run}@{step} in game")
        return replace(made, result=result, reference=Reference(run=Path(run), step=at))

    (note,) = study("m", {"one": [checked("a", 40)], "two": [checked("b", 60)]}).notes
    assert "steps 40 to 60" in note and note.endswith(": x")
    assert not study("m", {"one": [checked("a", 40)], "two": [checked("b", 40)]}).notes
    assert not study("m", {"one": [checked("a", 40)], "two": [checked("b", 60, at=60)]}).notes


def test_names_of_metrics_leave_out_the_name_of_the_run() -> None:
    def names(reference: Reference, *metrics: str) -> list[str]:
        made = Result(
            measure="m",
            title="",
            definition="",
            estimates=[Estimate(name=metric, value=0.0) for metric in metrics],
        )
        return list(MeasuredRun(reference=reference, seed=0, result=made).values())

    metrics = ("hall-0@60: gain", "hall-0@start: gain", "gap")
    assert names(Reference(run=Path("runs/hall-0")), *metrics) == ["gain", "@start: gain", "gap"]
    start = Reference(run=Path("runs/hall-0"), start=True)
    assert names(start, "hall-0@start: gain") == ["gain"]


def test_a_gain_over_another_player_of_the_run_keeps_both_names() -> None:
    name = "joint gain, low@4 over low@start"
    made = measured("low", 0)
    result = replace(made.result, estimates=[Estimate(name=name, value=1.0)])
    assert [*replace(made, result=result).values()] == ["joint gain, trained over @start"]


def test_curves_are_means_with_the_lowest_and_the_highest_run() -> None:
    runs = [measured("a", 0, {1: 0.0, 2: 0.4}, x=5.0), measured("b", 1, {1: 1.0, 3: 0.2}, x=7.0)]
    result = study("m", {"all": runs})
    dots, curves = result.drawings
    assert isinstance(dots, DotPlot) and dots.rows == ["x"] and dots.sets == {"all": [[5.0, 7.0]]}
    assert isinstance(curves, CurvePlot) and curves.x == [1, 2, 3]
    # The second run is interpolated at 2. The first run has no value at 3, so there is no mean.
    assert curves.series["all"] == pytest.approx([0.5, 0.5, nan], nan_ok=True)
    low, high = curves.bands["all"]
    assert low == pytest.approx([0.0, 0.4, nan], nan_ok=True)
    assert high == pytest.approx([1.0, 0.6, nan], nan_ok=True)
    for drawing in result.drawings:
        assert inline(drawing).startswith("<svg")


def test_only_the_requested_metrics_are_compared() -> None:
    runs = {"all": [measured("a", 0, {1: 0.0}, warm=0.1, warmer=0.2, cold=0.3)]}
    result = study("m", runs, only=["armer", "col"])
    assert set(by_name(result)) == {"warmer: all", "cold: all"} and len(result.drawings) == 1
    assert set(by_name(study("m", runs, only=["warm"]))) == {"warm: all"}  # a whole name
    assert set(by_name(study("m", runs, only=["war"]))) == {"warm: all", "warmer: all"}
    picture = study("m", runs, only=["by round"])
    assert [each.title for each in picture.drawings] == ["by round"] and not picture.tables
    with pytest.raises(ConfigError, match="--only hot: no such metric; choose from: warm, warmer"):
        study("m", runs, only=["hot"])


def test_differences_come_first_and_equal_metrics_are_not_in_the_terminal() -> None:
    sets = {
        name: [measured(f"{name}{seed}", seed, same=0.5, odd=value + seed) for seed in (0, 1)]
        for name, value in (("a", 1.0), ("b", 3.0))
    }
    result = study("m", sets)
    names = [each.name for each in result.estimates]
    assert names == ["same: b less a", "odd: b less a", "same: a", "same: b", "odd: a", "odd: b"]
    text = result.to_text()
    assert text.index("odd: b less a") < text.index("odd: a") and "\nsame" not in text
    assert "note: 1 metric is equal in all runs, and left out here" in text
    alike = study("m", sets, only=["same"])
    assert "same: b less a" in alike.to_text() and "left out" not in alike.to_text()
    one = study("m", {"a": sets["a"][:1]})
    assert not one.equal, "a single run has no equal metrics"


def test_differences_are_to_the_first_set() -> None:
    sets = {
        name: [measured(name, 0, x=value)] for name, value in zip("abc", (1, 2, 4), strict=True)
    }
    found = by_name(study("m", sets))
    assert {n: e.value for n, e in found.items() if "less" in n} == {
        "x: b less a": 1,
        "x: c less a": 3,
    }


def test_sets_without_a_colour_in_pictures_are_in_a_note() -> None:
    sets = {f"set{n}": [measured(f"run{n}", 0, {1: 0.0}, x=float(n))] for n in range(10)}
    note = "pictures show the first 8, and not set8, set9"
    assert note in study("m", sets).notes
    assert note in study("m", sets, only=["by round"]).notes
    del sets["set8"], sets["set9"]
    assert study("m", sets).notes == []


def test_metrics_of_similar_size_share_a_picture() -> None:
    runs = {"all": [measured("a", 0, part=-0.4, one=1.0, few=3.0, more=9.0, many=40.0, no=nan)]}
    drawn = [each for each in study("m", runs).drawings if isinstance(each, DotPlot)]
    assert [each.rows for each in drawn] == [["part", "one"], ["few", "more"], ["many"]]


def test_dots_of_undefined_values_are_not_drawn() -> None:
    values = {"one": [[0.0, 0.5], [nan, inf]], "two": [[1.0], [0.2]]}
    picture = inline(DotPlot(title="t", rows=["a", "b"], sets=values, label="value", null=0.0))
    assert "<svg" in picture and "nan" not in picture.lower()


def test_sets_are_named_and_may_have_wildcards(tmp_path: Path) -> None:
    for name in ("shared-1", "shared-0", "alone-0"):
        (tmp_path / name).mkdir()
    (tmp_path / "shared-2.log").write_text("")
    found = parse_sets(
        [f"s={tmp_path}/shared-*", f"b={tmp_path}/shared-*@start", f"s={tmp_path}/alone-0@7"]
    )
    assert [str(each.run.name) for each in found["s"]] == ["shared-0", "shared-1", "alone-0"]
    assert found["s"][2].step == 7 and [each.start for each in found["b"]] == [True, True]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["runs/a"], "no set of runs; write NAME=RUN"),
        (["=runs/a"], "no set of runs; write NAME=RUN"),
        (["a="], "no set of runs; write NAME=RUN"),
        (["a=/nowhere/*"], "no such run folder"),
        (["a=runs/a", "a=runs/a"], "runs/a is named twice in a"),
        (["a=runs/a@last"], "'last' is not a step"),
    ],
)
def test_texts_that_are_not_a_set_are_refused(texts: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        parse_sets(texts)


def test_a_run_that_a_set_names_by_two_paths_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs/a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="named twice in A"):
        parse_sets(["A=runs/a", f"A={tmp_path}/runs/a"])


def test_sets_with_nothing_in_common_are_refused() -> None:
    def alone(run: str, name: str) -> MeasuredRun:
        made = measured(run, 0)
        estimates = [Estimate(name=name, value=0.1)]
        return replace(made, result=replace(made.result, estimates=estimates, drawings=[]))

    one, two = alone("a", "x, step 1"), alone("b", "y, step 2")
    words = r"one, two have no metric of m in common; only some sets have x, step 1; y, step 2; "
    with pytest.raises(ConfigError, match=words):
        study("m", {"one": [one], "two": [two]})


def test_an_estimate_of_a_step_may_have_further_notes() -> None:
    found = [Estimate(name=n, value=0.0, notes=n) for n in ("step 4; pay per game", "step 4 of x")]
    run = measured("a", 0)
    run = replace(run, result=replace(run.result, title="no player", estimates=found))
    assert run.steps() == {"step 4; pay per game": 4}
