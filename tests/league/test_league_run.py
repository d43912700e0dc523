"""Tests of leagues from the command line with tiny models: uninterrupted, killed and resumed."""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_process import InjectedFault, metrics, one_line, run, summary
from tests.helpers.league_settings import ANCHORS, GAME, SCRIPT, VERSUS

STARS = (
    "league=alphastar",
    *("league.players.default.add.least=1", "league.players.default.add.most=1"),
    *("league.players.main_exploiter.add.least=1", "league.players.main_exploiter.add.most=1"),
    *("league.players.league_exploiter_0.add.most=1", "league.drop.most=4"),
    *("league.players.league_exploiter_0.add.least=1", "league.opponents_per_step=0"),
)


def episodes(place: Path, step: int) -> list[dict[str, Any]]:
    lines = (place / f"episodes/{step:06d}.jsonl").read_text().splitlines()
    return list(map(json.loads, lines))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def trained(
    folder: Path, cache: Path, *overrides: str, injected: InjectedFault | None = None
) -> Path:
    arguments = ("train", *GAME, *overrides, "run.name=mine")
    outcome = run(*arguments, cwd=folder, cache=cache, injected=injected)
    assert outcome.code == (-signal.SIGKILL if injected else 0), outcome.err
    return folder / "runs/mine"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """Return the folder of an uninterrupted run with snapshots and anchors."""
    return trained(tmp_path_factory.mktemp("whole"), cache, *ANCHORS)


def test_only_the_players_own_turns_are_learned_from(whole: Path) -> None:
    for step in (1, 3):
        values, records = metrics(whole)[step], episodes(whole, step)
        met: Counter[str] = Counter()
        for record in records:
            turns, seating = record["episode"]["turns"], record["episode"]["policy_map"]
            met.update(set(seating.values()))
            for turn, advantage in zip(turns, record["advantages"], strict=True):
                own = turn["agent"] not in seating
                assert turn["policy"] == ("base" if own else seating[turn["agent"]])
                assert turn["trainable"] is own is (advantage is not None)
        learned = sum(a is not None for record in records for a in record["advantages"])
        assert values["policy/base/samples"] == learned > 0
        for name, count in met.items():
            assert values[f"versus/{name}/episodes"] == count > 0
    assert values["league/share/base/snapshots"] + values["league/share/base/anchors"] > 0


def test_the_metrics_and_files_of_a_league(whole: Path) -> None:
    values = metrics(whole)[-1]
    assert values["league/snapshots"] == 2 and values["league/dropped"] == 1
    for place in ("000002", "000003"):
        latest = int(place)
        found = sorted(
            each.name for each in (whole / "checkpoints" / place / "snapshots").iterdir()
        )
        assert found == [f"base@{latest - 1}", f"base@{latest}"]
    fractions = [v for name, v in values.items() if name.startswith("league/share/base")]
    assert sum(fractions) == pytest.approx(1)
    for when in ("before", "after"):
        found = summary(whole)["evaluations"]["versus"][when]
        for opponent in ("random", "perfect"):
            fractions = [found[f"versus/{opponent}/{came}"] for came in ("won", "drawn", "lost")]
            assert sum(fractions) == pytest.approx(1)
        assert found["versus/perfect/won"] == 0, "no player beats it"


@pytest.mark.parametrize(
    "injected",
    [
        InjectedFault(at="selfplay.train.Trainer.save", call=3),
        pytest.param(
            InjectedFault(at="selfplay.learner.checkpoint_content.os.link", call=3),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["between a step and its checkpoint", "while snapshots are written"],
)
def test_a_killed_and_resumed_run_equals_an_uninterrupted_run(
    injected: InjectedFault, whole: Path, cache: Path, tmp_path: Path
) -> None:
    place = trained(tmp_path, cache, *ANCHORS, injected=injected)
    outcome = run("train", "resume=runs/mine", cwd=tmp_path, cache=cache)
    assert outcome.code == 0, outcome.err
    alike(place, whole)


def alike(place: Path, whole: Path) -> None:
    assert metrics(place) == metrics(whole)
    assert summary(place)["evaluations"] == summary(whole)["evaluations"]
    for path in [*whole.glob("episodes/*"), *whole.glob("checkpoints/*/*/*/model.safetensors")]:
        assert (place / path.relative_to(whole)).read_bytes() == path.read_bytes(), path


@pytest.mark.parametrize(
    "overrides",
    [pytest.param((), id="full"), pytest.param(("policy.lora={rank: 2}",), id="lora")],
)
@pytest.mark.slow
def test_runs_with_reset_exploiters_can_be_resumed(
    overrides: tuple[str, ...], cache: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("whole", "struck")]
    for folder in folders:
        folder.mkdir()
    undisturbed = trained(folders[0], cache, *STARS, *overrides)
    lines = metrics(undisturbed)
    assert sum(line.get("league/begun_again", 0) for line in lines) >= 2
    assert lines[-1]["league/share/main_exploiter/self"] == 0
    assert lines[-1]["policy/main_exploiter/samples"] > 0
    injected = InjectedFault(at="selfplay.train.Trainer.save", call=3)
    place = trained(folders[1], cache, *STARS, *overrides, injected=injected)
    assert run("train", "resume=runs/mine", cwd=folders[1], cache=cache).code == 0
    alike(place, undisturbed)


@pytest.mark.slow
def test_a_saved_policy_is_an_opponent(whole: Path, cache: Path, tmp_path: Path) -> None:
    """Check a snapshot of an earlier run as a frozen opponent."""
    saved = whole / "checkpoints/000003/snapshots/base@3"
    place = trained(
        tmp_path,
        cache,
        f"+population.opponents.old={{model: {saved}, device: cpu}}",
        *("league=anchors", "league.anchors=[old]", "run.steps=2"),
        VERSUS.replace("random, perfect", "old"),
    )
    values = metrics(place)[-1]
    assert "versus/old/player/reward" in values and "versus/random/episodes" not in values
    assert not [*place.glob("checkpoints/*/*/old")]


def test_a_script_for_another_game_is_a_one_line_error(cache: Path, tmp_path: Path) -> None:
    wrong = f"+population.opponents.wrong={{{SCRIPT}, script: {__name__}.lost}}"
    only = "league.players.default.matchmaking.weights={current: 0, past: 0, anchors: 1}"
    arguments = ("train", *GAME, wrong, "league=anchors", "league.anchors=[wrong]", only)
    outcome = run(*arguments, cwd=tmp_path, cache=cache)
    assert outcome.code == 2
    assert f"opponent 'wrong': {__name__}.lost failed: KeyError" in one_line(
        outcome.err.splitlines()[-1]
    )


def lost(agent: str, observation: Any, rng: Any) -> str:
    """Return a field that the game does not show, which raises KeyError."""
    return str(observation.fields["cards"])
