"""Tests of a league's results with decay, its ratings, and its rules about snapshots."""

import json
import math

import pytest

from selfplay.league import LeagueState, Snapshot
from selfplay.league.matchmaking import Current
from selfplay.league.ratings import Elo, OpenSkill, Payoff, Ratings, expected
from selfplay.league.snapshots import EveryNUpdates, EvictOldest, EvictWeakest, OnWinRate
from selfplay.rollout.matches import Result

RESULTS: list[Result] = ["won", "won", "drawn", "lost"]


def recorded(decay: float) -> Payoff:
    payoff = Payoff(decay=decay)
    for result in RESULTS:
        payoff.record("a", "b", result)
    return payoff


def test_a_draw_is_half_a_win_and_no_game_is_a_half() -> None:
    payoff = recorded(1.0)
    assert payoff.rate("a", "b") == 2.5 / 4 and payoff.rate("b", "a") == 1.5 / 4
    assert payoff.games("a", "b") == 4 and payoff.games("a", "c") == 0
    assert payoff.rate("a", "c") == 0.5


def test_every_result_makes_the_earlier_ones_of_its_pair_count_less() -> None:
    """Check won, won, drawn, lost with decay 0.5: 3/8 won, 1/2 drawn, 1 lost, 15/8 games."""
    payoff = recorded(0.5)
    assert payoff.games("a", "b") == 15 / 8
    assert payoff.rate("a", "b") == pytest.approx((3 / 8 + 1 / 4) / (15 / 8))
    assert payoff.rate("b", "a") == pytest.approx((1 + 1 / 4) / (15 / 8))
    payoff.record("a", "c", "won")
    assert payoff.games("a", "b") == 15 / 8, "the result is of another pair"
    endless = Payoff(decay=0.99)
    for _ in range(5000):
        endless.record("a", "b", "won")
    assert endless.games("a", "b") == pytest.approx(100)


def test_a_dropped_name_is_forgotten_and_a_state_is_restored() -> None:
    payoff = recorded(0.5)
    payoff.record("a", "c", "won")
    again = Payoff(decay=0.5)
    again.load_state_dict(payoff.state_dict())
    assert again.state_dict() == payoff.state_dict()
    assert again.rate("a", "b") == payoff.rate("a", "b")
    payoff.forget("b")
    assert payoff.games("a", "b") == payoff.games("b", "a") == 0
    assert payoff.rate("a", "c") == 1.0
    with pytest.raises(ValueError, match=r"decay must be in \(0, 1\]"):
        Payoff(decay=0.0)


def test_elo_against_golden_numbers() -> None:
    assert expected(1500, 1600) == pytest.approx(0.3599350, abs=5e-8)
    ratings = Elo(k=16)
    ratings.add("a")
    ratings.add("b")
    ratings.record("a", "b", "won")
    assert (ratings.rating("a"), ratings.rating("b")) == (1508, 1492)
    ratings.record("a", "b", "drawn")  # expected 1 / (1 + 10^-0.04) = 0.5230095
    assert ratings.rating("a") == pytest.approx(1508 + 16 * (0.5 - 0.5230095), abs=1e-5)
    assert ratings.rating("a") + ratings.rating("b") == pytest.approx(3000)


def test_openskill_agrees_with_its_paper() -> None:
    """Check Plackett-Luce of two at 25 and 25/3 with beta 25/6, which is Bradley-Terry's update.

    s is 25/3, and tau raises its variance. Then c = sqrt(2 (s^2 + beta^2)), the winner's
    probability is 1/2, omega = s^2 / c * 1/2, and delta = (s / c) s^2 / c^2 / 4.
    """
    ratings = OpenSkill()
    for name in "ab":
        ratings.add(name)
    ratings.record("a", "b", "won")
    s2 = (25 / 3) ** 2 + (25 / 300) ** 2
    c = math.sqrt(2 * (s2 + (25 / 6) ** 2))
    mu, sigma = 25 + s2 / c / 2, math.sqrt(s2 * (1 - math.sqrt(s2) / c * s2 / c**2 / 4))
    state = ratings.state_dict()["ratings"]
    assert state["a"] == pytest.approx([mu, sigma], abs=1e-9)
    assert state["b"] == pytest.approx([50 - mu, sigma], abs=1e-9)
    ratings.record("b", "a", "lost")
    assert ratings.rating("a") > mu
    before = ratings.rating("a") - ratings.rating("b")
    ratings.record("b", "a", "drawn")
    assert 0 < ratings.rating("a") - ratings.rating("b") < before


@pytest.mark.parametrize("kind", [Elo, OpenSkill])
def test_a_snapshot_has_its_parents_rating(kind: type[Elo] | type[OpenSkill]) -> None:
    ratings: Ratings = kind()
    for name in ("base", "random"):
        ratings.add(name)
    start = ratings.rating("base")
    ratings.record("base", "random", "won")
    now = ratings.rating("base")
    ratings.add("base@1", "base")
    assert ratings.rating("base@1") == now > start
    ratings.record("base", "base@1", "won")
    assert ratings.rating("base") > now > ratings.rating("base@1")
    ratings.add("base@1", "base")
    assert ratings.rating("base@1") < now, "the name exists already"
    again: Ratings = kind()
    again.load_state_dict(ratings.state_dict())
    assert again.state_dict() == ratings.state_dict()
    ratings.forget("base@1")
    assert set(ratings.state_dict()["ratings"]) == {"base", "random"}


def test_rules_say_when_a_snapshot_is_added() -> None:
    assert [EveryNUpdates(updates=3).due(n, []) for n in (0, 2, 3, 4)] == [False, False, True, True]
    rule = OnWinRate(least=5, most=9)
    assert [rule.due(n, [0.71, 0.9]) for n in (4, 5, 9)] == [False, True, True]
    assert [rule.due(n, [0.7, 0.9]) for n in (5, 9, 10)] == [False, False, True], "0.7 is not above"
    assert [rule.due(n, []) for n in (5, 10)] == [False, True], (
        "without opponents there is no win rate"
    )
    with pytest.raises(ValueError, match="1 <= least <= most"):
        OnWinRate(least=5, most=4)
    with pytest.raises(ValueError, match="at least 1"):
        EveryNUpdates(updates=0)


def table(*names: str, payoff: Payoff | None = None) -> LeagueState:
    split = [name.split("@") for name in names]
    return LeagueState(
        players={"a": Current(), "b": Current()},
        anchors=["random"],
        snapshots=[Snapshot(player=player, updates=int(updates)) for player, updates in split],
        payoff=payoff or Payoff(),
    )


def test_the_oldest_snapshots_of_the_largest_player_are_dropped() -> None:
    assert EvictOldest(most=3).dropped(table("a@1", "a@2", "a@3")) == []
    assert EvictOldest(most=2).dropped(table("a@1", "a@2", "a@3")) == ["a@1"]
    crowd = table("b@1", "a@1", "a@2", "a@3", "a@4", "b@2")
    assert EvictOldest(most=3).dropped(crowd) == ["a@1", "a@2", "b@1"]
    assert EvictOldest(most=1).dropped(table()) == []


def test_the_most_beaten_snapshots_are_dropped() -> None:
    """Check two main players; the lower of their win rates against a snapshot counts."""
    payoff = Payoff(decay=1.0)
    rates: list[tuple[str, str, list[Result]]] = [
        ("a", "a@1", ["won"]),
        ("b", "a@1", ["won"]),
        ("a", "a@2", ["won"]),  # b never met it: its rate is 0.5
        ("a", "a@3", ["won", "won", "won", "lost"]),
        ("b", "a@3", ["won", "won", "won", "lost"]),
        ("a", "a@4", ["won"]),
        ("b", "a@4", ["won"]),
    ]
    for home, away, results in rates:
        for result in results:
            payoff.record(home, away, result)
    all_snapshots = table("a@1", "a@2", "a@3", "a@4", payoff=payoff)
    assert EvictWeakest(most=4).dropped(all_snapshots) == []
    assert EvictWeakest(most=3).dropped(all_snapshots) == ["a@1"]
    assert EvictWeakest(most=2).dropped(all_snapshots) == ["a@1", "a@3"]
    assert EvictWeakest(most=1).dropped(all_snapshots) == ["a@1", "a@3", "a@2"], "the newest stays"
    assert EvictWeakest(most=1).dropped(table()) == []
    for kind in (EvictOldest, EvictWeakest):
        with pytest.raises(ValueError, match="most must be at least 1"):
            kind(most=0)


def test_a_copy_keeps_the_rates_of_its_player_and_no_games() -> None:
    payoff = Payoff(decay=1.0)
    for result in ("won", "won", "drawn", "lost"):
        payoff.record("base", "base@1", result)
    payoff.remember("base@2", "base")
    payoff.record("base", "base@1", "lost")  # the player plays on, and the copy does not
    assert payoff.between("base@2", "base@1") == (0.625, 4.0)
    assert payoff.between("base@1", "base@2") == (0.375, 4.0)
    assert payoff.between("base", "base@1") == (0.5, 5.0)
    assert payoff.between("base@2", "unknown") == (0.5, 0.0)
    assert payoff.games("base@2", "base@1") == 0 and payoff.rate("base@2", "base@1") == 0.5
    twin = Payoff()
    twin.load_state_dict(json.loads(json.dumps(payoff.state_dict())))
    assert twin.between("base@2", "base@1") == (0.625, 4.0)
    twin.load_state_dict({"counts": []})  # a checkpoint of an older version
    assert twin.between("base@2", "base@1") == (0.5, 0.0)
    payoff.forget("base@1")
    assert payoff.between("base@2", "base@1") == (0.5, 0.0)


def test_games_of_a_copy_itself_count_before_those_of_its_player() -> None:
    payoff = Payoff(decay=1.0)
    payoff.record("base", "other", "won")
    payoff.remember("base@1", "base")
    assert payoff.between("base@1", "other") == (1.0, 1.0)
    payoff.record("other", "base@1", "won")
    assert payoff.between("base@1", "other") == (0.0, 1.0)
