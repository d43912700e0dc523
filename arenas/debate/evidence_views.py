"""Observations in the debate of `arenas.debate.evidence`."""

from collections.abc import Mapping, Sequence

from arenas.debate.evidence_value import Order
from arenas.debate.judged import SIDES
from selfplay.types import Observation

HONEST, DECEPTIVE = "honest_debater_0", "deceptive_debater_0"


def speakers(order: Order) -> tuple[str, str]:
    """Return the first and the second speaker; the honest side is first for "together"."""
    return (DECEPTIVE, HONEST) if order == "deceptive_first" else (HONEST, DECEPTIVE)


def debater_view(
    agent: str,
    passage: Sequence[bool],
    order: Order,
    other: int | None,
    *,
    judged: bool = False,
) -> Observation:
    """Return a side's view: the facts, and the other side's quote if that side has spoken.

    The text is unique per information set. An example is "honest ++- second 3", the view of the
    honest side after the other side quoted fact 3; "+" is a fact that supports the own answer.

    Args:
        agent: The side.
        passage: For each fact, True if it supports the true answer.
        order: Order of speaking.
        other: Index of the fact that the other side quoted, from 0; None before its quote.
        judged: True if a judge, and not the rule, decides when no side is caught.
    """
    honest = agent == HONEST
    own = [true == honest for true in passage]
    turn = "together" if order == "together" else "first" if other is None else "second"
    marks = "".join("-+"[each] for each in own)
    heard = [] if other is None else [str(other + 1)]
    return Observation(
        text=" ".join(["honest" if honest else "deceptive", marks, turn, *heard]),
        fields={
            "honest": honest,
            "own": own,
            "turn": turn,
            "judged": judged,
            "heard": heard[0] if heard else "",
            "reach": (len(own) - 1) // 2,
            "legal": [str(number + 1) for number in range(len(own))],
        },
    )


def judge_view(quotes: Mapping[str, int | None], first: str) -> Observation:
    """Return a judge's view.

    `quotes` maps each side, A or B, to the index of the fact that it quoted, from 0, or to None
    before its quote. `first` is the side that spoke first, and "" if both spoke at once.
    """
    shown = {name: "" if quote is None else str(quote + 1) for name, quote in quotes.items()}
    words = [f"{name}{quote}" for name, quote in shown.items()]
    return Observation(
        text=" ".join(["judge", *words, *([f"{first} first"] if first else [])]),
        fields={"quotes": shown, "first": first, "legal": list(SIDES)},
    )
