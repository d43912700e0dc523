"""Tests of the transformer critic: values, micro-batches, settings and checkpoints."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BloomConfig, BloomForCausalLM

from selfplay.credit import Stateful
from selfplay.credit.gae import GAE
from selfplay.errors import ConfigError, DivergedError
from selfplay.experiment.experiment import Experiment
from selfplay.learner import checkpoint
from selfplay.learner.checkpoint_writer import CheckpointWriter
from selfplay.learner.value_model import TransformerCritic
from tests.helpers.builders import llama, weights
from tests.helpers.command_process import SMOKE, InjectedFault, assert_alike, metrics, run

STATES = [(1, 2, 3), (4, 5), (1, 2, 3), (6,), (1, 2, 3, 7, 8)]
RETURNS = [1.0, -2.0, 3.0, 0.5, 2.0]


def critic(**settings: Any) -> TransformerCritic:
    small = {"vocabulary": 16, "hidden": 16, "layers": 1, "positions": 8, "device": "cpu"}
    return TransformerCritic(**{**small, **settings})


def taught(**settings: Any) -> TransformerCritic:
    made = critic(**settings)
    made.fit(STATES, RETURNS)
    return made


def test_values_begin_at_0_and_approach_the_mean_returns_of_states() -> None:
    made = critic(lr=0.02)
    assert made.values(STATES) == [0.0] * 5
    found = made.fit(STATES, RETURNS)
    # The loss is the sum of the squares 1, 4, 9, .25, 4 over 2 * 5. A constant explains nothing.
    assert found["critic/loss"] == pytest.approx(1.825)
    assert found["critic/explained_variance"] == pytest.approx(0)
    for _ in range(120):
        found = made.fit(STATES, RETURNS)
    assert made.values(STATES) == pytest.approx([2, -2, 2, 0.5, 2], abs=0.1)
    # One state has the returns 1 and 3: a loss of (1 + 1) / 10, and 2 of 14.2 in the variance.
    assert found["critic/loss"] == pytest.approx(0.2, abs=0.02)
    assert found["critic/explained_variance"] == pytest.approx(1 - 2 / 14.2, abs=0.02)


@pytest.mark.parametrize("max_tokens", [1, 6, 1000])
def test_micro_batches_do_not_change_the_result(max_tokens: int) -> None:
    whole, cut = taught(), taught(max_tokens=max_tokens)
    assert cut.values(STATES) == pytest.approx(whole.values(STATES), abs=1e-6)
    for made in (whole, cut):
        made.fit(STATES, RETURNS)  # the first update moves the head alone, which begins at zero
    for one, other in zip(whole.parameters, cut.parameters, strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-4)


def test_equal_states_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = critic()
    read: list[int] = []
    original = made._read

    def counted(rows: Any) -> Tensor:
        read.append(len(rows))
        return original(rows)

    monkeypatch.setattr(made, "_read", counted)
    made.values(STATES)
    made.fit(STATES, RETURNS)
    assert read == [4, 4]


def test_padding_does_not_change_a_value() -> None:
    made = taught()
    together = made.values(STATES)
    assert together == pytest.approx([made.values([state])[0] for state in STATES], abs=1e-6)
    assert len(set(together)) == 4


def test_the_last_tokens_of_a_longer_state_are_read() -> None:
    made = taught(positions=4)
    short, longer, nothing = made.values([(2, 3, 4, 5), (9, 9, 2, 3, 4, 5), ()])
    assert short == longer != nothing


def test_tokens_beyond_its_vocabulary_share_rows_and_are_counted() -> None:
    made = taught(epochs=2)
    assert made.values([(1, 16)]) == made.values([(1, 0)]) != made.values([(1, 1)])
    found = made.fit([(1, 16), (1, 16), (3, 150_000, 17)], [1.0, 2.0, 3.0])
    assert found["critic/folded_tokens"] == 3
    assert made.fit(STATES, RETURNS)["critic/folded_tokens"] == 0


def test_the_clip_limits_the_change_of_a_value() -> None:
    """Check that a value stops soon after it has changed by more than the clip, 0.01."""
    free, bound = critic(lr=0.01, epochs=30), critic(lr=0.01, epochs=30, clip=0.01)
    for made in (free, bound):
        made.fit([(1, 2)], [5.0])
    assert free.values([(1, 2)])[0] > 0.5
    assert 0.01 < bound.values([(1, 2)])[0] < free.values([(1, 2)])[0]


@pytest.mark.parametrize("returns", [float("nan"), float("inf"), 1e30])
def test_returns_that_are_not_usable_are_an_error_and_change_nothing(returns: float) -> None:
    made = taught()
    before = weights(made.network)
    with pytest.raises(DivergedError, match="critic"):
        made.fit(STATES, [returns] * 5)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(made.network), strict=True))


def test_no_states_and_equal_returns_are_no_error() -> None:
    made = critic()
    assert made.values([]) == [] and made.fit([], []) == {}
    found = made.fit([(1,), (2,)], [3.0, 3.0])
    assert found == {"critic/loss": 4.5, "critic/folded_tokens": 0}


def test_a_saved_model_may_be_the_start_of_a_critic(tmp_path: Path) -> None:
    model = llama()
    model.save_pretrained(tmp_path)
    made = critic(model=str(tmp_path), lr=0.01)
    assert made.vocabulary == 24 and made.positions == 64
    made.fit(STATES, RETURNS)
    assert made.values(STATES) != [0.0] * 5
    with pytest.raises(ConfigError, match=r"credit\.critic\.model: no folder"):
        critic(model=str(tmp_path / "nothing"))


def test_a_model_without_a_largest_position_is_read_whole(tmp_path: Path) -> None:
    sizes = BloomConfig(vocab_size=24, hidden_size=16, n_layer=1, n_head=2)
    BloomForCausalLM(sizes).save_pretrained(tmp_path)
    made = critic(model=str(tmp_path), lr=0.01)
    assert made.positions == 0
    long = tuple(range(1, 20)) * 9
    other = (long[0] + 1, *long[1:])
    made.fit([long, other], [1.0, -1.0])
    assert made.values([long]) != made.values([other]), "the first token is read too"


def test_a_critic_does_not_change_the_global_random_state() -> None:
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    first, second = taught(seed=1), taught(seed=1)
    assert torch.equal(torch.rand(3), wanted)
    assert first.values(STATES) == second.values(STATES) != taught(seed=2).values(STATES)


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 0.0},
        {"lr": float("inf")},
        {"lr": float("nan")},
        {"clip_norm": float("nan")},
        {"clip": float("inf")},
        {"epochs": 0},
        {"clip": -1.0},
        {"hidden": 15},
        {"vocabulary": 0},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|above 0|does not split"):
        critic(**settings)


def test_training_continues_identically_from_a_checkpoint(tmp_path: Path) -> None:
    first, second = taught(), critic(seed=5)
    place = CheckpointWriter(tmp_path).save(
        step=1, policies={}, learners=trained_parts(first), state={}, keep=1
    )
    checkpoint.load(place, policies={}, learners=trained_parts(second))
    for made in (first, second):
        made.fit(STATES, RETURNS)
    assert second.values(STATES) == first.values(STATES)


def trained_parts(made: TransformerCritic) -> dict[str, Stateful]:
    """Return the trained parts that an experiment without learners saves in a checkpoint."""
    parts: Any = SimpleNamespace(learners={}, credit=GAE(critic=made))
    trained = Experiment.trained(parts)
    assert list(trained) == ["credit/critic"]
    return trained


@pytest.mark.slow
def test_a_killed_run_with_a_critic_is_resumed(tmp_path: Path) -> None:
    command = ("train", SMOKE, "credit=gae", "credit.sees=all", "run.steps=2", "run.name=r")
    places = [tmp_path / name / "runs/r" for name in ("whole", "struck")]
    for place in places:
        place.parent.parent.mkdir()
    assert run(*command, cwd=tmp_path / "whole").code == 0
    injected = InjectedFault(at="selfplay.train.Trainer.save", call=3)
    assert run(*command, cwd=tmp_path / "struck", injected=injected).code == -signal.SIGKILL
    assert run("train", "resume=runs/r", cwd=tmp_path / "struck").code == 0
    assert_alike(places[1], places[0])
    assert all("credit/critic/loss" in line for line in metrics(places[0])[1:])
    saved = [
        torch.load(place / "checkpoints/000002/learners.pt", weights_only=True) for place in places
    ]
    network, again = (each["credit/critic"]["network"] for each in saved)
    assert network.keys() == again.keys()
    assert all(torch.equal(network[name], again[name]) for name in network)
    assert network["1.bias"].abs() > 0, "the critic has learned"
