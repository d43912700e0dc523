"""Tests of repair with advice, and of rejection sampling from a library of good episodes."""

import json
import pickle
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.collaboration.pipeline import Pipeline
from arenas.collaboration.repair import MENTOR, Repair, env, raw_env
from arenas.games.kuhn import Kuhn
from arenas.questions.arena import Questions
from arenas.questions.corpus_questions import CorpusQuestions
from roles.advised import Advised
from roles.debater import Debater
from roles.player import Player
from selfplay.credit.attempts import decisive
from selfplay.credit.rejection_sampling import RejectionSampling
from selfplay.engines.scripted import ScriptedEngine
from selfplay.errors import ConfigError
from selfplay.models.renderer import ByteRenderer
from selfplay.rollout.episode_runner import EpisodeRunner
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.types import Action, Episode, Observation, Status, Task, ToolCall
from tests.helpers.builders import episode, group, turn

TASK = Task(id="t", payload={"question": "2 + 3", "answer": "5"})
NOISE = "".join(map(chr, Random(0).choices(range(0x110000), k=100_000)))
AGENTS = ("generator_0", "verifier_0", "refiner_0")


def begun(**settings: Any) -> Repair:
    arena = raw_env(**settings)
    arena.begin(TASK, seed=0)
    return arena


def play(arena: Repair, *moves: str | None) -> None:
    for move in moves:
        (agent,) = arena.stage
        arena.play_stage({agent: move})


def argued(answer: str) -> str:
    return json.dumps({"answer": answer, "argument": ""})


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=40)
    api_test(env(advised=["refiner_0"]), num_cycles=40)
    seed_test(raw_env, num_cycles=10)
    made: Any = pettingzoo.make("aec", "selfplay/repair_v0")
    made.reset(seed=1)
    assert made.agents == [*AGENTS, MENTOR]


class Called(Pipeline):
    """A pipeline with messages and a tool, whose refiner is left out."""

    def messengers(self) -> Sequence[str]:
        return self.acting()

    def tool_state(self, agent: str, calls: Sequence[ToolCall]) -> Any:
        return agent, len(calls)

    def with_calls(self, agent: str, action: Action, calls: Sequence[ToolCall]) -> Action:
        return f"{action}{len(calls)}"

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        super().advance(actions)
        if "refiner_0" in actions:
            self.leave_out("refiner_0")


def test_an_arena_with_tools_can_be_repaired() -> None:
    arena, call = begun(arena=Called()), ToolCall(name="search")
    assert arena.tool_state("generator_0", [call]) == ("generator_0", 1)
    assert arena.with_calls("generator_0", "a", [call]) == "a1"
    assert arena.with_calls(MENTOR, "a", [call]) == "a"
    with pytest.raises(ConfigError, match="no data for the tools of mentor_0"):
        arena.tool_state(MENTOR, [])
    assert arena.messengers() == ["generator_0"]
    assert arena.canonical_answer(TASK, "generator_0", argued("5.0")) == "=5"
    assert arena.canonical_answer(TASK, MENTOR, "5") == ""
    play(arena, argued("4"), "no")
    assert not arena.left_out
    play(arena, argued("4"))
    assert arena.left_out == {"refiner_0"}


def test_a_success_needs_no_mentor() -> None:
    arena = begun()
    play(arena, argued("4"), "no", argued("5"))
    assert arena.finished and arena.metrics["unaided_accuracy"] == arena.metrics["accuracy"] == 1.0
    assert arena.metrics["repaired"] == 0.0
    assert arena.paid == {**dict.fromkeys(AGENTS, 1.0), MENTOR: 0.0}


def test_one_agent_after_the_other_is_advised_until_success() -> None:
    arena = begun(advised=["generator_0", "refiner_0"])
    play(arena, argued("4"), "yes", argued("4"))
    assert arena.stage == (MENTOR,)
    seen = arena.view(MENTOR)
    assert seen.fields["truth"] == {"question": "2 + 3", "answer": "5"}
    assert seen.fields["advised"] == "generator_0" and "yes" in seen.fields["transcript"]
    play(arena, "count again")
    assert arena.view("generator_0").fields["advice"] == "count again"
    play(arena, argued("6"))
    assert "advice" not in arena.view("verifier_0").fields
    play(arena, "yes", argued("6"), "five")
    # The refiner moves again; the moves before it are kept.
    assert arena.stage == ("refiner_0",)
    fields = arena.view("refiner_0").fields
    assert (fields["answer"], fields["critique"], fields["advice"]) == ("6", "yes", "five")
    play(arena, argued("5"))
    assert arena.finished and arena.metrics["repaired"] == arena.metrics["accuracy"] == 1.0
    assert arena.metrics["unaided_accuracy"] == 0.0
    assert arena.paid == dict.fromkeys([*AGENTS, MENTOR], 1.0)


@pytest.mark.parametrize("advice", [None, "  "])
def test_a_mentor_without_advice_has_the_verdict_none(advice: str | None) -> None:
    arena = begun(advised=["generator_0"])
    play(arena, argued("4"), "yes", argued("4"), advice)
    assert arena.finished and arena.notes[MENTOR]["verdict"] == "none"
    assert arena.metrics["repaired"] == arena.paid[MENTOR] == 0.0


def test_forks_pickles_replays_and_hostile_text() -> None:
    arena = begun()
    play(arena, NOISE, NOISE, "[" * 90_000, NOISE)
    twin, loaded = arena.fork(), pickle.loads(pickle.dumps(arena))
    assert isinstance(loaded, Repair) and loaded.arena is None
    loaded.arena, loaded.inner.verifier = arena.arena, arena.inner.verifier
    for each in (arena, twin, loaded):
        assert isinstance(each, Repair)
        play(each, argued("6"), "x", argued("\ud800"), NOISE, "x", argued("5"))
    assert arena.finished and arena.metrics["repaired"] == 1.0
    assert arena.paid == twin.paid == loaded.paid
    paid = dict(arena.paid)
    arena.replay(list(arena.history))
    assert arena.paid == paid


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="no agent 'solver_0'"):
        raw_env(advised=["solver_0"])
    with pytest.raises(ValueError, match="already has a role named mentor"):
        raw_env(arena=raw_env())
    with pytest.raises(ValueError, match="at least 1"):
        raw_env(arena=Kuhn(), advice_length=0)


@pytest.mark.parametrize("style", ["full", "terse"])
def test_advice_is_shown_below_a_role_s_own_prompt(style: str) -> None:
    plain = Debater(game="generator", style=style)
    role = Advised(role=plain, style=style)
    bare = Observation(fields={"question": "2 + 3"})
    advised = Observation(fields={"question": "2 + 3", "advice": "ADVICE"})
    assert role.prompt(bare) == plain.prompt(bare)
    (message,) = role.prompt(advised)
    assert plain.prompt(bare)[0]["content"] in message["content"]
    assert "ADVICE" in message["content"]
    assert role.parse("<answer>5</answer>") == plain.parse("<answer>5</answer>")
    mentor = Player(game="mentor", style=style)
    arena = begun()
    play(arena, argued("4"), "yes", argued("4"))
    assert "5" in mentor.prompt(arena.view(MENTOR))[0]["content"]


def repaired() -> Episode:
    """Return a scripted episode whose generator is wrong at first and right after the advice."""

    def words(agent: str, seen: Observation, rng: Random) -> str:
        if agent == MENTOR:
            return "advice"
        if agent == "verifier_0":
            return f"critique of {seen.fields['answer']}"
        if agent == "generator_0":
            return f"<answer>{5 if 'advice' in seen.fields else 4}</answer>"
        return f"<answer>{seen.fields['answer']}</answer>"

    def seat(role: Any) -> AgentSpec:
        return AgentSpec(role=role, policy="p", renderer=ByteRenderer())

    seats = {
        "generator": seat(Advised(role=Debater(game="generator"))),
        "verifier": seat(Advised(role=Player(game="critic"))),
        "refiner": seat(Advised(role=Debater(game="refiner"))),
        "mentor": seat(Player(game="mentor")),
    }
    rollout = Rollout(arena=raw_env, agent_specs=seats, engines={"p": ScriptedEngine({"p": words})})
    (found,) = rollout.run([EpisodeSpec(task=TASK, seed=0)])
    return found


def test_an_advised_move_is_learned_with_the_prompt_without_advice() -> None:
    played = repaired()
    assert len(played.turns) == 7 and played.metrics["repaired"] == 1.0
    first, verified, refined = decisive(played)
    failed, *_, again, critique, final = (t for t in played.turns if t.role != "mentor")
    assert first.prompt_ids == failed.prompt_ids != again.prompt_ids
    assert first.completion_ids == again.completion_ids and first.text == "<answer>5</answer>"
    assert (verified.text, verified.prompt_ids) == (critique.text, critique.prompt_ids)
    assert verified.text == "critique of 5" and refined.prompt_ids == final.prompt_ids
    assert all(not t.info and not t.messages for t in (first, verified, refined))


def test_later_stages_of_a_longer_failed_attempt_are_left_out() -> None:
    def move(agent: str, attempt: int, place: int) -> Any:
        info = {"attempt": attempt, "place": place, "advised": attempt > 0 and place == 1}
        return turn(agent, text=f"{attempt}{place}", prompt_ids=(attempt, place), info=info)

    played = episode(
        *(move("a_0", 0, n) for n in range(4)),
        turn("mentor_0"),
        *(move("a_0", 1, n) for n in (1, 2)),
    )
    assert [t.text for t in decisive(played)] == ["00", "11", "12"]
    assert decisive(played)[1].prompt_ids == (0, 1)
    plain = episode(turn("a_0", text="x"), turn("b_0", text="y"))
    assert [t.text for t in decisive(plain)] == ["x", "y"]


def good(name: str, text: str = "", accuracy: float = 1.0, **fields: Any) -> Any:
    made = turn("a_0", text=text or name)
    return group(
        episode(made, task=Task(id=name), metrics={"accuracy": accuracy}, **fields), name=name
    )


def test_the_library_keeps_successful_episodes_and_is_bounded() -> None:
    experience = RejectionSampling(capacity=3, per_task=2, batch=99)
    wrong = good("wrong", accuracy=0.5)
    cut = good("cut", status=Status.TRUNCATED)
    assert experience.assign([wrong, cut, group(episode(turn("a_0")))]) == []
    first = experience.assign([good("x", "x1"), good("y"), good("x", "x2")])
    assert sorted(sample.turn.text for sample in first) == ["x1", "x2", "y"]
    assert all(sample.advantage == 1.0 for sample in first)
    later = experience.assign([good("x", "x3")])
    assert sorted(sample.turn.text for sample in later) == ["x2", "x3", "y"]
    last = experience.assign([good("z")])
    assert sorted(sample.turn.text for sample in last) == ["x2", "x3", "z"]  # y is the oldest
    assert experience.metrics() == {"kept": 3, "added": 1, "tasks": 2}


def test_the_library_survives_json_and_then_draws_identically() -> None:
    experience = RejectionSampling(batch=2)
    experience.assign([good(f"t{n}") for n in range(9)])
    twin = RejectionSampling(batch=2)
    twin.load_state_dict(json.loads(json.dumps(experience.state_dict())))
    for step in range(3):
        new = [good(f"new{step}")]
        assert twin.assign(new) == experience.assign(new) and len(experience.assign([])) == 2
        twin.assign([])
    with pytest.raises(ValueError, match="keeps trajectories"):
        twin.load_state_dict({"averages": []})
    with pytest.raises(ValueError, match="at least 1"):
        RejectionSampling(batch=0)


def test_opponents_turns_are_not_imitated() -> None:
    both = episode(turn("a_0"), turn("b_0", trainable=False), metrics={"accuracy": 1.0})
    assert [s.turn.agent for s in RejectionSampling().assign([group(both)])] == ["a_0"]


def test_notes_of_agents_that_did_not_move_are_kept() -> None:
    proposal = json.dumps({"question": "Who is the mayor of Doreth?", "answer": "Fenika"})
    plain = CorpusQuestions(readers=1, solvers=1)
    task = plain.default_task(Random(0))
    repaired = Repair(arena=plain.fork(), measure="solve_rate", advised=["solver_0"])
    verdicts = []
    for arena in (plain, repaired):
        arena.begin(task, 0)
        arena.play_stage({"proposer_0": proposal})
        arena.play_stage({"reader_0": json.dumps({"answer": "Fenika"})})
        verdicts.append(arena.notes["proposer_0"]["verdict"])
    assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize("above", [0.5, -1.0])
def test_a_branch_does_not_count_what_its_parent_measured_and_made(above: float) -> None:
    inner = Questions(solvers=1)
    agents = {"measure": "solve_rate", "advised": ["solver_0"], "above": above}
    task = Task(id="p", payload={"mode": "propose"})
    prefix = (turn("proposer_0", action="What is 1 + 1?"),)
    found = []
    for arena in (inner, Repair(arena=inner.fork(), **agents)):  # type: ignore[arg-type]
        spec = EpisodeSpec(task=task, seed=0, member=1, prefix_turns=prefix, branch_of=0)
        runner = EpisodeRunner(spec, arena, prefix=prefix)
        runner.advance()
        runner.moves = {"solver_0": turn("solver_0", action='{"answer": "2"}', stage=1)}
        runner.advance()
        while runner.arena.stage:
            agent = runner.arena.stage[0]
            runner.moves = {agent: turn(agent, action='{"answer": "2"}', stage=runner.stage)}
            runner.advance()
        ended = runner.episode(Status.FINISHED)
        assert not ended.error
        found.append((set(ended.metrics), len(ended.created)))
    (plain, made), (repaired, again) = found
    assert "valid_proposal" not in plain | repaired and made == again == 1
    assert plain <= repaired


def test_metrics_of_a_repeated_attempt_are_removed() -> None:
    class Twice(Kuhn):
        """A Kuhn game that measures a bet of the first player; `won` is 1 only without this bet."""

        def advance(self, actions: Mapping[str, Action | None]) -> None:
            super().advance(actions)
            if actions.get("player_0") == "bet":
                self.measure(first_bet=1.0)
            if self.finished:
                self.measure(won=0.0 if "first_bet" in self.metrics else 1.0)

    arena = Repair(arena=Twice(), measure="won", advised=["player_0"], truth=[])
    arena.begin(arena.default_task(Random(0)), 0)
    arena.play_stage({"player_0": "bet"})
    arena.play_stage({"player_1": "pass"})
    assert arena.metrics["first_bet"] == 1.0 and arena.stage == (MENTOR,)
    arena.play_stage({MENTOR: "check"})
    assert "first_bet" not in arena.metrics
    arena.play_stage({"player_0": "pass"})
    while not arena.finished:
        arena.play_stage(dict.fromkeys(arena.stage, "pass"))
    assert "first_bet" not in arena.metrics
    assert arena.metrics["won"] == arena.metrics["repaired"] == 1.0
    assert arena.metrics["unaided_won"] == 0.0
