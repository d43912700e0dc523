"""Tests of batches sampled ahead: failures, stopping, and the limits of waits."""

import time
from collections.abc import Sequence
from threading import Event

import pytest

from selfplay.errors import NothingToLearn, StalledError
from selfplay.sampler import prefetch
from selfplay.types import Group
from tests.helpers.prefetched_batches import LONG, Player, ahead, learn, until


@pytest.mark.parametrize("error", [NothingToLearn("nothing to learn"), ZeroDivisionError("oops")])
def test_an_error_in_the_thread_is_raised_when_its_step_is_taken(error: Exception) -> None:
    play = Player()

    def fail(step: int) -> None:
        if step == 3:
            raise error

    play.gate = fail
    with ahead(play, 2) as source:
        learn(source, play, [1, 2])
        for _ in range(2):
            with pytest.raises(type(error)) as caught:
                source.take(3)
            assert caught.value is error
        play.gate = lambda step: None
        state = {"observed": ["1: a", "1: b", "2: c", "2: d"]}
        source.stop()
        source.batches.curriculum.load_state_dict(state)
        assert source.take(3).groups[0].episodes[0].task.id == "3-0-4-0"


def test_stopping_waits_for_no_game_and_its_end_changes_nothing() -> None:
    play, entered, release = Player(), Event(), Event()

    def block(step: int) -> None:
        if step == 2 and not release.is_set():
            entered.set()
            assert release.wait(LONG)

    play.gate = block
    with ahead(play, 1) as source:
        source.take(1)
        assert entered.wait(LONG)
        old = source._ahead
        assert old is not None
        source.stop()  # in the middle of step 2
        assert old.is_alive()
        curriculum = source.batches.curriculum
        curriculum.load_state_dict({"observed": []})
        assert source.curriculum_state() == {"observed": []}
        play.gate = lambda step: None
        again = source.take(1)
        release.set()
        old.join(LONG)
        assert not old.is_alive()
        source.learned(1)
        second = source.take(2)
        assert again.groups[0].episodes[0].task.id == "1-0-0-0"
        assert second.groups[0].episodes[0].task.id == "2-0-2-0"


def test_nothing_is_done_between_games_during_a_pause() -> None:
    play, entered, release = Player(), Event(), Event()

    def block(step: int) -> None:
        if step == 2:
            entered.set()
            assert release.wait(LONG)

    play.gate = block
    with ahead(play, 2) as source:
        source.take(1)
        assert entered.wait(LONG)
        before = source.batches.curriculum.state_dict()
        with source.paused():
            release.set()
            time.sleep(0.05)
            assert source.batches.curriculum.state_dict() == before
            assert len(play.begun) == 2
        until(lambda: len(play.begun) == 3)


def test_waiting_for_a_batch_ends_with_an_error_that_names_it() -> None:
    play, release = Player(), Event()

    def block(step: int) -> None:
        release.wait(LONG)

    play.gate = block
    with ahead(play, 1, timeout=0.05) as source:
        with pytest.raises(StalledError, match="step 1: no batch after 0 s"):
            source.take(1)
        release.set()


def test_waiting_for_a_pause_ends_with_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play, taken, asleep, release = Player(), Event(), Event(), Event()

    def hold(step: int) -> None:
        if step == 2:
            assert taken.wait(LONG)

    play.gate = hold
    with ahead(play, 1) as source:
        observe = source.batches.curriculum.observe

        def sleep(groups: Sequence[Group], step: int) -> None:
            if step == 2:
                asleep.set()
                assert release.wait(LONG)
            observe(groups, step)

        monkeypatch.setattr(source.batches.curriculum, "observe", sleep)
        source.take(1)
        taken.set()
        assert asleep.wait(LONG)
        with monkeypatch.context() as patch:
            patch.setattr(prefetch, "PAUSE_TIMEOUT", 0.05)
            with pytest.raises(StalledError, match="curriculum and sampler did not pause"):
                source.learned(1)
        release.set()
