"""Cross-play of teams whose conventions are known."""

import numpy as np
import pytest
from study_games import code, games, levers, lewis, lewis_tasks, player

from selfplay.engines.scripted import choice, constant
from selfplay.errors import ConfigError
from selfplay.study.crossplay import cross_play, over_runs, self_play, study


def test_levers_zero_zero_one() -> None:
    arena = levers([1, 1])
    made = games(arena, {"x": constant("lever0"), "y": constant("lever0"), "z": constant("lever1")})
    result = study(made, [player(name, arena) for name in "xyz"])
    found = {each.name: each for each in result.estimates}
    assert [row[1:] for row in result.tables[0].rows] == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert found["self-play"].value == 1 and found["cross-play"].value == pytest.approx(1 / 3)
    assert found["gap"].value == pytest.approx(2 / 3)
    assert found["gap"].low == pytest.approx(found["gap"].high) == pytest.approx(2 / 3)
    over = found["gap, over runs"]
    assert over.value == pytest.approx(2 / 3) and over.low < 0 < over.high and over.count == 3


def test_two_teams_with_opposite_conventions() -> None:
    """Each says the state in its own words: perfect with itself, always wrong with the other."""
    arena, states = lewis(("a", "b")), ("a", "b")
    straight = code({"a": "x", "b": "y"}, otherwise="a")
    crossed = code({"a": "y", "b": "x"}, otherwise="a")
    made = games(arena, {"one": straight, "two": crossed}, tasks=lewis_tasks(states))
    result = study(made, [player("one", arena), player("two", arena)])
    found = {each.name: each for each in result.estimates}
    assert (found["self-play"].value, found["cross-play"].value, found["gap"].value) == (1, 0, 1)
    assert "gap, over runs" not in found  # two runs are too few for an interval over runs


def test_other_play_pulls_the_lever_that_all_agree_on() -> None:
    """Nine levers pay 1 and one pays 0.9: what is best with oneself is a lottery with others."""
    arena = levers([*[1.0] * 9, 0.9])
    agreed = games(arena, {"a": constant("lever9"), "b": constant("lever9")})
    found = study(agreed, [player("a", arena), player("b", arena)]).estimates
    assert [each.value for each in found] == [
        pytest.approx(0.9),
        pytest.approx(0.9),
        pytest.approx(0),
    ]
    seeds = np.random.default_rng(0).integers(9, size=400)
    means = (seeds[:, None] == seeds[None]).astype(float)
    assert self_play(means, range(400)) == 1
    assert cross_play(means, range(400)) == pytest.approx(1 / 9, abs=0.01)


def test_an_interval_for_these_policies_covers_their_truth() -> None:
    """Both pull one of two levers at random: 1/2 with everybody."""
    arena = levers([1, 1])
    noise = choice(["lever0", "lever1"])
    made = games(arena, {"a": noise, "b": noise}, episodes=200, seed=1)
    for each in study(made, [player("a", arena), player("b", arena)]).estimates:
        truth = 0 if each.name == "gap" else 0.5
        assert each.low <= truth <= each.high and each.high - each.low < 0.2


def test_the_jackknife_of_the_toy_matrix() -> None:
    found = over_runs(np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]]))
    assert [each.value for each in found] == pytest.approx([1, 1 / 3, 2 / 3])


def test_one_player_is_refused_with_what_would_serve() -> None:
    arena = levers([1, 1])
    with pytest.raises(ConfigError, match="nobody to cross with; name runs of several seeds"):
        study(games(arena, {"a": constant("lever0")}), [player("a", arena)])
