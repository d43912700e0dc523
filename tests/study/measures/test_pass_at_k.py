"""pass@k and majority@k, compared with enumeration."""

import json
from dataclasses import replace
from math import comb, isnan
from random import Random
from typing import Any

import numpy as np
import pytest

from arenas.debate.arena import Debate
from arenas.mixture.arena import Mixture, tasks_of
from arenas.questions.arena import Questions
from selfplay.engines.scripted import Script
from selfplay.errors import ConfigError
from selfplay.study.measures.pass_at_k import (
    AnswerVotes,
    AttemptCounts,
    counts,
    cover,
    crossing_note,
    discovered,
    first_crossing,
    fisher,
    pass_at_k,
    study,
)
from selfplay.study.result import Result
from selfplay.study.stats.bootstrap import Estimate
from selfplay.types import Status, Task
from tests.helpers.builders import episode, turn
from tests.helpers.scripted_games import games, lewis, lewis_tasks, player


def test_the_estimate() -> None:
    assert (
        pass_at_k(10, 3, 2) == pytest.approx(1 - comb(7, 2) / comb(10, 2)) == pytest.approx(8 / 15)
    )
    assert pass_at_k(10, 3, 5) == pytest.approx(0.916667, abs=1e-6)
    assert pass_at_k(10, 0, 5) == 0 and pass_at_k(10, 10, 1) == 1 and pass_at_k(3, 2, 2) == 1
    assert isnan(pass_at_k(3, 1, 4))


def test_the_estimate_is_unbiased() -> None:
    """The mean over the binomial distribution of c is exactly 1 - (1 - p)^k."""
    for k in (1, 2, 5, 10):
        mean = sum(comb(10, c) * 0.3**c * 0.7 ** (10 - c) * pass_at_k(10, c, k) for c in range(11))
        assert mean == pytest.approx(1 - 0.7**k, abs=1e-12)


def test_where_the_curves_cross() -> None:
    """The untrained policy solves half of the tasks with 0.3 and half with 0.1.

    The trained policy solves them with 0.9 and 0. The curves cross at k = 4.
    """
    ks = range(1, 7)
    base = [1 - (0.7**k + 0.9**k) / 2 for k in ks]
    trained = [(1 - 0.1**k) / 2 for k in ks]
    assert (base[0], trained[0]) == pytest.approx((0.2, 0.45))
    assert first_crossing(trained, base) == 3
    assert first_crossing([1, 1], [0.5, 0.5]) is None
    assert crossing_note([1, 1], [0.5, 1], [1, 2]).endswith("reaches the trained one at k = 2")
    assert crossing_note([1, 1], [0.5, 0.5], [1, 2]).endswith("nowhere up to k = 2")
    for lower in ([1, 1], [0.5, 1]):
        note = crossing_note(lower, [1, 1], [1, 2])
        assert note == "the trained curve is above the untrained one at no k"


def test_fishers_exact_test() -> None:
    assert fisher(8, 10, 1, 5) == pytest.approx(0.088911, abs=1e-6)
    assert fisher(3, 3, 0, 3) == pytest.approx(0.1) and fisher(0, 5, 0, 5) == 1


def test_a_task_needs_enough_samples_to_count_as_newly_solvable() -> None:
    def counted(right: list[int], n: int) -> AttemptCounts:
        return AttemptCounts(tasks=["a", "b"], samples=np.full(2, n), right=np.array(right))

    assert discovered(counted([3, 0], 3), counted([0, 0], 3)) == 0
    assert discovered(counted([12, 0], 16), counted([0, 0], 16)) == 1


def test_a_newly_solvable_task_must_stand_out_among_all_tasks() -> None:
    """5 of 8 against 0 of 8 has p = 0.0256: enough for a single task, but not for one of two."""

    def counted(*right: int) -> AttemptCounts:
        tasks = [str(number) for number in range(len(right))]
        return AttemptCounts(tasks=tasks, samples=np.full(len(right), 8), right=np.array(right))

    assert fisher(5, 8, 0, 8) == pytest.approx(0.025641, abs=1e-6)
    assert discovered(counted(5), counted(0)) == 1
    assert discovered(counted(5, 0), counted(0, 0)) == 0
    assert discovered(counted(5, 5), counted(0, 0)) == 2


def skilled(chance: float, state: str | None = None) -> Script:
    """Return a script that names the state, or only `state` if given, with this probability."""

    def script(agent: str, observation: Any, rng: Random) -> str:
        fields = observation.fields
        if fields["phase"] == "message":
            return str(fields["state"])
        if agent.startswith("speaker"):
            return "wait"
        able = state is None or fields["heard"] == state
        return str(fields["heard"]) if able and rng.random() < chance else "none"

    return script


def measured(metric: str = "team_return", **more: Any) -> Result:
    arena = lewis(malformed=0.0)
    scripts = {"trained": skilled(1.0, "a"), "base": skilled(0.5)}
    made = games(arena, scripts, tasks=lewis_tasks(), metrics=[metric])
    players = [player(name, arena) for name in scripts]
    return study(made, *players, **{"samples": 8, **more})


def test_sharpening_lowers_pass_at_large_k() -> None:
    """The trained policy always solves one task of four, so its pass@k is 0.25 for every k.

    The untrained policy solves each task with probability 1/2, so its pass@k is 1 - 0.5^k.
    """
    result = measured(samples=8)
    table = {row[0]: row[1:] for row in result.tables[0].rows}
    assert list(table) == [1, 2, 4, 8]
    assert [table[k][0] for k in table] == [0.25] * 4
    found: dict[str, Estimate] = {each.name: each for each in result.estimates}
    assert found["gain at k = 8"].low <= 0.25 - (1 - 0.5**8) + 0.01
    assert found["gain at k = 8"].high >= 0.25 - (1 - 0.5**8)
    assert "never solved" in result.tables[2].columns
    assert result.tables[2].rows[0] == ["trained", 4, 3, 1]
    assert [row[:2] for row in result.tables[1].rows] == [
        [tau, 0.25] for tau in (0.25, 0.5, 0.75, 1)
    ]
    # Moves cannot be compared as text, so there is a note in place of a picture.
    assert len(result.drawings) == 1 and "no majority@k of 4 tasks" in result.notes[-1]
    assert not any("majority" in name for name in found)


def test_unknown_roles_and_metrics_that_are_not_0_or_1_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no agent has this role; did you mean 'listener'"):
        measured(role="listner")
    with pytest.raises(ConfigError, match=r"share_wait of an episode is not 0 or 1"):
        measured("share_wait", samples=2)


def test_games_without_a_list_of_tasks_are_refused() -> None:
    arena = lewis()
    made = games(arena, {"a": skilled(1.0)})
    with pytest.raises(ConfigError, match="no evaluation"):
        study(made, player("a", arena), player("a", arena), samples=2)


def test_greedy_samples_are_refused() -> None:
    arena = lewis()
    made = games(arena, {"a": skilled(1.0)}, tasks=lewis_tasks())
    made.agent_specs = {
        role: replace(seat, temperature=0.0) for role, seat in made.agent_specs.items()
    }
    with pytest.raises(ConfigError, match=r"greedy \(temperature 0\).*--evaluation"):
        study(made, player("a", arena), player("a", arena), samples=2)


def test_a_greedy_role_with_a_role_that_samples_is_measured() -> None:
    arena = lewis(malformed=0.0)
    scripts = {"a": skilled(1.0), "b": skilled(0.0)}
    made = games(arena, scripts, tasks=lewis_tasks(), metrics=["team_return"])
    greedy = replace(made.agent_specs["speaker"], temperature=0.0)
    made.agent_specs = {**made.agent_specs, "speaker": greedy}
    result = study(made, player("a", arena), player("b", arena), samples=2)
    assert result.tables[0].rows[0][1] == 1.0
    with pytest.raises(ConfigError, match=r"greedy \(temperature 0\)"):
        study(made, player("a", arena), player("a", arena), samples=2, role="speaker")


def test_only_the_first_answer_of_an_agent_is_a_sample() -> None:
    """A second answer, after the agent heard others, is not a second sample."""
    right, wrong = {"verdict": "correct"}, {"verdict": "wrong"}
    debate = episode(
        turn("debater_0", stage=0, info=wrong),
        turn("debater_1", stage=0, info=right),
        turn("debater_0", stage=1, info=right),
        turn("debater_1", stage=1, info=right),
    )
    made = games(lewis(), {"a": skilled(1.0)}, tasks=[debate.task])
    found = counts(made, [debate], role="debater")
    assert found.samples.tolist() == [2] and found.right.tolist() == [1]


def test_samples_without_the_metric_do_not_count_as_wrong() -> None:
    played = [
        episode(turn("debater_0"), task=SUMS[0], metrics=metrics)
        for metrics in ({"accuracy": 1.0}, {"accuracy": 0.0}, {"rounds": 2.0})
    ]
    made = games(Debate, {"a": answerer(1.0)}, tasks=SUMS[:1], metrics=["accuracy"])
    found = counts(made, played)
    assert (found.samples.tolist(), found.right.tolist()) == ([2], [1])


def test_tasks_without_the_metric_are_refused() -> None:
    def parts() -> Mixture:
        return Mixture(parts={"ask": Questions(proposers=0, solvers=1), "talk": Debate(rounds=1)})

    tasks = [*tasks_of("ask", SUMS), *tasks_of("talk", SUMS)]
    made = games(parts, {"a": answerer(1.0)}, tasks=tasks, metrics=["accuracy"])
    with pytest.raises(ConfigError, match="no finished sample with accuracy"):
        study(made, player("a", parts), player("a", parts), samples=2)
    made = games(parts, {"a": answerer(1.0)}, tasks=tasks, metrics=["acuracy"])
    with pytest.raises(ConfigError, match="did you mean 'accuracy'"):
        study(made, player("a", parts), player("a", parts), samples=2)


def test_cover() -> None:
    counted = AttemptCounts(
        tasks=list("abcd"), samples=np.full(4, 20), right=np.array([18, 12, 6, 1])
    )
    assert cover(counted, 0.5).mean() == 0.5
    assert cover(counted, 0.3).sum() == 3  # 6 of 20 is exactly 0.3, which is enough


SUMS = [Task(id=str(n), payload={"question": f"{n} + 1", "answer": str(n + 1)}) for n in range(4)]


def answerer(right: float) -> Script:
    """Return a script with right answers in two formats, two wrong answers, and other words."""

    def script(agent: str, observation: Any, rng: Random) -> str:
        if rng.random() < 0.1:
            return "I do not know"
        number = int(observation.fields["question"].split()[0]) + 1
        wrong = number + rng.choice([1, 2])
        answer = rng.choice([f"{number}", f"{number}.0"]) if rng.random() < right else wrong
        return json.dumps({"answer": str(answer), "argument": ""})

    return script


def by_task(chances: list[float]) -> Script:
    """Return a script that is right with the probability of the task."""

    def script(agent: str, observation: Any, rng: Random) -> str:
        number = int(observation.fields["question"].split()[0])
        answer = number + (1 if rng.random() < chances[number] else 2)
        return json.dumps({"answer": str(answer), "argument": ""})

    return script


def test_intervals_of_few_tasks_are_cut_at_the_possible_values() -> None:
    """Three of four tasks went from always wrong to always right; the fourth is half right."""

    def arena() -> Debate:
        return Debate(rounds=1, debaters=1)

    scripts = {"trained": by_task([1, 1, 1, 0.5]), "base": by_task([0, 0, 0, 0.5])}
    made = games(arena, scripts, tasks=SUMS, metrics=["accuracy"])
    result = study(made, *[player(name, arena) for name in scripts], samples=4)
    for table in result.tables[:2]:
        assert table.title in ("pass@k", "majority@k")
        _, value, low, high, base, base_low, base_high = map(float, table.rows[0][:7])  # type: ignore[arg-type]
        assert 0 < low < value < high == 1 and 0 == base_low < base < base_high < 1
    gains = [each for each in result.estimates if each.name.startswith("gain")]
    assert len(gains) == 4
    assert all(-1 < each.low < each.value < each.high == 1 for each in gains)


def debated(**settings: Any) -> Result:
    def arena() -> Debate:
        return Debate(rounds=1, debaters=2, **settings)

    scripts = {"trained": answerer(0.6), "base": answerer(0.2)}
    made = games(arena, scripts, tasks=SUMS, metrics=["accuracy"])
    players = [player(name, arena) for name in scripts]
    return study(made, *players, samples=16, role="debater")


def test_the_vote_of_a_roles_answers() -> None:
    """The trained policy gives the right answer with 0.54 and two wrong ones with 0.18 each.

    The untrained policy gives it with 0.18 and the wrong ones with 0.36 each.
    """
    result = debated()
    titles = [table.title for table in result.tables]
    assert titles[:2] == ["pass@k", "majority@k"]
    rows = {row[0]: row for row in result.tables[1].rows}
    assert list(rows) == [1, 2, 4, 8, 16, 32]
    once, all_of_them = rows[1], rows[32]
    assert once[1] == pytest.approx(result.tables[0].rows[0][1])  # both are equal for one sample
    assert all_of_them[1] == 1 and all_of_them[4] == 0
    assert {each.name: each.value for each in result.estimates}["gain of majority@32"] == 1
    assert [each.title for each in result.drawings] == [
        "pass@k, with 95 % intervals",
        "majority@k, with 95 % intervals",
    ]
    assert not any("majority" in note for note in result.notes)


def test_answers_that_a_custom_verifier_compares_have_no_vote() -> None:
    def anything(answer: str, payload: Any) -> float:
        return float(answer.startswith(payload["answer"]))

    result = debated(verifier=anything)
    assert "no majority@k of 4 tasks, whose answers cannot be compared as text" in result.notes
    assert [each.title for each in result.drawings] == ["pass@k, with 95 % intervals"]


def test_the_answer_of_an_episode_is_its_last_move() -> None:
    arena = Debate(aggregate="judge", rounds=1, debaters=1)
    said = json.dumps({"answer": "9", "argument": ""})
    played = [
        episode(
            turn("debater_0", stage=0, action=said),
            turn("judge_0", stage=1, action=verdict),
            task=SUMS[0],
            status=status,
            metrics={"accuracy": float(verdict == "1.0")},
        )
        for verdict, status in (("1.0", Status.FINISHED), ("7", Status.FINISHED))
    ]
    cut = episode(turn("debater_0", stage=0, action=said), task=SUMS[0], status=Status.TRUNCATED)
    made = games(lambda: arena, {"a": answerer(1.0)}, tasks=SUMS[:1], metrics=["accuracy"])
    found = counts(made, [*played, cut])
    assert found.voted == [AnswerVotes(right=[1], wrong=[1])] and found.samples.tolist() == [3]
