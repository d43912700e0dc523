"""Tests of the samplers Independent and Dynamic: siblings, seeds, groups without signal."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from selfplay.config.instantiate import build
from selfplay.credit.dr_grpo import DrGRPO
from selfplay.credit.signal import returns_differ
from selfplay.credit.team import TeamGRPO
from selfplay.errors import ConfigError, NothingToLearn
from selfplay.rollout.rollout import EpisodeSpec
from selfplay.sampler.adaptive import Adaptive
from selfplay.sampler.dynamic import Dynamic
from selfplay.sampler.independent import Independent
from selfplay.types import Episode, Status, Task
from tests.helpers.builders import advantages, episode, group, turn
from tests.helpers.walks import Listed


def playing(
    reward: Callable[[EpisodeSpec], float], specs: list[EpisodeSpec]
) -> Callable[..., list[Episode]]:
    """Return a rollout function that pays by spec and records the specs."""

    def play(asked: Sequence[EpisodeSpec]) -> list[Episode]:
        specs.extend(asked)
        return [
            episode(turn("solver_0", reward(spec)), task=spec.task, seed=spec.seed)
            for spec in asked
        ]

    return play


@pytest.mark.parametrize("kind", [Independent, Dynamic, Adaptive])
def test_a_curriculum_without_tasks_is_an_error(kind: Any) -> None:
    class Empty(Listed):
        def tasks(self, step: int, attempt: int = 0) -> list[Task]:
            return []

    with pytest.raises(ConfigError, match="curriculum: it has no task for step 4"):
        kind(group_size=2).sample(Empty(), playing(lambda spec: 0.0, []), step=4, seed=9)


def test_siblings_share_task_and_seed_and_differ_in_member() -> None:
    specs: list[EpisodeSpec] = []
    curriculum, sampler = Listed(), Independent(group_size=3)
    groups = sampler.sample(curriculum, playing(lambda spec: spec.member, specs), step=4, seed=9)
    assert [one.id for one in groups] == ["4.0.0", "4.0.1"]
    assert [[spec.task.id, spec.member] for spec in specs] == [
        [f"4-0-{number}", member] for number in (0, 1) for member in (0, 1, 2)
    ]
    assert len({spec.seed for spec in specs[:3]}) == 1
    assert specs[0].seed != specs[3].seed
    assert [e.turns[0].reward for e in groups[1].episodes] == [0, 1, 2]
    assert curriculum.observed == [(4, ["4.0.0", "4.0.1"])]
    assert sampler.played() == groups


def test_seeds_depend_on_run_and_step_alone() -> None:
    drawn = []
    for step, seed in ((1, 0), (1, 0), (2, 0), (1, 1)):
        specs: list[EpisodeSpec] = []
        Independent().sample(Listed(), playing(lambda spec: 0, specs), step=step, seed=seed)
        drawn.append([spec.seed for spec in specs])
    assert drawn[0] == drawn[1]
    assert len({tuple(seeds) for seeds in drawn}) == 3


def test_groups_without_signal_are_dropped_and_refilled() -> None:
    specs: list[EpisodeSpec] = []

    def reward(spec: EpisodeSpec) -> float:  # siblings of the tasks with number 1 differ
        return float(spec.member) if spec.task.id.endswith("1") else 1.0

    curriculum, sampler = Listed(), Dynamic(group_size=2, rounds=5)
    groups = sampler.sample(curriculum, playing(reward, specs), step=3, seed=0)
    assert [one.id for one in groups] == ["3.0.1", "3.1.1"]
    assert curriculum.observed == [(3, ["3.0.0", "3.0.1"]), (3, ["3.1.0", "3.1.1"])]
    assert [one.id for one in sampler.played()] == ["3.0.0", "3.0.1", "3.1.0", "3.1.1"]
    assert sampler.metrics() == {"groups_played": 4, "groups_kept": 2, "rounds": 2}
    assert len({spec.seed for spec in specs}) == 4


def test_a_refill_with_the_same_task_is_another_game() -> None:
    class Same(Listed):
        def tasks(self, step: int, attempt: int = 0) -> list[Task]:
            return [Task(id="t")]

    specs: list[EpisodeSpec] = []
    with pytest.raises(NothingToLearn):
        Dynamic(group_size=2, rounds=2).sample(
            Same(), playing(lambda spec: 1.0, specs), step=1, seed=7
        )
    assert len(specs) == 4 and len({spec.seed for spec in specs}) == 2


def test_no_more_groups_than_the_step_has_tasks() -> None:
    def reward(spec: EpisodeSpec) -> float:
        return float(spec.member) if spec.task.id != "1-0-0" else 0.0

    groups = Dynamic(group_size=2).sample(Listed(), playing(reward, []), step=1, seed=0)
    assert [one.id for one in groups] == ["1.0.1", "1.1.0"]


def test_refills_are_bounded_and_the_step_uses_the_groups_it_has() -> None:
    def reward(spec: EpisodeSpec) -> float:
        return float(spec.member) if spec.task.id == "1-1-0" else 0.0

    sampler = Dynamic(group_size=2, rounds=3)
    groups = sampler.sample(Listed(), playing(reward, []), step=1, seed=0)
    assert [one.id for one in groups] == ["1.1.0"]
    assert sampler.metrics() == {"groups_played": 6, "groups_kept": 1, "rounds": 3}


def test_nothing_to_learn_stops_the_run() -> None:
    curriculum, sampler = Listed(), Dynamic(group_size=2, rounds=3)
    with pytest.raises(NothingToLearn, match="step 1: none of 6 groups in 3 rounds"):
        sampler.sample(curriculum, playing(lambda spec: 1.0, []), step=1, seed=0)
    assert len(curriculum.observed) == 3 and len(sampler.played()) == 6


def test_no_group_is_dropped_while_a_curriculum_gathers() -> None:
    curriculum, sampler = Listed(is_ready=False), Dynamic(group_size=2, rounds=3)
    groups = sampler.sample(curriculum, playing(lambda spec: 1.0, []), step=-1, seed=0)
    assert [one.id for one in groups] == ["-1.0.0", "-1.0.1"]
    assert len(curriculum.observed) == 1 and sampler.played() == groups


def test_a_signal_is_different_returns_of_a_role() -> None:
    high, low = turn("solver_0", 1.0), turn("solver_0", 0.0)
    assert returns_differ(group(episode(high), episode(low)))
    assert returns_differ(group(episode(high, turn("solver_1", 0.0))))
    assert not returns_differ(group(episode(high), episode(high)))
    assert not returns_differ(group(episode(high, turn("proposer_0", 0.0))))
    assert not returns_differ(group(episode(high), episode(low, status=Status.FAILED)))
    assert not returns_differ(group(episode(high, low), episode(low, high)))
    assert not returns_differ(group())


def test_a_signal_is_within_the_comparison_groups_of_the_credit() -> None:
    # The agents are paid differently, but alike in all siblings.
    seats = episode(turn("solver_0", 1.0), turn("solver_1", 0.0))
    twice = group(seats, seats)
    assert returns_differ(twice) and not returns_differ(twice, "agent")
    assert advantages(DrGRPO(group_by="agent").assign([twice])) == [0, 0, 0, 0]
    # Siblings that began from other prompts are not compared within a prompt.
    apart = [episode(turn("solver_0", float(n), prompt_ids=(n,))) for n in range(2)]
    assert returns_differ(group(*apart)) and not returns_differ(group(*apart), "prompt")
    assert advantages(DrGRPO(group_by="prompt").assign([group(*apart)])) == [0, 0]


def test_a_config_without_group_by_uses_that_of_the_credit() -> None:
    seats = episode(turn("solver_0", 1.0), turn("solver_1", 0.0))
    node = {"_target_": "selfplay.sampler.dynamic.Dynamic"}
    provided = {"credit": DrGRPO(group_by="agent")}
    assert not build(node, provided=provided).has_signal(group(seats, seats))
    assert build({**node, "group_by": "role"}, provided=provided).has_signal(group(seats, seats))
    assert build(node).has_signal(group(seats, seats))


def test_a_team_credit_decides_which_groups_are_kept() -> None:
    def play(specs: Sequence[EpisodeSpec]) -> list[Episode]:
        """Return episodes; the frozen worker is paid in one of two siblings of the first task."""
        return [
            episode(
                turn("planner_0"),
                turn("worker_0", float(s.member and s.task.id == "1-0-0"), trainable=False),
                task=s.task,
            )
            for s in specs
        ]

    kept = Dynamic(group_size=2, rounds=1, credit=TeamGRPO()).sample(Listed(), play, step=1, seed=0)
    assert [each.id for each in kept] == ["1.0.0"]
    with pytest.raises(NothingToLearn, match="two different returns that DrGRPO compares"):
        Dynamic(group_size=2, rounds=1, credit=DrGRPO()).sample(Listed(), play, step=1, seed=0)


def test_a_group_without_signal_for_the_credit_is_dropped() -> None:
    def play(specs: Sequence[EpisodeSpec]) -> list[Episode]:
        return [episode(turn("solver_0", 1.0), turn("solver_1", 0.0), task=j.task) for j in specs]

    groups = Dynamic(group_size=2, rounds=1).sample(Listed(), play, step=1, seed=0)
    assert len(groups) == 2
    with pytest.raises(NothingToLearn, match="different returns within one agent"):
        Dynamic(group_size=2, rounds=1, group_by="agent").sample(Listed(), play, step=1, seed=0)


def test_sizes_below_one_are_refused() -> None:
    for make in (
        lambda: Independent(group_size=0),
        lambda: Dynamic(group_size=0),
        lambda: Dynamic(rounds=0),
    ):
        with pytest.raises(ValueError, match="at least 1"):
            make()


def test_no_group_is_dropped_if_gathering_begins_with_the_step() -> None:
    class Later(Listed):
        """A curriculum that is not ready after it has made the tasks of a step."""

        def tasks(self, step: int, attempt: int = 0) -> list[Task]:
            self.is_ready = False
            return super().tasks(step, attempt)

    curriculum = Later(is_ready=True)
    groups = Dynamic(group_size=2, rounds=3).sample(
        curriculum, playing(lambda spec: 1.0, []), step=3, seed=0
    )
    assert len(curriculum.observed) == 1 and len(groups) == 2
