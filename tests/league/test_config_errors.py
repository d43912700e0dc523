"""Tests that an invalid league is a one-line error when the config is checked."""

import re
import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from random import Random
from typing import Any

import pytest

from selfplay.arena import Arena
from selfplay.config import compose
from selfplay.config.instantiate import build
from selfplay.engines.scripted import ScriptedEngine
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import check
from selfplay.league.config import LeagueConfig
from selfplay.types import Observation
from tests.helpers.populations import population as population_of
from tests.helpers.repository import ROOT

GAME = (
    *("services=none", "arena=tic_tac_toe", "roles=tic_tac_toe", "curriculum=games"),
    *("evaluations=none", "warmstart=random_play", "credit=dr_grpo", "sampler.group_size=2"),
)
SCRIPT = "_target_: selfplay.engines.scripted.Scripted"
RANDOM = f"+population.opponents.random={{{SCRIPT}, script: arenas.games.opponents.random_legal}}"
VERSUS = (
    "+evaluations.versus={arena: ${arena}, tasks: [{_target_: selfplay.types.Task, id: game}], "
    "metrics: {}, opponents: [random]}"
)


class Repeating:
    """A callable with the arguments of a script, but not an engine."""

    def __call__(self, agent: str, observation: Observation, rng: Random) -> str:
        return "again"


MATCHMAKING = "league.players.default.matchmaking"


NODE = (
    "{_target_: selfplay.league.config.PlayerConfig, "
    "matchmaking: {_target_: selfplay.league.matchmaking.Latest}, "
    "add: {_target_: selfplay.league.snapshots.EveryNUpdates, updates: 1}}"
)


@pytest.mark.parametrize("name", compose.choices("league"))
def test_every_league_composes_and_validates(name: str) -> None:
    found = compose.load([*GAME, RANDOM, VERSUS, f"league={name}"])
    check(found)
    assert bool(found["league"]) == (name != "none")


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["league=anchors"], r"league\.players\.default\.matchmaking: there are no anchors; name"),
        (
            ["league=anchors", RANDOM, f"{MATCHMAKING}.ways.anchors.weights={{randm: 1}}"],
            r"matchmaking: no anchor 'randm'; did you mean 'random'",
        ),
        (
            ["league=pfsp", RANDOM, "league.anchors=[radnom]"],
            r"league\.anchors: no opponent 'radnom' in population\.opponents; did you mean",
        ),
        (
            ["league=pfsp", f"{MATCHMAKING}.ways.past.weighting=square"],
            r"weighting: 'square' does not fit: .*did you mean 'squared'",
        ),
        (["league=pfsp", "league.drop.most=0"], r"league\.drop: most must be at least 1"),
        (
            ["league=pfsp", "league.opponents_per_step=-1"],
            "opponents_per_step must not be negative",
        ),
        (["league=pfsp", "league.drops=1"], r"unknown key 'league\.drops'; did you mean"),
        (
            ["league=latest", "+league.players.exploiter=${league.players.default}"],
            r"league\.players: no policy 'exploiter' that learns; .* population\.extra_policies",
        ),
        (
            ["population.extra_policies=[spare]", "+population.roles.player=spare"],
            r"population\.extra_policies: 'spare' is no extra policy, because it plays the role",
        ),
        (
            ["population.extra_policies=[spare]"],
            r"population\.extra_policies: 'spare' has no role, and no league",
        ),
        (
            ["league=alphastar", "population.extra_policies=[]"],
            "no policy 'main_exploiter' that learns",
        ),
        (
            [
                "league=alphastar",
                "league.players.default.matchmaking._target_=selfplay.league.matchmaking.LeagueExploiter",
            ],
            "all are exploiters",
        ),
        (
            [
                f"+population.opponents.base={{{SCRIPT}, "
                "script: arenas.games.opponents.random_legal}"
            ],
            r"population\.opponents\.base: 'base' names a policy or role",
        ),
        (
            [f"+population.opponents.x={{{SCRIPT}, script: arenas.games.opponents.random_leagl}}"],
            r"population\.opponents\.x: script: no 'random_leagl' in .*did you mean 'random_legal'",
        ),
        (["+population.opponents.x={}"], "names neither an engine"),
        (["+population.opponents.x={model: a, learn: true}"], r"opponents\.x\.learn: unknown key"),
        (
            ["+population.opponents.x=7"],
            r"population\.opponents\.x: 7 cannot play; give it a model",
        ),
        (
            [f"+population.opponents.x={{_target_: {__name__}.Repeating}}"],
            r"opponents\.x: Repeating cannot play; write {_target_: selfplay\.engines\.scripted\.S",
        ),
        ([VERSUS], r"evaluations\.versus\.opponents: no policy or opponent 'random'"),
        (["+population.roles.player=random", RANDOM], "no policy learns"),
    ],
)
def test_an_invalid_config_is_a_one_line_error(overrides: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        check(compose.load([*GAME, *overrides]))
    assert "\n" not in str(caught.value)


def test_an_opponent_cannot_have_the_name_of_a_snapshot() -> None:
    with pytest.raises(ConfigError, match=r"population\.opponents\.a@1: a name has letters"):
        population_of(["player"], opponents={"a@1": {"model": "x"}})


class Two(Arena):
    """An arena of two players."""

    roles: Mapping[str, int] = {"player": 2}


def plan(arena: Arena, *overrides: str, **population: Any) -> LeagueConfig:
    node = compose.load([*GAME, "league=latest", *overrides])["league"]
    policies = population_of(arena.roles, **population)
    provided = {"arena": arena, "population": policies}
    made: LeagueConfig = build(node, where="league", provided=provided)
    return made


def test_the_seats_are_those_of_one_main_player() -> None:
    assert plan(Two()).contested == ["player_0", "player_1"] and plan(Two()).own == "base"
    three = Arena({"player": 2, "judge": 1})
    judged = plan(three, "league.seats=[player_0, player_1]", roles={"judge": "referee"})
    assert judged.contested == ["player_0", "player_1"]
    named = (
        r"agents player_0, player_1, judge_0 belong to different policies \(base, referee\); let "
    )
    with pytest.raises(ConfigError, match=f"{named}.*, or name in league.seats only agents of one"):
        plan(three, roles={"judge": "referee"})
    with pytest.raises(
        ConfigError, match=r"one \(population=shared\)$"
    ):  # two seats are the minimum
        plan(Arena({"player": 1, "judge": 1}), roles={"judge": "referee"})
    with pytest.raises(ConfigError, match=r"no agent 'player_2'; did you mean 'player_"):
        plan(Two(), "league.seats=[player_0, player_2]")
    with pytest.raises(ConfigError, match=r"two agents are needed, and there is \['player_0'\]"):
        plan(Arena({"player": 1}))
    with pytest.raises(
        ConfigError, match="'base', the policy of the league's seats, is not a main player"
    ):
        plan(Two(), "~league.players.default", f"+league.players.other={NODE}")
    with pytest.raises(ConfigError, match=r"default stands for 'base', .* both are named"):
        plan(Two(), f"+league.players.base={NODE}")


def test_the_seats_cannot_belong_to_an_opponent() -> None:
    with pytest.raises(ConfigError, match=r"'minimax', an opponent, .* \(learn: false") as caught:
        plan(
            Two(),
            roles={"player": "minimax"},
            opponents={"minimax": ScriptedEngine({})},
            extra_policies=["spare"],
        )
    assert "league.anchors" in str(caught.value) and "\n" not in str(caught.value)


def commands() -> list[str]:
    """Return the commands of the page docs/league.md."""
    text = (ROOT / "docs/league.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return "".join(blocks).replace("\\\n", " ").splitlines()


def test_the_commands_of_the_page_compose() -> None:
    assert commands()
    for command in commands():
        composed = compose.load(shlex.split(command, comments=True)[2:])
        if find_spec("ray") or "runtime=ray" not in command:
            check(composed)


def test_the_checkpoints_that_the_page_names_are_written() -> None:
    settings = {
        found["run"]["name"]: found["run"]
        for found in (
            compose.load(shlex.split(command, comments=True)[2:]) for command in commands()
        )
    }
    named = re.findall(r"runs/(\w+)/checkpoints/(\d+)", " ".join(commands()))
    assert named
    for run, step in named:
        steps = settings[run]["steps"]
        assert int(step) <= steps
        assert int(step) == steps or int(step) % settings[run]["checkpoint_every"] == 0
