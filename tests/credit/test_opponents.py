"""Tests of credit with opponents: the turns of a frozen policy are not compared."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from selfplay.credit import Credit
from selfplay.credit.arpo import ARPO
from selfplay.credit.at_grpo import ATGRPO
from selfplay.credit.counterfactual import Counterfactual
from selfplay.credit.gae import GAE
from selfplay.credit.grpo import GRPO
from selfplay.credit.rae import RAE
from selfplay.credit.reinforce_pp import ReinforcePlusPlus
from selfplay.credit.rloo import RLOO
from selfplay.credit.shaping import Overlong, Shaping
from selfplay.credit.signal import returns_differ
from selfplay.types import Group
from tests.helpers.builders import advantages, episode, group, turn
from tests.helpers.guessing_game import Guess, rollout, spec

# player_0 is the policy `base` and learns; player_1 is the frozen policy `old`.


def match(own: float, other: float, *, policy: str = "old", learn: bool = False) -> Any:
    return episode(
        turn("player_0", own),
        turn("player_1", other, policy=policy, trainable=learn),
        policy_map={"player_1": policy},
    )


GROUP = group(match(1.0, -1.0), match(0.0, 0.0), match(-1.0, 1.0), match(-1.0, 1.0))


@pytest.mark.parametrize(
    ("credit", "expected"),
    [
        # The returns 1, 0, -1, -1 of player_0 have the mean -0.25; leave-one-out is 4/3 as large.
        (RLOO(group_by="role"), [5 / 3, 1 / 3, -1, -1]),
        (RLOO(group_by="prompt"), [5 / 3, 1 / 3, -1, -1]),
        (ARPO(std=False), [1.25, 0.25, -0.75, -0.75]),
        (ATGRPO(std=False), [1.25, 0.25, -0.75, -0.75]),
        # The standard deviation is sqrt((1.5625 + 0.0625 + 2 * 0.5625) / 3) = 0.957427.
        (GRPO(group_by="role"), [1.305581, 0.261116, -0.783349, -0.783349]),
        # Divided by 4 instead of 3 it is 0.829156.
        (ReinforcePlusPlus(), [1.507555, 0.301511, -0.904533, -0.904533]),
        (RAE(decay=0.5), [1.0, -0.5, -1.25, -0.625]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_opponents_turns_are_not_compared(credit: Credit, expected: list[float]) -> None:
    samples = credit.assign([GROUP])
    assert [sample.turn.policy for sample in samples] == ["base"] * 4
    assert advantages(samples) == pytest.approx(expected, abs=1e-5)


def test_two_policies_of_one_role_are_compared_separately() -> None:
    """Check that base's returns 1, 0 and rival's returns -1, 4 are compared separately."""
    both = group(
        match(1.0, -1.0, policy="rival", learn=True), match(0.0, 4.0, policy="rival", learn=True)
    )
    found = {
        policy: [
            s.advantage for s in RLOO(group_by="role").assign([both]) if s.turn.policy == policy
        ]
        for policy in ("base", "rival")
    }
    assert found == {"base": [1.0, -1.0], "rival": [-5.0, 5.0]}
    averages = RAE(by="role", decay=0.5)
    averages.assign([both])
    assert averages.metrics() == {
        "baseline/game_v0/player/base": 0.25,
        "baseline/game_v0/player/rival": 1.75,
    }
    again = RAE(by="role", decay=0.5)
    again.load_state_dict(averages.state_dict())
    assert again.metrics() == averages.metrics()


def test_a_critic_does_not_see_the_prompts_of_an_opponent() -> None:
    """Check the states; an opponent's ids may be no token ids, such as the bytes of a script."""
    read: list[tuple[int, ...]] = []

    class Spy:
        def values(self, states: Sequence[tuple[int, ...]]) -> list[float]:
            read.extend(states)
            return [0.0] * len(states)

        def fit(
            self, states: Sequence[tuple[int, ...]], returns: Sequence[float]
        ) -> Mapping[str, float]:
            read.extend(states)
            assert list(returns) == [1.0, 2.0]
            return {}

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    script = turn("player_0", -3.0, policy="old", trainable=False, prompt_ids=(250,), stage=0)
    turns = [script, turn("player_1", 1.0, stage=1)]
    more = [script, turn("player_1", 2.0, stage=1)]
    credit = GAE(critic=Spy(), sees="all", whiten=False)
    assert advantages(credit.assign([group(episode(*turns), episode(*more))])) == [1.0, 2.0]
    assert set(read) == {(1, 2)}


def test_replays_keep_the_opponents_moves_and_credit_the_learner() -> None:
    """Check that in `Guess` the action `a` is worth 1 - -1 = 2 for any action of the opponent."""
    credit = Counterfactual(arena=Guess, default="b", returns="own")
    (played,) = rollout().run([spec(policy_map={"player_1": "old"})])
    samples = credit.assign([group(played)])
    assert [(s.turn.agent, s.advantage) for s in samples] == [("player_0", 2.0)] * 2
    assert credit.metrics()["replays"] == 3, "the record and two turns, none for the opponent"


def test_branches_after_an_opponents_move() -> None:
    """Check two candidates of the reply to an opponent's move.

    Their returns 1 and 3 are each compared with the mean of both.
    """
    first = turn("player_1", 0.0, policy="old", trainable=False, stage=0)
    parent = episode(first, turn("player_0", 1.0, stage=1), policy_map={"player_1": "old"})
    child = replace(
        episode(first, turn("player_0", 3.0, stage=1), policy_map={"player_1": "old"}),
        branch_of=0,
        shared_turns=1,
    )
    for credit in (ATGRPO(std=False), ARPO(std=False)):
        samples = credit.assign([group(parent, child)])
        assert [(s.turn.reward, s.advantage) for s in samples] == [(1.0, -1.0), (3.0, 1.0)]


def test_only_turns_of_learning_policies_have_signal_and_are_shaped() -> None:
    def matches(*own: float) -> Group:
        return group(*(match(reward, number) for number, reward in enumerate(own)))

    assert not returns_differ(matches(1.0, 1.0)), "only the frozen opponent's pay differs"
    assert returns_differ(matches(1.0, 0.0))
    (shaped,) = Shaping({"overlong": Overlong(limit=1, buffer=1)}).apply([matches(1.0)])
    own, other = shaped[0].episodes[0].turns
    assert "unshaped_reward" in own.info and "unshaped_reward" not in other.info
