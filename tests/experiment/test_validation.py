"""Objects of a run that do not fit each other are refused in one line."""

import pytest

from selfplay.config import compose
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import check

QUICK = "+experiment=tiny/quickstart"
FALLING = "sampling.default.temperature={steps: [0, 3], values: [1, 0]}"


@pytest.mark.parametrize(
    ("override", "step"), [("sampling.default.temperature=0", 1), (FALLING, 3)]
)
def test_a_policy_that_learns_at_temperature_0_is_refused(override: str, step: int) -> None:
    with pytest.raises(ConfigError, match=rf"samples at temperature 0 in step {step}, and its"):
        check(compose.load([QUICK, override]))


@pytest.mark.parametrize(
    "overrides",
    [
        (FALLING, "run.steps=2"),
        ("sampling.default.temperature=0", "run.steps=0"),
        (
            "population=separate",
            "+population.overrides.proposer.learn=false",
            "+sampling.proposer.temperature=0",
        ),
    ],
)
def test_temperature_0_is_for_policies_that_do_not_learn_then(overrides: tuple[str, ...]) -> None:
    check(compose.load([QUICK, *overrides]))
