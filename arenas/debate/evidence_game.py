"""The debate of `arenas.debate.evidence` as a game of OpenSpiel, for exact studies.

The text is Gambit's format for extensive games. Checks are averaged: a pair of quotes has one
outcome, the expected reward. All passages and orders are equally likely, as in
`arenas.debate.evidence.passages`.
"""

from collections.abc import Iterator, Sequence

from arenas.debate.evidence_value import ORDERS, Order, circle, matrix, supports
from arenas.debate.evidence_views import DECEPTIVE, HONEST, debater_view, speakers
from selfplay.types import InformationSet

PLAYERS = (HONEST, DECEPTIVE)


def sets(*, facts: int) -> list[InformationSet]:
    """Return all information sets of both sides, those of the honest side first."""
    found: list[list[InformationSet]] = [[], []]
    for agent, passage, order, other in _decisions(facts):
        player = PLAYERS.index(agent)
        seen = debater_view(agent, passage, order, other)
        number = len(found[player]) + 1
        found[player].append(
            InformationSet(
                key=f"{player}-{player}-{number}-{seen.text}",
                agent=agent,
                observation=seen,
                actions={move: place for place, move in enumerate(seen.fields["legal"])},
            )
        )
    return [each for side in found for each in side]


def _decisions(facts: int) -> Iterator[tuple[str, Sequence[bool], Order, int | None]]:
    """Yield each decision once: agent, passage, order and the other's quote."""
    for order in ORDERS:
        for passage in supports(facts):
            if order == "together":
                for agent in PLAYERS:
                    yield agent, passage, order, None
                continue
            first, second = speakers(order)
            yield first, passage, order, None
            for quote in range(facts):
                yield second, passage, order, quote


def efg(*, facts: int, checked: float, stake: float) -> str:
    """Return the whole game in Gambit's format; player 1 is the honest side."""
    numbers = {each.observation.text: int(each.key.split("-")[2]) for each in sets(facts=facts)}
    moves = " ".join(f'"{number + 1}"' for number in range(facts))
    roots = [(order, passage) for order in ORDERS for passage in supports(facts)]
    drawn = " ".join(f'"{number}" 1/{len(roots)}' for number in range(len(roots)))
    lines = ['EFG 2 R "evidence" { "honest" "deceptive" } ""', f'c "" 1 "" {{ {drawn} }} 0']
    outcome = 0

    def decision(agent: str, passage: Sequence[bool], order: Order, other: int | None) -> str:
        text = debater_view(agent, passage, order, other).text
        player = PLAYERS.index(agent) + 1
        return f'p "" {player} {numbers[text]} "{text}" {{ {moves} }} 0'

    for order, passage in roots:
        wins = matrix(passage, checked=checked, rule=circle(facts))
        first, second = speakers(order)
        lines.append(decision(first, passage, order, None))
        for quote in range(facts):
            lines.append(decision(second, passage, order, None if order == "together" else quote))
            for reply in range(facts):
                honest, deceptive = (quote, reply) if first == HONEST else (reply, quote)
                paid = stake * (2 * float(wins[honest, deceptive]) - 1)
                outcome += 1
                lines.append(f't "" {outcome} "" {{ {paid!r} {-paid!r} }}')
    return "\n".join(lines) + "\n"
