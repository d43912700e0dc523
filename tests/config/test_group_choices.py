"""Tests of groups chosen together with an experiment that sets keys below them."""

from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from selfplay.cli.main import main
from selfplay.config import compose, plain_data
from selfplay.errors import ConfigError

EXPERIMENTS = compose.choices("experiment")
CHOICES = [
    *(f"credit={name}" for name in compose.choices("credit")),
    *(f"sampler={name}" for name in compose.choices("sampler")),
    "evaluations=none",
]


def loaded(*overrides: str, **settings: Any) -> tuple[dict[str, Any], list[str]]:
    """Return a config and the notes of its composition."""
    notes: list[str] = []
    return compose.load(overrides, report=notes.append, **settings), notes


@cache
def loaded_alone(choice: str) -> dict[str, Any]:
    """Return the config of a choice without an experiment."""
    return compose.load([choice])


def fits(experiment: str, choice: str) -> None:
    """Check that a choice composes, and that its group has no dropped keys."""
    composed, notes = loaded(f"+experiment={experiment}", choice)
    plain_data.check_config(composed)
    group, _, name = choice.partition("=")
    alone = loaded_alone(choice)[group]
    assert composed[group].get("_target_") == alone.get("_target_")
    if any(f" {group}." in line for line in notes):
        assert composed[group] == alone
    if name == "none":
        assert composed[group] == {}


def sample() -> list[tuple[str, str]]:
    """Return each experiment with one choice, and five experiments with evaluations=none."""
    pairs = zip(EXPERIMENTS, cycle(CHOICES), strict=False)
    # The arenas of four of them forbid the questions of the evaluations.
    named = ("tiny/r_zero", "tiny/spice", "tiny/search_self_play", "smollm2/absolute_zero")
    return [*pairs, *((name, "evaluations=none") for name in (*named, "tiny/tic_tac_toe"))]


@pytest.mark.parametrize(("experiment", "choice"), sample())
def test_an_experiment_takes_another_choice(experiment: str, choice: str) -> None:
    fits(experiment, choice)


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_takes_every_choice(experiment: str) -> None:
    for choice in CHOICES:
        fits(experiment, choice)


def test_dropped_settings_are_reported() -> None:
    composed, notes = loaded("+experiment=tiny/kuhn", "credit=rae")
    assert notes == ["experiment tiny/kuhn's credit.group_by is dropped: credit=rae was chosen"]
    assert "group_by" not in composed["credit"]
    composed, notes = loaded("+experiment=tiny/tic_tac_toe_league", "league=pfsp")
    assert notes == [
        "experiment tiny/tic_tac_toe_league's league.anchors, league.players, "
        "league.opponents_per_step are dropped: league=pfsp was chosen"
    ]


def test_the_command_prints_dropped_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "+experiment=tiny/kuhn", "credit=rae", "--cfg"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "note: experiment tiny/kuhn's credit.group_by is dropped: credit=rae was chosen"
    ]


def test_settings_of_the_command_line_are_kept() -> None:
    composed, _ = loaded("+experiment=tiny/kuhn", "credit=rloo", "credit.group_by=prompt")
    assert composed["credit"]["group_by"] == "prompt"
    composed, _ = loaded("+experiment=tiny/kuhn", "sampler=dynamic", "sampler.group_size=3")
    assert composed["sampler"]["group_size"] == 3
    with pytest.raises(ConfigError, match=r"unknown key 'credit\.group_by'"):
        loaded("+experiment=tiny/kuhn", "credit=rae", "credit.group_by=role")


def test_the_experiments_own_choice_and_other_groups_are_kept() -> None:
    composed, notes = loaded("+experiment=tiny/kuhn", "credit=dr_grpo", "objective=grpo")
    assert composed["credit"]["group_by"] == "agent" and notes == []
    assert composed["sampler"]["group_size"] == 85


def test_settings_of_the_same_class_are_kept() -> None:
    composed, notes = loaded("+experiment=tiny/tic_tac_toe", "population=separate", "collapse=stop")
    assert set(composed["population"]["opponents"]) == {"random", "minimax"} and notes == []
    assert "diverging" in composed["collapse"]["rules"]
    debate = ("roles=debate_with_judge", "arena.aggregate=judge", "population=separate")
    composed, notes = loaded("+experiment=tiny/debate", *debate)
    assert composed["roles"]["debater"]["style"] == "terse" and notes == []


def test_none_empties_a_group() -> None:
    for experiment, group in (
        ("tiny/dilemma", "evaluations"),
        ("tiny/tic_tac_toe_league", "league"),
    ):
        composed, notes = loaded(f"+experiment={experiment}", f"{group}=none")
        assert composed[group] == {} and len(notes) == 1
    composed, _ = loaded("+experiment=tiny/tic_tac_toe", "collapse=none")
    assert composed["collapse"]["rules"] == {}


def test_none_drops_what_an_experiment_sets_without_a_choice(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /arena: kuhn\n  - override /roles: kuhn\n"
        "evaluations:\n  held: {arena: '${arena}', tasks: [], metrics: {}}\n"
    )
    whole, _ = loaded("+experiment=mine", search=[str(tmp_path)])
    assert list(whole["evaluations"]) == ["held"]
    empty, notes = loaded("+experiment=mine", "evaluations=none", search=[str(tmp_path)])
    assert empty["evaluations"] == {}
    assert notes == ["experiment mine's evaluations.held is dropped: evaluations=none was chosen"]


def test_settings_of_an_experiment_and_of_its_base_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text(
        "# @package _global_\n# mine\ndefaults:\n  - tiny/kuhn\n"
        "credit: {group_by: role}\nrun: {steps: 3}\nlearner: {lr: 1e-3}\n"
    )
    search = [str(tmp_path)]
    composed, notes = loaded("+experiment=mine", "credit=rae", search=search)
    assert composed["run"]["steps"] == 3 and composed["learner"]["lr"] == 1e-3
    assert composed["arena"] == compose.load(["+experiment=tiny/kuhn"])["arena"]
    assert [line.partition("'")[0] for line in notes] == ["experiment tiny/kuhn", "experiment mine"]


def test_a_sweep_prints_each_note_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "selfplay.run.sweep.run", lambda folder, sweep, **rest: [sweep.points[0].name]
    )
    monkeypatch.setattr("selfplay.run.report.sweep_report.lines", lambda folder: [])
    monkeypatch.setattr("selfplay.run.report.sweep_report.text", lambda found: "")
    monkeypatch.setattr("selfplay.run.report.sweep_report.write_ablation", lambda folder: folder)
    points = ["+experiment=tiny/kuhn", "credit=rae,dr_grpo", "seed=0,1", "run.name=s"]
    assert main(["train", "-m", *points]) == 2
    note, failed = capsys.readouterr().err.splitlines()
    assert note == "note: experiment tiny/kuhn's credit.group_by is dropped: credit=rae was chosen"
    assert "1 of 4 runs did not finish" in failed


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("experiment=tiny/kuhn", "+experiment=tiny/kuhn"),
        ("seed=0,1", "add -m"),
        ("+learner.lr=3", "without the plus"),
        ("arena={}", "choose a config"),
        ("learner={}", "~learner.lr"),
        ("evaluations={}", "choose evaluations=none"),
        ("evaluations=null", "did you mean 'none'?"),
    ],
)
def test_the_error_of_a_wrong_override_suggests_another(override: str, words: str) -> None:
    added = ["+experiment=tiny/smoke"] if override.endswith("={}") else []
    with pytest.raises(ConfigError) as caught:
        compose.load([*added, override])
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_an_empty_mapping_is_possible_where_nothing_is_lost() -> None:
    assert compose.load(["run.minimum={}"])["run"]["minimum"] == {}
    assert compose.load(["+run.extra={}"])["run"]["extra"] == {}


def test_the_reason_of_a_failed_composition_is_reported(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/odd.yaml").write_text("# @package _global_\nlearner: 3\n")
    with pytest.raises(ConfigError) as caught:
        compose.load(["+experiment=odd", "learner.lr=1"], search=[str(tmp_path)])
    error = str(caught.value)
    assert not error.endswith("raised while composing config:") and "\n" not in error


def test_a_recipe_keeps_its_correction_of_stale_samples_with_another_algorithm() -> None:
    machine = ("+experiment=paper/absolute_zero_7b", "+recipe=gpu_8_full_7b")
    config, notes = loaded(*machine, "algorithm=rloo")
    assert config["objective"]["ratio"] == "none"
    assert config["objective"]["correction"] == "truncated"
    assert config["runtime"]["max_staleness"] == 1
    assert not any(line.startswith("recipe") for line in notes)
