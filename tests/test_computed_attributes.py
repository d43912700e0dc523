"""Tests of attributes that `Arena` computes: an arena that assigns one gets a one-line error."""

from collections.abc import Mapping, Sequence
from random import Random

import pytest

from selfplay.arena import Arena
from selfplay.types import Action, Observation, Task


class Careless(Arena):
    """A game with one agent and one move; its method `method` assigns an attribute of `Arena`."""

    name = "careless_v0"
    roles = {"player": 1}

    def __init__(self, *, assigned: str, method: str) -> None:
        super().__init__()
        self.assigned, self.method = assigned, method
        self.assign("__init__")

    def assign(self, method: str) -> None:
        if method == self.method:
            setattr(self, self.assigned, 1)

    def setup(self, task: Task, rng: Random) -> None:
        self.assign("setup")

    def acting(self) -> Sequence[str]:
        return self.possible_agents

    def view(self, agent: str) -> Observation:
        return Observation(text="move")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        self.assign("advance")
        self.finish()


@pytest.mark.parametrize("method", ["__init__", "setup", "advance"])
def test_a_computed_attribute_is_named_if_it_is_assigned(method: str) -> None:
    words = r"^careless_v0 changed self\.stage, which Arena keeps; choose another name$"
    with pytest.raises(ValueError, match=words):
        arena = Careless(assigned="stage", method=method)
        arena.begin(Task(id="t"), seed=0)
        arena.play_stage({"player_0": "a"})


def test_the_class_shows_the_documentation_of_a_computed_attribute() -> None:
    assert str(Arena.stage.__doc__).startswith("The agents that still have to move")
