"""Studies of a run in which an opponent always holds one role."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from selfplay.engines import Engine
from selfplay.errors import RunError
from selfplay.study.matches import games_of
from selfplay.study.players import Reference
from tests.helpers.command_process import run

CHANCE = (
    "+population.opponents.chance="
    "{_target_: selfplay.engines.scripted.Scripted, script: arenas.games.opponents.random_legal}"
)
HELD = "partner is played by chance, which does not learn"
FEW = "--episodes=6"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a run of the signal game whose partner is a script, and its copy."""
    place = tmp_path_factory.mktemp("opponents")
    small = ("run.steps=1", "warmstart.steps=10", "sampler.group_size=8", "run.threads=1")
    seats = (CHANCE, "+population.roles={partner: chance}")
    outcome = run("train", "+experiment=tiny/signal", *small, *seats, "run.name=one", cwd=place)
    assert outcome.code == 0, outcome.err
    shutil.copytree(place / "runs/one", place / "runs/two")
    return place


@pytest.mark.parametrize(
    "arguments",
    [
        ("ablate", "runs/one", FEW),
        pytest.param(("transfer", "runs/one", "runs/two", FEW), marks=pytest.mark.slow),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_measure_that_plays_games_seats_the_opponent(
    folder: Path, arguments: tuple[str, ...]
) -> None:
    outcome = run("study", *arguments, cwd=folder)
    assert outcome.code == 0, outcome.err
    assert HELD in outcome.out or arguments[0] == "transfer"


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ("crossplay", "fewer than two sides besides partner, which the same opponent plays"),
        ("roleswap", "fewer than two sides besides partner, which the same opponent plays"),
        pytest.param("payoffs", "1 side(s) besides partner, which", marks=pytest.mark.slow),
        pytest.param("hacking", "hacking: matrix_v0 has no proposals", marks=pytest.mark.slow),
    ],
)
def test_the_seat_of_the_same_opponent_has_no_partner(
    folder: Path, measure: str, message: str
) -> None:
    outcome = run("study", measure, "runs/one", "runs/two", FEW, cwd=folder)
    assert outcome.code != 0 and message in outcome.err


def test_a_listener_without_a_model_is_left_out_and_named(folder: Path) -> None:
    outcome = run("study", "influence", "runs/one", FEW, cwd=folder)
    assert outcome.code == 0, outcome.err
    assert "partner_0 of one@1 has no model with probabilities to read" in outcome.out
    assert "positive signalling of scout_0" in outcome.out


@pytest.mark.parametrize("step", [1, 9], ids=["played", "no such checkpoint"])
def test_the_engines_of_all_players_are_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    closed: list[Engine] = []
    monkeypatch.setattr(Engine, "close", lambda self: closed.append(self))
    two = folder / "runs/two"
    engines: dict[str, Engine] = {}
    with suppress(RunError), games_of(folder / "runs/one", episodes=6) as games:
        engines = games.engines
        games.admit([Reference(run=two, start=True), Reference(run=two, step=step)])
    assert len({id(each) for each in engines.values()}) == {1: 6, 9: 4}[step]
    assert {id(each) for each in engines.values()} <= {id(each) for each in closed}
