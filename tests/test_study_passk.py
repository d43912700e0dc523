"""pass@k against enumeration."""

from dataclasses import replace
from math import comb, isnan
from random import Random
from typing import Any

import numpy as np
import pytest
from building import episode, turn
from study_games import games, lewis, lewis_tasks, player

from selfplay.engines.scripted import Script
from selfplay.errors import ConfigError
from selfplay.study.intervals import Estimate
from selfplay.study.passk import (
    Counts,
    counts,
    discovered,
    first_crossing,
    fisher,
    pass_at_k,
    study,
)
from selfplay.study.result import Result


def test_the_estimate() -> None:
    assert (
        pass_at_k(10, 3, 2) == pytest.approx(1 - comb(7, 2) / comb(10, 2)) == pytest.approx(8 / 15)
    )
    assert pass_at_k(10, 3, 5) == pytest.approx(0.916667, abs=1e-6)
    assert pass_at_k(10, 0, 5) == 0 and pass_at_k(10, 10, 1) == 1 and pass_at_k(3, 2, 2) == 1
    assert isnan(pass_at_k(3, 1, 4))


def test_the_estimate_is_unbiased() -> None:
    """Over the binomial of c, exactly 1 - (1 - p)^k."""
    for k in (1, 2, 5, 10):
        mean = sum(comb(10, c) * 0.3**c * 0.7 ** (10 - c) * pass_at_k(10, c, k) for c in range(11))
        assert mean == pytest.approx(1 - 0.7**k, abs=1e-12)


def test_where_the_curves_cross() -> None:
    """Untrained: half the tasks 0.3 and half 0.1; trained: 0.9 and 0. They cross at k = 4."""
    ks = range(1, 7)
    base = [1 - (0.7**k + 0.9**k) / 2 for k in ks]
    trained = [(1 - 0.1**k) / 2 for k in ks]
    assert (base[0], trained[0]) == pytest.approx((0.2, 0.45))
    assert first_crossing(trained, base) == 3
    assert first_crossing([1, 1], [0.5, 0.5]) is None


def test_fishers_exact_test() -> None:
    assert fisher(8, 10, 1, 5) == pytest.approx(0.088911, abs=1e-6)
    assert fisher(3, 3, 0, 3) == pytest.approx(0.1) and fisher(0, 5, 0, 5) == 1


def test_what_was_never_found_needs_samples_to_count_as_new() -> None:
    def counted(right: list[int], n: int) -> Counts:
        return Counts(tasks=["a", "b"], samples=np.full(2, n), right=np.array(right))

    assert discovered(counted([3, 0], 3), counted([0, 0], 3)) == 0
    assert discovered(counted([12, 0], 16), counted([0, 0], 16)) == 1


def skilled(chance: float, state: str | None = None) -> Script:
    """Names the state with this chance, that of `state` alone if given."""

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


def test_sharpening_is_seen() -> None:
    """Trained: one task of four, always. Untrained: each at even odds. 0.25 at every k, against
    1 - 0.5^k."""
    result = measured(samples=8)
    table = {row[0]: row[1:] for row in result.tables[0].rows}
    assert list(table) == [1, 2, 4, 8]
    assert [table[k][0] for k in table] == [0.25] * 4
    found: dict[str, Estimate] = {each.name: each for each in result.estimates}
    assert found["gain at k = 8"].low <= 0.25 - (1 - 0.5**8) + 0.01
    assert found["gain at k = 8"].high >= 0.25 - (1 - 0.5**8)
    assert "never solved" in result.tables[1].columns
    assert result.tables[1].rows[0][:4] == ["trained", 4, 3, 1]


def test_answers_of_a_role_and_what_is_no_answer() -> None:
    with pytest.raises(ConfigError, match=r"nobody of that role answers; did you mean 'listener'"):
        measured(role="listner")
    with pytest.raises(ConfigError, match=r"share_wait of an episode is not 0 or 1"):
        measured("share_wait", samples=2)


def test_without_a_list_of_tasks() -> None:
    arena = lewis()
    made = games(arena, {"a": skilled(1.0)})
    with pytest.raises(ConfigError, match="no evaluation"):
        study(made, player("a", arena), player("a", arena), samples=2)


def test_greedy_samples_are_all_one() -> None:
    arena = lewis()
    made = games(arena, {"a": skilled(1.0)}, tasks=lewis_tasks())
    made.seats = {role: replace(seat, temperature=0.0) for role, seat in made.seats.items()}
    with pytest.raises(ConfigError, match=r"greedy \(temperature 0\).*--evaluation"):
        study(made, player("a", arena), player("a", arena), samples=2)


def test_only_the_first_answer_of_an_agent_is_a_sample() -> None:
    """A second answer, after hearing others, is no second sample."""
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
