"""Mixture of arenas in one run: every task names the arena that plays it.

Any arena can be a part without changes. Its roles and agents get the part as prefix
("kuhn_player_0"), so that arenas with equal role names keep separate prompts, metrics and credit; a
task's type gets the same prefix. Tasks come from `selfplay.curriculum.mixture`.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.games.kuhn import Kuhn
from arenas.games.tic_tac_toe import TicTacToe
from arenas.mixture.inside import pass_on, play_stage
from selfplay.arena import Arena
from selfplay.curriculum.mixture import routed, unrouted
from selfplay.drawing import StateDrawing
from selfplay.errors import ConfigError, nearest
from selfplay.types import Action, Metric, Observation, Task, ToolCall


class Mixture(Arena):
    """Arena that plays another one, which the task names; only that arena's agents take part."""

    services: ClassVar[tuple[str, ...]] = ("parts",)

    def __init__(self, *, parts: Mapping[str, Arena]) -> None:
        """`parts` are the arenas by name; each episode plays a copy of one."""
        if not parts:
            raise ValueError("parts names no arena")
        self._part = ""
        roles: dict[str, int] = {}
        for name, part in parts.items():
            for role, count in part.roles.items():
                if f"{name}_{role}" in roles:
                    raise ConfigError(
                        f"arena.parts.{name}: its role {role!r} gets the name {name}_{role}, which "
                        "a role of another part has too; rename the part"
                    )
                roles[f"{name}_{role}"] = count
        super().__init__(roles)
        self.parts = dict(parts)
        self.optional_roles = tuple(
            f"{name}_{role}" for name, part in parts.items() for role in part.optional_roles
        )
        self.measures = _declared(parts)
        self.chief = tuple(f"{n}/{name}" for n, part in parts.items() for name in part.chief)
        self.blocking = any(part.blocking for part in parts.values())
        self.inner = next(iter(self.parts.values()))

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the current part, so that credit with averages per arena separates the parts."""
        return self._part or "mixture_v0"

    def default_task(self, rng: Random) -> Task:
        """Return a default task of a random part."""
        part = rng.choice(list(self.parts))
        return routed(part, self.parts[part].default_task(rng))

    def agents_of(self, task: Task) -> list[str]:
        """Return the agents of the arena that the task names; none if there is no such arena."""
        part, inner_task = unrouted(task)
        if part not in self.parts:
            return []  # `setup` raises the error, which fails one episode and not the run
        return [f"{part}_{agent}" for agent in self.parts[part].agents_of(inner_task)]

    def starting_agents(self, task: Task) -> list[str]:
        """Return the agents with which the arena that the task names starts its episode."""
        part, inner_task = unrouted(task)
        if part not in self.parts:
            return []
        return [f"{part}_{agent}" for agent in self.parts[part].starting_agents(inner_task)]

    def setup(self, task: Task, rng: Random) -> None:
        """Begin the arena that the task names, with the episode's seed."""
        part, inner_task = unrouted(task)
        if part not in self.parts:
            raise ValueError(f"task {task.id}: no arena {part!r}; {nearest(part, self.parts)}")
        self._part, self.inner = part, self.parts[part].fork()
        self.inner.begin(inner_task, self.seed)
        self._take_over({}, self.inner.metrics)

    def acting(self) -> Sequence[str]:
        """Return the agents of the inner arena's stage."""
        return [self._outer(agent) for agent in self.inner.stage]

    def messengers(self) -> Sequence[str]:
        """Return the agents of the inner arena whose moves are messages."""
        return [self._outer(agent) for agent in self.inner.messengers()]

    def canonical_answer(self, task: Task, agent: str, action: Action | None) -> str | None:
        """Return the canonical answer of the part."""
        part, inner_task = unrouted(task)
        return self.parts[part].canonical_answer(inner_task, agent.removeprefix(f"{part}_"), action)

    def view(self, agent: str) -> Observation:
        """Return the inner arena's observation."""
        return self.inner.view(self._inner(agent))

    def tool_state(self, agent: str, calls: Sequence[ToolCall]) -> Any:
        """Return the data of the inner arena for the tools of the agent."""
        return self.inner.tool_state(self._inner(agent), calls)

    def with_calls(self, agent: str, action: Action, calls: Sequence[ToolCall]) -> Action:
        """Return the agent's complete move in the inner arena."""
        return self.inner.with_calls(self._inner(agent), action, calls)

    def is_legal(self, observation: Observation, action: Action) -> bool:
        """Return True if a move is legal in the current part or, before an episode, in any part."""
        playing = [self.inner] if self._part else self.parts.values()
        return any(part.is_legal(observation, action) for part in playing)

    def explain(self) -> str:
        """Return the rules of all parts, each after its name."""
        return "\n\n".join(f"{name}: {part.explain()}" for name, part in self.parts.items())

    def draw(self, agent: str | None = None) -> StateDrawing | None:
        """Return a picture of the inner arena's state."""
        return self.inner.draw(agent and self._inner(agent))

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Play the stage in the inner arena; copy its new agents, rewards, notes and metrics."""
        before = dict(self.inner.paid)
        moves = {self._inner(agent): action for agent, action in actions.items()}
        self._take_over(before, play_stage(self.inner, moves))

    def _take_over(self, before: Mapping[str, float], measured: Mapping[str, float]) -> None:
        for agent in map(self._outer, self.inner.agents):
            if agent not in self.agents:
                self.add(agent)
        pass_on(self.inner, self, paid=before, named=self._outer)
        self.measure(**measured)
        fresh = self.inner.created[len(self.created) :]
        self.created += [routed(self._part, task) for task in fresh]
        if self.inner.finished:
            self.finish()

    def _outer(self, agent: str) -> str:
        return f"{self._part}_{agent}"

    def _inner(self, agent: str) -> str:
        return agent.removeprefix(f"{self._part}_")


def _declared(parts: Mapping[str, Arena]) -> dict[str, Metric]:
    """Return the declared metrics of all parts, as `<part>/<name>`.

    A metric is also declared without the prefix if all parts that have it declare the same unit and
    direction.
    """
    found = {f"{n}/{name}": m for n, part in parts.items() for name, m in part.measures.items()}
    for name in {name for part in parts.values() for name in part.measures}:
        said = {part.measures[name] for part in parts.values() if name in part.measures}
        if len(said) == 1 and "/" not in name:
            found |= dict.fromkeys([name], *said)
    return found


def tasks_of(part: str, tasks: Sequence[Task]) -> list[Task]:
    """Return an arena's tasks in the mixture's form, for evaluations of one part.

    Args:
        part: The mixture's name of the arena.
        tasks: Tasks of that arena.
    """
    return [routed(part, task) for task in tasks]


def raw_env(parts: Mapping[str, Arena] | None = None) -> Mixture:
    """Return the arena without a wrapper; the default parts are two small games."""
    return Mixture(parts=parts or {"kuhn": Kuhn(), "tic_tac_toe": TicTacToe()})


def env(parts: Mapping[str, Arena] | None = None) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(parts))
