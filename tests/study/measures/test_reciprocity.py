"""Reciprocity of strategies whose probabilities are known exactly."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from arenas.games.matrix import Matrix, raw_env
from arenas.games.public_goods import PublicGoods
from selfplay.engines.scripted import Script, constant
from selfplay.errors import ConfigError
from selfplay.role import Role
from selfplay.study.measures.reciprocity import (
    conditionals,
    memory_one,
    rates_by_round,
    study,
)
from selfplay.study.players import StudyPlayer
from selfplay.study.plots import CurvePlot
from selfplay.study.result import Result
from selfplay.study.stats.bootstrap import Draws, Estimate
from selfplay.types import Observation
from tests.helpers.scripted_games import games, player

ROUNDS = 8
LATER = "after a forced move, {} later"


def arena() -> Any:
    return raw_env(rounds=ROUNDS)


def strategy(answer: Callable[[str, str], str], first: str = "C", noise: float = 0.0) -> Script:
    """Return a strategy from (own last, other's last) to C or D, reversed with chance `noise`."""

    def script(agent: str, observation: Any, rng: Any) -> str:
        history = observation.fields["history"]
        names = {"cooperate": "C", "defect": "D", "nothing": "D"}
        last = (names[history[-1]["mine"]], names[history[-1]["theirs"]]) if history else None
        chosen = answer(*last) if last else first
        if rng.random() < noise:
            chosen = "D" if chosen == "C" else "C"
        return "cooperate" if chosen == "C" else "defect"

    return script


TIT_FOR_TAT = strategy(lambda own, other: other)


def played(first: Script, second: Script | None = None, **settings: Any) -> Result:
    made = games(arena, {"a": first, "b": second or first}, **settings)
    who: StudyPlayer = player("a", arena)
    if second is not None:
        # Agents of one role: seat the second one by name.
        who = _Two(label="a", policies={"player": "a"})
    return study(made, who)


class _Two(StudyPlayer):
    def seats(self, agents: Any) -> dict[str, str]:
        return dict(zip(agents, "ab", strict=True))


def by_name(result: Result) -> dict[str, Estimate]:
    return {each.name: each for each in result.estimates}


def test_tit_for_tat_against_itself_echoes_a_forced_defection() -> None:
    """A forced defection returns after one round, and then in every second round."""
    found = by_name(played(TIT_FOR_TAT))
    assert found["cooperation"].value == found["P(C|C)"].value == 1
    assert np.isnan(found["P(C|D)"].value)  # it never happened: no value, and not 0
    assert np.isnan(found["reciprocity P(C|C) - P(C|D)"].value)
    assert found[LATER.format("1 round")].value == 1
    assert (
        found[LATER.format("2 rounds")].value == 0
    )  # the other answers the defection a round later
    assert found[LATER.format("3 rounds")].value == 1


def test_always_defect_reciprocates_nothing() -> None:
    found = by_name(played(constant("defect")))
    assert found["cooperation"].value == 0 and found["P(C|D)"].value == 0
    assert [found[LATER.format(k)].value for k in ("1 round", "2 rounds")] == [0, 0]


def test_tit_for_tat_against_always_defect() -> None:
    """Tit-for-tat cooperates once in 16 moves. P(C|D) is 0 of 7 for it and 0 of 6 for the other."""
    result = played(TIT_FOR_TAT, constant("defect"))
    found = by_name(result)
    assert found["cooperation"].value == 1 / 16
    assert (found["P(C|D)"].value, found["P(C|C)"].value) == (0, 0)
    rows = {row[0]: row[1:] for row in result.tables[0].rows}
    assert rows["CD"][0] == rows["DC"][0] == 0 and rows["CD"][3] == rows["DC"][3] == "24"
    assert rows["DD"][3] == str(24 * 12)
    # Only tit-for-tat reacts, and the value is a mean over both players.
    assert found[LATER.format("1 round")].value == 0.5


def test_each_seat_has_its_own_estimates() -> None:
    """One player always cooperates and the other never, so half of all moves cooperate."""
    result = played(constant("cooperate"), constant("defect"))
    found = by_name(result)
    assert found["cooperation"].value == 0.5
    assert found["player_0: cooperation"].value == 1
    assert found["player_1: cooperation"].value == 0
    assert found["player_0: P(C|D)"].value == 1 and found["player_1: P(C|C)"].value == 0
    assert math.isnan(found["player_0: P(C|C)"].value)  # the other never cooperates
    (table,) = [each for each in result.tables if each.title == "Memory one by seat"]
    visits = {(row[0], row[1]): row[5] for row in table.rows}
    assert int(str(visits["player_0", "CD"])) > 100
    assert visits["player_1", "CD"] == "0 (too few)"


def test_answers_to_a_forced_move_are_reported_by_seat() -> None:
    """Only tit for tat reacts, so its own effect is twice the mean effect of both."""
    found = by_name(played(TIT_FOR_TAT, constant("defect")))
    both = LATER.format("1 round")
    assert found[f"{both} by player_0"].value == 1 and found[f"{both} by player_1"].value == 0


def test_estimates_from_too_few_moves_are_not_given() -> None:
    """One move of each game follows a cooperation: 19 games are too few, and 20 are enough."""
    few = by_name(played(TIT_FOR_TAT, constant("defect"), episodes=19))
    for name in ("P(C|C)", "reciprocity P(C|C) - P(C|D)"):
        assert np.isnan([few[name].value, few[name].low, few[name].high]).all()
        assert few[name].notes == "19 visits; at least 20 are needed"
    assert few["P(C|D)"].value == 0
    enough = by_name(played(TIT_FOR_TAT, constant("defect"), episodes=20))
    assert enough["P(C|C)"].value == enough["reciprocity P(C|C) - P(C|D)"].value == 0


def test_a_player_that_would_remember_its_own_move_is_refused() -> None:
    made = games(arena, {"a": TIT_FOR_TAT})
    remembering = replace(made.agent_specs["player"], role=Role(memory="conversation"))
    with pytest.raises(ConfigError, match=r"Role has memory=conversation, .* memory=none"):
        study(replace(made, agent_specs={"player": remembering}), player("a", arena))


def test_tit_for_tat_with_noise() -> None:
    found = by_name(played(strategy(lambda own, other: other, noise=0.05), episodes=80))
    for name, truth in (("P(C|C)", 0.95), ("P(C|D)", 0.05), ("reciprocity P(C|C) - P(C|D)", 0.9)):
        assert found[name].low <= truth <= found[name].high, found[name]


def test_win_stay_lose_shift_is_read_from_the_vector() -> None:
    shift = strategy(lambda own, other: "C" if own == other else "D", noise=0.2)
    result = played(shift, episodes=80)
    rows = {row[0]: row[1:] for row in result.tables[0].rows}
    assert by_name(result)["cooperation after CD"].value == rows["CD"][0]
    for state, truth in {"CC": 0.8, "CD": 0.2, "DC": 0.2, "DD": 0.8}.items():
        low, high = (float(end) for end in rows[state][1:3])  # type: ignore[arg-type]
        assert low <= truth <= high, (state, rows[state])


def test_a_mixed_population_looks_reciprocal_and_the_probe_is_not_fooled() -> None:
    """If half always cooperate and half always defect, P(C|C) - P(C|D) is 1 without reciprocity."""
    moves = [np.ones((ROUNDS, 2))] * 10 + [np.zeros((ROUNDS, 2))] * 10
    found = conditionals(moves, Draws(tasks=["t"] * 20), players=(0, 1))
    assert found[2].value == 1
    state, never, visits = memory_one(moves, Draws(tasks=["t"] * 20), players=(0, 1))[1]
    assert (
        state == "CD"
        and visits == 0
        and never.value != never.value
        and never.notes.startswith("0 visits")
    )

    def stubborn(agent: str, observation: Any, rng: Any) -> str:
        history = observation.fields["history"]
        return history[0]["mine"] if history else rng.choice(["cooperate", "defect"])

    assert by_name(played(stubborn))[LATER.format("1 round")].value == 0


@pytest.mark.parametrize(
    ("settings", "cooperate", "words"),
    [
        ({"rounds": 1}, "cooperate", "no move answers another; .* arena.rounds=5"),
        ({"rounds": 3}, "hunt", "no such move in matrix_v0; it has cooperate, defect"),
    ],
)
def test_a_game_that_is_not_a_repeated_dilemma_is_refused(
    settings: dict[str, Any], cooperate: str, words: str
) -> None:
    def other() -> Any:
        return raw_env(**settings)

    with pytest.raises(ConfigError, match=words):
        study(games(other, {"a": TIT_FOR_TAT}), player("a", other), cooperate=cooperate)


def test_a_failed_probe_is_counted() -> None:
    """The arena fails at a defection, which only the probe causes."""

    class Frail(Matrix):
        def view(self, agent: str) -> Observation:
            seen = super().view(agent)
            if any(entry["theirs"] == "defect" for entry in seen.fields["history"]):
                raise RuntimeError("never seen")
            return seen

    def frail() -> Any:
        return Frail(actions=["cooperate", "defect"], payoffs=[[3, 0], [5, 1]], rounds=ROUNDS)

    made = games(frail, {"a": constant("cooperate")}, episodes=12)
    result = study(made, player("a", frail))
    # 12 games, and 12 pairs of probes for each player; one probe of each pair fails.
    assert result.params["failed_episodes"] == pytest.approx(24 / 60)


def breaking(seeds: Callable[[int], bool]) -> Callable[[], Any]:
    """Return an arena that fails in its third round if `seeds` is True for the seed."""

    class Frail(Matrix):
        def view(self, agent: str) -> Observation:
            seen = super().view(agent)
            if seeds(self.seed) and len(seen.fields["history"]) == 2:
                raise RuntimeError("broken hinge")
            return seen

    return lambda: Frail(actions=["cooperate", "defect"], payoffs=[[3, 0], [5, 1]], rounds=ROUNDS)


def test_failed_games_are_left_out() -> None:
    frail = breaking(lambda seed: seed % 4 == 0)
    made = games(frail, {"a": constant("cooperate")}, episodes=24)
    failed = sum(spec.seed % 4 == 0 for spec in made.episode_specs({}))
    result = study(made, player("a", frail))
    assert 0 < failed < 24 and result.params["failed_episodes"] > 0
    (visits,) = [row[-1] for row in result.tables[0].rows if row[0] == "CC"]
    assert visits == str(2 * (ROUNDS - 1) * (24 - failed))


def test_games_that_all_fail_are_a_one_line_error() -> None:
    frail = breaking(lambda seed: True)
    with pytest.raises(ConfigError, match=r"^all 12 games of \w+ with a failed .*broken hinge"):
        study(games(frail, {"a": constant("cooperate")}, episodes=12), player("a", frail))


def test_the_rate_of_each_round_has_the_interval_of_a_proportion() -> None:
    moves = [np.array([[1.0, 1.0], [0.0, np.nan]]), np.array([[1.0, 0.0]])]
    draws = Draws(tasks=["game", "game"])
    first, second = rates_by_round(moves, draws, 2)
    assert (first.value, second.value) == (0.75, 0.0)
    assert 0 < first.low < 0.75 < first.high < 1
    assert second.low == 0 < second.high <= 1  # a single move gives a wide interval


def test_cooperation_by_round_has_a_band() -> None:
    result = played(strategy(lambda own, other: other, noise=0.2))
    (curve,) = [each for each in result.drawings if isinstance(each, CurvePlot)]
    low, high = curve.bands["cooperation"]
    values = curve.series["cooperation"]
    assert len(low) == len(values) == ROUNDS
    assert all(a <= b <= c for a, b, c in zip(low, values, high, strict=True))
    assert any(a < c for a, c in zip(low, high, strict=True))


# More than two players ---------------------------------------------------------------------------


def group_of_four(script: Script, **settings: Any) -> Result:
    def goods() -> Any:
        return PublicGoods(rounds=ROUNDS)

    made = games(goods, {"a": script}, **settings)
    return study(made, player("a", goods), cooperate="give")


def gives(chance: Callable[[int], float], first: float = 1.0) -> Script:
    """Return a player that gives with a probability that depends on how many others gave."""

    def script(agent: str, observation: Any, rng: Any) -> str:
        history = observation.fields["history"]
        given = chance(history[-1]["gave"]) if history else first
        return "give" if rng.random() < given else "keep"

    return script


def test_a_forced_move_in_a_group_that_asks_for_all_others() -> None:
    """One player is made to keep: the others keep next, and then all keep for ever."""
    result = group_of_four(gives(lambda others: float(others == 3)))
    found = by_name(result)
    assert found["P(C|3 of 3)"].value == found["cooperation"].value == 1
    assert np.isnan(found["P(C|0 of 3)"].value)
    for rounds in ("1 round", "2 rounds", "3 rounds"):
        assert found[LATER.format(rounds)].value == 1
    assert [found[f"{LATER.format('1 round')} by player_{who}"].value for who in range(4)] == [
        1
    ] * 4
    states = [row[0] for row in result.tables[0].rows]
    assert states[:2] == ["C, 3 of 3", "C, 2 of 3"] and len(states) == 8


def test_a_forced_move_in_a_group_that_asks_for_a_majority() -> None:
    found = by_name(group_of_four(gives(lambda others: float(others >= 2))))
    assert found[LATER.format("1 round")].value == 0


def test_reciprocity_of_a_group_is_the_slope_over_the_fraction_of_the_others() -> None:
    script = gives(lambda others: 0.2 + 0.2 * others, first=0.5)
    found = by_name(group_of_four(script, episodes=150))
    slope = found["reciprocity (slope over the fraction of the others)"]
    assert slope.low <= 0.6 <= slope.high and slope.high - slope.low < 0.2
    for others, truth in enumerate((0.2, 0.4, 0.6, 0.8)):
        each = found[f"P(C|{others} of 3)"]
        assert each.low <= truth <= each.high, each
    effect = found[LATER.format("1 round")]  # one of three others: 0.6 / 3
    assert effect.low <= 0.2 <= effect.high


def test_the_slope_leaves_out_numbers_of_others_with_few_visits() -> None:
    """After 2, 1 and 0 of the two others gave, players give in 3/4, 1/2 and 0 of 3 moves."""
    after_two = [np.array([[1.0, 1, 1], [1, 1, 1]])] * 15 + [np.array([[1.0, 1, 1], [0, 0, 0]])] * 5
    after_one = [np.array([[1.0, 0, 0], [np.nan, 1, 0]])] * 15  # the two keepers saw one
    after_none = [np.array([[0.0, 0, 0], [0, 0, 0]])]
    moves = [*after_two, *after_one, *after_none]
    *answers, slope = conditionals(moves, Draws(tasks=["t"] * len(moves)), players=range(3))
    assert [each.value for each in answers[:2]] == [0.75, 0.5] and math.isnan(answers[2].value)
    assert slope.value == pytest.approx((0.75 - 0.5) / 0.5)


def test_the_slope_by_hand() -> None:
    """Three players: moves (2, 1, 0 others gave) and answers are counted by hand.

    After round 1 (1, 1, 0) the players see 1, 1 and 2 others; they answer 1, 0, 1. The slope over
    the fraction (1/2, 1/2, 1) is (1 - 1/2) / (1 - 1/2) = 1.
    """
    moves = [np.array([[1.0, 1, 0], [1, 0, 1]])] * 20
    *answers, slope = conditionals(moves, Draws(tasks=["t"] * 20), players=range(3))
    assert [each.value for each in answers[:2]] == [1, 0.5] and math.isnan(answers[2].value)
    assert slope.value == pytest.approx(1)
