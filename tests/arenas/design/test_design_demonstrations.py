"""Tests of demonstrations of designs and moves: the fractions of valid designs and right moves."""

import json
from itertools import islice
from random import Random
from typing import Any

import pytest

from arenas.design.demonstrations import MatrixDesignDemonstrations
from arenas.design.matrix_designs import MatrixDesigns
from arenas.design.space import RefusedDesign, names_of, play_task, play_tasks, read_design
from selfplay.types import Demonstration

SPACE = MatrixDesigns(rounds=(1, 2))


def shown(progress: float, **settings: float) -> list[Demonstration]:
    source = MatrixDesignDemonstrations(space=SPACE, **settings)  # type: ignore[arg-type]
    return list(islice(source.stream(Random(0), progress), 2000))


def test_designs_are_valid_except_for_a_given_fraction() -> None:
    for invalid in (0.0, 0.25):
        texts = [d.completion for d in shown(0, design_share=1, invalid=invalid)]
        refused = 0
        for text in texts:
            try:
                assert json.dumps(read_design(SPACE, text, longest=2000)) == text
            except RefusedDesign as reason:
                assert str(reason) in ("flat", "wrong_shape")
                refused += 1
        assert refused / len(texts) == pytest.approx(invalid, abs=0.03)


@pytest.mark.parametrize(("progress", "right"), [(0.0, 1.0), (0.9, 0.2)])
def test_moves_in_small_games_are_right_as_often_as_set(progress: float, right: float) -> None:
    found: dict[int, list[bool]] = {2: [], 3: []}
    for each in shown(progress, design_share=0, right_last=0.2):
        outcomes, legal = each.observation.fields["outcomes"], each.observation.fields["legal"]
        assert each.role == "player" and each.completion in legal
        pays = {m: max(o["pay"] for o in outcomes if o["mine"] == m) for m in legal}
        best = [move for move in legal if pays[move] == max(pays.values())]
        if len(best) == 1:
            theirs = {outcome["theirs"] for outcome in outcomes}
            found[max(len(legal), len(theirs))].append(each.completion == best[0])
    rates = {size: sum(hits) / len(hits) for size, hits in found.items()}
    assert rates[2] == pytest.approx(right + (1 - right) / 2, abs=0.07)
    assert rates[3] < 0.5  # random moves, with two or three actions


def test_a_later_round_shows_the_previous_round() -> None:
    histories = [d.observation.fields["history"] for d in shown(0, design_share=0)]
    assert any(histories) and not all(histories)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="lie in"):
        MatrixDesignDemonstrations(space=SPACE, invalid=2)


def played(example: Demonstration) -> dict[str, Any]:
    """Return the design of the game that a demonstration of a move shows."""
    fields, second = example.observation.fields, example.observation.text.startswith("1 ")
    mine, theirs = ("theirs", "mine") if second else ("mine", "theirs")
    table: dict[str, dict[str, int]] = {}
    for outcome in fields["outcomes"]:
        table.setdefault(outcome[mine], {})[outcome[theirs]] = int(outcome["pay"])
    payoffs = [[table[row][column] for column in sorted(table[row])] for row in sorted(table)]
    return {"rounds": 1, "payoffs": payoffs}


def test_forbidden_games_are_neither_designed_nor_played() -> None:
    space = MatrixDesigns(payoff="team", actions=(2, 2), rounds=(1, 1), largest=2)
    ids: dict[bool, set[str]] = {False: set(), True: set()}
    held_out = names_of(play_tasks(space=space, count=8, seed=1))
    for hidden in (False, True):
        source = MatrixDesignDemonstrations(
            space=space, invalid=0.0, forbidden=held_out if hidden else ()
        )
        for example in islice(source.stream(Random(0), 0.0), 600):
            settings = (
                read_design(space, example.completion, longest=2000)
                if example.role == "designer"
                else played(example)
            )
            ids[hidden].add(play_task(space, settings).id)
    assert held_out & ids[False] and not held_out & ids[True]
