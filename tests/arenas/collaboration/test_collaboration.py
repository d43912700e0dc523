"""Tests of a helper and a main agent with scripted programs and the real executor."""

import pickle
from collections.abc import Iterator
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.collaboration.arena import HELPER, MAIN, Collaboration, env, raw_env
from roles.coder import Coder
from selfplay.sandbox import Executor
from selfplay.types import InvalidAction, Task

AUX = "def aux(xs):\n    return sum(xs)"
GOOD = "def f(xs):\n    return aux(xs) + 0"
HALF = "def f(xs):\n    return aux(xs) if xs[0] < 2 else 0"
TASK = Task(
    id="t",
    payload={
        "text": "the sum",
        "entry": "f",
        "tests": [[str([n, 1]), str(n + 1)] for n in range(4)],
    },
)


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(workers=1, wall_seconds=20.0) as running:
        yield running


def begun(executor: Executor, **settings: Any) -> Collaboration:
    arena = raw_env(executor=executor, **settings)
    arena.begin(TASK, seed=0)
    return arena


def write(arena: Collaboration, helper: str | None, main: str | None) -> dict[str, float]:
    return arena.play_stage({HELPER: helper, MAIN: main})


def test_pettingzoo_conformance(executor: Executor) -> None:
    api_test(raw_env(executor=executor, turns=2), num_cycles=20)
    api_test(env(executor=executor), num_cycles=20)
    seed_test(lambda: raw_env(executor=executor), num_cycles=5)
    made: Any = pettingzoo.make("aec", "selfplay/collaboration_v0", executor=executor)
    made.reset(seed=1)
    assert made.agents == ["helper_0", "main_0"]


def test_both_are_paid_the_same(executor: Executor) -> None:
    arena = begun(executor)
    assert write(arena, AUX, HALF) == {HELPER: 3.5, MAIN: 3.5}  # 2 of 4 tests
    assert arena.finished and arena.metrics["team_return"] == 3.5 / 4
    assert arena.metrics["passed"] == 0.5 and arena.metrics["solved"] == 0.0
    assert arena.notes == {HELPER: {"verdict": "wrong"}, MAIN: {"verdict": "wrong"}}


def test_a_right_program_is_paid_best_at_once(executor: Executor) -> None:
    """A right program ends the episode; without a shift, a later success would be paid more."""
    at_once = begun(executor, turns=2)
    write(at_once, AUX, GOOD)
    later = begun(executor, turns=2)
    write(later, AUX, HALF)
    write(later, AUX, GOOD)
    never = begun(executor, turns=2)
    for _ in range(2):
        write(never, AUX, HALF)
    paid = [arena.paid[MAIN] for arena in (at_once, later, never)]
    assert paid == [0.0, -0.5, -1.0]
    assert begun(executor).shift == 0.0
    assert begun(executor, turns=2, shift=0.0).shift == 0.0


def test_every_turn_is_paid_for_its_own_program(executor: Executor) -> None:
    arena = begun(executor, turns=3, shown_tests=3, shift=-4.0)
    assert write(arena, AUX, HALF) == {HELPER: -0.5, MAIN: -0.5}
    fields = arena.view(HELPER).fields
    assert fields["turn"] == 2 and fields["helper"] == AUX and fields["main"] == HALF
    assert [item["outcome"] for item in fields["feedback"]] == ["passed", "passed", "wrong"]
    assert fields["feedback"][2] == {"call": "f([2, 1])", "expected": "3", "outcome": "wrong"}
    assert write(arena, AUX, GOOD) == {HELPER: 0.0, MAIN: 0.0}
    assert arena.finished, "a perfect program ends the episode"
    assert arena.metrics["turns"] == 2 and arena.metrics["first_return"] == 3.5 / 4
    assert arena.metrics["team_return"] == arena.metrics["solved"] == 1.0


def test_missing_code_has_a_verdict_and_costs_its_agent(executor: Executor) -> None:
    arena = begun(executor, turns=2, shift=0.0, malformed=-1.0)
    assert write(arena, None, "def f(xs):\n    return sum(xs)") == {HELPER: 1.1, MAIN: 2.1}
    assert arena.notes[HELPER]["verdict"] == "malformed"
    assert arena.notes[MAIN]["verdict"] == "passed"
    assert write(arena, AUX, " \n") == pytest.approx({HELPER: 0.4, MAIN: -0.6})
    assert arena.notes == {HELPER: {"verdict": "no_program"}, MAIN: {"verdict": "malformed"}}
    feedback = arena.view(HELPER).fields["feedback"]
    assert [item["outcome"] for item in feedback] == ["no program"] * 3


def test_neither_sees_what_the_other_writes_in_the_same_turn(executor: Executor) -> None:
    arena = begun(executor)
    before = arena.view(MAIN)
    arena.step(AUX)
    assert arena.view(MAIN) == before and "aux(xs)" not in str(before)


def test_forks_pickles_and_replays(executor: Executor) -> None:
    arena = begun(executor, turns=2)
    write(arena, AUX, HALF)
    twin, loaded = arena.fork(), pickle.loads(pickle.dumps(arena))
    assert isinstance(twin, Collaboration) and twin.executor is executor
    assert loaded.executor is None
    loaded.executor = executor
    for each in (arena, twin, loaded):
        write(each, AUX, GOOD)
    assert arena.paid == twin.paid == loaded.paid == {HELPER: -0.5, MAIN: -0.5}
    arena.replay(list(arena.history))
    assert arena.paid == twin.paid and arena.metrics == twin.metrics


def test_hostile_text_raises_nothing(executor: Executor) -> None:
    noise = "".join(map(chr, Random(0).choices(range(0x110000), k=1_000_000)))
    for helper, main in ((noise, noise), ("(" * 500_000, "\x00"), (AUX, "def f(): " + "[" * 9000)):
        arena = begun(executor)
        assert write(arena, helper, main)[MAIN] in (0.0, 0.4)
        assert arena.finished
    # The executor contains a hostile program that runs.
    arena = begun(executor)
    write(arena, AUX, "def f(xs):\n    import os\n    os._exit(0)\n    return aux(xs)")
    assert arena.metrics["passed"] == 0.0 and arena.paid[MAIN] == 1.5


@pytest.mark.parametrize("style", ["full", "terse"])
def test_the_role_shows_the_problem_and_then_the_feedback(executor: Executor, style: str) -> None:
    arena, role = begun(executor, turns=2), Coder(style=style)
    prompts = [str(role.prompt(arena.view(agent))[0]["content"]) for agent in (HELPER, MAIN)]
    assert prompts[0] != prompts[1] and all("the sum" in prompt for prompt in prompts)
    assert not any("[3, 1]" in prompt for prompt in prompts)
    write(arena, role.parse(f"```python\n{AUX}\n```"), role.parse(HALF))
    prompt = str(role.prompt(arena.view(MAIN))[0]["content"])
    assert AUX in prompt and HALF in prompt and "f([2, 1])" in prompt and "wrong" in prompt
    assert "[3, 1]" not in prompt, "only the first three tests are shown"


def test_code_is_read_from_the_only_fence_or_bare() -> None:
    assert Coder().parse(f"So:\n```python\n{AUX}\n```\nDone.") == AUX
    assert Coder().parse(f"\n{AUX}\n") == AUX
    fence = "```python\nx\n```"
    for text, reason in (
        (fence + "\n" + fence, "several_answers"),
        ("```python\nx", "bad_form"),
        (" \n", "no_code"),
        ("```python\n\n```", "no_code"),
    ):
        with pytest.raises(InvalidAction, match=reason):
            Coder().parse(text)


def test_a_task_without_tests_and_wrong_settings_are_refused(executor: Executor) -> None:
    with pytest.raises(ValueError, match="a problem without tests"):
        begun(executor).begin(Task(id="t", payload={**TASK.payload, "tests": []}), 0)
    with pytest.raises(ValueError, match="turns is at least 1"):
        begun(executor, turns=0)
