"""Tests of Absolute Zero with scripted proposers and solvers and the real executor."""

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.absolute_zero.arena import (
    IDENTITY,
    TYPES,
    AbsoluteZero,
    env,
    identity_seeds,
    programs_of,
    raw_env,
    solve_task,
)
from selfplay.curriculum.task_buffer import TaskBuffer
from selfplay.sandbox import Executor
from selfplay.types import Task, to_json

DOUBLE = "def f(a):\n    return a * 2"


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    # The wall time is long because a test machine may be busy; the CPU time stops endless loops.
    with Executor(workers=1, wall_seconds=20.0) as running:
        yield running


def begun(arena: AbsoluteZero, kind: str, **payload: Any) -> AbsoluteZero:
    content = {"mode": "propose", "references": [], "given": None, "known": 0, **payload}
    arena.begin(Task(id=f"{kind}-t", type=kind, payload=content), seed=0)
    return arena


def proposal(*inputs: str, program: str = DOUBLE, **more: str) -> str:
    return json.dumps({"program": program, "inputs": list(inputs), **more})


def propose(arena: AbsoluteZero, action: str | None) -> str:
    arena.play_stage({"proposer_0": action})
    return str(arena.notes["proposer_0"]["verdict"])


def attempt(arena: AbsoluteZero, *answers: str | None) -> list[float]:
    arena.play_stage(dict(zip(arena.solvers, answers, strict=True)))
    return [arena.paid[agent] for agent in arena.solvers]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"proposer_pay": "randm"}, "proposer_pay is one of learnability, random, not 'randm'"),
        ({"solvers": 0}, "solvers: 0 does not fit: at least 1 is needed"),
        ({"pairs": 1}, "pairs: 1 does not fit: at least 2 is needed"),
    ],
)
def test_settings_that_make_no_game_are_refused(
    settings: dict[str, Any], words: str, executor: Executor
) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        AbsoluteZero(executor=executor, **settings)


def test_pettingzoo_conformance(executor: Executor) -> None:
    api_test(raw_env(executor=executor, solvers=2), num_cycles=30)
    api_test(env(executor=executor, solvers=2), num_cycles=30)
    seed_test(lambda: raw_env(executor=executor, solvers=2), num_cycles=10)


@pytest.mark.parametrize("solved", range(9))
@pytest.mark.parametrize("degenerate", [0.0, -0.5])
def test_the_proposer_is_paid_the_fraction_of_failed_solvers(
    executor: Executor, solved: int, degenerate: float
) -> None:
    arena = begun(AbsoluteZero(executor=executor, degenerate_reward=degenerate), "deduction")
    assert propose(arena, proposal("3")) == "valid"
    paid = attempt(arena, *["6"] * solved, *["7"] * (8 - solved))
    assert paid == [1.0] * solved + [-0.5] * (8 - solved)
    expected = degenerate if solved in (0, 8) else 1 - solved / 8
    assert arena.paid["proposer_0"] == pytest.approx(expected)
    assert arena.finished and arena.metrics["solve_rate"] == solved / 8


def test_a_random_reward_does_not_depend_on_the_solve_rate(executor: Executor) -> None:
    paid: dict[int, list[float]] = {}
    for solved in (0, 4, 8):
        for seed in range(20):
            arena = AbsoluteZero(executor=executor, proposer_pay="random")
            content: dict[str, Any] = {
                "mode": "propose",
                "references": [],
                "given": None,
                "known": 0,
            }
            arena.begin(Task(id="deduction-t", type="deduction", payload=content), seed=seed)
            assert propose(arena, proposal("3")) == "valid"
            assert attempt(arena, *["6"] * solved, *["7"] * (8 - solved))[-1] == (
                1.0 if solved == 8 else -0.5
            )
            paid.setdefault(solved, []).append(arena.paid["proposer_0"])
    assert paid[0] == paid[4] == paid[8]
    assert len(set(paid[0])) == 20 and all(0 <= reward < 1 for reward in paid[0])
    assert 0.25 < sum(paid[0]) / 20 < 0.75


def test_the_lines_of_a_proposal_are_counted_without_comments(executor: Executor) -> None:
    arena = begun(AbsoluteZero(executor=executor), "deduction")
    program = "def f(a):\n    # a comment\n    a = a * 2\n\n    return a"
    assert propose(arena, proposal("3", program=program)) == "valid"
    assert arena.metrics["proposed_lines"] == 3


def test_the_label_is_the_output_that_the_executor_computed(executor: Executor) -> None:
    arena = begun(AbsoluteZero(executor=executor, solvers=3), "deduction")
    assert propose(arena, proposal("3", output="9", outputs="[9]")) == "valid"
    assert attempt(arena, "6", "9", None) == [1.0, -0.5, -1.0]


def test_any_preimage_solves_an_abduction(executor: Executor) -> None:
    arena = begun(AbsoluteZero(executor=executor, solvers=5), "abduction")
    assert propose(arena, proposal("3", program="def f(a):\n    return a * a")) == "valid"
    assert attempt(arena, "3", "-3", "-3.0", "4", "__import__('os')") == [1, 1, -0.5, -0.5, -0.5]
    assert arena.notes["solver_4"]["verdict"] == "not_literal"


def test_an_induction_is_judged_on_hidden_pairs(executor: Executor) -> None:
    given = {"program": DOUBLE}
    arena = begun(AbsoluteZero(executor=executor, solvers=3, pairs=4), "induction", given=given)
    hint = json.dumps({"inputs": ["1", "2", "3", "4"], "message": "twice"})
    assert propose(arena, hint) == "valid"
    fields = arena.view("solver_0").fields
    assert fields["shown"] == [("1", "2"), ("2", "4")] and fields["message"] == "twice"
    tabulated = "def f(a):\n    return {1: 2, 2: 4}[a]"
    other = "def f(x):\n    return x + x"
    assert attempt(arena, other, tabulated, "return 1") == [1.0, -0.5, -0.5]
    assert arena.notes["solver_1"]["verdict"] == "raised"
    assert arena.notes["solver_2"]["verdict"] == "no_entry"


ORDER = "def f(a):\n    return list(set(a))[0]"


def test_an_answer_is_tried_under_two_hash_seeds() -> None:
    """Verdicts do not depend on randomness, the cache or the position among other answers."""
    answers = ["'x'", "'xa'", "'xab'", "'xabc'", "'xabcd'", "'xabcdefgh'", "'xyz'", "'zyx'"]
    verdicts = []
    for order in (answers, answers[::-1], answers[3:] + answers[:3]):
        with Executor(workers=1) as fresh:
            arena = begun(AbsoluteZero(executor=fresh), "abduction")
            assert propose(arena, proposal("'x'", program=ORDER)) == "valid"
            attempt(arena, *order)
            found = [arena.notes[agent]["verdict"] for agent in arena.solvers]
            verdicts.append(dict(zip(order, found, strict=True)))
    assert verdicts[0] == verdicts[1] == verdicts[2]
    assert verdicts[0]["'x'"] == "correct" and "nondeterministic" in verdicts[0].values()


def test_a_message_is_one_line_of_limited_length(executor: Executor) -> None:
    made = AbsoluteZero(executor=executor, solvers=1, pairs=4, longest_value=30)
    for message, verdict in (("twice\n\nf(9) == 1", "valid"), ("x" * 31, "message_limit")):
        arena = begun(made, "induction", given={"program": DOUBLE})
        action = json.dumps({"inputs": ["1", "2", "3", "4"], "message": message})
        assert propose(arena, action) == verdict
        if verdict == "valid":
            assert arena.view("solver_0").fields["message"] == "twice f(9) == 1"


def test_an_induction_by_the_order_of_a_set_is_not_paid(executor: Executor) -> None:
    arena = begun(
        AbsoluteZero(executor=executor, solvers=1, pairs=4),
        "induction",
        given={"program": "def f(a):\n    return a[0]"},
    )
    inputs = ["'ba'", "'abcdefgh'", "'abcdefghi'", "'abcdefghij'"]
    assert propose(arena, json.dumps({"inputs": inputs, "message": "first"})) == "valid"
    assert attempt(arena, ORDER) == [-0.5]
    assert arena.notes["solver_0"]["verdict"] == "nondeterministic"


def test_an_answer_that_loops_costs_one_timeout() -> None:
    """An induction answer that loops is tried only on the first hidden input, in one process."""
    loop = "def f(a):\n    while True: pass\n    return a"
    with Executor(workers=1, cpu_seconds=0.2) as strict:
        arena = begun(
            AbsoluteZero(executor=strict, solvers=3, pairs=10),
            "induction",
            given={"program": DOUBLE},
        )
        inputs = [str(n) for n in range(10)]
        assert propose(arena, json.dumps({"inputs": inputs, "message": "twice"})) == "valid"
        strict.drain_metrics()
        answers = [loop, loop + " # again", "def f(a):\n    return a + a"]
        assert attempt(arena, *answers) == [-0.5, -0.5, 1.0]
        assert strict.drain_metrics() == {"timeout": 2, "not_run": 8, "ok": 5}
    assert arena.notes["solver_0"]["verdict"] == "timeout"


@pytest.mark.parametrize("kind", ["deduction", "abduction"])
def test_a_solver_does_not_see_the_requested_answer(executor: Executor, kind: str) -> None:
    arena = begun(AbsoluteZero(executor=executor, solvers=1), kind)
    assert arena.view("solver_0").text == "wait for the proposer"
    propose(arena, proposal("'secret-in'", program="def f(a):\n    return 'secret-out' + a[:0]"))
    seen = str(arena.view("solver_0"))
    assert ("secret-in" in seen) == (kind == "deduction")
    hidden_output = arena.view("solver_0").fields["output"] == ""
    assert hidden_output == (kind == "deduction")


@pytest.mark.parametrize(
    ("action", "verdict"),
    [
        (None, "malformed"),
        ("not json", "malformed"),
        ("[]", "malformed"),
        ("[" * 100_000, "malformed"),
        (json.dumps({"inputs": ["1"]}), "malformed"),
        (proposal(), "wrong_number_of_inputs"),
        (proposal("1", "2"), "wrong_number_of_inputs"),
        (proposal(repr("x" * 399)), "input_limit"),
        (proposal("'x'", program="def f(a):\n    return a * 399"), "output_limit"),
        (proposal("1", program="def f(a):\n    return 1 if a else input()"), "banned"),
        (proposal("1, *[2]"), "bad_arguments"),
        (proposal("f(1)"), "bad_arguments"),
        (proposal("1) or (2"), "bad_arguments"),
        (proposal("1", program="def f(a) return a"), "syntax"),
        (proposal("1", program="def g(a):\n    return a"), "no_entry"),
        (proposal("1", program=DOUBLE + "\nprint(f(1))"), "stray_code"),
        (proposal("1", program="def f(a):\n    import os\n    return a"), "banned"),
        (proposal("1", program="def f():\n    return 1"), "no_parameter"),
        (proposal("1", program="def f(a):\n    a"), "no_return"),
        (proposal("1", program=DOUBLE + "\ndef g(a):\n    return 1"), "several_functions"),
        (proposal("1", program="x" * 20_000), "too_long"),
        (proposal("open('x')"), "bad_arguments"),
        (proposal("1", program="def f(a):\n    return a / 0"), "raised"),
        (proposal("1", program="def f(a):\n    while True: pass\n    return 1"), "timeout"),
        (proposal("1", program="def f(a):\n    return hash('x')"), "banned"),
        (proposal("'abcdefgh'", program="def f(a):\n    return list(set(a))"), "nondeterministic"),
        (proposal("1", program="def f(a):\n    return f"), "not_plain_data"),
        (proposal("1", program="def f(a):\n    return " + "-" * 9000 + "1"), "syntax"),
    ],
)
def test_every_bad_proposal_has_its_verdict(
    executor: Executor, action: str | None, verdict: str
) -> None:
    arena = begun(AbsoluteZero(executor=executor, solvers=1), "deduction")
    assert propose(arena, action) == verdict
    assert arena.finished and arena.paid["proposer_0"] == -1.0 and not arena.created


def test_a_duplicate_proposal_is_not_paid(executor: Executor) -> None:
    buffer = TaskBuffer()
    arena = AbsoluteZero(executor=executor, buffer=buffer, solvers=1)
    assert propose(begun(arena, "deduction"), proposal("3")) == "valid"
    buffer.add(arena.created[0], step=1)
    same = proposal(" 3 ", program="def f(b):  # twice\n    return (b*2)")
    assert propose(begun(arena, "deduction", known=1), same) == "duplicate"
    assert arena.paid["proposer_0"] == 0.0 and arena.metrics["valid_proposal"] == 1.0
    # With known=0 the buffer counts as empty for this episode.
    assert propose(begun(arena, "deduction", known=0), same) == "valid"
    assert propose(begun(arena, "abduction", known=1), same) == "valid"


def test_a_held_out_program_is_refused(executor: Executor) -> None:
    held_out = [solve_task("deduction", {"program": DOUBLE, "inputs": ["1"], "message": ""})]
    arena = AbsoluteZero(executor=executor, solvers=1, forbidden=programs_of(held_out))
    disguised = "import re\ndef f(b, /):\n    'Twice.'\n    return b * 2"
    for program in (DOUBLE, disguised):
        action = proposal("77", program=program)
        assert propose(begun(arena, "deduction"), action) == "held_out"
        assert not arena.created


def test_a_task_to_solve_is_labelled_when_it_is_set_up(executor: Executor) -> None:
    arena = AbsoluteZero(executor=executor, solvers=2)
    content = {"program": DOUBLE, "inputs": ["'ab'"], "message": ""}
    arena.begin(solve_task("deduction", content), seed=0)
    assert arena.stage == ("solver_0", "solver_1")
    assert attempt(arena, "'abab'", '"abab"') == [1.0, 1.0]


def test_the_seeds_are_the_identity() -> None:
    assert {seed.payload["program"] for seed in identity_seeds()} == {IDENTITY}
    assert identity_seeds()[0].payload["outputs"] == ["'Hello world'"]


def test_a_million_characters_raise_nothing(executor: Executor) -> None:
    rng = Random(0)
    noise = "".join(chr(rng.randrange(0x110000)) for _ in range(300_000))
    arena = AbsoluteZero(executor=executor, solvers=2)
    for kind in ("deduction", "abduction", "induction"):
        given = {"program": DOUBLE} if kind == "induction" else None
        for action in (noise, json.dumps({"program": noise, "inputs": [noise], "message": noise})):
            propose(begun(arena, kind, given=given), action)
            assert arena.finished
        content = {"program": DOUBLE, "inputs": ["1", "2"], "message": "m"}
        arena.begin(solve_task(kind, content), seed=0)
        assert attempt(arena, noise, "(" * 500_000) == [-0.5, -0.5]


def test_pettingzoo_makes_the_arena_by_name(executor: Executor) -> None:
    import pettingzoo

    made: Any = pettingzoo.make("aec", "selfplay/absolute_zero_v0", executor=executor, solvers=2)
    made.reset(seed=1)
    assert made.agent_selection == "proposer_0"
    assert made.unwrapped.name == "absolute_zero_v0"


def test_inputs_that_differ_only_in_notation_are_one_input(executor: Executor) -> None:
    arena = begun(AbsoluteZero(executor=executor, pairs=4), "induction", given={"program": DOUBLE})
    same = json.dumps({"inputs": ["1", " 1", "0x1", "+1"], "message": "twice"})
    assert propose(arena, same) == "wrong_number_of_inputs"
    assert arena.paid["proposer_0"] == -1.0


def test_a_lone_surrogate_in_a_proposal_can_be_recorded(executor: Executor) -> None:
    arena = begun(AbsoluteZero(executor=executor, pairs=2), "induction", given={"program": DOUBLE})
    assert propose(arena, '{"inputs": ["1", "2"], "message": "\\ud800"}') == "valid"
    json.dumps(to_json(arena.created[0]), ensure_ascii=False).encode()


def played(arena: AbsoluteZero) -> AbsoluteZero:
    propose(begun(arena, "deduction"), proposal("3"))
    return arena


def test_a_fork_shares_the_services_and_plays_independently(executor: Executor) -> None:
    arena = played(AbsoluteZero(executor=executor, buffer=TaskBuffer(), solvers=2))
    twin = arena.fork()
    assert isinstance(twin, AbsoluteZero)
    assert twin.executor is arena.executor and twin.buffer is arena.buffer
    assert attempt(twin, "6", "7") == [1.0, -0.5]
    assert not arena.finished and arena.paid == dict.fromkeys(arena.possible_agents, 0.0)
    assert attempt(arena, "7", None) == [-0.5, -1.0]


def test_a_pickled_arena_continues_once_it_has_an_executor(executor: Executor) -> None:
    forbidden = programs_of([solve_task("deduction", {"program": IDENTITY, "inputs": ["1"]})])
    arena = pickle.loads(
        pickle.dumps(played(AbsoluteZero(executor=executor, solvers=2, forbidden=forbidden)))
    )
    assert arena.executor is None and arena.forbidden == forbidden
    arena.executor = executor
    assert attempt(arena, "6", "5") == [1.0, -0.5]


def test_a_replay_pays_the_same_as_steps_one_by_one(executor: Executor) -> None:
    buffer = TaskBuffer()
    arena = played(AbsoluteZero(executor=executor, buffer=buffer, solvers=2))
    attempt(arena, "6", "7")
    history, paid = list(arena.history), dict(arena.paid)
    buffer.add(arena.created[0], step=0)  # a task that is added later does not change the verdict
    arena.replay(history)
    assert arena.paid == paid
    single = begun(AbsoluteZero(executor=executor, solvers=2), "deduction")
    for moves in history:
        for agent, action in moves.items():
            assert single.agent_selection == agent
            single.step(action)
    assert single.paid == paid


def test_the_arena_is_registered_with_pettingzoo() -> None:
    made = pettingzoo.make("aec", "selfplay/absolute_zero_v0", solvers=2)
    made.reset(seed=1)
    assert made.agents == ["proposer_0", "solver_0", "solver_1"]
    made.step("no proposal")
    assert made.last()[2]
    made.unwrapped.executor.close()


def test_registering_loads_nothing_heavy() -> None:
    code = "import arenas, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "pettingzoo" in loaded
    assert not loaded & {"torch", "transformers", "arenas.absolute_zero.arena", "selfplay.sandbox"}


def test_canonical_answers_for_votes(executor: Executor) -> None:
    """Equal literals have one canonical answer; programs and proposals have none."""
    arena = AbsoluteZero(executor=executor)
    kinds = {kind: Task(id=kind, type=kind, payload={"mode": "solve"}) for kind in TYPES}
    output = {
        arena.canonical_answer(kinds["deduction"], "solver_0", t) for t in ("[1,'a']", '[1, "a"]')
    }
    given = [
        arena.canonical_answer(kinds["abduction"], "solver_0", t) for t in ("1,2", "1, 2", "(1, 2)")
    ]
    assert len(output) == 1 and "" not in output and given[0] == given[1] != given[2]
    for text in (None, "print(1)", "the answer is 3", "(" * 9999):
        assert arena.canonical_answer(kinds["deduction"], "solver_0", text) == ""
        assert arena.canonical_answer(kinds["abduction"], "solver_0", text) == ""
    assert arena.canonical_answer(kinds["induction"], "solver_0", "def f(a): return a") is None
    proposing = Task(id="p", type="deduction", payload={"mode": "propose"})
    assert arena.canonical_answer(proposing, "solver_0", "1") is None
