"""Small PettingZoo envs for the tests of the adapter. Some of them break the contract."""

import random
import zlib
from threading import Lock
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv


class Countdown(AECEnv):
    """A game of `length` moves in turn. A move of 1 or 2 pays its player at the other's cost."""

    metadata = {"name": "countdown_v0", "render_modes": []}

    def __init__(self, length: int = 4, dice: bool = False) -> None:
        super().__init__()
        self.length, self.dice = length, dice
        self.possible_agents = ["left", "right"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 100, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents = self.possible_agents[:]
        self.rewards: dict[str, Any] = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict(self.rewards)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agent_selection = "left"
        self.left = self.length
        self.drawn = self.draw()

    def draw(self) -> float:
        """Draw from the global random generators, as many games do; return 0 without `dice`."""
        return random.random() + float(np.random.random()) if self.dice else 0.0

    def observe(self, agent: str) -> Any:
        return {"observation": np.array([self.left, self.drawn, 0.5]), "action_mask": self.mask()}

    def mask(self) -> Any:
        return np.array([0, 1, 1], np.int8)

    def step(self, action: int) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        other = "right" if agent == "left" else "left"
        self.pay(agent, other, float(action))
        self.left -= 1
        self.drawn += self.draw()
        self.agent_selection = other
        if self.left == 0:
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()

    def pay(self, agent: str, other: str, reward: float) -> None:
        self.rewards[agent], self.rewards[other] = reward, -reward - self.drawn


class Locked(Countdown):
    """An env with an attribute that cannot be copied."""

    def __init__(self) -> None:
        super().__init__(dice=True)
        self.lock = Lock()


class Keeps(Countdown):
    """An env whose reset does not clear `drawn`, which each step makes larger."""

    drawn = 0.0

    def draw(self) -> float:
        return self.drawn + 0.5


class Drawn(Countdown):
    """An env whose constructor draws from the global random generator."""

    def __init__(self) -> None:
        super().__init__()
        self.luck = random.random()

    def draw(self) -> float:
        return self.luck


def plain(env: Any, agent: str, observation: Any) -> str:
    """Return a checksum: a short text that differs between different observations."""
    return f"{zlib.crc32(np.ascontiguousarray(observation).tobytes())}"


class Bids(ParallelEnv):
    """Three players bid at once, for three rounds. The third player leaves after two rounds.

    The highest bidders of a round are paid 1, and each bid costs a tenth of its number.
    """

    metadata = {"name": "bids_v0", "render_modes": []}
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents = ["ann", "bob", "cas"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(4)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3, start=1)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.round = self.possible_agents[:], 0
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self) -> dict[str, int]:
        return dict.fromkeys(self.agents, self.round)

    def step(self, actions: dict[str, int]) -> Any:
        self.round += 1
        best = max(actions.values())
        rewards = {agent: float(bid == best) - 0.1 * bid for agent, bid in actions.items()}
        over = self.round == 3
        ended = {agent: over or (agent == "cas" and self.round == 2) for agent in self.agents}
        seen = self._seen()
        self.agents = [agent for agent in self.agents if not ended[agent]]
        cut = dict.fromkeys(ended, False)
        return seen, rewards, ended, cut, {agent: {} for agent in ended}


class StepRaises(Countdown):
    def step(self, action: int) -> None:
        raise KeyError("no such\nsquare")


class ResetRaises(Countdown):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        raise RuntimeError("out of cards")


class NoAgentsLeft(Countdown):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        super().reset(seed, options)
        self.agents = []


class Leaves(Countdown):
    def step(self, action: int) -> None:
        raise SystemExit(3)


class PaysNaN(Countdown):
    def pay(self, agent: str, other: str, reward: float) -> None:
        self.rewards[agent] = float("nan")


class PaysUnknownAgent(Countdown):
    def step(self, action: int) -> None:
        super().step(action)
        self.rewards["stranger"] = 1.0


class SelectsUnknownAgent(Countdown):
    def step(self, action: int) -> None:
        super().step(action)
        self.agent_selection = "stranger"


class AllowsNothing(Countdown):
    def mask(self) -> Any:
        return np.zeros(3, np.int8)


class WrongMask(Countdown):
    def mask(self) -> Any:
        return np.ones(7, np.int8)


class KeepsDeadAgents(Countdown):
    def _was_dead_step(self, action: Any) -> None:
        pass


class DropsDeadAgents(Countdown):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        super().reset(seed, options)
        self.terminations = {}


class Picture(Countdown):
    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 255, (210, 160, 3), np.uint8)


class Structured(Countdown):
    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict({"where": spaces.Discrete(3)})


class Unnamed(Countdown):
    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = []


def no_env() -> str:
    return "not an env"
