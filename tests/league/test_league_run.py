"""Leagues from the command line with tiny models: whole, killed and resumed."""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_process import Strike, metrics, one_line, run, summary
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


def trained(folder: Path, cache: Path, *overrides: str, strike: Strike | None = None) -> Path:
    arguments = ("train", *GAME, *overrides, "run.name=mine")
    outcome = run(*arguments, cwd=folder, cache=cache, strike=strike)
    assert outcome.code == (-signal.SIGKILL if strike else 0), outcome.err
    return folder / "runs/mine"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A run with snapshots and anchors, undisturbed."""
    return trained(tmp_path_factory.mktemp("whole"), cache, *ANCHORS)


def test_only_the_players_own_turns_are_learned_from(whole: Path) -> None:
    for step in (1, 3):
        figures, records = metrics(whole)[step], episodes(whole, step)
        met: Counter[str] = Counter()
        for record in records:
            turns, seating = record["episode"]["turns"], record["episode"]["policy_map"]
            met.update(set(seating.values()))
            for turn, advantage in zip(turns, record["advantages"], strict=True):
                own = turn["agent"] not in seating
                assert turn["policy"] == ("base" if own else seating[turn["agent"]])
                assert turn["trainable"] is own is (advantage is not None)
        learned = sum(a is not None for record in records for a in record["advantages"])
        assert figures["policy/base/samples"] == learned > 0
        for name, count in met.items():
            assert figures[f"versus/{name}/episodes"] == count > 0
    assert figures["league/share/base/snapshots"] + figures["league/share/base/anchors"] > 0


def test_the_figures_and_files_of_a_league(whole: Path) -> None:
    figures = metrics(whole)[-1]
    assert figures["league/snapshots"] == 2 and figures["league/dropped"] == 1
    for place in ("000002", "000003"):
        latest = int(place)
        found = sorted(
            each.name for each in (whole / "checkpoints" / place / "snapshots").iterdir()
        )
        assert found == [f"base@{latest - 1}", f"base@{latest}"]
    shares = [v for name, v in figures.items() if name.startswith("league/share/base")]
    assert sum(shares) == pytest.approx(1)
    for when in ("before", "after"):
        found = summary(whole)["evaluations"]["versus"][when]
        for opponent in ("random", "perfect"):
            shares = [found[f"versus/{opponent}/{came}"] for came in ("won", "drawn", "lost")]
            assert sum(shares) == pytest.approx(1)
        assert found["versus/perfect/won"] == 0, "nobody beats it"


@pytest.mark.parametrize(
    "strike",
    [
        Strike(at="selfplay.train.Trainer.save", call=3),
        pytest.param(
            Strike(at="selfplay.learner.checkpoint_content.os.link", call=3), marks=pytest.mark.slow
        ),
    ],
    ids=["between a step and its checkpoint", "while snapshots are written"],
)
def test_killed_and_resumed_it_is_the_run_that_was_not(
    strike: Strike, whole: Path, cache: Path, tmp_path: Path
) -> None:
    place = trained(tmp_path, cache, *ANCHORS, strike=strike)
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
def test_exploiters_begin_again_and_resume(
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
    strike = Strike(at="selfplay.train.Trainer.save", call=3)
    place = trained(folders[1], cache, *STARS, *overrides, strike=strike)
    assert run("train", "resume=runs/mine", cwd=folders[1], cache=cache).code == 0
    alike(place, undisturbed)


@pytest.mark.slow
def test_a_saved_policy_is_an_opponent(whole: Path, cache: Path, tmp_path: Path) -> None:
    """The very model that it began as: a copy of it on the other seat, frozen."""
    saved = whole / "checkpoints/000003/snapshots/base@3"
    place = trained(
        tmp_path,
        cache,
        f"+population.opponents.old={{model: {saved}, device: cpu}}",
        *("league=anchors", "league.anchors=[old]", "run.steps=2"),
        VERSUS.replace("random, perfect", "old"),
    )
    figures = metrics(place)[-1]
    assert "versus/old/player/reward" in figures and "versus/random/episodes" not in figures
    assert not [*place.glob("checkpoints/*/*/old")]


def test_a_script_for_another_game_is_one_line(cache: Path, tmp_path: Path) -> None:
    wrong = f"+population.opponents.wrong={{{SCRIPT}, script: {__name__}.lost}}"
    only = "league.players.default.matchmaking.weights={current: 0, past: 0, anchors: 1}"
    arguments = ("train", *GAME, wrong, "league=anchors", "league.anchors=[wrong]", only)
    outcome = run(*arguments, cwd=tmp_path, cache=cache)
    assert outcome.code == 2
    assert f"opponent 'wrong': {__name__}.lost failed: KeyError" in one_line(
        outcome.err.splitlines()[-1]
    )


def lost(agent: str, observation: Any, rng: Any) -> str:
    """A script that looks for what the game does not show."""
    return str(observation.fields["cards"])
