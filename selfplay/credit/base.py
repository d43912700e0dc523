"""Comparing returns: the one mechanism that the credit methods share.

Whitening: advantages scaled over all tokens of a batch instead of within a group.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

import numpy as np

from selfplay.credit import Stateful
from selfplay.types import Episode, Group, Sample, Status, Turn

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class CreditedTurn:
    """One turn with its place: what a credit method looks at."""

    group: Group
    """The group it came from."""
    episode: int
    """Index of the episode in its group."""
    place: int
    """Which of the episode's turns it is, from 0."""
    number: int
    """Which of this agent's turns it is, from 0."""
    turn: Turn
    """The turn itself."""
    first: Turn
    """The same agent's first turn in the episode."""
    value: float
    """The return that this turn is judged by."""

    @property
    def trajectory(self) -> tuple[str, int, str]:
        """Which agent in which episode of which group it belongs to."""
        return (self.group.id, self.episode, self.turn.agent)


AnyCreditedTurn = TypeVar("AnyCreditedTurn", bound=CreditedTurn)

Returns: TypeAlias = Callable[[Episode], list[float]]
"""An episode's return per turn, in the order of its turns."""

Absent: TypeAlias = Callable[[CreditedTurn, Episode], float]
"""Function that gives the value to compare a turn with in a sibling that has no such turn."""


def own_return(episode: Episode) -> list[float]:
    """Every turn is judged by all that its agent was paid in the episode."""
    total: dict[str, float] = {}
    for turn in episode.turns:
        total[turn.agent] = total.get(turn.agent, 0.0) + turn.reward
    return [total[turn.agent] for turn in episode.turns]


def own_return_to_go(episode: Episode, *, discount: float = 1.0) -> list[float]:
    """R_t = r_t + discount * R_{t+1} over the same agent's turns."""
    to_go: dict[str, float] = {}
    values = []
    for turn in reversed(episode.turns):
        to_go[turn.agent] = turn.reward + discount * to_go.get(turn.agent, 0.0)
        values.append(to_go[turn.agent])
    return values[::-1]


def own_pay(episode: Episode, agent: str) -> float:
    """All that an agent was paid in the episode, whether it had a turn or not."""
    rewards = [turn.reward for turn in episode.turns if turn.agent == agent]
    return sum(rewards or [reward for _, reward in episode.other_pay.get(agent, ())])


def numbers(episode: Episode) -> list[int]:
    """For every turn, which of its agent's turns it is."""
    seen: dict[str, int] = {}
    found = []
    for turn in episode.turns:
        found.append(seen.get(turn.agent, 0))
        seen[turn.agent] = found[-1] + 1
    return found


def learnable_turns(groups: Sequence[Group], returns: Returns) -> list[CreditedTurn]:
    """All turns of all episodes that did not fail, in order, but those that nobody learns from.

    So an opponent's turns are in no comparison, in no average and before no critic. What it was
    paid is part of what `returns` sees.
    """
    found = []
    for group in groups:
        for index, episode in enumerate(group.episodes):
            if episode.status is Status.FAILED:
                continue
            first: dict[str, Turn] = {}
            for turn in episode.turns:
                first.setdefault(turn.agent, turn)
            rows = zip(episode.turns, numbers(episode), returns(episode), strict=True)
            for place, (turn, number, value) in enumerate(rows):
                if not turn.trainable:
                    continue
                found.append(
                    CreditedTurn(
                        group=group,
                        episode=index,
                        place=place,
                        number=number,
                        turn=turn,
                        first=first[turn.agent],
                        value=value,
                    )
                )
    return found


GroupBy = Literal["agent", "role", "prompt"]


def group_key(group_by: GroupBy) -> Callable[[CreditedTurn], Hashable]:
    """Whom a play is compared with, inside its group of episodes.

    agent: the same agent in the sibling episodes, which are independent of each other. role: all
    agents of the role in all of them. prompt: those of the role that began from the very same
    prompt, which is what siblings share when an earlier agent's move made their tasks differ
    (solvers of one proposed task).

    role and prompt compare agents of one episode with each other. That is sound where none of
    them can change what the others are paid (solvers that answer alone). Where they can (a team's
    shared reward, opposed rewards), the baseline depends on the action it judges, and the
    gradient is biased. Also, a prompt that occurred only once in its group has no signal.
    """
    if group_by not in get_args(GroupBy):
        raise ValueError(
            f"credit: no comparison within {group_by!r}; {get_args(GroupBy)} are known"
        )
    if group_by == "agent":
        return lambda play: (play.group.id, play.turn.agent)
    if group_by == "role":
        return lambda play: (play.group.id, play.turn.role)
    return lambda play: (play.group.id, play.turn.role, play.first.prompt_ids)


def group_advantages(
    credited_turns: Sequence[AnyCreditedTurn],
    *,
    key: Callable[[AnyCreditedTurn], Hashable],
    advantage: Callable[[Floats], Floats],
    each: Literal["trajectory", "turn"] = "trajectory",
    absent: Absent | None = None,
) -> list[float]:
    """One advantage per play, from comparing the values that a policy has under the same key.

    Agents of one role may be played by different policies: each is its own measure.
    Each trajectory (one agent in one episode) counts once per key and value, however many turns it
    took, so that long episodes do not weigh more in a mean. With `each="turn"` every turn counts:
    for values of which a trajectory may have several under one key.
    `absent` is for keys under which a sibling may have no value: see `_beside`.
    """
    members: dict[Hashable, dict[tuple[str, int, str, int], float]] = {}
    first: dict[Hashable, AnyCreditedTurn] = {}
    places = []
    for play in credited_turns:
        name = (play.turn.policy, key(play))
        place = (*play.trajectory, play.number if each == "turn" else 0)
        members.setdefault(name, {}).setdefault(place, play.value)
        first.setdefault(name, play)
        places.append((name, place))
    credited = {}
    for under, values in members.items():
        found = np.array(list(values.values()))
        present = {episode for _, episode, _, _ in values}
        given = _beside(found, first[under], present, advantage=advantage, absent=absent)
        credited[under] = dict(zip(values, given, strict=True))
    return [float(credited[name][place]) for name, place in places]


def _beside(
    values: Floats,
    play: CreditedTurn,
    present: Collection[int],
    *,
    advantage: Callable[[Floats], Floats],
    absent: Absent | None,
) -> Floats:
    """Return the advantages of values under one key, which only the siblings `present` have.

    A value is then compared with the mean of the others, or, if it is the only one, with the mean
    of what `absent` gives for the siblings. Both means are of other, independent episodes, so that
    the expected gradient stays exact. `centred` keeps its usual factor (K-1)/K, where K is the
    number of values that there would be with all siblings present. Other advantages, and groups
    whose episodes branch from one another, are compared as they are.
    """
    siblings = play.group.episodes
    away = [
        episode
        for index, episode in enumerate(siblings)
        if index not in present and episode.status is not Status.FAILED
    ]
    exact = advantage in (centred, leave_one_out)
    if absent is None or not away or not exact or any(e.branch_of is not None for e in siblings):
        return advantage(values)
    whole = len(values) * (len(present) + len(away)) / len(present)
    factor = 1.0 if advantage is leave_one_out else (whole - 1) / whole
    if len(values) > 1:
        return factor * leave_one_out(values)
    baseline = np.mean([absent(play, episode) for episode in away])
    both = np.array([values[0], baseline])
    return np.zeros_like(values) if alike(both) else factor * (values - baseline)


def samples(credited_turns: Sequence[CreditedTurn], advantages: Sequence[float]) -> list[Sample]:
    """The plays with their advantages; 0 for a turn of which the policy chose no token."""
    return [
        Sample(
            turn=play.turn,
            advantage=advantage if any(play.turn.loss_mask) else 0.0,
            group=play.group.id,
            episode=play.episode,
        )
        for play, advantage in zip(credited_turns, advantages, strict=True)
    ]


def group_relative(
    credited_turns: Sequence[CreditedTurn],
    *,
    key: Callable[[CreditedTurn], Hashable],
    advantage: Callable[[Floats], Floats],
    absent: Absent | None = None,
) -> list[Sample]:
    """Samples with the advantages of `group_advantages`: one value per trajectory and key."""
    return samples(
        credited_turns,
        group_advantages(credited_turns, key=key, advantage=advantage, absent=absent),
    )


def alike(values: Floats) -> bool:
    """Whether there is nothing to compare: one value, or values that differ by rounding only.

    The mean of equal values need not equal them in floating point, and a residue of 1e-17 would be
    enough to move weights, because Adam scales every gradient up to the same size. Returns that add
    up to nearly 0 differ by the rounding of their parts, which are taken to be of the order of 1.
    """
    return len(values) < 2 or bool(np.ptp(values) <= 1e-12 * max(1.0, np.abs(values).max()))


def centred(values: Floats) -> Floats:
    """A = r - mean; zeros for a single value or equal values."""
    return np.zeros_like(values) if alike(values) else values - values.mean()


def standardized(values: Floats, *, epsilon: float = 1e-6) -> Floats:
    """A = (r - mean) / (std + epsilon), std with ddof 1; zeros for a single value or equal values.

    A single value has no spread: some implementations then use mean 0 and std 1, which turns the
    raw reward into an advantage. Here it is no signal.
    """
    if alike(values):
        return np.zeros_like(values)
    return (values - values.mean()) / (values.std(ddof=1) + epsilon)


def leave_one_out(values: Floats) -> Floats:
    """A_i = r_i - mean of the others = G/(G-1) (r_i - mean); zeros for one value or equal ones."""
    count = len(values)
    return centred(values) * count / max(count - 1, 1)


class CreditMethod:
    """What a credit method is where it does not say otherwise."""

    tree: ClassVar[bool] = False
    """Whether it needs episodes that branch from one another."""
    team: bool = False
    """True if the method judges a turn by the mean pay of all agents."""
    metrics_read: Mapping[str, str] = MappingProxyType({})
    """Name of a setting to the arena's metric that the setting names."""

    @classmethod
    def min_group_size(cls, settings: Mapping[str, Any]) -> int:
        """Episodes that a group needs under these settings; with fewer, all advantages are zero."""
        return 1

    def modules(self) -> Mapping[str, Stateful]:
        """What it trains, by name; a checkpoint keeps their states beside the learners'."""
        return {}

    def metrics(self) -> Mapping[str, float]:
        """Figures of the last call of `assign`."""
        return {}


class StatelessCredit(CreditMethod):
    """A credit method that keeps nothing between steps."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if the state belongs to another method."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but got {sorted(state)}")


class GroupRelative(StatelessCredit):
    """A method that compares an agent with others of its group; `group_by` says with whom."""

    def __init__(self, *, group_by: GroupBy = "role") -> None:
        """`group_by`: whom to compare with inside the group, see `group_key`."""
        self.group_by: GroupBy = group_by
        self.among = group_key(group_by)
        self.absent: Absent | None = None if group_by == "prompt" else _own_pay_there

    @classmethod
    def min_group_size(cls, settings: Mapping[str, Any]) -> int:
        """Two within an agent; elsewhere the agents of one episode may be siblings enough."""
        return 2 if settings.get("group_by") == "agent" else 1


def _own_pay_there(play: CreditedTurn, sibling: Episode) -> float:
    """Return the total pay of the play's agent in a sibling."""
    return own_pay(sibling, play.turn.agent)


def whitened(
    credited_turns: Sequence[CreditedTurn], values: Sequence[float], *, epsilon: float = 1e-6
) -> list[float]:
    """(x - mean) / (std + epsilon) over all trainable tokens that a policy has in the batch.

    A turn's value stands on each of its tokens, so long completions weigh more; the std has ddof 0,
    as for a population of tokens. Zeros where a policy's values are all alike.
    """
    rows: dict[str, list[int]] = {}
    for row, play in enumerate(credited_turns):
        if any(play.turn.loss_mask):
            rows.setdefault(play.turn.policy, []).append(row)
    found = np.zeros(len(credited_turns))
    for mine in rows.values():
        tokens = np.array([sum(credited_turns[row].turn.loss_mask) for row in mine])
        of_turns = np.array([values[row] for row in mine])
        if not alike(of_turns):
            difference = of_turns - np.average(of_turns, weights=tokens)
            spread = np.sqrt(np.average(difference**2, weights=tokens))
            found[mine] = difference / (spread + epsilon)
    return [float(value) for value in found]
