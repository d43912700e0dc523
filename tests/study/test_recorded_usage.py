"""Labels of recorded words and moves in tables and pictures."""

from selfplay.study.recorded_usage import AgentUsage, curves_of, labels
from selfplay.study.stats.usage import Kind, UsageTable

TAIL = " Choose your move now, and write only the move in your answer." * 3


def usage(kind: Kind, *tables: UsageTable) -> AgentUsage:
    """Return usage with a table for each step from 1."""
    steps = dict(enumerate(tables, start=1))
    frames = {step: table.counts() for step, table in steps.items()}
    return AgentUsage(
        agent="player_0", kind=kind, summaries={}, chosen=steps, frames=frames, words={}, now={}
    )


def bets(**chosen: int) -> UsageTable:
    """Return a table of ten moves with each card, of which the given number are bets."""
    table = UsageTable()
    for card, count in chosen.items():
        for line in range(10):
            move = "bet" if line < count else "pass"
            table.add(f"You hold the {card}.{TAIL}", move, line, ("bet", "pass"))
    return table


def test_views_that_end_alike_have_a_curve_each() -> None:
    made = usage("move", bets(Jack=0, King=10), bets(Jack=1, King=9))
    (curve,) = curves_of(made)
    assert curve.title == "player_0: probability of pass by view"
    assert curve.series == {
        "You hold the Jack. ...": [1.0, 0.9],
        "You hold the King. ...": [0.0, 0.1],
    }


def test_labels_that_stay_equal_are_numbered() -> None:
    middle = "word " * 60
    views = [f"{card} {middle}{card}{TAIL}" for card in ("Jack", "King")]
    assert len(set(labels("move", views).values())) == 2
    views = [f"{card} {middle}{TAIL}" for card in ("Jack of", "King of")]
    first, second = labels("move", views).values()
    assert first != second
    assert list(labels("move", ["a  b", "a b"]).values()) == ["a b", "a b (2)"]
    assert labels("move", ["a", "b"]) == {"a": "a", "b": "b"}
