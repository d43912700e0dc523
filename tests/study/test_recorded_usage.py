"""Labels of recorded words and moves in tables and pictures."""

import math

from selfplay.study.plots import CurvePlot
from selfplay.study.recorded_usage import (
    MOST_PICTURES,
    AgentUsage,
    curves_of,
    labels,
    pictures_of,
    undrawn_views,
)
from selfplay.study.stats.usage import Kind, UsageTable

TAIL = " Choose your move now, and write only the move in your answer." * 3


def usage(kind: Kind, *tables: UsageTable) -> AgentUsage:
    """Return usage with a table for each step from 1."""
    steps = dict(enumerate(tables, start=1))
    frames = {step: table.counts() for step, table in steps.items()}
    return AgentUsage(
        agent="player_0", kind=kind, summaries={}, chosen=steps, frames=frames, words={}, now={}
    )


def undrawn(made: AgentUsage, *, least: int) -> list[str]:
    return undrawn_views([made], [curves_of(made, least=least)], least=least)


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
    (curve,) = curves_of(made, least=10)
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


def test_a_point_of_a_curve_needs_enough_uses_of_its_view() -> None:
    often, rarely = bets(Jack=0, King=10), UsageTable()
    rarely.add(f"You hold the Jack.{TAIL}", "bet", 0, ("bet", "pass"))
    made = usage("move", often, rarely)
    (curve,) = curves_of(made, least=2)
    (jack, king) = curve.series.values()
    assert jack[0] == 0.0 and math.isnan(jack[1]) and king[0] == 1.0
    assert undrawn(made, least=2) == []
    assert curves_of(made, least=11) == []
    (note,) = undrawn(made, least=11)
    assert note.startswith("no situation has a curve: none was seen at least 11 times in a step")


def test_a_curve_has_only_views_in_which_its_move_is_legal() -> None:
    table = UsageTable()
    for line in range(30):
        table.add("Give:", "all" if line % 3 else "half", line, ("all", "half", "none"))
        table.add("Fine:", "left" if line % 2 else "right", line, ("left", "right"))
    curves = {curve.title: list(curve.series) for curve in curves_of(usage("move", table), least=9)}
    assert curves == {
        "player_0: probability of all by view": ["Give:"],
        "player_0: probability of half by view": ["Give:"],
        "player_0: probability of left by view": ["Fine:"],
        "player_0: probability of right by view": ["Fine:"],
    }


def test_two_moves_of_different_phases_have_a_picture_each() -> None:
    table = UsageTable()
    for line in range(10):
        table.add("Give:", "all", line, ("all", "half"))
        table.add("Fine:", "left", line, ("left", "right"))
    curves = {curve.title: list(curve.series) for curve in curves_of(usage("move", table), least=9)}
    assert curves == {
        "player_0: probability of all by view": ["Give:"],
        "player_0: probability of left by view": ["Fine:"],
    }


def test_a_view_outside_the_chosen_steps_has_no_curve_of_a_move_that_it_never_had() -> None:
    early, late = UsageTable(), UsageTable()
    for line in range(10):
        early.add("Fine:", "left" if line % 2 else "right", line, ("left", "right"))
        late.add("Give:", "all" if line % 2 else "half", line, ("all", "half"))
    made = usage("move", early, late)
    del made.chosen[min(made.chosen)]
    curves = {curve.title: list(curve.series) for curve in curves_of(made, least=9)}
    assert all(len(views) == 1 for views in curves.values())
    assert curves["player_0: probability of left by view"] == ["Fine:"]
    assert undrawn(made, least=9) == []


def test_a_view_whose_moves_are_all_rare_has_no_curve_and_is_counted() -> None:
    table = UsageTable()
    for line in range(30):
        for move in ("a", "b", "c", "d"):
            table.add("Give:", move, line, ("a", "b", "c", "d"))
    for line in range(10):
        table.add("Fine:", "e", line, ("e",))
    (note,) = undrawn(usage("move", table), least=9)
    assert note.startswith("curves show 1 of 2 situations of all agents in the drawn steps")


def test_the_pictures_with_the_lowest_ranks_are_kept_in_their_order() -> None:
    def picture(name: str) -> CurvePlot:
        return CurvePlot(title=name, x=[1], series={}, bands={}, label="")

    ranked = [(rank, picture(f"{seat} {rank}")) for seat in range(4) for rank in range(5)]
    kept, notes = pictures_of(ranked)
    assert [each.title for each in kept] == [f"{s} {r}" for s in range(4) for r in range(3)]
    assert len(kept) == MOST_PICTURES and notes[0].startswith("pictures left out: 8,")
    assert pictures_of(ranked[:3]) == ([each for _, each in ranked[:3]], [])
