"""A prompt that a model cannot read: its episode fails by name, and the run is bounded by it."""

import random
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import PreTrainedModel

from selfplay.arena import Arena
from selfplay.config.run_config import RunSettings
from selfplay.engines.scripted import ScriptedEngine, constant
from selfplay.errors import CollapsedError, ConfigError, PromptTooLong
from selfplay.models.renderer import ChatRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.run.metrics import commonest_error, of_episodes
from selfplay.run.progress import Progress
from selfplay.train import Trainer
from selfplay.types import Action, Completion, Observation, Request, Status, Task
from tests.helpers.engine_requests import serving


class Growing(Arena):
    """Two rounds of two agents; with a `long` task the second agent's second prompt is long."""

    name = "growing_v0"
    roles = {"a": 1, "b": 1}

    def setup(self, task: Task, rng: random.Random) -> None:
        self.turn, self.long = 0, task.payload.get("long", 0)

    def acting(self) -> Sequence[str]:
        return ["a_0", "b_0"]

    def view(self, agent: str) -> Observation:
        grown = self.turn == 1 and agent == "b_0"
        return Observation(text="word " * (self.long if grown else 1))

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        self.turn += 1
        if self.turn == 2:
            self.finish()


class Short(ScriptedEngine):
    """Reads no more than 100 tokens, and takes a while."""

    def __init__(self) -> None:
        super().__init__({"p": constant("hi")})
        self.held = 0

    def add(self, request: Request) -> None:
        if len(request.prompt_ids) > 100:
            raise PromptTooLong(f"prompt of {len(request.prompt_ids)} tokens")
        super().add(request)
        self.held += 1

    def step(self) -> list[Completion]:
        finished = super().step()
        self.held -= len(finished)
        return finished


def rollout(engine: Any, renderer: ChatRenderer) -> Rollout:
    seat = AgentSpec(role=Role(), policy="p", renderer=renderer, max_tokens=4)
    return Rollout(arena=Growing, seats={"a": seat, "b": seat}, engines={"p": engine})


def jobs(*lengths: int) -> list[EpisodeSpec]:
    return [
        EpisodeSpec(task=Task(id=f"{n}", payload={"long": long}), seed=n)
        for n, long in enumerate(lengths)
    ]


def test_its_episode_fails_and_the_others_play_on(renderer: ChatRenderer) -> None:
    engine = Short()
    playing = rollout(engine, renderer)
    for _ in range(2):  # what the failed episode's other agent had asked is not left in flight
        episodes = playing.run(jobs(1, 900, 1))
        assert [e.status for e in episodes] == [Status.FINISHED, Status.FAILED, Status.FINISHED]
        assert episodes[1].error.startswith("PromptTooLong: prompt of ")
        assert len(episodes[1].turns) == 2 and engine.held == 0


def test_a_failed_episode_at_the_end_waits_for_what_is_in_flight(renderer: ChatRenderer) -> None:
    engine = Short()
    (episode,) = rollout(engine, renderer).run(jobs(900))
    assert episode.status is Status.FAILED and engine.held == 0


def test_the_embedded_engine_says_so(model: PreTrainedModel, renderer: ChatRenderer) -> None:
    engine = serving({"p": model}, {"p": list(renderer.end_ids)})
    short, long = rollout(engine, renderer).run(jobs(1, 2000))
    assert short.status is Status.FINISHED and long.status is Status.FAILED
    assert "exceeds the model's 256" in long.error
    engine.publish("p", {}, 1)  # refused while requests are in flight
    with pytest.raises(ConfigError, match="leaves no room for a prompt") as caught:
        engine.add(Request(id=0, policy="p", prompt_ids=(1,), seed=0, max_tokens=256))
    assert not isinstance(caught.value, PromptTooLong)


def test_failures_are_counted_by_name_and_stop_the_run_in_the_end(renderer: ChatRenderer) -> None:
    episodes = rollout(Short(), renderer).run(jobs(1, 900, 900, 1))
    figures, error = of_episodes(episodes), commonest_error(episodes)
    assert commonest_error(episodes[:1]) == ""
    assert figures["episodes/failed"] == figures["episodes/failed/PromptTooLong"] == 2

    def guarded(share: float) -> None:
        experiment: Any = SimpleNamespace(settings=RunSettings(steps=1, max_failed_fraction=share))
        run: Any = None  # the check writes nothing
        trainer = Trainer(experiment, run, Progress(1, "run", live=False))
        trainer.check_health(figures, 1, error=error)

    guarded(0.5)
    with pytest.raises(CollapsedError, match="50% of the episodes failed") as caught:
        guarded(0.4)
    assert "2 of 2 with PromptTooLong: " in str(caught.value) and "\n" not in str(caught.value)
