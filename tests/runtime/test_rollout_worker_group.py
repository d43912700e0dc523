"""Tests of rollout workers of a real Ray: their episodes, their updates, and their deaths."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from selfplay.errors import ConfigError, RunError
from selfplay.learner.checkpoint import MANIFEST
from selfplay.learner.objective import PolicyLoss
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime.ray import RayRuntime, newest
from selfplay.types import Completion, Episode, Request, StopReason, Task, Turn
from tests.helpers.builders import save_tiny
from tests.helpers.command_process import LONGEST, finished
from tests.helpers.engine_requests import teacher
from tests.helpers.fault_injection import settings, specs

ray = pytest.importorskip("ray")

SIZES = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64, "positions": 256}
LORA = {"rank": 2, "alpha": 4}


class Driver:
    """The driver's side of two workers."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "mark"
        config = settings(save_tiny(folder / "model", **SIZES), self.mark, lora=LORA)
        self.players = RolloutSetup(config)
        self.runtime = RayRuntime(workers=2, worker_cpus=0.5, timeout=300)
        self.engine: Any = self.runtime.engine(self.players)
        self.players.load(self.engine)
        self.runtime.trainers(self.players, PolicyLoss())
        self.play = self.runtime.rollout_fn(self.players)
        self.workers: Any = self.runtime._workers
        self.policy = self.players.policies["thinker"]

    def change(self, scale: float) -> None:
        """Change the policy's weights, as an update does."""
        torch.manual_seed(int(scale * 1000))
        for parameter in self.policy.model.parameters():
            if parameter.requires_grad:
                parameter.data = torch.randn_like(parameter) * scale

    def publish(self, version: int) -> None:
        self.engine.publish("thinker", self.policy.model.state_dict(), version)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        made = Driver(tmp_path_factory.mktemp("driver"))
        try:
            yield made
        finally:
            made.runtime.close()
            made.players.close()
    finally:
        ray.shutdown()


@pytest.fixture(autouse=True)
def nothing_counted(driver: Driver) -> None:
    driver.runtime.counts()


def tasks(episodes: list[Episode]) -> list[str]:
    return [episode.task.id for episode in episodes]


def processes(episodes: list[Episode]) -> list[float]:
    return [episode.metrics["process"] for episode in episodes]


def thinker_turns(
    driver: Driver, seating: dict[str, str] | None = None, groups: int = 4
) -> list[Turn]:
    """Return turns of the policy, or of a snapshot of it, from both workers."""
    asked = [
        EpisodeSpec(
            task=Task(id=f"think {number}", payload={"agents": ["thinker_0"]}),
            seed=number,
            policy_map=seating or {},
        )
        for number in range(groups)
    ]
    episodes = driver.play(asked)
    assert len(set(processes(episodes))) == 2
    return [turn for episode in episodes for turn in episode.turns]


def difference(turns: list[Turn], model: Any) -> float:
    """Return the mean difference per token of sampled and recomputed log-probabilities."""
    apart = []
    for turn in turns:
        request = Request(
            id=0,
            policy="",
            prompt_ids=tuple(turn.prompt_ids),
            seed=0,
            max_tokens=len(turn.completion_ids),
        )
        done = Completion(
            id=0,
            completion_ids=tuple(turn.completion_ids),
            logprobs=tuple(turn.logprobs),
            stop_reason=StopReason.STOP,
        )
        apart.append((teacher(model, request, done, 1.0) - torch.tensor(turn.logprobs)).abs())
    return float(torch.cat(apart).mean())


def test_episodes_keep_the_order_of_jobs_and_siblings_share_a_worker(driver: Driver) -> None:
    asked = specs(6, size=3)
    played = driver.play(asked)
    assert tasks(played) == [spec.task.id for spec in asked]
    assert [episode.seed for episode in played] == [spec.seed for spec in asked]
    assert len(set(processes(played))) == 2 and os.getpid() not in processes(played)
    for first in range(0, 18, 3):
        assert len(set(processes(played[first : first + 3]))) == 1
    again = driver.play(asked)
    assert [episode.turns for episode in again] == [episode.turns for episode in played]
    assert driver.play([]) == []


def kill_one(driver: Driver) -> None:
    """Kill a worker during play; its specs are played again, and each gives one episode."""
    before = driver.play(specs(4))
    driver.runtime.counts()
    mark = driver.mark.with_name("deadly")
    mark.touch()
    played = driver.play(specs(4, trouble="die", mark=str(mark)))
    assert tasks(played) == tasks(before) == ["t0", "t0", "t1", "t1", "t2", "t2", "t3", "t3"]
    assert [episode.turns for episode in played] == [episode.turns for episode in before]
    counts = driver.runtime.counts()
    assert (counts["runtime/worker_deaths"], counts["runtime/resubmitted_episodes"]) == (1, 4)


def test_workers_that_rested_play_as_before(driver: Driver) -> None:
    before = driver.play(specs(4))
    driver.workers.rest()
    driver.workers.rest()
    driver.publish(7)  # arrives while they rest
    assert [e.turns for e in driver.play(specs(4))] == [e.turns for e in before]
    driver.runtime.counts()
    os.kill(int(processes(before)[0]), signal.SIGKILL)
    driver.workers.rest()  # the dead worker is dropped, and the other one rests
    assert sorted(member.rest_deaths for member in driver.workers._members) == [0, 1]
    assert [e.turns for e in driver.play(specs(4))] == [e.turns for e in before]
    assert driver.runtime.counts()["runtime/worker_deaths"] == 1
    driver.workers.rest()
    driver.play(specs(4))
    assert [member.rest_deaths for member in driver.workers._members] == [0, 0]


@pytest.mark.slow
def test_a_broken_engine_ends_its_worker(driver: Driver) -> None:
    before = driver.play(specs(4))
    driver.mark.touch()
    assert [e.turns for e in driver.play(specs(4))] == [e.turns for e in before]
    counts = driver.runtime.counts()
    assert (counts["runtime/worker_deaths"], counts["runtime/resubmitted_episodes"]) == (1, 4)


@pytest.mark.slow
def test_a_worker_that_hangs_is_given_up(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = driver.mark.with_name("hanging")
    mark.touch()
    replace = driver.workers._replace_lost

    def patiently(member: Any, why: str) -> None:  # a replacement needs time to load
        driver.workers.timeout = 300
        replace(member, why)

    monkeypatch.setattr(driver.workers, "_replace_lost", patiently)
    # On a busy machine a worker that only starts late must not count as hanging.
    driver.workers.timeout = 20
    played = driver.play(specs(1, trouble="hang", mark=str(mark)))
    assert tasks(played) == ["t0", "t0"]
    assert driver.runtime.counts()["runtime/resubmitted_episodes"] == 2


def test_errors_of_the_library_arrive_unchanged_and_others_play_on(driver: Driver) -> None:
    with pytest.raises(ConfigError) as raised:
        driver.play(specs(2, trouble="refuse"))
    assert type(raised.value) is ConfigError
    assert str(raised.value) == "the arena: a setting that only play finds wrong; change it"
    with pytest.raises(ConfigError, match="no agent 'talker_0' to be seated"):
        driver.play([EpisodeSpec(task=Task(id="t"), seed=0, policy_map={"talker_0": "thinker"})])
    assert len(driver.play(specs(2))) == 4
    assert driver.runtime.counts()["runtime/worker_deaths"] == 0


@pytest.mark.slow
def test_deaths_one_after_another_end_in_one_line(driver: Driver) -> None:
    driver.workers.max_restarts = 0
    with pytest.raises(
        RunError,
        match=r"^runtime: 1 workers died while they played the same episodes .*max_restarts",
    ) as raised:
        driver.play(specs(2, trouble="die"))
    assert "\n" not in str(raised.value)
    driver.workers.max_restarts = 3
    assert len(driver.play(specs(2))) == 4


def test_workers_know_the_tasks_of_the_buffer(driver: Driver) -> None:
    buffer = driver.players.services["buffer"]
    for number in (1, 2):
        buffer.add(Task(id=f"new {number}"), step=0)
        assert {episode.metrics["known"] for episode in driver.play(specs(4))} == {float(number)}


def test_new_weights_arrive_whole_and_snapshots_keep_theirs(driver: Driver) -> None:
    """Adapters are sent without their base. After a death the new worker has the same snapshots."""
    from selfplay.league import Snapshot
    from selfplay.league.snapshots import Snapshots

    model = driver.policy.model
    assert difference(thinker_turns(driver), model) < 1e-5
    driver.change(0.5)
    assert difference(thinker_turns(driver), model) > 1e-2  # nothing was published
    driver.publish(4)
    driver.policy.version = 4
    turns = thinker_turns(driver)
    assert difference(turns, model) < 1e-5 and {turn.version for turn in turns} == {4}

    snapshots = Snapshots(driver.players.policies, driver.players.policy_pool, driver.engine)
    snapshots.add(Snapshot(player="thinker", updates=4))
    copy = snapshots._copies["thinker@4"].model
    driver.change(0.7)
    driver.publish(5)
    past = {"thinker_0": "thinker@4"}
    for again in (False, True):
        if again:
            kill_one(driver)
        turns = thinker_turns(driver, past)
        assert difference(turns, copy) < 1e-5 < 1e-2 < difference(turns, model)
        assert {(turn.policy, turn.version) for turn in turns} == {("thinker@4", 4)}
        turns = thinker_turns(driver)
        assert difference(turns, model) < 1e-5 and {turn.version for turn in turns} == {5}
    snapshots.rest()
    assert difference(thinker_turns(driver, past), copy) < 1e-5
    snapshots.remove("thinker@4")
    with pytest.raises(ConfigError, match="no policy 'thinker@4'"):
        driver.play([EpisodeSpec(task=Task(id="t"), seed=0, policy_map={"speaker_0": "thinker@4"})])
    buffer = driver.players.services["buffer"]
    assert {episode.metrics["known"] for episode in driver.play(specs(4))} == {float(buffer.size)}


def test_weights_reach_workers_that_play(driver: Driver) -> None:
    """The update waits for the end of the episodes: the engine has no in-flight updates."""
    mark = driver.mark.with_name("waiting")
    mark.touch()
    payload = {"agents": ["thinker_0"], "rounds": 4, "trouble": "wait", "mark": str(mark)}
    task = Task(id="long", payload=payload)
    driver.publish(6)
    found: list[Episode] = []
    thread = threading.Thread(
        target=lambda: found.extend(driver.play([EpisodeSpec(task=task, seed=0)]))
    )
    thread.start()
    while mark.exists():  # until the first round is played
        assert thread.is_alive()
        time.sleep(0.02)
    driver.change(0.3)
    driver.publish(7)
    workers = [member.actor for member in driver.workers._members]
    ray.get([each.steps.options(concurrency_group="fetch").remote() for each in workers])  # arrived
    mark.with_suffix(".go").touch()
    thread.join(LONGEST)
    assert [turn.version for turn in found[0].turns] == [6] * 4
    assert {turn.version for turn in thinker_turns(driver)} == {7}


def test_workers_take_no_checkpoint_that_is_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    shutil.copytree(finished() / "checkpoints", folder)
    *_, older, newer = (place for place in sorted(folder.iterdir()) if place.name.isdigit())
    assert newest(older) == newer and newest(None) is None
    (weights,) = (newer / "policies").glob("*/*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    (newer / MANIFEST).touch()
    assert newest(older) == older


def test_workers_start_from_published_weights_without_files(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers on GPUs start like this. The weight files are removed before the start."""
    monkeypatch.setattr(RayRuntime, "_workers_receive", staticmethod(lambda placement: True))
    folder = save_tiny(tmp_path / "model", **SIZES)
    players = RolloutSetup(settings(folder, tmp_path / "mark"))
    runtime = RayRuntime(workers=1, worker_cpus=0.5, timeout=300, max_restarts=1)
    engine: Any = runtime.engine(players)
    players.load(engine)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    try:
        runtime.trainers(players, PolicyLoss())
        play, model = runtime.rollout_fn(players), players.policies["thinker"].model
        embedding: Any = model.get_input_embeddings()
        asked = [EpisodeSpec(task=Task(id="t", payload={"agents": ["thinker_0"]}), seed=0)]
        for version in range(3):
            if version:
                with torch.no_grad():
                    embedding.weight.mul_(1.5)
                engine.publish("thinker", model.state_dict(), version)
            (episode,) = play(asked)
            (turn,) = episode.turns
            assert turn.version == version and difference([turn], model) < 1e-5
            if version == 1:  # its replacement starts from the newest weights
                os.kill(int(episode.metrics["process"]), signal.SIGKILL)
        assert runtime.counts()["runtime/worker_deaths"] == 1
    finally:
        runtime.close()
        players.close()
