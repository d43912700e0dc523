"""Attacks on judges: scripted judges that are fooled, and one that is not."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from arenas.debate.arena import Debate
from arenas.debate.judged import SIDES, JudgedDebate
from arenas.questions.judged import JudgedQuestions
from selfplay.engines.scripted import Script
from selfplay.study.measures.judges import ATTACKS, before, bench, probe
from selfplay.study.measures.reward_hacking import study
from selfplay.study.stats.bootstrap import Estimate, wilson
from selfplay.types import Task
from tests.helpers.scripted_games import games, player

SUMS = [
    Task(id=str(n), payload={"question": f"{n} + 1", "answer": str(n + 1), "wrong": str(n + 2)})
    for n in range(20)
]
Decides = Callable[[dict[str, Any], Random], str]


def debate() -> JudgedDebate:
    return JudgedDebate(rounds=2)


def questions() -> JudgedQuestions:
    return JudgedQuestions(proposers=0, solvers=3)


def truth(fields: dict[str, Any]) -> str:
    return str(int(fields["question"].split()[0]) + 1)


def judged_by(decides: Decides) -> Script:
    """Return a script of debaters that argue, solvers that are right, and this judge."""

    def script(agent: str, observation: Any, rng: Random) -> str:
        fields = observation.fields
        if agent.startswith("debater"):
            return f"because of {fields['answers'][fields['side']]}"
        if agent.startswith("solver"):
            return json.dumps({"answer": truth(fields), "argument": "so"})
        return decides(fields, rng)

    return script


def knows(fields: dict[str, Any], rng: Random) -> str:
    """Name the right side, regardless of the words."""
    return next(side for side, answer in fields["answers"].items() if answer == truth(fields))


def likes_colons(fields: dict[str, Any], rng: Random) -> str:
    """Name the side that said ":", else the right side."""
    said = fields["transcript"][-1]
    return next((side for side in SIDES if said[side] == ":"), knows(fields, rng))


def found(decides: Decides, make: Any = debate, **settings: Any) -> dict[str, Estimate]:
    made = games(make, {"x": judged_by(decides)}, tasks=SUMS, **{"episodes": 40, **settings})
    estimates = probe(made, player("x", make))
    return {each.name.removeprefix("x: "): each for each in estimates}


def test_a_judge_that_knows_is_not_fooled() -> None:
    estimates = found(knows)
    for words in ("their own words", *(f'"{attack}"' for attack in ATTACKS)):
        each = estimates[f"judge accepts {words}"]
        assert (each.value, each.count, each.unit) == (0, 40, "game")
        assert (each.low, each.high) == wilson(0, 40) and each.notes == ""
    assert estimates["verdicts that change with the sides' places"].value == 0
    assert estimates["first place wins, less 1/2"].value == 0


def test_a_judge_that_accepts_a_colon() -> None:
    estimates = found(likes_colons)
    accepted = {name: e.value for name, e in estimates.items() if name.startswith("judge accepts")}
    assert accepted.pop('judge accepts ":"') == 1
    assert len(accepted) == 6 and set(accepted.values()) == {0}
    # No side says ":" by itself, so the order of the sides does not matter.
    assert estimates["verdicts that change with the sides' places"].value == 0


def test_a_judge_that_always_names_the_first_side() -> None:
    estimates = found(lambda fields, rng: "A")
    assert estimates["verdicts that change with the sides' places"].value == 1
    assert estimates["that beyond asking again"].value == 1
    assert estimates["first place wins, less 1/2"].value == 0.5
    own = estimates["judge accepts their own words"].value
    assert 0.2 < own < 0.8  # games in which the wrong side is first, regardless of its words
    assert {e.value for name, e in estimates.items() if "accepts" in name} == {own}


def test_a_random_judge_changes_no_more_than_when_asked_again() -> None:
    estimates = found(lambda fields, rng: rng.choice(SIDES), episodes=200)
    assert 0.35 < estimates["verdicts that change with the sides' places"].value < 0.65
    for name in ("that beyond asking again", "first place wins, less 1/2"):
        assert estimates[name].low < 0 < estimates[name].high and estimates[name].null == 0


def test_an_invalid_verdict_accepts_no_side() -> None:
    estimates = found(lambda fields, rng: "both")
    asked = [each for name, each in estimates.items() if "accepts" in name]
    assert {each.value for each in asked} == {0}
    assert {each.notes for each in asked} == {"no verdict in 40 of 40 games"}
    changed = estimates["verdicts that change with the sides' places"]
    assert changed.value != changed.value and changed.notes == "0 of 40 games have both verdicts"


def test_a_judge_of_one_answer() -> None:
    """The judge accepts right answers and "Solution". The arena asks nothing about ""."""

    def grades(fields: dict[str, Any], rng: Random) -> str:
        return "10" if fields["answer"] in (truth(fields), "Solution") else "2"

    estimates = found(grades, questions)
    accepted = {name: each.value for name, each in estimates.items()}
    assert accepted["judge accepts their own words"] == 1  # all solvers are right
    assert accepted['judge accepts "Solution"'] == 1 and accepted['judge accepts ":"'] == 0
    empty = estimates['judge accepts ""']
    assert (empty.count, empty.notes) == (0, "the arena asks no judge about it")
    assert not any("places" in name for name in accepted)


def test_exchanged_sides_keep_their_answers_and_words() -> None:
    made = games(debate, {"x": judged_by(knows)}, tasks=SUMS, episodes=1)
    (played,) = made.run(player("x", debate).seats(made.agents))
    verdict = bench(debate, played)
    assert verdict is not None and (verdict.judge, len(verdict.stages)) == ("judge_0", 2)
    state = before(debate, verdict)
    assert isinstance(state, JudgedDebate)
    now, other = state.view("judge_0").fields, state.swapped().view("judge_0").fields
    swap = {"A": "B", "B": "A"}
    assert other["answers"] == {side: now["answers"][swap[side]] for side in SIDES}
    assert other["transcript"] == [
        {side: row[swap[side]] for side in SIDES} for row in now["transcript"]
    ]
    assert now["answers"] != other["answers"] and state.view("judge_0").fields == now
    quiet = before(debate, verdict, "")
    assert quiet is not None
    place = verdict.undeserving[-1]
    assert [row[SIDES[int(place)]] for row in quiet.view("judge_0").fields["transcript"]] == [
        "",
        "",
    ]


def test_the_panel_is_part_of_the_study() -> None:
    made = games(debate, {"x": judged_by(likes_colons)}, tasks=SUMS, episodes=20)
    result = study(made, [player("x", debate)], [])
    values = {each.name: each.value for each in result.estimates}
    assert values['x: judge accepts ":"'] == 1 and values['x: judge accepts "."'] == 0
    assert result.params["failed_episodes"] == 0


def test_other_arenas_have_no_panel() -> None:
    made = games(Debate, {"x": judged_by(knows)}, tasks=SUMS, episodes=1)
    assert probe(made, player("x", Debate)) == []
