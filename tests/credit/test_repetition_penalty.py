"""Tests of the repetition penalty: clusters by BLEU, and their penalties."""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from selfplay.credit.rewards import minority, uncertainty
from selfplay.credit.shaping import Overlong, Repetition, Shaping, clusters
from selfplay.types import ToolCall, Turn
from tests.helpers.builders import episode, group, turn

pytest.importorskip("nltk")
pytest.importorskip("scipy")
SEARCH = ToolCall(name="search")
SHORT = "how many apples are left in the basket"
OTHER = "compute the area of a circle with radius three"


def asked(*texts: str | None, reward: float = 1.0) -> list[Any]:
    return [turn("proposer_0", reward, action=text) for text in texts]


def test_golden_rewards_of_agreement() -> None:
    assert [uncertainty(p) for p in (0.5, 0.3, 0.8, 1.0)] == pytest.approx([1.0, 0.6, 0.4, 0.0])
    assert [minority(p) for p in (0.5, 0.3, 0.8, 1.0)] == pytest.approx([0.5, 0.3, 0.2, 0.0])
    with pytest.raises(ValueError, match="a share"):
        uncertainty(1.5)


def shaped(turns: Sequence[Turn], role: str = "proposer", **settings: Any) -> list[float]:
    return Repetition(role=role, **settings).of_step(turns, range(len(turns)))


def test_similar_texts_are_one_cluster() -> None:
    found = clusters([SHORT, f"{SHORT} now", OTHER, "a b c"], distance=0.5)
    assert found[SHORT] == found[f"{SHORT} now"] != found[OTHER]
    assert len(set(found.values())) == 3
    apart = clusters([SHORT, f"{SHORT} now"], distance=0.0)
    assert len(set(apart.values())) == 2
    assert clusters(["x"], distance=0.5) == {"x": 1} and clusters([], distance=0.5) == {}


def test_the_penalty_is_the_fraction_of_the_batch_in_the_cluster() -> None:
    # Of five turns three make a cluster (two are equal), one is alone, and one did not parse.
    turns = asked(SHORT, SHORT, f"{SHORT} now", OTHER, None)
    found = shaped(turns)
    assert found == pytest.approx([0.4, 0.4, 0.4, 0.8, 1.0])
    assert shaped(turns, weight=2.0)[0] == 0.0  # 1 - 1.2
    free = shaped(turns, weight=2.0, floor=None)
    assert free == pytest.approx([-0.2, -0.2, -0.2, 0.6, 1.0])
    assert shaped(turns, role="solver") == [1.0] * 5


def test_the_whole_step_is_one_batch_and_other_roles_are_untouched() -> None:
    first = group(episode(*asked(SHORT), turn("solver_0", 0.5)), name="1")
    second = group(episode(*asked(SHORT), turn("solver_0", 0.5)), name="2")
    rest = group(episode(*asked(OTHER), turn("proposer_0", 3.0, action=SHORT, trainable=False)))
    shapers: dict[str, Any] = {
        "repetition": Repetition(role="proposer"),
        "overlong": Overlong(limit=10, buffer=4),
    }
    kept, played = Shaping(shapers).apply([first], [first, second, rest])
    rewards = [[t.reward for e in each.episodes for t in e.turns] for each in played]
    assert rewards == [
        pytest.approx([1 - 2 / 3, 0.5]),
        pytest.approx([1 - 2 / 3, 0.5]),
        pytest.approx([1 - 1 / 3, 3.0]),
    ]
    assert kept[0].episodes[0].turns[0] is played[0].episodes[0].turns[0]
    assert kept[0].episodes[0].turns[0].info["unshaped_reward"] == 1.0


def test_a_shared_turn_with_different_rewards_counts_once() -> None:
    (proposal,), (other,) = asked(SHORT), asked(OTHER)
    branches = [
        episode(replace(proposal, reward=paid), turn("solver_0", 0.5, stage=1))
        for paid in (0.2, 1.0)
    ]
    parent = episode(proposal, turn("solver_0", 0.5, stage=1))
    tree = group(parent, *(replace(e, branch_of=0, shared_turns=1) for e in branches), name="1")
    alone = group(episode(other), name="2")
    (played,) = Shaping({"repetition": Repetition(role="proposer")}).apply([tree, alone])
    found = [each.turns[0].reward for each in played[0].episodes]
    assert found == pytest.approx([0.5, 0.0, 0.5])  # a cluster has one of two turns
    assert played[1].episodes[0].turns[0].reward == pytest.approx(0.5)


def test_any_text_may_be_compared() -> None:
    turns = asked("", " ", "\x00", "x" * 100_000, "\N{SNOWMAN} " * 50)
    assert len(shaped(turns)) == 5


def test_wrong_settings_and_missing_packages_are_one_line_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match="distance lies in"):
        Repetition(role="proposer", distance=2.0)
    monkeypatch.setattr("selfplay.errors.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"selfplay\[repetition\]"):
        Repetition(role="proposer")
    assert importlib.util.find_spec("scipy")


def test_turns_that_call_tools_do_not_dilute_the_penalty() -> None:
    calls = [turn("proposer_0", 1.0, action=None, final=False, tool_calls=(SEARCH,))] * 6
    assert shaped([*calls, *asked(SHORT, SHORT)], floor=None) == [1.0] * 6 + [0.0, 0.0]
