"""An arena of three agents that talk, and specs of its episodes."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from selfplay.arena import Arena
from selfplay.rollout.rollout import EpisodeSpec
from selfplay.types import Action, Observation, Task


class Talk(Arena):
    """In each round a_0 speaks, then b_0 and b_1 at once; then a_0 is paid 1, and they 0.1 each."""

    name = "talk_v0"
    roles = {"a": 1, "b": 2}

    def setup(self, task: Task, rng: random.Random) -> None:
        self.turn, self.rounds = 0, task.payload.get("rounds", 1)
        self.fails = task.payload.get("fails", "")
        if self.fails == "begin":
            raise RuntimeError("no table\nin sight")
        if task.payload.get("early"):
            self.pay("b_0", 0.5)

    def acting(self) -> Sequence[str]:
        return ["a_0"] if self.turn % 2 == 0 else ["b_0", "b_1"]

    def view(self, agent: str) -> Observation:
        if self.fails == "view" and agent == "b_0":
            raise RuntimeError("blind")
        return Observation(text=f"{self.turn}")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        if self.fails == "advance":
            raise ZeroDivisionError("oops")
        if self.turn % 2:
            self.pay("a_0", 1.0)
            for agent in actions:
                self.pay(agent, 0.1)
                self.note(agent, seen=self.turn)
        self.turn += 1
        if self.turn == 2 * self.rounds:
            self.measure(rounds=self.rounds)
            self.finish()


def spec(seed: int = 0, **payload: Any) -> EpisodeSpec:
    return EpisodeSpec(task=Task(id="t", payload=payload), seed=seed)
