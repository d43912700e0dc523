"""Games of a study, and the scores of their episodes."""

from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from arenas.games.kuhn import Kuhn
from selfplay.config.schedule import Schedule
from selfplay.engines.scripted import constant
from selfplay.errors import ConfigError
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.study.matches import _games
from selfplay.types import Metric, Status, Task
from tests.helpers.builders import episode, turn
from tests.helpers.scripted_games import games


def test_the_games_have_the_limits_of_the_run_after_training() -> None:
    growing = {"max_turns": Schedule(steps=(1, 9), values=(2, 4))}
    settings = RolloutSettings(tool_threads=3, patience=7, threads=5, schedules=growing)
    rollout = games(Kuhn, {"team": constant("pass")}, rollout_settings=settings).rollout()
    run: Any = SimpleNamespace(
        evaluations={}, players=SimpleNamespace(rollout=rollout), policies={}, config={}
    )
    made = _games(run, None, None, None, 0)
    assert made.rollout_settings == RolloutSettings(
        max_turns=4, tool_threads=3, patience=7, threads=5
    )
    assert made.rollout().settings == made.rollout_settings


def test_another_number_of_turns_ends_their_schedule() -> None:
    growing = {"max_turns": Schedule(steps=(1, 9), values=(2, 4))}
    settings = RolloutSettings(schedules=growing)
    made = games(Kuhn, {"team": constant("pass")}, rollout_settings=settings)
    assert made.rollout(max_turns=1).settings.at(None) == RolloutSettings(max_turns=1)


def test_the_return_counts_the_pay_of_an_agent_without_a_turn() -> None:
    """An illegal first move ends the game: the other player is paid without a turn."""
    made = games(Kuhn, {"team": constant("nonsense")}, episodes=4)
    played = made.run({})
    assert {episode.agents() for episode in played} == {("player_0",)}
    assert made.scores(played, "return").tolist() == [0.0] * 4
    assert made.scores(played, "return/player_1").tolist() == [2.0] * 4


class Broken(Kuhn):
    def setup(self, task: Task, rng: Random) -> None:
        raise KeyError("prompt")


def test_games_that_all_fail_are_a_one_line_error_with_the_first_error() -> None:
    given = games(Broken, {"team": constant("pass")}, tasks=[Task(id="t")], episodes=4)
    with pytest.raises(ConfigError) as caught:
        given.run(dict.fromkeys(given.agents, "team"))
    message = str(caught.value)
    first = f"all 4 games of {Broken.name} with team failed; mend the error of the first one: "
    assert message.startswith(f"{first}KeyError: 'prompt'") and "\n" not in message
    drawn = games(Broken, {"team": constant("pass")}, episodes=4)
    default = r"failed \(they play the arena's default tasks, because the run has no evaluation\); "
    with pytest.raises(ConfigError, match=default):
        drawn.run(dict.fromkeys(drawn.agents, "team"))


class Measured(Kuhn):
    measures = {"right": Metric(better="higher"), "wrong": Metric(better="lower"), "used": Metric()}


def test_a_truncated_episode_counts_as_0_only_where_more_is_better() -> None:
    made = games(Measured, {"team": constant("pass")}, metrics=["right"])
    ended = [Status.FINISHED, Status.TRUNCATED, Status.FAILED]
    episodes = [episode(turn("player_0"), status=status) for status in ended]
    known = dict.fromkeys(["right", "wrong", "used", "undeclared"], 0.5)
    episodes.append(episode(turn("player_0"), status=Status.TRUNCATED, metrics=known))
    np.testing.assert_array_equal(made.scores(episodes), [np.nan, 0, np.nan, 0.5])
    assert "truncated_left_out" not in made.record()
    for name in ("wrong", "used", "undeclared"):
        np.testing.assert_array_equal(made.scores(episodes, name), [np.nan, np.nan, np.nan, 0.5])
    assert made.record()["truncated_left_out"] == {"wrong": 1, "used": 1, "undeclared": 1}


def test_the_return_of_a_truncated_episode_is_what_was_paid() -> None:
    made = games(Measured, {"team": constant("pass")})
    cut = episode(turn("player_0", reward=2.0), status=Status.TRUNCATED)
    assert made.scores([cut], "return/player_0").tolist() == [2.0]
    assert "truncated_left_out" not in made.record()


def test_a_wrong_metric_is_refused_after_one_trial_game() -> None:
    asked: list[str] = []

    def script(messages: object, *rest: object) -> str:
        asked.append("move")
        return "nonsense"

    def made(metric: str):  # type: ignore[no-untyped-def]
        return games(Kuhn, {"team": script}, episodes=100, metrics=[metric])

    for known in ("return", "return/player_1", "illegal"):
        made(known).check_metric()
    assert not asked
    with pytest.raises(ConfigError, match="no such agent"):
        made("return/player_7").check_metric()
    wrong = made("ilegal")
    with pytest.raises(ConfigError, match="a trial game lacks it; did you mean 'illegal'"):
        wrong.check_metric()
    assert len(asked) == 1 and wrong.cells == 0


class Partial(Kuhn):
    """The game of two of six agents: those at the places of the task."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = [f"player_{number}" for number in range(6)]

    def agents_of(self, task: Task) -> list[str]:
        return [self.possible_agents[place] for place in task.payload["places"]]


def test_the_return_is_the_mean_over_the_agents_of_the_task() -> None:
    made = games(Partial, {"team": constant("pass")})
    turns = [turn(f"player_{number}", reward=float(number)) for number in range(1, 5)]
    few = episode(*turns, task=Task(id="few", payload={"places": [1, 2, 3, 4]}))
    more = episode(*turns, task=Task(id="more", payload={"places": [0, 1, 2, 3, 4]}))
    assert made.scores([few, more]).tolist() == [2.5, 2.0]
    assert made.scores([few, more], "return/player").tolist() == [2.5, 2.0]
    assert made.scores([few, more], "return/player_4").tolist() == [4.0, 4.0]
    assert made.scores([few, more], "return/player_5").tolist() == [0.0, 0.0]
