"""Tests of a mixture of arenas: parts play as they do alone, and tasks follow the settings."""

import json
import pickle
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.collaboration.pipeline import Pipeline
from arenas.external.pettingzoo import PettingZoo
from arenas.games.kuhn import Kuhn, deals
from arenas.games.matrix import raw_env as matrix
from arenas.games.negotiation import Negotiation
from arenas.games.random_play import RandomPlay
from arenas.games.tic_tac_toe import TicTacToe
from arenas.mixture.arena import Mixture, env, raw_env, tasks_of
from arenas.mixture.demonstrations import MixtureDemonstrations
from arenas.questions.judged import JudgedQuestions
from selfplay.arena import Arena
from selfplay.curriculum.fixed import FixedTasks
from selfplay.curriculum.mixture import MixtureCurriculum, routed, unrouted
from selfplay.curriculum.scheduled import ScheduledTasks
from selfplay.errors import ConfigError
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.run.metrics import of_episodes
from selfplay.types import Observation, Task
from tests.helpers.builders import episode, group, turn

GAME = Task(id="game")


def mixture() -> Mixture:
    zoo = PettingZoo(env="pettingzoo.classic.tictactoe_v3")
    return Mixture(parts={"kuhn": Kuhn(), "zoo": zoo, "pipeline": Pipeline()})


def played(arena: Arena, seed: int) -> Arena:
    """Play random legal moves to the end, or "x" if no moves are listed; return the arena."""
    rng = Random(seed)
    while not arena.finished:
        legal = {agent: arena.view(agent).fields.get("legal") or ["x"] for agent in arena.stage}
        arena.play_stage({agent: rng.choice(moves) for agent, moves in legal.items()})
    return arena


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=40)
    api_test(env(), num_cycles=40)
    seed_test(raw_env, num_cycles=10)
    made: Any = pettingzoo.make("aec", "selfplay/mixture_v0")
    made.reset(seed=1, options={"task": routed("kuhn", deals()[0])})
    assert made.agents == ["kuhn_player_0", "kuhn_player_1"]
    assert len(made.possible_agents) == 4


@pytest.mark.parametrize(
    ("part", "alone", "task"),
    [
        ("kuhn", Kuhn(), deals()[2]),
        ("zoo", PettingZoo(env="pettingzoo.classic.tictactoe_v3"), GAME),
        ("pipeline", Pipeline(), Task(id="q", payload={"question": "1 + 1", "answer": "2"})),
    ],
)
def test_a_part_plays_as_it_does_alone(part: str, alone: Arena, task: Task) -> None:
    mixed = mixture()
    for seed in range(3):
        alone.begin(task, seed)
        mixed.begin(routed(part, task), seed)
        assert mixed.name == part
        first = alone.stage[0]
        assert mixed.view(f"{part}_{first}") == alone.view(first)
        played(alone, seed), played(mixed, seed)
        assert mixed.paid == {f"{part}_{agent}": paid for agent, paid in alone.paid.items()}
        assert mixed.metrics == alone.metrics
        assert mixed.notes == {f"{part}_{agent}": note for agent, note in alone.notes.items()}


def test_a_move_that_the_part_leaves_out_is_left_out() -> None:
    arena = Mixture(parts={"judged": JudgedQuestions(proposers=0, solvers=1, retries=0)})
    arena.begin(routed("judged", Task(id="s", payload={"question": "3 + 4"})), seed=0)
    arena.play_stage({"judged_solver_0": json.dumps({"answer": "7"})})
    arena.play_stage({"judged_judge_1": "no score"})
    assert arena.finished and arena.left_out == {"judged_solver_0"}


def test_two_roles_of_one_name_are_refused() -> None:
    def pair(*players: str) -> Arena:
        return matrix(players=players)

    with pytest.raises(ConfigError, match=r"^arena\.parts\.p_q: its role 'r' .* p_q_r, .* rename"):
        Mixture(parts={"p": pair("q_r", "r"), "p_q": pair("r", "z")})


def test_a_person_gets_the_rules_and_drawings_of_the_parts() -> None:
    trade = Negotiation()
    arena = Mixture(parts={"kuhn": Kuhn(), "trade": trade})
    assert arena.explain() == f"kuhn: {Kuhn().explain()}\n\ntrade: {trade.explain()}"
    arena.begin(routed("trade", trade.default_task(Random(0))), seed=0)
    seen = arena.view("trade_player_0")
    words = seen.fields["legal"][-1].split()
    assert arena.is_legal(seen, " ".join([words[0], *words[:0:-1]]) + "\nPlease.")
    assert not arena.is_legal(seen, "give me all")
    assert arena.is_legal(Observation(fields={"legal": ["", "a b"]}), "")
    assert not arena.is_legal(Observation(fields={"legal": ["", "a b"]}), "c")
    arena.begin(routed("kuhn", deals()[0]), seed=0)
    dealt = arena.view("kuhn_player_0")
    assert arena.is_legal(dealt, "bet") and not arena.is_legal(dealt, "bet\nhello")
    assert trade.is_legal(dealt, "bet\nhello"), "the text is legal in the other part"
    assert arena.draw("kuhn_player_0") == arena.inner.draw("player_0") != arena.draw()


def test_forks_pickles_and_replays_keep_the_part() -> None:
    arena = mixture()
    arena.begin(routed("zoo", GAME), 5)
    arena.play_stage({"zoo_player_0": "4"})
    twin, loaded = arena.fork(), pickle.loads(pickle.dumps(arena))
    assert isinstance(twin, Mixture) and twin.parts is arena.parts and loaded.parts is None
    assert all(part.inner is not arena.inner for part in (twin, loaded))
    for each in (arena, twin, loaded):
        played(each, 1)
    assert arena.paid == twin.paid == loaded.paid
    paid = dict(arena.paid)
    arena.replay(list(arena.history))
    assert arena.paid == paid


def test_a_task_for_no_part_fails_its_episode_alone() -> None:
    seats = {
        role: AgentSpec(role=Role(), policy="p", renderer=ByteRenderer())
        for role in raw_env().roles
    }
    rollout = Rollout(arena=raw_env, agent_specs=seats, engines={})
    tasks = [GAME, routed("chess", GAME), Task(id="x", payload={"arena": "kuhn", "task": 3})]
    found = rollout.run([EpisodeSpec(task=task, seed=0) for task in tasks])
    assert "names no arena" in found[0].error and "no arena 'chess'" in found[1].error
    assert all(episode.error and not episode.turns for episode in found)
    with pytest.raises(ValueError, match="names no arena"):
        Mixture(parts={})


def test_metrics_are_separate_for_each_arena_and_type() -> None:
    episodes = [
        episode(task=Task(id="1", type="kuhn/default"), metrics={"illegal": 1.0}),
        episode(task=Task(id="2", type="az/deduction"), metrics={"illegal": 0.0}),
        episode(task=Task(id="3", type="az/induction"), metrics={"illegal": 0.5}),
    ]
    reported = of_episodes(episodes)
    names = ("arena/kuhn/illegal", "arena/az/illegal", "arena/az/induction/illegal")
    assert [reported[name] for name in names] == [1.0, 0.25, 0.5]
    assert reported["arena/illegal"] == 0.5


def curriculum(**changes: Any) -> MixtureCurriculum:
    parts = {
        name: FixedTasks(tasks=[Task(id=f"{name}{n}") for n in range(3)], batch=size)
        for name, size in (("a", 5), ("b", 1))
    }
    settings: dict[str, Any] = {"parts": parts, "shares": {"a": 3, "b": 1}, "batch": 6}
    return MixtureCurriculum(**{**settings, **changes})


def test_shares_are_exact_over_many_steps_and_no_task_is_lost() -> None:
    made = curriculum()
    steps = [made.tasks(step) for step in range(1, 9)]
    assert [len(tasks) for tasks in steps] == [6] * 8
    found = [unrouted(task) for tasks in steps for task in tasks]
    counts = {name: sum(part == name for part, _ in found) for name in "ab"}
    assert counts == {"a": 36, "b": 12} and made.metrics()["a/drawn"] == 0.75
    assert {task.type for task in steps[0]} == {"a/default", "b/default"}
    # Every pass over a part has all of its tasks.
    own = [task.id for part, task in found if part == "a"]
    assert all(sorted(own[n : n + 3]) == ["a0", "a1", "a2"] for n in range(0, 36, 3))


def test_a_waiting_task_gets_the_scheduled_value_of_its_playing_step() -> None:
    drawn = FixedTasks(tasks=[GAME], batch=4)
    growing = ScheduledTasks(curriculum=drawn, key="p", start=0.0, end=1.0, steps=4, base=1)
    made = MixtureCurriculum(parts={"a": growing}, batch=1, shares={"a": 1})
    played = [unrouted(made.tasks(step)[0])[1].payload["p"] for step in (1, 2, 3, 4)]
    assert played == [0.25, 0.5, 0.75, 1.0] and made.metrics()["a/p"] == 1.0


def test_every_part_observes_its_own_episodes() -> None:
    heard: dict[str, list[tuple[str, str]]] = {"a": [], "b": []}
    created: list[str] = []

    class Listener(FixedTasks):
        def observe(self, groups: Any, step: int) -> None:
            heard[self._tasks[0].id[0]] += [(g.id, g.episodes[0].task.id) for g in groups]
            created.extend(task.id for g in groups for task in g.episodes[0].created)

    parts = {name: Listener(tasks=[Task(id=f"{name}0")], batch=1) for name in "ab"}
    made = curriculum(parts=parts)
    groups = [
        group(
            episode(
                turn("x_0"),
                task=routed(name, Task(id=f"{name}0")),
                created=(routed(name, Task(id=f"new{number}")),),
            ),
            name=str(number),
        )
        for number, name in enumerate("aba")
    ]
    made.observe(groups, 1)
    assert heard == {"a": [("0", "a0"), ("2", "a0")], "b": [("1", "b0")]}
    assert created == ["new0", "new2", "new1"]


class Inventor(Arena):
    """An arena in which one agent says a word, which becomes a task."""

    name = "inventor_v0"
    roles = {"author": 1}

    def setup(self, task: Task, rng: Random) -> None: ...

    def acting(self) -> list[str]:
        return ["author_0"]

    def messengers(self) -> list[str]:
        return ["author_0"]

    def view(self, agent: str) -> Observation:
        return Observation(text="say a word")

    def advance(self, actions: Any) -> None:
        self.create(Task(id=str(actions["author_0"])))
        self.finish()


def test_created_tasks_and_messages_are_those_of_the_part() -> None:
    arena = Mixture(parts={"words": Inventor()})
    arena.begin(routed("words", GAME), seed=1)
    assert arena.messengers() == ["words_author_0"]
    arena.play_stage({"words_author_0": "house"})
    assert [unrouted(task) for task in arena.created] == [("words", Task(id="house"))]
    assert arena.created[0].id == "words/house"  # the id under which the task is played later


def test_only_parts_that_still_gather_are_asked_for_tasks() -> None:
    class Gathering(FixedTasks):
        def ready(self) -> bool:
            return self._drawn >= 2

    parts = {"a": FixedTasks(tasks=[GAME], batch=1), "b": Gathering(tasks=[GAME], batch=2)}
    made = curriculum(parts=parts)
    assert not made.ready()
    assert [unrouted(task)[0] for task in made.tasks(-1)] == ["b", "b"]
    assert made.ready() and {unrouted(task)[0] for task in made.tasks(1)} == {"a", "b"}


def test_a_part_without_tasks_leaves_the_rest_to_others() -> None:
    class Dry(FixedTasks):
        def tasks(self, step: int, attempt: int = 0) -> list[Task]:
            return []

    made = curriculum(
        parts={"a": Dry(tasks=[GAME], batch=1), "b": FixedTasks(tasks=[GAME], batch=1)}
    )
    assert [unrouted(task)[0] for task in made.tasks(1)] == ["b"] * 6
    alone = curriculum(parts={"a": Dry(tasks=[GAME], batch=1)}, shares={"a": 1})
    assert alone.tasks(1) == []


def test_the_state_survives_json_and_continues_identically() -> None:
    made = curriculum()
    made.tasks(1), made.tasks(2)
    twin = curriculum()
    twin.load_state_dict(json.loads(json.dumps(made.state_dict())))
    for step in (3, 4, 5):
        assert twin.tasks(step) == made.tasks(step)


def phased(**changes: Any) -> MixtureCurriculum:
    phases = [
        {"steps": 2, "shares": {"a": 1}},
        {"steps": 3, "shares": {"a": 1, "b": 2}},
        {"steps": 1, "shares": {"b": 5}},
    ]
    return curriculum(**{"shares": None, "phases": phases, **changes})


def parts_of(tasks: list[Task]) -> str:
    return "".join(sorted(unrouted(task)[0] for task in tasks))


def test_phases_follow_one_another_and_the_last_one_stays() -> None:
    made = phased()
    found = [parts_of(made.tasks(step)) for step in range(1, 9)]
    assert found == ["aaaaaa"] * 2 + ["aabbbb"] * 3 + ["bbbbbb"] * 3
    assert made.metrics()["a/drawn"] == 0.0 and made.metrics()["b/drawn"] == 1.0


def test_a_part_that_is_not_played_is_not_asked_even_if_it_gathers() -> None:
    class Gathering(FixedTasks):
        def ready(self) -> bool:
            return self._drawn >= 1

    parts = {"a": FixedTasks(tasks=[GAME], batch=1), "b": Gathering(tasks=[GAME], batch=1)}
    made = phased(parts=parts)
    assert parts_of(made.tasks(1)) == "aaaaaa" and made.ready()
    assert parts_of(made.tasks(3)) == "b"


def test_a_resumed_run_is_in_the_same_phase() -> None:
    made = phased()
    for step in (1, 2, 3):
        made.tasks(step)
    twin = phased()
    twin.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert twin.metrics() == made.metrics()
    for step in (4, 5, 6, 7):
        assert twin.tasks(step) == made.tasks(step)


def test_wrong_phases_are_a_one_line_error() -> None:
    for phases, said in (
        ([{"steps": 0, "shares": {"a": 1}}], "of at least 1, not 0"),
        ([{"steps": "9", "shares": {"a": 1}}], "phases.0: steps is a whole number .* not '9'"),
        ([{"steps": 1, "shares": {}}], "phases.0: shares holds a weight"),
        ([{"steps": 1, "shares": ["a"]}], "phases.0: shares holds a weight"),
        ([{"steps": 1, "shares": {"a": "most"}}], "shares.a: 'most' is not a share above 0"),
        ([{"steps": 1, "shares": {"c": 1}}], "curriculum.phases.0.shares: no part 'c'"),
        ([{"steps": 1, "shares": {"a": -1}}], "not a share above 0"),
        ([{"steps": 1}], "shares"),
        ([{"step": 1, "shares": {"a": 1}}], "step"),
        ([], "needs shares or phases, and not both"),
    ):
        with pytest.raises(ConfigError, match=said) as error:
            phased(phases=phases)
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="needs shares or phases, and not both"):
        phased(shares={"a": 1, "b": 1})


def test_wrong_shares_are_refused() -> None:
    for shares, said in (({"a": 1, "c": 1}, "no part 'c'"), ({"a": 1}, "b: missing")):
        with pytest.raises(ConfigError, match=said):
            curriculum(shares=shares)
    with pytest.raises(ConfigError, match="not a share above 0"):
        curriculum(shares={"a": 1, "b": 0})
    with pytest.raises(ConfigError, match="batch must be at least 1"):
        curriculum(batch=0)


def test_tasks_and_demonstrations_of_a_part() -> None:
    assert [unrouted(task) for task in tasks_of("a", [GAME])] == [("a", GAME)]
    parts = {"kuhn": RandomPlay(arena=Kuhn()), "toe": RandomPlay(arena=TicTacToe(), hands=5)}
    shown = MixtureDemonstrations(parts=parts, shares={"kuhn": 1, "toe": 1})
    stream = shown.stream(Random(0), 0.0)
    assert {next(stream).role for _ in range(40)} == {"kuhn_player", "toe_player"}
    assert set(parts["kuhn"].pieces()) <= set(shown.pieces())
    with pytest.raises(ValueError, match="same arenas"):
        MixtureDemonstrations(parts=parts, shares={"kuhn": 1})


def test_a_canonical_answer_is_that_of_the_part() -> None:
    sums = Task(id="sum", payload={"question": "1 + 1", "answer": "2"})
    said = json.dumps({"answer": "2.0", "argument": "so"})
    arena = mixture()
    assert arena.canonical_answer(routed("pipeline", sums), "pipeline_refiner_0", said) == "=2"
    assert arena.canonical_answer(routed("pipeline", sums), "pipeline_verifier_0", said) == ""
    assert arena.canonical_answer(routed("kuhn", GAME), "kuhn_player_0", "bet") is None
