"""Tests of models that can be divided, and of the errors of processes that do not start."""

import os
from pathlib import Path

import pytest
import torch

from selfplay.engines.vllm.shard_processes import DividedSizes, environment_of_shards, first_error
from selfplay.errors import ConfigError
from selfplay.models.tiny import build_model


@pytest.mark.parametrize(
    ("sizes", "shards", "obstacle", "fewer"),
    [
        ((14, 2, 4864), 2, None, 0),
        ((14, 2, 4864), 4, "14 attention heads", 2),
        ((14, 2, 4864), 7, "2 key-value heads", 2),
        ((32, 2, 4864), 8, None, 0),  # four shards hold the same key-value head
        ((8, 8, 100), 8, "intermediate size of 100", 4),
        ((12, 12, 0), 3, None, 0),
        ((3, 3, 9), 2, "3 attention heads", 1),
    ],
)
def test_a_model_is_divided_or_the_error_names_a_smaller_number(
    sizes: tuple[int, int, int], shards: int, obstacle: str | None, fewer: int
) -> None:
    heads, kv_heads, intermediate = sizes
    found = DividedSizes(heads=heads, kv_heads=kv_heads, intermediate=intermediate)
    assert found.obstacle(shards) == obstacle
    if obstacle is None:
        found.check(shards, where="policy 'p'")
        return
    with pytest.raises(ConfigError) as raised:
        found.check(shards, where="policy 'p'")
    assert str(raised.value) == (
        f"engine.tensor_parallel: policy 'p': {shards} shards cannot divide its {obstacle}; "
        f"set engine.tensor_parallel={fewer}"
    )


def test_the_sizes_of_a_model() -> None:
    model = build_model(330, seed=0, hidden=64, layers=1, heads=4, intermediate=96, positions=32)
    assert DividedSizes.of(model) == DividedSizes(heads=4, kv_heads=4, intermediate=96)


def test_the_first_error_of_the_log_is_the_reason(tmp_path: Path) -> None:
    assert first_error(tmp_path) is None
    log = tmp_path / "errors.log"
    log.write_text(
        "\x1eWorkerProc failed to start.\nTraceback (most recent call last):\n"
        "  File x\nValueError: 97 is not divisible by 2\n"
        "\x1eWorkerProc failed to start.\nRuntimeError: Connection closed by peer\n"
    )
    assert first_error(tmp_path) == "ValueError: 97 is not divisible by 2"
    log.write_text(
        "\x1eWorkerProc failed to start.\nTraceback (most recent call last):\n"
        "  File x, line 3, in f\n    assert size % shards == 0\n           ^^^^^^^^^^^\n"
        "AssertionError\n"
    )
    assert first_error(tmp_path) == "AssertionError: assert size % shards == 0"
    log.write_text("\x1eone:" + 1000 * " more")
    assert len(first_error(tmp_path) or "") == 300


def test_shards_share_the_threads_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    own = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        with environment_of_shards(2, on_cpu=True):
            assert os.environ["OMP_NUM_THREADS"] == "2"
            assert os.environ["TORCHDYNAMO_DISABLE"] == "1"
            torch.set_num_threads(1)
        assert os.environ["OMP_NUM_THREADS"] == "5" and torch.get_num_threads() == 4
        monkeypatch.delenv("OMP_NUM_THREADS")
        with environment_of_shards(8, on_cpu=False):
            assert os.environ["OMP_NUM_THREADS"] == "1"
            assert "TORCHDYNAMO_DISABLE" not in os.environ
        assert "OMP_NUM_THREADS" not in os.environ
    finally:
        torch.set_num_threads(own)
