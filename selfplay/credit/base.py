"""Tools that all credit methods share: returns, group comparison, advantages and whitening.

A method computes a return for every turn (`learnable_turns`), compares it within a group
(`group_advantages`) or over a batch (`whitened`), and makes samples.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

import numpy as np

from selfplay.credit import Stateful
from selfplay.types import Episode, Group, Sample, Status, Turn

FloatVector: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
"""[n] numbers of type float64."""


@dataclass(frozen=True, kw_only=True)
class CreditedTurn:
    """One turn with its return and its position in the batch.

    `learnable_turns` makes it; credit methods compare its `value` with those of other turns.
    """

    group: Group
    """Group of the turn."""
    episode: int
    """Index of the episode in its group."""
    place: int
    """Index of the turn in its episode, from 0."""
    number: int
    """Index of the turn among this agent's turns, from 0."""
    move: int
    """Index of the move that the turn belongs to among this agent's moves, from 0: tool calls
    belong to the move that they lead to."""
    turn: Turn
    """The turn itself."""
    first: Turn
    """The same agent's first turn in the episode."""
    value: float
    """Return of this turn."""

    @property
    def trajectory(self) -> tuple[str, int, str]:
        """Key of the trajectory, which is one agent in one episode: (group id, episode, agent)."""
        return (self.group.id, self.episode, self.turn.agent)


AnyCreditedTurn = TypeVar("AnyCreditedTurn", bound=CreditedTurn)

Returns: TypeAlias = Callable[[Episode], list[float]]
"""Function that gives an episode's return per turn, in the order of its turns."""

Absent: TypeAlias = Callable[[CreditedTurn, Episode], float]
"""Function that gives the value to compare a turn with in a sibling that has no such turn."""


def own_return(episode: Episode) -> list[float]:
    """Return, for every turn, the sum of its agent's rewards in the episode."""
    total: dict[str, float] = {}
    for turn in episode.turns:
        total[turn.agent] = total.get(turn.agent, 0.0) + turn.reward
    return [total[turn.agent] for turn in episode.turns]


def own_return_to_go(episode: Episode, *, discount: float = 1.0) -> list[float]:
    """Return R_t = r_t + discount * R_{t+1} over the same agent's turns."""
    to_go: dict[str, float] = {}
    values = []
    for turn in reversed(episode.turns):
        to_go[turn.agent] = turn.reward + discount * to_go.get(turn.agent, 0.0)
        values.append(to_go[turn.agent])
    return values[::-1]


def own_pay(episode: Episode, agent: str) -> float:
    """Return the sum of an agent's rewards in the episode, also for an agent without a turn."""
    rewards = [turn.reward for turn in episode.turns if turn.agent == agent]
    return sum(rewards or [reward for _, reward in episode.other_pay.get(agent, ())])


def pay_by_agent(episode: Episode) -> dict[str, float]:
    """Return the sum of each agent's rewards, without agents that have no turn and no reward."""
    without_turn = (agent for agent, pay in episode.other_pay.items() if pay)
    agents = dict.fromkeys((*episode.agents(), *without_turn))
    return {agent: own_pay(episode, agent) for agent in agents}


def turn_numbers(episode: Episode) -> list[int]:
    """Return, for every turn, its index among the turns of its agent."""
    seen: dict[str, int] = {}
    numbers = []
    for turn in episode.turns:
        numbers.append(seen.get(turn.agent, 0))
        seen[turn.agent] = numbers[-1] + 1
    return numbers


def by_stage(turns: Iterable[Turn]) -> Iterator[list[Turn]]:
    """Yield the turns of each stage; a turn of a record without stages is alone."""

    def stage(numbered: tuple[int, Turn]) -> tuple[int, int]:
        number, turn = numbered
        return (turn.stage, number if turn.stage < 0 else 0)

    for _, same in groupby(enumerate(turns), key=stage):
        yield [turn for _, turn in same]


def move_numbers(episode: Episode) -> list[int]:
    """Return, for every turn, the index of its move among the moves of its agent."""
    made: dict[str, int] = {}
    found = []
    for turn in episode.turns:
        found.append(made.get(turn.agent, 0))
        made[turn.agent] = found[-1] + turn.final
    return found


def learnable_turns(
    groups: Sequence[Group], returns: Returns, *, frozen: bool = False
) -> list[CreditedTurn]:
    """Return all trainable turns of all episodes that did not fail, in order, with their returns.

    Turns of frozen policies and of opponents are left out, so that no comparison, average or critic
    uses them; `frozen=True` keeps them. `returns` sees their rewards in both cases.
    """
    turns = []
    for group in groups:
        for index, episode in enumerate(group.episodes):
            if episode.status is Status.FAILED:
                continue
            first: dict[str, Turn] = {}
            for turn in episode.turns:
                first.setdefault(turn.agent, turn)
            numbers, moves = turn_numbers(episode), move_numbers(episode)
            rows = zip(episode.turns, numbers, moves, returns(episode), strict=True)
            for place, (turn, number, move, value) in enumerate(rows):
                if not (turn.trainable or frozen):
                    continue
                turns.append(
                    CreditedTurn(
                        group=group,
                        episode=index,
                        place=place,
                        number=number,
                        move=move,
                        turn=turn,
                        first=first[turn.agent],
                        value=value,
                    )
                )
    return turns


GroupBy = Literal["agent", "role", "prompt"]


def group_key(group_by: GroupBy) -> Callable[[CreditedTurn], Hashable]:
    """Return the function that gives the comparison key of a turn within its group of episodes.

    agent: the same agent in the sibling episodes, which are independent of each other. role: all
    agents of the role in all of these episodes. prompt: agents of the role that began from exactly
    the same prompt; siblings share only this prompt if an earlier agent's move made their tasks
    differ (solvers of one proposed task).

    role and prompt compare agents of one episode with each other. This is sound if no agent can
    change another agent's reward (solvers that answer alone). Otherwise (a shared team reward,
    opposed rewards) the baseline depends on the action that it is subtracted from, and the gradient
    is biased. With prompt, a prompt that occurred only once in its group has no signal.
    """
    if group_by not in get_args(GroupBy):
        raise ValueError(
            f"credit: no comparison within {group_by!r}; {get_args(GroupBy)} are known"
        )
    if group_by == "agent":
        return lambda credited: (credited.group.id, credited.turn.agent)
    if group_by == "role":
        return lambda credited: (credited.group.id, credited.turn.role)
    return lambda credited: (credited.group.id, credited.turn.role, credited.first.prompt_ids)


def group_advantages(
    credited_turns: Sequence[AnyCreditedTurn],
    *,
    key: Callable[[AnyCreditedTurn], Hashable],
    advantage: Callable[[FloatVector], FloatVector],
    each: Literal["trajectory", "turn"] = "trajectory",
    absent: Absent | None = None,
) -> list[float]:
    """Return one advantage per turn, from comparing the values of a policy under the same key.

    Agents of one role may be played by different policies; values of different policies are never
    compared. Each trajectory (one agent in one episode) counts once per key, with the value that
    all its turns under this key have, so that long episodes do not weigh more in a mean. With
    `each="turn"` every turn counts. `absent` is for keys under which a sibling may have no value,
    see `_with_absent`; it needs the function `centred` or `leave_one_out` itself as `advantage`.

    Raises ValueError for `absent` with another `advantage`, and for turns of a trajectory that have
    different values under one key, unless `each="turn"`.
    """
    if absent is not None and advantage not in (centred, leave_one_out):
        raise ValueError(
            "credit: values of absent siblings correct only the advantages `centred` and "
            "`leave_one_out`; pass one of these functions itself, or absent=None"
        )
    members: dict[Hashable, dict[tuple[str, int, str, int], float]] = {}
    first: dict[Hashable, AnyCreditedTurn] = {}
    places = []
    for credited in credited_turns:
        name = (credited.turn.policy, key(credited))
        place = (*credited.trajectory, credited.number if each == "turn" else 0)
        value = members.setdefault(name, {}).setdefault(place, credited.value)
        if value != credited.value:
            raise ValueError(
                f"credit: turns of {credited.turn.agent} in one episode have the values {value} "
                f"and {credited.value} under one key; compare each turn, with "
                'group_advantages(..., each="turn"), or give the turns different keys'
            )
        first.setdefault(name, credited)
        places.append((name, place))
    by_trajectory = {}
    for under, values in members.items():
        returns = np.array(list(values.values()))
        present = {episode for _, episode, _, _ in values}
        given = _with_absent(returns, first[under], present, advantage=advantage, absent=absent)
        if len(given) != len(values):
            raise ValueError(f"advantage returned {len(given)} numbers for {len(values)} returns")
        by_trajectory[under] = dict(zip(values, given, strict=True))
    return [float(by_trajectory[name][place]) for name, place in places]


def _with_absent(
    values: FloatVector,
    credited: CreditedTurn,
    present: Collection[int],
    *,
    advantage: Callable[[FloatVector], FloatVector],
    absent: Absent | None,
) -> FloatVector:
    """Return the advantages of values under one key, which only the siblings `present` have.

    A value is compared with the mean of the other values, or, if it is the only one, with the mean
    of `absent` over the other siblings. With group_by=agent both means are of other, independent
    episodes, so the expected gradient stays exact. `centred` keeps its usual factor (K-1)/K, where
    K is the number of values if all siblings were present. Groups whose episodes branch are
    compared without this correction. A sibling in which a turn of the agent is left out has no
    known value, and is no part of the comparison.
    """
    siblings = credited.group.episodes
    away = [
        episode
        for index, episode in enumerate(siblings)
        if index not in present
        and episode.status is not Status.FAILED
        and all(
            turn.trainable if credited.turn.trainable else turn.policy == credited.turn.policy
            for turn in episode.turns
            if turn.agent == credited.turn.agent
        )
    ]
    if absent is None or not away or any(e.branch_of is not None for e in siblings):
        return advantage(values)
    whole = len(values) * (len(present) + len(away)) / len(present)
    factor = 1.0 if advantage is leave_one_out else (whole - 1) / whole
    if len(values) > 1:
        return factor * leave_one_out(values)
    baseline = np.mean([absent(credited, episode) for episode in away])
    both = np.array([values[0], baseline])
    return np.zeros_like(values) if alike(both) else factor * (values - baseline)


def samples(credited_turns: Sequence[CreditedTurn], advantages: Sequence[float]) -> list[Sample]:
    """Return the turns with their advantages; 0 for a turn in which the policy chose no token.

    Raises ValueError unless there is one advantage per turn.
    """
    if len(credited_turns) != len(advantages):
        raise ValueError(f"{len(credited_turns)} turns, {len(advantages)} advantages")
    return [
        Sample(
            turn=credited.turn,
            advantage=advantage if any(credited.turn.loss_mask) else 0.0,
            group=credited.group.id,
            episode=credited.episode,
        )
        for credited, advantage in zip(credited_turns, advantages, strict=True)
    ]


def group_relative(
    credited_turns: Sequence[CreditedTurn],
    *,
    key: Callable[[CreditedTurn], Hashable],
    advantage: Callable[[FloatVector], FloatVector],
    absent: Absent | None = None,
) -> list[Sample]:
    """Return samples with the advantages of `group_advantages`, one value per trajectory and
    key."""
    return samples(
        credited_turns,
        group_advantages(credited_turns, key=key, advantage=advantage, absent=absent),
    )


def alike(values: FloatVector) -> bool:
    """Return True if there is nothing to compare: one value, or values that differ by rounding
    only.

    The mean of equal values need not equal them in floating point. A residue of 1e-17 would be
    enough to move weights, because Adam scales every gradient to the same size. Returns that add up
    to nearly 0 differ by the rounding of their parts, which are assumed to be of the order of 1.
    """
    return len(values) < 2 or bool(np.ptp(values) <= 1e-12 * max(1.0, np.abs(values).max()))


def centred(values: FloatVector) -> FloatVector:
    """Return A = r - mean; zeros for a single value or equal values."""
    return np.zeros_like(values) if alike(values) else values - values.mean()


def standardized(values: FloatVector, *, epsilon: float = 1e-6) -> FloatVector:
    """Return A = (r - mean) / (std + epsilon), std with ddof 1; zeros for one value or equal
    values.

    A single value has no spread. Some implementations then use mean 0 and std 1, which turns the
    raw reward into an advantage; here a single value is no signal.
    """
    if alike(values):
        return np.zeros_like(values)
    return (values - values.mean()) / (values.std(ddof=1) + epsilon)


def leave_one_out(values: FloatVector) -> FloatVector:
    """Return A_i = r_i - mean of the others = G/(G-1) (r_i - mean); zeros for one value or equal
    values."""
    count = len(values)
    return centred(values) * count / max(count - 1, 1)


Compares = Literal["tree", "group", "batch"]
"""tree: turns of one group; a turn that several episodes share counts once. group: turns of one
group, whose episodes count as independent. batch: turns of all groups, or no other turn at all; a
group of equal returns can then have a signal, and episodes count as independent."""


class CreditMethod:
    """Base class of credit methods, with the defaults of optional members."""

    tree: ClassVar[bool] = False
    """True if the method needs episodes that branch from one another."""
    compares: ClassVar[Compares | None] = None
    """Turns that the method compares, so that `check` can note a sampler that does not fit. None:
    not stated."""
    team: bool = False
    """True if the method judges a turn by the mean return of all agents. `sampler=dynamic` then
    compares these returns, see `signal.has_signal`."""
    signal_needs: str = ""
    """Reason for a step in which all advantages are 0, for the printed line about it. Empty: the
    returns that the method compares are equal."""
    metrics_read: Mapping[str, str] = MappingProxyType({})
    """Name of a setting of the method to the arena metric that this setting names."""
    without_metric: str = "so it counts as 0"
    """Effect of an episode without a metric of `metrics_read`, for the printed line about it."""
    replays: bool = False
    """True if the method judges by replays of the arena, whose rewards shaping does not change.
    `check` then prints a line for a config with shaping."""

    def has_signal(self, group: Group) -> bool | None:
        """Return True if the method can learn from a group, for `sampler=dynamic`. Return None to
        leave the decision to `signal.has_signal`, which reads `team` and `group_by`."""
        return None

    @property
    def min_group_size(self) -> int:
        """Number of episodes that a group needs; with fewer, all advantages are zero."""
        return 1

    def modules(self) -> Mapping[str, Stateful]:
        """Return the trained modules by name; checkpoints store them with the learners."""
        return {}

    def metrics(self) -> Mapping[str, float]:
        """Return metrics of the last call of `assign`."""
        return {}


class StatelessCredit(CreditMethod):
    """Base class of credit methods that keep nothing between steps."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError if the state belongs to another method."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but got {sorted(state)}")


class GroupRelative(StatelessCredit):
    """Base class of methods that compare an agent with others of its group; `group_by` selects
    them."""

    compares: ClassVar[Compares | None] = "group"

    def __init__(self, *, group_by: GroupBy = "role") -> None:
        """Args:
        group_by: Key of the comparison inside the group, see `group_key`.
        """
        self.group_by: GroupBy = group_by
        self.among = group_key(group_by)
        self.absent: Absent | None = None if group_by == "prompt" else _own_pay_there

    @property
    def min_group_size(self) -> int:
        """2 within an agent; with other keys, the agents of one episode may be enough siblings."""
        return 2 if self.group_by == "agent" else 1


def _own_pay_there(credited: CreditedTurn, sibling: Episode) -> float:
    """Return the total reward of the turn's agent in a sibling."""
    return own_pay(sibling, credited.turn.agent)


def whitened(
    credited_turns: Sequence[CreditedTurn], values: Sequence[float], *, epsilon: float = 1e-6
) -> list[float]:
    """Return (x - mean) / (std + epsilon) over all trainable tokens of a policy in the batch.

    A turn's value counts once for each of its trainable tokens, so long completions weigh more. The
    std has ddof 0, as for a population of tokens. Zeros if all values of a policy are alike.
    """
    rows: dict[str, list[int]] = {}
    for row, credited in enumerate(credited_turns):
        if any(credited.turn.loss_mask):
            rows.setdefault(credited.turn.policy, []).append(row)
    white = np.zeros(len(credited_turns))
    for indices in rows.values():
        tokens = np.array([sum(credited_turns[row].turn.loss_mask) for row in indices])
        of_turns = np.array([values[row] for row in indices])
        if not alike(of_turns):
            difference = of_turns - np.average(of_turns, weights=tokens)
            spread = np.sqrt(np.average(difference**2, weights=tokens))
            white[indices] = difference / (spread + epsilon)
    return [float(value) for value in white]
