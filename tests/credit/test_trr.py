"""Tests of TRR++, which has a baseline per task type and role."""

import numpy as np
import pytest

from selfplay.credit.trr import TRR
from selfplay.types import Group, Status, Task
from tests.helpers.builders import advantages, episode, group, single_turn_group, turn
from tests.helpers.enumerated_game import MIXED, cosine

TYPES = ("deduction", "abduction", "induction")


def batch() -> list[Group]:
    """Return two proposals of each type, each with two solvers; rewards differ by type and role."""
    groups = []
    for kind_number, kind in enumerate(TYPES):
        for number in (0, 1):
            base = 10 * kind_number + number
            turns = [turn("proposer_0", base), turn("solver_0", -base), turn("solver_1", 2 * base)]
            made = episode(*turns, task=Task(id=f"{kind}{number}", type=kind))
            groups.append(group(made, name=f"{kind}{number}"))
    return groups


def test_six_baselines() -> None:
    groups = batch()
    samples = TRR().assign(groups)
    kinds = [kind for kind in TYPES for _ in range(6)]
    pairs_of: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for kind, sample in zip(kinds, samples, strict=True):
        (advantage,) = advantages([sample])
        pairs_of.setdefault((kind, sample.turn.role), []).append((sample.turn.reward, advantage))
    assert len(pairs_of) == 6
    for pairs in pairs_of.values():
        rewards, found = np.array(pairs).T
        wanted = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        assert found == pytest.approx(wanted, abs=1e-12)


def test_proposers_without_siblings_are_compared_over_the_batch() -> None:
    proposals = [sample for sample in TRR().assign(batch()) if sample.turn.role != "solver"]
    assert advantages(proposals) == pytest.approx([-0.7071, 0.7071] * 3, abs=1e-4)


def test_failed_episodes_and_empty_groups_are_ignored() -> None:
    failed = episode(turn("solver_0", 1000), status=Status.FAILED)
    plain = single_turn_group(1, 0)
    found = TRR().assign([*plain, group(failed, name="x"), group(name="y")])
    assert advantages(found) == advantages(TRR().assign(plain))


def test_the_expectation_points_away_from_the_policy_gradient() -> None:
    """Check that division by the batch's standard deviation biases the direction, as in GRPO."""
    logits = MIXED.table(seed=1)
    found = MIXED.expected(TRR(), logits, size=2)
    assert cosine(found, MIXED.exact(logits)) < 0.99
