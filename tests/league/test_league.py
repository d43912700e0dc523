"""Tests of the league of a run, with a scripted game and snapshots without weights."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from selfplay.arena import Arena
from selfplay.errors import ConfigError
from selfplay.league import Chances, Matchmaking
from selfplay.league.matchmaking import (
    Anchors,
    Current,
    Latest,
    LeagueExploiter,
    MainExploiter,
    MainPlayer,
)
from selfplay.rollout.rollout import EpisodeSpec
from selfplay.types import Episode, Status, Task
from tests.helpers.builders import episode, turn
from tests.helpers.scripted_league import ALL_THREE, SEATS, Made, Played, specs


class Broken(Played):
    """A game that always fails."""

    def __call__(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        return [episode(status=Status.FAILED) for _ in specs]


def test_siblings_and_branches_have_the_same_seating() -> None:
    made = Made({"base": ALL_THREE})
    made.step(1)
    first = list(made.play.specs)
    seatings = [dict(spec.policy_map) for spec in first]
    assert seatings[::2] == seatings[1::2]
    later = [
        EpisodeSpec(task=spec.task, seed=spec.seed, member=9, branch_of=0) for spec in first[::2]
    ]
    made.run(later)
    assert [dict(spec.policy_map) for spec in made.play.specs[len(first) :]] == seatings[::2]


def test_all_seats_take_part_in_every_group() -> None:
    """Check the seats; without them an agent of another part of a mixture would get results."""
    made = Made({"base": ALL_THREE})
    made.step(1)
    assert all(tuple(spec.seats) == SEATS for spec in made.play.specs)


def test_in_self_play_no_opponent_is_seated_and_no_result_recorded() -> None:
    made = Made({"base": Current()})
    metrics = made.step(1)
    assert all(spec.policy_map == {} and spec.learner is None for spec in made.play.specs)
    assert metrics["share/base/self"] == 1 and metrics["rating/base"] == 1500
    assert not [name for name in metrics if name.startswith("win_rate")]


def test_against_every_opponent_each_seat_is_taken_equally_often() -> None:
    made = Made({"base": ALL_THREE})
    for step in range(1, 30):
        made.step(step, groups=7, size=1)
    taken: dict[str, Counter[str]] = {}
    for spec in made.play.specs:
        for seat, opponent in spec.policy_map.items():
            taken.setdefault(opponent, Counter())[seat] += 1
    assert len(taken) > 4
    for opponent, seats in taken.items():
        assert abs(seats["player_0"] - seats["player_1"]) <= 1, opponent


def test_opponents_are_met_as_often_as_their_probabilities() -> None:
    """Check 2000 groups; 4 standard deviations of a fraction are at most 4 * 0.5 / sqrt(2000)."""
    made = Made({"base": ALL_THREE}, every=1000)
    made.begin(1)
    expected: Chances = {"base": 1 / 3, "base@0": 1 / 3, "random": 1 / 6, "perfect": 1 / 6}
    assert made.league.matches(1).chances("base") == pytest.approx(expected)
    made.run(specs(1, 2000, 1))
    met = Counter(next(iter(spec.policy_map.values()), "base") for spec in made.play.specs)
    for name, chance in expected.items():
        assert met[name] / 2000 == pytest.approx(chance, abs=0.045), name


def test_few_draws_are_shared_among_the_groups_of_a_step() -> None:
    made = Made({"base": Anchors()}, opponents_per_step=1)
    for step in range(1, 20):
        made.step(step)
    met = [next(iter(spec.policy_map.values())) for spec in made.play.specs]
    steps = [set(met[start : start + 16]) for start in range(0, len(met), 16)]
    assert all(len(each) == 1 for each in steps), "one opponent per step"
    assert set().union(*steps) == {"random", "perfect"}


def test_each_player_has_a_part_of_the_groups_and_learns_alone() -> None:
    made = Made(
        {"base": MainPlayer(), "hunter": MainExploiter(), "rover": LeagueExploiter()}, every=100
    )
    made.step(1, groups=9, size=1)
    seatings = [(dict(spec.policy_map), spec.learner) for spec in made.play.specs]
    assert seatings[1::3] == [
        ({"player_0": "hunter", "player_1": "base"}, "hunter"),
        ({"player_0": "base", "player_1": "hunter"}, "hunter"),
        ({"player_0": "hunter", "player_1": "base"}, "hunter"),
    ]
    assert seatings[2] == ({"player_0": "rover", "player_1": "base@0"}, None)
    for seating, learner in seatings[::3]:
        assert (seating, learner) in (
            ({}, None),
            ({"player_1": "base@0"}, None),
            ({"player_0": "base@0"}, None),
        )


def test_a_player_that_does_not_learn_in_a_step_has_no_match() -> None:
    made = Made({"base": MainPlayer(), "hunter": MainExploiter()})
    made.begin(1, ["hunter"])
    made.run(specs(1, 4))
    assert {spec.learner for spec in made.play.specs} == {"hunter"}
    made.end()
    made.begin(2, [])
    made.run(specs(2, 4))
    assert [spec.policy_map for spec in made.play.specs[8:]] == [{}] * 8


def test_results_are_recorded_from_the_players_seat() -> None:
    """Check a game that player_0 or else `perfect` wins, and that failed games are ignored."""

    def pay(first: str, second: str) -> float:
        return -1.0 if second == "perfect" else 1.0

    made = Made({"base": Anchors()}, pay=pay, every=1000)
    metrics = made.step(1, groups=400, size=1)
    assert metrics["win_rate/base/perfect"] == 0.0
    assert 0.3 < metrics["win_rate/base/random"] < 0.7
    assert metrics["rating/base"] < 1500 < metrics["rating/perfect"]
    met = Counter(next(iter(spec.policy_map.values())) for spec in made.play.specs)
    won = met["random"] / 2  # half of the games in each seat
    assert metrics["return/base"] == pytest.approx(
        (won - (met["random"] - won) - met["perfect"]) / 400, abs=0.01
    )
    broken = Made({"base": Anchors()}, play=Broken())
    assert "win_rate/base/random" not in broken.step(1)


def test_snapshots_are_added_and_dropped() -> None:
    made = Made({"base": Latest()}, every=2, most=3)
    there = []
    for step in range(1, 9):
        metrics = made.step(step)
        there.append(tuple(made.snapshots.there))
        assert metrics["snapshots"] == len(made.snapshots.there) <= 3
    assert there[0] == ("base@0",)
    assert there[1] == there[2] == ("base@0", "base@2")
    assert there[5] == ("base@2", "base@4", "base@6")
    assert there[7] == ("base@4", "base@6", "base@8")
    state = made.league.state_dict()
    named = {name for home, away, *_ in state["payoff"]["counts"] for name in (home, away)}
    assert not named & {"base@0", "base@2"} and "base@0" not in state["ratings"]["ratings"]
    assert not [pair for pair in state["met"] if "base@0" in pair]


def test_an_exploiter_begins_again_when_its_snapshot_is_made() -> None:
    made = Made({"base": MainPlayer(), "hunter": MainExploiter()}, every=2, most=10)
    assert [made.step(n)["begun_again"] for n in (1, 2, 3, 4)] == [0, 1, 0, 1]
    assert made.snapshots.again == made.forgot == ["hunter", "hunter"]
    assert made.snapshots.there == ["base@0", "base@2", "hunter@2", "base@4", "hunter@4"]
    often = Made({"base": MainPlayer(), "rover": LeagueExploiter()}, every=1, most=10)
    for number in range(1, 201):
        often.step(number, groups=2, size=1)
    # 200 draws with probability 0.25 give 50, with a standard deviation of 6.
    assert 26 < len(often.snapshots.again) < 74


def test_anchors_are_mixed_in_up_to_a_step() -> None:
    made = Made({"base": Current(), "hunter": MainExploiter()})
    made.step(1)
    made.league.mix_anchors(0.5, until=3)
    expected = {"base": 0.5, "random": 0.25, "perfect": 0.25}
    for step, chances in ((2, expected), (3, expected), (4, {"base": 1.0})):
        made.begin(step)
        matches = made.league.matches(step)
        assert matches.chances("base") == pytest.approx(chances), step
        assert matches.chances("hunter") == {"base": 1.0}
        made.end()
    made.league.table.anchors = []
    with pytest.raises(ConfigError, match="there are no anchors"):
        made.league.mix_anchors(0.5, until=3)


def test_a_resumed_league_continues_identically() -> None:
    def make() -> Made:
        players: dict[str, Matchmaking] = {
            "base": ALL_THREE,
            "hunter": MainExploiter(),
            "rover": LeagueExploiter(),
        }
        return Made(players, pay=lambda first, second: 1.0 if first < second else -0.5, most=4)

    whole, before = make(), make()
    for step in range(1, 11):
        expected = whole.step(step, groups=7)
        if step <= 5:
            before.step(step, groups=7)
    state = before.league.state_dict()
    after = make()
    for policy in after.snapshots.policies.values():
        policy.version = 5
    after.league.load_state_dict(state, Path("checkpoint"), step=5)
    assert after.snapshots.there == before.snapshots.there
    for step in range(6, 11):
        found = after.step(step, groups=7)
    assert found == expected
    assert [spec.policy_map for spec in after.play.specs] == [
        spec.policy_map for spec in whole.play.specs[70:]
    ]
    assert after.league.state_dict() == whole.league.state_dict()


def test_a_league_wraps_any_rollout_function() -> None:
    """Check a step in which no player learns: the specifications are unchanged."""
    made, other, asked = Made({"base": Anchors()}), Played(), specs(1, 2)
    made.begin(1, [])
    assert len(made.league.matches(1).wrap(other)(asked)) == 4
    assert other.specs == asked and not made.play.specs


def test_equal_players_of_a_game_of_three_have_a_win_rate_of_a_half() -> None:
    class Three(Played):
        """A game that pays three agents at random."""

        def _played(self, spec: EpisodeSpec) -> Episode:
            rng = Random(f"{spec.seed} {spec.member}")
            seats = [f"player_{number}" for number in range(3)]
            return episode(*(turn(seat, rng.random()) for seat in seats))

    made = Made({"base": ALL_THREE}, arena=Arena({"player": 3}), play=Three(), every=1000)
    for step in range(1, 40):
        metrics = made.step(step, groups=60, size=1)
    rates = [rate for name, rate in metrics.items() if name.startswith("win_rate/base/")]
    # About 1 / (1 - 0.99) = 100 games count, so three standard deviations are 0.15.
    assert rates and all(abs(rate - 0.5) < 0.2 for rate in rates)
    assert sum(rates) / len(rates) == pytest.approx(0.5, abs=0.12)


def test_players_get_each_type_of_tasks() -> None:
    made = Made({"base": ALL_THREE, "other": ALL_THREE})
    made.begin(1)
    asked = [
        EpisodeSpec(task=Task(id=f"{n}", type=("even", "odd")[n % 2]), seed=n) for n in range(40)
    ]
    made.run(asked)
    matches = made.league._sampled[1]._matches
    met = Counter((spec.task.type, matches[spec.task.id, spec.seed].player) for spec in asked)
    assert all(met[kind, player] == 10 for kind in ("even", "odd") for player in ("base", "other"))
