"""Tests of a game that ends while its person leaves or its server stops."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from selfplay.errors import RunError
from selfplay.experiment.human_play import PlaySetup
from selfplay.types import Episode
from selfplay.viewer.play_pages import PlaySession
from tests.helpers.builders import episode


class Gated:
    """A table whose game ends or fails when `gate` is set; `save` calls `saving`."""

    def __init__(self, saving: Callable[[], object], *, fault: Exception | None = None) -> None:
        self.saving, self.fault = saving, fault
        self.gate = threading.Event()

    def check(self, agent: str) -> None:
        """Accept every seat."""

    def game(self, agent: str, *, seed: int, number: int) -> Episode:
        assert self.gate.wait(20)
        if self.fault:
            raise self.fault
        return episode()

    def save(self, episode: Episode) -> Path:
        self.saving()
        return Path("saved")


@pytest.mark.parametrize("fault", [None, KeyError("closed"), RunError("closed")])
def test_a_game_that_ends_with_the_server_is_neither_saved_nor_an_error(
    fault: Exception | None, capsys: pytest.CaptureFixture[str]
) -> None:
    saved: list[int] = []
    session, place = PlaySession(seed=0), Gated(lambda: saved.append(1), fault=fault)
    session.begin(cast(PlaySetup, place), "player_0", 1)
    interrupted: list[bool] = []
    closing = threading.Thread(target=lambda: interrupted.append(session.close()))
    closing.start()
    while not session._closed:
        time.sleep(0.01)
    place.gate.set()
    closing.join(20)
    assert interrupted == [True] and not saved and session.seen.phase != "broken"
    assert capsys.readouterr().err == ""


def test_a_game_that_is_being_saved_cannot_be_left() -> None:
    phases: list[str] = []

    def saving() -> None:
        leaving = threading.Thread(target=session.leave, args=(1,))
        leaving.start()
        leaving.join(0.1)
        phases.append(session.seen.phase)

    session, place = PlaySession(seed=0), Gated(saving)
    session.begin(cast(PlaySetup, place), "player_0", 1)
    place.gate.set()
    session.settle(20)
    assert phases == ["others"] and session.seen.path == Path("saved")
