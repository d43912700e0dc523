"""Tests of the rounds that gather first tasks: their limit, error and progress messages."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from selfplay.curriculum import Curriculum
from selfplay.curriculum.fixed import FixedTasks
from selfplay.curriculum.gathering import ROUNDS, check_gathering, gathering_phase
from selfplay.curriculum.mixture import MixtureCurriculum
from selfplay.curriculum.scheduled import ScheduledTasks
from selfplay.curriculum.self_proposed import ProposalCurriculum
from selfplay.curriculum.task_buffer import TaskBuffer
from selfplay.errors import ConfigError
from selfplay.train import Trainer
from selfplay.types import Group, Task
from tests.helpers.builders import episode, group, turn

TASK = Task(id="t")


class Hoarding(FixedTasks):
    """A custom curriculum that is ready after `enough` rounds; for None `ready` returns None."""

    def __init__(self, enough: int | None = None) -> None:
        super().__init__(tasks=[TASK], batch=1)
        self.enough, self.rounds = enough, 0

    def observe(self, groups: Sequence[Group], step: int) -> None:
        self.rounds += 1

    def ready(self) -> Any:
        return None if self.enough is None else self.rounds >= self.enough

    def metrics(self) -> dict[str, float]:
        return {"rounds": float(self.rounds)}


class Patient(Hoarding):
    """A custom curriculum with its own number of rounds."""

    gathering_rounds = 2 * ROUNDS


class Sampler:
    """A sampler that plays one episode per round, for at most `most` rounds."""

    def __init__(self, most: int) -> None:
        self.left = most

    def sample(self, curriculum: Any, rollout_fn: Any, *, step: int, seed: int) -> list[Group]:
        assert self.left, "there are too many rounds"
        self.left -= 1
        curriculum.observe(self.played(), step)
        return self.played()

    def played(self) -> list[Group]:
        return [group(episode(turn("x_0"), task=TASK))]


def gather(curriculum: Any, most: int = 3 * ROUNDS, messages: list[str] | None = None) -> int:
    """Fill a curriculum as training does, append its messages, and return the number of rounds."""
    phases = [] if messages is None else messages
    experiment: Any = SimpleNamespace(
        curriculum=curriculum,
        sampler=Sampler(most),
        rollout_fn=lambda specs: [],
        seed=0,
        credit=None,
        settings=SimpleNamespace(max_failed_fraction=0.1),
    )
    trainer = Trainer.__new__(Trainer)
    trainer.experiment = experiment
    trainer.progress = SimpleNamespace(phase=phases.append)  # type: ignore[assignment]
    trainer.fill_curriculum()
    return most - experiment.sampler.left


def test_a_curriculum_that_is_never_ready_is_named_with_its_metrics() -> None:
    words = (
        rf"^curriculum: Hoarding\.ready\(\) returns None after {ROUNDS} rounds of gathering first "
        rf"tasks \(its metrics: rounds {ROUNDS}\.0\); return True .*set the attribute "
        "gathering_rounds of the class"
    )
    with pytest.raises(ConfigError, match=words):
        gather(Hoarding())


def test_a_curriculum_may_gather_for_many_rounds() -> None:
    assert gather(Hoarding(ROUNDS)) == ROUNDS
    assert gather(Patient(2 * ROUNDS)) == 2 * ROUNDS
    with pytest.raises(ConfigError, match=rf"Patient.*after {2 * ROUNDS} rounds"):
        gather(Patient())


def test_a_part_of_a_mixture_is_named_by_its_key() -> None:
    slow = ScheduledTasks(curriculum=Hoarding(), key="p", start=0, end=1, steps=1)
    parts: dict[str, Curriculum] = {"fine": FixedTasks(tasks=[TASK], batch=1), "slow": slow}
    made = MixtureCurriculum(parts=parts, batch=1, shares={"fine": 1, "slow": 1})
    check_gathering(made, ROUNDS - 1)
    with pytest.raises(ConfigError, match=r"^curriculum\.parts\.slow\.curriculum: Hoarding\.ready"):
        check_gathering(made, ROUNDS)


def test_proposals_have_their_own_limit() -> None:
    proposals = ProposalCurriculum(
        buffer=TaskBuffer(capacity=4),
        seeds=[TASK],
        types=["other"],
        proposals=1,
        solver_batch=1,
        seed_size=1,
        seeding_steps=5000,
    )
    check_gathering(proposals, 4999)


def test_a_round_reports_the_limit_and_the_number_of_tasks() -> None:
    messages: list[str] = []
    gather(Patient(2), messages=messages)
    limit = 2 * ROUNDS
    assert messages == [f"gathering first tasks, round {n} of at most {limit}" for n in (1, 2)]
    proposals = ProposalCurriculum(
        buffer=TaskBuffer(capacity=9),
        seeds=[Task(id=name, type="a") for name in "xyz"],
        types=["a", "b"],
        proposals=1,
        solver_batch=1,
        seed_size=2,
        seeding_steps=50,
    )
    words = "gathering first tasks, round 7 of at most 50, 2 of 4 tasks"
    assert gathering_phase(proposals, 7) == words
    parts: dict[str, Curriculum] = {"fine": FixedTasks(tasks=[TASK], batch=1), "made": proposals}
    mixture = MixtureCurriculum(parts=parts, batch=1, shares={"fine": 1, "made": 1})
    assert gathering_phase(mixture, 7) == words
