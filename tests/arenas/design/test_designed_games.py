"""Tests of designed games: pay by hand, refused designs, play tasks and scripted rollouts."""

import json
import pickle
from collections.abc import Mapping
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.design.arena import DesignedGames, env, raw_env, spread
from arenas.design.matrix_designs import MatrixDesigns
from arenas.design.space import Settings, names_of, play_task, play_tasks
from roles.designer import Designer
from roles.player import Player
from selfplay.arena import Arena
from selfplay.curriculum.self_proposed import ProposalCurriculum
from selfplay.curriculum.task_buffer import TaskBuffer
from selfplay.engines.scripted import ScriptedEngine
from selfplay.errors import ConfigError
from selfplay.models.renderer import ByteRenderer
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.types import Action, Group, Observation, Task

SPACE = MatrixDesigns(rounds=(1, 2))
STAG = {"rounds": 1, "payoffs": [[4, 0], [0, 3]]}
DESIGN = Task(id="design", type="matrix", payload={"mode": "propose", "known": 0})
GOOD, SAFE, MISS = ("a", "a"), ("b", "b"), ("a", "b")  # scores 1, 0.75 and 0


def begun(task: Task = DESIGN, **settings: Any) -> DesignedGames:
    arena = raw_env(**{"space": SPACE, "plays": 4, **settings})
    arena.begin(task, seed=0)
    return arena


def design(arena: DesignedGames, settings: Any) -> str:
    """Make a design; return the verdict on it."""
    arena.play_stage({"designer_0": json.dumps(settings)})
    return str(arena.notes["designer_0"]["verdict"])


def play(arena: DesignedGames, *pairs: tuple[str | None, str | None]) -> None:
    moves = [move for pair in pairs for move in pair]
    arena.play_stage({f"player_{number}": move for number, move in enumerate(moves)})


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=20)
    api_test(raw_env(designers=0), num_cycles=60)
    api_test(env(), num_cycles=20)
    seed_test(raw_env, num_cycles=10)
    made = pettingzoo.make("aec", "selfplay/designed_games_v0")
    assert made.unwrapped.name == "designed_games_v0"


@pytest.mark.parametrize(
    ("pairs", "spread_pay", "regret_pay"),
    [
        ([GOOD, GOOD, MISS, MISS], 1.0, 0.5),  # mean 1/2, variance 1/4
        ([GOOD, MISS, MISS, MISS], 0.75, 0.75),  # p = 1/4: 4 p (1 - p)
        ([GOOD] * 4, 0.0, 0.0),
        ([MISS] * 4, 0.0, 1.0),
        ([SAFE] * 4, 0.0, 0.25),
        # scores 1, 1, 0.75, 0.75: mean 0.875, deviations 0.125
        ([GOOD, GOOD, SAFE, SAFE], 0.0625, 0.125),
        ([GOOD, GOOD, ("x", "a"), (None, None)], 1.0, 0.5),
    ],
)
def test_the_designer_is_paid_by_the_scores(
    pairs: list[tuple[str, str]], spread_pay: float, regret_pay: float
) -> None:
    for pay, expected in (("spread", spread_pay), ("regret", regret_pay), ("none", 0.0)):
        arena = begun(pay=pay)
        assert design(arena, STAG) == "valid" and not arena.finished
        play(arena, *pairs)
        assert arena.finished and arena.paid["designer_0"] == pytest.approx(expected)
        assert arena.metrics["score"] == pytest.approx(1 - regret_pay)
        assert arena.metrics["designed_spread"] == pytest.approx(spread_pay)
        assert arena.metrics["solved"] == pairs.count(GOOD)
        assert [task.id for task in arena.created] == [play_task(SPACE, STAG).id]


def test_the_players_are_paid_by_the_table() -> None:
    arena = begun(plays=3)
    design(arena, STAG)
    play(arena, GOOD, SAFE, ("a", "everything"))
    paid = [arena.paid[f"player_{number}"] for number in range(6)]
    assert paid == [4, 4, 3, 3, 0, -1]
    assert arena.notes["player_5"] == {"verdict": "illegal"}
    assert arena.metrics["illegal_fraction"] == pytest.approx(1 / 6)


def test_a_random_pay_is_drawn_from_the_seed() -> None:
    found = set()
    for seed in (1, 1, 2):
        arena = raw_env(space=SPACE, plays=1, pay="random")
        arena.begin(DESIGN, seed)
        design(arena, STAG)
        play(arena, GOOD)
        found.add(arena.paid["designer_0"])
    assert len(found) == 2 and all(0 <= pay < 1 for pay in found)


def test_games_of_several_rounds_are_played_in_parallel() -> None:
    arena = begun(plays=2)
    design(arena, {**STAG, "rounds": 2})
    play(arena, GOOD, MISS)
    assert not arena.finished
    assert arena.view("player_3").fields["history"][0]["theirs"] == "a"
    play(arena, GOOD, GOOD)
    # scores 1 and 1/2: mean 3/4, deviations 1/4
    assert arena.finished and arena.paid["designer_0"] == pytest.approx(0.25)
    assert arena.paid["player_3"] == 4 and arena.paid["player_0"] == 8


def test_an_invalid_design_ends_the_episode() -> None:
    arena = begun(invalid=-0.5)
    assert design(arena, {"rounds": 1, "payoffs": [[1, 1], [1, 1]]}) == "flat"
    assert arena.finished and arena.paid["designer_0"] == -0.5 and not arena.created
    assert arena.metrics == {"valid_design": 0, "new_design": 0}


def test_a_known_or_held_out_game_is_not_played() -> None:
    buffer = TaskBuffer()
    buffer.add(play_task(SPACE, STAG), step=0)
    other_order = {"rounds": 1, "payoffs": [[0, 3], [4, 0]]}
    for known, verdict in ((0, "valid"), (1, "duplicate")):
        task = Task(id="d", type="matrix", payload={"mode": "propose", "known": known})
        arena = begun(task, buffer=buffer, duplicate=-0.25)
        assert design(arena, other_order) == verdict
        assert arena.paid["designer_0"] == (-0.25 if known else 0)
        assert arena.metrics["valid_design"] == 1 and arena.finished == bool(known)
    arena = begun(forbidden=names_of([play_task(SPACE, other_order)]))
    assert design(arena, STAG) == "held_out" and arena.finished


@pytest.mark.parametrize(
    "text", [None, "", "\ud800", "[" * 100_000, "9" * 4_000_000, "{}", '{"rounds": NaN}']
)
def test_any_text_is_handled(text: str | None) -> None:
    arena = begun(longest=1_000_000)
    arena.play_stage({"designer_0": text})
    assert arena.finished and arena.paid["designer_0"] == -1
    arena = begun(play_task(SPACE, STAG), plays=1)
    play(arena, (text, text))
    assert arena.finished and arena.metrics["score"] == 0


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"settings": None},
        {"settings": [1]},
        {"settings": {"rounds": 1, "payoffs": [[1, 2], [3, 999]]}},
        {"settings": {**STAG, "_target_": "os.system"}},
    ],
)
def test_a_task_with_a_bad_design_is_one_clear_error(payload: Any) -> None:
    with pytest.raises(ValueError, match="task bad: no design in `settings`"):
        begun(Task(id="bad", type="matrix", payload={"mode": "play", **payload}))


@pytest.mark.parametrize("references", [[{}], [None], [{"settings": {"rounds": 1}}]])
def test_a_task_with_a_bad_reference_is_one_clear_error(references: Any) -> None:
    payload = {"mode": "propose", "known": 0, "references": references}
    with pytest.raises(ValueError, match="task bad: no design in `settings`"):
        begun(Task(id="bad", type="matrix", payload=payload))


def test_a_designer_has_no_data_for_tools() -> None:
    with pytest.raises(ConfigError, match="no data for the tools of designer_0"):
        begun().tool_state("designer_0", [])


def test_a_task_of_another_space_is_one_clear_error() -> None:
    with pytest.raises(ValueError, match=r"task d: its type is 'desk'.*curriculum.types"):
        begun(Task(id="d", type="desk", payload=DESIGN.payload))


def test_a_task_to_design_needs_a_designer() -> None:
    with pytest.raises(ValueError, match="needs designers: 1"):
        begun(DESIGN, designers=0)


def test_replays_and_forks_are_paid_the_same() -> None:
    arena = begun()
    design(arena, STAG)
    twin = pickle.loads(pickle.dumps(arena.fork()))
    twin.space = SPACE  # services are not pickled
    for each in (arena, twin):
        play(each, GOOD, SAFE, MISS, GOOD)
    assert twin.paid == arena.paid
    paid = dict(arena.paid)
    arena.replay(list(arena.history))
    assert arena.paid == paid


def test_views() -> None:
    shown = Task(
        id="d",
        type="matrix",
        payload={"mode": "propose", "known": 0, "references": [{"settings": STAG}]},
    )
    arena = begun(shown)
    designer = Designer(style="terse")
    (message,) = designer.prompt(arena.view("designer_0"))
    assert message["content"] == "Design\n" + json.dumps(STAG)
    (message,) = Designer().prompt(arena.view("designer_0"))
    assert "2 to 3 rows" in message["content"] and json.dumps(STAG) in message["content"]
    assert arena.view("player_0").text == "wait for the designer"
    design(arena, {"rounds": 1, "payoffs": [[1, 2, 3], [4, 5, 6]]})
    table = Player(game="matrix", style="table")
    texts = [table.prompt(arena.view(agent))[0]["content"] for agent in ("player_0", "player_1")]
    assert texts == ["a 1 2 3\nb 4 5 6", "a 1 4\nb 2 5\nc 3 6"]
    assert texts[1] == table.prompt(arena.view("player_7"))[0]["content"]
    arena = begun(plays=1)
    design(arena, {**STAG, "rounds": 2})
    play(arena, MISS)
    assert table.prompt(arena.view("player_1"))[0]["content"] == "a 4 0\nb 0 3\nba"


def test_settings_are_checked() -> None:
    for settings in ({"designers": 2}, {"plays": 0}, {"longest": 0}, {"pay": "much"}):
        with pytest.raises(ValueError, match=r"designers|pay"):
            begun(**settings)


def test_spread_of_scores() -> None:
    assert spread([0.5]) == 0 and spread([0, 1]) == 1
    assert spread([1, 0, 0, 0]) == pytest.approx(4 * 0.25 * 0.75)


def scripted(agent: str, observation: Observation, rng: Any) -> str:
    if agent == "designer_0":
        return json.dumps(SPACE.draw(rng))
    return str(rng.choice(observation.fields["legal"]))


def test_the_curriculum_keeps_designs_and_plays_them_again() -> None:
    buffer = TaskBuffer()
    curriculum = ProposalCurriculum(
        buffer=buffer, seeds=[], types=["matrix"], proposals=6, solver_batch=8, references=0
    )
    engine = ScriptedEngine({"script": scripted})
    seats = {
        name: AgentSpec(role=role, policy="script", renderer=ByteRenderer())
        for name, role in (("designer", Designer()), ("player", Player(game="matrix")))
    }
    arena = DesignedGames(space=SPACE, plays=3, buffer=buffer)
    rollout = Rollout(arena=arena.fork, agent_specs=seats, engines={"script": engine})
    for step in (1, 2, 3):
        tasks = curriculum.tasks(step)
        specs = [EpisodeSpec(task=t, seed=100 * step + n) for n, t in enumerate(tasks)]
        played = list(rollout.run(specs))
        assert all(episode.status == "finished" for episode in played), played[0].error
        curriculum.observe([Group(id=str(n), episodes=(e,)) for n, e in enumerate(played)], step)
    again = [task for task in tasks if task.payload["mode"] == "play"]
    assert again and buffer.size > 10
    assert {task.id for task in again} <= set(buffer.first_seen)
    assert all(entry.attempts >= 3 for entry in buffer.entries["matrix"])


def test_given_games_need_no_designer() -> None:
    (task, *_) = play_tasks(space=SPACE, count=2, designs=[STAG])
    assert begun(task).view("designer_0").fields["references"] == []
    arena = begun(task, designers=0)
    assert arena.possible_agents[0] == "player_0"
    play(arena, *[GOOD] * 4)
    assert arena.metrics["optimal"] == 1 and "designed_score" not in arena.metrics
    assert not arena.created


class Late(Arena):
    """A game of two stages: at the end player_0 is paid for both moves, player_1 is left out."""

    name = "late_v0"

    def setup(self, task: Task, rng: Any) -> None:
        """Begin with the first stage."""

    def acting(self) -> list[str]:
        """Return both players."""
        return ["player_0", "player_1"]

    def view(self, agent: str) -> Observation:
        """Return a word."""
        return Observation(text="move")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Pay at the end."""
        if len(self.history) == 2:
            self.pay("player_0", 3.0, move=0)
            self.pay("player_0", 1.0)
            self.leave_out("player_1")
            self.finish()


class LateDesigns(MatrixDesigns):
    """A space whose only game is `Late`."""

    def game(self, settings: Settings) -> Arena:
        """Return the game for any design."""
        return Late({"player": 2})

    def score(self, settings: Settings, game: Arena) -> float:
        """Return the full score."""
        return 1.0


def test_delayed_rewards_and_left_out_agents_of_a_game_are_kept() -> None:
    arena = begun(space=LateDesigns(rounds=(1, 2)), plays=2)
    assert design(arena, STAG) == "valid"
    play(arena, GOOD, GOOD)
    play(arena, GOOD, GOOD)
    assert arena.finished
    assert arena.paid == {**dict.fromkeys(arena.paid, 0.0), "player_0": 4.0, "player_2": 4.0}
    assert arena.delayed_rewards == [("player_0", 0, 3.0), ("player_2", 0, 3.0)]
    assert arena.left_out == {"player_1", "player_3"}
