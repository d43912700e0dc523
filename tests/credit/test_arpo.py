"""Tests of ARPO: a turn that branches share is one sample with their mean advantage."""

import pytest

from selfplay.credit.arpo import ARPO
from selfplay.credit.base import learnable_turns, own_return
from selfplay.credit.grpo import GRPO
from selfplay.credit.tree import candidates, path, places
from selfplay.types import Episode, Status
from tests.helpers.builders import advantages, episode, group, turn
from tests.helpers.enumerated_arena import branched


def line(last: float, *, turns: int = 3, agent: str = "a_0") -> Episode:
    return episode(
        *(turn(agent, stage=n) for n in range(turns - 1)), turn(agent, last, stage=turns - 1)
    )


GROUP = group(
    line(6.0),
    line(0.0),
    branched(line(2.0), 0, stem=2),
    branched(line(4.0), 2, stem=1),
)
"""A group with the returns 6, 0, 2, 4. Episodes 0, 2 and 3 share a first turn, 0 and 2 a second."""


def test_by_hand() -> None:
    samples = ARPO(std=False).assign([GROUP])
    assert [(s.episode, s.turn.stage) for s in samples] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 2),
        (3, 1),
        (3, 2),
    ]
    # The episodes have the advantages 3, -3, -1, 1. The first shared turn has (3 - 1 + 1) / 3 = 1,
    # the second (3 - 1) / 2 = 1.
    assert advantages(samples) == [1, 1, 3, -3, -3, -3, -1, 1, 1]
    scaled = advantages(ARPO().assign([GROUP]))
    spread = 2.581988897
    assert scaled == pytest.approx([a / spread for a in advantages(samples)], abs=1e-5)


def test_a_branch_of_a_branch_shares_what_its_parent_shared() -> None:
    assert [path(GROUP, index) for index in range(4)] == [
        (0, 0, 0),
        (1, 1, 1),
        (0, 0, 2),
        (0, 3, 3),
    ]
    found = places(learnable_turns([GROUP], own_return))
    assert found[0] == found[6] == found[9] != found[3]
    assert found[1] == found[7] != found[10]
    assert len(set(found)) == 9
    nodes = {(each.episode, each.number): each.node for each in candidates([GROUP], own_return)}
    assert nodes[0, 0] == nodes[1, 0] == () and nodes[0, 1] == nodes[3, 1] == (0, 0)
    assert nodes[0, 2] == nodes[2, 2] == (0, 1) != nodes[1, 2] == (1, 1)


def test_turns_shared_by_the_whole_group_have_advantage_0() -> None:
    found = ARPO(std=False).assign([group(line(1.0), branched(line(0.0), 0, stem=2))])
    assert advantages(found) == [0, 0, 0.5, -0.5]


def test_without_branches_it_is_grpo() -> None:
    independent = group(line(1.0), line(0.0), line(5.0, turns=2))
    assert ARPO().assign([independent]) == GRPO().assign([independent])
    assert [each.node for each in candidates([independent], own_return)] == [()] * 8


def test_a_shared_turn_is_still_used_if_its_own_episode_failed() -> None:
    failed = episode(*GROUP.episodes[0].turns, status=Status.FAILED)
    samples = ARPO(std=False).assign([group(failed, *GROUP.episodes[1:])])
    # The returns 0, 2, 4 have the advantages -2, 0, 2. The last two episodes share the first turn.
    assert [(s.episode, s.advantage) for s in samples] == [
        *[(1, -2), (1, -2), (1, -2)],
        *[(2, 1), (2, 0), (2, 0)],
        *[(3, 2), (3, 2)],
    ]


def test_agents_of_one_stage_branch_together() -> None:
    def both(left: float, right: float) -> Episode:
        turns = [turn(name, stage=n) for n in range(2) for name in ("a_0", "b_0")]
        return episode(*turns[:2], turn("a_0", left, stage=1), turn("b_0", right, stage=1))

    one = group(both(1, 0), both(0, 0), branched(both(2, 3), 0, stem=2))
    samples = ARPO(std=False, group_by="agent").assign([one])
    assert [(s.episode, s.turn.agent) for s in samples[-2:]] == [(2, "a_0"), (2, "b_0")]
    # a_0 has the returns 1, 0, 2 and the advantages 0, -1, 1; b_0 has 0, 0, 3 and -1, -1, 2.
    assert advantages(samples) == [0.5, 0.5, 0, -1, -1, -1, -1, -1, 1, 2]
    nodes = [each.node for each in candidates([one], own_return)]
    assert nodes == [(), (), (0, 1), (0, 1), (), (), (1, 1), (1, 1), (0, 1), (0, 1)]


def test_long_stems_do_not_reach_the_recursion_limit() -> None:
    long = group(line(1.0, turns=3000), branched(line(0.0, turns=3000), 0, stem=2900))
    assert len(ARPO().assign([long])) == 3100
    assert candidates([long], own_return)[0].value == 0.5
