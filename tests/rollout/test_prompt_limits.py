"""Tests of prompts that are too long: they truncate an episode, or fail one without a turn."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import PreTrainedModel

from selfplay.arena import Arena
from selfplay.config.run_config import RunSettings
from selfplay.credit.dr_grpo import DrGRPO
from selfplay.credit.grpo import GRPO
from selfplay.engines.scripted import ScriptedEngine, constant
from selfplay.errors import ConfigError, NothingToLearn, PromptTooLong
from selfplay.learner.objective import PolicyLoss
from selfplay.models.renderer import ChatRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.run.metrics import commonest_error, of_episodes
from selfplay.run.progress import Progress
from selfplay.train import Trainer
from selfplay.types import Action, Completion, Observation, Request, Status, Task
from tests.helpers.builders import group
from tests.helpers.engine_requests import serving


class Growing(Arena):
    """A game of two agents, who are paid 1 in each of two rounds. In round `at` of the task, the
    prompt of the second agent has `long` words."""

    name = "growing_v0"
    roles = {"a": 1, "b": 1}

    def setup(self, task: Task, rng: random.Random) -> None:
        self.turn, self.long = 0, task.payload.get("long", 0)
        self.at = task.payload.get("at", 1)

    def acting(self) -> Sequence[str]:
        return ["a_0", "b_0"]

    def view(self, agent: str) -> Observation:
        grown = self.turn == self.at and agent == "b_0"
        return Observation(text="word " * (self.long if grown else 1))

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        self.turn += 1
        self.measure(rounds=self.turn)
        for agent in actions:
            self.pay(agent, 1.0)
        if self.turn == 2:
            self.finish()


class Short(ScriptedEngine):
    """An engine that refuses prompts of more than 100 tokens, and counts its open requests."""

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
    agent_spec = AgentSpec(role=Role(), policy="p", renderer=renderer, max_tokens=4)
    return Rollout(
        arena=Growing, agent_specs={"a": agent_spec, "b": agent_spec}, engines={"p": engine}
    )


def asked_specs(*lengths: int, at: int = 1) -> list[EpisodeSpec]:
    return [
        EpisodeSpec(task=Task(id=f"{n}", payload={"long": long, "at": at}), seed=n)
        for n, long in enumerate(lengths)
    ]


def test_a_long_prompt_truncates_its_episode_and_no_other(renderer: ChatRenderer) -> None:
    engine = Short()
    playing = rollout(engine, renderer)
    for _ in range(2):  # no request of the truncated episode stays in flight
        episodes = playing.run(asked_specs(1, 900, 1))
        assert [e.status for e in episodes] == [Status.FINISHED, Status.TRUNCATED, Status.FINISHED]
        assert episodes[1].error.startswith("PromptTooLong: prompt of ")
        assert [turn.reward for turn in episodes[1].turns] == [1.0, 1.0]
        assert episodes[1].metrics == {"rounds": 1.0}
        assert engine.held == 0 and episodes[0].error == ""


def test_a_last_episode_waits_for_requests_in_flight(renderer: ChatRenderer) -> None:
    engine = Short()
    (episode,) = rollout(engine, renderer).run(asked_specs(900))
    assert episode.status is Status.TRUNCATED and engine.held == 0


def test_an_episode_without_a_turn_fails(renderer: ChatRenderer) -> None:
    engine = Short()
    short, long = rollout(engine, renderer).run(asked_specs(1, 900, at=0))
    assert short.status is Status.FINISHED and long.status is Status.FAILED
    assert long.error.startswith("PromptTooLong: ") and not long.turns and engine.held == 0


def test_a_truncated_episode_is_credited_and_can_be_branched_from(renderer: ChatRenderer) -> None:
    playing = rollout(Short(), renderer)
    long, short = playing.run(asked_specs(900, 1))
    samples = DrGRPO(group_by="agent").assign([group(long, short)])
    assert {(each.episode, each.advantage) for each in samples} == {(0, -0.5), (1, 0.5)}
    spec = replace(asked_specs(900)[0], member=1, prefix_turns=long.turns, branch_of=0)
    (branch,) = playing.run([spec])
    assert branch.status is Status.TRUNCATED and branch.turns == long.turns


class Remote(Short):
    """An engine that takes every request, and reports later that the prompt is too long."""

    def __init__(self) -> None:
        super().__init__()
        self.long: set[int] = set()

    def add(self, request: Request) -> None:
        if len(request.prompt_ids) > 100:
            self.long.add(request.id)
        ScriptedEngine.add(self, request)
        self.held += 1

    def step(self) -> list[Completion]:
        return [
            replace(done, too_long_reason="no room") if done.id in self.long else done
            for done in super().step()
        ]


def test_an_engine_may_report_a_long_prompt_later(renderer: ChatRenderer) -> None:
    engine = Remote()
    episodes = rollout(engine, renderer).run([*asked_specs(1, 900), *asked_specs(900, at=0)])
    assert [e.status for e in episodes] == [Status.FINISHED, Status.TRUNCATED, Status.FAILED]
    assert [e.error for e in episodes] == ["", *["PromptTooLong: no room"] * 2]
    assert len(episodes[1].turns) == 2 and engine.held == 0


def test_the_embedded_engine_reports_a_long_prompt(
    model: PreTrainedModel, renderer: ChatRenderer
) -> None:
    engine = serving({"p": model}, {"p": list(renderer.end_ids)})
    short, long = rollout(engine, renderer).run(asked_specs(1, 2000))
    assert short.status is Status.FINISHED and long.status is Status.TRUNCATED
    assert "exceeds the model's 256; shorten the prompt, or choose a model with a " in long.error
    engine.publish("p", {}, 1)  # raises an error while requests are in flight
    with pytest.raises(ConfigError, match="leaves no room for a prompt") as caught:
        engine.add(Request(id=0, policy="p", prompt_ids=(1,), seed=0, max_tokens=256))
    assert not isinstance(caught.value, PromptTooLong)
    words = (
        r"exceeds the model's 256; lower sampling\.b\.max_tokens \(or that of default\), shorten"
    )
    with pytest.raises(PromptTooLong, match=words):  # a shorter answer has room
        ids = (1,) * 255
        engine.add(Request(id=0, policy="p", agent="b_0", prompt_ids=ids, seed=0, max_tokens=4))


def test_only_the_first_truncation_by_a_long_prompt_is_reported(renderer: ChatRenderer) -> None:
    playing, notes = rollout(Short(), renderer), list[str]()
    experiment: Any = SimpleNamespace(credit=GRPO(), sampler=None, objective=PolicyLoss())
    progress: Any = SimpleNamespace(note=notes.append)
    run: Any = None  # nothing is written
    trainer = Trainer(experiment, run, progress)
    for step, lengths in enumerate([(1, 1), (1, 900), (1, 900)], 2):
        played = [group(*playing.run(asked_specs(*lengths)))]
        samples = DrGRPO(group_by="agent").assign(played)
        trainer._note_missing_signals(step, played=played, groups=played, samples=samples)
    (line,) = [line for line in notes if "PromptTooLong" in line]
    assert line.startswith("step 3: 1 of 2 episodes were cut off before the arena ended them, ")
    assert "PromptTooLong: prompt of " in line and "episodes/truncated/PromptTooLong" in line


def test_failures_are_counted_by_error_and_too_many_stop_the_run(renderer: ChatRenderer) -> None:
    playing = rollout(Short(), renderer)
    cut = of_episodes(playing.run(asked_specs(1, 900, 900)))
    assert cut["episodes/truncated"] == cut["episodes/truncated/PromptTooLong"] == 2
    assert cut["episodes/failed"] == 0 and cut["role/b/reward"] == pytest.approx(4 / 3)
    episodes = playing.run(asked_specs(1, 900, 900, 1, at=0))
    metrics, error = of_episodes(episodes), commonest_error(episodes)
    assert commonest_error(episodes[:1]) == ""
    assert metrics["episodes/failed"] == metrics["episodes/failed/PromptTooLong"] == 2

    def guarded(fraction: float) -> None:
        settings = RunSettings(steps=1, max_failed_fraction=fraction)
        experiment: Any = SimpleNamespace(settings=settings, credit=GRPO())
        run: Any = None  # the check writes nothing
        trainer = Trainer(experiment, run, Progress(1, "run", live=False))
        trainer.check_health(metrics, 1, error=error)

    guarded(0.5)
    with pytest.raises(NothingToLearn, match="50% of the episodes failed") as caught:
        guarded(0.4)
    assert "2 of 2 with PromptTooLong: " in str(caught.value) and "\n" not in str(caught.value)
