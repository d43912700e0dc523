"""A mixture: one run in which every task says which of several arenas it is for.

Any arena can be a part, as it is. Its roles and agents are named after the part ("kuhn_player_0"),
so that arenas which share a word for a role keep their own prompts, figures and credit; a task's
type is a path below the part too. Tasks come from `selfplay.curriculum.mixture`.

Version history: v0, first version.
"""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.games.kuhn import Kuhn
from arenas.games.tic_tac_toe import TicTacToe
from selfplay.arena import Arena
from selfplay.curriculum.mixture import routed, unrouted
from selfplay.errors import nearest
from selfplay.types import Action, Metric, Observation, Task


class Mixture(Arena):
    """Plays the arena that the task names; the agents of the others are not there."""

    services: ClassVar[tuple[str, ...]] = ("parts",)

    def __init__(self, *, parts: Mapping[str, Arena]) -> None:
        """`parts`: the arenas by name; each episode plays a copy of one of them."""
        if not parts:
            raise ValueError("parts names no arena")
        self._part = ""
        super().__init__(
            {f"{n}_{role}": c for n, part in parts.items() for role, c in part.roles.items()}
        )
        self.parts = dict(parts)
        self.measures = _declared(parts)
        self.chief = tuple(f"{n}/{name}" for n, part in parts.items() for name in part.chief)
        self.blocking = any(part.blocking for part in parts.values())  # type: ignore[misc]
        self.inner = next(iter(self.parts.values()))

    @property
    def name(self) -> str:  # type: ignore[override]
        """The part that is played: credit that keeps averages by arena keeps these apart."""
        return self._part or "mixture_v0"

    def default_task(self, rng: Random) -> Task:
        """A default task of any part."""
        part = rng.choice(list(self.parts))
        return routed(part, self.parts[part].default_task(rng))

    def setup(self, task: Task, rng: Random) -> None:
        """Begin the arena that the task is for, with the episode's own seed."""
        part, inner_task = unrouted(task)
        if part not in self.parts:
            raise ValueError(f"task {task.id}: no arena {part!r}; {nearest(part, self.parts)}")
        self._part, self.inner = part, self.parts[part].fork()
        self.inner.begin(inner_task, self.seed)
        self.agents = [self._outer(agent) for agent in self.inner.possible_agents]
        for table in (
            self.paid,
            self.rewards,
            self._cumulative_rewards,
            self.terminations,
            self.truncations,
            self.infos,
        ):
            for agent in set(table) - set(self.agents):
                del table[agent]
        self._take_over(dict.fromkeys(self.inner.paid, 0.0), self.inner.metrics)

    def acting(self) -> Sequence[str]:
        """The agents of the inner arena's stage."""
        return [self._outer(agent) for agent in self.inner.stage]

    def canonical_answer(self, task: Task, agent: str, action: Action | None) -> str | None:
        """What the part says that it is."""
        part, inner_task = unrouted(task)
        return self.parts[part].canonical_answer(inner_task, agent.removeprefix(f"{part}_"), action)

    def view(self, agent: str) -> Observation:
        """What the inner arena shows."""
        return self.inner.view(self._inner(agent))

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Play the stage in the inner arena, and take over what came of it."""
        before = dict(self.inner.paid)
        # What is measured now is kept apart from what was: in a branch the rest is the parent's.
        known = dict(self.inner.metrics)
        self.inner.metrics = ChainMap({}, known)
        self.inner.play_stage({self._inner(agent): action for agent, action in actions.items()})
        fresh = dict(self.inner.metrics.maps[0])
        self.inner.metrics = {**known, **fresh}
        self._take_over(before, fresh)

    def _take_over(self, before: Mapping[str, float], measured: Mapping[str, float]) -> None:
        left = {agent: paid - before[agent] for agent, paid in self.inner.paid.items()}
        for agent, move, reward in self.inner.delayed_rewards:
            self.pay(self._outer(agent), reward, move=move)
            left[agent] -= reward
        self.inner.delayed_rewards.clear()
        for agent, reward in left.items():
            self.pay(self._outer(agent), reward)
        for agent, facts in self.inner.notes.items():
            self.note(self._outer(agent), **facts)
        self.measure(**measured)
        self.created += self.inner.created[len(self.created) :]
        if self.inner.finished:
            self.finish()

    def _outer(self, agent: str) -> str:
        return f"{self._part}_{agent}"

    def _inner(self, agent: str) -> str:
        return agent.removeprefix(f"{self._part}_")


def _declared(parts: Mapping[str, Arena]) -> dict[str, Metric]:
    """Collect the declarations of the parts as `<part>/<name>`.

    A name that all parts with this metric declare alike is also declared without the part.
    """
    found = {f"{n}/{name}": m for n, part in parts.items() for name, m in part.measures.items()}
    for name in {name for part in parts.values() for name in part.measures}:
        said = {part.measures[name] for part in parts.values() if name in part.measures}
        if len(said) == 1 and "/" not in name:
            found |= dict.fromkeys([name], *said)
    return found


def tasks_of(part: str, tasks: Sequence[Task]) -> list[Task]:
    """An arena's tasks as the mixture takes them: for evaluations of one part."""
    return [routed(part, task) for task in tasks]


def raw_env(parts: Mapping[str, Arena] | None = None) -> Mixture:
    """The arena itself; of two small games unless told otherwise."""
    return Mixture(parts=parts or {"kuhn": Kuhn(), "tic_tac_toe": TicTacToe()})


def env(parts: Mapping[str, Arena] | None = None) -> Any:
    """The arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(parts))
