"""Tests of the configs of the self-play curricula: held-out questions and overrides."""

import shlex
from pathlib import Path
from typing import Any

import pytest

import selfplay
from arenas.questions.arena import names_of
from selfplay.config import compose
from selfplay.config.instantiate import build
from selfplay.experiment.experiment import check

CONFIGS = Path(selfplay.__file__).parent.parent / "configs"


def built(name: str, *overrides: str) -> dict[str, Any]:
    return compose.load([f"+experiment={name}", *overrides])


@pytest.mark.parametrize(
    ("name", "count"), [("tiny/r_zero", 60), ("tiny/ladder", 40), ("tiny/multi_agent_evolve", 60)]
)
def test_held_out_questions_may_not_be_proposed(name: str, count: int) -> None:
    settings = built(name)
    held_out = build(settings["evaluations"]["held_out"]["tasks"])
    assert len(held_out) == count
    assert names_of(held_out) == build(settings["arena"]["forbidden"])


def test_sirius_is_measured_on_questions_that_it_does_not_train_on() -> None:
    settings = built("tiny/sirius")
    trained = names_of(build(settings["curriculum"]["tasks"]))
    held_out = names_of(build(settings["evaluations"]["held_out"]["tasks"]))
    assert len(held_out) == 60 and not trained & held_out


def test_ladder_is_measured_on_its_roots_and_on_others_like_them() -> None:
    settings = built("tiny/ladder")
    asked, held_out = (settings["evaluations"][name]["tasks"] for name in ("asked", "held_out"))
    roots = names_of(build(settings["curriculum"]["roots"]))
    assert len(roots) == 32 and roots == names_of(build(asked))
    assert not roots & names_of(build(held_out))


def test_ttrl_asks_the_questions_that_it_trains_on() -> None:
    settings = built("tiny/ttrl")
    asked, held_out = (settings["evaluations"][name]["tasks"] for name in ("asked", "held_out"))
    trained = names_of(build(settings["curriculum"]["tasks"]))
    assert trained == names_of(build(asked)) and not trained & names_of(build(held_out))


def test_the_documented_references_of_multi_agent_evolve_load(tmp_path: Path) -> None:
    text = (CONFIGS / "experiment/paper/multi_agent_evolve.yaml").read_text()
    shown = [line[4:] for line in text.splitlines() if line.startswith("#   ")]
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question": "1 + 1", "answer": 2}\n')
    overrides = shlex.split(" ".join(shown).replace("FILE", str(path)))
    settings = built("paper/multi_agent_evolve", *overrides)
    check(settings)
    (seed,) = build(settings["curriculum"]["seeds"])
    assert seed.payload["question"] == "1 + 1" and "answer" not in seed.payload
    assert settings["curriculum"]["references"] == 4
