"""Tests of majority pairs: the votes, the majority, and the traces that make a pair."""

from typing import Any

import pytest

from selfplay.credit.by_role import ByRole
from selfplay.credit.majority_pairs import MajorityPairs
from selfplay.types import Action, Episode, Group, Sample, Status, Task
from tests.helpers.builders import episode, group, turn


class Answers:
    """An arena whose actions are answers; "?" is an empty answer."""

    def canonical_answer(self, task: Task, agent: str, action: Action | None) -> str | None:
        return {None: None, "?": ""}.get(action, str(action).lower())


def debate(*answers: str, **fields: Any) -> Episode:
    """Return one round of a debate in which each debater gives one answer."""
    turns = [turn(f"debater_{i}", action=answer) for i, answer in enumerate(answers)]
    return episode(*turns, **fields)


def found(samples: list[Sample]) -> list[tuple[int, str, str, float]]:
    """Return (episode, agent, action, advantage) of each sample."""
    return [(s.episode, s.turn.agent, str(s.turn.action), float(str(s.advantage))) for s in samples]


def assigned(*episodes: Episode, **settings: Any) -> list[Sample]:
    return MajorityPairs(arena=Answers, **settings).assign([group(*episodes)])


def test_a_trace_of_the_majority_and_one_of_the_minority_make_a_pair() -> None:
    samples = assigned(debate("7", "8", "7"))
    assert found(samples) == [(0, "debater_0", "7", 1.0), (0, "debater_1", "8", -1.0)]
    assert samples[0].pair == samples[1].pair != ""


def test_a_trace_is_all_turns_of_its_agent_and_votes_for_the_last() -> None:
    first = [turn(f"debater_{i}", action=a) for i, a in enumerate("899")]
    last = [turn(f"debater_{i}", action=a) for i, a in enumerate("98?")]
    third = turn("debater_3", action="9")
    samples = assigned(episode(*first, *last, third))
    # The votes are 9, 8, none and 9. The first answer of debater_0 is part of its trace.
    assert found(samples) == [
        (0, "debater_0", "8", 1.0),
        (0, "debater_0", "9", 1.0),
        (0, "debater_1", "9", -1.0),
        (0, "debater_1", "8", -1.0),
    ]
    assert len({sample.pair for sample in samples}) == 1


def test_an_agent_that_was_cut_off_after_a_tool_call_votes_for_its_last_move() -> None:
    call = turn("debater_0", action=None, final=False)
    samples = assigned(episode(*debate(*"998").turns, call))
    assert [agent for _, agent, _, _ in found(samples)] == ["debater_0", "debater_0", "debater_2"]


def test_an_untrained_turn_is_no_part_of_its_trace() -> None:
    left_out = turn("debater_0", action="8", trainable=False)
    samples = assigned(episode(left_out, *debate(*"998").turns))
    assert found(samples) == [(0, "debater_0", "9", 1.0), (0, "debater_2", "8", -1.0)]


def test_answers_that_mean_the_same_vote_together() -> None:
    assert [agent for _, agent, _, _ in found(assigned(debate("a", "b", "A")))] == [
        "debater_0",
        "debater_1",
    ]


@pytest.mark.parametrize("answers", ["78", "777", "7", "", "7788", "?8?", "789"])
def test_a_tie_and_a_consensus_make_no_pair(answers: str) -> None:
    assert not assigned(debate(*answers))


def test_a_majority_exceeds_the_fraction() -> None:
    assert assigned(debate(*"7889"), above=0.4)
    assert not assigned(debate(*"7889"), above=0.5), "2 of 4 do not exceed a half"
    assert assigned(debate(*"788"), above=0.6) and not assigned(debate(*"788"), above=0.7)
    assert not assigned(debate(*"7788"), above=0.4), "a tie, although each exceeds the fraction"


def test_votes_of_an_episode_or_of_the_whole_group() -> None:
    episodes = [debate("7", "8", "8"), debate("7", "7", "7")]
    alone = assigned(*episodes)
    assert {(e, a): v for e, a, _, v in found(alone)} == {
        (0, "debater_1"): 1.0,
        (0, "debater_0"): -1.0,
    }
    together = assigned(*episodes, votes="group")
    assert {(e, a): v for e, a, _, v in found(together)} == {
        (0, "debater_0"): 1.0,
        (1, "debater_0"): 1.0,
        (0, "debater_1"): -1.0,
        (0, "debater_2"): -1.0,
    }
    assert len({sample.pair for sample in together}) == 2


def test_groups_episodes_and_pairs_have_different_names() -> None:
    groups = [
        group(debate(*"77889997"), debate(*"788"), name="1.0.0"),
        group(debate(*"788"), name="1.0.1"),
    ]
    samples = MajorityPairs(arena=Answers, above=0.3).assign(groups)
    names = [sample.pair for sample in samples]
    assert len(names) == 2 * len(set(names))


def test_frozen_agents_vote_and_do_not_learn() -> None:
    seen = episode(
        turn("debater_0", action="7", trainable=False),
        turn("debater_1", action="7"),
        turn("debater_2", action="8"),
        turn("judge_0", action="8"),
        turn("judge_1", action="8"),
    )
    by_role = assigned(seen, roles=["debater"])
    assert [agent for _, agent, _, _ in found(by_role)] == ["debater_1", "debater_2"]
    everyone = assigned(seen)
    assert found(everyone)[0] == (0, "debater_2", "8", 1.0), "8 has three of five votes"


def test_failed_episodes_do_not_vote_and_metrics_report_the_agreement() -> None:
    credit = MajorityPairs(arena=Answers)
    assert credit.metrics() == {"pairs": 0, "agreement": 0.0}
    failed = debate("8", "7", "7", status=Status.FAILED, error="broken")
    assert not credit.assign([group(failed)])
    assert credit.assign([group(debate("7", "8", "7"), debate("7", "7", "7"))])
    assert credit.metrics() == {"pairs": 1, "agreement": pytest.approx((2 / 3 + 1) / 2)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"votes": "all"}, "episode, group, not 'all'"), ({"above": 1.0}, "not 1.0")],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MajorityPairs(arena=Answers, **settings)


def test_a_group_without_episodes_has_no_pair() -> None:
    assert not MajorityPairs(arena=Answers).assign([Group(id="1.0.0", episodes=())])


def test_both_traces_of_a_pair_are_of_one_policy() -> None:
    """Check the policies: the learner of a policy gets the samples of this policy alone."""
    answers = (("debater_0", "a", "7"), ("debater_1", "a", "7"), ("debater_2", "b", "7"))
    others = (("debater_3", "b", "8"), ("debater_4", "a", "8"))
    turns = [turn(name, action=each, policy=policy) for name, policy, each in (*answers, *others)]
    pairs: dict[str, list[str]] = {}
    for sample in assigned(episode(*turns)):
        pairs.setdefault(sample.pair, []).append(f"{sample.turn.policy} {sample.turn.agent}")
    assert list(pairs.values()) == [["a debater_0", "a debater_4"], ["b debater_2", "b debater_3"]]


def test_pairs_of_different_roles_have_different_names() -> None:
    """Check the names with credit=by_role, where each role has its own method."""
    turns = [turn(f"{role}_{i}", action=a) for role in "ab" for i, a in enumerate("778")]
    methods = {role: MajorityPairs(arena=Answers, roles=[role]) for role in "ab"}
    samples = ByRole(methods=methods).assign([group(episode(*turns))])
    assert len({sample.pair for sample in samples}) == 2 and len(samples) == 4
