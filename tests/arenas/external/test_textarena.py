"""Tests of TextArena games as arenas, in one file because the library takes seconds to load."""

import pickle
import random
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyspiel
import pytest
import textarena
from pettingzoo.test import api_test, seed_test

from arenas.external.textarena import TextArena
from selfplay.config.compose import load
from selfplay.config.instantiate import build
from selfplay.engines.scripted import ScriptedEngine
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import check
from selfplay.models.renderer import ByteRenderer, ChatRenderer
from selfplay.models.tiny import build_model
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.types import Observation, Status
from tests.helpers.engine_requests import serving
from tests.helpers.wrapped_games import GAME, play

WORDS = {
    "KuhnPoker-v0-short": ["[check]", "[bet]", "[call]", "[fold]"],
    "PublicGoodsGame-v0": ["{ hello }", "[5]", "[20]"],
    "IteratedRockPaperScissors-v0": ["[rock]", "[paper]", "[scissors]"],
    "GuessTheNumber-v0": [f"[{number}]" for number in range(1, 21)],
}
PLAYERS = {"PublicGoodsGame-v0": 3, "GuessTheNumber-v0": 1, "ThreePlayerTicTacToe-v0": 3}
GAMES = ["TicTacToe-v0", "TicTacToe-v0-raw", "ThreePlayerTicTacToe-v0", *WORDS]


def free_squares(game: Any, player: int) -> list[str]:
    board = game.state.game_state["board"]
    size = len(board)
    return [f"[{size * r + c}]" for r in range(size) for c in range(size) if not board[r][c]]


def talker(name: str) -> Any:
    """Return a script that says a text of `WORDS`, or a square that the game listed last."""

    def script(agent: str, observation: Observation, rng: Random) -> str:
        listed = re.findall(r"\[\d+\]", observation.text.rpartition("vailable Moves")[2])
        return rng.choice(WORDS.get(name) or listed)

    return script


@pytest.mark.parametrize("name", GAMES)
def test_whole_games_are_paid_as_the_game_pays(name: str) -> None:
    players, engine = PLAYERS.get(name, 2), ScriptedEngine({"p": talker(name)})
    for episode, arena in play(lambda: TextArena(env=name, players=players), engine, 10):
        assert episode.status is Status.FINISHED, episode.error
        # the library alone plays one game after the other with its global generators
        game = textarena.make(name)
        game.reset(num_players=players, seed=arena.env_seed)
        done = False
        for turn in episode.turns:
            assert not done
            player, _ = game.get_observation()
            assert turn.agent == f"player_{player}"
            done, _ = game.step(turn.text)
        assert done
        rewards, _ = game.close()
        assert arena.paid == {f"player_{player}": reward for player, reward in rewards.items()}
        if name.startswith("TicTacToe"):
            assert episode.metrics["illegal"] == 0


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("TicTacToe-v0", free_squares),
        ("IteratedRockPaperScissors-v0", lambda game, player: ["[rock]", "[paper]", "[scissors]"]),
    ],
)
def test_a_tiny_policy_plays_to_the_end(name: str, legal: Any, renderer: ChatRenderer) -> None:
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "positions": 30_000}
    model = build_model(len(renderer.tokenizer), seed=0, **sizes).eval()
    engine = serving({"p": model}, {"p": renderer.end_ids})

    def make() -> TextArena:
        # this version shows the board and not the whole conversation
        return TextArena(env=f"{name}-train", illegal="random_legal", legal_moves=legal)

    for episode, arena in play(make, engine, 10, renderer=renderer, max_tokens=2):
        assert episode.status is Status.FINISHED, episode.error
        assert episode.metrics["illegal"] == len(episode.turns) > 0  # noise is never a legal move
        rewards, _ = arena.wrapped.close()
        assert arena.paid == {f"player_{player}": reward for player, reward in rewards.items()}


def test_textarena_and_openspiel_pay_the_same_for_the_same_moves() -> None:
    outcomes = set()
    for seed in range(40):
        arena, rng = TextArena(env="TicTacToe-v0", legal_moves=free_squares), Random(seed)
        arena.begin(GAME, seed=seed)
        state = pyspiel.load_game("tic_tac_toe").new_initial_state()
        while not arena.finished:
            (agent,) = arena.stage
            legal = arena.view(agent).fields["legal"]
            assert [int(text[1:-1]) for text in legal] == state.legal_actions()
            move = rng.choice(legal)
            arena.play_stage({agent: move})
            state.apply_action(int(move[1:-1]))
        assert state.is_terminal() and list(state.returns()) == [*map(arena.paid.get, arena.paid)]
        outcomes.add(tuple(state.returns()))
    assert outcomes == {(1, -1), (-1, 1), (0, 0)}


@pytest.mark.parametrize("rule", ["lose", "retry"])
def test_pettingzoo_conformance(rule: Any) -> None:
    def make() -> TextArena:
        return TextArena(env="KuhnPoker-v0-short", illegal=rule)

    api_test(make(), num_cycles=20)
    seed_test(make, num_cycles=5)


def test_illegal_moves_are_counted_and_judged_by_the_rule() -> None:
    strict = TextArena(env="TicTacToe-v0", illegal="lose")
    strict.begin(GAME, seed=0)
    strict.play_stage({"player_0": "[9]"})
    assert strict.finished and strict.paid == {"player_0": -1.0, "player_1": 1.0}
    assert strict.metrics["illegal"] == strict.metrics["forfeit"] == 1

    patient = TextArena(env="TicTacToe-v0", retries=2)
    patient.begin(GAME, seed=0)
    for _ in range(2):
        patient.play_stage({"player_0": "nonsense"})
        assert patient.stage == ("player_0",) and patient.notes["player_0"]["verdict"] == "illegal"
    assert "attempted an invalid move" in patient.view("player_0").text
    patient.play_stage({"player_0": "[4]"})
    assert patient.stage == ("player_1",) and not patient.notes
    for text in ("[4]", "[4]", None):
        assert not patient.finished
        patient.play_stage({"player_1": text})
    assert patient.finished and patient.paid["player_0"] == 1 and patient.metrics["illegal"] == 5

    settings: Any = {"illegal": "random_legal", "legal_moves": free_squares}
    lenient = TextArena(env="TicTacToe-v0", **settings)
    lenient.begin(GAME, seed=0)
    while not lenient.finished:
        lenient.play_stage({lenient.stage[0]: "nonsense"})
    assert lenient.metrics["illegal"] == lenient.metrics["moves"] >= 5
    assert lenient.metrics["illegal_fraction"] == 1.0
    assert lenient.metrics["forfeit"] == 0 and sum(lenient.paid.values()) == 0


@pytest.mark.parametrize(
    "text", ["\x00" * 9, "\ud800", "[" * 5000, "[99999999999999999999]", "[٣]"]
)
def test_hostile_text_raises_nothing(text: str) -> None:
    for name in ("TicTacToe-v0", "PublicGoodsGame-v0", "SimpleNegotiation-v0"):
        arena = TextArena(env=name, players=PLAYERS.get(name, 2))
        arena.begin(GAME, seed=0)
        for _ in range(6):
            if not arena.finished:
                arena.play_stage(dict.fromkeys(arena.stage, text))


@pytest.mark.parametrize("name", ["KuhnPoker-v0-short", "LiarsDice-v0", "PublicGoodsGame-v0"])
def test_forks_pickles_and_replays_are_independent(name: str) -> None:
    arena = TextArena(env=name, players=3 if name.startswith("P") else 2)
    arena.begin(GAME, seed=5)
    say, rng = talker(name), random.Random(0)
    WORDS.setdefault("LiarsDice-v0", ["[Bid: 1, 2]", "[Bid: 3, 4]", "[Call]"])

    def turn(played: TextArena) -> None:
        (agent,) = played.stage
        played.play_stage({agent: say(agent, played.view(agent), rng)})

    turn(arena)
    before = arena.place()
    copies = [arena.fork(), pickle.loads(pickle.dumps(arena))]
    for copied in copies:
        assert copied.place() == before
        rng.seed(1)
        while not copied.finished:
            turn(copied)
    assert arena.place() == before and not arena.finished
    rng.seed(1)
    while not arena.finished:
        turn(arena)
    paid, history = dict(arena.paid), list(arena.history)
    assert any(paid.values()) and all(copied.paid == paid for copied in copies)
    arena.replay(history)
    assert arena.paid == paid


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"env": "TicTacTo-v0"}, "game TicTacTo-v0: unknown; did you mean 'TicTacToe-v0'?"),
        ({"env": "TicTacToe-v0", "players": 3}, "cannot be begun with players=3: AssertionError"),
        ({"env": "TicTacToe-v0", "players": 0}, "players: 0 is less than 1"),
        ({"env": "TicTacToe-v0", "arguments": {"size": 9}}, "cannot be made: TypeError: "),
        ({"env": "TicTacToe-v0", "seats": ["x"]}, "game TicTacToe-v0: seats: 1 roles for the"),
        ({"env": "TicTacToe-v0", "illegal": "random_legal"}, "random_legal needs legal_moves"),
        ({"env": "TicTacToe-v0", "illegal": "loose"}, "did you mean 'lose'?"),
        ({"env": "TicTacToe-v0", "legal_moves": "re.none"}, "legal_moves: no 'none' in re"),
    ],
)
def test_a_game_that_cannot_be_made_is_a_one_line_error(
    settings: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build({"_target_": "arenas.external.textarena.TextArena", **settings}, where="arena")
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(
        ConfigError, match=r"needs the package 'textarena'; pip install 'selfplay\["
    ):
        TextArena(env="TicTacToe-v0")


def broken(step: Callable[[Any, str], Any], *, rewards: Any = None) -> str:
    """Return the error of an episode whose game has this `step` and these final rewards."""
    arena = TextArena(env="TicTacToe-v0-raw")
    make = arena.make_game

    def make_broken() -> Any:
        game = make()
        game.step = lambda action: step(game, action)
        game.close = lambda: (rewards, {})
        return game

    arena.make_game = make_broken  # type: ignore[method-assign]
    agent_spec = AgentSpec(role=Role(), policy="p", renderer=ByteRenderer())
    engines = {"p": ScriptedEngine({"p": talker("TicTacToe-v0")})}
    rollout = Rollout(arena=lambda: arena, agent_specs={"player": agent_spec}, engines=engines)
    (episode,) = rollout.run([EpisodeSpec(task=GAME, seed=0)])
    assert episode.status is Status.FAILED
    return episode.error


def test_a_broken_game_is_a_failed_episode_with_its_reason() -> None:
    def over(game: Any, action: str) -> Any:
        return True, {}

    def leave(game: Any, action: str) -> Any:
        raise SystemExit

    def confuse(game: Any, action: str) -> Any:
        game.state.current_player_id = 7
        game.state.observations[7] = []
        return False, {}

    divided = broken(lambda game, action: 1 / 0)
    assert divided.startswith("ZeroDivisionError: division by zero (")
    assert f"{Path(__file__).name}, line" in divided
    assert broken(leave) == "BrokenEnv: the game tried to exit the process"
    assert broken(over) == "BrokenEnv: ended with rewards None"
    assert broken(over, rewards={0: 1}) == "BrokenEnv: pays players [0] of [0, 1]"
    nan = {0: float("nan"), 1: 0}
    assert broken(over, rewards=nan) == "BrokenEnv: pays player_0 a reward of nan"
    assert broken(confuse) == "BrokenEnv: asks player 7, but there are 2"


def test_the_config_composes() -> None:
    groups = ["roles=textarena", "curriculum=games", "evaluations=none", "warmstart=none"]
    config = load(["arena=textarena", *groups, "services=none", "credit=grpo"])
    check(config)
    node = {key: value for key, value in config["arena"].items() if key != "_target_"}
    arena = TextArena(**node)
    arena.begin(arena.default_task(Random(0)), seed=0)
    role = build(config["roles"]["player"])
    (message,) = role.prompt(arena.view("player_0"))
    assert message["content"].endswith("Answer with your move or your message, and nothing else.")
    assert "Tic Tac Toe" in message["content"]
