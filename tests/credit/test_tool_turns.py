"""Tests of the credit of tool calls, by hand, for one move with and one without calls."""

import pytest

from selfplay.credit.arpo import ARPO
from selfplay.credit.at_grpo import ATGRPO
from selfplay.credit.attempts import decisive
from selfplay.credit.base import move_numbers
from selfplay.credit.counterfactual import Counterfactual
from selfplay.credit.dr_grpo import DrGRPO
from selfplay.credit.gigpo import GiGPO
from selfplay.credit.magrpo import MAGRPO
from selfplay.credit.mt_grpo import MTGRPO
from selfplay.credit.preference_pairs import PreferencePairs
from selfplay.credit.rae import RAE
from selfplay.credit.replay import actions_of
from selfplay.credit.rloo import RLOO
from selfplay.credit.team_return import team_return_to_go
from selfplay.credit.trr import TRR
from selfplay.types import Episode, Group, ToolCall, Turn
from tests.helpers.builders import advantages, episode, group, turn


def call(agent: str, *prompt: int, stage: int = 0, reward: float = 0.0) -> Turn:
    made = ToolCall(name="calculator", result="4")
    return turn(
        agent,
        reward,
        prompt_ids=prompt,
        stage=stage,
        action=None,
        final=False,
        tool_calls=(made,),
    )


def move(agent: str, reward: float, *prompt: int, stage: int = 0) -> Turn:
    return turn(agent, reward, prompt_ids=prompt, stage=stage)


def mixed() -> list[Group]:
    """Return a group of two: one calls twice and earns 1, the other answers at once and earns 0."""
    return [
        group(
            episode(call("s_0", 1), call("s_0", 1, 2), move("s_0", 1.0, 1, 2, 3)),
            episode(move("s_0", 0.0, 1)),
        )
    ]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (DrGRPO(), [0.5, 0.5, 0.5, -0.5]),
        (RLOO(), [1, 1, 1, -1]),
        (ARPO(std=False), [0.5, 0.5, 0.5, -0.5]),
        (TRR(epsilon=0.0), [0.5**0.5] * 3 + [-(0.5**0.5)]),
        # The average is 0 before the first episode and 0.05 * 1 before the second.
        (RAE(), [1, 1, 1, -0.05]),
        # Each episode has one move, and each call has the value of its move.
        (MAGRPO(), [0.5, 0.5, 0.5, -0.5]),
        # The first completions have one prompt; no sibling has the prompts after the calls.
        (ATGRPO(std=False), [0.5, 0, 0, -0.5]),
        # No call is paid, so the outcome alone counts.
        (MTGRPO(std=False), [0.5, 0.5, 0.5, -0.5]),
        # Episodes and steps of one prompt are compared: 0.81 for the first call, 0 for the answer.
        (GiGPO(discount=0.9), [0.5 + 0.405, 0.5, 0.5, -0.5 - 0.405]),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_call_has_the_credit_that_its_method_gives(method: object, expected: list[float]) -> None:
    found = advantages(method.assign(mixed()))  # type: ignore[attr-defined]
    assert found == pytest.approx(expected, abs=1e-12)


def test_a_paid_call_is_a_turn_for_mt_grpo() -> None:
    groups = [
        group(
            episode(call("s_0", 1, reward=0.5), move("s_0", 1.0, 1, 2)),
            episode(call("s_0", 1), move("s_0", 1.0, 1, 2)),
        )
    ]
    found = advantages(MTGRPO(std=False).assign(groups))
    assert found == pytest.approx([0.25, 0, -0.25, 0], abs=1e-12)


def rounds() -> Episode:
    """Return two stages of two agents; a_0 calls once in the first, b_0 twice in the second."""
    return episode(
        call("a_0", 1),
        move("a_0", 1.0, 1),
        move("b_0", 2.0, 1),
        move("a_0", 3.0, 1, stage=1),
        call("b_0", 1, stage=1),
        call("b_0", 1, stage=1),
        move("b_0", 4.0, 1, stage=1),
    )


def test_moves_are_counted_without_calls() -> None:
    assert move_numbers(rounds()) == [0, 0, 0, 1, 1, 1, 1]
    assert {agent: len(acts) for agent, acts in actions_of(rounds()).items()} == {
        "a_0": 2,
        "b_0": 2,
    }
    assert [turn.reward for turn in rounds().moves()] == [1, 2, 3, 4]


def test_the_teams_return_counts_stages() -> None:
    # The stages pay (1 + 2) / 2 and (3 + 4) / 2: 5 from the first stage on, 3.5 from the second.
    assert team_return_to_go(rounds()) == [5, 5, 5, 3.5, 3.5, 3.5, 3.5]
    assert team_return_to_go(rounds(), discount=0.5)[0] == 1.5 + 0.5 * 3.5


def test_magrpo_compares_second_moves_with_each_other() -> None:
    other = episode(
        move("a_0", 0.0, 1),
        move("b_0", 0.0, 1),
        move("a_0", 0.0, 1, stage=1),
        move("b_0", 0.0, 1, stage=1),
    )
    found = advantages(MAGRPO().assign([group(rounds(), other)]))
    assert found == pytest.approx([2.5, 2.5, 2.5, 1.75, 1.75, 1.75, 1.75, -2.5, -2.5, -1.75, -1.75])


class Once:
    """An arena of one stage that pays s_0 1 for the action "move"."""

    finished = False
    stage = ("s_0",)
    plays = 0

    def __init__(self) -> None:
        self.paid = {"s_0": 0.0}

    def begin(self, task: object, seed: int) -> None:
        Once.plays += 1

    def play_stage(self, actions: dict[str, str | None]) -> dict[str, float]:
        self.finished, self.paid = True, {"s_0": float(actions["s_0"] == "move")}
        return self.paid


def test_counterfactual_replays_a_move_once_for_all_its_calls() -> None:
    Once.plays = 0
    found = Counterfactual(arena=Once).assign([mixed()[0]])  # type: ignore[arg-type]
    assert advantages(found) == [1, 1, 1, 1]
    assert Once.plays == 4  # two episodes as recorded, two without their move


def test_pairs_compare_first_completions() -> None:
    found = PreferencePairs().assign(mixed())
    assert [(s.turn.final, s.advantage) for s in found] == [(False, 1.0), (True, -1.0)]


def test_the_calls_of_decisive_moves_are_kept() -> None:
    noted = {"attempt": 1, "place": 0}
    played = [call("s_0", 1), turn("s_0", stage=0, info=noted)]
    assert [t.final for t in decisive(episode(*played))] == [False, True]
