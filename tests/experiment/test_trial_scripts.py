"""Test of scripts that play a role in the games of `selfplay check`."""

from random import Random
from typing import Any

from selfplay.config import compose
from selfplay.experiment.trial_game import CheckedGame, games

HERE = __name__


def steady(agent: str, observation: Any, rng: Random) -> str:
    """Return the same text for every observation."""
    return f"the script of {agent} speaks"


def broken(agent: str, observation: Any, rng: Random) -> str:
    """Raise an error."""
    raise KeyError("card")


def test_a_script_plays_its_role() -> None:
    """The script also plays where a check would choose actions at random."""

    def game(script: str) -> CheckedGame:
        config = compose.load(["+experiment=tiny/judged_debate", "evaluations=none"])
        config["population"]["opponents"] = {
            "fixed": {"_target_": "selfplay.engines.scripted.Scripted", "script": script}
        }
        config["population"]["roles"] = {"judge": "fixed"}
        (found,) = games(config, seed=0)
        return found

    shown = "\n".join(game(f"{HERE}.steady").shown)
    assert "the script of judge_0 speaks" in shown and "the script of debater" not in shown
    (fault,) = game(f"{HERE}.broken").faults
    assert "opponent 'fixed'" in fault and "KeyError" in fault


def test_policies_are_named_with_their_roles() -> None:
    words = ["arena=prisoners_dilemma", "arena.players=[first, second]", "roles=dilemma"]
    mine = "+population.roles={first: hawk, second: dove}"
    frozen = "+population.overrides.dove.learn=false"
    config = compose.load([*words, "curriculum=matrix", "evaluations=none", mine, frozen])
    (game,) = games(config, seed=0)
    assert game.shown[0] == "policies: hawk (first), dove (second) does not learn"
