"""Tests of steps sampled ahead while games of the step before are still in progress."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Any

import pytest

from selfplay.curriculum import Curriculum, reads_outcomes
from selfplay.curriculum.fixed import FixedTasks
from selfplay.curriculum.ladder import Ladder
from selfplay.curriculum.levels import LevelCurriculum
from selfplay.curriculum.mixture import MixtureCurriculum
from selfplay.curriculum.scheduled import ScheduledTasks
from selfplay.curriculum.self_proposed import ProposalCurriculum
from selfplay.curriculum.step_tasks import StepTasks
from selfplay.rollout.rollout import EpisodeSpec
from selfplay.sampler import Sampler
from selfplay.sampler.adaptive import Adaptive
from selfplay.sampler.dynamic import Dynamic
from selfplay.sampler.independent import Independent
from selfplay.sampler.prefetch import (
    OnDemandBatches,
    PrefetchedBatches,
    _Prefetcher,
    overlap_problem,
)
from selfplay.sampler.resample import Resample
from selfplay.sampler.tree import Branch, Tree
from selfplay.types import Episode, Group, Task
from tests.helpers.builders import episode, turn
from tests.helpers.prefetched_batches import LONG, STEPS, Growing, learn, until


class Player:
    """A rollout function that records the version of each step's start and delays given steps."""

    def __init__(self, *held: int) -> None:
        self.version = 0
        self.begun: dict[int, int] = {}
        self.gates = {step: Event() for step in held}
        self.errors: dict[int, Exception] = {}

    def __call__(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        step = specs[0].step
        assert step is not None
        self.begun.setdefault(step, self.version)
        if step in self.gates:
            assert self.gates[step].wait(LONG)
        if step in self.errors:
            raise self.errors[step]
        return [
            episode(turn("solver_0", float(spec.seed % 3)), task=spec.task, seed=spec.seed)
            for spec in specs
        ]


class Observing(FixedTasks):
    """A subclass that reads the outcomes of episodes."""

    def observe(self, groups: Sequence[Group], step: int) -> None:
        self.seen = len(groups)


def fixed(kind: type[FixedTasks] = FixedTasks) -> FixedTasks:
    return kind(tasks=[Task(id=name) for name in "abcde"], batch=2)


def on_demand(play: Player, sampler: Any = None) -> OnDemandBatches:
    return OnDemandBatches(
        curriculum=fixed(),
        sampler=sampler or Independent(group_size=2),
        rollout_fn=play,
        seed=lambda: 7,
    )


@contextmanager
def ahead(play: Player, lag: int, **settings: Any) -> Iterator[PrefetchedBatches]:
    batches = on_demand(play, settings.pop("sampler", None))
    given = {"last": STEPS, "keeps": lambda step: True, "timeout": LONG, **settings}
    made = PrefetchedBatches(batches, max_staleness=lag, **given)
    try:
        yield made
    finally:
        for gate in play.gates.values():
            gate.set()
        made.close()


@pytest.mark.parametrize("lag", [1, 2])
def test_a_step_begins_during_the_last_games_of_the_one_before(lag: int) -> None:
    play = Player(1)
    with ahead(play, lag) as source:
        with pytest.raises(Exception, match="no batch") as caught:
            source.timeout = 0.05
            source.take(1)
        assert caught.typename == "StalledError"
        source.timeout = LONG
        until(lambda: len(play.begun) == 1 + lag)
        time.sleep(0.05)  # time in which a further step would begin
        assert play.begun == dict.fromkeys(range(1, 2 + lag), 0)
        play.gates[1].set()
        assert [batch.step for batch in learn(source, play, range(1, STEPS + 1))] == [
            *range(1, STEPS + 1)
        ]
    for step, version in play.begun.items():
        assert step - 1 - lag <= version <= step - 1


def test_a_batch_that_is_complete_early_waits_for_its_turn() -> None:
    play = Player(1)
    with ahead(play, 1) as source:
        source.timeout = 0.05
        with pytest.raises(Exception, match="step 1: no batch"):
            source.take(1)
        until(lambda: source._ahead is not None and 2 in source._ahead._ready)
        with pytest.raises(Exception, match="step 1: no batch"):
            source.take(1)
        source.timeout = LONG
        play.gates[1].set()
        assert source.take(1).step == 1 and source.take(2).step == 2


@pytest.mark.parametrize(
    "sampler",
    [
        Independent(group_size=2),
        Adaptive(group_size=2, round_size=2, rounds=3, threshold=0.5),
        Resample(group_size=2, threshold=0.5),
        Branch(group_size=3, initial=2),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
@pytest.mark.parametrize("lag", [1, 3])
def test_overlapping_batches_equal_batches_sampled_on_demand(lag: int, sampler: Any) -> None:
    plain, states = on_demand(Player(), sampler), []
    wanted = []
    for step in range(1, STEPS + 1):
        wanted.append(plain.take(step))
        states.append(plain.curriculum_state())
    play = Player(2, 3)
    with ahead(play, lag, sampler=sampler) as source:
        assert source.overlaps
        first = learn(source, play, [1])
        until(lambda: 3 in play.begun or lag == 1)
        play.gates[3].set()
        play.gates[2].set()
        found = first + learn(source, play, range(2, STEPS + 1))
    for one, other, state in zip(found, wanted, states, strict=True):
        assert (one.groups, one.played) == (other.groups, other.played)
        metrics = dict(one.metrics)
        assert metrics.pop("seconds/sampling") >= 0
        assert metrics == other.metrics
        assert one.curriculum_state == state


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_resumed_run_samples_the_batches_not_learned_from(kept: int) -> None:
    wanted = learn(on_demand(Player()), Player(), range(1, STEPS + 1))
    play = Player(kept + 2)
    with ahead(play, 2) as source:
        learn(source, play, range(1, kept + 1))
        state = source.curriculum_state()
        source.take(kept + 1)  # in the learner when the run ends, in the middle of a later step
        until(lambda: kept + 2 in play.begun)
    with ahead(Player(), 2) as source:
        source.batches.curriculum.load_state_dict(state)
        found = learn(source, Player(), range(kept + 1, STEPS + 1))
    assert [batch.groups for batch in found] == [batch.groups for batch in wanted[kept:]]


def test_an_error_is_raised_with_its_step_and_no_later_step_begins() -> None:
    play = Player(1)
    play.errors[2] = ZeroDivisionError("oops")
    with ahead(play, 2) as source:
        source.timeout = 0.05
        with pytest.raises(Exception, match="no batch"):
            source.take(1)
        until(lambda: source._ahead is not None and source._ahead._errors)
        source.timeout = LONG
        play.gates[1].set()
        learn(source, play, [1])
        with pytest.raises(ZeroDivisionError, match="oops"):
            source.take(2)
        assert max(play.begun) <= 3


def two_begun(source: PrefetchedBatches, play: Player) -> _Prefetcher:
    """Wait until two steps have begun; return the prefetcher that samples them."""
    source.timeout = 0.05
    with pytest.raises(Exception, match="no batch"):
        source.take(1)
    until(lambda: len(play.begun) == 2)
    old = source._ahead
    assert old is not None
    return old


def test_stopping_waits_for_no_game_and_steps_begin_again() -> None:
    play = Player(1, 2)
    with ahead(play, 1) as source:
        old = two_begun(source, play)
        source.stop()
        assert old.is_alive()
        source.batches.curriculum.load_state_dict({"drawn": 0})
        for gate in play.gates.values():
            gate.set()
        old.join(LONG)
        assert not old.is_alive()
        assert source.batches.curriculum.state_dict() == {"drawn": 0}
        source.timeout = LONG
        wanted = on_demand(Player()).take(1)
        assert source.take(1).groups == wanted.groups


def test_draining_waits_until_the_games_in_progress_have_ended() -> None:
    play = Player(1, 2)
    with ahead(play, 1) as source:
        old = two_begun(source, play)
        with ThreadPoolExecutor(1) as pool:
            drained = pool.submit(source.drain)
            play.gates[1].set()
            time.sleep(0.05)
            assert not drained.done() and old.is_alive()
            play.gates[2].set()
            drained.result(LONG)
        assert not old.is_alive() and not source._left
        source.timeout = LONG
        assert source.take(1).step == 1


def test_curricula_and_samplers_say_whether_steps_may_overlap() -> None:
    independent = Independent()
    scheduled = partial(ScheduledTasks, key="p", start=0.0, end=1.0, steps=2)
    without_outcomes: list[Curriculum] = [
        fixed(),
        scheduled(curriculum=fixed()),
        MixtureCurriculum(parts={"a": fixed(), "b": fixed()}, batch=2, shares={"a": 1, "b": 1}),
    ]
    for curriculum in without_outcomes:
        assert overlap_problem(curriculum, independent) == ""
    with_outcomes: list[Curriculum] = [
        Growing(),
        fixed(Observing),
        scheduled(curriculum=Growing()),
        MixtureCurriculum(parts={"a": fixed(), "b": Growing()}, batch=2, shares={"a": 1, "b": 1}),
    ]
    for curriculum in with_outcomes:
        assert "reads the outcomes" in overlap_problem(curriculum, independent)
    kinds: list[type[Any]] = [Ladder, LevelCurriculum, ProposalCurriculum]
    for kind in kinds:
        assert reads_outcomes(object.__new__(kind))
    samplers: list[Sampler] = [Adaptive(), Branch(), Independent(), Resample(), Tree()]
    assert not any(overlap_problem(fixed(), sampler) for sampler in samplers)
    assert overlap_problem(fixed(), Dynamic()).startswith("Dynamic asks for tasks again")


def test_a_sampler_that_refills_without_the_attribute_is_an_error() -> None:
    tasks = StepTasks(fixed(), 3)
    assert tasks.tasks(3) == tasks.tasks(3, 0)
    for asked in ((3, 1), (4, 0)):
        with pytest.raises(RuntimeError, match="set refills = True in the class of the sampler"):
            tasks.tasks(*asked)
