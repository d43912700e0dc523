"""The part of a GPU that an engine takes if the config does not say it."""

import pytest
import torch

from selfplay.engines.vllm.core import default_memory


@pytest.mark.parametrize(
    ("own_gpu", "free", "wanted"),
    [(False, 80, 0.4), (True, 80, 0.9), (True, 64, 0.7), (True, 4, 0.1)],
)
def test_beside_a_learner_it_is_small(
    monkeypatch: pytest.MonkeyPatch, own_gpu: bool, free: int, wanted: float
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 80))
    assert default_memory(own_gpu) == pytest.approx(wanted)
