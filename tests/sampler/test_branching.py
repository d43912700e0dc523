"""Tests of branching: the forks, their number, and the rest of the group."""

from collections.abc import Sequence
from typing import Any

import pytest

from selfplay.credit.arpo import ARPO
from selfplay.errors import ConfigError
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.sampler.tree import Branch
from selfplay.types import Completion, Episode, Status, Task
from tests.helpers.walks import Listed, Walk, Words, forks, sampled


def test_a_group_has_its_size_and_branches_share_their_stems() -> None:
    sampler = Branch(group_size=8, initial=3)
    groups = sampled(sampler)
    assert [group.id for group in groups] == ["3.0.0", "3.0.1"]
    for group in groups:
        assert len(group.episodes) == 8
        assert forks(group)[:3] == [(None, 0)] * 3
        for episode in group.episodes[3:]:
            assert episode.branch_of is not None and 1 <= episode.shared_turns <= 3
            parent = group.episodes[episode.branch_of]
            assert episode.turns[: episode.shared_turns] == parent.turns[: episode.shared_turns]
        assert len(set(forks(group)[3:])) == 5  # all forks are different
        assert len({e.seed for e in group.episodes}) == 1
    assert sampler.played() == groups
    stems = [episode.shared_turns for group in groups for episode in group.episodes]
    assert sampler.metrics() == {"branches": 10.0, "shared_turns": sum(stems) / 64}


def test_branches_depend_on_the_seed() -> None:
    assert sampled(Branch()) == sampled(Branch())
    assert [forks(g) for g in sampled(Branch())] != [forks(g) for g in sampled(Branch(), seed=1)]


def test_uniform_forks_are_uniform() -> None:
    counts: dict[int, int] = {}
    for seed in range(60):
        for group in sampled(Branch(group_size=3, initial=1), seed=seed):
            for _, stem in forks(group)[1:]:
                counts[stem] = counts.get(stem, 0) + 1
    # In 240 draws, two of three at a time, each is expected 80 times, with the standard deviation
    # sqrt(120 * 2/9) = 5.2.
    assert sorted(counts) == [1, 2, 3] and all(abs(n - 80) < 5 * 5.2 for n in counts.values())


def test_surprisal_branches_before_the_most_surprising_stages() -> None:
    nats = {"0": 1.0, "1": 1.5, "2": 0.5, "3": 4.0}
    sampler = Branch(group_size=6, initial=1, where="surprisal")
    (first, _) = sampled(sampler, nats=nats)
    # The surprisal changes by .5, -.5 and 3 nats: there are two forks, and the other episodes start
    # from the beginning.
    assert forks(first) == [(None, 0), (0, 3), (0, 1), (None, 0), (None, 0), (None, 0)]
    assert len({episode.turns[0].text for episode in first.episodes[3:]}) > 1
    wide = Branch(group_size=6, initial=1, where="surprisal", width=2, threshold=1.0)
    assert forks(sampled(wide, nats=nats)[0])[1:] == [(0, 3), (0, 3), *[(None, 0)] * 3]


def test_only_the_first_tokens_are_read() -> None:
    class Late(Words):
        def step(self) -> list[Completion]:
            found = super().step()
            return [
                Completion(
                    id=done.id,
                    completion_ids=done.completion_ids,
                    logprobs=(0.0,) + (-9.0,) * (len(done.completion_ids) - 1),
                    stop_reason=done.stop_reason,
                    text=done.text,
                )
                for done in found
            ]

    agent_spec = AgentSpec(role=Role(), policy="p", renderer=ByteRenderer())
    rollout = Rollout(
        arena=Walk, agent_specs={"walker": agent_spec}, engines={"p": Late(["a", "bbbb"])}
    )
    one = Branch(group_size=4, initial=3, where="surprisal", tokens=1)
    groups = one.sample(Listed(), rollout.run, step=1, seed=0)
    assert one.metrics()["branches"] == 0 and len(groups[0].episodes) == 4
    more = Branch(group_size=4, initial=3, where="surprisal", tokens=2)
    more.sample(Listed(), rollout.run, step=1, seed=0)
    assert more.metrics()["branches"] == 2


def test_without_a_second_stage_all_start_from_the_beginning() -> None:
    sampler = Branch(group_size=5, initial=2)
    groups = sampled(sampler, steps=1)
    assert all(forks(group) == [(None, 0)] * 5 for group in groups)
    texts = [episode.turns[0].text for group in groups for episode in group.episodes]
    assert sampler.metrics() == {"branches": 0.0, "shared_turns": 0.0} and len(set(texts)) > 1


def test_a_broken_episode_is_not_branched_from() -> None:
    groups = sampled(Branch(group_size=6, initial=3), words=["a", "break"], seed=4)
    assert Status.FAILED in {e.status for group in groups for e in group.episodes[:3]}
    assert any(e.branch_of is not None for group in groups for e in group.episodes)
    for group in groups:
        for parent, _ in forks(group):
            assert parent is None or group.episodes[parent].error == ""


def test_a_tree_credit_learns_every_played_turn_once() -> None:
    groups = sampled(Branch(group_size=6, initial=2))
    samples = ARPO().assign(groups)
    played = [e.turns[e.shared_turns :] for group in groups for e in group.episodes]
    assert [sample.turn for sample in samples] == [turn for turns in played for turn in turns]


def test_invalid_settings_are_refused() -> None:
    refused: Sequence[tuple[dict[str, Any], str]] = (
        ({"where": "entropy"}, "where is one of uniform, surprisal, not 'entropy'"),
        ({"group_size": 4, "initial": 4}, "below group_size=4, not 4"),
        ({"initial": 0}, "at least 1"),
        ({"width": 0}, "width and tokens"),
        ({"tokens": 0}, "width and tokens"),
    )
    for settings, words in refused:
        with pytest.raises(ValueError, match=words):
            Branch(**settings)


def test_a_step_without_tasks_is_refused() -> None:
    class Idle(Listed):
        def tasks(self, step: int, attempt: int = 0) -> list[Task]:
            return []

    def play(specs: Sequence[EpisodeSpec]) -> list[Episode]:
        raise AssertionError("nothing can be played")

    with pytest.raises(ConfigError, match="it has no task for step 1"):
        Branch().sample(Idle(), play, step=1, seed=0)
