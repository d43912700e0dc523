"""Tests of weight synchronization: an update arrives completely, or the run ends."""

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from selfplay.errors import LearnersLost, RunError
from selfplay.runtime import weight_sync
from selfplay.runtime.remote_engine import RemoteEngine
from selfplay.runtime.rollout_worker import RolloutWorker
from selfplay.runtime.updatable_engine import UpdatableEngine
from selfplay.runtime.weight_sync import (
    Change,
    RemoteWeights,
    UpdateWeights,
    checksum,
    copy_and_sum,
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


PIECE = 64
"""Bytes of a piece in the tests; it is small so that small tensors have several pieces."""


@pytest.mark.parametrize("size", [0, 1, 7, 16, 17, 1000])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_a_copy_returns_the_checksum_of_the_target(
    monkeypatch: pytest.MonkeyPatch, size: int, kind: torch.dtype
) -> None:
    monkeypatch.setattr(weight_sync, "PIECE", PIECE)
    torch.manual_seed(size)
    source, target = torch.randn(size).to(kind), torch.zeros(size, dtype=kind)
    assert copy_and_sum(source, target) == checksum(source)
    assert torch.equal(source, target)
    cast = torch.zeros(size, dtype=torch.float16)
    assert copy_and_sum(source, cast) == checksum(source.half())


def test_tensors_that_are_not_contiguous_or_aligned_are_copied_and_summed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weight_sync, "PIECE", PIECE)
    torch.manual_seed(0)
    square = torch.randn(30, 30)
    targets = [torch.zeros(30, 30).T, torch.zeros(901)[1:].view(30, 30)]
    for source in (square, square.T):
        for target in targets:
            assert copy_and_sum(source, target) == checksum(source)
            assert torch.equal(source, target)
    with pytest.raises(RuntimeError, match="size"):
        copy_and_sum(torch.randn(30, 29), torch.zeros(30, 30))


class Engine:
    """An engine that records the published weights and counts its steps."""

    def __init__(self) -> None:
        self.published: list[tuple[dict[str, torch.Tensor], int]] = []
        self.steps = 0
        self.in_flight_updates = True
        self.renderer = None

    def publish(self, policy: str, weights: dict[str, torch.Tensor], version: int) -> None:
        self.published.append((weights, version))

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
        self.engine = Engine()
        self.worker._models = {"base": self.served}
        players: Any = SimpleNamespace(engine=self.engine)
        self.worker._setup = players
        inner: Any = self.engine
        self.updatable = UpdatableEngine(inner, self.worker._inbox, self.worker._apply)
        self.changes: list[Change] = []
        self.driver = RemoteEngine(send=self.changes.append, put=lambda sent: sent, dtype=dtype)
        self.driver.serve("base", self.learner, [2])

    def send(self, version: int) -> None:
        self.driver.publish("base", self.learner.state_dict(), version)
        self.worker.send(version, self.changes[-1])


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
    place.updatable.step()
    sent = place.changes[-1]
    assert isinstance(sent, UpdateWeights)
    assert {tensor.dtype for tensor in unpack(sent.weights).values()} == {dtype or torch.float32}
    for own, learned in zip(place.served.parameters(), place.learner.parameters(), strict=True):
        assert torch.equal(own, learned.to(own.dtype))


def test_an_engine_gets_the_tensors_of_its_own_model() -> None:
    place = Place()
    place.send(3)
    place.updatable.step()
    ((weights, version),) = place.engine.published
    own = dict(place.served.named_parameters())
    assert version == 3
    assert weights.keys() == own.keys()
    assert all(weights[name] is own[name] for name in own)


@pytest.mark.parametrize("lost", ["model.embed_tokens.weight", "model.norm.weight"])
def test_an_update_without_a_tensor_ends_the_run_however_small_it_is(lost: str) -> None:
    place = Place()
    place.send(1)
    place.updatable.step()
    change_a_little(place.learner)
    place.driver.publish("base", place.learner.state_dict(), 2)
    sent = place.changes[-1]
    assert isinstance(sent, UpdateWeights)
    rest = {name: packed for name, packed in sent.weights.items() if name != lost}
    place.worker.send(2, replace(sent, weights=rest))
    with pytest.raises(RunError, match=rf"policy 'base': 1 of \d+ tensors of version 2 .*{lost}"):
        place.updatable.step()
    assert [version for _, version in place.engine.published] == [1]


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_a_piece_that_is_not_written_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, part: float
) -> None:
    """The checksum is computed from the model's memory, not from the data that was sent."""
    place, copies, lost = Place(), 0, -1
    copy = torch.Tensor.copy_

    def lossy(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        nonlocal copies
        copies += 1
        return target if copies - 1 == lost else copy(target, source)

    monkeypatch.setattr(weight_sync, "PIECE", PIECE)
    monkeypatch.setattr(torch.Tensor, "copy_", lossy)
    place.send(1)
    place.updatable.step()
    assert copies > len(list(place.served.parameters()))
    lost, copies = round(part * (copies - 1)), 0
    change_a_little(place.learner)
    place.send(2)
    with pytest.raises(RunError, match=r"1 of \d+ tensors of version 2 did not arrive"):
        place.updatable.step()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_flipped_bit_of_any_piece_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype | None
) -> None:
    monkeypatch.setattr(weight_sync, "PIECE", PIECE)
    place, name = Place(dtype=dtype), "lm_head.weight"
    place.driver.publish("base", place.learner.state_dict(), 1)
    sent = place.changes[-1]
    assert isinstance(sent, UpdateWeights)
    array, kind, shape = sent.weights[name]
    assert len(array) > 3 * PIECE
    for number, begin in enumerate(range(0, len(array), PIECE)):
        damaged = array.copy()
        damaged[begin + 37 * number % PIECE] ^= 1 << number % 8
        place.worker.send(1, replace(sent, weights={**sent.weights, name: (damaged, kind, shape)}))
        with pytest.raises(RunError, match=rf"1 of \d+ tensors .* did not arrive, such as {name}"):
            place.updatable.step()
    place.worker.send(1, sent)
    place.updatable.step()


def test_an_update_that_arrives_with_older_weights_is_refused() -> None:
    place, name = Place(), "lm_head.weight"
    old = pack({name: place.learner.state_dict()[name].clone()}, [name])
    change_a_little(place.learner)
    sums = {name: checksum(place.learner.state_dict()[name])}
    place.driver.publish("base", RemoteWeights(packed=old, checksums=sums), 5)
    place.worker.send(1, place.changes[-1])
    with pytest.raises(RunError, match="1 of 1 tensors of version 5 did not arrive"):
        place.updatable.step()


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
        place.updatable.step()
    assert place.engine.steps == 5
    assert [checksum(tensor) for tensor in place.served.parameters()] == before
    arrive.set()
    listening.join(LONGEST)
    place.updatable.step()
    assert [checksum(tensor) for tensor in place.served.parameters()] != before


def test_weights_that_cannot_be_fetched_raise_in_the_playing_thread(
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
        place.updatable.step()
