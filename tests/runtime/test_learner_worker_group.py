"""Tests of learner ranks as actors of a real Ray on this machine: learning, deaths, restarts."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from selfplay.config import compose
from selfplay.config.instantiate import build, make
from selfplay.errors import ConfigError, DivergedError, LearnersLost, RunError
from selfplay.learner import sharded_checkpoint
from selfplay.learner.fsdp import learned
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import BatchCounts, LossInputs, PolicyLoss
from selfplay.models.population import Population
from selfplay.rollout.policies import load_policies, make_learners
from selfplay.runtime.cluster import RayCluster
from selfplay.runtime.distributed_learner import DistributedLearner
from selfplay.runtime.learner_worker import LearnerConfig
from selfplay.runtime.learner_worker_group import LearnerWorkerGroup
from selfplay.runtime.weight_sync import RemoteWeights, checksum, unpack
from tests.helpers.builders import same, sample, save_tiny, weights
from tests.helpers.learner_processes import fetched

pytest.importorskip("ray")

SAMPLES = [sample([5 + n, 6, 7], [8, 9 + n, 10], 1.0 - n) for n in range(5)]


class Driver:
    """A driver with a cluster, the policies of a config, and ranks if a test needs them."""

    def __init__(self, folder: Path) -> None:
        self.cluster = RayCluster(address=None, cpus=2, timeout=300)
        self.cluster.reserve([{"CPU": 1.0}] * 2)
        self.config = compose.load(
            [
                "+experiment=tiny/smoke",
                "run.threads=1",
                "objective=ppo",
                f"policy.model={save_tiny(folder, hidden=16, layers=2, heads=2, intermediate=24)}",
            ]
        )
        self.objective = build(self.config["objective"]).resolved(exact=True)

    def players(self) -> Any:
        population = Population.of({**self.config, "warmstart": {}})
        settings = make(LearnerSettings, self.config["learner"], where="learner")
        return SimpleNamespace(
            config=self.config,
            population=population,
            policies=load_policies(population, seed=0),
            learner_settings=dict.fromkeys(population.policies, settings),
            saved=None,
        )

    def alone(self) -> Learner:
        players = self.players()
        found = make_learners(
            players.policies,
            settings=players.learner_settings,
            objective=self.objective,
            seed=0,
        )
        return found["base"]

    def ranks(
        self,
        count: int,
        *,
        timeout: float = 300,
        load_timeout: float = 0,
        max_restarts: int = 1,
    ) -> LearnerWorkerGroup:
        return LearnerWorkerGroup(
            self.cluster,
            bundles=range(count),
            gpu=False,
            timeout=timeout,
            load_timeout=load_timeout,
            max_restarts=max_restarts,
        )

    def trainer(self, ranks: LearnerWorkerGroup) -> DistributedLearner:
        return ranks.trainers(self.players(), self.objective)["base"]

    def send_signal(self, ranks: LearnerWorkerGroup, rank: int, number: int) -> None:
        """Send a signal to the process of a rank."""
        call = ranks._actors[rank].__ray_call__.options(concurrency_group="listen")
        os.kill(self.cluster.ray.get(call.remote(lambda _: os.getpid())), number)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    made = Driver(tmp_path_factory.mktemp("model"))
    yield made
    made.cluster.close()


def test_ranks_get_the_whole_path_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks run in other folders than the driver."""
    monkeypatch.chdir(tmp_path)
    given: list[Path | None] = []
    unused: Any = None
    ranks = LearnerWorkerGroup(unused, bundles=[0], gpu=False, timeout=1, max_restarts=1)

    def start(saved: Path | None) -> dict[str, Any]:
        given.append(saved)
        return {}

    monkeypatch.setattr(ranks, "_start", start)
    players: Any = SimpleNamespace(saved=Path("run/000001"), policies={})
    ranks.trainers(players, PolicyLoss())
    ranks.restart(LearnersLost("rank 0"), Path("run/000002"))
    assert given == [tmp_path / "run/000001", tmp_path / "run/000002"]


def test_a_killed_rank_is_named_and_new_ranks_load_the_checkpoint(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, ranks = driver.alone(), driver.ranks(2)
    trainer = driver.trainer(ranks)
    # On a busy machine a death may be known long after its effect on the other rank.
    monkeypatch.setattr("selfplay.runtime.learner_worker_group.GRACE", 120.0)
    try:
        for step in (1, 2):
            alone.update(SAMPLES, step=step)
        trainer.update(SAMPLES, step=1)
        trainer.save_shards(tmp_path)
        kept, sent = weights(fetched(trainer)), trainer.weights()
        assert trainer.weights() == {}, "the same weights are sent once"
        driver.send_signal(ranks, 1, signal.SIGKILL)
        with pytest.raises(LearnersLost, match=r"^learner rank 1 died \(optimize\): "):
            trainer.update(SAMPLES, step=2)
        assert same(weights(trainer.policy.model), kept)
        assert isinstance(sent, RemoteWeights)
        stored = unpack(ranks.read(sent.packed))  # the rank that stored them is dead
        assert same([stored[name] for name in learned(trainer.policy.model)], kept)
        assert {name: checksum(tensor) for name, tensor in stored.items()} == sent.checksums
        with pytest.raises(LearnersLost, match="were ended"):
            trainer.update(SAMPLES, step=2)
        ranks.restart(LearnersLost("rank 1"), None)
        assert ranks.counts() == {"runtime/learner_restarts": 1}
        trainer.load_shards(tmp_path)
        trainer.update(SAMPLES, step=2)
        for found, wanted in zip(weights(fetched(trainer)), weights(alone.model), strict=True):
            assert torch.allclose(found, wanted, atol=1e-5)
        with pytest.raises(RunError, match=r"lost 2 times .*max_restarts is 1.*: rank 0$"):
            ranks.restart(LearnersLost("rank 0"), None)
    finally:
        ranks.close()


def test_a_rank_that_is_killed_while_it_writes_is_named(driver: Driver, tmp_path: Path) -> None:
    ranks = driver.ranks(2)
    trainer = driver.trainer(ranks)
    try:
        trainer.update(SAMPLES, step=1)
        (tmp_path / "whole").mkdir()
        assert len(trainer.begin_shards(tmp_path / "whole")()) == 3
        hold = ranks._actors[0].__ray_call__.options(concurrency_group="listen")
        driver.cluster.ray.get(hold.remote(lambda rank: rank._thread.submit(time.sleep, 600) and 0))
        written = trainer.begin_shards(tmp_path)
        driver.send_signal(ranks, 1, signal.SIGKILL)
        with pytest.raises(LearnersLost, match=r"^learner rank 1 died \(end_save\): "):
            written()
    finally:
        ranks.close()


@pytest.mark.slow
def test_one_rank_equals_the_learner_of_this_process_bit_for_bit(
    driver: Driver, tmp_path: Path
) -> None:
    alone, ranks = driver.alone(), driver.ranks(1)
    trainer = driver.trainer(ranks)
    try:
        for step in (1, 2):
            assert trainer.update(SAMPLES, step=step) == alone.update(SAMPLES, step=step)
            assert same(weights(fetched(trainer)), weights(alone.model))
        trainer.save_shards(tmp_path)
        sharded_checkpoint.load(alone, tmp_path)
        assert trainer.update(SAMPLES, step=3) == alone.update(SAMPLES, step=3)
        assert same(weights(fetched(trainer)), weights(alone.model))
        wrong = sample([1, 2], [3], float("nan"))
        for step in range(4, 9):
            skipped = trainer.update([wrong], step=step)
            assert skipped["skipped"] == 1 and skipped == alone.update([wrong], step=step)
        with pytest.raises(DivergedError, match=r"the loss is nan at step 9 .*; 6 steps in a row"):
            trainer.update([wrong], step=9)
    finally:
        ranks.close()


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_and_replaced(driver: Driver) -> None:
    ranks = driver.ranks(2)
    trainer = driver.trainer(ranks)
    try:
        ranks.timeout = 5
        driver.send_signal(ranks, 1, signal.SIGSTOP)
        with pytest.raises(
            LearnersLost,
            match=r"^learner rank 1 does not answer after 5 s without progress \(optim",
        ):
            trainer.update(SAMPLES, step=1)
        ranks.timeout = 300
        ranks.restart(LearnersLost("rank 1"), None)
        trainer.update(SAMPLES, step=1)
    finally:
        ranks.close()


@dataclass(frozen=True, kw_only=True)
class SlowLoss(PolicyLoss):
    """A loss that takes 3 s for each micro-batch."""

    def loss(
        self, scores: LossInputs, totals: BatchCounts
    ) -> tuple[torch.Tensor, dict[str, float]]:
        time.sleep(3)
        return super().loss(scores, totals)


@pytest.mark.slow
def test_progress_within_the_limit_is_not_a_hang(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update takes longer than the limit, but each of its micro-batches does not."""
    settings = {**driver.config["learner"], "max_tokens": 6}
    monkeypatch.setattr(driver, "config", {**driver.config, "learner": settings})
    monkeypatch.setattr(driver, "objective", SlowLoss())
    ranks = driver.ranks(1, load_timeout=300)
    trainer = driver.trainer(ranks)
    try:
        ranks.timeout = 9
        began = time.monotonic()
        trainer.update([sample([5 + n, 6, 7], [8, 9 + n, 10], 1.0) for n in range(5)], step=1)
        assert time.monotonic() - began > 15
    finally:
        ranks.close()


def test_ranks_of_one_machine_have_consecutive_numbers(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks of a machine share a copy of the state, wherever Ray places them."""
    ranks = driver.ranks(4)
    ranks._players, ranks._objective = driver.players(), driver.objective
    joined: list[str] = []
    nodes = [(name, 0.0) for name in ("b", "a", "b", "a")]
    answers: dict[str, list[Any]] = {"node": nodes, "open": [("host", 1)]}
    begun: list[LearnerConfig] = []

    def begin(method: str, setup: LearnerConfig) -> list[Any]:
        begun.append(setup)
        return [{}]

    def ask(method: str, each: Any, named: Any) -> list[Any]:
        if method == "join":
            joined.extend(ranks._actors)
        return answers.get(method, [None])

    made = iter(["b0", "a0", "b1", "a1"])
    monkeypatch.setattr(driver.cluster, "actor", lambda kind, **settings: next(made))
    monkeypatch.setattr(ranks, "_ask", ask)
    monkeypatch.setattr(ranks, "ask", begin)
    ranks._start(None)
    assert joined == ["b0", "b1", "a0", "a1"]
    assert [setup.replicas for setup in begun] == [2]
    assert ranks.notes == [
        "runtime: 2 copies of the learners' state, each sharded over 2 ranks of one node"
    ]


@pytest.mark.slow
def test_a_blocked_port_is_named_with_its_address(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = driver.ranks(2)
    ranks._players, ranks._objective = driver.players(), driver.objective
    ask = ranks._ask

    def blocked(method: str, each: Any, named: Any) -> list[Any]:
        if method == "open":
            ask(method, each, named)
            ranks.timeout = 3
            return [door.getsockname()]
        return ask(method, each, named)

    monkeypatch.setattr(ranks, "_ask", blocked)
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))  # it does not listen
        place = "address {}, port {},".format(*door.getsockname())
        with pytest.raises(
            LearnersLost, match=rf"^learner rank 1 did not connect to rank 0 after 3 s .* {place}"
        ) as raised:
            ranks._start(None)
    assert "\n" not in str(raised.value) and not ranks._actors


@pytest.mark.slow
def test_a_full_gpu_ends_the_run_and_no_rank_is_started_again(driver: Driver) -> None:
    ranks = driver.ranks(1)
    trainer = driver.trainer(ranks)
    actor = ranks._actors[0].__ray_call__.options(concurrency_group="listen")
    try:
        driver.cluster.ray.get(actor.remote(_fill_gpu))
        with pytest.raises(RunError, match=r"^learning at step 1: CUDA out of memory; lower learn"):
            trainer.update(SAMPLES, step=1)
        assert ranks.counts() == {"runtime/learner_restarts": 0}
    finally:
        ranks.close()


def _fill_gpu(rank: Any) -> None:
    def scorer(*given: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    rank.learners["base"].scorer = scorer


@pytest.mark.slow
def test_a_rank_without_the_model_is_one_line(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = driver.ranks(1)
    policy = {**driver.config["policy"], "model": "/nowhere/at/all"}
    gone = {**driver.config, "policy": policy, "population": _pointing(driver, "/nowhere/at/all")}
    players = driver.players()
    players.config = gone
    try:
        with pytest.raises(ConfigError, match="no folder '/nowhere/at/all'"):
            ranks.trainers(players, driver.objective)
    finally:
        ranks.close()


def _pointing(driver: Driver, model: str) -> Any:
    population = dict(driver.config["population"])
    population["policy"] = {**population["policy"], "model": model}
    return population


@pytest.mark.gpu
def test_on_a_gpu_ranks_learn_what_one_learner_learns(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test both precisions here, because the GPUs of a cluster can be reserved only once."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    count = min(2, torch.cuda.device_count())
    driver.cluster.reserve([{"CPU": 1.0, "GPU": 1.0}] * count)
    plain = driver.config
    for precision, close in (("float32", 1e-4), ("bfloat16", 2e-2)):
        settings = {**plain["learner"], "precision": precision}
        monkeypatch.setattr(driver, "config", {**plain, "learner": settings})
        ranks = LearnerWorkerGroup(
            driver.cluster,
            bundles=range(count),
            gpu=True,
            timeout=300,
            max_restarts=0,
        )
        alone, trainer = driver.alone(), driver.trainer(ranks)
        try:
            wanted, found = alone.update(SAMPLES, step=1), trainer.update(SAMPLES, step=1)
            assert found["surprisal"] == pytest.approx(wanted["surprisal"], rel=close)
            assert {p.dtype for p in fetched(trainer).parameters()} == {torch.float32}
        finally:
            ranks.close()
