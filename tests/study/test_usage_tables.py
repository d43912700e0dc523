"""Rows and columns of the tables of recorded usage, and the counts of what they leave out."""

import pytest

from selfplay.errors import ConfigError
from selfplay.study.recorded_usage import AgentUsage
from selfplay.study.stats.usage import UsageTable
from selfplay.study.usage_tables import MOST_VIEWS, check_least, left_out, shown_views, tables_of


def usage(table: UsageTable) -> AgentUsage:
    """Return the moves of one agent at step 3."""
    return AgentUsage(
        agent="member_0",
        kind="move",
        summaries={},
        chosen={3: table},
        frames={3: table.counts()},
        words={},
        now={},
    )


def played(**uses: int) -> UsageTable:
    """Return a table in which each view was seen this number of times, always with one move."""
    table = UsageTable()
    for view, times in uses.items():
        for line in range(times):
            table.add(view, "stay", line, ("stay", "go"))
    return table


def test_situations_below_the_number_have_no_row_and_are_counted() -> None:
    made = usage(played(often=30, enough=20, rare=19, once=1))
    (table,) = tables_of(made, 3, None, "moves", least=20)
    assert [(row[0], row[1]) for row in table.rows] == [("enough", 20), ("often", 30)]
    (counts,), (note,) = left_out([made], least=20)
    assert list(counts.rows) == [["member_0, move, step 3", 2, 50, 2, 20, 0, 0]]
    assert "2 situations with 20 uses, seen fewer than 20 times in a step" in note
    assert "of 4 situations" in note and "--least" in note
    assert left_out([made], least=1) == ([], [])


def test_a_long_table_keeps_the_most_frequent_situations_and_counts_the_others() -> None:
    made = usage(played(**{f"view {n:02d}": 20 + n for n in range(MOST_VIEWS + 3)}))
    (table,) = tables_of(made, 3, None, "moves", least=20)
    assert len(table.rows) == MOST_VIEWS and table.rows[0][0] == "view 03"
    _, (note,) = left_out([made], least=20)
    assert "3 situations with 63 uses, after the 40 most frequent ones" in note


def test_one_line_says_what_to_do_if_no_situation_was_seen_often_enough() -> None:
    made = usage(played(a=7, b=3))
    assert tables_of(made, 3, None, "moves", least=20) == []
    _, (note,) = left_out([made], least=20)
    assert note.startswith("no situation was seen at least 20 times in a step")
    assert "2 situations with 10 uses" in note and "--least 7 or less" in note
    assert shown_views(made.chosen[3], 7).views == ["a"]


def test_each_phase_has_a_table_with_the_moves_that_occurred_in_its_rows() -> None:
    table = UsageTable()
    for line in range(20):
        table.add("Give:", "2" if line % 2 else "0", line, ("0", "1", "2"))
        table.add("Give after a fine:", "0", line, ("0", "1"))
        table.add("Fine:", "left" if line % 2 else "right", line, ("left", "right"))
    table.add("rare", "1", 0, ("0", "1"))
    fines, gifts = tables_of(usage(table), 3, None, "moves", least=20)
    assert (fines.title, gifts.title) == ("moves; moves left, right", "moves; moves 0, 2")
    assert list(fines.columns) == ["view", "uses", "left", "right"]
    assert list(gifts.columns) == ["view", "uses", "0", "2"]
    assert [row[-1] for row in gifts.rows] == [None, "50% (27 to 73)"], "2 is illegal after a fine"


def test_many_phases_have_one_table() -> None:
    table = UsageTable()
    for place in range(7):
        for line in range(20):
            table.add(f"phase {place}", f"move {place}", line, (f"move {place}",))
    (made,) = tables_of(usage(table), 3, None, "moves", least=20)
    assert len(made.rows) == 7 and made.title == "moves"


def test_the_most_frequent_of_many_moves_are_columns_and_the_title_says_so() -> None:
    table = UsageTable()
    legal = tuple(f"m{place:02d}" for place in range(20))
    for place, move in enumerate(legal):
        for line in range(place):
            table.add("view", move, line, legal)
    (made,) = tables_of(usage(table), 3, None, "moves", least=20)
    assert list(made.columns) == ["view", "uses", *legal[8:]]
    assert made.title == "moves; the 12 most frequent of 19 actions"


def test_the_smallest_number_of_uses_is_one() -> None:
    with pytest.raises(ConfigError, match="--least 0: at least 1 is needed"):
        check_least(0)
