"""Players of a study, and errors for configs that are not of a run."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from selfplay.config.trust import TrustLimit, limited
from selfplay.errors import ConfigError, RunError
from selfplay.models.policy_settings import PolicySettings
from selfplay.models.population import Population
from selfplay.models.warmstart_settings import WarmStartSettings
from selfplay.study.measures.compare import measure_all
from selfplay.study.players import Reference, StudyPlayer, fixed_of, roles_played_alike
from selfplay.study.result import Result

WHOLE = {"population": "{}", "roles": "{}", "seed": "0", "warmstart": "null"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"roles": None}, "has no 'roles'"),
        ({"seed": None}, "has no 'seed'"),
        ({"population": None}, "has no 'population'"),
        ({"seed": "null"}, "seed is None; write the whole number"),
        ({"seed": "abc"}, "seed is 'abc'; write the whole number"),
        ({"roles": "null"}, "roles is None"),
    ],
)
def test_a_config_that_is_not_of_a_run_is_refused(
    tmp_path: Path, changed: dict[str, str | None], message: str
) -> None:
    lines = [f"{key}: {value}" for key, value in {**WHOLE, **changed}.items() if value is not None]
    (tmp_path / "config.yaml").write_text("\n".join(lines) + "\n")
    reference = Reference(run=tmp_path)
    with ExitStack() as opened, pytest.raises(RunError, match=message):
        reference.load(["player"], opened=opened)
    with pytest.raises(RunError, match=message):
        reference.missing(["player"])
    with pytest.raises(RunError, match=message):
        measure_all({"a": [reference]}, lambda _: pytest.fail("the run is studied"))


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


def test_an_opponent_and_a_frozen_model_play_alike_in_every_run() -> None:
    """A frozen policy without a model depends on the run's own warm start, so it is left out."""
    made = Population(
        policy=PolicySettings(model="some/model"),
        role_names=["solver", "judge", "critic"],
        warmstart=WarmStartSettings(),
        sharing="separate",
        overrides={"judge": {"learn": False}, "critic": {"learn": False, "model": None}},
    )
    script = {"_target_": "my_games.guard"}
    fixed = fixed_of(made, {"guard": script})
    assert fixed == {"guard": script, "judge": PolicySettings(model="some/model", learn=False)}


def test_a_role_is_played_alike_if_all_players_seat_the_same_opponent() -> None:
    def seated(**fixed: str) -> StudyPlayer:
        return StudyPlayer(label="x", policies={}, fixed=fixed)

    one, same = seated(judge="guard", critic="calm"), seated(judge="guard", critic="harsh")
    assert roles_played_alike([one, same]) == ["judge"]
    assert roles_played_alike([one, same, seated()]) == []
    assert roles_played_alike([seated(), one]) == []
