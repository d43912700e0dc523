"""Tests of runs whose policies learn from teachers, and of errors in their settings."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from selfplay.cli.main import main
from selfplay.config import compose
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import Experiment
from tests.helpers.builders import save_tiny

pytestmark = pytest.mark.usefixtures("without_charts")

SMALL = (
    "+experiment=tiny/three_games",
    "warmstart.steps=2",
    "warmstart.model={hidden: 16, layers: 1, heads: 2, intermediate: 32}",
    "warmstart.demonstrations.parts.tic_tac_toe.most=2",
    "curriculum.batch=3",
    "sampler.group_size=4",
    "evaluations=none",
    "run.threads=1",
    "run.checkpoint_every=1",
    "run.keep_checkpoints=10",
)
KUHN = (
    "+experiment=tiny/kuhn",
    "warmstart.steps=2",
    "warmstart.model={hidden: 16, layers: 1, heads: 2, intermediate: 32}",
    "sampler.group_size=4",
    "run.threads=1",
    "run.episodes_every=1",
)


def train(folder: Path, name: str, *words: str) -> Path:
    assert main(["train", *SMALL, f"run.folder={folder}", f"run.name={name}", *words]) == 0
    return folder / name


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def model(run: Path, step: int) -> Path:
    return run / f"checkpoints/{step:06d}/policies/base"


def test_a_policy_learns_from_a_teacher_for_each_role_and_resumes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = train(tmp_path, "first", "run.steps=1", "credit=rae", "learner.lr=0.1")
    other = train(tmp_path, "other", "run.steps=1", "credit=rae", "learner.lr=0.05")
    theirs = f"{{kuhn_player: {model(first, 1)}, tic_tac_toe_player: {model(other, 1)}, "
    theirs += f"signal_scout: {model(first, 1)}, signal_partner: {model(first, 1)}}}"
    ways = ("algorithm=distillation", "learner.lr=0.003")
    run = train(tmp_path, "student", *ways, f"policy.teacher={theirs}", "run.steps=4")
    assert "no policy learns from its rewards" not in capfd.readouterr().out
    steps = {line["step"]: line for line in metrics(run) if "policy/base/reference_kl" in line}
    values = [steps[step]["policy/base/reference_kl"] for step in (1, 2, 3, 4)]
    assert values[0] > 1e-3 and values[3] < values[0]
    # The loss is the KL alone and does not depend on the rewards.
    for step in (1, 4):
        assert steps[step]["policy/base/loss"] == pytest.approx(
            steps[step]["policy/base/reference_kl"], rel=1e-5
        )
    # A resumed run has the same losses, also if the folder of a teacher was renamed.
    again = tmp_path / "again"
    shutil.copytree(run, again)
    for step in (3, 4):
        shutil.rmtree(again / f"checkpoints/{step:06d}")
    shutil.move(other, tmp_path / "moved")
    moved = f"population.policy.teacher.tic_tac_toe_player={model(tmp_path / 'moved', 1)}"
    assert main(["train", f"resume={again}", moved]) == 0
    replayed = {line["step"]: line for line in metrics(again) if "policy/base/loss" in line}
    for step in (3, 4):
        assert replayed[step]["policy/base/loss"] == steps[step]["policy/base/loss"]


def refused(capsys: pytest.CaptureFixture[str], words: list[str], pattern: str) -> None:
    capsys.readouterr()
    assert main(["check", *SMALL, *words]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "selfplay:" in line]
    assert re.search(pattern, line), line


DISTILLATION = "algorithm=distillation"


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        ([DISTILLATION], r"policy\.teacher: missing, and objective.reference=teacher; set it to"),
        (["policy.teacher=PLACE"], r"policy\.teacher: the objective reads no teacher; set obj"),
        (
            ["objective=distillation"],
            r"advantage=none reads no rewards; .*\(algorithm=distillation",
        ),
        (
            [DISTILLATION, "policy.teacher=PLACE", "objective.kl=0"],
            r"objective\.kl: 0 at all steps, and advantage=none learns from the KL alone",
        ),
        ([DISTILLATION, "policy.teacher=/nowhere"], r"policy\.teacher: no folder '/nowhere'"),
        (
            [DISTILLATION, "policy.teacher={solver: PLACE}"],
            r"policy\.teacher: no role 'solver'; choose from: kuhn_player, ",
        ),
        (
            [DISTILLATION, "policy.teacher={kuhn_player: PLACE}"],
            r"policy\.teacher: none for role 'tic_tac_toe_player'; add one, or name one model",
        ),
        ([DISTILLATION, "policy.teacher=[PLACE]"], r"policy\.teacher: .* does not fit"),
        (
            [
                DISTILLATION,
                "policy.teacher=PLACE",
                "+population.opponents.old={model: PLACE, teacher: PLACE}",
            ],
            r"population\.opponents\.old\.teacher: unknown key; a saved model is fixed",
        ),
        (
            ["objective.reference=teacher", "population=separate", "policy.teacher=null"],
            r"policy\.teacher: missing, and objective.reference=teacher",
        ),
    ],
)
def test_settings_that_do_not_fit_are_one_line(
    words: list[str], pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = save_tiny(tmp_path / "model")
    refused(capsys, [word.replace("PLACE", str(place)) for word in words], pattern)


def test_a_run_is_evaluated_and_studied_without_its_teacher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = save_tiny_of_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    ways = (*KUHN, "algorithm=distillation", "policy.teacher=teacher", "run.steps=1")
    assert main(["train", *ways, "run.folder=runs", "run.name=r"]) == 0
    # The config of a run has the absolute path of the folder.
    config = yaml.safe_load((tmp_path / "runs/r/config.yaml").read_text())
    assert config["population"]["policy"]["teacher"] == str(teacher)
    shutil.move(teacher, tmp_path / "moved")
    assert main(["evaluate", "runs/r"]) == 0
    assert main(["study", "behaviour", "runs/r"]) == 0
    assert main(["train", "resume=runs/r", "run.steps=2"]) == 2
    moved = "population.policy.teacher=moved"
    assert main(["train", "resume=runs/r", "run.steps=2", moved]) == 0


def save_tiny_of_run(place: Path) -> Path:
    """Train a run of one step, and return a folder with its policy."""
    ways = (*KUHN, "run.steps=1", f"run.folder={place}", "run.name=first", "learner.lr=0.1")
    assert main(["train", *ways]) == 0
    shutil.copytree(model(place / "first", 1), place / "teacher")
    return place / "teacher"


def test_teachers_of_other_roles_are_left_to_their_policies(tmp_path: Path) -> None:
    place = save_tiny(tmp_path / "model")
    roles = ("kuhn_player", "tic_tac_toe_player", "signal_scout", "signal_partner")
    named = ", ".join(f"{role}: {place}" for role in roles)
    words = [*SMALL, DISTILLATION, "population=separate", f"policy.teacher={{{named}}}"]
    population = Experiment(compose.load(words)).players.population
    for role in roles:
        assert population.policies[role].teacher == {role: str(place)}


def test_roles_that_only_an_evaluation_plays_need_no_teacher(tmp_path: Path) -> None:
    place = save_tiny_of_run(tmp_path)
    role = "{_target_: selfplay.role.Role, template: '{{ text }}'}"
    talk = "{arena: {_target_: tests.helpers.fault_injection.Talk}, metrics: {known: known}, "
    talk += "tasks: [{_target_: selfplay.types.Task, id: hello}]}"
    words = (
        *KUHN,
        DISTILLATION,
        "services=buffer",
        f"+roles.speaker={role}",
        f"+roles.thinker={role}",
        f"+evaluations.talk={talk}",
        "run.steps=1",
        f"run.folder={tmp_path}",
        "run.name=r",
    )
    assert main(["train", *words, f"policy.teacher={{player: {place}}}"]) == 0
    assert any("policy/base/reference_kl" in line for line in metrics(tmp_path / "r"))
    # A role of the training arena still needs one.
    with pytest.raises(ConfigError, match=r"policy\.teacher: none for role 'player'; add one"):
        Experiment(compose.load([*words, f"policy.teacher={{speaker: {place}}}"]))


def test_a_note_warns_of_exploiters_that_imitate_and_of_estimates(tmp_path: Path) -> None:
    place = save_tiny(tmp_path / "model")
    words = [*KUHN, DISTILLATION, f"policy.teacher={place}", "league=alphastar"]
    notes = Experiment(compose.load(words)).notes
    assert any("main_exploiter' learns from its teacher and from no reward" in n for n in notes)
    assert not any("estimated from the sampled tokens" in note for note in notes)
    words = [*KUHN, "objective.reference=teacher", f"policy.teacher={place}"]
    notes = Experiment(compose.load(words)).notes
    assert any("estimated from the sampled tokens" in note for note in notes)


def test_a_frozen_policy_needs_no_teacher(tmp_path: Path) -> None:
    place = save_tiny(tmp_path / "model")
    words: Any = [
        *SMALL,
        DISTILLATION,
        "population=separate",
        f"policy.teacher={place}",
        "+population.overrides.kuhn_player={learn: false, teacher: null}",
    ]

    Experiment(compose.load(words))
