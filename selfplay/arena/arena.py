"""The arena: a partially observable stochastic game, played in stages.

An `Arena` is a `pettingzoo.AECEnv`. An author writes `setup`, `acting`, `view` and `advance`; the
base class does PettingZoo's bookkeeping. The agents that `acting` names form a *stage*: none of
them sees the move of another before all have moved. In PettingZoo's interface they take turns.
"""

import copy
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from functools import cached_property
from inspect import cleandoc
from math import isfinite
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, SupportsFloat

from gymnasium import spaces
from pettingzoo import AECEnv

from selfplay.arena.checks import Changing, Computed, check_entered, named_agents, role_counts
from selfplay.author_code import check_declared, default_task_of
from selfplay.drawing import StateDrawing
from selfplay.errors import ConfigError, nearest
from selfplay.rng import derive
from selfplay.types import (
    LONGEST_TEXT,
    Action,
    Metric,
    Observation,
    Task,
    ToolCall,
    playable,
)


class AnyText(spaces.Text):
    """Space of text with any characters; Gymnasium's `Text` has a fixed set of characters."""

    def __init__(self, max_length: int = LONGEST_TEXT) -> None:
        super().__init__(max_length=max_length, min_length=0)

    def contains(self, x: Any) -> bool:
        """Return True if `x` is a string of at most `max_length` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a short random string, for random agents."""
        length = int(self.np_random.integers(0, 32))
        return "".join(chr(int(code)) for code in self.np_random.integers(32, 127, size=length))


class Arena(AECEnv):
    """Base class of all arenas: the game that the agents play.

    An author subclasses it; a config names the subclass. The rollout calls `begin`, `view` and
    `play_stage`, and credit methods and studies replay it. Its state is plain data, so that an
    arena can be forked, pickled and replayed.
    """

    name: ClassVar[str] = "arena_v0"
    """Name with a version, as PettingZoo's environments have it."""
    roles: Mapping[str, int] = MappingProxyType({})
    """Number of agents of each role; the largest number if agents come during an episode."""
    optional_roles: Sequence[str] = ()
    """Roles that have agents only with other settings of the arena; a config may define them."""
    services: ClassVar[tuple[str, ...]] = ()
    """Names of attributes that reach outside (executors, buffers). Forks share these objects, and
    pickles hold None in place of them."""
    measures: Mapping[str, Metric] = MappingProxyType({})
    """Unit and direction of each metric and note of this arena, by name.

    A name may hold `*` ("*_return"). "verdict/<name>" declares a verdict: pages show a green badge
    if a higher fraction is better, and a red badge if a lower fraction is better. A metric that is
    not declared here is shown as a plain number.
    """
    chief: tuple[str, ...] = ()
    """Names of the main metrics of an episode, the most important first; pages show them before
    others."""
    blocking: bool = False
    """True if `advance` waits for a service; the rollout then advances many arenas at once."""
    _may_pay = False
    """True while `setup` or `advance` runs."""

    def __init__(self, roles: Mapping[str, int] | None = None) -> None:
        """Args:
        roles: Number of agents of each role; None takes the class's own.

        Raises ConfigError for roles, `measures` or `chief` of a wrong type.
        """
        super().__init__()
        self.roles = role_counts(type(self), type(self).roles if roles is None else roles)
        check_declared(self)
        self.metadata = {"name": self.name, "render_modes": ["ansi"], "is_parallelizable": False}
        self.render_mode = "ansi"
        self.possible_agents = [
            f"{role}_{number}" for role, count in self.roles.items() for number in range(count)
        ]
        self.agents: list[str] = []

    # Methods that an author writes ---------------------------------------------------------------

    def default_task(self, rng: Random) -> Task:
        """Return the task that `reset` plays if no task is given."""
        return Task(id="default")

    def setup(self, task: Task, rng: Random) -> None:
        """Build the initial state. All randomness of the episode comes from `rng`."""
        raise NotImplementedError(f"{type(self).__name__} has no method setup; write it")

    def acting(self) -> Sequence[str]:
        """Return the agents that move now, at least one and each once; none sees another's move."""
        raise NotImplementedError(f"{type(self).__name__} has no method acting; write it")

    def view(self, agent: str) -> Observation:
        """Return everything that this agent may see now."""
        raise NotImplementedError(f"{type(self).__name__} has no method view; write it")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Apply the actions of one stage to the state.

        `None` is an action that did not parse. This method must not raise an error on any text.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method advance; write it")

    def messengers(self) -> Sequence[str]:
        """Return the agents of `acting` whose moves are messages that other agents will read;
        studies change what these readers see. By default there are none."""
        return ()

    def starting_agents(self, task: Task) -> Sequence[str]:
        """Return the agents with which the episode of a task starts: by default `agents_of`.

        An arena whose agents come during the episode returns fewer, and calls `add` for the others.
        """
        return self.agents_of(task)

    def tool_state(self, agent: str, calls: Sequence[ToolCall]) -> Any:
        """Return the data of the episode on which a stateful tool of the agent works, as a copy.

        The rollout asks for it before each call of such a tool, from another thread. The result
        depends on the state of the arena and on `calls` alone, so that episodes can branch. By
        default ConfigError is raised.

        Args:
            agent: The agent that calls.
            calls: Its calls before this one in the same move, also those that failed.
        """
        raise ConfigError(
            f"{self.name}: this arena has no data for the tools of {agent}; give its role tools "
            "that are not stateful, or write Arena.tool_state"
        )

    def with_calls(self, agent: str, action: Action, calls: Sequence[ToolCall]) -> Action:
        """Return the complete move of an agent: its action, with the effect of its tool calls.

        The rollout calls this for every move that has an action, also if there were no tool calls.
        `advance`, records and replays get this text. An arena whose tools change its state adds the
        calls to the action, because a replay calls no tool. By default the result is `action`.

        Args:
            agent: The agent that moves.
            action: The action that the role found in the agent's last completion of the move.
            calls: The agent's calls in this move, in order, also those that failed.
        """
        return action

    def potential(self, agent: str) -> float | None:
        """Return the state's shaping potential for an agent that is to move; None if it has none.

        Records keep it as `potential` in the `info` of the move, and `shaping=potential` pays its
        change. It depends on the state alone; 0 is the potential of an ended episode.
        """
        return None

    def canonical_answer(self, task: Task, agent: str, action: Action | None) -> str | None:
        """Return a move's answer to the task, the same text for the same meaning; "" is no answer.

        Studies take majority votes over these texts. By default the result is None: answers cannot
        be compared. The result depends on the arguments alone.
        """
        return None

    def is_legal(self, observation: Observation, action: Action) -> bool:
        """Return True if a move is legal for an agent with this observation.

        A person whose move is not legal is asked again; a policy is not. By default a move is legal
        if the observation lists it under `legal`, or lists nothing there.
        """
        legal = observation.fields.get("legal")
        return not legal or action in legal

    def explain(self) -> str:
        """Return the rules for a person who plays; by default the docstring of the arena's module,
        without its version history."""
        text = cleandoc(sys.modules[type(self).__module__].__doc__ or "")
        parts = (part for part in text.split("\n\n") if not part.startswith("Version history"))
        return "\n\n".join(parts).strip()

    def draw(self, agent: str | None = None) -> StateDrawing | None:
        """Return a picture of the current state, for pages; None by default.

        The result depends on the state alone, and drawing does not change the state.

        Args:
            agent: Agent whose knowledge the picture shows; None: everything.
        """
        return None

    # Methods that an author calls ----------------------------------------------------------------

    def add(self, agent: str) -> None:
        """Let an agent enter the episode; it can be paid at once, and act from the next stage on.

        `setup` and `advance` may call it. Raises ValueError for an agent that is not in
        `possible_agents`, and for one that has entered before.
        """
        if agent not in self.possible_agents:
            raise ValueError(
                f"{self.name}: add({agent!r}): not declared; roles holds the largest number of "
                f"agents of each role ({nearest(agent, self.possible_agents)})"
            )
        if agent in self.agents:
            raise ValueError(f"{self.name}: add({agent!r}): it is in the episode already")
        self.agents.append(agent)
        self.rewards[agent] = self._cumulative_rewards[agent] = self.paid[agent] = 0.0
        self.terminations[agent] = self.truncations[agent] = False
        self.infos[agent] = {}

    def pay(self, agent: str, reward: float, *, move: int | None = None) -> None:
        """Give `agent` a reward.

        With `move`, the reward is for the agent's move of that number (from 0), whose value is
        known only now: records add it to that move and not to the latest move.

        `setup` and `advance` may call it. Raises KeyError if `agent` is unknown, and ValueError for
        a call from elsewhere, a reward that is not finite, or a `move` that was not made. In a run,
        the episode then counts as failed.
        """
        check_entered(self, agent)
        if not self._may_pay:
            raise ValueError(
                f"{self.name}: pay({agent!r}, {reward!r}) was called outside of setup and advance; "
                "only these methods may pay"
            )
        if isinstance(reward, str) or not isinstance(reward, float | int | SupportsFloat):
            raise ValueError(f"{self.name}: the reward of {agent} is {reward!r}, not a number")
        paid = self.paid[agent] + float(reward)
        if not isfinite(paid):
            raise ValueError(
                f"{self.name}: pay({agent!r}, {reward}): reward and return must be finite"
            )
        self.paid[agent] = paid
        if move is not None:
            made = sum(agent in moves for moves in self.history)
            if not 0 <= move < made:
                raise ValueError(f"{self.name}: {agent} has made {made} moves; none is {move}")
            self.delayed_rewards.append((agent, move, float(reward)))

    def leave_out(self, agent: str) -> None:
        """Say that the value of `agent`'s latest move is unknown, so that no policy learns from it.

        An example is an answer whose judge gave no score: a reward of 0 would teach that the answer
        was wrong. The move stays in the record. Raises KeyError if `agent` is unknown.
        """
        check_entered(self, agent)
        self.left_out.add(agent)

    def note(self, agent: str, **facts: Any) -> None:
        """Record facts about the agent's latest move, for transcripts and metrics.

        A note about an agent that has not moved yet is dropped. Raises KeyError for an unknown one.
        """
        check_entered(self, agent)
        self.notes.setdefault(agent, {}).update(facts)

    def measure(self, **values: float) -> None:
        """Record episode metrics. Raises ValueError for a value that is not a finite number."""
        for name, value in values.items():
            if not isinstance(value, float | int | SupportsFloat) or not isfinite(value):
                raise ValueError(
                    f"{self.name}: measure({name}={value!r}): a metric must be a finite number; "
                    "leave out a metric that the episode cannot measure"
                )
        self.metrics.update({name: float(value) for name, value in values.items()})

    def create(self, task: Task) -> None:
        """Pass a verified new task to the curriculum."""
        self.created.append(task)

    def finish(self) -> None:
        """End the episode."""
        self.finished = True

    # Methods that the rollout uses ---------------------------------------------------------------

    @Computed
    def stage(self) -> tuple[str, ...]:
        """The agents that still have to move in the current stage."""
        return tuple(self._waiting)

    def agents_of(self, task: Task) -> list[str]:
        """Return the agents that can take part in a task, in order: all, unless a subclass chooses.

        A league and an evaluation with opponents give seats to these agents only. Some of them may
        enter late or never, see `starting_agents`.
        """
        return list(self.possible_agents)

    def to_come(self) -> list[str]:
        """Return the agents that have not entered the episode, and that `add` may still let in."""
        here = {*self.agents, *self.starting_agents(self.task)}
        return [agent for agent in self.agents_of(self.task) if agent not in here]

    def begin(self, task: Task, seed: int) -> None:
        """Start the episode of `task` and `seed`."""
        self.task, self.seed = task, seed
        self.rng = Random(derive(seed, "arena"))
        self.agents = []
        self.rewards: dict[str, float] = {}
        self._cumulative_rewards: dict[str, float] = {}
        self.terminations: dict[str, bool] = {}
        self.truncations: dict[str, bool] = {}
        self.infos: dict[str, dict[str, Any]] = {}
        self._skip_agent_selection = None
        self.paid: dict[str, float] = {}
        for agent in self.starting_agents(task):
            self.add(agent)
        self.notes: dict[str, dict[str, Any]] = {}
        self.metrics: MutableMapping[str, float] = {}
        self.created: list[Task] = []
        self.delayed_rewards: list[tuple[str, int, float]] = []
        self.left_out: set[str] = set()
        self.finished = False
        self.history: list[dict[str, Action | None]] = []
        self._moves: dict[str, Action | None] = {}
        self._waiting: list[str] = []
        self.agent_selection = next(iter(self.agents), "")
        Changing(self).call("setup", task, self.rng)
        self._go_on()

    def play_stage(self, actions: Mapping[str, Action | None]) -> dict[str, float]:
        """Play one whole stage; return the reward that each agent got for it, also those that did
        not move. Raises ValueError unless `actions` has exactly the agents of `stage`."""
        if set(actions) != set(self._waiting):
            raise ValueError(f"{self.name}: stage of {self._waiting} got moves of {list(actions)}")
        before = dict(self.paid)
        for agent in list(self._waiting):
            self._move(actions[agent])
        return {agent: paid - before.get(agent, 0.0) for agent, paid in self.paid.items()}

    def fork(self) -> "Arena":
        """Return an independent copy in mid-episode. Services are shared, not copied."""
        return copy.deepcopy(self)

    def replay(self, history: Sequence[Mapping[str, Action | None]]) -> None:
        """Play recorded stages again, from the beginning of the same task and seed."""
        self.begin(self.task, self.seed)
        for actions in history:
            self.play_stage(actions)

    # PettingZoo --------------------------------------------------------------------------------

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of observations: a dictionary with the observation under "text"."""
        return self._spaces[0]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of actions: any text."""
        return self._spaces[1]

    @cached_property
    def _spaces(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Spaces of observations and of actions, made on demand because no rollout needs them."""
        return spaces.Dict({"text": AnyText()}), AnyText()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode through PettingZoo; `options["task"]` is the task to play."""
        if seed is None:
            seed = derive(getattr(self, "seed", 0), "next")
        task = (options or {}).get("task")
        self.begin(task or default_task_of(self, Random(derive(seed, "task"))), seed)

    def observe(self, agent: str) -> dict[str, str]:
        """Return PettingZoo's observation: the text of `view`, or its fields if it has no text."""
        observation = self.view(agent)
        text = observation.text or "\n".join(f"{k}: {v}" for k, v in observation.fields.items())
        return {"text": text[:LONGEST_TEXT]}

    def step(self, action: Action | None) -> None:
        """Play the selected agent's move through PettingZoo."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        before = dict(self.paid)
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self._move(action)
        for name in self.agents:
            self.rewards[name] = self.paid[name] - before.get(name, 0.0)
            self.infos[name] = self.notes.get(name, {})
        self._accumulate_rewards()
        if self.finished:
            self._deads_step_first()

    def render(self) -> str:
        """Return the moves of all stages so far as text, one line each."""
        return "\n".join(f"{agent}: {a}" for moves in self.history for agent, a in moves.items())

    def close(self) -> None:
        """Release nothing, because services belong to the object that made them."""

    # Inside ------------------------------------------------------------------------------------

    def _move(self, action: Action | None) -> None:
        agent = self._waiting.pop(0)
        self._moves[agent] = playable(action)
        if self._waiting:
            self.agent_selection = self._waiting[0]
            return
        moves, self._moves = self._moves, {}
        self.history.append(moves)
        self.notes = {}
        potentials = {name: self.potential(name) for name in moves}
        Changing(self).call("advance", moves)
        for name, potential in potentials.items():
            if potential is not None:
                self.note(name, potential=float(potential))
        self._go_on()

    def _go_on(self) -> None:
        """Open the next stage, or end the episode."""
        if self.finished:
            self.terminations = dict.fromkeys(self.agents, True)
            return
        self._waiting = named_agents(self, self.acting())
        self.agent_selection = self._waiting[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Arena":
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for name, value in self.__dict__.items():
            shared = name in self.services or name in ("_spaces", "measures")
            setattr(twin, name, value if shared else copy.deepcopy(value, memo))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {n: None if n in self.services else value for n, value in self.__dict__.items()}
