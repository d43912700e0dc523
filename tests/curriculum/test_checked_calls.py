"""Tests that an error of a custom curriculum is one line with the class and the method."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from selfplay.curriculum.checked_calls import is_ready, metrics_of, show, tasks_of
from selfplay.errors import ConfigError
from selfplay.types import Group, Task


class Mine:
    """A curriculum with one task."""

    def tasks(self, step: int, attempt: int = 0) -> Any:
        return (Task(id=f"{step}.{attempt}"),)

    def observe(self, groups: Sequence[Group], step: int) -> None:
        self.seen = (groups, step)

    def ready(self) -> bool:
        return True

    def metrics(self) -> Any:
        return {"gap": 1}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


def test_results_of_a_curriculum_are_passed_on() -> None:
    mine = Mine()
    assert tasks_of(mine, 3, 1) == [Task(id="3.1")]
    show(mine, [], 3)
    assert mine.seen == ([], 3) and is_ready(mine) and metrics_of(mine) == {"gap": 1}


def broken(**methods: Callable[..., Any]) -> Any:
    return type("Broken", (Mine,), methods)()


def fail(*arguments: Any) -> Any:
    raise KeyError("buyer")


@pytest.mark.parametrize(
    ("call", "methods", "message"),
    [
        (lambda it: tasks_of(it, 1), {"tasks": fail}, r"Broken\.tasks raised KeyError: 'buyer'"),
        (lambda it: show(it, [], 1), {"observe": fail}, r"Broken\.observe raised KeyError"),
        (is_ready, {"ready": fail}, r"Broken\.ready raised KeyError"),
        (is_ready, {"ready": property(fail)}, r"Broken\.ready raised KeyError"),
        (metrics_of, {"metrics": fail}, r"Broken\.metrics raised KeyError"),
        (
            lambda it: tasks_of(it, 1),
            {"tasks": lambda self, step, attempt: ["a"]},
            r"Broken\.tasks returned a list with str, not of Task",
        ),
        (
            lambda it: tasks_of(it, 1),
            {"tasks": lambda self, step, attempt: "a"},
            r"Broken\.tasks returned str, not a list of Task",
        ),
        (
            lambda it: tasks_of(it, 1),
            {"tasks": lambda self, step, attempt: [Task(id=3)]},  # type: ignore[arg-type]
            r"Broken\.tasks returned a Task whose id is 3, not a text",
        ),
        (
            lambda it: tasks_of(it, 1),
            {"tasks": lambda self, step, attempt: [Task(id="a", payload=[1])]},  # type: ignore[arg-type]
            r"Broken\.tasks returned a Task whose payload is \[1\], not a mapping of names",
        ),
        (
            metrics_of,
            {"metrics": lambda self: {"gap": "high"}},
            r"Broken\.metrics gave 'gap' the value 'high'; a metric is a number",
        ),
    ],
)
def test_an_error_is_one_line(call: Callable[[Any], Any], methods: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^curriculum: {message}") as raised:
        call(broken(**methods))
    assert "\n" not in str(raised.value)
