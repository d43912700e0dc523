"""An arena and an engine that fail or wait on demand. Workers import them from this module."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from selfplay.arena import Arena
from selfplay.curriculum.task_buffer import TaskBuffer
from selfplay.engines.transformers import TransformersEngine
from selfplay.errors import ConfigError
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.types import Action, Completion, Observation, Task


class Talk(Arena):
    """A talk of one or more rounds. A task's payload names a fault, and a file that permits it."""

    name = "talk_v0"
    roles = {"speaker": 1, "thinker": 1}
    blocking = False

    def __init__(self, *, buffer: TaskBuffer) -> None:
        super().__init__()
        self.buffer = buffer

    def setup(self, task: Task, rng: Random) -> None:
        self.task, self.rounds = task, 0
        self.number = rng.random()

    def acting(self) -> Sequence[str]:
        agents: Sequence[str] = self.task.payload.get("agents", ["speaker_0"])
        return agents

    def view(self, agent: str) -> Observation:
        return Observation(text=self.task.id)

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        payload = self.task.payload
        trouble, mark = payload.get("trouble"), payload.get("mark")
        if trouble and (mark is None or taken(Path(mark))):
            if trouble == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if trouble == "hang":
                time.sleep(3600)
            if trouble == "refuse":
                raise ConfigError("the arena: a setting that only play finds wrong; change it")
            while not taken(Path(payload["mark"]).with_suffix(".go")):
                time.sleep(0.02)
        self.rounds += 1
        for agent in actions:
            self.pay(agent, self.number)
        if self.rounds == payload.get("rounds", 1):
            self.measure(process=os.getpid(), known=self.buffer.size)
            self.finish()


class Fragile(TransformersEngine):
    """An engine that fails at a step if the file `mark` exists, and removes the file."""

    def __init__(self, *, mark: str) -> None:
        super().__init__()
        self.mark = Path(mark)

    def step(self) -> list[Completion]:
        if taken(self.mark):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return super().step()


def speak(agent: str, observation: Observation, rng: Random) -> str:
    return f"{observation.text}: {rng.randrange(1000)}"


def taken(mark: Path) -> bool:
    """Remove a file. Return True if it existed."""
    try:
        mark.unlink()
    except FileNotFoundError:
        return False
    return True


def settings(model: Path, mark: Path, **policy: Any) -> dict[str, Any]:
    """Return the part of a config that players need."""
    role = {"_target_": "selfplay.role.Role", "template": "{{ text }}"}
    return {
        "seed": 0,
        "run": {"_target_": "selfplay.config.run_config.RunSettings", "steps": 1, "threads": 1},
        "services": {"buffer": {"_target_": "selfplay.curriculum.task_buffer.TaskBuffer"}},
        "arena": {"_target_": "tests.helpers.fault_injection.Talk"},
        "roles": {"speaker": role, "thinker": role},
        "population": {
            "_target_": "selfplay.models.population.Population",
            "policy": {"model": str(model), **policy},
            "roles": {"speaker": "script", "thinker": "thinker"},
            "opponents": {
                "script": {
                    "_target_": "selfplay.engines.scripted.Scripted",
                    "script": "tests.helpers.fault_injection.speak",
                }
            },
        },
        "evaluations": {},
        "warmstart": {},
        "sampling": {"default": {"max_tokens": 6}},
        "rollout": {},
        "learner": {},
        "engine": {"_target_": "tests.helpers.fault_injection.Fragile", "mark": str(mark)},
    }


def specs(groups: int, size: int = 2, **payload: Any) -> list[EpisodeSpec]:
    """Return specs of groups with one task each. `payload` is for the task of the first group."""
    return [
        EpisodeSpec(
            task=Task(id=f"t{group}", payload=payload if group == 0 else {}),
            seed=group,
            member=member,
        )
        for group in range(groups)
        for member in range(size)
    ]
