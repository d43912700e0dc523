"""Tests of the model with random weights: its seed determines them, torch's stream stays."""

import torch

from selfplay.models.tiny import build_model
from tests.helpers.builders import same, weights

SIZES = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "positions": 32}


def test_the_random_stream_of_torch_is_not_advanced() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    first = build_model(16, seed=1, **SIZES)
    assert torch.equal(torch.rand(3), wanted)
    again = build_model(16, seed=1, **SIZES)
    other = build_model(16, seed=2, **SIZES)
    assert same(weights(first), weights(again)) and not same(weights(first), weights(other))


def test_the_weights_are_those_of_torchs_seed() -> None:
    model = build_model(16, seed=7, **SIZES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        wanted = type(model)(model.config)
    assert same(weights(model), weights(wanted))
