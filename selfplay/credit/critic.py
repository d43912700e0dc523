"""Interface of a critic: values of token sequences, learned from returns."""

from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import Literal, Protocol, TypeAlias, get_args

from selfplay.credit import Stateful
from selfplay.credit.base import CreditedTurn, by_stage

State: TypeAlias = tuple[int, ...]
"""Token ids; a value is read at their end."""

Sees = Literal["own", "all"]
"""Prompts that the critic reads for a turn, see `states_of`."""


class Critic(Stateful, Protocol):
    """A learned value function of token sequences.

    `learner.value_model.TransformerCritic` implements it; `credit.gae` reads and trains it.
    """

    def values(self, states: Sequence[State]) -> list[float]:
        """Return the expected return from each state on."""
        ...

    def fit(self, states: Sequence[State], returns: Sequence[float]) -> Mapping[str, float]:
        """Move the values towards the returns. Returns metrics."""
        ...


def states_of(credited_turns: Sequence[CreditedTurn], sees: Sees) -> list[State]:
    """Return the token sequence that the critic reads for each turn.

    own: the turn's prompt. all (a centralised critic, used in training only): the latest prompt up
    to this stage of every agent in `credited_turns`; the turn's own prompt comes last. Agents that
    do not learn, and other roles in `credit=by_role`, are not among them. Nothing in a
    state depends on the turn's action, because the value would then bias the gradient. So if a
    record does not say which turns were one stage, the prompts of later turns are left out.
    """
    if sees not in get_args(Sees):
        raise ValueError(f"a critic sees {' or '.join(get_args(Sees))}, not {sees!r}")
    if sees == "own":
        return [tuple(credited.turn.prompt_ids) for credited in credited_turns]
    states: list[State] = []
    for _, episode in groupby(
        credited_turns, key=lambda credited: (credited.group.id, credited.episode)
    ):
        latest: dict[str, State] = {}
        for turns in by_stage(credited.turn for credited in episode):
            latest |= {turn.agent: tuple(turn.prompt_ids) for turn in turns}
            for turn in turns:
                others = [ids for agent, ids in latest.items() if agent != turn.agent]
                states.append(tuple(chain(*others, turn.prompt_ids)))
    return states
