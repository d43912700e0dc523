"""Tests of the default tasks of an arena."""

from collections.abc import Mapping, Sequence
from random import Random

import pytest

from arenas.games.kuhn import Kuhn
from selfplay.arena import Arena
from selfplay.config.compose import load
from selfplay.curriculum.default_tasks import DefaultTasks
from selfplay.errors import ConfigError
from selfplay.rollout.setup import Components
from selfplay.types import Observation, Task


class DrawnLimit(Arena):
    """An arena with a random number in its task, which ends at once."""

    roles = {"player": 1}

    def default_task(self, rng: Random) -> Task:
        return Task(id="limit", type="drawn", payload={"most": rng.randrange(10**6)})

    def setup(self, task: Task, rng: Random) -> None:
        self.most = task.payload["most"]

    def acting(self) -> Sequence[str]:
        return self.possible_agents

    def view(self, agent: str) -> Observation:
        return Observation(text=str(self.most))

    def advance(self, actions: Mapping[str, str | None]) -> None:
        self.finish()


def limits(tasks: Sequence[Task]) -> list[int]:
    return [task.payload["most"] for task in tasks]


def test_tasks_are_those_of_the_arena_and_differ() -> None:
    made = DefaultTasks(arena=DrawnLimit(), batch=3)
    first, second, refill = made.tasks(1), made.tasks(2), made.tasks(1, 1)
    assert {(task.id, task.type) for task in first} == {("limit", "drawn")}
    assert len({*limits(first), *limits(second), *limits(refill)}) == 9
    assert made.tasks(1) == first
    assert DefaultTasks(arena=DrawnLimit(), batch=3, seed=1).tasks(1) != first


def test_a_resumed_curriculum_gives_the_same_tasks() -> None:
    made, resumed = (DefaultTasks(arena=DrawnLimit(), batch=2, seed=5) for _ in range(2))
    for step in range(1, 4):
        made.tasks(step)
    resumed.load_state_dict(made.state_dict())
    assert resumed.tasks(4) == made.tasks(4)


def test_a_task_without_content_is_called_game() -> None:
    assert Kuhn().default_task(Random(0)).id == "hand"
    assert DefaultTasks(arena=Kuhn(), batch=2).tasks(1) == [Task(id="game")] * 2


@pytest.mark.parametrize("experiment", ["tiny/long_road", "tiny/tic_tac_toe"])
def test_shipped_games_are_tasks_without_content(experiment: str) -> None:
    config = load([f"+experiment={experiment}", "evaluations=none", "curriculum.batch=2"])
    components = Components(config)
    try:
        curriculum = components.build("curriculum")
    finally:
        components.close()
    assert isinstance(curriculum, DefaultTasks) and curriculum.seed == config["seed"]
    assert curriculum.tasks(1) == curriculum.tasks(7) == [Task(id="game")] * 2


def test_a_default_task_of_another_class_is_refused() -> None:
    class NoTask(DrawnLimit):
        def default_task(self, rng: Random) -> Task:
            return {"id": "limit"}  # type: ignore[return-value]

    for make in (DefaultTasks(arena=NoTask(), batch=1).tasks, NoTask().reset):
        with pytest.raises(ConfigError, match=r"^NoTask\.default_task returned dict, not a Task$"):
            make(1)


def test_a_batch_below_1_and_no_arena_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch is at least 1, not 0"):
        DefaultTasks(arena=Kuhn(), batch=0)
    with pytest.raises(ConfigError, match="no arena is chosen"):
        DefaultTasks(arena={}, batch=1).tasks(1)
