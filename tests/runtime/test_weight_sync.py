"""Weights on their way to a worker: they arrive whole, or the run ends."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from selfplay.errors import LearnersLost, RunError
from selfplay.runtime.remote_engine import RemoteEngine
from selfplay.runtime.rollout_worker import RolloutWorker
from selfplay.runtime.updatable_engine import UpdatableEngine
from selfplay.runtime.weight_sync import (
    Change,
    RemoteWeights,
    UpdateWeights,
    checksum,
    pack,
    unpack,
)
from tests.helpers.builders import llama
from tests.helpers.command_process import LONGEST


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", [1, 3, 4, 7, 1000])
def test_a_checksum_changes_with_every_element_and_with_nothing_else(
    dtype: torch.dtype, size: int
) -> None:
    torch.manual_seed(size)
    tensor = torch.randn(size + 1).to(dtype)[1:]  # not aligned to words
    whole = checksum(tensor)
    assert checksum(tensor.clone().reshape(-1, 1)) == whole
    for place in range(min(size, 20)):
        other = tensor.clone()
        other[place] = torch.nextafter(other[place].double(), torch.tensor(9.0)).to(dtype) + 1
        assert checksum(other) != whole


def test_a_checksum_sees_the_last_bit() -> None:
    one = torch.ones(5)
    other = one.clone()
    other[3] = torch.nextafter(other[3], torch.tensor(2.0))
    assert checksum(one) != checksum(other)


class Engine:
    """An engine that copies weights, or loses updates."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.loses, self.steps = model, set[str](), 0
        self.in_flight_updates = True

    def publish(self, policy: str, weights: dict[str, torch.Tensor], version: int) -> None:
        own = self.model.state_dict()
        with torch.no_grad():
            for name, tensor in weights.items():
                if name not in self.loses:
                    own[name].copy_(tensor)

    def step(self) -> list[Any]:
        self.steps += 1
        return []


class Place:
    """A worker with an engine, and the driver's engine that sends to it."""

    def __init__(self, *, dtype: torch.dtype | None = None) -> None:
        self.learner = llama(seed=0)
        served: Any = llama(seed=1)
        self.served = served.to(dtype or torch.float32)
        self.worker = RolloutWorker()
        self.engine = Engine(self.served)
        self.worker._models = {"base": self.served}
        players: Any = SimpleNamespace(engine=self.engine)
        self.worker._setup = players
        inner: Any = self.engine
        self.attentive = UpdatableEngine(inner, self.worker._inbox, self.worker._apply)
        self.changes: list[Change] = []
        self.driver = RemoteEngine(tell=self.changes.append, put=lambda sent: sent, dtype=dtype)
        self.driver.serve("base", self.learner, [2])

    def send(self, version: int) -> None:
        self.driver.publish("base", self.learner.state_dict(), version)
        self.worker.tell(version, self.changes[-1])


@pytest.fixture(autouse=True)
def nothing_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RolloutWorker, "_get", lambda self, reference: reference)


def change_a_little(model: torch.nn.Module) -> None:
    """Change every weight by 1e-6 of its size, like an update with a small learning rate."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(parameter.abs() * 1e-6)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_weights_arrive_in_the_type_of_the_engine(dtype: torch.dtype | None) -> None:
    place = Place(dtype=dtype)
    place.send(1)
    place.attentive.step()
    sent = place.changes[-1]
    assert isinstance(sent, UpdateWeights)
    assert {tensor.dtype for tensor in unpack(sent.weights).values()} == {dtype or torch.float32}
    for own, learned in zip(place.served.parameters(), place.learner.parameters(), strict=True):
        assert torch.equal(own, learned.to(own.dtype))


@pytest.mark.parametrize("loses", ["model.embed_tokens.weight", "model.norm.weight"])
def test_an_update_that_is_lost_ends_the_run_however_small_it_is(loses: str) -> None:
    place = Place()
    place.send(1)
    place.attentive.step()
    place.engine.loses = {loses}
    change_a_little(place.learner)
    place.send(2)
    with pytest.raises(RunError, match=rf"policy 'base': 1 of \d+ tensors of version 2 .*{loses}"):
        place.attentive.step()


def test_an_update_that_arrives_as_an_older_one_is_lost() -> None:
    place, name = Place(), "lm_head.weight"
    old = pack({name: place.learner.state_dict()[name].clone()}, [name])
    change_a_little(place.learner)
    sums = {name: checksum(place.learner.state_dict()[name])}
    place.driver.publish("base", RemoteWeights(packed=old, checksums=sums), 5)
    place.worker.tell(1, place.changes[-1])
    with pytest.raises(RunError, match="1 of 1 tensors of version 5 did not arrive"):
        place.attentive.step()


def test_the_engine_steps_on_while_weights_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    place, asked, arrive = Place(), threading.Event(), threading.Event()
    before = [checksum(tensor) for tensor in place.served.parameters()]

    def get(worker: RolloutWorker, reference: Any) -> Any:
        asked.set()
        assert arrive.wait(LONGEST)
        return reference

    monkeypatch.setattr(RolloutWorker, "_get", get)
    listening = threading.Thread(target=lambda: place.send(1))
    listening.start()
    assert asked.wait(LONGEST)
    for _ in range(5):
        place.attentive.step()
    assert place.engine.steps == 5
    assert [checksum(tensor) for tensor in place.served.parameters()] == before
    arrive.set()
    listening.join(LONGEST)
    place.attentive.step()
    assert [checksum(tensor) for tensor in place.served.parameters()] != before


def test_weights_that_cannot_be_fetched_are_told_by_the_thread_that_plays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def get(worker: RolloutWorker, reference: Any) -> Any:
        raise LearnersLost("the newest weights are lost")

    monkeypatch.setattr(RolloutWorker, "_get", get)
    place = Place()
    place.send(1)
    with pytest.raises(LearnersLost, match="newest weights"):
        place.worker._inbox.wait(1, timeout=1)
    with pytest.raises(LearnersLost, match="newest weights"):
        place.attentive.step()
