"""Tests of levels that follow the solve rate, with a scripted source of tasks."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from selfplay.curriculum.levels import LevelCurriculum, LevelDraw
from selfplay.errors import ConfigError
from selfplay.types import Episode, Status, Task
from tests.helpers.builders import episode, group


class ScriptedSource:
    """A source with `counts` levels per generator; a task's id is generator, level, draw, index."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.asked: list[LevelDraw] = []
        self.most = 100

    def levels(self, generators: Sequence[str]) -> list[int]:
        return [self.counts[name] for name in generators]

    def draw(self, requests: Sequence[LevelDraw]) -> list[list[Task]]:
        self.asked += requests
        return [
            [
                Task(
                    id=f"{each.generator}-{each.level}-{each.number}-{place}",
                    type=each.generator,
                    payload={"level": each.level},
                )
                for place in range(min(each.count, self.most))
            ]
            for each in requests
        ]


def curriculum(source: ScriptedSource | None = None, **settings: Any) -> LevelCurriculum:
    source = source or ScriptedSource(gcd=3, lcm=1)
    defaults: dict[str, Any] = {"generators": list(source.counts), "batch": 6, "window": 4}
    return LevelCurriculum(source=source, **{**defaults, **settings})


def played(task: Task, rate: float, *, attempts: int = 4, **fields: Any) -> Episode:
    metrics = {"solve_rate": rate, "attempts": float(attempts)}
    return episode(task=task, metrics=metrics, **fields)


def show(made: LevelCurriculum, name: str, rate: float, **fields: Any) -> None:
    """Observe one played task of the generator at its present level."""
    task = Task(id="x", type=name, payload={"level": made.level[name]})
    made.observe([group(played(task, rate, **fields))], 1)


def test_a_level_rises_at_up_and_falls_at_down() -> None:
    made = curriculum(up=0.75, down=0.25)
    levels = []
    for rate in (0.75, 0.5, 1.0, 1.0, 0.25, 0.26, 0.0, 0.0):
        show(made, "gcd", rate)
        levels.append(made.level["gcd"])
    assert levels == [1, 1, 2, 2, 1, 1, 0, 0]
    assert made.level["lcm"] == 0
    assert made.metrics() == {
        "gcd/level": 0.0,
        "lcm/level": 0.0,
        "gcd/solve_rate": 0.0,
        "mean_level": 0.0,
    }


def test_the_window_counts_attempts_over_several_steps() -> None:
    made = curriculum(window=12, up=0.7)
    show(made, "gcd", 1.0)
    show(made, "gcd", 1.0)
    assert made.level["gcd"] == 0
    show(made, "gcd", 0.25)  # 4 + 4 + 1 of 12 is 0.75
    assert made.level["gcd"] == 1 and made.metrics()["gcd/solve_rate"] == 0.75


def test_tasks_of_an_earlier_level_do_not_count() -> None:
    made = curriculum()
    show(made, "gcd", 1.0)
    late = Task(id="x", type="gcd", payload={"level": 0})
    made.observe([group(played(late, 0.0), played(late, 0.0))], 2)
    assert made.level["gcd"] == 1


def test_failed_episodes_do_not_count_and_truncated_ones_are_unsolved() -> None:
    made = curriculum(window=2, down=0.5, start=1)
    task = Task(id="x", type="gcd", payload={"level": 1})
    failed = episode(task=task, status=Status.FAILED, metrics={})
    made.observe([group(failed, failed)], 1)
    assert made.level["gcd"] == 1
    cut = episode(task=task, status=Status.TRUNCATED, metrics={})
    won = episode(task=task, metrics={"accuracy": 1.0})
    made.observe([group(cut, won)], 1)
    assert made.level["gcd"] == 0 and made.metrics()["gcd/solve_rate"] == 0.5


def test_fixed_levels_stay_and_are_still_measured() -> None:
    made = curriculum(fixed=True, start=1)
    show(made, "gcd", 1.0)
    assert made.level == {"gcd": 1, "lcm": 0} and made.metrics()["gcd/solve_rate"] == 1.0


def test_generators_have_tasks_in_proportion_to_their_weights() -> None:
    made = curriculum(generators={"gcd": 3.0, "lcm": 1.0}, batch=6)
    kinds = [task.type for step in range(4) for task in made.tasks(step)]
    assert (kinds.count("gcd"), kinds.count("lcm")) == (18, 6)


def test_every_draw_is_new_and_follows_the_level() -> None:
    source = ScriptedSource(gcd=3)
    made = curriculum(source, batch=2)
    first = made.tasks(1)
    show(made, "gcd", 1.0)
    second = made.tasks(2)
    assert [task.id for task in first] == ["gcd-0-0-0", "gcd-0-0-1"]
    assert [task.id for task in second] == ["gcd-1-1-0", "gcd-1-1-1"]


def test_a_generator_with_few_questions_repeats_them() -> None:
    source = ScriptedSource(gcd=1)
    source.most = 2
    made = curriculum(source, batch=5)
    assert [task.id[-1] for task in made.tasks(1)] == ["0", "1", "0", "1", "0"]
    source.most = 0
    with pytest.raises(ConfigError, match="gcd has no question for training at level 0"):
        made.tasks(2)


def test_a_checkpoint_restores_everything() -> None:
    made = curriculum(window=8)
    made.tasks(1)
    show(made, "gcd", 1.0)
    again = curriculum(window=8)
    again.load_state_dict(made.state_dict())
    for each in (made, again):
        show(each, "gcd", 1.0)
    assert again.level == made.level == {"gcd": 1, "lcm": 0}
    assert again.tasks(2) == made.tasks(2) and again.metrics() == made.metrics()
    with pytest.raises(ConfigError, match="the checkpoint has gcd, lcm"):
        curriculum(ScriptedSource(gcd=1)).load_state_dict(made.state_dict())


def test_a_level_of_a_checkpoint_is_clamped_to_the_range() -> None:
    made = curriculum()
    state: Mapping[str, Any] = {**made.state_dict(), "level": {"gcd": 99, "lcm": -5}}
    made.load_state_dict(state)
    assert made.level == {"gcd": 2, "lcm": 0}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"generators": []}, "generators: empty"),
        ({"generators": {"gcd": 0.0}}, "not a weight above 0"),
        ({"up": 0.2, "down": 0.3}, "0 <= down < up <= 1"),
        ({"batch": 0}, "batch and window"),
        ({"measures": []}, "measures: empty"),
    ],
)
def test_wrong_settings_are_one_line_errors(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        curriculum(**settings)


def test_an_arena_without_the_metric_is_an_error() -> None:
    made = curriculum()
    task = Task(id="x", type="gcd", payload={"level": 0})
    with pytest.raises(ConfigError, match=r"none of solve_rate, accuracy; .*solve_rat"):
        made.observe([group(episode(task=task, metrics={"solve_rat": 1.0}))], 1)
