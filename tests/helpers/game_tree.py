"""Exact values in the game tree of an arena, from all deals and all lines of play."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from selfplay.arena import Arena
from selfplay.types import Task

Decision: TypeAlias = tuple[str, str, str]
"""(agent, its view, its move)."""
Strategy: TypeAlias = Callable[[str, str], Mapping[str, float]]
"""Function from an agent and its view to the probability of each of its moves."""


class Line(NamedTuple):
    """One line of play, from the deal to the end of the game."""

    decisions: tuple[Decision, ...]
    pay: Mapping[str, float]
    chance: float
    """Probability of the deal."""


def lines(arena: Arena, deals: Sequence[Task]) -> list[Line]:
    """Return all lines of play of all deals. The deals are equally likely."""
    found: list[Line] = []
    for deal in deals:
        waiting: list[tuple[Decision, ...]] = [()]
        while waiting:
            decisions = waiting.pop()
            arena.begin(deal, seed=0)
            for agent, _, move in decisions:
                arena.play_stage({agent: move})
            if arena.finished:
                found.append(Line(decisions, dict(arena.paid), 1 / len(deals)))
                continue
            (agent,) = arena.stage
            seen = arena.view(agent)
            waiting += [(*decisions, (agent, seen.text, move)) for move in seen.fields["legal"]]
    return found


def value(tree: Sequence[Line], agent: str, strategy: Strategy) -> float:
    """Return an agent's expected return if all agents play the strategy."""
    return sum(line.pay[agent] * line.chance * reach(line, strategy) for line in tree)


def reach(line: Line, strategy: Strategy, *, but: str = "") -> float:
    """Return the probability of a line's decisions, without those of the agent `but`."""
    chance = 1.0
    for agent, seen, move in line.decisions:
        if agent != but:
            chance *= strategy(agent, seen)[move]
    return chance


def best_response(tree: Sequence[Line], agent: str, strategy: Strategy) -> float:
    """Return the value of the agent's best response, which remembers its own decisions."""
    ends: dict[tuple[Decision, ...], float] = defaultdict(float)
    after: dict[tuple[Decision, ...], set[tuple[str, str]]] = defaultdict(set)
    for line in tree:
        own = tuple(decision for decision in line.decisions if decision[0] == agent)
        ends[own] += line.pay[agent] * line.chance * reach(line, strategy, but=agent)
        for place, (_, seen, move) in enumerate(own):
            after[own[:place]].add((seen, move))

    def worth(own: tuple[Decision, ...]) -> float:
        best: dict[str, float] = {}
        for seen, move in after[own]:
            branch = worth((*own, (agent, seen, move)))
            best[seen] = max(best.get(seen, branch), branch)
        return ends[own] + sum(best.values())

    return worth(())


def nash_conv(tree: Sequence[Line], agents: Sequence[str], strategy: Strategy) -> float:
    """Return the sum over agents of the gain by a best response."""
    return sum(
        best_response(tree, agent, strategy) - value(tree, agent, strategy) for agent in agents
    )


def situations(tree: Sequence[Line]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (agent, its view, its moves) for each situation once, in sorted order."""
    moves: dict[tuple[str, str], set[str]] = defaultdict(set)
    for line in tree:
        for agent, seen, move in line.decisions:
            moves[agent, seen].add(move)
    for agent, seen in sorted(moves):
        yield agent, seen, sorted(moves[agent, seen])
