"""Tests of debate with scripted debaters and judges."""

import json
import pickle
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.debate.arena import JUDGE, Debate, env, raw_env
from arenas.debate.rewards import Incentives
from roles.debater import Debater
from roles.judge import Judge
from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ByteRenderer
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.types import InvalidAction, Observation, Task

TASK = Task(id="t", payload={"question": "2 + 3", "answer": "5"})


def begun(**settings: Any) -> Debate:
    arena = raw_env(**settings)
    arena.begin(TASK, seed=0)
    return arena


def move(answer: str | None, argument: str = "") -> str | None:
    return None if answer is None else json.dumps({"answer": answer, "argument": argument})


def say(arena: Debate, *answers: str | None) -> None:
    arena.play_stage(dict(zip(arena.stage, map(move, answers), strict=True)))


def paid(arena: Debate) -> list[float]:
    return [arena.paid[agent] for agent in arena.debaters]


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=40)
    api_test(env(debaters=2, aggregate="judge"), num_cycles=40)
    seed_test(raw_env, num_cycles=10)
    made: Any = pettingzoo.make("aec", "selfplay/debate_v0", debaters=2)
    made.reset(seed=1)
    assert made.agents == ["debater_0", "debater_1"]


def test_a_reward_is_a_discounted_mean_of_the_rounds_from_an_answer_on() -> None:
    arena = begun(debaters=2, rounds=3, discount=0.5, stop_on_consensus=False)
    for answers in (("5", "4"), ("5", "5"), ("4", "5")):
        say(arena, *answers)
    # The means of the rounds are 0.5, 1 and 0.5. The weights 1, 0.5 and 0.25 have the sum 1.75.
    # debater_0 earns (1 + 0.5 + 0.125) / 1.75, (1 + 0.25) / 1.5 and 0.
    first = 1.625 / 1.75 + 1.25 / 1.5
    second = 0.625 / 1.75 + 1.25 / 1.5 + 1.0
    assert paid(arena) == pytest.approx([first, second])
    assert arena.finished and arena.metrics == {
        "consensus": 0.0,
        "accuracy": 0.0,  # a tie: the answer of debater_0
        "rounds": 3.0,
        "first_accuracy": 0.5,
        "last_accuracy": 0.5,
        "first_majority": 1.0,
        "last_majority": 0.0,
        "corrections": 0.25,
        "wrong_persuasions": 0.0,  # no debater had said 4 in the second round
        "conformity": 0.25,
    }


def test_records_have_the_reward_of_every_answer_on_its_own_turn() -> None:
    script = iter(["5", "4", "5", "5"])

    def words(agent: str, seen: Observation, rng: Random) -> str:
        return f"so <answer>{next(script)}</answer>"

    agent_spec = AgentSpec(role=Debater(), policy="p", renderer=ByteRenderer())
    rollout = Rollout(
        arena=lambda: raw_env(debaters=2, rounds=2),
        agent_specs={"debater": agent_spec},
        engines={"p": ScriptedEngine({"p": words})},
    )
    (episode,) = rollout.run([EpisodeSpec(task=TASK, seed=0)])
    assert not episode.error
    rewards = [(turn.agent, round(turn.reward, 12)) for turn in episode.turns]
    # The second round is worth 1 to both; before it, (1 + 0.3) / 1.3 and (0 + 0.3) / 1.3.
    assert rewards == [
        ("debater_0", 1.0),
        ("debater_1", round(0.3 / 1.3, 12)),
        ("debater_0", 1.0),
        ("debater_1", 1.0),
    ]
    assert [turn.info["verdict"] for turn in episode.turns] == ["correct", "wrong"] + [
        "correct"
    ] * 2
    branch = EpisodeSpec(task=TASK, seed=0, member=1, prefix_turns=episode.turns[:2], branch_of=0)
    script = iter(["4", "4"])
    (other,) = rollout.run([branch])
    assert [round(turn.reward, 12) for turn in other.turns] == [round(1 / 1.3, 12), 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"horizon": "current"}, [1 + 0, 0 + 1]),
        ({"horizon": "last"}, [0.5 + 0.5, 0.5 + 0.5]),
        ({"horizon": "last", "whose": "own"}, [0 + 0, 1 + 1]),
        ({"whose": "own", "discount": 1.0}, [0.5 + 0, 0.5 + 1]),
        ({"whose": "all", "discount": 1.0}, [0.75 + 0, 0.25 + 1]),
        ({"whose": "all", "discount": 0.0}, [1 + 0, 0 + 1]),
    ],
)
def test_settings_choose_the_reward_of_an_answer(
    settings: dict[str, Any], expected: list[float]
) -> None:
    arena = begun(debaters=2, rounds=2, **settings)
    say(arena, "5", "4")
    say(arena, "7", "5")
    assert paid(arena) == pytest.approx(expected)


def test_incentives_are_part_of_the_pay() -> None:
    incentives = Incentives(corrected_by_others=0.25, helped_by_being_right=0.5)
    arena = begun(debaters=2, rounds=2, horizon="current", incentives=incentives)
    say(arena, "5", "4")
    say(arena, "5", "5")
    assert paid(arena) == [1 + 0.5 + 1, 0 + 1 + 0.25]


def test_agreement_ends_the_debate_early_unless_disabled() -> None:
    arena = begun(debaters=3, rounds=4)
    say(arena, "5", "5.0", "4")
    assert not arena.finished
    say(arena, " 5", "5.", "+5")
    assert arena.finished and arena.metrics["consensus"] == 1 and arena.metrics["rounds"] == 2
    arena = begun(debaters=2, rounds=2, stop_on_consensus=False)
    say(arena, "4", "4")
    assert not arena.finished
    arena = begun(debaters=2, rounds=2)
    say(arena, None, None)
    assert not arena.finished, "silence is no agreement"
    arena = begun(debaters=2, rounds=2)
    say(arena, "-5", "5")
    assert not arena.finished, "a sign is not punctuation"


def test_the_majority_decides_and_silence_has_no_vote() -> None:
    arena = begun(debaters=5, rounds=1)
    say(arena, None, "4", "5", "five", "5.0")
    assert arena.metrics["accuracy"] == arena.metrics["last_majority"] == 1.0
    assert arena.metrics["last_accuracy"] == 0.4 and "corrections" not in arena.metrics
    assert paid(arena) == [-1.0, 0.0, 1.0, 0.0, 1.0]
    arena = begun(debaters=2, rounds=1, malformed=-0.5)
    say(arena, None, None)
    assert arena.metrics["accuracy"] == 0.0 and paid(arena) == [-0.5, -0.5]


def test_the_first_of_equal_answers_is_scored() -> None:
    arena = begun(debaters=2, rounds=1, verifier=lambda answer, payload: float(answer == "5"))
    say(arena, "5", "5.0")
    assert arena.metrics["accuracy"] == 1.0


def test_the_metrics_of_changed_answers() -> None:
    arena = begun(debaters=4, rounds=2, stop_on_consensus=False)
    say(arena, "5", "5", "4", None)
    say(arena, "4", "6", "5", "5")
    # debater_0 is persuaded to the wrong 4, debater_1 changes to a wrong answer of its own,
    # debater_2 is corrected by others, and debater_3 follows others after it gave no answer.
    moved = {
        name: arena.metrics[name] for name in ("corrections", "wrong_persuasions", "conformity")
    }
    assert moved == {"corrections": 0.5, "wrong_persuasions": 0.25, "conformity": 0.75}


def test_a_debater_sees_the_last_round_of_the_others() -> None:
    arena = begun(debaters=3, rounds=3, argument_length=5)
    assert arena.view("debater_1").fields["others"] == []
    say_all = {"debater_0": move("5", "because"), "debater_1": move("4"), "debater_2": None}
    arena.play_stage(say_all)
    fields = arena.view("debater_1").fields
    assert fields["own"] == {"answer": "4", "argument": ""}
    assert fields["others"] == [{"answer": "5", "argument": "becau"}] and fields["round"] == 2
    assert arena.view("debater_2").fields["own"] is None
    assert arena.view("debater_1").text == "2 + 3 | 4 | 5"


def test_a_judge_waits_and_then_sees_the_answers_of_all_debaters() -> None:
    arena = begun(debaters=3, rounds=1, aggregate="judge")
    assert arena.view(JUDGE) == Observation(text="wait")
    say(arena, "5", None, "4")
    seen = arena.view(JUDGE).fields
    assert seen["own"] is None and [each["answer"] for each in seen["others"]] == ["5", "4"]


def test_a_debater_sees_its_own_answer_apart_from_the_others() -> None:
    arena = begun(debaters=3, rounds=2)
    assert not arena.view("debater_1").fields["others"]
    say(arena, "5", "4", None)
    seen = arena.view("debater_1").fields
    assert seen["own"]["answer"] == "4" and [each["answer"] for each in seen["others"]] == ["5"]
    assert arena.view("debater_2").fields["own"] is None


def test_a_judge_is_paid_for_a_right_verdict() -> None:
    for verdict, reward in (("5", 1.0), ("4", 0.0)):
        arena = begun(debaters=3, rounds=1, aggregate="judge")
        say(arena, "4", "4", "5")
        assert arena.stage == (JUDGE,) and len(arena.view(JUDGE).fields["others"]) == 3
        arena.play_stage({JUDGE: verdict})
        assert arena.finished and arena.paid[JUDGE] == reward
        assert arena.metrics["accuracy"] == reward and arena.metrics["verdict"] == 1.0
        assert arena.metrics["last_majority"] == 0.0


def test_a_verdict_may_be_as_long_as_an_answer() -> None:
    arena = begun(debaters=2, rounds=1, aggregate="judge", answer_length=1)
    say(arena, "5", "4")
    arena.play_stage({JUDGE: "5"})
    assert arena.metrics["verdict"] == 1.0 and arena.paid[JUDGE] == 1.0


@pytest.mark.parametrize("verdict", [None, "", "   ", "x" * 101])
@pytest.mark.parametrize(("rule", "accuracy"), [("majority", 1.0), ("wrong", 0.0)])
def test_a_judge_without_a_verdict(verdict: str | None, rule: Any, accuracy: float) -> None:
    arena = begun(debaters=3, rounds=1, aggregate="judge", no_verdict=rule)
    say(arena, "5", "5", "4")
    arena.play_stage({JUDGE: verdict})
    assert arena.notes[JUDGE] == {"verdict": "none"} and arena.paid[JUDGE] == -1.0
    assert arena.metrics["accuracy"] == accuracy and arena.metrics["verdict"] == 0.0


def test_a_custom_verifier() -> None:
    class Near:
        def __call__(self, answer: str, payload: Any) -> float:
            return 1.0 / (1.0 + abs(int(answer) - int(payload["answer"])))

    arena = begun(debaters=2, rounds=1, verifier=Near())
    say(arena, "6", "8")
    assert paid(arena) == [0.5, 0.25]


def test_forks_pickles_and_replays() -> None:
    arena = begun(debaters=2, rounds=2, aggregate="judge")
    say(arena, "5", None)
    twin, loaded = arena.fork(), pickle.loads(pickle.dumps(arena))
    assert isinstance(twin, Debate) and twin.verifier is arena.verifier
    assert loaded.verifier is None
    loaded.verifier = arena.verifier
    for each in (arena, twin, loaded):
        say(each, "4", "5")
        each.play_stage({JUDGE: "5"})
    assert arena.paid == twin.paid == loaded.paid and arena.metrics == loaded.metrics
    before, metrics = dict(arena.paid), dict(arena.metrics)
    arena.replay(list(arena.history))
    assert arena.paid == before and arena.metrics == metrics
    single = begun(debaters=2, rounds=2, aggregate="judge")
    for moves in arena.history:
        for agent, action in moves.items():
            assert single.agent_selection == agent
            single.step(action)
    assert single.paid == before


def test_hostile_text_raises_nothing() -> None:
    noise = "".join(map(chr, Random(0).choices(range(0x110000), k=1_000_000)))
    arena = begun(debaters=5, rounds=2, aggregate="judge", answer_length=1_000_000)
    actions: list[str | None] = [
        noise,
        json.dumps({"answer": noise[:30_000], "argument": noise[:30_000]}),
        "[" * 500_000,
        json.dumps({"answer": "1e999999999", "argument": 7}),
        json.dumps({"answer": "9" * 200_000 + "\ud800"}),
    ]
    arena.play_stage(dict(zip(arena.debaters, actions, strict=True)))
    verdicts = [arena.notes[agent]["verdict"] for agent in arena.debaters]
    assert verdicts == ["malformed", "wrong", "malformed", "malformed", "wrong"]
    json.dumps(arena.view("debater_0").fields, ensure_ascii=False).encode()
    arena.play_stage(dict(zip(arena.debaters, actions[::-1], strict=True)))
    arena.play_stage({JUDGE: noise})
    assert arena.finished and arena.metrics["accuracy"] == 0.0


def test_wrong_settings_are_refused() -> None:
    for wrong in (
        {"aggregate": "vote"},
        {"horizon": "next"},
        {"whose": "mine"},
        {"no_verdict": "coin"},
        {"rounds": 0},
        {"discount": 1.5},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            raw_env(**wrong)


@pytest.mark.parametrize("style", ["full", "terse"])
def test_the_roles_show_the_earlier_answers(style: str) -> None:
    arena, role, judge = begun(debaters=2, rounds=2), Debater(style=style), Judge(style=style)
    (message,) = role.prompt(arena.view("debater_0"))
    assert "2 + 3" in message["content"]
    words = "MY ARGUMENT\n<answer> 41 </answer>"
    arena.play_stage(
        {"debater_0": role.parse(words), "debater_1": role.parse("<answer>17</answer>")}
    )
    (message,) = role.prompt(arena.view("debater_1"))
    assert "17" in message["content"] and "41" in message["content"]
    assert "MY ARGUMENT" in message["content"], "the prompt shows the arguments"
    judged = begun(debaters=2, rounds=1, aggregate="judge")
    judged.play_stage(
        {"debater_0": role.parse(words), "debater_1": role.parse("<answer>17</answer>")}
    )
    (message,) = judge.prompt(judged.view(JUDGE))
    assert all(word in message["content"] for word in ("2 + 3", "41", "17", "MY ARGUMENT"))


def test_the_roles_refuse_unreadable_texts() -> None:
    for text in ("5", "<answer>5", "<answer></answer>", "<answer>4</answer> <answer>5</answer>"):
        with pytest.raises(InvalidAction):
            Debater().parse(text)
    assert Judge().parse("<think>so</think><answer> 5 </answer>") == "5"
    with pytest.raises(InvalidAction, match="no_verdict"):
        Judge().parse("<think>so</think><answer> </answer>")
