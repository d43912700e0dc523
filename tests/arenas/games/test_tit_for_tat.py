"""Tests of demonstrations of tit for tat: the fraction that repeats the other's last move."""

from itertools import islice
from random import Random

import pytest

from arenas.games.matrix import raw_env
from arenas.games.tit_for_tat import TitForTat
from selfplay.config import compose
from selfplay.config.instantiate import build
from selfplay.experiment.experiment import check
from selfplay.role import Role


def answers(errs: float, count: int = 4000) -> dict[str, float]:
    """Return the fraction of cooperative moves by the text of the observation."""
    source = TitForTat(errs=errs, arena=raw_env(rounds=2), named_first=0.0, named_last=0.0)
    assert len(source.situations) == 2 * 5  # per player: the beginning, and four outcomes
    found: dict[str, list[bool]] = {}
    for each in islice(source.stream(Random(0), 0.9), count):
        assert each.completion in ("cooperate", "defect")
        cooperates = each.completion == "cooperate"
        found.setdefault(each.observation.text, []).append(cooperates)
    return {text: sum(moves) / len(moves) for text, moves in found.items()}


@pytest.mark.parametrize("errs", [0.0, 0.1, 0.5])
def test_moves_repeat_the_last_move_except_for_errors(errs: float) -> None:
    """Each situation has 400 demonstrations: five standard deviations are at most 0.125."""
    for text, fraction in answers(errs).items():
        last = text.rpartition("/")[2]
        truth = {"cooperate": 1 - errs, "defect": errs}.get(last, 0.5)
        assert fraction == pytest.approx(truth, abs=5 * (truth * (1 - truth) / 400) ** 0.5 + 1e-9)


def test_every_prompt_of_a_player_is_demonstrated() -> None:
    """A prompt that shows only the last round equals a prompt of a game of two rounds."""
    settings = compose.load(["+experiment=tiny/dilemma"])
    check(settings)
    role: Role = build(settings["roles"]["first"], where="roles.first")
    arena = build(settings["arena"], where="arena")
    source = build(settings["warmstart"]["demonstrations"], where="demonstrations")
    pieces = set(source.pieces())
    arena.begin(arena.default_task(Random(0)), 0)
    rng = Random(1)
    while not arena.finished:
        for agent in arena.stage:
            prompt = role.prompt(arena.view(agent))[-1]["content"]
            assert prompt in pieces
        arena.play_stage({agent: rng.choice(arena.moves[0]) for agent in arena.stage})


def test_errors_are_a_fraction() -> None:
    with pytest.raises(ValueError, match=r"errs lies in \[0, 1\]"):
        TitForTat(errs=1.5, arena=raw_env(rounds=2))
