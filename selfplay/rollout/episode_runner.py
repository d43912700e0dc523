"""Run one episode, from its task or from the recorded turns of a sibling in its group."""

from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from selfplay.arena import Arena
from selfplay.errors import ConfigError, PromptTooLong, SelfplayError, one_line, with_place
from selfplay.role import Role
from selfplay.rollout.tool_loop import NO_ROOM, UNANSWERED
from selfplay.run.json_lines import JsonLines
from selfplay.types import Action, Episode, Message, Status, Task, ToolCall, Turn


class ReplayError(ValueError):
    """Raised if a record does not fit the arena that replays it."""


@dataclass(frozen=True, kw_only=True)
class EpisodeSpec:
    """One episode to play: task, seed, and the policies of its agents.

    Samplers, evaluations and studies make specifications; `Rollout.run` plays them.
    """

    task: Task
    """Task of the episode; with `seed` it fixes the initial state."""
    seed: int
    """Seed of the arena, equal for all episodes of a group; sampling also depends on `member`."""
    member: int = 0
    """Index of the episode in its group."""
    prefix_turns: tuple[Turn, ...] = ()
    """Leading turns of a recorded episode with the same task and seed, in whole stages. They are
    replayed, and the episode continues after them with its own seeds."""
    branch_of: int | None = None
    """Index in the group of the episode that `prefix_turns` come from."""
    policy_map: Mapping[str, str] = field(default_factory=dict)
    """Agent to the name of its policy, for agents that their role's own policy does not play. It is
    equal for all episodes of a group."""
    learner: str | None = None
    """Name of the only policy that learns from the episode; None: every policy that learns."""
    seats: Sequence[str] = ()
    """Agents of a match. The runner raises ConfigError if one of them has no part in the task."""
    step: int | None = None
    """Training step whose scheduled limits apply (`schedule.sampled_at` sets it); None outside of
    training: the last value of each schedule."""


def notes_of(turn: Turn, role: Role) -> dict[str, Any]:
    """Return the notes that a recorded turn had before the arena added its own.

    Args:
        turn: The recorded turn.
        role: Its role, which parses the completion again.
    """
    if not turn.final:
        return {}
    if turn.action is None and turn.info.get("invalid") in UNANSWERED:
        return {"invalid": turn.info["invalid"]}
    return role.parse_completion(turn.text)[1]


class EpisodeRunner:
    """One episode that is played. An exception of its arena fails this episode and no other.

    `Rollout` and the command `replay` make it. In stages that are replayed, the runner plays the
    recorded actions and asks no policy. The arena computes rewards and notes of these stages again,
    because the reward of a shared turn can depend on later turns, which differ between siblings. If
    a replayed turn equals the recorded turn, the episode holds the recorded object. A replay calls
    the services again, so it takes as long as the first play. Metrics and created tasks of replayed
    stages count only for the episode from which they were copied.
    """

    def __init__(
        self,
        spec: EpisodeSpec,
        arena: Arena,
        *,
        prefix: Sequence[Turn] = (),
        copied: int | None = None,
    ) -> None:
        """Args:
        spec: The episode.
        arena: Its arena.
        prefix: Turns of `spec.prefix_turns`, with only the notes of the roles.
        copied: Number of leading turns, in whole stages, that come from another episode; metrics
            and created tasks of their stages count for that one. None: all of `prefix`.
        """
        self.spec, self.arena = spec, arena
        self._copied = len(prefix) if copied is None else copied
        self.error = ""
        """Reason of a failure, in one line; empty otherwise."""
        self.too_long_reason = ""
        """Reason why the next prompt cannot be answered, in one line; empty otherwise."""
        self.turns: list[Turn] = []
        """Turns as they were sampled; rewards and notes are added at the end."""
        self.latest: dict[str, Turn] = {}
        """Latest move of each agent."""
        self.moves: dict[str, Turn] = {}
        """Received turns of the current stage with their actions, by agent."""
        self.calls: dict[str, list[Turn]] = {}
        """Received turns of the current stage that call tools, by agent, in order."""
        self.stage = 0
        """Number of played stages."""
        self._prefix = prefix
        self._paid: list[float] = []
        self._notes: list[dict[str, Any]] = []
        self._places: dict[str, int] = {}
        """Index of each agent's latest move."""
        self._early: dict[str, float] = {}
        """Rewards of agents before their first turn."""
        self._other_pay: dict[str, list[tuple[int, float]]] = {}
        """Current value of `Episode.other_pay`."""
        self._created_before = 0
        self._begun = False

    @property
    def sampled_turns(self) -> int:
        """Number of turns of the stages that were played and not replayed."""
        return max(0, len(self.turns) - len(self.spec.prefix_turns))

    def advance(self) -> None:
        """Begin the episode, or play the stage whose moves are complete, and record the rewards.

        An episode that has failed, or has no room for a prompt, does not change. An error of the
        arena is noted in `error`; only a SelfplayError is raised.
        """
        if self.error or self.too_long_reason:
            return
        try:
            if self._begun:
                self._play_stage()
            else:
                self._begin()
        except SelfplayError:
            raise
        except Exception as error:  # an error of the arena's code fails the episode
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the episode as failed; the error names the line of the author's code."""
        self.error = with_place(error)

    def run_out(self, error: PromptTooLong) -> None:
        """End the episode because a prompt leaves no room for an answer.

        The episode is truncated before its incomplete stage. An episode without any turn fails,
        because the config then does not fit the model.
        """
        if self.turns:
            self.too_long_reason = one_line(error)
        else:
            self.fail(error)

    def end_move(self, agent: str) -> None:
        """Make the agent's latest tool call its move, without an action.

        The results of the call leave no room for an answer in the model's context.
        """
        turn = self.calls[agent].pop()
        self.moves[agent] = replace(turn, final=True, info={"invalid": NO_ROOM})

    def conversation(self, agent: str, *, move_only: bool = False) -> Iterator[Message]:
        """Yield the agent's conversation so far, as chat messages.

        Args:
            agent: The agent.
            move_only: True for the messages of the current move alone.
        """
        played = () if move_only else (turn for turn in self.turns if turn.agent == agent)
        for turn in (*played, *self.calls.get(agent, ())):
            yield from turn.messages
            yield {"role": "assistant", "content": turn.text}

    def tool_calls(self, agent: str) -> Iterator[ToolCall]:
        """Yield the agent's tool calls so far."""
        for turn in (*self.turns, *self.calls.get(agent, ())):
            if turn.agent == agent:
                yield from turn.tool_calls

    def status(self, *, max_turns: int) -> Status | None:
        """Return the final status of the episode; None if it is not over.

        The episode is truncated after `max_turns` turns, replayed turns included.
        """
        if self.error:
            return Status.FAILED
        if self.arena.finished:
            return Status.FINISHED
        return Status.TRUNCATED if self.too_long_reason or len(self.turns) >= max_turns else None

    def episode(self, status: Status) -> Episode:
        """Return the record of the episode, which has ended with this `status`."""
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
            error=self.error or self.too_long_reason,
            branch_of=self.spec.branch_of,
            shared_turns=min(len(self.spec.prefix_turns), len(self.turns)),
            policy_map=dict(self.spec.policy_map),
            other_pay={agent: tuple(pay) for agent, pay in self._other_pay.items()},
        )

    def _begin(self) -> None:
        self._begun = True
        self.arena.begin(self.spec.task, self.spec.seed)
        for agent in self.spec.seats:
            if agent not in (*self.arena.agents, *self.arena.to_come()):
                raise ConfigError(
                    f"task {self.spec.task.id}: {agent} cannot be seated, because it takes no "
                    "part; agents_of of the arena must leave it out"
                )
        self._add_rewards(self.arena.paid, moved=())
        copied, own = self._prefix[: self._copied], self._prefix[self._copied :]
        self._replay_stages(copied)
        if copied:
            # The arena can read its earlier metrics; only new ones count for this episode.
            self.arena.metrics = ChainMap({}, self.arena.metrics)
            self._created_before = len(self.arena.created)
        self._replay_stages(own)

    def _replay_stages(self, turns: Sequence[Turn]) -> None:
        for _, stage in groupby(turns, key=lambda turn: turn.stage):
            self._replay(list(stage))

    def _replay(self, turns: Sequence[Turn]) -> None:
        moves = [turn for turn in turns if turn.final]
        asked, recorded = list(self.arena.stage), [turn.agent for turn in moves]
        if asked != recorded or not {turn.agent for turn in turns} <= set(recorded):
            now = f"asks {', '.join(asked)}" if asked else "has ended"
            raise ReplayError(
                f"stage {self.stage} of the record has moves of {', '.join(recorded)}, but there "
                f"the arena {now}; a replay needs the record's own arena, task and seed"
            )
        self.moves = {turn.agent: turn for turn in moves}
        self.calls = {
            agent: [turn for turn in turns if turn.agent == agent and not turn.final]
            for agent in recorded
        }
        self._play_stage()

    def _play_stage(self) -> None:
        """Play the stage; its turns are in the arena's order, not in the order of completion.

        The turns of an agent's tool calls come directly before its move, and are paid nothing.
        """
        actions: dict[str, Action | None] = {}
        for agent in self.arena.stage:
            for turn in self.calls.pop(agent, ()):
                self.turns.append(turn)
                self._paid.append(0.0)
                self._notes.append({})
            turn = self.moves[agent]
            self._places[agent] = len(self.turns)
            self.latest[agent] = turn
            self.turns.append(turn)
            self._paid.append(self._early.pop(agent, 0.0))
            self._notes.append({})
            actions[agent] = turn.action
        self.moves = {}
        self.stage += 1
        self._add_rewards(self.arena.play_stage(actions), moved=actions)

    def _add_rewards(self, paid: Mapping[str, float], *, moved: Collection[str]) -> None:
        """Add rewards and notes to each agent's latest turn, delayed rewards to their own turns.

        Args:
            paid: Reward by agent.
            moved: Agents that moved in the stage of these rewards.
        """
        left, rounding = dict(paid), dict.fromkeys(paid, 0.0)
        for agent in paid:  # agents that have just entered the episode too
            self._other_pay.setdefault(agent, [])
        for agent, move, reward in self.arena.delayed_rewards:
            places = [n for n, t in enumerate(self.turns) if t.agent == agent and t.final]
            self._paid[places[move]] += reward
            left[agent] -= reward
            rounding[agent] += 1e-9 * abs(reward)
        self.arena.delayed_rewards.clear()
        for agent in self.arena.left_out & self._places.keys():
            self._leave_out(agent)
        self.arena.left_out.clear()
        for agent, reward in left.items():
            if abs(reward) > rounding[agent] and agent not in moved:
                self._other_pay[agent].append((self.stage - 1, reward))
            place = self._places.get(agent)
            if place is not None:
                self._paid[place] += reward
                self._notes[place].update(self._checked_notes(agent))
            elif reward:
                self._early[agent] = self._early.get(agent, 0.0) + reward

    def _checked_notes(self, agent: str) -> Mapping[str, Any]:
        """Return the arena's notes about an agent; TypeError is raised for one that no record can
        hold."""
        notes: Mapping[str, Any] = self.arena.notes.get(agent, {})
        for name, value in notes.items():
            if isinstance(value, str | int | float | None):
                continue
            try:
                JsonLines().line(value)
            except (TypeError, ValueError, RecursionError) as error:
                raise TypeError(
                    f"{self.arena.name}: the note {name!r} of {agent} is not plain data "
                    f"({one_line(error)}); note texts, numbers, lists and dictionaries"
                ) from error
        return notes

    def _leave_out(self, agent: str) -> None:
        """Make the turns of the agent's latest move untrainable: those of its tool calls too."""
        place = self._places[agent]
        while True:
            self.turns[place] = replace(self.turns[place], trainable=False)
            place -= 1
            if place < 0 or self.turns[place].agent != agent or self.turns[place].final:
                return

    def _recorded(self, place: int) -> Turn:
        turn, paid, notes = self.turns[place], self._paid[place], self._notes[place]
        if paid or notes:
            turn = replace(turn, reward=paid, info={**turn.info, **notes})
        return _shared(turn, self.spec, place)


def with_shared_turns(spec: EpisodeSpec, episode: Episode) -> Episode:
    """Return the episode with the turns of `spec.prefix_turns` themselves in place of equal copies.

    An episode from another process has copies. Credit and records know a turn that branches share
    by its identity.
    """
    turns = tuple(_shared(turn, spec, place) for place, turn in enumerate(episode.turns))
    return replace(episode, turns=turns)


def _shared(turn: Turn, spec: EpisodeSpec, place: int) -> Turn:
    """Return the recorded turn at this place if it equals `turn`, else `turn` itself."""
    if place < len(spec.prefix_turns) and turn == spec.prefix_turns[place]:
        return spec.prefix_turns[place]
    return turn
