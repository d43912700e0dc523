"""Tests of RAE: golden advantages, averages in a checkpoint, and exactness by enumeration."""

import json

import numpy as np
import pytest

from selfplay.credit.rae import RAE
from tests.helpers.builders import advantages, episode, group, single_turn_group, turn
from tests.helpers.enumerated_game import EARLY_END, MIXED, TWO_ROUNDS, Game, one_round

REWARDS = (1.0, 1.0, -1.0, 1.0)
SHARED = one_round([[(1.0, 1.0), (0.0, 0.0)], [(0.0, 0.0), (3.0, 3.0)]], names=("d_0", "d_1"))


def after_some_games(game: Game, **settings: object) -> RAE:
    """Return RAE with the averages 0.7 and -0.4 of 30 earlier games."""
    credit = RAE(**settings)  # type: ignore[arg-type]
    names = game.names if credit.by == "agent" else {name[:-2] for name in game.names}
    rows = [["game_v0", name, "base", b, 30] for name, b in zip(names, (0.7, -0.4), strict=False)]
    credit.load_state_dict({"averages": rows})
    return credit


def test_the_golden_sequence() -> None:
    credit = RAE()
    found = advantages(credit.assign(single_turn_group(*REWARDS)))
    assert found == pytest.approx([1, 0.95, -1.0975, 0.957375], abs=1e-12)
    (row,) = credit.state_dict()["averages"]
    assert row == ["game_v0", "solver_0", "base", pytest.approx(0.09049375), 4]
    assert credit.metrics() == {"baseline/game_v0/solver_0/base": pytest.approx(0.09049375)}


def test_updating_first_multiplies_the_advantages_by_the_decay() -> None:
    found = advantages(RAE(order="update_first").assign(single_turn_group(*REWARDS)))
    assert found == pytest.approx([0.95, 0.9025, -1.042625, 0.90950625], abs=1e-12)


def test_a_corrected_start_uses_the_mean_of_earlier_returns() -> None:
    # The averages times 1 / (1 - .95^n) are 1, 1 and .042625 / .142625.
    found = advantages(RAE(correct_start=True).assign(single_turn_group(*REWARDS)))
    assert found == pytest.approx([1, 0, -2, 0.7011394], abs=1e-6)


def test_batches_are_one_sequence_also_after_a_checkpoint() -> None:
    first = RAE()
    begun = advantages(first.assign(single_turn_group(*REWARDS[:2])))
    saved = json.loads(json.dumps(first.state_dict()))
    second = RAE()
    second.load_state_dict(saved)
    found = begun + advantages(second.assign(single_turn_group(*REWARDS[2:])))
    assert found == pytest.approx([1, 0.95, -1.0975, 0.957375], abs=1e-12)
    with pytest.raises(ValueError, match="keeps its averages"):
        second.load_state_dict({})


def test_arenas_and_agents_have_averages_of_their_own() -> None:
    credit = RAE(decay=0.5)
    game = episode(turn("player_0", 1), turn("player_1", -1), turn("player_0", 1))
    credit.assign([group(game, episode(turn("player_0", 8), arena="other_v0"))])
    found = advantages(credit.assign([group(game, episode(turn("player_0", 0), arena="other_v0"))]))
    # player_0 earns 2 per game: 2 - 1. player_1 has -1 + .5. The other arena's average is 4.
    assert found == [1, -0.5, 1, -4]


def test_the_agents_of_a_role_move_its_average_once() -> None:
    credit = RAE(decay=0.5, by="role")
    pair = episode(turn("solver_0", 1), turn("solver_1", 3))
    # The baseline of the second episode is half the mean of the first.
    assert advantages(credit.assign([group(pair, pair)])) == [1, 3, 0, 2]
    assert credit.state_dict() == {"averages": [["game_v0", "solver", "base", 1.5, 2]]}


@pytest.mark.parametrize("correct_start", [False, True])
@pytest.mark.parametrize(
    ("game", "size"), [(MIXED, 1), (MIXED, 2), (TWO_ROUNDS, 2), (EARLY_END, 2)]
)
def test_expects_exactly_the_policy_gradient(game: Game, size: int, correct_start: bool) -> None:
    logits = game.table(seed=1)
    credit = after_some_games(game, correct_start=correct_start)
    found = game.expected(credit, logits, size=size)
    assert found == pytest.approx(game.exact(logits), rel=1e-10, abs=1e-14)


def test_is_exact_for_a_role_whose_members_share_pay() -> None:
    logits = SHARED.table(seed=2)
    credit = after_some_games(SHARED, by="role")
    found = SHARED.expected(credit, logits, size=2)
    assert found == pytest.approx(SHARED.exact(logits), rel=1e-10, abs=1e-14)


def test_updating_first_scales_the_gradient() -> None:
    logits = TWO_ROUNDS.table(seed=1)
    credit = after_some_games(TWO_ROUNDS, order="update_first", decay=0.8)
    found = TWO_ROUNDS.expected(credit, logits, size=2)
    assert found == pytest.approx(0.8 * TWO_ROUNDS.exact(logits), rel=1e-10, abs=1e-14)


def test_updating_first_is_biased_if_a_partner_has_other_pay() -> None:
    """Check the bias: the baseline contains (1 - decay) times the mean return of both agents."""
    game = one_round([[(1.0, -2.0), (0.0, 1.0)], [(0.5, 3.0), (2.0, -1.0)]], names=("d_0", "d_1"))
    logits = game.table(seed=2)
    credit = after_some_games(game, by="role", order="update_first", decay=0.2)
    found = game.expected(credit, logits, size=1)
    exact, team = game.exact(logits), game.exact(logits, team=True)
    assert found == pytest.approx(exact - 0.8 * team, rel=1e-10, abs=1e-14)
    assert np.abs(found - 0.2 * exact).max() > 0.05


@pytest.mark.parametrize("settings", [{"decay": 1.0}, {"by": "seat"}, {"order": "last"}])
def test_settings_out_of_range_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        RAE(**settings)  # type: ignore[arg-type]
