"""Tests of matches against opponents: their results, and evaluations in every seat."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from selfplay.arena import Arena
from selfplay.credit.base import pay_by_agent
from selfplay.rollout.evaluation import Evaluation
from selfplay.rollout.matches import Match, match_metrics, result
from selfplay.rollout.rollout import EpisodeSpec
from selfplay.types import Episode, Status, Task
from tests.helpers.builders import episode, turn


class Two(Arena):
    """A game of two players and a judge."""

    roles = {"player": 2, "judge": 1}


def game(first: float, second: float, **fields: Any) -> Episode:
    return episode(turn("player_0", first), turn("player_1", second), **fields)


SEATS = ("player_0", "player_1")


def test_won_drawn_lost() -> None:
    for first, second, expected in ((1, -1, "won"), (0.5, 0.5, "drawn"), (1, 2, "lost")):
        assert result(game(first, second), *SEATS) == expected
    assert result(game(1, 2), "player_1", "player_0") == "won"
    assert result(episode(turn("player_0", -1)), *SEATS) == "lost", "player_1 was never asked"
    assert result(game(1, 0, status=Status.FAILED), *SEATS) is None
    thirds = episode(*(turn("player_0", 0.1) for _ in range(3)), turn("player_1", 0.3))
    for pair in (SEATS, SEATS[::-1]):
        assert result(thirds, *pair) == "drawn", "a rounding error does not decide"


def fractions(paid: Sequence[float], seat: int, **fields: Any) -> list[float]:
    """Return the fractions won, drawn and lost of one agent against `x`."""
    seats = [f"player_{number}" for number in range(len(paid))]
    ended = episode(*map(turn, seats, paid), **fields)
    matches = [
        Match(seat=seats[seat], opponent="x", seats=seats),
        Match(seat=seats[seat], opponent="known", seats=seats),
    ]
    found = match_metrics(matches, [ended, episode(turn(seats[0], 0.0))])
    names = ("won", "drawn", "lost")
    assert [found[f"versus/x/{seats[seat]}/{name}"] for name in names] == [
        found[f"versus/x/{name}"] for name in names
    ]
    return [found[f"versus/x/{name}"] for name in names]


def test_the_agent_is_compared_with_each_of_the_others() -> None:
    assert fractions([1, 0, 1, 5], 0) == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert fractions([1, 0, 1, 5], 3) == [1, 0, 0]
    assert fractions([1, 0, 1, 5], 1) == [0, 0, 1]
    assert fractions([7, 0, 1, 5], 0, status=Status.FAILED) == [0, 0, 1]
    winners = [1, 1, -1, -1]
    assert fractions(winners, 0) == pytest.approx([2 / 3, 1 / 3, 0]), (
        "equal returns of teammates are a draw"
    )
    assert fractions(winners, 2) == pytest.approx([0, 1 / 3, 2 / 3])


def test_equal_policies_win_as_often_as_they_lose() -> None:
    rng, seats = Random(0), [f"player_{number}" for number in range(3)]
    played = [episode(*(turn(seat, rng.random()) for seat in seats)) for _ in range(600)]
    matches = [Match(seat=seats[n % 3], opponent="x", seats=seats) for n in range(600)]
    found = match_metrics(matches, played)
    # The deviation of one game is below 0.42, so that of the mean is 0.017.
    assert found["versus/x/won"] == pytest.approx(0.5, abs=0.06)
    assert found["versus/x/won"] + found["versus/x/lost"] == pytest.approx(1)


def test_the_pay_of_an_agent_without_a_turn_counts() -> None:
    """An illegal first move ends a game before the other player is asked."""
    ended = episode(turn("player_0", -2), other_pay={"player_0": (), "player_1": ((0, 2.0),)})
    assert pay_by_agent(ended) == {"player_0": -2, "player_1": 2}
    assert match_metrics([Match(seat="player_1", opponent="x", seats=SEATS)], [ended]) == {
        **{f"versus/x{seat}/won": 1.0 for seat in ("", "/player_1")},
        **{f"versus/x{seat}/drawn": 0.0 for seat in ("", "/player_1")},
        **{f"versus/x{seat}/lost": 0.0 for seat in ("", "/player_1")},
        **{f"versus/x{seat}/return": 2.0 for seat in ("", "/player_1")},
    }


def evaluation(**changes: Any) -> Evaluation:
    settings: dict[str, Any] = {
        "arena": Two,
        "tasks": [Task(id="t"), Task(id="u")],
        "metrics": {},
        "samples": 2,
        "opponents": ["weak", "strong"],
        "seats": SEATS,
    }
    return Evaluation(**{**settings, **changes})


def test_every_opponent_in_every_other_seat_with_the_same_seeds() -> None:
    asked: list[EpisodeSpec] = []

    def play(specs: Sequence[EpisodeSpec]) -> list[Episode]:
        asked.extend(specs)
        return [game(0, 0) for _ in specs]

    evaluation().run("x", play, seed=3)
    seatings = [
        {"player_1": "weak"},
        {"player_0": "weak"},
        {"player_1": "strong"},
        {"player_0": "strong"},
    ]
    assert [spec.policy_map for spec in asked] == [
        seating for seating in seatings for _ in range(4)
    ]
    draws = [(spec.task.id, spec.seed, spec.member) for spec in asked]
    assert draws[:4] == draws[4:8] == draws[8:12] == draws[12:] and len(set(draws)) == 4
    plain: list[EpisodeSpec] = []
    evaluation(opponents=[]).run("x", lambda specs: plain.extend(specs) or [game(0, 0)] * 4, seed=3)  # type: ignore[func-returns-value]
    assert draws[:4] == [(spec.task.id, spec.seed, spec.member) for spec in plain]


def test_fractions_and_returns_computed_by_hand() -> None:
    """Against weak, the policy wins as player_0; as player_1 it draws twice, loses and fails."""
    results = {
        ("player_1", "weak"): [game(2, -2)] * 4,
        ("player_0", "weak"): [
            game(0, 0),
            game(3, -3),
            game(9, 9, status=Status.FAILED),
            game(0, 0),
        ],
        ("player_1", "strong"): [game(-1, 1)] * 4,
        ("player_0", "strong"): [game(1, -1)] * 4,
    }

    def play(specs: Sequence[EpisodeSpec]) -> list[Episode]:
        left = {key: list(episodes) for key, episodes in results.items()}
        return [left[next(iter(spec.policy_map.items()))].pop(0) for spec in specs]

    metrics, episodes = evaluation().run("x", play, seed=0)
    assert len(episodes) == 16
    assert metrics == {
        "failed_episodes": 1.0,
        "truncated_episodes": 0.0,
        "versus/weak/won": 0.5,
        "versus/weak/drawn": 0.25,
        "versus/weak/lost": 0.25,
        "versus/weak/return": pytest.approx((4 * 2 + 0 - 3 - 3 + 0) / 8),
        "versus/weak/player_0/won": 1.0,
        "versus/weak/player_0/drawn": 0.0,
        "versus/weak/player_0/lost": 0.0,
        "versus/weak/player_0/return": 2.0,
        "versus/weak/player_1/won": 0.0,
        "versus/weak/player_1/drawn": 0.5,
        "versus/weak/player_1/lost": 0.5,
        "versus/weak/player_1/return": -1.5,
        "versus/strong/won": 0.0,
        "versus/strong/drawn": 0.0,
        "versus/strong/lost": 1.0,
        "versus/strong/return": -1.0,
        **{
            f"versus/strong/player_{seat}/{name}": value
            for seat in (0, 1)
            for name, value in {"won": 0.0, "drawn": 0.0, "lost": 1.0, "return": -1.0}.items()
        },
    }


def test_games_that_all_fail_have_no_results() -> None:
    metrics, _ = evaluation(opponents=["weak"]).run(
        "x", lambda specs: [game(3, 3, status=Status.FAILED) for _ in specs], seed=0
    )
    assert metrics == {"failed_episodes": 8, "truncated_episodes": 0}


def test_seats_that_the_arena_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no agent 'player_2'; did you mean 'player_"):
        evaluation(seats=["player_2"])


def test_all_agents_change_places_where_none_are_named() -> None:
    asked: list[EpisodeSpec] = []

    def play(specs: Sequence[EpisodeSpec]) -> list[Episode]:
        asked.extend(specs)
        return [game(Random(spec.seed).random(), 0) for spec in specs]

    evaluation(seats=(), opponents=["weak"], tasks=[Task(id="t")], samples=1).run("x", play, seed=0)
    assert [sorted(spec.policy_map) for spec in asked] == [
        ["judge_0", "player_1"],
        ["judge_0", "player_0"],
        ["player_0", "player_1"],
    ]


class Growing(Arena):
    """A game in which the task sets the number of players."""

    roles = {"player": 3}

    def agents_of(self, task: Task) -> list[str]:
        return self.possible_agents[: task.payload["players"]]


def sized(*counts: int) -> list[Task]:
    return [Task(id=f"of-{count}", payload={"players": count}) for count in counts]


def test_a_task_is_played_from_the_seats_that_take_part_in_it() -> None:
    asked: list[EpisodeSpec] = []

    def play(specs: Sequence[EpisodeSpec]) -> list[Episode]:
        asked.extend(specs)
        return [
            episode(*(turn(seat, float(seat not in spec.policy_map)) for seat in spec.seats))
            for spec in specs
        ]

    made = evaluation(arena=Growing, tasks=sized(1, 2, 3), samples=1, opponents=["x"], seats=())
    metrics, _ = made.run("sizes", play, seed=0)
    two, three = ["player_0", "player_1"], ["player_0", "player_1", "player_2"]
    assert [(spec.task.id, list(spec.seats), sorted(spec.policy_map)) for spec in asked] == [
        ("of-2", two, ["player_1"]),
        ("of-3", three, ["player_1", "player_2"]),
        ("of-2", two, ["player_0"]),
        ("of-3", three, ["player_0", "player_2"]),
        ("of-3", three, two),
    ]
    assert metrics["versus/x/won"] == metrics["versus/x/player_2/won"] == 1
    (note,) = made.without_match("sizes")
    assert note.startswith("evaluations.sizes.opponents: in 1 of 3 tasks, such as 'of-1', fewer")
    assert note in made.notes("sizes", [])


def test_seats_may_name_agents_of_some_tasks_only() -> None:
    made = evaluation(arena=Growing, tasks=sized(2, 3), opponents=["x"], seats=["player_2", *SEATS])
    assert made.without_match("sizes") == []
    alone = evaluation(arena=Growing, tasks=sized(1), opponents=[], seats=())
    assert alone.without_match("sizes") == [], "without opponents, the task is played"
    with pytest.raises(ValueError, match=r"in no task two of \['player_1', 'player_2'\] take part"):
        evaluation(arena=Growing, tasks=sized(1, 2), seats=["player_1", "player_2"])
