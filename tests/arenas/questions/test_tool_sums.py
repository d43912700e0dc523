"""Sums with a calculator: tasks, demonstrations, and prompts that are those of a rollout."""

from itertools import islice
from random import Random

import pytest

from arenas.questions.arena import Questions
from arenas.questions.arithmetic import evaluate
from arenas.questions.tool_sums import ToolSumDemonstrations, both, tool_sums
from roles.debater import Debater
from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_tokenizer
from selfplay.models.warmstart import WarmStart
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.tools import Toolbox
from selfplay.tools.calculator import Calculator
from selfplay.types import Demonstration, Observation

DEMONSTRATIONS = ToolSumDemonstrations(calls=0.67, right=0.1)
ROLE = Debater(
    game="generator",
    style="terse",
    tools=Toolbox(tools={"calculator": Calculator()}, format="tags", describe=False),
)


def test_tasks_have_their_answers_and_kinds() -> None:
    tasks = both(count=10)
    assert [task.type for task in tasks] == ["easy", "hard"] * 10
    for task in tasks:
        assert str(evaluate(task.payload["question"])) == task.payload["answer"]
    asked = {task.payload["question"] for task in tool_sums(count=50, kind="hard")}
    kept = {task.payload["question"] for task in tool_sums(count=50, kind="hard", split="held_out")}
    assert not asked & kept
    with pytest.raises(ValueError, match="kind is one of"):
        tool_sums(count=1, kind="odd")


def test_answers_after_a_call_are_right_and_direct_hard_ones_mostly_wrong() -> None:
    after, direct = [], []
    for shown in islice(DEMONSTRATIONS.stream(Random(0), 0.0), 600):
        if shown.completion.startswith("<calculator>"):
            continue
        question = str(shown.observation.fields["question"])
        right = shown.completion == f"<answer>{evaluate(question)}</answer>"
        if shown.called:
            after.append(right)
        elif len(question.split()) == 5:
            direct.append(right)
        else:
            assert right
    assert all(after) and len(after) > 100
    assert len(direct) > 50 and sum(direct) / len(direct) < 0.25


def test_a_demonstrated_prompt_is_that_of_a_rollout() -> None:
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

    seat = AgentSpec(role=ROLE, policy="p", renderer=renderer)
    rollout = Rollout(
        arena=lambda: Questions(proposers=0, solvers=1, label="verifier"),
        seats={"solver": seat},
        engines={"p": Speaking({"p": script})},
    )
    (episode,) = rollout.run([EpisodeSpec(task=task, seed=0)])
    call, answer = episode.turns
    assert answer.reward == 1.0
    seen = Observation(text=question, fields={"question": question})
    for turn, called in ((call, ()), (answer, ((said, value),))):
        shown = Demonstration(role="solver", observation=seen, completion=turn.text, called=called)
        assert warm.encode(shown, renderer) == (turn.prompt_ids, list(turn.completion_ids))
