"""Tests of MAGRPO with all joint actions of a group, and with returns over a tree's children."""

import numpy as np
import pytest
import torch

from selfplay.credit.magrpo import MAGRPO
from selfplay.errors import ConfigError
from selfplay.types import Episode, Group, Status
from tests.helpers.builders import advantages, episode, group, turn
from tests.helpers.enumerated_arena import GameArena, arena_of, branched, gradient, groups_of, trees
from tests.helpers.enumerated_game import EARLY_END, MIXED, TWO_ROUNDS, Game


def cross(game: Game = MIXED, **settings: object) -> MAGRPO:
    return MAGRPO(joint="cross", arena=arena_of(game), **settings)  # type: ignore[arg-type]


PAIR = group(MIXED.played(((0, 1),)), MIXED.played(((2, 0),)))


def test_by_hand() -> None:
    # The mean pay of both agents is 1 for (0,1), .5 for (0,0), -.25 for (2,1) and 1.5 for (2,0).
    # Left's actions are worth .75 and .625, right's .375 and 1; aligned siblings 1 and 1.5.
    assert advantages(cross().assign([PAIR])) == [0.0625, -0.3125, -0.0625, 0.3125]
    assert advantages(cross(over="sum").assign([PAIR])) == [0.125, -0.625, -0.125, 0.625]
    assert advantages(MAGRPO().assign([PAIR])) == [-0.25, -0.25, 0.25, 0.25]


def test_equal_joint_actions_are_played_once() -> None:
    credit = cross()
    credit.assign([group(*PAIR.episodes, *PAIR.episodes)])
    assert credit.metrics() == {"replays": 4, "replays_failed": 0}
    assert MAGRPO().metrics() == {}


def moments(
    game: Game, logits: torch.Tensor, credit: MAGRPO, *, size: int
) -> tuple[np.ndarray, float]:
    """Return the expectation and the total variance of the gradient."""
    mean, square = np.zeros(tuple(logits.shape)), 0.0
    for weight, one in groups_of(game, logits, size=size):
        found = gradient(game, logits, credit, one)
        mean += weight * found
        square += weight * float((found**2).sum())
    return mean, square - float((mean**2).sum())


@pytest.mark.parametrize(("size", "ratio"), [(2, 0.92), (3, 0.88)])
def test_cross_has_the_expectation_of_aligned_with_less_variance(size: int, ratio: float) -> None:
    logits = MIXED.table(seed=1)
    scaled = MIXED.exact(logits, team=True) * (size - 1) / size
    mean, variance = moments(MIXED, logits, cross(), size=size)
    aligned, aligned_variance = moments(MIXED, logits, MAGRPO(), size=size)
    assert mean == pytest.approx(scaled, abs=1e-12)
    assert aligned == pytest.approx(scaled, abs=1e-12)
    assert variance < ratio * aligned_variance


def test_the_sum_is_larger_by_the_number_of_the_others_combinations() -> None:
    logits = MIXED.table(seed=1)
    mean, _ = moments(MIXED, logits, cross(over="sum"), size=2)
    assert mean == pytest.approx(MIXED.exact(logits, team=True) / 2 * 2, abs=1e-12)


def refused(credit: MAGRPO, one: Group, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        credit.assign([one])


def test_cross_refuses_groups_that_it_cannot_replay() -> None:
    several = "one stage.*set credit.joint=aligned"
    refused(cross(TWO_ROUNDS), group(TWO_ROUNDS.played(((0, 0), (1, 1)))), several)
    # Each of these episodes has one stage, but left's 1 with right's 0 would have a second stage.
    ended = [EARLY_END.played(((1, 1),)), episode(*turns(1, 0)), episode(*turns(0, 1))]
    refused(cross(EARLY_END), group(*ended), several)
    one_alone = episode(*turns(0, 0)[:1])
    refused(cross(), group(PAIR.episodes[0], one_alone), several)
    refused(cross(most_joint_actions=3), PAIR, r"2\^2 joint actions.*is 3; lower")


def turns(left: int, right: int) -> list:
    return list(MIXED.played(((left, right),)).turns)


def test_failed_siblings_take_no_part() -> None:
    failed = episode(*turns(1, 1), status=Status.FAILED)
    assert advantages(cross().assign([group(failed)])) == []
    found = cross().assign([group(PAIR.episodes[0], failed, PAIR.episodes[1])])
    assert advantages(found) == [0.0625, -0.3125, -0.0625, 0.3125]


def test_a_joint_action_that_breaks_the_arena_is_left_out() -> None:
    class Fragile(GameArena):
        def advance(self, actions: object) -> None:
            if actions == {"left_0": "2", "right_0": "1"}:
                raise RuntimeError("never seen before")
            super().advance(actions)  # type: ignore[arg-type]

    credit = MAGRPO(joint="cross", arena=lambda: Fragile(MIXED))
    # Left's actions are worth .75 and 1.5, right's 1 and 1.
    assert advantages(credit.assign([PAIR])) == [-0.375, 0.0, 0.375, 0.0]
    assert credit.metrics() == {"replays": 4, "replays_failed": 1}


def test_choices_are_checked() -> None:
    with pytest.raises(ValueError, match="joint is one of aligned, cross, not 'crossed'"):
        MAGRPO(joint="crossed")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="over is one of mean, sum, not 'max'"):
        cross(over="max")
    with pytest.raises(ValueError, match="needs an arena"):
        MAGRPO(joint="cross")


def test_in_a_tree_candidates_are_compared_by_the_mean_of_children() -> None:
    def play(second: float, last: float) -> Episode:
        return episode(turn("a_0", second, stage=0), turn("a_0", last, stage=1))

    tree = group(
        play(1, 2), play(0, 8), branched(play(1, 6), 0, stem=1), branched(play(0, 4), 1, stem=1)
    )
    # The roots are worth 1 + (2 + 6) / 2 = 5 and (8 + 4) / 2 = 6. Then 2 and 6 are compared, and 8
    # and 4.
    assert advantages(MAGRPO().assign([tree])) == [-0.5, -2, 0.5, 2, 2, -2]
    # With the discount they are worth 1 + .5 * 4 = 3 and .5 * 6 = 3.
    assert advantages(MAGRPO(discount=0.5).assign([tree])) == [0, -2, 0, 2, 2, -2]


def test_over_all_trees_the_expectation_is_half_the_teams_gradient() -> None:
    logits = TWO_ROUNDS.table(seed=3)
    found = np.zeros(tuple(logits.shape))
    for weight, tree in trees(TWO_ROUNDS, logits):
        found += weight * gradient(TWO_ROUNDS, logits, MAGRPO(), tree)
    assert found == pytest.approx(TWO_ROUNDS.exact(logits, team=True) / 2, abs=1e-12)
