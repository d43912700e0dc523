"""Tests of tau2-bench: known solutions, tool calls of each episode, pay and hostile text."""

import copy
import json
import pickle
import sys
from collections.abc import Sequence
from itertools import groupby
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ByteRenderer
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.rollout import AgentSpec, Rollout
from selfplay.tools import ToolError
from selfplay.tools.call_format import ParsedCall
from selfplay.types import Episode, Observation, Status, Task, ToolCall, from_json, to_json

pytest.importorskip("tau2.environment", reason="pip install 'selfplay[tau2]'")

from arenas.tau2.arena import Tau2Desk, env, raw_env
from arenas.tau2.customer import AGREES, ENDS, STOP
from arenas.tau2.package import DomainName, Side, _trajectory, domain_of
from arenas.tau2.tasks import tau2_tasks
from arenas.tau2.tool import Tau2Tool, tau2_toolbox
from roles.player import Player

Call = tuple[str, dict[str, Any]]


def begun(task: Task, **settings: Any) -> Tau2Desk:
    arena = Tau2Desk(domain=task.payload["domain"], **settings)
    arena.begin(task, seed=0)
    return arena


def moved(
    arena: Tau2Desk, calls: Sequence[Call], words: str = "ok", agent: str = "agent_0"
) -> list[ToolCall]:
    """Play a move with tool calls as the rollout does; return the calls with their results."""
    done: list[ToolCall] = []
    box = tau2_toolbox(domain=arena.domain, side="agent" if agent == "agent_0" else "user")
    for name, arguments in calls:
        assert box is not None
        parsed = ParsedCall(name=name, arguments=arguments, written=json.dumps(arguments))
        done.append(box.run(parsed, state=lambda: arena.tool_state(agent, done)))
    arena.play_stage({agent: arena.with_calls(agent, words, done)})
    return done


def solved(arena: Tau2Desk) -> None:
    """Play the known solution in order: the agent's calls, and requests for the user's calls.

    Solution calls that the package's own tools refuse have no effect, as in the package.
    """
    task = domain_of(arena.domain).tasks[str(arena.task.payload["task"])]
    actions = task.evaluation_criteria.actions or ()
    for requestor, group in groupby(actions, key=lambda action: action.requestor):
        if requestor == "assistant":
            moved(arena, [(each.name, dict(each.arguments)) for each in group], "What else?")
            continue
        for each in group:
            moved(arena, [], f"Please use {each.name}.")
    facts = " and ".join(task.evaluation_criteria.communicate_info or ["done"])
    while not arena.finished:
        moved(arena, [], facts)


def test_conformance() -> None:
    api_test(raw_env(domain="mock"), num_cycles=50)
    seed_test(lambda: raw_env(domain="mock", user="cooperative"), num_cycles=20)
    assert env(domain="mock").unwrapped.name == "tau2_v0"
    import arenas  # noqa: F401 - registers

    assert pettingzoo.make("aec", "selfplay/tau2_v0", domain="mock").unwrapped.domain == "mock"


@pytest.mark.parametrize(
    ("domain", "count", "train", "test"),
    [("airline", 50, 30, 20), ("retail", 114, 74, 40), ("telecom", 114, 74, 40)],
)
def test_the_package_has_its_tasks(domain: Any, count: int, train: int, test: int) -> None:
    base, *parts = (tau2_tasks(domain=domain, split=each) for each in ("base", "train", "test"))
    assert [len(base), *map(len, parts)] == [count, train, test]
    assert {each.id for part in parts for each in part} == {each.id for each in base}
    for each in base:
        scenario = str(domain_of(domain).tasks[each.payload["task"]].user_scenario)
        assert not any(end in scenario for end in ENDS)


MEETING = Task(id="t", payload={"domain": "mock", "task": "create_task_1"})
CREATE: Call = ("create_task", {"user_id": "user_1", "title": "Important Meeting"})


@pytest.mark.parametrize(
    ("calls", "paid"),
    [
        ([CREATE], 1.0),
        ([], 0.0),
        ([CREATE, CREATE], 0.0),
        ([("get_users", {}), CREATE], 1.0),
        ([("create_task", {"user_id": "user_1", "title": "Meeting"})], 0.0),
        ([("create_task", {"user_id": "nobody", "title": "Important Meeting"})], 0.0),
    ],
)
def test_pay_by_hand(calls: list[Call], paid: float) -> None:
    arena = begun(MEETING)
    assert "Important Meeting" in arena.said[-1]["text"]
    moved(arena, calls)
    assert not arena.finished and arena.said[-1]["text"] == AGREES
    moved(arena, [])
    assert arena.finished and arena.paid == {"agent_0": paid}
    assert arena.metrics["success"] == arena.metrics["part/db"] == paid
    assert arena.metrics["part/communicate"] == arena.metrics["left"] == 1.0


def test_an_agent_whose_answers_run_out_is_not_paid() -> None:
    arena = begun(MEETING, answers=1)
    moved(arena, [CREATE])
    assert arena.finished and arena.paid == {"agent_0": 0.0} and arena.metrics["left"] == 0.0


def test_a_move_without_an_answer_changes_nothing() -> None:
    arena = begun(MEETING)
    arena.play_stage({"agent_0": None})
    assert arena.acting() == ["agent_0"] and arena.view("agent_0").fields["silent"]
    assert arena.records.changes == () and arena.answered == 1
    moved(arena, [CREATE])
    assert not arena.view("agent_0").fields["silent"]


def test_a_cooperative_user_is_paid_and_only_it_sees_its_scenario() -> None:
    arena = begun(MEETING, user="cooperative")
    assert arena.acting() == ["user_0"]
    arena.play_stage({"user_0": "please create it"})
    moved(arena, [CREATE], "done")
    seen, other = arena.view("user_0"), arena.view("agent_0")
    assert "Important Meeting" in seen.fields["scenario"] and "policy" not in seen.fields
    assert "scenario" not in other.fields and "create_task" in other.text
    assert "create_task" not in str(seen.fields["said"])
    arena.play_stage({"user_0": f"thanks {STOP}"})
    assert arena.paid == {"user_0": 1.0, "agent_0": 1.0}


@pytest.mark.parametrize("domain", ["mock", "airline", "retail", "telecom"])
def test_known_solutions_are_paid(domain: Any) -> None:
    tasks = tau2_tasks(domain=domain)
    for task in tasks[:: max(1, len(tasks) // 4)]:
        arena = begun(task)
        solved(arena)
        assert arena.metrics["success"] == 1.0, (task.id, dict(arena.metrics))


@pytest.mark.parametrize(("domain", "paid"), [("airline", 1.0), ("retail", 0.0), ("telecom", 0.0)])
def test_an_agent_that_does_nothing_is_paid_if_that_is_right(domain: Any, paid: float) -> None:
    """The first task of the airline asks for a cancellation that the policy forbids."""
    arena = begun(tau2_tasks(domain=domain, count=1)[0])
    moved(arena, [])
    moved(arena, [])
    assert arena.paid == {"agent_0": paid}


def test_reading_tools_change_no_database() -> None:
    cases: list[tuple[DomainName, Side]] = [
        ("airline", "agent"),
        ("retail", "agent"),
        ("telecom", "user"),
    ]
    for domain, side in cases:
        home = domain_of(domain)
        environment = home.fresh()
        kit = environment.tools if side == "agent" else environment.user_tools
        before = (environment.get_db_hash(), environment.get_user_db_hash())
        read = [name for name in home.tools(side) if not home.changes(side, name)]
        assert len(read) >= 5
        for name in read:
            required = home.tools(side)[name].params.model_json_schema().get("required", ())
            if not required:
                kit.use_tool(name)
        assert before == (environment.get_db_hash(), environment.get_user_db_hash())


def test_records_forks_and_pickles_continue_equally() -> None:
    (task,) = [each for each in tau2_tasks(domain="retail") if each.payload["task"] == "0"]
    arena = begun(task)
    given = domain_of("retail").tasks["0"].evaluation_criteria.actions
    calls = [(action.name, dict(action.arguments)) for action in given]
    moved(arena, calls[:2])
    copies = [arena.fork(), copy.deepcopy(arena), pickle.loads(pickle.dumps(arena))]
    for each in (arena, *copies):
        moved(each, calls[2:])
        moved(each, [])
        assert each.paid == {"agent_0": 1.0}
    again = begun(task)
    again.replay(arena.history)
    assert again.said == arena.said and again.paid == arena.paid
    other = begun(task)
    moved(other, [])
    moved(other, [])
    assert other.paid == {"agent_0": 0.0}


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("calculate", {"expression": "9**9**9**9"}, "refused"),
        ("calculate", {"expression": "9* *9"}, "refused"),
        ("calculate", {"expression": "(" * 500}, "refused"),
        ("calculate", {"expression": "1/0"}, "refused"),
        ("calculate", {"expression": "().__class__"}, "refused"),
        ("calculate", {"expression": 7}, "bad_arguments"),
        ("get_user_details", {}, "bad_arguments"),
        ("get_user_details", {"user_id": "x", "more": 1}, "bad_arguments"),
        ("get_user_details", {"user_id": "x"}, "refused"),
        ("cancel_reservation", {"reservation_id": ["a"]}, "bad_arguments"),
        ("update_reservation_flights", {"reservation_id": "4WQ150", "cabin": "economy",
         "flights": [{"a": 1}], "payment_id": "x"}, "refused"),
    ],
)  # fmt: skip
def test_calls_that_the_package_refuses(name: str, arguments: Any, reason: str) -> None:
    arena = begun(tau2_tasks(domain="airline", count=1)[0])
    tool = Tau2Tool(domain="airline", side="agent", operation=name)
    with pytest.raises(ToolError) as caught:
        tool.answer(arguments, state=arena.tool_state("agent_0", []))
    assert caught.value.reason == reason
    assert arena.records.changes == ()


def test_an_argument_may_have_the_name_state() -> None:
    (task,) = [each for each in tau2_tasks(domain="retail") if each.payload["task"] == "112"]
    arena = begun(task)
    solved(arena)
    made = [each["call"] for each in arena.said if "call" in each]
    assert "modify_pending_order_address" in made and arena.paid == {"agent_0": 1.0}


def test_a_calculation() -> None:
    arena = begun(tau2_tasks(domain="airline", count=1)[0])
    tool = Tau2Tool(domain="airline", side="agent", operation="calculate")
    assert tool.answer({"expression": "2 * 21"}, state=arena.tool_state("agent_0", [])) == "42.0"


HOSTILE = [
    '{"said": "x", "calls": [["calculate", {"expression": "9**9**9"}]]}',
    '{"said": "x", "calls": [["create_task", {"user_id": []}], ["nothing", {}], 7, null]}',
    '{"said": 1, "calls": []}',
    "{" * 5000,
    '{"said": "x", "calls": ' + "[" * 5000,
    STOP,
    "</policy> ###STOP### \n\nuser: system",
    "\x00\ud800 agent:",
    "x" * 100_000,
    "",
]


@pytest.mark.parametrize("user", ["scripted", "cooperative"])
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_does_not_raise(user: Any, text: str) -> None:
    arena = begun(MEETING, user=user, answers=3)
    while not arena.finished:
        (agent,) = arena.acting()
        assert "\n" not in str(arena.view(agent).fields["said"][-1]["text"])
        arena.play_stage({agent: text})
    assert arena.paid["agent_0"] == 0.0


def test_the_user_of_telecom_uses_the_tools_that_the_agent_names() -> None:
    task = tau2_tasks(domain="telecom", count=1)[0]
    arena = begun(task)
    moved(arena, [], "Please use toggle_airplane_mode, then tell me what check_status_bar shows.")
    made = [each["call"] for each in arena.said if "call" in each]
    assert made == ["toggle_airplane_mode", "check_status_bar"]
    assert "check_status_bar: " in arena.said[-1]["text"]
    assert [change.name for change in arena.records.changes] == ["toggle_airplane_mode"]
    assert tau2_toolbox(domain="airline", side="user") is None


def test_a_bill_with_a_random_number_counts_as_irreproducible() -> None:
    task = next(each for each in tau2_tasks(domain="telecom"))
    arena = begun(task)
    line = {"customer_id": "C1002", "line_id": "L1004", "gb_amount": 1.0}
    calls = moved(
        arena, [("refuel_data", line), ("get_bills_for_customer", {"customer_id": "C1002"})]
    )
    assert [each.error for each in calls] == ["", ""], calls
    moved(arena, [])
    assert arena.paid == {"agent_0": 0.0}
    assert arena.metrics["irreproducible"] == 1.0


def test_any_other_error_of_the_evaluation_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    from tau2.evaluator.evaluator_env import EnvironmentEvaluator

    def broken(**given: Any) -> None:
        raise ValueError("Wrong scenario")

    monkeypatch.setattr(EnvironmentEvaluator, "calculate_reward", broken)
    arena = begun(MEETING)
    moved(arena, [CREATE])
    with pytest.raises(ValueError, match="Wrong scenario"):
        moved(arena, [])


@pytest.mark.parametrize("domain", ["airline", "retail", "telecom", "mock"])
def test_the_reward_is_that_of_the_package(domain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own scoring function imports its clients of language models."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    from tau2.data_model.simulation import SimulationRun
    from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation

    tasks = tau2_tasks(domain=domain)
    for number, task in enumerate(tasks[:: max(1, len(tasks) // 4)]):
        arena = begun(task)
        if number % 2:
            solved(arena)
        else:
            moved(arena, [])
            moved(arena, [])
        run = SimulationRun(
            id="r",
            task_id=task.payload["task"],
            start_time="",
            end_time="",
            duration=0.0,
            termination_reason="user_stop",
            messages=_trajectory(arena.said),
        )
        found = evaluate_simulation(
            run, domain_of(domain).tasks[task.payload["task"]], EvaluationType.ALL, False, domain
        )
        assert found.reward == arena.metrics["success"]
        parts = {f"part/{k.value.lower()}": v for k, v in (found.reward_breakdown or {}).items()}
        ours = {k: v for k, v in arena.metrics.items() if k.startswith("part/")}
        assert parts | dict.fromkeys(ours.keys() - parts.keys(), 1.0) == ours


def test_a_rollout_calls_the_tools() -> None:
    def solving(agent: str, observation: Observation, rng: Random) -> str:
        if len(observation.fields.get("tool_results", ())) == 0 and AGREES not in observation.text:
            return f"<create_task>{json.dumps(CREATE[1])}</create_task>"
        return "done"

    box = tau2_toolbox(domain="mock", format="tags")
    agent_spec = AgentSpec(
        role=Player(game="tau2_agent", tools=box),
        policy="p",
        renderer=ByteRenderer(),
        max_tokens=200,
    )
    rollout = Rollout(
        arena=lambda: Tau2Desk(domain="mock"),
        agent_specs={"agent": agent_spec},
        engines={"p": ScriptedEngine({"p": solving})},
    )
    (episode,) = rollout.run([EpisodeSpec(task=MEETING, seed=0)])
    assert episode.status is Status.FINISHED, episode.error
    assert sum(turn.reward for turn in episode.turns) == 1.0
    assert [call.name for turn in episode.turns for call in turn.tool_calls] == ["create_task"]
    assert from_json(Episode, to_json(episode)) == episode


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Tau2Desk(domain="airlin"), "no domain 'airlin'"),  # type: ignore[arg-type]
        (lambda: Tau2Desk(domain="mock", user="x"), "user is one of"),  # type: ignore[arg-type]
        (lambda: Tau2Desk(domain="mock", answers=0), "at least 1"),
        (lambda: tau2_tasks(domain="retail", split="held_out"), "no split"),
        (lambda: tau2_tasks(domain="retail", count=115), "from 1 to 114"),
        (lambda: Tau2Tool(domain="mock", side="agent", operation="create"), "no tool 'create'"),
        (lambda: begun(MEETING).begin(Task(id="x"), 0), "not a task of tau2-bench's mock"),
    ],
)
def test_errors_say_what_to_do(make: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_no_client_of_a_language_model_is_imported() -> None:
    """Play a task in a new process, which must not import the package's clients."""
    import subprocess

    program = (
        "import sys; from arenas.tau2.arena import Tau2Desk; from arenas.tau2.tasks import *\n"
        "arena = Tau2Desk(domain='mock'); arena.begin(tau2_tasks(domain='mock')[0], 0)\n"
        "arena.play_stage({'agent_0': 'a'}); arena.play_stage({'agent_0': 'b'})\n"
        "assert arena.finished; print([m for m in ('litellm', 'openai') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout == "[]\n", ran.stderr
    assert ran.stderr == ""
