"""Tests of the calls of a custom objective: an error is one line that names the class."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from selfplay.errors import ConfigError, RunError
from selfplay.learner.checked_calls import prepared
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from tests.helpers.builders import llama, same, weights
from tests.helpers.gradients import samples


class Mine(PolicyLoss):
    """An objective that passes the results of `loss` and `prepare` through given functions."""

    of_loss: Callable[[Any, Any], Any] = staticmethod(lambda loss, sums: (loss, sums))
    of_prepare: Callable[[Any], Any] = staticmethod(lambda given: (given, {}))

    def loss(self, *given: Any) -> Any:
        return self.of_loss(*super().loss(*given))

    def prepare(self, given: Any, score: Any) -> Any:
        return self.of_prepare(super().prepare(given, score)[0])


def mine(**functions: Any) -> PolicyLoss:
    made: PolicyLoss = type("Mine", (Mine,), {k: staticmethod(f) for k, f in functions.items()})()
    return made


def updated(objective: PolicyLoss) -> dict[str, float]:
    learner = Learner(llama(), objective=objective, settings=LearnerSettings(lr=1e-3))
    return learner.update(samples(), step=1)


def full(*given: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory")


LOSS, READY = "of_loss", "of_prepare"
PAIR = "a pair: the loss, and a dictionary of sums"
NUMBER = "as the loss, not a tensor of one number"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (LOSS, lambda loss, sums: loss, f"loss returned a tensor of float32 [], not {PAIR}"),
        (LOSS, lambda loss, sums: (loss, sums, 1), "loss returned tuple of a tensor of"),
        (LOSS, lambda loss, sums: None, f"loss returned NoneType, not {PAIR}"),
        (LOSS, lambda loss, sums: (1.0, sums), f"loss returned float {NUMBER}"),
        (LOSS, lambda loss, sums: (loss.repeat(2), sums), f"a tensor of float32 [2] {NUMBER}"),
        (LOSS, lambda loss, sums: (loss.detach(), sums), "returned a loss without a gradient"),
        (LOSS, lambda loss, sums: (loss, [1]), "loss returned list, not a mapping of numbers"),
        (LOSS, lambda loss, sums: (loss, {"x": loss}), "loss gave 'x' the value tensor("),
        (LOSS, lambda loss, sums: sums["no"], "loss raised KeyError: 'no' ("),
        (READY, lambda given: given, "prepare returned list of 5 values, not a pair: the samples"),
        (READY, lambda given: (3, {}), "prepare returned int, not a list of Sample"),
        (READY, lambda given: (given, 3), "prepare returned int, not a mapping of numbers"),
        (READY, lambda given: given[99], "prepare raised IndexError: "),
    ],
)
def test_a_fault_is_one_line_that_names_the_objective(name: str, change: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^objective: Mine\..*{re.escape(words)}") as caught:
        updated(mine(**{name: change}))
    assert "\n" not in str(caught.value)


def test_results_are_passed_on() -> None:
    assert updated(mine()) == updated(PolicyLoss())
    metrics = updated(mine(of_prepare=lambda given: (tuple(given), {"kept": 1})))
    assert metrics["kept"] == 1


def test_a_fault_changes_no_weight() -> None:
    model = llama()
    learner = Learner(model, objective=mine(of_loss=lambda loss, sums: loss))
    with pytest.raises(ConfigError):
        learner.update(samples(), step=1)
    assert same(weights(model), weights(llama()))


def test_a_full_gpu_in_a_users_loss_still_names_the_keys_that_need_less_memory() -> None:
    with pytest.raises(RunError, match=r"^learning at step 1: CUDA out of memory; lower learner"):
        updated(mine(of_loss=full))


def test_an_error_of_the_scoring_function_stays_as_it_is() -> None:
    class Scoring(Mine):
        """An objective that scores the samples and does not catch errors."""

        def prepare(self, given: Any, score: Any) -> Any:
            return given, {"first": score(given)[0][0]}

    def fail(samples: Any, *, reference: bool = False) -> list[list[float]]:
        raise RuntimeError("device")

    with pytest.raises(RuntimeError, match=r"^device$"):
        prepared(Scoring(), samples(), fail)
    assert updated(Scoring())["first"] < 0
