"""Tests of matchmaking: the probabilities of a player's opponents, by hand."""

from collections.abc import Mapping
from typing import Any

import pytest

from selfplay.league import Chances, LeagueState, Matchmaking, Snapshot, matchmaking
from selfplay.league.empirical_game import NoEquilibriumError
from selfplay.league.matchmaking import (
    PFSP,
    Anchors,
    Current,
    Latest,
    LeagueExploiter,
    MainExploiter,
    MainPlayer,
    MixedMatchmaking,
    Nash,
    Uniform,
    before_decline,
    pfsp,
)
from selfplay.league.ratings import Payoff


def table(
    rates: Mapping[tuple[str, str], float] | None = None,
    *,
    players: Mapping[str, Matchmaking] | None = None,
    snapshots: tuple[str, ...] = (),
    anchors: tuple[str, ...] = (),
) -> LeagueState:
    """Return a league state with `rates` of ten games each; snapshots are named, oldest first."""
    payoff = Payoff(decay=1.0)
    for (home, away), rate in (rates or {}).items():
        for game in range(10):
            payoff.record(home, away, "won" if game < round(10 * rate) else "lost")
    split = [name.split("@") for name in snapshots]
    return LeagueState(
        players=players or {"base": Current()},
        anchors=anchors,
        snapshots=[Snapshot(player=player, updates=int(updates)) for player, updates in split],
        payoff=payoff,
    )


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("variance", [0.2093, 0.5814, 0.2093]),
        ("linear", [0.6, 0.3333, 0.0667]),
        ("linear_capped", [0.4545, 0.4545, 0.0909]),
        ("squared", [0.7570, 0.2336, 0.0093]),
    ],
)
def test_pfsp_against_golden_numbers(weighting: Any, expected: list[float]) -> None:
    assert pfsp([0.1, 0.5, 0.9], weighting) == pytest.approx(expected, abs=5e-5)


def test_pfsp_is_uniform_if_all_weights_are_0() -> None:
    assert pfsp([1.0, 1.0], "squared") == [0.5, 0.5]
    assert pfsp([0.0, 1.0], "variance") == [0.5, 0.5]
    assert pfsp([1 - 1e-6, 1.0], "squared") == [0.5, 0.5], "1e-12 counts as 0"
    with pytest.raises(ValueError, match=r"no weighting 'square'; did you mean 'squared'"):
        PFSP(weighting="square")  # type: ignore[arg-type]


PAST = ("base@0", "base@2", "other@1")
RATES = {("base", "base@0"): 0.9, ("base", "base@2"): 0.5, ("base", "other@1"): 0.1}


@pytest.mark.parametrize(
    ("matchmaking", "expected"),
    [
        (Current(), {"base": 1.0}),
        (Latest(), {"base@2": 1.0}),
        (Uniform(), {"base@0": 1 / 3, "base@2": 1 / 3, "other@1": 1 / 3}),
        (PFSP(weighting="linear"), {"base@0": 1 / 15, "base@2": 1 / 3, "other@1": 0.6}),
        (Anchors(), {"random": 0.5, "perfect": 0.5}),
        (Anchors(weights={"random": 3.0, "perfect": 1.0}), {"random": 0.75, "perfect": 0.25}),
        (
            MixedMatchmaking(
                ways={"now": Current(), "old": Latest(), "fixed": Anchors(), "never": Uniform()},
                weights={"now": 2, "old": 1, "fixed": 1, "never": 0},
            ),
            {"base": 0.5, "base@2": 0.25, "random": 0.125, "perfect": 0.125},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_chances_by_hand(matchmaking: Matchmaking, expected: Chances) -> None:
    found = matchmaking.chances("base", table(RATES, snapshots=PAST, anchors=("random", "perfect")))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("matchmaking", [Latest(), Uniform(), PFSP(), MainPlayer()])
def test_before_there_is_a_snapshot_a_player_meets_itself(matchmaking: Matchmaking) -> None:
    empty = table(players={"base": matchmaking})
    assert matchmaking.chances("base", empty) == pytest.approx({"base": 1.0})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"weights": {}}, "weights needs at least one anchor"),
        ({"weights": {"random": 0.0}}, "above 0"),
    ],
)
def test_invalid_weights_of_anchors_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Anchors(**settings)


def test_unknown_anchors_and_invalid_mixtures_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no anchor 'randm'; did you mean 'random'"):
        Anchors(weights={"randm": 1.0}).chances("base", table(anchors=("random",)))
    with pytest.raises(ValueError, match="there are no anchors"):
        Anchors().chances("base", table())
    with pytest.raises(ValueError, match="'old' is in one of them only"):
        MixedMatchmaking(ways={"now": Current()}, weights={"now": 1.0, "old": 1.0})
    with pytest.raises(ValueError, match="not all 0"):
        MixedMatchmaking(ways={"now": Current()}, weights={"now": 0.0})


# AlphaStar -----------------------------------------------------------------------------------


def starcraft(rates: dict[tuple[str, str], float], *snapshots: str) -> LeagueState:
    players: dict[str, Matchmaking] = {
        "main": MainPlayer(),
        "hunter": MainExploiter(),
        "rover": LeagueExploiter(),
    }
    return table(rates, players=players, snapshots=snapshots)


def test_a_main_player_without_weakness_meets_snapshots_and_itself() -> None:
    """Check half by squared losses (0.01, 0.25 of 0.26); falling rates give nothing to verify."""
    found = starcraft({("main", "main@0"): 0.9, ("main", "main@5"): 0.5}, "main@0", "main@5")
    assert MainPlayer().chances("main", found) == pytest.approx(
        {"main@0": 0.5 * 0.01 / 0.26, "main@5": 0.5 * 0.25 / 0.26, "main": 0.5}
    )


def test_snapshots_of_a_successful_exploiter_are_verified() -> None:
    """Check an exploiter beaten in 20 % and 90 %: one is below 30 %, so both are verified."""
    found = starcraft(
        {("main", "main@0"): 0.9, ("main", "hunter@1"): 0.2, ("main", "hunter@2"): 0.9},
        *("main@0", "hunter@1", "hunter@2"),
    )
    all_snapshots = {"main@0": 0.01 / 0.66, "hunter@1": 0.64 / 0.66, "hunter@2": 0.01 / 0.66}
    verified = {"hunter@1": 0.64 / 0.65, "hunter@2": 0.01 / 0.65}
    expected = {name: 0.5 * c + 0.15 * verified.get(name, 0) for name, c in all_snapshots.items()}
    assert MainPlayer().chances("main", found) == pytest.approx({**expected, "main": 0.35})


def test_snapshots_of_an_exploiter_at_the_limit_are_not_verified() -> None:
    """Check that a win rate of exactly `exploited` is high enough."""
    found = starcraft({("main", "hunter@1"): 0.3}, "hunter@1")
    assert MainPlayer(pfsp=0.0, verify=1.0).chances("main", found) == {"main": 1.0}


def test_a_players_own_past_is_not_verified_as_an_exploiter() -> None:
    found = table({("main", "main@0"): 0.2}, players={"main": MainPlayer()}, snapshots=("main@0",))
    assert MainPlayer(pfsp=0.0, verify=1.0).chances("main", found) == {"main": 1.0}


def test_two_main_players_share_the_fraction_that_verifies() -> None:
    """Check the exploiter's probability: 0.5 by squared losses, and 0.1 twice to verify."""
    players: dict[str, Matchmaking] = {
        "main": MainPlayer(pfsp=0.5, verify=0.2),
        "twin": MainPlayer(),
        "hunter": MainExploiter(),
    }
    found = table({("main", "hunter@1"): 0.2}, players=players, snapshots=("hunter@1",))
    expected = {"hunter@1": 0.7, "main": 0.15, "twin": 0.15}
    assert players["main"].chances("main", found) == pytest.approx(expected)


def test_forgotten_snapshots_are_verified() -> None:
    """Check a player that beats its oldest snapshot less often than the next one.

    The last snapshot is left out as a steady decline. The lowest rate of the others, 0.4, is below
    0.7, so both are verified.
    """
    rates = {("main", "main@0"): 0.4, ("main", "main@1"): 0.8, ("main", "main@2"): 0.5}
    found = MainPlayer(pfsp=0.0, verify=1.0).chances(
        "main", starcraft(rates, "main@0", "main@1", "main@2")
    )
    assert found == pytest.approx({"main@0": 0.36 / 0.4, "main@1": 0.04 / 0.4})
    learned = {**rates, ("main", "main@0"): 0.7}
    found = MainPlayer(pfsp=0.0, verify=1.0).chances(
        "main", starcraft(learned, "main@0", "main@1", "main@2")
    )
    assert found == {"main": 1.0}, "a rate of 0.7 is not forgotten"


@pytest.mark.parametrize(
    ("rates", "left"),
    [
        ([], 0),
        ([0.5], 0),
        ([0.9, 0.5, 0.2], 0),
        ([0.9, 0.9], 0),
        ([0.2, 0.9, 0.5], 2),
        ([0.9, 0.5, 0.6], 3),
        ([0.1, 0.2, 0.9, 0.8, 0.8], 3),
    ],
)
def test_a_steady_decline_at_the_end_is_left_out(rates: list[float], left: int) -> None:
    assert before_decline(rates) == left


def test_snapshots_replace_another_main_player_that_is_too_strong() -> None:
    """Check two main players with half of the self-play each; a rate up to 0.3 is too strong."""
    players: dict[str, Matchmaking] = {
        "main": MainPlayer(pfsp=0.0, verify=0.0),
        "twin": MainPlayer(),
    }
    rates = {("main", "twin"): 0.2, ("main", "twin@0"): 0.5, ("main", "twin@1"): 0.1}
    found = players["main"].chances(
        "main", table(rates, players=players, snapshots=("twin@0", "twin@1"))
    )
    # The variances are 0.25 and 0.09.
    expected = {"main": 0.5, "twin@0": 0.5 * 0.25 / 0.34, "twin@1": 0.5 * 0.09 / 0.34}
    assert found == pytest.approx(expected)
    rates[("main", "twin")] = 0.4
    found = players["main"].chances("main", table(rates, players=players, snapshots=("twin@0",)))
    assert found == pytest.approx({"main": 0.5, "twin": 0.5})
    rates[("main", "twin")] = 0.3
    found = players["main"].chances("main", table(rates, players=players, snapshots=("twin@0",)))
    assert found == pytest.approx({"main": 0.5, "twin@0": 0.5}), "exactly 0.3 is too strong"


def test_a_main_exploiter_meets_the_main_player_or_its_past() -> None:
    past = {("hunter", "main@0"): 0.5, ("hunter", "main@1"): 0.1}
    able = starcraft({("hunter", "main"): 0.2, **past}, "main@0", "main@1", "rover@1")
    assert MainExploiter().chances("hunter", able) == {"main": 1.0}
    unable = starcraft({("hunter", "main"): 0.1, **past}, "main@0", "main@1", "rover@1")
    expected = {"main@0": 0.25 / 0.34, "main@1": 0.09 / 0.34}
    assert MainExploiter().chances("hunter", unable) == pytest.approx(expected)
    assert MainExploiter().targets("hunter", unable) == ["main"]


def test_a_league_exploiter_meets_every_snapshot() -> None:
    rates = {("rover", "main@0"): 0.1, ("rover", "hunter@1"): 0.5, ("rover", "rover@1"): 0.9}
    found = starcraft(rates, "main@0", "hunter@1", "rover@1")
    expected = {"main@0": 5 / 11, "hunter@1": 5 / 11, "rover@1": 1 / 11}
    assert LeagueExploiter().chances("rover", found) == pytest.approx(expected)
    assert LeagueExploiter().targets("rover", found) == ["main@0", "hunter@1", "rover@1"]
    assert LeagueExploiter().chances("rover", starcraft({})) == {"main": 1.0}


def test_only_exploiters_begin_again() -> None:
    resets = [each.reset for each in (MainPlayer(), MainExploiter(), LeagueExploiter(), PFSP())]
    assert resets == [0.0, 1.0, 0.25, 0.0]
    for kind in (MainExploiter, LeagueExploiter):
        with pytest.raises(ValueError, match="reset must be a probability"):
            kind(reset=1.5)
    with pytest.raises(ValueError, match="must be fractions"):
        MainPlayer(pfsp=0.9, verify=0.2)


def circle() -> LeagueState:
    """Return snapshots that play rock, paper, scissors, and one that loses to all three."""
    made = table(snapshots=("base@1", "base@2", "base@3", "base@4"))
    beats = {("base@2", "base@1"): 1.0, ("base@3", "base@2"): 1.0, ("base@3", "base@1"): 0.0}
    beats |= {("base@4", f"base@{number}"): 0.0 for number in (1, 2, 3)}
    for newest in (2, 3, 4):
        for older in range(1, newest):
            rate = beats[f"base@{newest}", f"base@{older}"]
            made.payoff.forget("base")
            for _ in range(10):
                made.payoff.record("base", f"base@{older}", "won" if rate else "lost")
            made.payoff.remember(f"base@{newest}", "base")
    return made


def test_nash_meets_the_equilibrium_of_the_snapshots() -> None:
    found = Nash().chances("base", circle())
    # Three that beat one another in a circle are equally likely; the fourth loses to all of them.
    assert found == pytest.approx({f"base@{number}": 1 / 3 for number in (1, 2, 3)}, abs=1e-4)
    assert Nash().chances("base", table()) == {"base": 1.0}
    alone = table(snapshots=("base@1",))
    assert Nash().chances("base", alone) == {"base@1": 1.0}
    nothing_known = table(snapshots=("base@1", "base@2"))
    assert Nash().chances("base", nothing_known) == pytest.approx({"base@1": 0.5, "base@2": 0.5})


def test_nash_meets_only_the_best_of_a_ranking() -> None:
    made = table(snapshots=("base@1", "base@2", "base@3"))
    for newest in (2, 3):
        made.payoff.forget("base")
        for older in range(1, newest):
            made.payoff.record("base", f"base@{older}", "won")
        made.payoff.remember(f"base@{newest}", "base")
    assert Nash().chances("base", made) == {"base@3": 1.0}


def test_few_games_count_less_by_virtual_draws() -> None:
    made = table({("a@1", "b@1"): 0.9}, snapshots=("a@1", "b@1"))
    (_, gain), (loss, _) = Nash(prior=10.0).payoffs(["a@1", "b@1"], made)
    assert (gain, loss) == pytest.approx((0.4, -0.4))  # 0.8 from ten games and ten draws
    assert Nash(prior=0.0).payoffs(["a@1", "b@1"], made)[0, 1] == pytest.approx(0.8)
    with pytest.raises(ValueError, match="prior"):
        Nash(prior=-1.0)


def test_without_a_solution_all_snapshots_are_equally_likely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(payoffs: Any) -> Any:
        raise NoEquilibriumError("none")

    monkeypatch.setattr(matchmaking, "nash", fail)
    found = Nash().chances("base", circle())
    assert found == {f"base@{number}": 0.25 for number in (1, 2, 3, 4)}
