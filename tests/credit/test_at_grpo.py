"""Tests of AT-GRPO: candidates of one agent, turn and prompt, by hand and by enumeration."""

import numpy as np
import pytest

from selfplay.credit.at_grpo import ATGRPO
from selfplay.types import Episode, Status
from tests.helpers.builders import advantages, episode, group, turn
from tests.helpers.enumerated_arena import branched, gradient, trees
from tests.helpers.enumerated_game import TWO_ROUNDS


def line(prompt: int, first: float, second: float, *, name: str = "a_0") -> Episode:
    """Return an episode with two turns of one agent and the given second prompt."""
    return episode(
        turn(name, first, stage=0, prompt_ids=(0,)),
        turn(name, second, stage=1, prompt_ids=(prompt,)),
    )


TREE = group(
    line(1, 1.0, 2.0),
    line(2, 0.0, 8.0),
    branched(line(1, 1.0, 6.0), 0, stem=1),
    branched(line(2, 0.0, 4.0), 1, stem=1),
)
"""A tree of two candidates: the first is worth 1 + (2 + 6) / 2 = 5, the second (8 + 4) / 2 = 6."""


def test_a_candidate_is_one_sample_worth_the_mean_of_its_children() -> None:
    samples = ATGRPO(std=False).assign([TREE])
    assert [(s.episode, s.turn.stage) for s in samples] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (2, 1),
        (3, 1),
    ]
    assert advantages(samples) == [-0.5, -2.0, 0.5, 2.0, 2.0, -2.0]
    scaled = advantages(ATGRPO().assign([TREE]))
    assert scaled == pytest.approx([-0.70711, -0.70711, 0.70711, 0.70711, 0.70711, -0.70711], 1e-4)


def test_children_count_alike_however_many_episodes_go_through_them() -> None:
    # The first child has two children of its own (worth 0 and 4), the second none (worth 8).
    def deep(last: float) -> Episode:
        turns = [turn("a_0", 0.0, stage=n, prompt_ids=(n,)) for n in range(2)]
        return episode(*turns, turn("a_0", last, stage=2, prompt_ids=(2,)))

    one = group(
        deep(0.0), branched(deep(8.0), 0, stem=1), branched(deep(4.0), 0, stem=2), deep(0.0)
    )
    found = ATGRPO(std=False).assign([one])
    # The roots are worth (2 + 8) / 2 = 5 and 0, the second stage 2, 8 and 0, the third 0, 8, 4, 0.
    by_stage = [[s.advantage for s in found if s.turn.stage == n] for n in range(3)]
    assert by_stage == [
        [2.5, -2.5],
        pytest.approx([2 - 10 / 3, 8 - 10 / 3, -10 / 3]),
        [-3, 5, 1, -3],
    ]


def test_other_prompts_agents_and_turns_are_not_compared() -> None:
    alone = group(line(1, 0.0, 5.0), line(2, 1.0, 0.0), line(1, 4.0, 4.0, name="b_0"))
    assert advantages(ATGRPO(std=False).assign([alone])) == [2.0, 0.0, -2.0, 0.0, 0.0, 0.0]


def test_turns_of_different_stages_are_not_compared_under_one_prompt() -> None:
    siblings = group(line(0, 1.0, 0.0), line(0, 0.0, 0.0))
    assert advantages(ATGRPO(std=False).assign([siblings])) == [0.5, 0.0, -0.5, 0.0]


def test_team_returns_may_be_compared() -> None:
    def both(left: float, right: float) -> Episode:
        return episode(turn("a_0", left, stage=0), turn("b_0", right, stage=0))

    one = group(both(1.0, 3.0), both(0.0, 0.0))
    assert advantages(ATGRPO(returns="team", std=False).assign([one])) == [1, 1, -1, -1]
    assert advantages(ATGRPO(std=False).assign([one])) == [0.5, 1.5, -0.5, -1.5]


def test_a_failed_branch_is_ignored() -> None:
    failed = branched(episode(*TREE.episodes[2].turns, status=Status.FAILED), 0, stem=1)
    one = group(*TREE.episodes[:2], failed, TREE.episodes[3])
    # The first candidate is now worth 1 + 2 = 3, and its child has no sibling.
    assert advantages(ATGRPO(std=False).assign([one])) == [-1.5, 0.0, 1.5, 2.0, -2.0]


def test_over_all_trees_each_state_has_a_multiple_of_the_policy_gradient() -> None:
    game, credit = TWO_ROUNDS, ATGRPO(std=False)
    logits = game.table(seed=3)
    found, total = np.zeros(tuple(logits.shape)), 0.0
    for weight, tree in trees(game, logits):
        found += weight * gradient(game, logits, credit, tree)
        total += weight
    assert total == pytest.approx(1.0, abs=1e-12)
    exact, chances = game.exact(logits), logits.softmax(-1).numpy()
    assert found[:, -1] == pytest.approx(exact[:, -1] / 2, abs=1e-12)
    # The other root candidate leads to the same state with probability p. Then four turns are
    # compared there.
    for a in range(2):
        for b in range(2):
            p, state = chances[0, -1, a] * chances[1, -1, b], 2 * a + b
            expected = exact[:, state] * ((1 - p) / 2 + p * 3 / 4)
            assert found[:, state] == pytest.approx(expected, abs=1e-12)


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="returns is one of own, team, not 'mine'"):
        ATGRPO(returns="mine")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="discount"):
        ATGRPO(discount=2.0)
