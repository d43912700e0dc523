"""Tests of preference pairs: the turns that are compared with each other."""

from dataclasses import replace
from typing import Any

import pytest

from selfplay.credit.preference_pairs import PreferencePairs
from selfplay.types import Episode, Turn
from tests.helpers.builders import advantages, episode, group, single_turn_group, turn


def test_the_best_and_the_worst_of_a_group_make_a_pair() -> None:
    samples = PreferencePairs().assign(single_turn_group(0.2, 1.0, 0.5, -1.0))
    assert [sample.turn.reward for sample in samples] == [1.0, -1.0]
    assert advantages(samples) == [1.0, -1.0]
    assert len({sample.pair for sample in samples}) == 1 and samples[0].pair


def test_all_pairs_that_differ_by_more_than_the_margin() -> None:
    samples = PreferencePairs(pairs="all", margin=0.4).assign(single_turn_group(0.2, 1.0, 0.5))
    rewards = [sample.turn.reward for sample in samples]
    assert list(zip(rewards[::2], rewards[1::2], strict=True)) == [(1.0, 0.5), (1.0, 0.2)]
    assert len({sample.pair for sample in samples}) == 2


def test_a_pair_has_one_turn_above_the_threshold_and_one_that_is_not() -> None:
    groups = single_turn_group(0.2, 1.0, 0.5, 0.7)
    samples = PreferencePairs(pairs="all", threshold=0.5).assign(groups)
    rewards = [sample.turn.reward for sample in samples]
    pairs = list(zip(rewards[::2], rewards[1::2], strict=True))
    assert pairs == [(1.0, 0.5), (1.0, 0.2), (0.7, 0.5), (0.7, 0.2)]
    best = PreferencePairs(threshold=0.5).assign(groups)
    assert [sample.turn.reward for sample in best] == [1.0, 0.2]
    assert not PreferencePairs(threshold=0.5).assign(single_turn_group(0.6, 0.9))
    assert not PreferencePairs(threshold=0.5).assign(single_turn_group(0.5, 0.1))


def test_only_the_same_agent_at_the_same_prompt_is_compared() -> None:
    first = episode(turn("solver_0", 0.0), turn("solver_0", 1.0, prompt_ids=(1, 2, 3)))
    second = episode(turn("solver_0", 0.0), turn("solver_0", 0.0, prompt_ids=(1, 2, 4)))
    samples = PreferencePairs().assign([group(first, second)])
    assert [sample.turn.prompt_ids for sample in samples] == [(1, 2), (1, 2)]
    other = episode(turn("solver_1", 5.0))
    assert not PreferencePairs().assign([group(episode(turn("solver_0", 0.0)), other)])


@pytest.mark.parametrize("rewards", [(), (1.0,), (0.5, 0.5, 0.5)])
def test_single_and_equal_returns_make_no_pair(rewards: tuple[float, ...]) -> None:
    for pairs in ("best_worst", "all"):
        assert not PreferencePairs(pairs=pairs).assign(single_turn_group(*rewards))


@pytest.mark.parametrize("pairs", ["best_worst", "all"])
def test_returns_that_differ_by_rounding_make_no_pair(pairs: Any) -> None:
    assert not PreferencePairs(pairs=pairs).assign(single_turn_group(0.1 + 0.2, 0.3))
    assert not PreferencePairs(pairs=pairs).assign(single_turn_group(0.1 + 0.2 - 0.3, 0.0))
    assert not PreferencePairs(pairs=pairs, margin=0.5).assign(single_turn_group(0.8, 0.3))
    # The difference of these floats is larger than 0.5.
    assert not PreferencePairs(pairs=pairs, margin=0.5).assign(single_turn_group(1.1, 0.6))
    assert len(PreferencePairs(pairs=pairs).assign(single_turn_group(1e-6, 0.0))) == 2


def test_a_negative_margin_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        PreferencePairs(margin=-1.0)


def test_a_shared_turn_is_one_candidate_with_the_mean_of_its_branches() -> None:
    stem, other = turn("a_0", prompt_ids=(7,)), turn("a_0", prompt_ids=(7,))

    def leaf(first: Turn, reward: float, **fields: Any) -> Episode:
        return episode(replace(first, reward=reward, stage=0), turn("b_0", stage=1), **fields)

    leaves = [
        leaf(stem, 1.0),
        leaf(other, 0.4),
        leaf(stem, 0.0, branch_of=0, shared_turns=1),
        leaf(other, 1.0, branch_of=1, shared_turns=1),
    ]
    samples = PreferencePairs(pairs="all").assign([group(*leaves)])
    found = [(s.turn.agent, s.episode, s.advantage) for s in samples]
    # The second completion of a_0 has the mean 0.7, the first 0.5. They make one pair.
    assert found == [("a_0", 1, 1.0), ("a_0", 0, -1.0)]
