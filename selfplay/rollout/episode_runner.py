"""A game: one episode while it is being played, from its task or from a sibling's record."""

from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from selfplay.arena import Arena
from selfplay.errors import ConfigError, SelfplayError, one_line
from selfplay.types import Action, Episode, Message, Status, Task, Turn


class ReplayError(ValueError):
    """A record does not fit the arena that replays it."""


@dataclass(frozen=True, kw_only=True)
class EpisodeSpec:
    """One episode to play."""

    task: Task
    """Its initial state."""
    seed: int
    """With the task, all that the episode depends on; same within a group but for `member`."""
    member: int = 0
    """Which sibling of its group it is."""
    prefix_turns: tuple[Turn, ...] = ()
    """Leading turns of a record with the same task and seed, in whole stages: they are replayed,
    and play goes on behind them with this job's own seeds."""
    branch_of: int | None = None
    """The sibling whose record that is: its index in the group."""
    policy_map: Mapping[str, str] = field(default_factory=dict)
    """Agent to the name of the policy that plays it, where it is not its role's own, or where it is
    another policy's match. The same for all siblings of a group."""
    learner: str | None = None
    """Whose match it is: no other policy learns from it. None: every policy that learns."""
    seats: Sequence[str] = ()
    """The agents of a match: ConfigError where one of them takes no part in the task."""


class EpisodeRunner:
    """An episode being played. Whatever its arena raises becomes its error and harms no other.

    A replayed stage asks nobody: the recorded actions are played, and what the arena pays and
    notes is booked again, because a sibling's last turns were paid for what came after. A turn
    that comes out as it was recorded is that very object. Services are called again, so a replay
    costs what its stages cost; what the arena measured and created in them is the parent's alone.
    """

    def __init__(self, spec: EpisodeSpec, arena: Arena, *, prefix: Sequence[Turn] = ()) -> None:
        """`prefix` is the job's, with the notes of the roles only."""
        self.spec, self.arena = spec, arena
        self.error = ""
        """Why it failed, in one line."""
        self.turns: list[Turn] = []
        """As they were sampled; rewards and notes are put into them at the end."""
        self.latest: dict[str, Turn] = {}
        """Each agent's latest turn."""
        self.moves: dict[str, Turn] = {}
        """Turns of the current stage that are in."""
        self.stage = 0
        """Stages that have been played."""
        self._prefix = prefix
        self._paid: list[float] = []
        self._notes: list[dict[str, Any]] = []
        self._places: dict[str, int] = {}
        """Index of each agent's latest turn."""
        self._early: dict[str, float] = {}
        """Paid to agents before their first turn."""
        self._other_pay: dict[str, list[tuple[int, float]]] = {}
        """`Episode.other_pay` up to now."""
        self._created_before = 0
        self._begun = False

    def advance(self) -> None:
        """Begin, or play the stage whose moves are complete, and record the rewards.

        A game that has failed does not change.
        """
        if self.error:
            return
        try:
            if self._begun:
                self._play_stage()
            else:
                self._begin()
        except SelfplayError:
            raise
        except Exception as error:  # the arena's own fault: a failed episode, counted by its kind
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End as failed."""
        self.error = one_line(error)

    def said(self, agent: str) -> Iterator[Message]:
        """All that the agent has seen and said, as chat messages."""
        for turn in self.turns:
            if turn.agent == agent:
                yield from turn.messages
                yield {"role": "assistant", "content": turn.text}

    def status(self, *, max_turns: int) -> Status | None:
        """How it has ended; None while it goes on."""
        if self.error:
            return Status.FAILED
        if self.arena.finished:
            return Status.FINISHED
        return Status.TRUNCATED if len(self.turns) >= max_turns else None

    def episode(self, status: Status) -> Episode:
        """The record."""
        failed = status is Status.FAILED
        metrics: Mapping[str, float] = {} if failed else self.arena.metrics
        if isinstance(metrics, ChainMap):
            metrics = metrics.maps[0]
        return Episode(
            arena=self.arena.name,
            task=self.spec.task,
            seed=self.spec.seed,
            turns=tuple(map(self._recorded, range(len(self.turns)))),
            status=status,
            metrics=dict(metrics),
            created=() if failed else tuple(self.arena.created[self._created_before :]),
            error=self.error,
            branch_of=self.spec.branch_of,
            shared_turns=min(len(self.spec.prefix_turns), len(self.turns)),
            policy_map=dict(self.spec.policy_map),
            other_pay={agent: tuple(pay) for agent, pay in self._other_pay.items()},
        )

    def _begin(self) -> None:
        self._begun = True
        self.arena.begin(self.spec.task, self.spec.seed)
        for agent in self.spec.seats:
            if agent not in self.arena.agents:
                raise ConfigError(
                    f"task {self.spec.task.id}: {agent} cannot be seated, because it takes no "
                    "part: a league cannot seat a mixture; an evaluation of one part names its "
                    "seats"
                )
        self._other_pay = {agent: [] for agent in self.arena.paid}
        self._book(self.arena.paid, moved=())
        for _, turns in groupby(self._prefix, key=lambda turn: turn.stage):
            self._replay(list(turns))
        if self._prefix:
            # The arena may read what it measured before; only what it adds is this episode's.
            self.arena.metrics = ChainMap({}, self.arena.metrics)
            self._created_before = len(self.arena.created)

    def _replay(self, turns: Sequence[Turn]) -> None:
        asked, recorded = list(self.arena.stage), [turn.agent for turn in turns]
        if asked != recorded:
            now = f"asks {', '.join(asked)}" if asked else "has ended"
            raise ReplayError(
                f"stage {self.stage} of the record has moves of {', '.join(recorded)}, but there "
                f"the arena {now}; a replay needs the record's own arena, task and seed"
            )
        self.moves = {turn.agent: turn for turn in turns}
        self._play_stage()

    def _play_stage(self) -> None:
        """Turns stand in the arena's order, not in the order they were finished in."""
        actions: dict[str, Action | None] = {}
        for agent in self.arena.stage:
            turn = self.moves[agent]
            self._places[agent] = len(self.turns)
            self.latest[agent] = turn
            self.turns.append(turn)
            self._paid.append(self._early.pop(agent, 0.0))
            self._notes.append({})
            actions[agent] = turn.action
        self.moves = {}
        self.stage += 1
        self._book(self.arena.play_stage(actions), moved=actions)

    def _book(self, paid: Mapping[str, float], *, moved: Collection[str]) -> None:
        """Add rewards and notes to each agent's latest turn; late pay goes to the turn it names.

        `moved` are the agents that moved in the stage that paid this.
        """
        left, rounding = dict(paid), dict.fromkeys(paid, 0.0)
        for agent, move, reward in self.arena.delayed_rewards:
            places = [n for n, turn in enumerate(self.turns) if turn.agent == agent]
            self._paid[places[move]] += reward
            left[agent] -= reward
            rounding[agent] += 1e-9 * abs(reward)
        self.arena.delayed_rewards.clear()
        for agent, reward in left.items():
            if abs(reward) > rounding[agent] and agent not in moved:
                self._other_pay.setdefault(agent, []).append((self.stage - 1, reward))
            place = self._places.get(agent)
            if place is not None:
                self._paid[place] += reward
                self._notes[place].update(self.arena.notes.get(agent, {}))
            elif reward:
                self._early[agent] = self._early.get(agent, 0.0) + reward

    def _recorded(self, place: int) -> Turn:
        turn, paid, notes = self.turns[place], self._paid[place], self._notes[place]
        if paid or notes:
            turn = replace(turn, reward=paid, info={**turn.info, **notes})
        if place < len(self.spec.prefix_turns) and turn == self.spec.prefix_turns[place]:
            return self.spec.prefix_turns[place]
        return turn
