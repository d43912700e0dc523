"""Tests of workers that hold one policy each, on a real Ray, against one process with all."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from selfplay.errors import ConfigError, RunError
from selfplay.league import Snapshot
from selfplay.league.snapshots import Snapshots
from selfplay.learner.objective import PolicyLoss
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime.local import Local
from selfplay.runtime.ray import RayRuntime
from selfplay.runtime.weight_sync import LoadState
from selfplay.types import Episode, Task
from tests.helpers.builders import save_tiny
from tests.helpers.command_process import SMOKE, contents, metrics, run
from tests.helpers.fault_injection import settings

ray = pytest.importorskip("ray")

SIZES = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64, "positions": 64}
ROLES = ("speaker", "thinker")


def both(folder: Path, engine: str) -> dict[str, Any]:
    """Return a config with two policies that have separate weights."""
    made = settings(save_tiny(folder / "model", **SIZES), folder / "mark")
    made["population"] |= {"sharing": "separate", "roles": {}, "opponents": {}}
    made["run"] |= {"deterministic": True}
    made["engine"] |= {} if engine == "fragile" else {"mark": str(folder / "none")}
    return made


def games(groups: int = 4, size: int = 2, **payload: Any) -> list[EpisodeSpec]:
    """Return specs in which two agents of different policies act together, for two rounds."""
    shared = {"agents": ["speaker_0", "thinker_0"], "rounds": 2, **payload}
    return [
        EpisodeSpec(task=Task(id=f"t{group}", payload=shared), seed=group, member=member)
        for group in range(groups)
        for member in range(size)
    ]


class Side:
    """A runtime with its policies."""

    def __init__(self, runtime: Any, config: dict[str, Any]) -> None:
        self.runtime, self.players = runtime, RolloutSetup(config)
        self.engine: Any = runtime.engine(self.players)
        self.players.load(self.engine)
        runtime.trainers(self.players, PolicyLoss())
        self.play = runtime.rollout_fn(self.players)

    def publish(self, name: str, version: int) -> None:
        """Change the weights of a policy and publish them."""
        torch.manual_seed(version)
        model = self.players.policies[name].model
        for parameter in model.parameters():
            parameter.data = torch.randn_like(parameter) * 0.3
        self.engine.publish(name, model.state_dict(), version)

    def close(self) -> None:
        self.runtime.close()
        self.players.close()


class RaySide(Side):
    """A Ray runtime with one worker for the speaker and two for the thinker."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "mark"
        workers = {"speaker": 1, "thinker": 2}
        config = both(folder, "fragile")
        super().__init__(RayRuntime(workers=workers, worker_cpus=0.4, timeout=300), config)
        self.workers = self.runtime._workers

    def asked(self, what: Any) -> list[Any]:
        """Call a function of the actor on all workers, and return its results."""
        actors = [member.actor for member in self.workers._members]
        calls = [actor.__ray_call__.options(concurrency_group="play") for actor in actors]
        return ray.get([call.remote(what) for call in calls])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ray_side")


@pytest.fixture(scope="module")
def ray_side(folder: Path) -> Iterator[RaySide]:
    torch.use_deterministic_algorithms(True)
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        made = RaySide(folder)
        try:
            yield made
        finally:
            made.close()
    finally:
        ray.shutdown()
        torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def here(ray_side: RaySide, folder: Path) -> Iterator[Side]:
    made = Side(Local(), both(folder, "whole"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def nothing_counted(ray_side: RaySide) -> None:
    ray_side.runtime.counts()


def close_to(found: list[Episode], wanted: list[Episode]) -> None:
    """Check equal tokens and rewards, and log-probabilities up to rounding (other batch sizes)."""
    for one, other in zip(found, wanted, strict=True):
        assert [t.completion_ids for t in one.turns] == [t.completion_ids for t in other.turns]
        assert [t.version for t in one.turns] == [t.version for t in other.turns]
        assert [t.reward for t in one.turns] == [t.reward for t in other.turns]
        for mine, yours in zip(one.turns, other.turns, strict=True):
            assert list(mine.logprobs) == pytest.approx(list(yours.logprobs), abs=1e-5)


def test_each_worker_holds_only_the_policies_of_its_group(ray_side: RaySide) -> None:
    held = ray_side.asked(lambda worker: sorted(worker._models))
    assert held == [["speaker"], ["thinker"], ["thinker"]]
    served = ray_side.asked(lambda worker: sorted(worker._engine.engine._batches))
    assert served == held
    assert "speaker on 1 worker(s), thinker on 2 worker(s)" in ray_side.runtime.notes[0]


def test_samples_are_those_of_one_process(ray_side: RaySide, here: Side) -> None:
    asked = games()
    found, wanted = ray_side.play(asked), here.play(asked)
    close_to(found, wanted)
    assert [e.task for e in found] == [spec.task for spec in asked]
    assert {turn.policy for e in found for turn in e.turns} == set(ROLES)
    # Two workers divide the thinker's requests, and repeat their answers bit for bit.
    assert [e.turns for e in ray_side.play(asked)] == [e.turns for e in found]
    counts = ray_side.runtime.counts()
    assert counts["engine/speaker/completion_tokens"] > 0 < counts["engine/thinker/prompt_tokens"]
    assert ray_side.play([]) == []


def test_siblings_are_sampled_by_one_worker(ray_side: RaySide) -> None:
    ray_side.play(games(4, 3))
    chosen = ray_side.workers._chosen
    assert len(chosen) == 8  # one worker for each group of episodes and policy
    thinkers = [chosen[1, seed].bundle for seed in range(4)]
    assert sorted(thinkers) == [1, 1, 2, 2]


def test_weights_arrive_only_where_the_policy_is(ray_side: RaySide, here: Side) -> None:
    before = ray_side.asked(lambda worker: worker._inbox._number)
    for side in (ray_side, here):
        side.publish("thinker", 3)
    asked = games()
    close_to(ray_side.play(asked), here.play(asked))
    after = ray_side.asked(lambda worker: worker._inbox._number)
    assert [now - then for now, then in zip(after, before, strict=True)] == [0, 1, 1]
    with pytest.raises(RuntimeError, match="services are in the process that plays"):
        ray_side.workers.send(LoadState(service="buffer", state=b""))


def kill_one(ray_side: RaySide, asked: list[EpisodeSpec]) -> None:
    """Kill a worker of a group; its replacement holds the same policies and no others."""
    before, held = ray_side.play(asked), ray_side.asked(lambda worker: sorted(worker._models))
    ray_side.runtime.counts()
    pids = ray_side.asked(lambda worker: os.getpid())
    os.kill(pids[1], signal.SIGKILL)
    close_to(ray_side.play(asked), before)
    counts = ray_side.runtime.counts()
    assert counts["runtime/worker_deaths"] == 1 and counts["runtime/resubmitted_requests"] >= 1
    now = ray_side.asked(lambda worker: os.getpid())
    assert [one == other for one, other in zip(pids, now, strict=True)] == [True, False, True]
    assert ray_side.asked(lambda worker: sorted(worker._models)) == held


def test_a_snapshot_is_held_by_the_workers_of_its_player(ray_side: RaySide, here: Side) -> None:
    asked = [replace(spec, policy_map={"thinker_0": "thinker@3"}) for spec in games()]
    for side in (ray_side, here):
        players = side.players
        past = Snapshots(players.policies, players.policy_pool, side.engine)
        past.add(Snapshot(player="thinker", updates=3))
        side.publish("thinker", 4)
    close_to(ray_side.play(asked), here.play(asked))
    assert ray_side.asked(lambda worker: sorted(worker._models)) == [
        ["speaker"],
        ["thinker", "thinker@3"],
        ["thinker", "thinker@3"],
    ]
    kill_one(ray_side, asked)
    for side in (ray_side, here):
        side.engine.withdraw("thinker@3")
        side.players.policy_pool.remove("thinker@3")
    ray_side.play(games())
    assert ray_side.asked(lambda worker: len(worker._models)) == [1, 1, 1]


@pytest.mark.slow
def test_an_engine_that_breaks_in_a_game_is_replaced(ray_side: RaySide) -> None:
    before = ray_side.play(games())
    ray_side.runtime.counts()
    ray_side.mark.touch()
    close_to(ray_side.play(games()), before)
    assert ray_side.runtime.counts()["runtime/worker_deaths"] == 1
    ray_side.workers.max_restarts = 0
    ray_side.mark.touch()
    with pytest.raises(RunError, match=r"^runtime: 1 workers of policy \w+ died with the same"):
        ray_side.play(games())
    ray_side.workers.max_restarts = 3
    close_to(ray_side.play(games()), before)


def test_errors_of_a_game_leave_no_open_requests(ray_side: RaySide) -> None:
    before = ray_side.play(games())
    trouble = games(1, 1, trouble="refuse")
    with pytest.raises(ConfigError, match="a setting that only play finds wrong"):
        ray_side.play([*games(2), *trouble])
    assert [e.turns for e in ray_side.play(games())] == [e.turns for e in before]


@pytest.mark.slow
def test_a_run_with_a_worker_per_policy_equals_that_of_one_process(tmp_path: Path) -> None:
    more = ("runtime=ray", "runtime.workers={proposer: 1, solver: 1}")
    for name, runtime in (("here", ()), ("there", more)):
        outcome = run(
            "train", SMOKE, "population=separate", f"run.name={name}", *runtime, cwd=tmp_path
        )
        assert outcome.code == 0, outcome.err
    here, there = tmp_path / "runs/here", tmp_path / "runs/there"
    assert contents(there) == contents(here)
    for one, other in zip(metrics(there), metrics(here), strict=True):
        own = {name for name in (*one, *other) if name.startswith(("runtime/", "engine/"))}
        assert {k: v for k, v in one.items() if k not in own} == {
            k: v for k, v in other.items() if k not in own
        }
        tokens = "completion_tokens"
        assert sum(v for k, v in one.items() if k.endswith(tokens)) == sum(
            v for k, v in other.items() if k.endswith(tokens)
        )
