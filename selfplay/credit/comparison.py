"""Comparing returns: the one mechanism that the credit methods share."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

import numpy as np

from selfplay.credit import Stateful
from selfplay.types import Episode, Group, Sample, Status, Turn

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Play:
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


AnyPlay = TypeVar("AnyPlay", bound=Play)

Returns: TypeAlias = Callable[[Episode], list[float]]
"""An episode's return per turn, in the order of its turns."""


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


def team_return_to_go(episode: Episode, *, discount: float = 1.0) -> list[float]:
    """R_t = r_t + discount * R_{t+1} over the team's rounds; r_t is the agents' mean reward.

    With one shared reward the mean is that reward. A turn's reward is all that its agent is paid
    until its next turn, so an agent that sits a round out may still be paid in it: what its
    latest turn earned then belongs to R_t too. Where every agent acts in every round there is no
    such turn.
    """
    rounds = rounds_of(episode)
    count = max(rounds, default=-1) + 1
    agents = len(episode.agents())
    begun: list[dict[str, float]] = [{} for _ in range(count)]
    for turn, number in zip(episode.turns, rounds, strict=True):
        begun[number][turn.agent] = turn.reward
    open_turns: list[float] = []
    latest: dict[str, float] = {}
    for acting in begun:
        open_turns.append(sum(r for agent, r in latest.items() if agent not in acting) / agents)
        latest |= acting
    values, to_go = [0.0] * count, 0.0
    for number in reversed(range(count)):
        to_go = sum(begun[number].values()) / agents + discount * to_go
        values[number] = to_go + open_turns[number]
    return [values[number] for number in rounds]


def rounds_of(episode: Episode) -> list[int]:
    """For every turn, its round: a new one begins when an agent would act twice in the same."""
    acted: set[str] = set()
    number, found = 0, []
    for turn in episode.turns:
        if turn.agent in acted:
            number, acted = number + 1, set()
        acted.add(turn.agent)
        found.append(number)
    return found


def numbers(episode: Episode) -> list[int]:
    """For every turn, which of its agent's turns it is."""
    seen: dict[str, int] = {}
    found = []
    for turn in episode.turns:
        found.append(seen.get(turn.agent, 0))
        seen[turn.agent] = found[-1] + 1
    return found


def plays(groups: Sequence[Group], returns: Returns) -> list[Play]:
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
                if not turn.learn:
                    continue
                found.append(
                    Play(
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


Within = Literal["agent", "role", "prompt"]


def group_key(within: Within) -> Callable[[Play], Hashable]:
    """Whom a play is compared with, inside its group of episodes.

    agent: the same agent in the sibling episodes, which are independent of each other. role: all
    agents of the role in all of them. prompt: those of the role that began from the very same
    prompt, which is what siblings share when an earlier agent's move made their tasks differ
    (solvers of one proposed task).

    role and prompt compare agents of one episode with each other. That is sound where none of
    them can change what the others are paid (solvers that answer alone). Where they can (a team's
    shared reward, opposed rewards), the baseline depends on the action it judges, and the
    gradient is biased.
    """
    if within not in get_args(Within):
        raise ValueError(f"credit: no comparison within {within!r}; {get_args(Within)} are known")
    if within == "agent":
        return lambda play: (play.group.id, play.turn.agent)
    if within == "role":
        return lambda play: (play.group.id, play.turn.role)
    return lambda play: (play.group.id, play.turn.role, play.first.prompt_ids)


def compared(
    all_plays: Sequence[AnyPlay],
    *,
    key: Callable[[AnyPlay], Hashable],
    advantage: Callable[[Floats], Floats],
    each: Literal["trajectory", "turn"] = "trajectory",
) -> list[float]:
    """One advantage per play, from comparing the values that a policy has under the same key.

    Agents of one role may be played by different policies: each is its own measure.
    Each trajectory (one agent in one episode) counts once per key and value, however many turns it
    took, so that long episodes do not weigh more in a mean. With `each="turn"` every turn counts:
    for values of which a trajectory may have several under one key.
    """
    members: dict[Hashable, dict[Hashable, float]] = {}
    places = []
    for play in all_plays:
        name = (play.turn.policy, key(play))
        place = (*play.trajectory, play.number if each == "turn" else 0)
        members.setdefault(name, {}).setdefault(place, play.value)
        places.append((name, place))
    credited = {
        name: dict(zip(values, advantage(np.array(list(values.values()))), strict=True))
        for name, values in members.items()
    }
    return [float(credited[name][place]) for name, place in places]


def samples(all_plays: Sequence[Play], advantages: Sequence[float]) -> list[Sample]:
    """The plays with their advantages; 0 for a turn of which the policy chose no token."""
    return [
        Sample(
            turn=play.turn,
            advantage=advantage if any(play.turn.trainable) else 0.0,
            group=play.group.id,
            episode=play.episode,
        )
        for play, advantage in zip(all_plays, advantages, strict=True)
    ]


def compare(
    all_plays: Sequence[Play],
    *,
    key: Callable[[Play], Hashable],
    advantage: Callable[[Floats], Floats],
) -> list[Sample]:
    """Samples whose advantages are those of `compared`, one value per trajectory and key."""
    return samples(all_plays, compared(all_plays, key=key, advantage=advantage))


def alike(values: Floats) -> bool:
    """Whether there is nothing to compare: one value, or values that differ by rounding only.

    The mean of equal values need not equal them in floating point, and a residue of 1e-17 would be
    enough to move weights, because Adam scales every gradient up to the same size.
    """
    return len(values) < 2 or bool(np.ptp(values) <= 1e-12 * np.abs(values).max())


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


class Method:
    """What a credit method is where it does not say otherwise."""

    tree: ClassVar[bool] = False
    """Whether it needs episodes that branch from one another."""

    @classmethod
    def least_group(cls, settings: Mapping[str, Any]) -> int:
        """Episodes that a group needs under these settings; with fewer, all advantages are zero."""
        return 1

    def modules(self) -> Mapping[str, Stateful]:
        """What it trains, by name; a checkpoint keeps their states beside the learners'."""
        return {}

    def metrics(self) -> Mapping[str, float]:
        """Figures of the last call of `assign`."""
        return {}


class Stateless(Method):
    """A credit method that keeps nothing between steps."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if the state belongs to another method."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but got {sorted(state)}")


class AmongSiblings(Stateless):
    """A method that compares an agent with others of its group; `within` says with whom."""

    def __init__(self, *, within: Within = "role") -> None:
        """`within`: whom to compare with inside the group, see `group_key`."""
        self.within: Within = within
        self.among = group_key(within)

    @classmethod
    def least_group(cls, settings: Mapping[str, Any]) -> int:
        """Two within an agent; elsewhere the agents of one episode may be siblings enough."""
        return 2 if settings.get("within") == "agent" else 1
