"""Tests of batches sampled ahead: their order, number, and state in a checkpoint."""

import time
from functools import partial
from typing import Any

import pytest

from selfplay.config import compose
from selfplay.config.instantiate import build
from selfplay.errors import ConfigError
from selfplay.experiment.validation import check_staleness
from selfplay.sampler.dynamic import Dynamic
from selfplay.sampler.independent import Independent
from tests.helpers.prefetched_batches import LONG, STEPS, Player, ahead, learn, synchronous, until


def reached(play: Player, batches: int) -> bool:
    return len(play.begun) == batches


@pytest.mark.parametrize("lag", [1, 2, 3, 9])
def test_no_step_begins_with_weights_older_than_the_lag(lag: int) -> None:
    play = Player()
    with ahead(play, lag) as source:
        learn(source, play, range(1, STEPS + 1))
    # Step s learns at version s - 1.
    assert len(play.begun) == STEPS
    for step, version in enumerate(play.begun, start=1):
        assert step - 1 - lag <= version <= step - 1


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_it_samples_up_to_the_lag_ahead(lag: int) -> None:
    play = Player()
    with ahead(play, lag) as source:
        source.take(1)
        until(lambda: len(play.begun) == 1 + lag)
        time.sleep(0.05)  # time in which a further step would begin
        assert play.begun == [0] * (1 + lag)
        play.version = 1
        source.learned(1)
        until(lambda: len(play.begun) == 2 + lag)
        assert play.begun[-1] == 1


def test_nothing_is_sampled_after_the_last_step() -> None:
    play = Player()
    with ahead(play, 2, last=3) as source:
        learn(source, play, [1, 2, 3])
        (thread,) = [source._ahead]
        assert thread is not None
        thread.join(LONG)
        assert not thread.is_alive() and len(play.begun) == 3


@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize("kind", [Independent, Dynamic])
def test_the_batches_equal_batches_sampled_on_demand(kind: Any, lag: int) -> None:
    play = Player()
    sampler = kind(group_size=2)
    wanted = learn(synchronous(play, kind(group_size=2)), play, range(1, STEPS + 1))
    with ahead(Player(), lag, sampler=sampler) as source:
        found = learn(source, Player(), range(1, STEPS + 1))
    for one, other in zip(found, wanted, strict=True):
        assert (one.step, one.groups, one.played) == (other.step, other.groups, other.played)
        metrics = dict(one.metrics)
        assert metrics.pop("seconds/sampling") >= 0
        assert metrics == other.metrics


def test_a_checkpoint_has_the_curriculum_after_its_step() -> None:
    plain, play = synchronous(Player()), Player()
    with ahead(play, 3, keeps=lambda step: step != 2) as source:
        assert source.curriculum_state() == {"observed": []}
        for step in range(1, STEPS + 1):
            plain.take(step)
            source.take(step)
            until(partial(reached, play, min(STEPS, step + 3)))
            if step == 2:
                with pytest.raises(RuntimeError, match="after step 2 was not kept"):
                    source.curriculum_state()
            else:
                assert source.curriculum_state() == plain.curriculum_state()
            source.learned(step)


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_resumed_run_samples_the_batches_not_learned_from(kept: int) -> None:
    plain = learn(synchronous(Player()), Player(), range(1, STEPS + 1))
    play = Player()
    with ahead(play, 2) as source:
        learn(source, play, range(1, kept + 1))
        state = source.curriculum_state()
        source.take(kept + 1)  # in the learner when it is killed
    with ahead(play, 2) as source:
        source.batches.curriculum.load_state_dict(state)
        found = learn(source, play, range(kept + 1, STEPS + 1))
        observed = source.batches.curriculum.state_dict()["observed"]
    assert [batch.groups for batch in found] == [batch.groups for batch in plain[kept:]]
    assert observed == [f"{b.step}: {g.episodes[0].task.id}" for b in plain for g in b.groups]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["objective=reinforce"],
            "max_staleness=2 makes them older; set objective.correction=truncated",
        ),
        (["objective=magrpo"], "set objective.correction=truncated"),
        (["objective=grpo", "league=uniform"], None),
        (["objective=reinforce", "objective.correction=masked"], None),
        (["objective=grpo"], None),
        (["objective=dpo"], None),
        (["objective=sft"], None),
    ],
)
def test_objectives_for_new_samples_refuse_older_ones(
    overrides: list[str], problem: str | None
) -> None:
    objective = build(compose.load(overrides)["objective"], where="objective")
    check_staleness(objective, 0)
    if problem is None:
        check_staleness(objective, 2)
        return
    with pytest.raises(ConfigError, match=problem.replace(".", r"\.")):
        check_staleness(objective, 2)
