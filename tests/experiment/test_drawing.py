"""Tests of drawings of recorded episodes by a user's arena."""

import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from selfplay.arena import Arena
from selfplay.experiment.drawing import DrawingResult, RunDrawer
from selfplay.types import Action, Observation, Task
from tests.helpers.builders import episode, turn


class Scribbler(Arena):
    """An arena that ends after one move, and whose drawing is no `StateDrawing`."""

    name = "scribbler_v0"
    roles = {"a": 1}

    def setup(self, task: Task, rng: random.Random) -> None:
        pass

    def acting(self) -> list[str]:
        return ["a_0"]

    def view(self, agent: str) -> Observation:
        return Observation()

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        self.finish()

    def draw(self, agent: str | None = None) -> Any:
        return {"title": "a mapping"}


def test_an_arena_that_draws_something_else_costs_only_its_drawings() -> None:
    drawer = RunDrawer.__new__(RunDrawer)
    drawer.components = cast(Any, SimpleNamespace(arena=Scribbler))
    played = cast(Any, SimpleNamespace(line=1, episode=episode(turn("a_0", 0.0, stage=0))))
    result = DrawingResult()
    assert drawer._episode(played, result, late=False) is None
    assert result.lines()[1:] == [
        "1 not drawn: TypeError: scribbler_v0: draw() returned dict, not a StateDrawing"
    ]
