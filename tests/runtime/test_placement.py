"""Tests of the placement of a run on GPUs with Ray; the GPUs are declared and need not exist."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from selfplay.config.compose import load
from selfplay.engines.shards import shards_of
from selfplay.errors import ConfigError
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime.cluster import RayCluster, environment, node_names
from selfplay.runtime.engine_worker_group import WorkerMember
from selfplay.runtime.placement import (
    Placement,
    check_devices,
    check_engine,
    placed,
    store_notes,
    worker_dtype,
)
from selfplay.runtime.policy_groups import policy_groups
from selfplay.runtime.ray import RayRuntime
from selfplay.runtime.rollout_worker_group import RolloutWorkers
from tests.helpers.command_process import SMOKE
from tests.helpers.gpu_actor import Seeing

ray = pytest.importorskip("ray")

DEFAULT: dict[str, Any] = {"learners": None, "worker_gpus": None, "learner_gpus": None}


@pytest.mark.parametrize(
    ("workers", "available", "given", "wanted"),
    [  # wanted: learners, GPUs of a worker, GPUs of a rank
        (2, 0, {}, (0, 0.0, 0.0)),
        (2, 3, {}, (1, 1.0, 1.0)),
        (2, 8, {}, (1, 1.0, 1.0)),
        (4, 2, {}, (1, 0.25, 1.0)),
        (3, 2, {}, (1, 0.3333, 1.0)),
        (4, 4, {}, (1, 0.5, 1.0)),
        (5, 4, {}, (1, 0.5, 1.0)),
        (8, 8, {}, (1, 0.5, 1.0)),
        (15, 8, {}, (1, 0.3333, 1.0)),
        (2, 3, {"learner_gpus": 0.5}, (1, 1.0, 0.5)),
        (1, 1, {}, (1, 0.5, 0.5)),
        (2, 1, {}, (1, 0.25, 0.5)),
        (4, 8, {"learners": 4}, (4, 1.0, 1.0)),
        (2, 8, {"learners": 0}, (0, 1.0, 0.0)),
        (2, 8, {"worker_gpus": 0}, (0, 0.0, 0.0)),
        (2, 8, {"worker_gpus": 0, "learner_gpus": 1}, (1, 0.0, 1.0)),
        (2, 0, {"worker_gpus": 1}, (1, 1.0, 0.0)),
        (2, 8, {"learners": 2, "learner_gpus": 0}, (2, 1.0, 0.0)),
        (8, 8, {"colocated": True}, (8, 0.5, 0.5)),
        (2, 0, {"colocated": True}, (2, 0.0, 0.0)),
    ],
)
def test_gpus_are_used_if_there_are_any(
    workers: int, available: float, given: dict[str, Any], wanted: tuple[int, float, float]
) -> None:
    made = placed(workers=workers, available=available, **{**DEFAULT, **given})
    assert (made.learners, made.worker_gpus, made.learner_gpus) == wanted
    assert made.device() == ("cuda" if made.worker_gpus else "cpu")
    if not set(given) & {"worker_gpus"}:
        assert made.gpus <= available


@pytest.mark.parametrize(
    ("workers", "available", "given", "wanted"),
    [
        (1, 3, {}, (1, 2.0, 1.0)),
        (2, 8, {"learners": 4}, (4, 2.0, 1.0)),
        (1, 2, {"learners": 0}, (0, 2.0, 0.0)),
        (2, 0, {}, (0, 0.0, 0.0)),  # the shards are processes on the CPU
        (2, 8, {"worker_gpus": 0}, (0, 0.0, 0.0)),
        (2, 8, {"worker_gpus": 2}, (1, 2.0, 1.0)),
    ],
)
def test_a_worker_has_a_gpu_for_each_shard_and_its_policies_in_main_memory(
    workers: int, available: float, given: dict[str, Any], wanted: tuple[int, float, float]
) -> None:
    made = placed(workers=workers, available=available, shards=2, **{**DEFAULT, **given})
    assert (made.learners, made.worker_gpus, made.learner_gpus) == wanted
    assert made.device() == "cpu"
    assert made.bundles(1, 1)[0] == {"CPU": 1, "GPU": wanted[1]}, "on one machine"


@pytest.mark.parametrize(
    ("available", "given", "line"),
    [
        (
            2,
            {},
            "runtime: 1 worker(s) need 2 GPUs each (engine.tensor_parallel), and the 1 learner",
        ),
        (1, {}, "rank(s) leave 0 of 1; lower runtime.workers or engine.tensor_parallel"),
        (
            8,
            {"worker_gpus": 1},
            "runtime.worker_gpus: a worker with engine.tensor_parallel=2 needs",
        ),
        (8, {"worker_gpus": 0.5}, "2 GPUs, not 0.5; set runtime.worker_gpus=null"),
        (8, {"colocated": True}, "2 shards do not fit runtime.colocated=true, where a worker has"),
    ],
)
def test_shards_without_a_gpu_each_are_one_line(
    available: float, given: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        placed(workers=1, available=available, shards=2, **{**DEFAULT, **given})
    assert line in str(raised.value) and "\n" not in str(raised.value)


def test_the_number_of_shards_is_that_of_the_engine() -> None:
    assert shards_of(load([SMOKE])) == 1
    config = load([SMOKE, "engine=vllm", "engine.tensor_parallel=2", "runtime=ray"])
    assert shards_of(config) == 2
    with pytest.raises(ConfigError, match=r"^engine.tensor_parallel: 2 shards do not fit"):
        RayRuntime(colocated=True).placement(0, shards_of(config))


@pytest.mark.parametrize(("learners", "each", "all"), [(4, 1, 4), (2, 1, 1), (9, 1, 8), (1, 2, 1)])
def test_ranks_that_leave_nothing_for_workers_are_one_line(
    learners: int, each: int, all: int
) -> None:
    line = rf"^runtime: {learners} learner rank\(s\) take all {all} GPUs, and none is left"
    with pytest.raises(ConfigError, match=line):
        RayRuntime(workers=4, learners=learners, learner_gpus=each).placement(all)


def test_pairs_without_a_gpu_each_are_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^runtime.workers: 4 pairs of worker and rank need 4 "):
        placed(workers=4, available=2, colocated=True, **DEFAULT)


def test_an_engine_without_sleep_on_the_gpus_of_ranks_is_one_line() -> None:
    pairs = placed(workers=2, available=2, colocated=True, **DEFAULT)
    with pytest.raises(ConfigError, match=r"^runtime.colocated: .* set engine.sleep=true$"):
        check_engine({"engine": {"sleep": False}}, pairs)
    check_engine({"engine": {"sleep": True}}, pairs)
    check_engine({"engine": {}}, pairs)
    check_engine({"engine": {"sleep": False}}, placed(workers=2, available=2, **DEFAULT))


def test_several_engines_that_measure_one_gpu_are_one_line() -> None:
    vllm: dict[str, Any] = {"memory": None, "cache": None, "sleep": False}
    for workers, available in ((2, 1), (4, 2), (3, 2)):  # workers share a GPU
        several = placed(workers=workers, available=available, **DEFAULT)
        with pytest.raises(ConfigError, match=r"^runtime.workers: .* share .*engine.memory=null$"):
            check_engine({"engine": vllm}, several)
        check_engine({"engine": vllm | {"cache": 4.0}}, several)
        check_engine({"engine": {"max_rows": 8}}, several)
    check_engine(
        {"engine": vllm | {"sleep": True}},
        placed(workers=2, available=2, colocated=True, **DEFAULT),
    )
    by_hand = Placement(workers=2, learners=1, worker_gpus=0.3, learner_gpus=0.4)
    with pytest.raises(ConfigError, match=r"^runtime.workers: .* 0.3 GPU"):
        check_engine({"engine": vllm}, by_hand)
    for workers, available in ((1, 1), (1, 2), (3, 4), (2, 0)):
        check_engine({"engine": vllm}, placed(workers=workers, available=available, **DEFAULT))
    alone = load(["+experiment=tiny/smoke", "engine=vllm", "engine.sleep=true", "runtime=ray"])
    with pytest.raises(ConfigError, match=r"^engine.sleep: engines of workers can sleep only if"):
        RayRuntime().check(RolloutSetup(alone))


def test_a_note_states_the_resources_of_workers_and_ranks() -> None:
    (line,) = placed(workers=2, available=2, colocated=True, **DEFAULT).notes()
    assert line.startswith("runtime: 2 GPU(s), each of one worker and one learner rank")
    assert placed(workers=2, available=0, **DEFAULT).notes() == []
    (line,) = placed(workers=2, available=2, **DEFAULT).notes()
    assert "2 worker(s) with 0.5 GPU(s) each, 1 learner rank(s) with 1 GPU(s) each" in line
    (line,) = placed(workers=2, available=2, **{**DEFAULT, "learners": 0}).notes()
    assert "this process learns on the CPU; runtime.learners=1" in line


def test_a_note_states_how_many_workers_would_use_all_gpus() -> None:
    for workers, idle in ((8, 3), (2, 5), (14, 0), (7, 0)):
        _, *lines = placed(workers=workers, available=8, **DEFAULT).notes()
        wanted = f"runtime: {idle} of 8 GPUs have no actor; 7 workers (runtime.workers) would use"
        assert [line.startswith(wanted) for line in lines] == [True] * bool(idle)
    _, *lines = placed(workers=2, available=8, **{**DEFAULT, "worker_gpus": 0.5}).notes()
    assert not lines, "the user chose the number of GPUs"


def test_a_note_for_each_node_states_its_actors() -> None:
    made = placed(workers=2, available=8, **{**DEFAULT, "learners": 2})
    assert made.node_notes(["a", "a", "a", "b"]) == [
        "runtime: node a: 2 worker(s), 1 learner rank(s)",
        "runtime: node b: 1 learner rank(s)",
    ]
    assert made.node_notes([]) == []
    made = placed(workers=2, available=2, colocated=True, **DEFAULT)
    assert made.node_notes(["a", "b"]) == [
        "runtime: node a: 1 pair(s) of worker and learner rank",
        "runtime: node b: 1 pair(s) of worker and learner rank",
    ]
    groups = policy_groups({"proposer": 2, "judge": 1, "critic": "proposer"})
    made = placed(workers=3, available=0, groups=groups, **DEFAULT)
    assert made.node_notes(["a", "b", "b"]) == [
        "runtime: node a: 1 worker(s) of proposer and critic",
        "runtime: node b: 1 worker(s) of proposer and critic, 1 worker(s) of judge",
    ]


def test_a_node_has_the_name_of_its_host_and_what_distinguishes_it() -> None:
    def node(name: str, host: str, address: str, alive: bool = True) -> dict[str, Any]:
        known = {"NodeManagerHostname": host, "NodeManagerAddress": address, "Alive": alive}
        return {"NodeID": name * 4, **known}

    nodes = [node("aaaa", "x", "1"), node("bbbb", "y", "2"), node("cccc", "y", "3")]
    nodes += [node("dddd", "z", "4"), node("eeee", "z", "4"), node("ffff", "x", "1", alive=False)]
    assert node_names(nodes, "b" * 16) == {
        "a" * 16: "x",
        "b" * 16: "y 2 (this one)",
        "c" * 16: "y 3",
        "d" * 16: "z 4 dddddddd",
        "e" * 16: "z 4 eeeeeeee",
    }


def test_engines_are_in_16_bits_on_gpus_and_in_the_policys_type_elsewhere() -> None:
    here = Placement(workers=1, learners=0, worker_gpus=0.0, learner_gpus=0.0)
    there = Placement(workers=1, learners=1, worker_gpus=0.5, learner_gpus=0.5)
    assert worker_dtype("auto", here) is None and worker_dtype("auto", there) is torch.bfloat16
    assert worker_dtype("float32", there) is None
    with pytest.raises(ValueError, match=r"worker_dtype: unknown type 'half'"):
        RayRuntime(worker_dtype="half")  # type: ignore[arg-type]


def test_a_store_that_new_weights_do_not_fit_into_is_one_line() -> None:
    assert store_notes(2e9, 8e9, None, saved=4e9) == store_notes(2e9, 8e9, 8e9, saved=4e9) == []
    (line,) = store_notes(15.2e9, 10e9, None, saved=30.5e9)
    assert line.startswith(
        "runtime: 2 versions of the weights that learn, and one for a checkpoint, have 60.9 GB, and"
    )
    (line,) = store_notes(1e6, 10e9, 64e6, saved=2e6)
    assert line.startswith("runtime: /dev/shm has 0.1 GB and Ray's object store 10.0 GB, so that ")


def test_actors_get_shared_variables_and_none_of_a_single_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = ("HF_TOKEN", "NCCL_IB_HCA", "PYTORCH_CUDA_ALLOC_CONF", "VLLM_LOGGING_LEVEL")
    for name in (*needed, "VLLM_HOST_IP", "CUDA_VISIBLE_DEVICES", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "7")
    sent = environment(gpu=True)
    assert {name: sent.get(name) for name in needed} == dict.fromkeys(needed, "7")
    assert not {"VLLM_HOST_IP", "CUDA_VISIBLE_DEVICES", "AWS_SECRET_ACCESS_KEY"} & set(sent)
    assert environment()["CUDA_VISIBLE_DEVICES"] == ""
    assert sent["RAY_worker_niceness"] == "0"
    monkeypatch.setenv("RAY_worker_niceness", "5")
    assert environment()["RAY_worker_niceness"] == "5"


def test_actors_get_folders_of_the_user_next_to_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The libraries of an installation are left out, and its other folders are sent."""
    installed, own = tmp_path / "gpu", tmp_path / "gpu_games"
    inside = [installed / "lib" / "python3.12" / "site-packages", installed / "lib64"]
    monkeypatch.setattr(sys, "prefix", str(installed))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    paths = [*inside, tmp_path / "lib" / "python3", own, installed / "src" / "app"]
    monkeypatch.setattr(sys, "path", [str(path) for path in paths])
    sent = environment()["PYTHONPATH"].split(os.pathsep)
    assert sent == [str(path.resolve()) for path in paths[3:]]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"workers": 16, "colocated": True}, 16.0),
        ({"workers": 8, "learners": 8}, 16.0),
    ],
)
def test_a_run_may_need_more_gpus_than_the_machine_of_its_driver(
    settings: dict[str, Any], wanted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Joined:
        """A cluster of two machines with eight GPUs each."""

        def __init__(self, *, address: str | None, cpus: float, timeout: float) -> None:
            self.reserved: list[dict[str, float]] = []

        def gpus(self) -> float:
            return 16.0

        def reserve(self, bundles: list[dict[str, float]]) -> None:
            self.reserved = bundles

        def places(self) -> list[str]:
            return []

        def close(self) -> None:
            pass

        put = close

    monkeypatch.setattr("selfplay.runtime.ray.RayCluster", Joined)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    runtime = RayRuntime(address="head:6379", **settings)
    assert runtime.learner_device is None
    players: Any = SimpleNamespace(config=load([SMOKE, "runtime=ray"]))
    runtime.engine(players)
    assert runtime.learner_device == "cuda"
    reserved = runtime.cluster.reserved  # type: ignore[union-attr]
    assert sum(bundle["GPU"] for bundle in reserved) == wanted
    with pytest.raises(ConfigError, match=r"and there are 8|take all 8 GPUs"):
        RayRuntime(**settings).engine(players)


@pytest.mark.parametrize("device", ["cuda:7", "cuda"])
def test_the_device_of_a_policy_cannot_be_chosen_with_ray(device: str) -> None:
    config = load([SMOKE, "runtime=ray", f"policy.device={device}"])
    with pytest.raises(ConfigError, match=rf"^policy\.device: .*not '{device}'.*device=auto$"):
        check_devices(config)
    check_devices(load([SMOKE, "runtime=ray"]))


def test_a_critic_of_the_driver_takes_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"credit": {"critic": {"device": "auto"}}}
    check_devices(config)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match=r"^credit\.critic\.device: .*set credit.critic.device=c"):
        check_devices(config)
    check_devices({"credit": {"critic": {"device": "cpu"}}})


@pytest.fixture(scope="module")
def two_gpus() -> Iterator[None]:
    """Start a Ray that counts two GPUs."""
    ray.init("local", num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def cluster(two_gpus: None) -> Iterator[RayCluster]:
    made = RayCluster(address=None, cpus=4, timeout=300)
    yield made
    made.close()


def test_an_actor_without_a_gpu_sees_none_and_others_their_own(cluster: RayCluster) -> None:
    assert cluster.gpus() == 2.0
    made = placed(workers=1, available=cluster.gpus(), **DEFAULT)
    cluster.reserve([{"CPU": 0.1, "GPU": made.worker_gpus}, {"CPU": 0.1, "GPU": 1}, {"CPU": 0.1}])
    actors = [cluster.actor(Seeing, bundle=number) for number in range(3)]
    *seen, blind = cluster.get([actor.visible.remote() for actor in actors], "actors")
    assert blind == ""
    assert sorted(seen) == ["0", "1"]
    found = cluster.get([actor.priority.remote() for actor in actors], "actors")
    assert found == [os.nice(0)] * 3  # Ray's default is 15 higher, too slow next to busy work
    assert "CUDA_VISIBLE_DEVICES" not in environment(gpu=True)


def test_the_default_parts_of_gpus_can_be_reserved(cluster: RayCluster) -> None:
    cluster.timeout = 60.0
    three = placed(workers=3, available=cluster.gpus(), **{**DEFAULT, "learners": 0})
    assert three.worker_gpus == 0.5, "not 2/3, because a GPU has room for only one of these"
    cluster.reserve(three.bundles(0.1, 0.1))
    with pytest.raises(ConfigError, match=r"^runtime: 3 GPUs are needed, because an actor with a "):
        cluster.reserve([{"CPU": 0.1, "GPU": 0.6}] * 3)


def test_a_pair_of_worker_and_rank_sees_one_gpu(cluster: RayCluster) -> None:
    made = placed(workers=2, available=cluster.gpus(), colocated=True, **DEFAULT)
    cluster.reserve(made.bundles(0.1, 0.2))
    parts = (made.worker_resources(0.1), made.rank_resources(0.2))
    actors = [
        cluster.actor(Seeing, bundle=bundle, resources=part)
        for part in parts
        for bundle in made.rank_bundles()
    ]
    seen = cluster.get([actor.visible.remote() for actor in actors], "actors")
    assert seen[:2] == seen[2:] and sorted(seen[:2]) == ["0", "1"]


def test_the_driver_stays_on_the_cpu() -> None:
    assert {RayRuntime(learners=n).device for n in (None, 0, 2)} == {"cpu"}


@pytest.mark.parametrize(
    ("gpus", "colocated", "later"),
    [
        ((0.5, 0.5), False, True),
        ((0.5, 0.5), True, False),
        ((1.0, 1.0), False, False),
        ((0.0, 0.0), False, False),
    ],
)
def test_workers_that_share_a_gpu_with_ranks_start_with_their_first_jobs(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[float, float], colocated: bool, later: bool
) -> None:
    """vLLM would count memory that a rank allocates on the same GPU during its start."""

    class Ranks:
        rest = None

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def trainers(self, *_: Any) -> dict[str, Any]:
            return {}

        def close(self) -> None: ...

    started: list[WorkerMember] = []
    cluster: Any = SimpleNamespace(store_bytes=lambda: 1e9, connected_here=False)
    workers = RolloutWorkers(
        cluster, count=2, chunks=1, timeout=1.0, load_timeout=1.0, max_restarts=0
    )

    def start(member: WorkerMember) -> None:
        member.actor = object()
        started.append(member)

    monkeypatch.setattr(workers, "_start", start)
    monkeypatch.setattr("selfplay.runtime.ray.LearnerWorkerGroup", Ranks)
    runtime = RayRuntime(workers=2)
    engine: Any = SimpleNamespace(seconds=1.0)
    runtime.cluster, runtime._workers, runtime._engine = cluster, workers, engine
    runtime._placement = Placement(
        workers=2, learners=1, worker_gpus=gpus[0], learner_gpus=gpus[1], colocated=colocated
    )
    players: Any = SimpleNamespace(policies={}, config={}, saved=None)
    objective: Any = None
    runtime.trainers(players, objective)
    assert len(started) == (0 if later else 2)
    workers._fill()  # the first specs call this method
    assert len(started) == 2
