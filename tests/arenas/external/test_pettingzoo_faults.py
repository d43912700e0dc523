"""Tests of envs that are missing, that cannot be made, or that break PettingZoo's contract."""

import sys
from pathlib import Path
from typing import Any

import pytest

from arenas.external.pettingzoo import PettingZoo
from arenas.games.opponents import random_legal
from selfplay.config.instantiate import build
from selfplay.engines.scripted import ScriptedEngine
from selfplay.errors import ConfigError
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.types import Episode, Status, Task
from tests.helpers import pettingzoo_envs
from tests.helpers.pettingzoo_envs import Countdown

ENVS = pettingzoo_envs.__name__


CONTRACT = [
    (pettingzoo_envs.StepRaises, "KeyError: no such square"),
    (pettingzoo_envs.ResetRaises, "RuntimeError: out of cards"),
    (pettingzoo_envs.NoAgentsLeft, "BrokenEnv: reset leaves no agents"),
    (pettingzoo_envs.Leaves, "BrokenEnv: the game tried to exit the process"),
    (pettingzoo_envs.PaysNaN, "BrokenEnv: pays player_0 a reward of nan"),
    (pettingzoo_envs.PaysUnknownAgent, "BrokenEnv: pays 'stranger', which is none of its possible"),
    (
        pettingzoo_envs.SelectsUnknownAgent,
        "BrokenEnv: selects 'stranger', which is none of its living",
    ),
    (pettingzoo_envs.AllowsNothing, "BrokenEnv: player_0 is to move and its mask allows no action"),
    (pettingzoo_envs.WrongMask, "ValueError: the mask has shape (7,), but there are 3 actions"),
    (pettingzoo_envs.KeepsDeadAgents, "BrokenEnv: does not remove its dead agents"),
    (pettingzoo_envs.DropsDeadAgents, "KeyError: 'left'"),
]


def play(arenas: list[PettingZoo]) -> list[Episode]:
    upcoming = iter(arenas)
    agent_specs = {"player": AgentSpec(role=Role(), policy="p", renderer=ByteRenderer())}
    engines = {"p": ScriptedEngine({"p": random_legal})}
    rollout = Rollout(arena=lambda: next(upcoming), agent_specs=agent_specs, engines=engines)
    return rollout.run(
        [EpisodeSpec(task=Task(id="game"), seed=seed) for seed in range(len(arenas))]
    )


@pytest.mark.parametrize(("env", "reason"), CONTRACT)
def test_a_broken_env_is_a_failed_episode_with_its_reason(env: Any, reason: str) -> None:
    sound, broken, other = play([PettingZoo(env=each) for each in (Countdown, env, Countdown)])
    assert broken.status is Status.FAILED and broken.error.startswith(reason)
    assert sound.status is other.status is Status.FINISHED
    assert not broken.metrics


def test_a_rendering_that_fails_is_a_failed_episode() -> None:
    arenas = [
        PettingZoo(env=Countdown, render=lambda env, agent, seen: seen["nothing"]),
        PettingZoo(env=Countdown, render=lambda env, agent, seen: 7),  # type: ignore[arg-type,return-value]
        PettingZoo(env=Countdown, action_names=["one"]),
        PettingZoo(env=Countdown, action_names=["one", "two", "two"]),
    ]
    errors = [episode.error for episode in play(arenas)]
    assert errors[0].startswith("KeyError: 'nothing' (")
    assert f"{Path(__file__).name}, line" in errors[0]
    assert errors[1] == "TypeError: render returned a int, not text"
    assert errors[2].startswith("IndexError")
    assert errors[3] == "ValueError: two of 2 legal actions have the same name"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"env": "classic/tictactoe-v9"},
            "env classic/tictactoe-v9: not in PettingZoo's registry; did you mean "
            "'classic/tictactoe-v3'?",
        ),
        ({"env": "clasic/chess_v6"}, "did you mean 'classic/chess-v6'?"),
        (
            {"env": "pettingzoo.classic.tictactoe_v2"},
            "cannot be imported: tictactoe_v2 is now deprecated, use tictactoe_v3 instead",
        ),
        ({"env": "nowhere.at.all"}, "env nowhere.at.all: no module 'nowhere'; run in the folder"),
        ({"env": "tictactoe-v3"}, "'tictactoe-v3' is no import path, such as package.module.name"),
        ({"env": f"{ENVS}.Cuntdown"}, f"no 'Cuntdown' in {ENVS}; did you mean 'Countd"),
        (
            {"env": ENVS},
            f"env {ENVS}: the module has none of env, parallel_env",
        ),
        ({"env": "pettingzoo.classic.tictacto_v3"}, "no 'tictacto_v3' in pettingzoo.classic; did"),
        ({"env": f"{ENVS}.no_env"}, f"env {ENVS}.no_env: a str is no PettingZoo env"),
        (
            {"env": f"{ENVS}.Countdown", "arguments": {"lenght": 3}},
            f"env {ENVS}.Countdown: cannot be made with (lenght=3): TypeError: ",
        ),
        ({"env": f"{ENVS}.Unnamed"}, "names no possible_agents, so it has no players"),
        ({"env": f"{ENVS}.Structured"}, "moves of a Dict space cannot be written as text"),
        ({"env": f"{ENVS}.Picture"}, "has 100800 numbers, too many to write; name a function"),
        (
            {"env": f"{ENVS}.Countdown", "seats": ["first"]},
            f"env {ENVS}.Countdown: seats: 1 roles for the agents left, right",
        ),
        ({"env": f"{ENVS}.Countdown", "render": f"{ENVS}.shwo"}, "render: no 'shwo' in"),
        ({"env": f"{ENVS}.Countdown", "render": f"{ENVS}.random"}, "is no function or class"),
        ({"env": f"{ENVS}.Countdown", "illegal": "loose"}, "did you mean 'lose'?"),
        ({"env": f"{ENVS}.Countdown", "retries": -1}, "retries: -1 is negative"),
        (
            {"env": "arenas.external.openspiel", "arguments": {"game": "kuhn"}},
            "OpenSpiel has no game 'kuhn'; the nearest of its ",
        ),
        (
            {"env": "arenas.external.openspiel", "arguments": {"game": "mfg_garnet"}},
            "OpenSpiel's mfg_garnet is a mean-field game, ",
        ),
    ],
)
def test_an_env_that_cannot_be_made_is_a_one_line_error(
    settings: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build({"_target_": "arenas.external.pettingzoo.PettingZoo", **settings}, where="arena")
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_game_of_openspiel_names_the_nearest_few(capfd: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        PettingZoo(env="arenas.external.openspiel", arguments={"game": "conect_four(rows=6)"})
    line = str(caught.value)
    assert "no game 'conect_four'" in line and "connect_four" in line and len(line) < 200
    assert not capfd.readouterr().err


@pytest.mark.parametrize(
    ("package", "install"),
    [
        ("multi_agent_ale_py", "pip install 'pettingzoo[atari]'"),
        ("Box2D", "pip install 'pettingzoo[sisl]'"),
        ("pymunk", "pip install 'pettingzoo[butterfly]'"),
        ("rlcard", "pip install 'selfplay[games]'"),
        ("nowhere_at_all", "install the package that provides it"),
    ],
)
def test_the_error_names_the_command_that_installs_a_package(
    package: str, install: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"needs_{package}.py").write_text(f"import {package}.part\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as caught:
        PettingZoo(env=f"needs_{package}.env")
    assert f"needs the package '{package}', which is not installed; {install}" in str(caught.value)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_puzzles.py").write_text("import nowhere_at_all\n")
    (tmp_path / "my_riddles.py").write_text("raise ImportError('built for\\nanother Python')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match=r"env my_puzzles\.env: needs the package 'nowhere_at_all'"
    ):
        PettingZoo(env="my_puzzles.env")
    with pytest.raises(ConfigError, match="cannot be imported: built for another Python"):
        PettingZoo(env="my_riddles.env")


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("sisl/multiwalker-v9", "Box2D", "sisl"), ("atari/pong-v3", "multi_agent_ale_py", "atari")],
)
def test_the_registry_names_a_missing_package(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as caught:
        PettingZoo(env=name)
    assert f"env {name}: needs the package {package!r}, which is not installed" in str(caught.value)
    assert f"pip install 'pettingzoo[{extra}]'" in str(caught.value)
