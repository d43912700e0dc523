"""Tests of copies through two buffers, with a queue of late copies instead of a GPU's stream."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import Linear

from selfplay.models import main_memory
from selfplay.models.main_memory import PinnedBuffers, in_main_memory
from selfplay.models.offload import offload
from selfplay.models.weights_file import write_tensors
from selfplay.runtime.weight_sync import checksum, pack, unpack

SIZE = 64


class LateCopy:
    """A copy that is made only when `synchronize` is called."""

    def __init__(self, source: Tensor, buffer: Tensor) -> None:
        self.source, self.buffer, self.ended = source, buffer, False

    def synchronize(self) -> None:
        assert not self.ended
        self.buffer.copy_(self.source)
        self.ended = True


class LateQueue:
    """A queue of this process; no buffer may be used again before its last copy has ended."""

    def __init__(self) -> None:
        self.buffers: list[Tensor] = []
        self.copies: list[LateCopy] = []
        self.most = 0

    def buffer(self, size: int) -> Tensor:
        self.buffers.append(torch.full((size,), 255, dtype=torch.uint8))
        return self.buffers[-1]

    def start(self, source: Tensor, buffer: Tensor) -> LateCopy:
        open_ones = [copy for copy in self.copies if not copy.ended]
        assert all(copy.buffer.data_ptr() != buffer.data_ptr() for copy in open_ones)
        self.copies.append(LateCopy(source, buffer))
        self.most = max(self.most, len(open_ones) + 1)
        return self.copies[-1]


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> LateQueue:
    """Copy tensors of the CPU in the way of tensors of a GPU; return the queue of copies."""
    made = LateQueue()
    monkeypatch.setattr(main_memory, "BUFFERS", PinnedBuffers(made, size=SIZE))
    monkeypatch.setattr(main_memory, "STAGED", "cpu")
    return made


@pytest.mark.parametrize("count", [1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 3 * SIZE + 5, 10 * SIZE])
def test_all_bytes_arrive_in_their_place(count: int) -> None:
    made = LateQueue()
    buffers = PinnedBuffers(made, size=SIZE)
    for seed in (0, 1):
        torch.manual_seed(seed)
        source = torch.randint(0, 255, (count,), dtype=torch.uint8)
        target = torch.zeros_like(source)
        buffers.copy(source, target)
        assert torch.equal(source, target)
    assert len(made.buffers) == 2  # the buffers are made once
    assert len(made.copies) == 2 * -(-count // SIZE)
    # The next piece is being copied while this process empties a buffer.
    assert made.most == (2 if count > SIZE else 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (1,), (7, 5), (64, 3, 2)])
def test_a_tensor_keeps_type_shape_and_values(
    queue: LateQueue, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = (3 * torch.randn(shape)).to(dtype)
    found = in_main_memory(tensor)
    assert torch.equal(found, tensor) and found.data_ptr() != tensor.data_ptr()
    assert (found.dtype, found.shape, found.requires_grad) == (dtype, tensor.shape, False)
    assert queue.copies


def test_transposed_and_empty_tensors_are_copied_by_torch(queue: LateQueue) -> None:
    for tensor in (torch.randn(6, 4).T, torch.empty(0, 3)):
        found = in_main_memory(tensor, copy=True)
        assert torch.equal(found, tensor) and found.stride() == tensor.stride()
    assert not queue.copies


def test_a_tensor_in_main_memory_is_copied_only_on_request() -> None:
    tensor = torch.randn(5, requires_grad=True)
    assert in_main_memory(tensor).data_ptr() == tensor.data_ptr()
    copied = in_main_memory(tensor, copy=True)
    assert copied.data_ptr() != tensor.data_ptr() and torch.equal(copied, tensor)
    assert not copied.requires_grad


def test_weights_are_packed_written_and_offloaded_through_buffers(
    queue: LateQueue, tmp_path: Path
) -> None:
    module = Linear(40, 30)
    weights = {name: each.detach().clone() for name, each in module.named_parameters()}
    arrived = unpack(pack(module.state_dict(), weights.keys()))
    assert {n: checksum(t) for n, t in arrived.items()} == {
        n: checksum(t) for n, t in weights.items()
    }
    packed = len(queue.copies)
    assert packed == -(-4 * 1200 // SIZE) + -(-4 * 30 // SIZE)
    write_tensors(module.state_dict(), tmp_path / "weights")
    assert len(queue.copies) == 2 * packed
    parameters = list(module.parameters())
    before = [each.data_ptr() for each in parameters]
    offload([module])
    assert len(queue.copies) == 3 * packed
    for one, old, name in zip(module.parameters(), before, weights, strict=True):
        assert torch.equal(one, weights[name]) and one.data_ptr() != old
    assert all(one is two for one, two in zip(parameters, module.parameters(), strict=True))


@pytest.fixture
def mesh() -> Iterator[Any]:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_the_part_of_a_rank_is_moved_and_stays_distributed(queue: LateQueue, mesh: Any) -> None:
    whole = torch.randn(20, 3)
    given: Any = distribute_tensor(whole, mesh, [Shard(0)])
    # The device of the local part decides, not the device of the mesh.
    empty: Any = torch.empty_like(given, device="meta")
    assert empty.to_local().device.type == "meta"
    found = in_main_memory(given)
    assert isinstance(found, DTensor) and found.placements == given.placements
    assert found.device_mesh == mesh and found.shape == whole.shape
    assert torch.equal(found.to_local(), whole) and queue.copies


@pytest.mark.gpu
def test_a_gpu_copies_the_bytes() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for count in (1, 10_000, main_memory.SIZE // 4, main_memory.SIZE // 4 + 3, 60_000_001):
        tensor = torch.randn(count, device="cuda")
        for _ in range(3):
            tensor.add_(1.0)  # still being computed when the copy is requested
        assert torch.equal(in_main_memory(tensor), tensor.cpu())
