"""Tests of trees: the candidates that are continued, and the number of episodes."""

from collections import Counter
from collections.abc import Sequence

import pytest

from selfplay.credit.at_grpo import ATGRPO
from selfplay.rollout.rollout import EpisodeSpec
from selfplay.sampler.tree import Tree, movers_return
from selfplay.types import Episode, Group
from tests.helpers.builders import episode, turn
from tests.helpers.walks import Listed, forks, sampled


def total(episode: Episode) -> float:
    return sum(turn.reward for turn in episode.turns)


def test_all_candidates_continued_make_a_full_tree() -> None:
    sampler = Tree(candidates=3, depth=3, go_on="all")
    for group in sampled(sampler):
        assert len(group.episodes) == 27
        assert forks(group)[:3] == [(None, 0)] * 3
        assert Counter(forks(group)[3:9]) == {(parent, 1): 2 for parent in range(3)}
        assert Counter(forks(group)[9:]) == {(parent, 2): 2 for parent in range(9)}
        for each in group.episodes[3:]:
            assert each.branch_of is not None
            parent = group.episodes[each.branch_of]
            assert each.turns[: each.shared_turns] == parent.turns[: each.shared_turns]
    assert sampler.metrics()["leaves"] == 27 and sampler.metrics()["branches"] == 48


def continued(group: Group, *, candidates: int) -> list[tuple[list[int], int]]:
    """Return the candidates of each stage and the one that was continued."""
    front, size = list(range(candidates)), candidates
    found: list[tuple[list[int], int]] = []
    while size < len(group.episodes):
        new = list(range(size, size + candidates - 1))
        (parent,) = {group.episodes[index].branch_of for index in new}
        assert parent is not None and parent in front
        found.append((front, parent))
        front, size = [parent, *new], size + candidates - 1
    return found


def test_the_best_candidate_is_continued() -> None:
    for seed in range(5):
        for group in sampled(Tree(candidates=4, depth=3, go_on="best"), seed=seed):
            assert len(group.episodes) == 4 + 2 * 3
            for front, parent in continued(group, candidates=4):
                paid = [total(group.episodes[index]) for index in front]
                assert parent == front[paid.index(max(paid))]


def test_a_candidate_is_judged_by_the_agents_that_moved_in_it() -> None:
    """Check that pay of the agents that move next does not count, although it is higher."""
    parents: list[int | None] = []

    def play(specs: Sequence[EpisodeSpec]) -> list[Episode]:
        parents.extend(spec.branch_of for spec in specs)
        pays = [{0: (1.0, 0.0), 1: (0.0, 5.0)}.get(spec.member, (0.0, 0.0)) for spec in specs]
        return [episode(turn("a_0", a, stage=0), turn("b_0", b, stage=1)) for a, b in pays]

    Tree(candidates=2, depth=2, go_on="best").sample(Listed(), play, step=1, seed=0)
    assert parents == [None] * 4 + [0, 0]


def test_the_return_of_several_movers_is_their_mean() -> None:
    turns = [turn("a_0", 1.0, stage=0), turn("b_0", 2.0, stage=0), turn("c_0", 9.0, stage=1)]
    assert movers_return(episode(*turns), 0) == 1.5


def test_a_random_candidate_is_continued() -> None:
    places: Counter[int] = Counter()
    for seed in range(40):
        for group in sampled(Tree(candidates=2, depth=3, go_on="random"), seed=seed):
            assert len(group.episodes) == 4
            for front, parent in continued(group, candidates=2):
                places[front.index(parent)] += 1
    # In 160 choices each is expected 80 times, standard deviation sqrt(160 / 4) = 6.3.
    assert set(places) == {0, 1} and abs(places[0] - 80) < 5 * 6.3


def test_a_candidate_that_ended_is_not_continued() -> None:
    groups = sampled(Tree(candidates=4, depth=4), words=["a", "stop"], seed=1)
    for group in groups:
        for each in group.episodes:
            if each.branch_of is not None:
                assert group.episodes[each.branch_of].turns[each.shared_turns - 1].text != "stop"
    ended = sampled(Tree(candidates=3, depth=3, go_on="best"), words=["stop"])
    assert [forks(group) for group in ended] == [[(None, 0)] * 3] * 2


def test_a_broken_candidate_is_not_continued() -> None:
    groups = sampled(Tree(candidates=6, depth=2), words=["a", "bb", "break"], seed=2)
    parents = [(g, e.branch_of) for g in groups for e in g.episodes if e.branch_of is not None]
    assert parents and all(not group.episodes[parent].error for group, parent in parents)


def test_every_node_has_the_same_number_of_candidates() -> None:
    groups = sampled(Tree(candidates=3, depth=4), steps=4)
    samples = ATGRPO().assign(groups)
    stages = Counter(sample.turn.stage for sample in samples)
    assert stages == {0: 2 * 3, 1: 2 * 9, 2: 2 * 27, 3: 2 * 81}


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="go_on is one of all, best, random, not 'worst'"):
        Tree(go_on="worst")  # type: ignore[arg-type]
    for settings in ({"candidates": 1}, {"depth": 0}):
        with pytest.raises(ValueError, match="candidates must be at least 2, and depth at least 1"):
            Tree(**settings)  # type: ignore[arg-type]
