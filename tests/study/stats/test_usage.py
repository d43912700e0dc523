"""Counts of words and moves by kind and view, with values that are worked out by hand."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from selfplay.study.stats.usage import (
    UsageTable,
    Word,
    dying,
    frames,
    newest,
    summary_of,
    usage_of,
)
from selfplay.types import Status, Turn
from tests.helpers.planted_usage import episode, turn


def counted(*episodes):  # type: ignore[no-untyped-def]
    return usage_of(enumerate(episodes, 1))


def table(counts: dict[tuple[str, str | None], int]) -> UsageTable:
    return UsageTable(lines={cell: list(range(times)) for cell, times in counts.items()})


def test_turns_are_counted_by_kind_view_and_action() -> None:
    legal = ("hunt", "home")
    one = episode(
        [
            turn("scout_0", "north", "x", 0, spoken=True),
            turn("scout_0", "heard x", "hunt", 1, legal=legal),
            turn("partner_0", "heard x", "stay", 1, legal=legal, info={"verdict": "illegal"}),
            turn("partner_0", "talk", "two words words", 2),
        ],
        1,
    )
    tables = counted(one, one)
    assert tables["scout_0", "message"].lines == {("north", "x"): [1, 2]}
    assert tables["scout_0", "move"].lines == {("heard x", "hunt"): [1, 2]}
    assert tables["scout_0", "move"].legal == {"heard x": legal}
    assert tables["partner_0", "move"].lines == {("heard x", None): [1, 2]}
    assert tables["partner_0", "text"].lines == {("talk", "two words words"): [1, 2]}
    # a word counts once per text
    assert tables["partner_0", "text words"].lines == {
        ("talk", "two"): [1, 2],
        ("talk", "words"): [1, 2],
    }
    assert ("scout_0", "message words") not in tables


def test_an_illegal_message_counts_with_its_words_because_it_was_said() -> None:
    legal, illegal = ("x", "y"), {"verdict": "illegal"}
    one = episode(
        [
            turn("scout_0", "north", "big z", 0, legal=legal, spoken=True, info=illegal),
            turn("scout_0", "south", None, 1, legal=legal, spoken=True, info=illegal),
            turn("scout_0", "talk", "odd words", 2, info=illegal),
            turn("scout_0", "vote", "big z", 3, legal=legal, info=illegal),
        ],
        1,
    )
    tables = counted(one)
    assert tables["scout_0", "message"].lines == {("north", "big z"): [1], ("south", None): [1]}
    assert set(tables["scout_0", "message words"].lines) == {("north", "big"), ("north", "z")}
    assert tables["scout_0", "text"].lines == {("talk", "odd words"): [1]}
    assert tables["scout_0", "move"].lines == {("vote", None): [1]}


def test_failed_episodes_shared_turns_and_frozen_opponents_are_left_out() -> None:
    said = turn("scout_0", "north", "x", 0, spoken=True)
    frozen = replace(said, action="old", trainable=False)
    tables = counted(
        episode([said], 1),
        episode([said], 2, status=Status.FAILED, error="broken"),
        episode([said, replace(said, action="y")], 3, branch_of=0, shared_turns=1),
        episode([frozen], 4),
    )
    assert tables["scout_0", "message"].lines == {("north", "x"): [1], ("north", "y"): [3]}
    assert counted(episode([frozen], 1))["scout_0", "message"].lines == {("north", "old"): [1]}


def test_a_move_with_tool_calls_is_one_move_with_the_view_before_the_calls() -> None:
    legal = ("C", "D")

    def asked(agent: str, saw: str, stage: int) -> Turn:
        return turn(agent, saw, None, stage, legal=legal, final=False)

    one = episode(
        [asked("solver_0", "task", 0), turn("solver_0", "result", "C", 0, legal=legal)], 1
    )
    assert counted(one)["solver_0", "move"].lines == {("task", "C"): [1]}
    branch = replace(one, shared_turns=1, branch_of=0)  # it shares the call, but not the move
    assert counted(branch)["solver_0", "move"].lines == {("task", "C"): [1]}
    rounds = [
        each
        for stage, pair in enumerate([("C", "D"), ("D", "D")])
        for agent, move in zip(("first_0", "second_0"), pair, strict=True)
        for each in (asked(agent, "", stage), turn(agent, "", move, stage, legal=legal))
    ]
    answers = counted(episode(rounds, 1))["first_0", "answer"].lines
    assert set(answers) == {("", "C"), ("C / D", "D")}


def test_answers_are_moves_by_the_last_moves_of_both() -> None:
    legal = ("C", "D")
    moves = [("C", "D"), ("D", "D"), ("C", None), ("D", "C")]
    turns = [
        turn(agent, "", move, stage, legal=legal, info={} if move else {"verdict": "illegal"})
        for stage, pair in enumerate(moves)
        for agent, move in zip(("first_0", "second_0"), pair, strict=True)
    ]
    tables = counted(episode(turns, 1))
    assert set(tables["first_0", "answer"].lines) == {("", "C"), ("C / D", "D"), ("D / D", "C")}
    assert set(tables["second_0", "answer"].lines) == {("", "D"), ("D / C", "D"), ("D / D", None)}
    assert ("first_0", "answer") not in counted(episode(turns[:2], 1))  # one round has no answers


def test_the_answers_that_a_branch_shares_are_counted_once() -> None:
    moves = [("C", "D"), ("D", "D"), ("D", "C")]
    turns = [
        turn(agent, "", move, stage, legal=("C", "D"))
        for stage, pair in enumerate(moves)
        for agent, move in zip(("first_0", "second_0"), pair, strict=True)
    ]
    whole = episode(turns, 1)
    branch = episode(turns, 2, branch_of=0, shared_turns=4)  # it has its own third round
    assert counted(whole, branch)["first_0", "answer"].lines == {
        ("", "C"): [1],
        ("C / D", "D"): [1],
        ("D / D", "D"): [1, 2],
    }


def test_the_numbers_of_a_table_are_those_worked_out_by_hand() -> None:
    code = summary_of(table({("n", "x"): 50, ("s", "y"): 50}), "message")
    assert code.entropy == pytest.approx(math.log(2))
    assert code.plug_in == pytest.approx(math.log(2))
    assert code.information == pytest.approx(math.log(2))
    assert 0 < code.chance < 0.02
    noise: dict[tuple[str, str | None], int] = {
        ("n", "x"): 25,
        ("n", "y"): 25,
        ("s", "x"): 25,
        ("s", "y"): 25,
    }
    nothing = summary_of(table(noise), "message")
    assert nothing.plug_in == pytest.approx(0)
    assert -0.02 < nothing.information < 0
    unique = summary_of(table({(str(n), str(n)): 1 for n in range(30)}), "message")
    assert math.isnan(unique.information)
    one = summary_of(table({("n", "x"): 9}), "message")
    assert one.entropy == 0 and one.chance == 0 and one.plug_in == 0
    assert math.isnan(summary_of(table({("n", "x"): 9}), "message words").information)


def test_new_and_dying_words_are_found_from_their_history() -> None:
    def word(text: str, steps: dict[int, float]) -> Word:
        (first, frequency), *rest = steps.items()
        made = Word(text=text, first=first, last=first, times=10, peak=frequency, peak_step=first)
        for step, frequency in rest:
            made.add(step, 10, frequency)
        return made

    old, born = word("old", {1: 0.9, 5: 0.2, 9: 0.1}), word("born", {9: 0.5, 7: 0.1, 5: 0.5})
    assert (born.first, born.last, born.times, born.peak_step) == (5, 9, 30, 5)
    steady = word("steady", {1: 0.5, 9: 0.4})
    now = {"old": 0.1, "born": 0.5, "steady": 0.4}
    assert newest([old, born, steady], 1) == [born]
    assert dying([old, born, steady], now) == [old]
    assert dying([old], {}) == [old] and not dying([old], {"old": 0.3})


def test_frames_are_evenly_spaced_with_both_ends() -> None:
    assert frames([4, 8]) == [4, 8] and frames([]) == []
    many = frames(range(10, 20_010))
    assert len(many) == 60 and many[0] == 10 and many[-1] == 20_009
    gaps = {b - a for a, b in pairwise(many)}
    assert max(gaps) - min(gaps) <= 1
