"""Repair: an arena is played, and what failed is done again with the advice of one who knows.

SiriuS (2502.04780) bootstraps a team from its own good trajectories. A failed one is repaired: a
mentor sees the truth and advises one agent, which moves again; the moves before it stand, and those
who come after it move as they normally would. If that fails too, the next agent is advised. Any
arena can be played so, as it is. `credit: library` keeps what came out well, and trains the advised
agent on its new move as the answer to its old prompt, in which there was no advice.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.collaboration.pipeline import Pipeline
from selfplay.arena import Arena
from selfplay.errors import nearest
from selfplay.types import Action, Metric, Observation, Task

MENTOR = "mentor_0"


class Repair(Arena):
    """The agents of an arena, and a mentor."""

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
        arena: What is played.
        measure: Its metric that says how an episode went.
        above: It went well above this.
        advised: Agents, in the order in which they are advised until it goes well, each once and
            from its first move on; all of them, in the arena's order, if empty.
        truth: Fields of the task's payload that the mentor sees.
        advice_length: Characters of advice that are heard.
        """
        if "mentor" in arena.roles:
            raise ValueError(f"{arena.name} has a role mentor of its own")
        super().__init__({**arena.roles, "mentor": 1})
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
        self.blocking = arena.blocking  # type: ignore[misc]
        self.inner = arena

    def default_task(self, rng: Random) -> Task:
        """The arena's own."""
        return self.arena.default_task(rng)

    def setup(self, task: Task, rng: Random) -> None:
        """Begin the arena with the episode's own seed."""
        self.attempt, self.asking, self.advice = 0, False, ""
        self.pupil = ""
        """Who moves next with advice."""
        self.left = list(self.advised)
        self._begin([])

    def _begin(self, history: Sequence[Mapping[str, Action | None]]) -> None:
        self.inner = self.arena.fork()
        self.inner.begin(self.task, self.seed)
        for actions in history:
            self.inner.play_stage(actions)

    def acting(self) -> Sequence[str]:
        """The mentor where it is asked, else who moves in the arena."""
        return [MENTOR] if self.asking else self.inner.stage

    def view(self, agent: str) -> Observation:
        """The mentor sees the truth and all moves; an agent what the arena shows, and advice."""
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
        """Hear the advice, or play the stage; at the arena's end, see whether it went well."""
        if MENTOR in actions:
            self._advise(actions[MENTOR])
            return
        place = len(self.inner.history)
        self.inner.play_stage(actions)
        for agent in actions:
            facts = self.inner.notes.get(agent, {})
            self.note(
                agent, **facts, attempt=self.attempt, place=place, advised=agent == self.pupil
            )
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
        self._begin(list(self.inner.history)[: moved[0]])

    def _judge(self) -> None:
        """End, or ask the mentor whose advice has not helped yet."""
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
        self.measure(**self.inner.metrics, repaired=helped)
        self.created += self.inner.created
        self.finish()


def raw_env(arena: Arena | None = None, **settings: Any) -> Repair:
    """The arena itself; of a pipeline unless told otherwise."""
    return Repair(arena=arena or Pipeline(), **settings)


def env(**settings: Any) -> Any:
    """The arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
