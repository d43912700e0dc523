"""Tests of leagues sampled ahead of the learner: views, snapshots, results, resumption."""

import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from selfplay.league import Matchmaking
from selfplay.league.matchmaking import (
    PFSP,
    Anchors,
    Current,
    Latest,
    LeagueExploiter,
    MainExploiter,
    Uniform,
)
from selfplay.rollout.rollout import EpisodeSpec
from selfplay.sampler.independent import Independent
from selfplay.sampler.prefetch import OnDemandBatches, PrefetchedBatches
from selfplay.types import Episode, Group, Task
from tests.helpers.scripted_league import ALL_THREE, Made, Played

STEPS = 9
LONG = 120.0
"""Seconds after which a test stops waiting for a batch."""


def by_names(first: str, second: str) -> float:
    """Return a result that depends on both names only."""
    return float(blake2b(f"{first} {second}".encode(), digest_size=1).digest()[0] % 3 - 1)


class Recorded(Played):
    """A game that records the seating of each step and checks that all its snapshots are served."""

    def __init__(self, pay: Callable[[str, str], float] = by_names) -> None:
        super().__init__(pay)
        self.seatings: dict[int, list[tuple[Any, ...]]] = {}
        self.there: list[str] = []
        self.delay: Callable[[int], None] = lambda step: None

    def __call__(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        step = int(specs[0].task.id.partition("-")[0])
        self.delay(step)
        self.seatings[step] = [(spec.seed, dict(spec.policy_map), spec.learner) for spec in specs]
        names = {name for spec in specs for name in spec.policy_map.values() if "@" in name}
        assert names <= set(self.there), step
        return super().__call__(specs)


class Steps:
    """A curriculum of eight tasks per step, whose ids name the step."""

    reads_outcomes = False

    def tasks(self, step: int, attempt: int = 0) -> list[Task]:
        return [Task(id=f"{step}-{number}") for number in range(8)]

    def observe(self, groups: Sequence[Group], step: int) -> None: ...

    def ready(self) -> bool:
        return True

    def metrics(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def players() -> dict[str, Matchmaking]:
    return {"base": ALL_THREE, "hunter": MainExploiter(), "rover": LeagueExploiter()}


def made(lag: int, matchmaking: Mapping[str, Matchmaking] | None = None, **more: Any) -> Made:
    more.setdefault("play", Recorded())
    found = Made(matchmaking or players(), max_staleness=lag, **more)
    plays(found).there = found.snapshots.there
    return found


def plays(league: Made) -> Recorded:
    assert isinstance(league.play, Recorded)
    return league.play


def seatings(league: Made) -> dict[int, list[tuple[Any, ...]]]:
    return plays(league).seatings


def batches(league: Made) -> OnDemandBatches:
    return OnDemandBatches(
        curriculum=Steps(),
        sampler=Independent(group_size=2),
        rollout_fn=league.play,
        seed=lambda: 7,
        wrap=league.league.wrap,
    )


def in_turn(league: Made, first: int = 1, last: int = STEPS, *, ahead: int) -> list[dict[str, Any]]:
    """Train without threads; each step is sampled `ahead` steps before it is learned from."""
    source, sampled, rows = batches(league), first - 1, []
    for step in range(first, last + 1):
        league.league.begin_step(step)
        while sampled < min(last, step + ahead):
            sampled += 1
            source.take(sampled)
        rows.append(league.end())
    return rows


def in_threads(league: Made, learner: Callable[[int], None]) -> list[dict[str, Any]]:
    source = PrefetchedBatches(
        batches(league),
        max_staleness=league.max_staleness,
        last=STEPS,
        keeps=lambda step: False,
        timeout=LONG,
    )
    rows = []
    try:
        for step in range(1, STEPS + 1):
            league.league.begin_step(step)
            source.take(step)
            learner(step)
            rows.append(league.end())
            source.learned(step)
    finally:
        source.close()
    return rows


def slow(step: int) -> None:
    time.sleep(0.02)


def uneven(step: int) -> None:
    time.sleep(0.03 * (step % 3))


def at_once(step: int) -> None:
    """Return without a delay."""


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_no_timing_changes_a_match(lag: int) -> None:
    wanted = made(lag)
    rows = in_turn(wanted, ahead=lag)
    state = wanted.league.state_dict()
    assert sum(row["begun_again"] for row in rows) > 0 < sum(row["dropped"] for row in rows)
    for ahead in range(lag):
        found = made(lag)
        assert in_turn(found, ahead=ahead) == rows
        assert (seatings(found), found.league.state_dict()) == (seatings(wanted), state)
    for sampler, learner in ((slow, at_once), (at_once, slow), (uneven, uneven)):
        found = made(lag)
        plays(found).delay = sampler
        assert in_threads(found, learner) == rows
        assert (seatings(found), found.league.state_dict()) == (seatings(wanted), state)


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_step_is_drawn_from_results_up_to_the_last_certain_step(lag: int) -> None:
    """Check results that differ from step 4 on: draws differ from step 5 + lag on."""
    weights = PFSP(weighting="squared")
    one = made(lag, {"base": weights}, every=1, most=9, play=Recorded(lambda *names: 1.0))
    other = made(lag, {"base": weights}, every=1, most=9, play=Recorded(lambda *names: 1.0))
    for league in (one, other):
        in_turn(league, last=3, ahead=0)
    other.play.pay = by_names
    for step in range(4, 5 + lag):
        for league in (one, other):
            league.begin(step)
            league.run([EpisodeSpec(task=Task(id=f"{step}-{n}"), seed=n) for n in range(8)])
        if step > 4:
            assert seatings(one)[step] == seatings(other)[step]
        for league in (one, other):
            league.end()
    drawn = [each.league.matches(5 + lag).chances("base") for each in (one, other)]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_snapshot_appears_when_it_is_certain_and_stays_while_it_may_play(lag: int) -> None:
    league = made(lag, {"base": Latest()}, every=1, most=1)
    in_turn(league, ahead=lag)
    for step, games in seatings(league).items():
        met = {name for _, seating, _ in games for name in seating.values()}
        assert met == {f"base@{max(0, step - 1 - lag)}"}
    assert league.snapshots.there == [f"base@{n}" for n in range(STEPS - lag, STEPS + 1)]
    assert [each.name for each in league.league.table.snapshots] == [f"base@{STEPS}"]


@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("kept", [0, 1, 2, 5])
def test_a_resumed_league_plays_the_matches_of_an_uninterrupted_one(lag: int, kept: int) -> None:
    whole, before, after = made(lag), made(lag), made(lag)
    rows = in_turn(whole, ahead=lag)
    if kept:
        in_turn(before, last=kept, ahead=0)
    state = before.league.state_dict()
    for policy in after.snapshots.policies.values():
        policy.version = kept
    after.league.load_state_dict(state, Path("checkpoint"), step=kept)
    assert after.league.state_dict() == state
    assert after.snapshots.there == [*sorted(set(before.snapshots.there), key=state_order(state))]
    plays(after).there = after.snapshots.there
    assert in_turn(after, first=kept + 1, ahead=lag) == rows[kept:]
    assert after.league.state_dict() == whole.league.state_dict()
    for step in range(kept + 1, STEPS + 1):
        assert seatings(after)[step] == seatings(whole)[step]


def state_order(state: Mapping[str, Any]) -> Callable[[str], int]:
    """Return a sort key: the position of a name among the snapshots of a checkpoint."""
    rows = [*state["snapshots"], *([player, n] for player, n, _ in state["retired"])]
    names = [f"{player}@{n}" for player, n in rows]
    return names.index


def test_a_step_that_is_sampled_twice_counts_once() -> None:
    """Sample steps 4 and 5 ahead, and sample them again after loading the checkpoint of step 3."""
    league = made(2, {"base": Anchors()}, every=100)
    in_turn(league, last=3, ahead=0)
    state = league.league.state_dict()
    source = batches(league)
    source.take(4)
    source.take(5)
    assert league.league.state_dict() == state
    games = 3 * 16
    assert sum(count for *_, count, _ in state["played"]) == games
    league.league.load_state_dict(state, Path("checkpoint"), step=3)
    in_turn(league, first=4, last=5, ahead=1)
    played = league.league.state_dict()["played"]
    assert sum(count for *_, count, _ in played) == games + 2 * 16
    elo = sum(league.league.ratings.rating(name) for name in ("base", "random", "perfect"))
    assert elo == pytest.approx(3 * 1500)  # each game moves two ratings by the same amount


@pytest.mark.parametrize(("lag", "first"), [(0, 4), (1, 6), (2, 7)])
def test_anchors_are_mixed_in_from_a_step_that_was_not_begun(lag: int, first: int) -> None:
    """Mix in anchors after step 3, and check the first step that has them."""
    league = made(lag, {"base": Current()})
    in_turn(league, last=3, ahead=0)
    league.league.mix_anchors(0.5, until=8)
    for step in range(4, 10):
        league.begin(step)
        chance = league.league.matches(step).chances("base")
        assert (chance != {"base": 1.0}) == (first <= step <= 8), step
        league.end()


def test_a_step_cannot_be_sampled_before_its_view_is_there() -> None:
    league = made(1)
    source = batches(league)
    league.league.begin_step(1)
    source.take(1)
    source.take(2)
    with pytest.raises(RuntimeError, match="step 3 was sampled before step 1 ended"):
        source.take(3)


def test_players_that_learn_later_have_a_snapshot_when_they_begin() -> None:
    """Check three first steps in which no player learns and there is no match."""
    for lag in (0, 1, 2):
        league = made(lag, {"base": Uniform()}, every=100)
        league.learns = lambda step: ["base"] if step > 3 else []
        in_turn(league, ahead=lag)
        for step, games in seatings(league).items():
            met = {name for _, seating, _ in games for name in seating.values()}
            assert met == ({"base@0"} if step > 3 else set()), (lag, step)


def test_a_state_with_another_max_staleness_can_be_resumed() -> None:
    """Check that the state after step 4 replaces missing views, also those of older runs."""
    for before, after in ((1, 3), (3, 1), (2, 0)):
        one, other = made(before, every=1), made(after, every=1)
        in_turn(one, last=4, ahead=0)
        for policy in other.snapshots.policies.values():
            policy.version = 4
        state = one.league.state_dict()
        other.league.load_state_dict(state, Path("checkpoint"), step=4)
        plays(other).there = other.snapshots.there
        in_turn(other, first=5, ahead=after)
        assert len(other.snapshots.there) <= 3 + 3 * after
    older = {key: state[key] for key in state if key not in ("views", "retired", "max_staleness")}
    for until, fraction in ((5, 0.5), (4, 0.0)):
        again = made(0, every=1)
        again.league.load_state_dict(
            {**older, "anchored": [0.5, until]}, Path("checkpoint"), step=4
        )
        assert again.league.matches(5).anchored == fraction
