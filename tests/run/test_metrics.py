"""Tests of the metrics of a step, against values computed by hand."""

import json
from typing import Any

import pytest

from selfplay.run.metrics import Outcomes, of_episodes
from selfplay.types import Status, Task, Turn
from tests.helpers.builders import episode, turn

HARD, EASY = Task(id="h", type="hard"), Task(id="e", type="easy")
EPISODES = [
    episode(
        turn("solver_0", 1.0, info={"verdict": "correct", "depth": 2}),
        turn("solver_0", 0.5, info={"verdict": "correct"}, completion_ids=(1, 2, 3)),
        turn("solver_1", -1.0, action=None, info={"invalid": "no answer", "name": "x"}),
        task=HARD,
        metrics={"solve_rate": 0.5},
    ),
    episode(
        turn("solver_0", 0.0, info={"verdict": "wrong", "depth": 4}),
        task=EASY,
        metrics={"solve_rate": 1.0},
        status=Status.TRUNCATED,
    ),
    episode(turn("solver_0", 99.0), metrics={"solve_rate": 9.0}, status=Status.FAILED),
]


def test_metrics_computed_by_hand() -> None:
    assert of_episodes(EPISODES) == {
        "episodes/count": 3,
        "episodes/failed": 1,
        "episodes/truncated": 1,
        "arena/solve_rate": 0.75,
        "arena/hard/solve_rate": 0.5,
        "arena/easy/solve_rate": 1.0,
        "role/solver/reward": pytest.approx(0.5 / 3),
        "role/solver/reward/hard": 0.25,
        "role/solver/reward/easy": 0.0,
        "role/solver/valid": 0.75,
        "role/solver/cut_off": 0.0,
        "role/solver/completion_tokens": 1.5,
        "role/solver/prompt_tokens": 2.0,
        "role/solver/surprisal": 1.0,
        "role/solver/depth": 3.0,
        "role/solver/verdict/correct": 0.5,
        "role/solver/verdict/wrong": 0.25,
        "role/solver/invalid/no answer": 0.25,
    }


def test_surprisal_is_the_mean_over_sampled_tokens_of_a_role() -> None:
    """Tokens with loss mask 0, frozen turns and opponents do not count."""
    long: dict[str, Any] = {
        "completion_ids": (1, 2, 3),
        "logprobs": (-1.0, -9.0, -2.0),
        "loss_mask": (1, 0, 1),
    }
    turns = (
        turn("a_0", **long),
        turn("a_1", logprobs=(-6.0,)),
        turn("a_0", logprobs=(-50.0,), trainable=False),
        turn("a_2", logprobs=(-70.0,)),
        turn("b_0", logprobs=(-0.5,), trainable=False),
    )
    metrics = of_episodes([episode(*turns, policy_map={"a_2": "old"})])
    assert metrics["role/a/surprisal"] == (1.0 + 2.0 + 6.0) / 3
    assert "role/b/surprisal" not in metrics


def test_rewards_before_shaping_are_summed_like_the_rewards() -> None:
    def shaped(agent: str, before: float, after: float) -> Turn:
        return turn(agent, after, info={"unshaped_reward": before})

    turns = (
        *[shaped("a_0", 0.0, -0.1) for _ in range(4)],  # tool calls
        shaped("a_0", 1.0, 1.0),
        shaped("a_1", 0.0, 0.0),
        turn("b_0", 3.0),
    )
    metrics = of_episodes([episode(*turns)])
    assert metrics["role/a/unshaped_reward"] == pytest.approx(0.5)
    assert metrics["role/a/reward"] == pytest.approx((1.0 - 0.4) / 2)
    assert "role/b/unshaped_reward" not in metrics


def test_the_pay_of_an_agent_without_a_turn_counts() -> None:
    """An illegal first move ends a game before the other player is asked."""
    played = [
        episode(turn("player_0", -2.0), other_pay={"player_1": ((0, 2.0),)}),
        episode(turn("player_0", 1.0), turn("player_1", -1.0)),
        episode(turn("player_0", 5.0), other_pay={"player_1": ()}),
    ]
    assert of_episodes(played)["role/player/reward"] == 5 / 5


def test_an_opponent_has_no_reward_of_its_role() -> None:
    """The agent without a turn is an opponent in the second game only."""
    other_pay = {"player_1": ((0, 2.0),)}
    played = [
        episode(turn("player_0", -2.0), other_pay=other_pay, policy_map={"player_0": "old"}),
        episode(turn("player_0", -4.0), other_pay=other_pay, policy_map={"player_1": "old"}),
    ]
    metrics = of_episodes(played)
    assert metrics["role/player/reward"] == -1.0
    assert metrics["versus/old/player/reward"] == -1.0
    assert metrics["versus/old/episodes"] == 2.0
    unasked = episode(
        turn("player_0", 0.0), other_pay={"player_1": ()}, policy_map={"player_0": "old"}
    )
    assert of_episodes([*played, unasked])["versus/old/episodes"] == 3.0


def test_without_episodes_only_the_counts_are_there() -> None:
    counts = {"episodes/count": 0, "episodes/failed": 0, "episodes/truncated": 0}
    assert of_episodes([]) == counts


def test_a_note_named_like_a_metric_does_not_replace_it() -> None:
    noted = turn("solver_0", 1.0, info={"valid": 0, "reward": 7.0, "verdict": "correct"})
    metrics = of_episodes([episode(noted)])
    assert metrics["role/solver/valid"] == 1 and metrics["role/solver/reward"] == 1
    assert metrics["role/solver/verdict/correct"] == 1


def test_an_outcome_that_was_seen_once_is_0_at_later_steps() -> None:
    outcomes = Outcomes()
    first = {"role/a/valid": 0.5, "role/a/invalid/empty": 0.5, "service/executor/timeout": 2.0}
    assert outcomes.complete(first) == first
    later = outcomes.complete({"role/a/valid": 1.0, "role/a/verdict/right": 1.0})
    assert later == {
        "role/a/valid": 1.0,
        "role/a/verdict/right": 1.0,
        "role/a/invalid/empty": 0.0,
        "service/executor/timeout": 0.0,
    }
    assert outcomes.complete({"role/a/valid": 1.0})["role/a/verdict/right"] == 0.0


def test_counts_of_a_remote_engine_that_were_seen_once_are_0_at_later_steps() -> None:
    counted = ("requests", "retries", "malformed", "refused", "prompt_tokens", "dollars")
    outcomes = Outcomes()
    outcomes.complete({f"engine/judge/{name}": 1.0 for name in counted})
    assert outcomes.complete({}) == {f"engine/judge/{name}": 0.0 for name in counted}


def test_a_role_that_took_no_turn_has_no_fractions() -> None:
    outcomes = Outcomes()
    outcomes.complete({"role/a/valid": 0.5, "role/a/verdict/right": 0.5, "episodes/failed/X": 1.0})
    assert outcomes.complete({"episodes/count": 0.0}) == {
        "episodes/count": 0.0,
        "episodes/failed/X": 0.0,
    }


def test_only_families_of_outcomes_are_completed() -> None:
    outcomes = Outcomes()
    outcomes.complete({"arena/deduction/solve_rate": 0.5, "versus/old@3/episodes": 2.0, "a": 1.0})
    assert outcomes.complete({"role/a/valid": 1.0}) == {"role/a/valid": 1.0}


def test_outcomes_go_on_after_a_checkpoint_as_if_never_stopped() -> None:
    before, after = Outcomes(), Outcomes()
    before.complete({"role/a/valid": 0.5, "role/a/verdict/right": 0.5})
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    row = {"role/a/valid": 1.0}
    assert after.complete(row) == before.complete(row)


def test_verdicts_of_a_role_add_up_to_one_at_every_step() -> None:
    outcomes = Outcomes()
    for verdict in ("right", "wrong", "late", "right"):
        played = [episode(turn("a_0", 0.0, info={"verdict": verdict}))]
        metrics = outcomes.complete(of_episodes(played))
        shown = [v for k, v in metrics.items() if k.startswith("role/a/verdict/")]
        assert sum(shown) == 1.0
