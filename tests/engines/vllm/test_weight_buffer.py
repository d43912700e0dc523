"""Tests of the buffer through which weights reach the processes of an engine."""

import errno
import multiprocessing
import os
from typing import Any

import pytest
import torch

from selfplay.engines.vllm import weight_buffer
from selfplay.engines.vllm.weight_buffer import TensorPlace, WeightBuffer, copies, mapped
from selfplay.errors import RunError

WEIGHTS = {
    "a": torch.arange(30, dtype=torch.float32).reshape(5, 6).T,  # not contiguous
    "b": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "c": torch.arange(200, dtype=torch.int64),
    "d": torch.tensor(7.0),
    "e": torch.zeros(0, 3),
    "f": torch.randn(9, 9, generator=torch.Generator().manual_seed(0)).double(),
}


@pytest.mark.parametrize(("piece", "pieces"), [(2**20, 1), (1, 3)])
def test_all_weights_pass_through_a_buffer_of_any_size(
    piece: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_buffer, "PIECE", piece)
    buffer = WeightBuffer(WEIGHTS)
    memory = mapped(buffer.path, buffer.size)
    found: dict[str, torch.Tensor] = {}
    count = 0
    for places in buffer.pieces(WEIGHTS.items()):
        found |= copies(places, memory)
        count += 1
    buffer.close()
    assert count == pieces
    assert found.keys() == WEIGHTS.keys()
    for name, tensor in WEIGHTS.items():
        assert found[name].dtype is tensor.dtype
        assert torch.equal(found[name], tensor)


def read(path: str, size: int, places: list[TensorPlace], answer: Any) -> None:
    found = dict(copies(places, mapped(path, size)))
    answer.send({name: tensor.sum().item() for name, tensor in found.items()})


def test_another_process_reads_the_same_memory() -> None:
    weights = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([5, 6])}
    buffer = WeightBuffer(weights)
    (places,) = buffer.pieces(weights.items())
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=read, args=(buffer.path, buffer.size, places, there))
    process.start()
    there.close()
    assert here.recv() == {"a": 3.0, "b": 11}
    process.join()
    buffer.close()
    assert not os.path.exists(buffer.path)


def test_too_little_memory_gives_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(RunError, match=r"^engine.tensor_parallel: no .* GB of main memory for the"):
        WeightBuffer(WEIGHTS)
    assert len(os.listdir("/proc/self/fd")) == len(before)
