"""Players of a study: configs that are not those of a run are one line."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from selfplay.config.trust import TrustLimit, limited
from selfplay.errors import ConfigError, RunError
from selfplay.study.measures.compare import measure_all
from selfplay.study.players import Reference
from selfplay.study.result import Result

WHOLE = {"population": "{}", "roles": "{}", "seed": "0", "warmstart": "null"}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"roles": None}, "has no 'roles'"),
        ({"seed": None}, "has no 'seed'"),
        ({"population": None}, "has no 'population'"),
        ({"seed": "null"}, "seed is None; write the whole number"),
        ({"seed": "abc"}, "seed is 'abc'; write the whole number"),
        ({"roles": "null"}, "roles is None"),
    ],
)
def test_a_config_that_is_not_of_a_run_is_one_line(
    tmp_path: Path, changed: dict[str, str | None], told: str
) -> None:
    lines = [f"{key}: {value}" for key, value in {**WHOLE, **changed}.items() if value is not None]
    (tmp_path / "config.yaml").write_text("\n".join(lines) + "\n")
    reference = Reference(run=tmp_path)
    with ExitStack() as opened, pytest.raises(RunError, match=told):
        reference.load(["player"], opened=opened)
    with pytest.raises(RunError, match=told):
        reference.missing(["player"])
    with pytest.raises(RunError, match=told):
        measure_all({"a": [reference]}, lambda _: pytest.fail("it is studied"))


def test_the_seeds_of_runs_are_compared_without_the_code_that_a_run_names(tmp_path: Path) -> None:
    lines = [f"{key}: {value}" for key, value in {**WHOLE, "seed": "7"}.items()]
    lines += ["arena:", "  _target_: my_games.vault.Vault"]
    (tmp_path / "config.yaml").write_text("\n".join(lines) + "\n")
    reference = Reference(run=tmp_path)
    with limited(TrustLimit()):
        with ExitStack() as opened, pytest.raises(ConfigError, match="my_games"):
            reference.load(["player"], opened=opened)
        found = measure_all(
            {"a": [reference]}, lambda _: Result(measure="x", title="", definition="")
        )
    assert [each.seed for each in found["a"]] == [7]
