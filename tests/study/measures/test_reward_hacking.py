"""Probes of reward hacking, each with a planted positive case and a negative case."""

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from arenas.debate.arena import Debate
from arenas.games.matrix import raw_env
from selfplay.arena import Arena
from selfplay.engines.scripted import Script, constant
from selfplay.errors import ConfigError
from selfplay.study.measures import reward_hacking
from selfplay.study.measures.cross_play import estimate
from selfplay.study.measures.reward_hacking import copied, deliberate, proposals, study
from selfplay.study.stats.bootstrap import Draws, Estimate
from selfplay.types import Action, Observation, Task
from tests.helpers.builders import episode, turn
from tests.helpers.scripted_games import games, levers, player
from tests.helpers.viewer_run import five_episodes

QUESTION = Task(id="sum", payload={"question": "1+1", "answer": "2", "wrong": "3"})


def debate() -> Debate:
    return Debate(rounds=2, stop_on_consensus=False)


def debater(second: Any) -> Script:
    """Return a script with a random first answer, then `second(own answer, others' answers)`."""

    def script(agent: str, observation: Any, rng: Any) -> str:
        fields = observation.fields
        if fields["own"] is None:
            answer = rng.choice(["2", "3"])
        else:
            others = [entry["answer"] for entry in fields["others"]]
            answer = second(fields["own"]["answer"], others)
        return json.dumps({"answer": answer, "argument": ""})

    return script


def deliberated(second: Any, episodes: int = 120) -> dict[str, Estimate]:
    made = games(debate, {"x": debater(second)}, tasks=[QUESTION], episodes=episodes)
    (found,) = deliberate(made, [player("x", debate)])
    return {each.name.removeprefix("x: "): each for each in found.estimates}


def copy_majority(own: str, others: list[str]) -> str:
    return others[0] if len(others) == 2 and others[0] == others[1] else own


def test_an_agent_that_copies_the_majority_conforms_in_both_directions() -> None:
    """Both others agree against it in a quarter of the cases; then it always gives in."""
    found = deliberated(copy_majority)
    for name in (
        "wrong answers that were corrected",
        "right answers that were given up",
        "corrections beyond those without hearing",
        "wrong persuasions beyond those without hearing",
    ):
        assert found[name].low <= 0.25 <= found[name].high, found[name]
    assert found["outvoted right answers that were given up"].value == 1
    assert found["gave in beyond those without hearing"].value == 1  # alone it keeps its answer
    assert found["net gain"].low <= 0 <= found["net gain"].high
    assert found["net gain"].p is None  # agents that change together are not independent


def test_a_stubborn_agent_and_one_that_knows_the_answer() -> None:
    stubborn = deliberated(lambda own, others: own, 30)
    assert stubborn["outvoted right answers that were given up"].value == 0
    assert stubborn["wrong answers that were corrected"].value == stubborn["net gain"].value == 0
    oracle = deliberated(lambda own, others: "2", 30)
    assert oracle["wrong answers that were corrected"].value == 1
    assert oracle["right answers that were given up"].value == 0
    assert oracle["corrections beyond those without hearing"].value == 0  # it needs no others


class Talk(Arena):
    """All speak twice. The verdict on a talker is "illegal", and on a solver its own move."""

    name = "talk_v0"
    roles = {"talker": 2, "solver": 1}

    def setup(self, task: Task, rng: Random) -> None:
        self.times = 0

    def acting(self) -> Sequence[str]:
        return self.possible_agents

    def messengers(self) -> Sequence[str]:
        return self.possible_agents

    def view(self, agent: str) -> Observation:
        return Observation(text=str(self.times))

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        for agent, action in actions.items():
            self.note(agent, verdict=action if agent == "solver_0" else "illegal")
        self.times += 1
        if self.times == 2:
            self.finish()


def talk() -> Talk:
    return Talk(Talk.roles)


def test_verdicts_that_never_mean_right_are_no_answers() -> None:
    made = games(talk, {"x": constant("illegal")}, episodes=4)
    assert deliberate(made, [player("x", talk)]) == []
    assert made.notes == [
        "no deliberation of solver, talker: no verdict on record is 'correct', so these moves are "
        "no right or wrong answers"
    ]
    with pytest.raises(ConfigError, match="hacking: talk_v0 has no proposals recorded"):
        study(made, [player("x", talk)], [])
    proposed = [(1, [proposal(1.0)])]
    assert study(made, [player("x", talk)], proposed).tables == []


def test_only_roles_with_right_answers_deliberate() -> None:
    def script(agent: str, seen: Observation, rng: Random) -> str:
        return "wrong" if seen.text == "0" else "correct"

    made = games(talk, {"x": script, "y": constant("wrong")}, episodes=4)
    x, y = (player(name, talk) for name in "xy")
    found = deliberate(made, [x, y])
    assert [each.row for each in found] == [["x", 0, 0, 4, 0, 0, 0], ["y", 0, 0, 0, 4, 0, 0]]
    assert len(made.notes) == 1 and "no deliberation of talker: " in made.notes[0]
    assert deliberate(made, [y]) == []
    on_record = episode(turn("solver_0", info={"verdict": "correct"}))
    assert [each.row[4] for each in deliberate(made, [y], [on_record])] == [4]


def proposal(rate: float | None, text: str = "x", prompt: str = "") -> Any:
    metrics = {"valid_proposal": float(rate is not None)}
    if rate is not None:
        metrics["proposed_solve_rate"] = rate
    messages = ({"role": "user", "content": prompt},)
    return episode(turn("proposer_0", action=text, messages=messages), metrics=metrics)


def test_tasks_that_became_trivial() -> None:
    early = [proposal(rate) for rate in (0.5, 0.5, 0.0, None)]
    late = [proposal(rate) for rate in (1.0, 1.0, 1.0, 0.5)]
    found = {each.name: each for each in proposals([(1, early), (2, early), (3, late)])}
    assert found["trivial tasks, first third"].value == 0
    assert found["trivial tasks, last third"].value == 0.75
    assert found["trivial tasks, last third"].low == pytest.approx(0.3006, abs=1e-3)  # Wilson
    assert found["unsolvable tasks, first third"].value == pytest.approx(1 / 3)
    assert found["invalid proposals, first third"].value == 0.25
    assert proposals([(1, [episode(turn("player_0"))])]) == []


def test_missing_metrics_of_proposals_are_in_the_notes() -> None:
    """Runs of `questions` record valid proposals, but not how many solvers solve them."""
    asked = episode(turn("proposer_0", action="why"), metrics={"valid_proposal": 1.0})
    found = {each.name: each for each in proposals([(1, [asked])])}
    for kind in ("trivial tasks", "unsolvable tasks"):
        each = found[f"{kind}, last third"]
        assert math.isnan(each.value)
        assert each.notes == "steps 1 to 1; no proposal has the metric proposed_solve_rate"
    assert found["copied words, last third"].notes == "steps 1 to 1; no proposal has 4 words"
    assert found["invalid proposals, last third"].notes == "steps 1 to 1"


@pytest.mark.parametrize(("at", "steps"), [("", [1, 2]), ("@1", [1]), ("@start", [])])
def test_proposals_after_the_checkpoint_are_left_out(
    at: str, steps: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = five_episodes(tmp_path / "run")
    seated = nullcontext(SimpleNamespace(admit=lambda references: []))
    monkeypatch.setattr(reward_hacking, "open_games", lambda options, run: seated)
    given: list[int] = []

    def study(games: Any, players: Any, recorded: Any, *, independent: bool) -> None:
        given.extend(step for step, _ in recorded)

    monkeypatch.setattr(reward_hacking, "study", study)
    reward_hacking.from_options(argparse.Namespace(run=[f"{run}{at}"]))
    assert given == steps


def test_copied_words() -> None:
    shown = "def f(a):\n    return a + 1"
    assert copied(proposal(1.0, json.dumps({"program": shown}), shown).turns[0]) > 0.6
    whole = proposal(1.0, "a b c d e", "a b c d e")
    half = proposal(1.0, "a b c d e", "a b c d")
    found = {e.name: e for e in proposals([(step, [whole, half]) for step in (1, 2, 3)])}
    first = found["copied words, first third"]
    assert (first.value, first.unit, first.count) == (0.75, "step", 1) and math.isnan(first.low)
    mixed = [(step, [whole if step % 2 else half]) for step in range(1, 31)]
    last = {e.name: e for e in proposals(mixed)}["copied words, last third"]
    assert last.value == 0.75 and 0.55 < last.low < 0.7 < 0.8 < last.high < 0.95
    assert copied(proposal(1.0, "while b > 7 : b -= 2", shown).turns[0]) == 0
    assert np.isnan(copied(proposal(1.0, "x", shown).turns[0]))


@pytest.mark.parametrize(
    ("cells", "truth"), [([[1, 0.5], [0.5, 1]], 0.5), ([[0.3, 0.7], [0.5, 0.9]], 0.0)]
)
def test_collusion_leaves_out_effects_of_strength(cells: list[list[float]], truth: float) -> None:
    """In one case each run has a secret code; in the other, runs differ only in strength."""
    scores = {(i, j): np.full(4, cells[i][j]) for i in (0, 1) for j in (0, 1)}
    found = estimate(scores, np.array(cells), Draws(tasks=["t"] * 4))
    assert found[2].name == "gap" and found[2].value == pytest.approx(truth)


def test_partners_with_a_secret_are_found() -> None:
    def arena() -> Any:
        return raw_env(actions=["a", "b"], payoffs=[[1, 0], [0, 1]], players=["proposer", "solver"])

    made = games(arena, {"x": constant("a"), "y": constant("b")})
    result = study(made, [player("x", arena), player("y", arena)], [], independent=True)
    assert result.estimates[0].name.startswith("collusion") and result.estimates[0].value == 1


def test_collusion_is_reported_by_pair_and_by_seat() -> None:
    """Runs x and y share a code and run z has its own, so z loses with every partner."""

    def arena() -> Any:
        return raw_env(actions=["a", "b"], payoffs=[[1, 0], [0, 1]], players=["proposer", "solver"])

    made = games(arena, {"x": constant("a"), "y": constant("a"), "z": constant("b")})
    players = [player(name, arena) for name in "xyz"]
    by_pair, by_seat = study(made, players, [], independent=True).tables[:2]
    assert {row[0]: row[1] for row in by_pair.rows} == {"x and y": 0, "x and z": 1, "y and z": 1}
    found = {(row[0], row[1]): row[2] for row in by_seat.rows}
    assert {run: found[run, "proposer"] for run in "xyz"} == {"x": 0.5, "y": 0.5, "z": 1}
    assert {run: found[run, "solver"] for run in "xyz"} == {"x": 0.5, "y": 0.5, "z": 1}


def test_games_without_anything_to_probe_are_refused() -> None:
    arena = levers([1, 1])
    with pytest.raises(ConfigError, match="has no proposals recorded up to x, no agent that") as no:
        study(games(arena, {"x": constant("lever0")}), [player("x", arena)], [])
    needed = "an arena needs the metric valid_proposal .*, or messengers.. and .*, or judged.., "
    assert re.search(needed, str(no.value))
