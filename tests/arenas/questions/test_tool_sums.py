"""Tests of sums with a calculator: tasks, demonstrations, and their prompts."""

from itertools import islice
from random import Random

import pytest

from arenas.questions.arena import Questions
from arenas.questions.arithmetic import evaluate
from arenas.questions.tool_sums import EASY, ToolSumDemonstrations, both, tool_sums
from roles.debater import Debater
from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_tokenizer
from selfplay.models.warmstart import WarmStart
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.tools import Toolbox
from selfplay.tools.calculator import Calculator
from selfplay.types import Demonstration, Observation

DEMONSTRATIONS = ToolSumDemonstrations(calls=0.5, right_easy=0.9, right_hard=0.1)
ROLE = Debater(
    game="generator",
    style="terse",
    tools=Toolbox(tools={"calculator": Calculator()}, format="tags", describe=False),
)


def test_tasks_have_their_answers_and_kinds() -> None:
    tasks = both(count=10)
    assert [task.type for task in tasks] == ["easy"] * 6 + ["hard"] * 4
    for task in tasks:
        assert str(evaluate(task.payload["question"])) == task.payload["answer"]
    asked = {task.payload["question"] for task in tool_sums(count=200, kind="hard")}
    kept = {t.payload["question"] for t in tool_sums(count=200, kind="hard", split="held_out")}
    assert not asked & kept and len(asked) > 190
    known = {task.payload["question"] for task in tool_sums(count=500, kind="easy")}
    assert known == set(EASY) and len(EASY) == 25
    with pytest.raises(ValueError, match="multiple of 5"):
        both(count=9)
    with pytest.raises(ValueError, match="kind is one of"):
        tool_sums(count=1, kind="odd")


def test_answers_after_a_call_are_right_and_direct_hard_ones_mostly_wrong() -> None:
    after: list[bool] = []
    direct: dict[bool, list[bool]] = {True: [], False: []}
    hard_split = {
        t.payload["question"] for t in tool_sums(count=5000, kind="hard", split="held_out")
    }
    for shown in islice(DEMONSTRATIONS.stream(Random(0), 0.0), 1200):
        question = str(shown.observation.fields["question"])
        assert question not in hard_split
        if shown.completion.startswith("<calculator>"):
            assert shown.completion == f"<calculator>{question}</calculator>"
            continue
        right = shown.completion == f"<answer>{evaluate(question)}</answer>"
        if shown.called:
            assert shown.called[0][1] == str(evaluate(question))
            after.append(right)
        else:
            direct[question in EASY].append(right)
    assert all(after) and len(after) > 200
    assert 0.8 < sum(direct[True]) / len(direct[True]) < 1
    assert 0 < sum(direct[False]) / len(direct[False]) < 0.25


@pytest.mark.parametrize(("progress", "fraction"), [(0.0, 0.6), (0.69, 0.6), (0.7, 0.1)])
def test_calls_are_practised_first_and_rare_in_the_end(progress: float, fraction: float) -> None:
    shown = ToolSumDemonstrations(calls=0.1, practice=0.6, practice_until=0.7, after=0.25)
    made = list(islice(shown.stream(Random(0), progress), 4000))
    first = [each for each in made if not each.called]
    calls = sum(each.completion.startswith("<calculator>") for each in first) / len(first)
    assert calls == pytest.approx(fraction, abs=0.04)  # 4 standard errors of 3000 samples
    assert len(first) / len(made) == pytest.approx(0.75, abs=0.03)


def test_settings_of_demonstrations_are_fractions() -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        ToolSumDemonstrations(right_easy=1.5)


def test_a_demonstrated_prompt_equals_that_of_a_rollout() -> None:
    tokenizer = build_tokenizer(DEMONSTRATIONS.pieces())
    renderer = ChatRenderer(tokenizer)
    warm = WarmStart(demonstrations=DEMONSTRATIONS, roles={"solver": ROLE})
    (task,) = tool_sums(count=1, kind="hard")
    question, value = str(task.payload["question"]), str(task.payload["answer"])
    said = f"<calculator>{question}</calculator>"

    class Speaking(ScriptedEngine):
        def step(self) -> list:
            return [
                type(each)(
                    id=each.id,
                    completion_ids=(
                        *renderer.completion_ids(each.text or ""),
                        renderer.end_ids[0],
                    ),
                    logprobs=(0.0,) * (len(renderer.completion_ids(each.text or "")) + 1),
                    stop_reason=each.stop_reason,
                )
                for each in super().step()
            ]

    def script(agent: str, observation: Observation, rng: Random) -> str:
        results = observation.fields.get("tool_results")
        return f"<answer>{results[0]}</answer>" if results else said

    agent_spec = AgentSpec(role=ROLE, policy="p", renderer=renderer)
    rollout = Rollout(
        arena=lambda: Questions(proposers=0, solvers=1, label="verifier"),
        agent_specs={"solver": agent_spec},
        engines={"p": Speaking({"p": script})},
    )
    (episode,) = rollout.run([EpisodeSpec(task=task, seed=0)])
    call, answer = episode.turns
    assert answer.reward == 1.0
    seen = Observation(text=question, fields={"question": question})
    for turn, called in ((call, ()), (answer, ((said, value),))):
        shown = Demonstration(role="solver", observation=seen, completion=turn.text, called=called)
        assert warm.encode(shown, renderer) == (turn.prompt_ids, list(turn.completion_ids))
