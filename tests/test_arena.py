"""Tests of the arena: PettingZoo's interface, stages, forks and replays."""

import copy
import math
import pickle
import random
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pettingzoo.test import api_test, seed_test

from selfplay.arena import Arena
from selfplay.arena.checks import KEPT_BY_ARENA
from selfplay.errors import ConfigError
from selfplay.rollout.episode_runner import EpisodeRunner, EpisodeSpec
from selfplay.run.metrics import of_episodes
from selfplay.types import LONGEST_TEXT, Action, Observation, Status, Task, well_formed
from tests.helpers.builders import turn


class Guess(Arena):
    """A game of three rounds in which two agents guess a secret digit.

    Both guess at once in rounds 0 and 2; guesser_1 guesses alone in round 1. A right guess is paid
    1 and a wrong one -0.5.
    """

    name = "guess_v0"
    roles = {"guesser": 2}

    def setup(self, task: Task, rng: random.Random) -> None:
        self.round, self.secret = 0, rng.randint(0, 9)

    def acting(self) -> Sequence[str]:
        return self.possible_agents if self.round != 1 else ["guesser_1"]

    def view(self, agent: str) -> Observation:
        return Observation(text=f"round {self.round} for {agent}")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        for agent, action in actions.items():
            self.note(agent, right=action == str(self.secret))
            self.pay(agent, 1.0 if action == str(self.secret) else -0.5)
        if self.round == 1:
            self.pay("guesser_0", 0.25)  # paid while another agent moves
        self.round += 1
        if self.round == 3:
            self.finish()


class Alternate(Guess):
    """A variant in which the agents take turns."""

    name = "alternate_v0"

    def acting(self) -> Sequence[str]:
        return [self.possible_agents[self.round % 2]]


class Alone(Guess):
    """A variant with one agent."""

    name = "alone_v0"
    roles = {"guesser": 1}

    def acting(self) -> Sequence[str]:
        return self.possible_agents


class Together(Guess):
    """A variant with four agents, who all act in each stage."""

    name = "together_v0"
    roles = {"guesser": 2, "watcher": 2}

    def acting(self) -> Sequence[str]:
        return self.possible_agents


@pytest.mark.parametrize("kind", [Guess, Alternate, Alone, Together])
def test_pettingzoo_conformance(kind: type[Arena]) -> None:
    api_test(kind(), num_cycles=50)
    seed_test(kind, num_cycles=10)


def started() -> Guess:
    arena = Guess()
    arena.begin(Task(id="t"), seed=3)
    return arena


def test_a_stage_is_played_at_once_or_step_by_step() -> None:
    whole, single = started(), started()
    for moves in ({"guesser_0": "1", "guesser_1": None}, {"guesser_1": "2"}):
        whole.play_stage(moves)
        for agent in moves:
            assert single.agent_selection == agent
            single.step(moves[agent])
    assert whole.paid == single.paid
    assert whole.history == single.history
    first = 1.0 if whole.secret == 1 else -0.5
    assert whole.paid["guesser_0"] == pytest.approx(first + 0.25)


def test_no_agent_sees_a_move_of_the_same_stage() -> None:
    arena = started()
    before = arena.view("guesser_1")
    arena.step("7")
    assert arena.view("guesser_1") == before and arena.round == 0


def test_cumulative_rewards_are_what_the_agent_was_paid_since_its_move() -> None:
    arena = started()
    arena.step(str(arena.secret))
    arena.step("x")
    arena.step("x")  # only guesser_1 acts; guesser_0 is paid 0.25
    assert arena.agent_selection == "guesser_0"
    assert arena.last()[1] == pytest.approx(1.25)


def test_a_fork_is_independent_of_its_original() -> None:
    arena = started()
    arena.play_stage({"guesser_0": "1", "guesser_1": "1"})
    twin = arena.fork()
    twin.play_stage({"guesser_1": "5"})
    assert arena.round == 1 and twin.round == 2 and len(arena.history) == 1
    loaded = pickle.loads(pickle.dumps(arena))
    loaded.play_stage({"guesser_1": "5"})
    assert loaded.paid == twin.paid


def test_services_are_shared_by_forks_and_left_out_of_pickles() -> None:
    class Served(Guess):
        services = ("world",)

    arena = Served()
    arena.world = threading.Lock()  # a lock cannot be copied or pickled
    arena.begin(Task(id="t"), seed=1)
    assert copy.deepcopy(arena).world is arena.world
    assert pickle.loads(pickle.dumps(arena.__getstate__()))["world"] is None


def test_a_replay_pays_the_same() -> None:
    arena = started()
    for moves in ({"guesser_0": "1", "guesser_1": "4"}, {"guesser_1": "2"}):
        arena.play_stage(moves)
    history, paid, secret = list(arena.history), dict(arena.paid), arena.secret
    arena.replay(history)
    assert (arena.paid, arena.secret, arena.history) == (paid, secret, history)


def test_the_state_depends_on_the_seed() -> None:
    secrets = set()
    for seed in range(20):
        arena = Guess()
        arena.begin(Task(id="t"), seed=seed)
        secrets.add(arena.secret)
    assert len(secrets) > 3


@pytest.mark.parametrize("text", ["\x00" * 10, "\ud800", "<|im_end|>" * 9, "é" * 5, ""])
def test_any_text_is_an_action(text: str) -> None:
    arena = started()
    arena.step(text)
    assert arena._moves["guesser_0"] == well_formed(text)


def test_text_that_is_too_long_is_an_invalid_action() -> None:
    arena = started()
    arena.step("x" * (LONGEST_TEXT + 1))
    assert arena._moves["guesser_0"] is None


def test_a_reward_may_be_for_an_earlier_move() -> None:
    arena = started()
    arena._may_pay = True  # as in advance
    with pytest.raises(ValueError, match="guesser_0 has made 0 moves"):
        arena.pay("guesser_0", 1.0, move=0)
    arena.play_stage({"guesser_0": "x", "guesser_1": "x"})
    arena._may_pay = True
    paid = arena.paid["guesser_0"]
    arena.pay("guesser_0", 1.0, move=0)
    assert arena.paid["guesser_0"] == paid + 1.0
    with pytest.raises(ValueError, match="none is 1"):
        arena.pay("guesser_0", 1.0, move=1)


def test_a_move_may_be_left_out() -> None:
    arena = started()
    with pytest.raises(KeyError, match="did you mean 'guesser_1'"):
        arena.leave_out("guesser1")
    arena.leave_out("guesser_1")
    assert arena.left_out == {"guesser_1"}
    arena.begin(arena.task, arena.seed)
    assert not arena.left_out


def test_wrong_stage_and_unknown_agents_are_refused() -> None:
    arena = started()
    with pytest.raises(ValueError, match="stage of"):
        arena.play_stage({"guesser_0": "1"})
    with pytest.raises(KeyError, match="did you mean 'guesser_1'"):
        arena.pay("gueser_1", 1.0)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ([], "not agents of the episode; to end the game, call finish"),
        (["guesser_7"], "not agents of the episode"),
        ("guesser_1", r"'guesser_1', not agents of the episode; return a list: \['guesser_1'\]"),
        ("guesser", r"'guesser', not agents of the episode; return a list: \['guesser_0'\]"),
        (["guesser_0", "guesser_0"], "an agent twice"),
    ],
)
def test_acting_must_name_agents_of_the_arena_once(named: Any, words: str) -> None:
    class Confused(Guess):
        def acting(self) -> Sequence[str]:
            acts: Sequence[str] = named
            return acts

    with pytest.raises(ValueError, match=words):
        Confused().begin(Task(id="t"), seed=0)


def test_an_episode_may_end_before_any_agent_moves() -> None:
    class Over(Guess):
        def setup(self, task: Task, rng: random.Random) -> None:
            super().setup(task, rng)
            self.finish()

    arena = Over()
    arena.reset(seed=1)
    assert arena.finished and arena.stage == ()
    assert all(arena.terminations.values())
    for _ in arena.agent_iter():
        assert arena.last()[1:3] == (0.0, True)
        arena.step(None)
    assert arena.agents == []


def test_notes_are_about_the_latest_stage() -> None:
    arena = started()
    arena.play_stage({"guesser_0": "1", "guesser_1": "1"})
    assert set(arena.notes) == {"guesser_0", "guesser_1"}
    arena.step("2")
    assert set(arena.notes) == {"guesser_1"} and arena.infos["guesser_0"] == {}


def test_rewards_of_last_add_up_to_the_pay_of_each_agent() -> None:
    arena = Guess()
    arena.reset(seed=3, options={"task": Task(id="mine")})
    assert arena.task.id == "mine"
    paid = dict.fromkeys(arena.possible_agents, 0.0)
    for agent in arena.agent_iter():
        _, reward, done, cut, _ = arena.last()
        paid[agent] += reward
        arena.step(None if done or cut else "4")
    assert arena.agents == [] and paid == pytest.approx(arena.paid)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_pay_and_metrics_are_finite(value: float) -> None:
    arena = started()
    arena._may_pay = True  # as in advance
    with pytest.raises(ValueError, match=r"guess_v0: pay\('guesser_0', .*finite"):
        arena.pay("guesser_0", value)
    with pytest.raises(ValueError, match=r"guess_v0: measure\(score=.*finite"):
        arena.measure(score=value, other=1.0)
    assert arena.paid["guesser_0"] == 0.0 and arena.metrics == {}
    arena.pay("guesser_0", 1e308)
    with pytest.raises(ValueError, match="reward and return must be finite"):
        arena.pay("guesser_0", 1e308)


def test_a_later_call_of_measure_replaces_the_number_of_the_same_name() -> None:
    arena = started()
    arena.measure(score=1.0, other=2)
    arena.measure(score=3)
    assert arena.metrics == {"score": 3.0, "other": 2.0}


def test_a_reward_that_is_no_number_is_refused() -> None:
    refused: list[tuple[Any, str]] = [(None, "None"), ("1.0", "'1.0'"), ([1.0], r"\[1.0\]")]
    arena = started()
    arena._may_pay = True  # as in advance
    for value, shown in refused:
        with pytest.raises(
            ValueError, match=f"guess_v0: the reward of guesser_0 is {shown}, not a number"
        ):
            arena.pay("guesser_0", value)


@pytest.mark.parametrize("method", ["view", "acting"])
def test_only_setup_and_advance_may_pay(method: str) -> None:
    class Generous(Guess):
        def acting(self) -> Sequence[str]:
            if method == "acting":
                self.pay("guesser_0", 0.1)
            return super().acting()

        def view(self, agent: str) -> Observation:
            self.pay(agent, 0.1)
            return super().view(agent)

    arena = Generous()
    words = r"guess_v0: pay\('guesser_0', 0.1\) was called outside of setup and advance; only these"
    with pytest.raises(ValueError, match=words):
        arena.begin(Task(id="t"), seed=0)
        arena.view("guesser_0")
    assert arena.paid["guesser_0"] == 0.0


CHANGES: dict[str, Any] = {
    "agents": [],
    "notes": [],
    "task": 3,
    "history": [],
    "finished": 1,
    "_moves": {},
    "roles": {"guesser_0": "wolf"},
}
"""Values that an author's code must not assign to these attributes of `Arena`."""


@pytest.mark.parametrize("method", ["setup", "advance"])
@pytest.mark.parametrize("name", CHANGES)
def test_an_attribute_that_arena_keeps_is_named_if_it_is_changed(name: str, method: str) -> None:
    class Careless(Guess):
        def setup(self, task: Task, rng: random.Random) -> None:
            super().setup(task, rng)
            if method == "setup":
                setattr(self, name, CHANGES[name])

        def advance(self, actions: Mapping[str, Action | None]) -> None:
            setattr(self, name, CHANGES[name])
            super().advance(actions)  # with notes as a list, this raises AttributeError

    arena, words = Careless(), f"guess_v0 changed self.{name}, which Arena keeps; choose another"
    if method == "setup":
        with pytest.raises(ValueError, match=words):
            arena.begin(Task(id="t"), seed=0)
    else:
        arena.begin(Task(id="t"), seed=0)
        with pytest.raises(ValueError, match=words):
            arena.play_stage({"guesser_0": "1", "guesser_1": "1"})


@pytest.mark.parametrize("name", ["history", "agents"])
def test_a_list_that_arena_keeps_is_named_if_it_is_appended_to(name: str) -> None:
    class Appending(Guess):
        def advance(self, actions: Mapping[str, Action | None]) -> None:
            getattr(self, name).append("1")
            super().advance(actions)

    arena = Appending()
    arena.begin(Task(id="t"), seed=0)
    with pytest.raises(ValueError, match=f"guess_v0 changed self.{name}, which Arena keeps"):
        arena.play_stage({"guesser_0": "1", "guesser_1": "1"})


def test_an_error_of_advance_is_raised_unchanged() -> None:
    class Faulty(Guess):
        def advance(self, actions: Mapping[str, Action | None]) -> None:
            raise LookupError("mine")

    arena = Faulty()
    arena.begin(Task(id="t"), seed=0)
    with pytest.raises(LookupError, match="mine"):
        arena.play_stage({"guesser_0": "1", "guesser_1": "1"})
    assert not arena._may_pay


def test_a_started_arena_has_every_kept_attribute() -> None:
    arena = started()
    assert not [name for name in KEPT_BY_ARENA if name not in vars(arena)]


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        (["proposer", "solver"], 'no mapping of roles to numbers of agents; write {"proposer": 1,'),
        ([], 'write {"player": 1,'),
        ("solver", "Listed.roles: 'solver' is no mapping"),
        (3, "Listed.roles: 3 is no mapping"),
    ],
)
def test_roles_that_are_no_mapping_are_refused(roles: Any, words: str) -> None:
    class Listed(Guess):
        pass

    Listed.roles = roles
    with pytest.raises(ConfigError, match=re.escape(words)):
        Listed()


@pytest.mark.parametrize("method", ["pay", "measure"])
def test_a_reward_or_metric_that_is_not_finite_fails_the_episode(method: str) -> None:
    class Odd(Guess):
        def advance(self, actions: Mapping[str, Action | None]) -> None:
            if method == "pay":
                self.pay("guesser_0", math.inf)
            self.measure(score=math.nan)

    game = EpisodeRunner(EpisodeSpec(task=Task(id="t"), seed=0), Odd())
    game.advance()
    game.moves = {agent: turn(agent, stage=0) for agent in game.arena.stage}
    game.advance()
    assert game.status(max_turns=9) is Status.FAILED
    metrics = of_episodes([game.episode(Status.FAILED)])
    assert metrics["episodes/failed/ValueError"] == 1.0


def test_wrong_numbers_of_agents_are_refused() -> None:
    for count in ("2", 1.5, True, None, -1):
        with pytest.raises(ConfigError, match=rf"^Guess\.roles: 'guesser' has {count!r} agents; "):
            Guess({"guesser": count})  # type: ignore[dict-item]
    assert Guess({"guesser": 0}).possible_agents == []


@pytest.mark.parametrize("method", ["setup", "advance"])
def test_setup_and_advance_return_nothing(method: str) -> None:
    async def coroutine(*given: Any) -> None: ...

    def generator(*given: Any) -> Any:
        yield

    without = {coroutine: "without async; it returns", generator: "without yield; it returns"}
    for wrong, words in {**without, (lambda *given: 3): "type int; it returns nothing"}.items():
        arena = started()
        setattr(arena, method, wrong)
        with pytest.raises(TypeError, match=rf"^guess_v0: {method} returned a value of .*{words}"):
            if method == "setup":
                arena.begin(arena.task, arena.seed)
            else:
                arena.play_stage({"guesser_0": "1", "guesser_1": "1"})


def test_a_role_name_is_refused_as_the_name_of_an_agent() -> None:
    with pytest.raises(KeyError, match="'guesser' is a role; its agents are guesser_0, guesser_1"):
        started().note("guesser")
