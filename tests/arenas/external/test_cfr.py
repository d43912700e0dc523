"""Tests of the CFR opponent: its exact exploitability, its moves, and refused games."""

import math
import pickle
from collections import Counter
from random import Random

import pytest

from arenas.external.cfr import CFR
from arenas.games.kuhn import Kuhn, deals
from arenas.games.leduc import Leduc
from arenas.games.matrix import raw_env
from selfplay.arena import Arena
from selfplay.errors import ConfigError
from selfplay.study.measures.exploitability import Exploitability, exploitability, known_game
from selfplay.study.policy_probs import ActionDistribution
from selfplay.types import Observation
from tests.helpers.random_matches import against_random, openspiel_game


def measured(arena: Arena, *, iterations: int, plus: bool = True) -> Exploitability:
    """Return the exploitability of the opponent's policy over all observations of the arena."""
    opponent = CFR(arena=arena, iterations=iterations, plus=plus)
    game, sets = known_game(arena)
    return exploitability(
        game,
        [ActionDistribution(where=each, mass=opponent.chances(each.observation)) for each in sets],
    )


@pytest.mark.parametrize("plus", [True, False])
def test_kuhn_is_near_equilibrium_after_some_hundred_iterations(plus: bool) -> None:
    found = measured(Kuhn(), iterations=300, plus=plus)
    assert found.exploitability is not None and found.exploitability < 0.01
    assert found.values == pytest.approx((-1 / 18, 1 / 18), abs=0.02)  # NashConv is below 0.02
    assert found.elsewhere == pytest.approx(0, abs=1e-12)


def test_leduc_approaches_equilibrium_with_iterations() -> None:
    gains = [measured(Leduc(), iterations=count).nash_conv for count in (1, 5, 20, 60)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 2 and gains[-1] < 0.2


def test_openspiels_kuhn_is_played_like_the_kuhn_arena() -> None:
    mine = measured(Kuhn(), iterations=50)
    assert measured(openspiel_game("kuhn_poker"), iterations=50).nash_conv == pytest.approx(
        mine.nash_conv, abs=1e-12
    )


def test_moves_are_sampled_from_the_average_policy_by_the_seed() -> None:
    opponent = CFR(arena=Kuhn(), iterations=300)
    (bet,) = [s.observation for s in Kuhn().information_sets() if s.observation.text == "Q bet"]
    moves = [opponent("player_1", bet, Random(seed)) for seed in range(2000)]
    assert moves == [opponent("player_1", bet, Random(seed)) for seed in range(2000)]
    chance = opponent.chances(bet)["bet"]
    assert chance == pytest.approx(1 / 3, abs=0.05)  # in every equilibrium
    spread = math.sqrt(2000 * chance * (1 - chance))
    assert abs(Counter(moves)["bet"] - 2000 * chance) < 4 * spread


def test_uniform_play_loses_the_exact_value_in_both_seats() -> None:
    opponent = CFR(arena=Kuhn(), iterations=300)
    found = against_random(Kuhn, deals(), opponent, samples=250)
    game, sets = known_game(Kuhn())
    for number, agent in enumerate(("player_0", "player_1")):
        uniform = dict.fromkeys(("pass", "bet"), 0.5)
        mixed = exploitability(
            game,
            [
                ActionDistribution(
                    where=s, mass=uniform if s.agent == agent else opponent.chances(s.observation)
                )
                for s in sets
            ],
        )
        exact = mixed.values[number]
        assert exact < (-1) ** (number + 1) / 18 - 0.1  # worse than the value of the game
        # a hand pays at most 2 chips, so the standard error of 1,500 hands is below 0.052
        assert found[f"versus/scripted/{agent}/return"] == pytest.approx(exact, abs=4 * 0.052)


def test_a_copy_in_another_process_plays_the_same() -> None:
    opponent = CFR(arena=Kuhn(), iterations=10)
    seen = Kuhn().information_sets()[0].observation
    fresh = pickle.loads(pickle.dumps(opponent))
    assert fresh.chances(seen) == opponent.chances(seen)
    assert pickle.loads(pickle.dumps(opponent)).chances(seen) == opponent.chances(seen)


# Errors ------------------------------------------------------------------------------------------


def test_the_error_for_an_unsolvable_game_gives_the_reason() -> None:
    games = (openspiel_game(name) for name in ("connect_four", "goofspiel(num_cards=3)"))
    for arena in (Arena({"player": 2}), *games):
        with pytest.raises(ConfigError, match=r"opponent CFR: OpenSpiel cannot solve .*arena=kuhn"):
            CFR(arena=arena)
    with pytest.raises(ConfigError, match=r"in matrix_v0 players move at once"):
        CFR(arena=raw_env())
    with pytest.raises(ConfigError, match=r"kuhn_poker has 3 players"):
        CFR(arena=openspiel_game("kuhn_poker(players=3)"))
    with pytest.raises(ValueError, match="iterations must be at least 1, not 0"):
        CFR(arena=Kuhn(), iterations=0)


def test_without_open_spiel_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyspiel", None)
    with pytest.raises(ConfigError, match=r"CFR: needs .*'pyspiel'.*'selfplay\[games\]'"):
        CFR(arena=Kuhn())


def test_another_games_observation_is_refused() -> None:
    with pytest.raises(ValueError, match="'K K raise' is no information set"):
        CFR(arena=Kuhn(), iterations=1)("player_0", Observation(text="K K raise"), Random(0))
