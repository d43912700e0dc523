"""Tests of the lines and errors about lost workers and ranks, without Ray's processes."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from selfplay.cli.stage import load_models
from selfplay.errors import ConfigError, LearnersLost, RunError
from selfplay.learner.objective import PolicyLoss
from selfplay.runtime.cluster import death_reason
from selfplay.runtime.learner_worker_group import LearnerWorkerGroup, reason_of
from selfplay.runtime.local import Local
from selfplay.runtime.notes import slow_start
from selfplay.runtime.placement import Placement
from selfplay.runtime.policy_groups import PolicyGroup
from selfplay.runtime.ray import RayRuntime
from selfplay.runtime.rollout_worker_group import RolloutWorkers
from selfplay.runtime.sampling_worker_group import SamplingWorkers
from selfplay.types import Request

ray = pytest.importorskip("ray")

LOGS = "; its log is in /tmp/ray/session_1/logs on its machine"
DIED = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: LearnerWorker\n"
    "\tactor_id: d72fe2ed2c1573fb4292779101000000\n\tpid: {pid}\n"
    "\tnamespace: 21cf5b7b-ae53-4323-81c8-c673aac36bca\n\tip: 10.0.0.2\nThe actor is dead because "
    "its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. Some common causes include: "
    "(1) the process was killed by the OOM killer due to high memory usage, (2) ray stop --force "
    "was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another unexpected error."
)
"""Message of Ray 2.60 about an actor whose process was killed."""


def died(pid: int = 9763) -> Exception:
    error: Exception = ray.exceptions.RayActorError("d72f", DIED.format(pid=pid))
    return error


class Answers:
    """A stand-in for a cluster; `given` maps the reference of a call to its answer, if any."""

    exceptions = ray.exceptions
    log_hint = LOGS
    dead = False

    def __init__(self) -> None:
        self.ray, self.given = self, dict[Any, Any]()
        self.ended: list[Any] = []

    def wait(self, asked: Sequence[Any], **how: Any) -> tuple[list[Any], list[Any]]:
        ready = [each for each in asked if each in self.given]
        return ready, [each for each in asked if each not in ready]

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        answer = self.given[reference]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def check(self, *, now: bool = False) -> None:
        """Do nothing, as if Ray were alive."""

    def kill(self, actor: Any) -> None:
        self.ended.append(actor)


def test_the_reason_is_extracted_from_a_death_message_of_ray() -> None:
    reason = death_reason(died())
    assert reason.startswith("process 9763 on 10.0.0.2: its worker process has died. Worker exit")
    assert "killed by the OOM killer" in reason and len(reason) == 300 and "\n" not in reason
    never = RuntimeError("The actor is dead because it was killed by `ray.kill`.")
    assert death_reason(never) == "it was killed by `ray.kill`."
    assert death_reason(OSError("no\nraylet")) == "OSError: no raylet"


def test_workers_that_do_not_rest_are_reported_with_reasons() -> None:
    cluster: Any = Answers()
    notes: list[str] = []
    workers = RolloutWorkers(
        cluster, count=4, chunks=1, timeout=0.01, max_restarts=1, note=notes.append
    )
    for number, member in enumerate(workers._members):
        member.actor = number
    workers._ask = lambda member, *given, **named: member.bundle  # type: ignore[method-assign]
    broken = ray.exceptions.RayTaskError("rest", "", ValueError("no\nroom"))
    cluster.given = {0: None, 1: died(), 2: broken}
    workers.rest()
    assert cluster.ended == [1, 2, 3]
    assert [line.partition(" and is")[0] for line in notes] == [
        f"runtime: worker {number} was lost" for number in (1, 2, 3)
    ]
    reasons = [line.removesuffix(LOGS).partition("replaced: ")[2] for line in notes]
    assert reasons[0].startswith("process 9763 on 10.0.0.2: its worker process has died")
    assert reasons[1] == "ValueError: no room"
    assert reasons[2] == "it did not rest within 0.01 s (runtime.load_timeout)"
    assert workers.counts()["runtime/worker_deaths"] == 3


def test_a_dead_worker_of_a_policy_is_reported_up_to_the_restart_limit() -> None:
    cluster: Any = Answers()
    notes: list[str] = []
    workers = SamplingWorkers(
        cluster,
        [PolicyGroup(policies=("judge",), workers=1)],
        timeout=1,
        load_timeout=1,
        max_restarts=1,
        in_step=True,
        note=notes.append,
    )
    (member,) = workers._members

    def start(member: Any) -> None:
        member.actor = "actor"

    workers._start = start  # type: ignore[method-assign]
    workers._ask = lambda *given, **named: "sample"  # type: ignore[method-assign]
    cluster.given = {"sample": died()}
    workers.add(Request(id=0, policy="judge", prompt_ids=(1,), seed=0, max_tokens=1))
    workers.step()
    (line,) = notes
    assert line.startswith("runtime: worker 0 was lost and is replaced: process 9763 on 10.0.0.2: ")
    assert line.endswith(LOGS)
    with pytest.raises(RunError, match=rf"2 workers of policy judge died .*{re.escape(LOGS)}$"):
        workers.step()
    assert len(notes) == 1 and member.actor is None


# Ranks -----------------------------------------------------------------------------------------


class Start:
    """A group of ranks whose starts have the given outcomes, one after another."""

    def __init__(self, *outcomes: Exception | None, max_restarts: int = 5) -> None:
        self.outcomes = list(outcomes)
        self.notes: list[str] = []
        unused: Any = None
        self.ranks = LearnerWorkerGroup(
            unused,
            bundles=range(2),
            gpu=False,
            timeout=10,
            load_timeout=100,
            max_restarts=max_restarts,
            note=self.notes.append,
        )
        self.ranks._start = self.start  # type: ignore[method-assign]

    def start(self, saved: Path | None) -> dict[str, Any]:
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return {}

    def first(self) -> None:
        players: Any = SimpleNamespace(saved=None, policies={})
        self.ranks.trainers(players, PolicyLoss())


def refused(rank: int, port: int) -> LearnersLost:
    return LearnersLost(
        f"learner rank {rank} failed (connect): DistNetworkError: The client socket has timed "
        f"out after 10000ms while trying to connect to (10.0.0.2, {port})."
    )


def silent(ranks: str, method: str) -> LearnersLost:
    return LearnersLost(f"learner {ranks} is not done after 10 s without progress ({method})")


def test_a_loss_at_the_start_is_reported_and_the_ranks_start_again() -> None:
    group = Start(refused(1, 4000), silent("ranks [0, 1]", "begin"), None)
    group.first()
    assert group.notes == [
        f"runtime: the learner ranks did not start, and start again: {lost}"
        for lost in (refused(1, 4000), silent("ranks [0, 1]", "begin"))
    ]
    assert group.ranks.counts() == {"runtime/learner_restarts": 2}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (refused(1, 4000), refused(0, 5017)),
        (silent("rank 1", "join"), silent("ranks [0, 1]", "join")),
        (
            LearnersLost(f"learner rank 0 died (begin): {death_reason(died(95))}"),
            LearnersLost(f"learner rank 1 died (begin): {death_reason(died(123456))}"),
        ),
    ],
    ids=["port", "silence", "death"],
)
def test_a_first_start_that_fails_twice_in_the_same_way_ends_the_run(
    first: LearnersLost, second: LearnersLost
) -> None:
    group = Start(first, silent("rank 0", "node"), second, None)
    with pytest.raises(RunError) as raised:
        group.first()
    assert str(raised.value) == (
        f"runtime: the learner ranks did not start: twice the same loss: {second}"
    )
    assert len(group.notes) == 2 and len(group.outcomes) == 1


def test_ranks_that_worked_before_may_be_lost_more_often() -> None:
    group = Start(None, *(refused(1, port) for port in (1, 2, 3)), None)
    group.first()
    group.ranks.restart(LearnersLost("rank 1"), None)
    assert len(group.notes) == 3 and not group.outcomes
    few = Start(None, refused(1, 1), refused(1, 2), max_restarts=2)
    few.first()
    with pytest.raises(RunError, match=r"lost 3 times .*max_restarts is 2"):
        few.ranks.restart(LearnersLost("rank 1"), None)


def test_an_error_of_the_settings_is_no_loss() -> None:
    group = Start(ConfigError("no folder"), None)
    with pytest.raises(ConfigError):
        group.first()
    assert group.notes == [] and len(group.outcomes) == 1


def test_other_losses_have_other_reasons() -> None:
    assert reason_of(silent("rank 1", "join")) != reason_of(silent("rank 1", "begin"))
    assert reason_of(refused(1, 4000)) != reason_of(silent("rank 1", "connect"))


def test_connecting_ranks_have_the_normal_timeout_and_errors_name_the_port() -> None:
    """The line names the address and the port that a blocked rank could not reach."""
    ranks = Start().ranks
    cluster: Any = Answers()
    ranks.cluster = cluster
    methods = ("node", "open", "connect", "join", "begin", "load")
    assert [ranks._limit(method) for method in methods] == [10, 10, 10, 10, 100, 100]
    ranks._place = ("10.0.0.2", 4000)
    blocked = "; rank 0 waits at address 10.0.0.2, port 4000, and at another port after each start"
    ports = ": let the nodes of the ranks reach each other on all ports"
    assert str(ranks._fault("connect", {}, [1], answers=True)) == (
        f"learner rank 1 did not connect to rank 0 after 10 s without progress (connect){blocked}"
        f"{ports}; if this is too short, raise runtime.timeout{LOGS}"
    )
    broken = ray.exceptions.RayTaskError("connect", "", RuntimeError("Ping failed"))
    assert str(ranks._fault("connect", {1: broken}, [], answers=True)) == (
        f"learner rank 1 failed (connect): RuntimeError: Ping failed{blocked}{ports}{LOGS}"
    )
    apart = str(ranks._fault("join", {}, [0, 1], answers=True))
    assert apart.startswith("learner ranks [0, 1] did not connect to the other ranks after 10 s")
    assert "at address 10.0.0.2, port 4000, which all ranks have reached" in apart
    assert "on all ports, and set GLOO_SOCKET_IFNAME if a hostname has the address 127.x" in apart
    late = str(ranks._fault("begin", {}, [0, 1], answers=False))
    assert late.endswith(f"(begin); if this is too short, raise runtime.load_timeout{LOGS}")
    dead = str(ranks._fault("begin", {1: died()}, [], answers=True))
    assert dead.startswith("learner rank 1 died (begin): process 9763 on 10.0.0.2: its worker")
    assert dead.endswith(LOGS)


# Output to the user ----------------------------------------------------------------------------


VLLM = {"_target_": "selfplay.engines.vllm.engine.VLLMEngine", "eager": False}


@pytest.mark.parametrize(
    ("engine", "gpus", "slow"),
    [
        (VLLM, 1.0, True),
        (VLLM, 0.5, True),
        (VLLM, 0.0, False),
        ({**VLLM, "eager": True}, 1.0, False),
        ({"_target_": "selfplay.engines.transformers.TransformersEngine"}, 1.0, False),
        ({}, 1.0, False),
    ],
)
def test_the_driver_announces_that_vllm_compiles_before_it_waits(
    engine: dict[str, Any], gpus: float, slow: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    line = slow_start({"engine": engine}, gpus=gpus)
    assert (line is not None) == slow
    began: list[str] = []
    runtime = RayRuntime(workers=1, learners=0)
    here: Any = SimpleNamespace(store_bytes=lambda: 1e9, connected_here=False)
    workers: Any = SimpleNamespace(start=lambda *_, **__: began.append(capsys.readouterr().err))
    remote: Any = SimpleNamespace(seconds=1.0)
    runtime.cluster, runtime._workers, runtime._engine = here, workers, remote
    runtime._placement = Placement(workers=1, learners=0, worker_gpus=gpus, learner_gpus=0)
    config = {"engine": engine}
    players: Any = SimpleNamespace(
        policies={}, config=config, saved=None, learner_settings={}, seed=0
    )
    runtime.trainers(players, PolicyLoss())
    assert began == [f"{line}\n" if slow else ""]


@pytest.mark.parametrize("kind", [RayRuntime, Local])
def test_the_command_shows_the_lines_of_a_runtime_while_it_loads(
    kind: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    runtime: Any = kind()
    ray_too = kind is RayRuntime
    if ray_too:
        runtime._note("worker 1 \n was lost")
    assert capsys.readouterr().err == ("worker 1 was lost\n" if ray_too else "")
    notes: list[str] = []

    def load(saved: object) -> None:
        if ray_too:
            runtime._note("worker 2 was lost")

    stage: Any = SimpleNamespace(open=lambda: None, progress=SimpleNamespace(note=notes.append))
    load_models(SimpleNamespace(runtime=runtime, load=load, config={}), stage)
    assert notes == (["worker 2 was lost"] if ray_too else [])
    assert capsys.readouterr().err == ""
