"""Tests of seating: agents that other policies play, and the policies that learn from them."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from selfplay.engines.scripted import Scripted, ScriptedEngine, constant
from selfplay.errors import ConfigError
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.evaluation import Evaluation
from selfplay.rollout.policy_pool import PolicyPool
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.rollout.sampling_settings import SamplingSettings
from selfplay.run.metrics import of_episodes
from selfplay.types import Episode, Observation, Task
from tests.helpers.builders import episode, turn
from tests.helpers.guessing_game import Guess, rollout, spec


def test_a_seated_policy_has_the_limits_of_the_role_and_its_own_renderer() -> None:
    (played,) = rollout(system="be quick").run([spec(policy_map={"player_1": "old"})])
    assert [t.policy for t in played.turns] == ["base", "old"] * 2
    assert [t.text for t in played.turns] == ["a", "b"] * 2, "the limit of the role is one token"
    assert [t.prompt_ids[0] for t in played.turns] == [1, 3] * 2
    assert all(t.messages[0]["content"] == "be quick" for t in played.turns)
    assert [t.trainable for t in played.turns] == [True, False] * 2


def test_a_policy_learns_only_in_its_own_matches() -> None:
    seating = {"player_0": "base", "player_1": "rival"}
    both, one = rollout().run([spec(policy_map=seating), spec(policy_map=seating, learner="rival")])
    assert [t.trainable for t in both.turns] == [True] * 4
    assert [t.trainable for t in one.turns] == [False, True] * 2
    (frozen,) = rollout(learning=()).run([spec()])
    assert not any(t.trainable for t in frozen.turns)
    (free,) = rollout(learning=None).run([spec(policy_map=seating)])
    assert all(t.trainable for t in free.turns)


def test_conversations_of_seated_agents_use_their_own_renderer() -> None:
    (played,) = rollout(memory="conversation").run([spec(policy_map={"player_1": "old"})])
    first, second = [t for t in played.turns if t.agent == "player_1"]
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids


class Alternating(Guess):
    """A guessing game in which the task `alone` has only the first player."""

    def agents_of(self, task: Task) -> list[str]:
        return self.possible_agents[: 1 if task.id == "alone" else 2]

    def acting(self) -> Sequence[str]:
        return self.agents


def test_a_match_is_refused_where_a_seat_takes_no_part() -> None:
    playing = rollout(arena=Alternating)
    seats, everybody = ("player_0", "player_1"), {"player_0": "old", "player_1": "old"}
    (played,) = playing.run([spec(seats=seats)])
    assert len(played.turns) == 4
    alone = replace(spec(policy_map=everybody), task=Task(id="alone"))
    (played,) = playing.run([alone])
    assert len(played.turns) == 2, "a seated agent may be missing in a task"
    with pytest.raises(
        ConfigError, match=r"^task alone: player_1 cannot be seated, .* leave it out$"
    ):
        playing.run([replace(alone, seats=seats)])
    both = Task(id="both")
    versus = Evaluation(arena=Alternating, tasks=[alone.task, both], metrics={}, opponents=["old"])
    _, matches = versus.run("x", playing.run, seed=0)
    assert [(each.task.id, each.policy_map) for each in matches] == [
        ("both", {"player_1": "old"}),
        ("both", {"player_0": "old"}),
    ]


def test_policies_come_and_go_between_two_calls() -> None:
    playing = rollout()
    with pytest.raises(ConfigError, match=r"no policy 'new' for agent 'player_1'"):
        playing.run([spec(policy_map={"player_1": "new"})])
    engines: Any = playing.engines
    engines["new"] = ScriptedEngine({"new": constant("a")})
    renderers: Any = playing.renderers
    renderers["new"] = ByteRenderer()
    (played,) = playing.run([spec(policy_map={"player_1": "new"})])
    assert played.turns[1].policy == "new"
    with pytest.raises(
        ConfigError, match=r"no agent 'player_3' to be seated; did you mean 'player"
    ):
        playing.run([spec(policy_map={"player_3": "base"})])


def test_existing_rollouts_see_later_changes_of_the_pool() -> None:
    seating = PolicyPool(
        roles={"player": Role()},
        policy_of=lambda role: "base",
        sampling={"player": SamplingSettings(max_tokens=1, temperature=1.0)},
        rollout=RolloutSettings(max_turns=10),
    )
    seating.add("base", ScriptedEngine({"base": constant("a")}), ByteRenderer(), learn=True)
    playing = seating.rollout(Guess, temperature=0.0)
    seating.add("random", Scripted(script=f"{__name__}.says_bb"))
    (played,) = playing.run([spec(policy_map={"player_0": "random"})])
    assert [(t.policy, t.text, t.trainable) for t in played.turns[:2]] == [
        ("random", "bb", False),  # the text of a script has no token limit
        ("base", "a", True),
    ]
    seating.remove("random")
    with pytest.raises(ConfigError, match="no policy 'random'"):
        playing.run([spec(policy_map={"player_0": "random"})])


def says_bb(agent: str, observation: Observation, rng: Random) -> str:
    """A script."""
    return "bb"


def repeats_b(agent: str, observation: Observation, rng: Random, *, times: int = 3) -> str:
    """A script with a setting."""
    return "b" * times


class Repeats:
    """A script with settings."""

    def __init__(self, word: Any, *, times: Any) -> None:
        self.word, self.times = word, times

    def __call__(self, agent: str, observation: Observation, rng: Random) -> str:
        return str(self.word * self.times)


def fails(agent: str, observation: Observation, rng: Random) -> str:
    """A script for another game."""
    return str(observation.fields["board"])


def test_a_script_that_is_not_there_or_fails_is_one_line() -> None:
    with pytest.raises(ValueError, match=rf"script: no 'say_bb' in {__name__}; did you mean"):
        Scripted(script=f"{__name__}.say_bb")
    seating = rollout()
    engines: Any = seating.engines
    engines["old"] = Scripted(script=f"{__name__}.fails")
    line = rf"opponent 'old': {__name__}.fails failed: KeyError: 'board' \(.*test_policy_pool\.py, "
    with pytest.raises(ConfigError, match=line + r"line \d+\)$"):
        seating.run([spec(policy_map={"player_1": "old"})])


def forgets(agent: str, observation: Observation, rng: Random) -> None:
    """A script without `return`."""


def test_a_script_that_returns_no_text_is_one_line() -> None:
    seating = rollout()
    engines: Any = seating.engines
    engines["old"] = Scripted(script=f"{__name__}.forgets")
    line = rf"opponent 'old': {__name__}\.forgets returned NoneType, not a text"
    with pytest.raises(ConfigError, match=line):
        seating.run([spec(policy_map={"player_1": "old"})])


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "subprocess.getoutput",
        "subprocess.run",
        "shutil.copytree",
        "builtins.print",
        "builtins.dict",
        "functools.reduce",
        "random.Random",
    ],
)
def test_a_script_that_is_not_an_opponent_is_refused_and_not_called(name: str) -> None:
    with pytest.raises(ValueError, match=f"script: {name} is not an opponent"):
        Scripted(script=name)


def test_a_script_may_be_an_object_with_settings() -> None:
    playing = rollout()
    engines: Any = playing.engines
    engines["old"] = Scripted(script=Repeats("b", times=2))
    (played,) = playing.run([spec(policy_map={"player_1": "old"})])
    assert {turn.text for turn in played.turns if turn.policy == "old"} == {"bb"}
    engines["old"] = Scripted(script=Repeats(1.5, times="x"))
    with pytest.raises(ConfigError, match="opponent 'old': Repeats failed: TypeError"):
        playing.run([spec(policy_map={"player_1": "old"})])
    with pytest.raises(ValueError, match="script: Random is not an opponent"):
        Scripted(script=Random(0))  # type: ignore[arg-type]


def test_a_script_may_have_settings_of_its_own() -> None:
    assert Scripted(script=f"{__name__}.repeats_b").script("a", Observation(), Random(0)) == "bbb"


def test_metrics_of_a_role_count_only_its_own_policy() -> None:
    def match(own: float, other: float) -> Episode:
        turns = turn("player_0", own), turn("player_1", other, policy="old", trainable=False)
        return episode(*turns, policy_map={"player_1": "old"})

    alone = episode(turn("player_0", 5.0), turn("player_1", 7.0))
    exploited = episode(
        turn("player_0", -9.0),
        turn("player_1", 9.0, policy="rival"),
        policy_map={"player_0": "base", "player_1": "rival"},
    )
    met = [match(1.0, -1.0), match(0.5, -0.5)]
    metrics = of_episodes([alone, exploited, *met])
    assert metrics["role/player/reward"] == pytest.approx((5 + 7 + 1 + 0.5) / 4)
    assert {name: value for name, value in metrics.items() if name.startswith("versus")} == {
        "versus/old/episodes": 2.0,
        "versus/old/player/reward": 0.75,
    }
