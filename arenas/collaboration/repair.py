"""Repair: an arena is played, and failed episodes are repeated with the advice of a mentor.

SiriuS (2502.04780) bootstraps a team from its own good trajectories. A failed trajectory is
repaired: a mentor sees the correct answer and advises one agent, which moves again. The earlier
moves stay the same, and the later agents move as usual. If this attempt fails too, the next agent
is advised. Any arena can be repaired without changes (the inner arena). At the end, its agents are
paid their returns of the last attempt, and the mentor is paid 1 if an attempt with advice succeeded
and otherwise 0. `credit=experience` keeps successful trajectories, and trains the advised agent on
its new move as the completion of its old prompt without advice.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.collaboration.pipeline import Pipeline
from arenas.mixture.inside import play_stage
from selfplay.arena import Arena
from selfplay.errors import nearest
from selfplay.types import Action, Metric, Observation, Task, ToolCall

MENTOR = "mentor_0"


class Repair(Arena):
    """The agents of an inner arena, and a mentor."""

    name = "repair_v0"
    services: ClassVar[tuple[str, ...]] = ("arena",)

    def __init__(
        self,
        *,
        arena: Arena,
        measure: str = "accuracy",
        above: float = 0.5,
        advised: Sequence[str] = (),
        truth: Sequence[str] = ("answer",),
        advice_length: int = 2000,
    ) -> None:
        """Args:
        arena: Inner arena that is played.
        measure: Metric of the inner arena that measures success.
        above: Threshold of the metric; an episode succeeds above it.
        advised: Agents in the order in which they are advised until an attempt succeeds. Each is
            advised once, at its first move; all later moves are made again. An empty list stands
            for all agents in the arena's order.
        truth: Fields of the task's payload that the mentor sees.
        advice_length: Maximum characters of advice that the agent sees; the rest is cut off.
        """
        if "mentor" in arena.roles:
            raise ValueError(f"{arena.name} already has a role named mentor")
        super().__init__({**arena.roles, "mentor": 1})
        self.optional_roles = tuple(arena.optional_roles)
        self.advised = list(advised) or list(arena.possible_agents)
        for agent in self.advised:
            if agent not in arena.possible_agents:
                hint = nearest(agent, arena.possible_agents)
                raise ValueError(f"advised: {arena.name} has no agent {agent!r}; {hint}")
        if advice_length < 1:
            raise ValueError("advice_length is at least 1")
        self.arena, self.measured, self.above = arena, measure, above
        self.truth, self.advice_length = list(truth), advice_length
        fraction = Metric(unit="fraction", better="higher")
        self.measures = {
            **arena.measures,
            f"unaided_{measure}": arena.measures.get(measure, Metric()),
            "repaired": fraction,
            "attempt": Metric(unit="count"),
            "place": Metric(unit="count"),
            "advised": Metric(unit="fraction"),
        }
        self.chief = (measure, *arena.chief)
        self.blocking = arena.blocking
        self.inner = arena

    def default_task(self, rng: Random) -> Task:
        """Return the inner arena's default task."""
        return self.arena.default_task(rng)

    def agents_of(self, task: Task) -> list[str]:
        """Return the inner arena's agents of the task, and the mentor."""
        return [*self.arena.agents_of(task), MENTOR]

    def starting_agents(self, task: Task) -> list[str]:
        """Return the agents with which the inner arena starts, and the mentor."""
        return [*self.arena.starting_agents(task), MENTOR]

    def setup(self, task: Task, rng: Random) -> None:
        """Begin the inner arena with the episode's seed."""
        self.attempt, self.asking, self.advice = 0, False, ""
        self.pupil = ""
        """Agent whose next move has advice; "" if there is none."""
        self.left = list(self.advised)
        self._begin([])

    def _begin(self, history: Sequence[Mapping[str, Action | None]]) -> None:
        self.inner = self.arena.fork()
        self.inner.begin(self.task, self.seed)
        for actions in history:
            self.inner.play_stage(actions)
        self.inner.left_out.clear()  # the earlier attempt left out the same moves already
        self._let_in()

    def _let_in(self) -> None:
        """Add the agents that have entered the inner arena's episode."""
        for agent in self.inner.agents:
            if agent not in self.agents:
                self.add(agent)

    def messengers(self) -> Sequence[str]:
        """Return the inner arena's agents whose moves are messages; () while the mentor advises."""
        return () if self.asking else self.inner.messengers()

    def tool_state(self, agent: str, calls: Sequence[ToolCall]) -> Any:
        """Return the inner arena's data for the tools of an agent; the mentor has none."""
        if agent == MENTOR:
            return super().tool_state(agent, calls)
        return self.inner.tool_state(agent, calls)

    def with_calls(self, agent: str, action: Action, calls: Sequence[ToolCall]) -> Action:
        """Return an agent's complete move in the inner arena; the mentor's advice is unchanged."""
        return action if agent == MENTOR else self.inner.with_calls(agent, action, calls)

    def canonical_answer(self, task: Task, agent: str, action: Action | None) -> str | None:
        """Return the inner arena's form of an answer; "" for the mentor."""
        return "" if agent == MENTOR else self.arena.canonical_answer(task, agent, action)

    def acting(self) -> Sequence[str]:
        """Return the mentor when advice is due, otherwise the inner arena's agents."""
        return [MENTOR] if self.asking else self.inner.stage

    def view(self, agent: str) -> Observation:
        """Return, for the mentor, the transcript and the payload's fields that `truth` names; for
        another agent, its view in the inner arena, with the advice if it has any."""
        if agent == MENTOR:
            shown = {name: str(self.task.payload.get(name, "")) for name in self.truth}
            return Observation(
                text=" | ".join(shown.values()),
                fields={
                    "transcript": self.inner.render(),
                    "truth": {"question": self.task.payload.get("question", ""), **shown},
                    "advised": self.left[0] if self.left else "",
                },
            )
        seen = self.inner.view(agent)
        if agent != self.pupil:
            return seen
        words = [text for text in (seen.text, self.advice) if text]
        return Observation(text="\n".join(words), fields={**seen.fields, "advice": self.advice})

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Store the advice or play the stage; judge the attempt when the inner arena ends."""
        if MENTOR in actions:
            self._advise(actions[MENTOR])
            return
        place = len(self.inner.history)
        created = len(self.inner.created)
        self.measure(**play_stage(self.inner, actions))
        self.created += self.inner.created[created:]
        self._let_in()
        for agent in self.inner.left_out:
            self.leave_out(agent)
        self.inner.left_out.clear()
        for agent, facts in self.inner.notes.items():
            self.note(agent, **facts)
        for agent in actions:
            self.note(agent, attempt=self.attempt, place=place, advised=agent == self.pupil)
        if self.pupil in actions:
            self.pupil = ""
        if self.inner.finished:
            self._judge()

    def _advise(self, action: Action | None) -> None:
        agent = self.left.pop(0)
        self.advice = (action or "").strip()[: self.advice_length]
        self.note(MENTOR, verdict="advice" if self.advice else "none")
        moved = [place for place, moves in enumerate(self.inner.history) if agent in moves]
        if not self.advice or not moved:
            self._judge()
            return
        self.asking, self.pupil = False, agent
        self.attempt += 1
        before = self.inner.metrics.keys()
        self._begin(list(self.inner.history)[: moved[0]])
        for name in before - self.inner.metrics.keys():
            self.metrics.pop(name, None)  # measured after the moves that are repeated

    def _judge(self) -> None:
        """Finish, or ask the mentor again after a failed attempt."""
        score = self.inner.metrics.get(self.measured, 0.0)
        if not self.attempt:
            self.measure(**{f"unaided_{self.measured}": score})
        well = score > self.above
        self.asking = not well and bool(self.left)
        if self.asking:
            return
        for agent, reward in self.inner.paid.items():
            self.pay(agent, reward)
        helped = well and self.attempt > 0
        self.pay(MENTOR, float(helped))
        self.measure(repaired=helped)
        self.finish()


def raw_env(arena: Arena | None = None, **settings: Any) -> Repair:
    """Return the arena without a wrapper; the default inner arena is a pipeline."""
    return Repair(arena=arena or Pipeline(), **settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
