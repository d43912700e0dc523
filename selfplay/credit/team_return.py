"""The team's return: the mean return of all agents of an arena, from a stage on."""

from collections.abc import Sequence
from typing import Literal

from selfplay.credit.base import CreditedTurn, by_stage, own_pay
from selfplay.types import Episode

Judged = Literal["own", "team"]
"""Rewards that a return sums: those of the acting agent, or the mean over all agents."""


def team_return(episode: Episode) -> float:
    """Return the mean return of all agents in the episode, with or without a turn."""
    agents = tuple(episode.other_pay) or episode.agents()
    return sum(own_pay(episode, agent) for agent in agents) / max(len(agents), 1)


class TeamReturns:
    """Computes `team_return_to_go`, and the siblings' values for turns that they do not have."""

    def __init__(self, *, discount: float) -> None:
        """Args:
        discount: gamma per round, in [0, 1]. A new round begins when an agent acts a second time.
        """
        if not 0.0 <= discount <= 1.0:
            raise ValueError(f"discount must be in [0, 1], not {discount}")
        self.discount = discount

    def __call__(self, episode: Episode) -> list[float]:
        """Return the team's return to go for every turn."""
        return team_return_to_go(episode, discount=self.discount)

    def absent(self, credited: CreditedTurn, sibling: Episode) -> float:
        """Return the sibling's return to go from the turn's stage on; 0 if the sibling ended
        earlier."""
        to_go = team_to_go(sibling, discount=self.discount)
        place = credited.turn.stage if credited.turn.stage >= 0 else credited.number
        return to_go[place] if place < len(to_go) else 0.0


def team_return_to_go(episode: Episode, *, discount: float = 1.0) -> list[float]:
    """Return, for every turn, the mean return to go of all agents from the turn's stage on.

    Agents without a turn count too. A reward counts at the stage that paid it, and is discounted
    once for each round in between. If the record does not have this stage, the reward counts as
    late as possible: just before the agent's next turn, or at the end. So a turn never loses a
    reward that it may have earned. Without recorded stages, rounds are used as stages. A shaping
    reward of a turn counts at this turn.
    """
    to_go = team_to_go(episode, discount=discount)
    return [to_go[place] for place in _places(episode)]


def team_to_go(episode: Episode, *, discount: float = 1.0) -> list[float]:
    """Return, for every stage, the mean return to go of all agents from this stage on."""
    places, rounds = _places(episode), rounds_of(episode)
    count = max(places, default=-1) + 1
    round_of = dict(zip(places, rounds, strict=True))
    paid = [0.0] * count
    for place, reward in _pay(episode, places, count - 1):
        if place >= 0:
            paid[place] += reward
    agents = max(len(episode.other_pay) or len(episode.agents()), 1)
    to_go, after = [0.0] * count, 0.0
    for place in reversed(range(count)):
        to_go[place] = paid[place] / agents + after
        begins = place == 0 or round_of.get(place) != round_of.get(place - 1)
        after = to_go[place] * (discount if begins else 1.0)
    return to_go


def rounds_of(episode: Episode) -> list[int]:
    """Return the round of every turn. A new round begins when an agent acts a second time.

    Turns of one recorded stage belong to one round.
    """
    acted: set[str] = set()
    number, rounds = 0, []
    for turns in by_stage(episode.turns):
        agents = [turn.agent for turn in turns]
        if acted.intersection(agents):
            number, acted = number + 1, set()
        acted.update(agents)
        rounds += [number] * len(agents)
    return rounds


def _places(episode: Episode) -> list[int]:
    """Return the stage of every turn; its round if the record has no stages."""
    if all(turn.stage >= 0 for turn in episode.turns):
        return [turn.stage for turn in episode.turns]
    return rounds_of(episode)


def _pay(episode: Episode, places: Sequence[int], last: int) -> list[tuple[int, float]]:
    """Return all pay as (stage, reward)."""
    pay: list[tuple[int, float]] = []
    for agent in dict.fromkeys((*episode.other_pay, *episode.agents())):
        rows = zip(places, episode.turns, strict=True)
        turns = [(place, turn.reward) for place, turn in rows if turn.agent == agent]
        others = episode.other_pay.get(agent)
        pay += [(min(at, last), reward) for at, reward in others or ()]
        ends = [*(place for place, _ in turns[1:]), last + 1]
        for number, ((place, reward), end) in enumerate(zip(turns, ends, strict=False)):
            if others is None:
                pay.append((max(place, end - 1), reward))
                continue
            begin = place if number else -1
            apart = sum(other for at, other in others if begin <= at < end)
            pay.append((place, reward - apart))
    return pay
