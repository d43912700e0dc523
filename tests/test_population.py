"""Who plays whom."""

from typing import Any

import pytest

from selfplay.errors import ConfigError
from selfplay.population import Population
from selfplay.settings import Settings

ROLES = ["proposer", "solver"]
POLICY = {"model": "m", "learn": True}


def made(**fields: Any) -> Population:
    return Population(policy=POLICY, **fields)


def test_all_roles_share_one_policy() -> None:
    assert made().policies(ROLES) == {"base": POLICY}
    assert made().policy_of("solver") == "base"


def test_every_role_has_its_own() -> None:
    found = made(sharing="separate").policies(iter(ROLES))
    assert found == {"proposer": POLICY, "solver": POLICY}
    found["solver"]["learn"] = False
    assert POLICY["learn"] is True


def test_a_table_says_who_has_which() -> None:
    table = made(roles={"solver": "old"}, special={"old": {"learn": False, "model": "n"}})
    assert table.policies(ROLES) == {"base": POLICY, "old": {"model": "n", "learn": False}}
    assert table.policy_of("solver") == "old"
    nobody = made(roles={"proposer": "p", "solver": "s"})
    assert list(nobody.policies(ROLES)) == ["p", "s"], "base is not made where no role has it"
    back = made(sharing="separate", roles={"solver": "proposer"})
    assert list(back.policies(ROLES)) == ["proposer"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"roles": {"slover": "base"}}, "no role 'slover'; did you mean 'solver'"),
        ({"special": {"bass": {}}}, "no policy 'bass'; did you mean 'base'"),
        ({"special": {"base": {"lern": False}}}, "special.base.lern: .*did you mean 'learn'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(fields: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(**fields).policies(ROLES)
    with pytest.raises(ConfigError, match=r"policy.modle: .*did you mean 'model'"):
        Population(policy={"modle": "m"}).policies(iter(ROLES))


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": -1},
        {"checkpoint_every": 0},
        {"keep_checkpoints": 0},
        {"episodes_every": -1},
        {"threads": -1},
        {"max_failed_share": 1.5},
    ],
)
def test_settings_of_the_run_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**{"steps": 1, **wrong})


def test_how_often_episodes_are_kept() -> None:
    assert [Settings(steps=1, episodes_every=3).keeps_episodes(step) for step in (1, 3)] == [0, 1]
    assert not Settings(steps=1, episodes_every=0).keeps_episodes(5)
