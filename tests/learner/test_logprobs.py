"""Tests of the log-probabilities of chosen tokens: their values, gradients and memory."""

from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from selfplay.learner import logprobs
from selfplay.learner.batch import PackedRow, alone, nothing, pad
from selfplay.learner.logprobs import Divergence, NextTokens, Scorer
from selfplay.learner.packing import Packer
from tests.helpers.builders import SIZES, llama, sample
from tests.helpers.divergences import generalised_jsd

KEYS: dict[str, Any] = {"num_key_value_heads": 2}

SAMPLES = [
    sample([1, 2, 3, 4], [5, 6, 7], 1.0, loss_mask=(1, 0, 1), logprobs=(-1.0, -2.0, -3.0)),
    sample([1, 2, 3, 4], [5, 9], 1.0, temperature=0.7),
    sample([8], [9, 1, 1, 2], 1.0),
]


def ordinary(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(vocab_size=24, n_embd=16, n_layer=2, n_head=4))
    if kind == "phi":  # its head has a bias
        return PhiForCausalLM(PhiConfig(**SIZES))
    if kind == "mamba":
        return MambaForCausalLM(MambaConfig(vocab_size=24, hidden_size=16, num_hidden_layers=1))
    return llama()


def peculiar(kind: str) -> PreTrainedModel:
    """Return a model that changes the logits of its head."""
    torch.manual_seed(0)
    if kind == "granite":
        return GraniteForCausalLM(GraniteConfig(**SIZES, **KEYS, logits_scaling=8.0))
    if kind == "cohere":
        return CohereForCausalLM(CohereConfig(**SIZES, **KEYS, logit_scale=0.0625))
    capped: dict[str, Any] = {"final_logit_softcapping": 0.5, "head_dim": 8}
    return Gemma2ForCausalLM(Gemma2Config(**SIZES, **KEYS, **capped))


def expected(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies from the logits of the model's own forward pass."""
    values, entropies = torch.zeros(3, 4), torch.zeros(3, 4)
    for row, one in enumerate(SAMPLES):
        turn = one.turn
        ids = torch.tensor([[*turn.prompt_ids, *turn.completion_ids]])
        logits = model(input_ids=ids).logits[0, len(turn.prompt_ids) - 1 : -1]
        for column, token in enumerate(turn.completion_ids):
            distribution = torch.distributions.Categorical(logits=logits[column] / turn.temperature)
            trained = bool(turn.loss_mask[column])
            values[row, column] = (
                distribution.log_prob(torch.tensor(token)) if trained else turn.logprobs[column]
            )
            entropies[row, column] = distribution.entropy() if trained else 0
    return values, entropies


def weighted_gradient(
    model: PreTrainedModel, values: torch.Tensor, entropies: torch.Tensor | None
) -> torch.Tensor:
    """Return the gradient of a sum of all values and entropies with random weights."""
    assert entropies is not None
    factors = torch.randn(2, *values.shape, generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    (values * factors[0] + entropies * factors[1]).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def rows_of(packing: str) -> list[PackedRow]:
    if packing == "trie":
        return Packer(packing="trie").rows(SAMPLES, max_tokens=100)
    return [alone(one) for one in SAMPLES]


def agrees(model: PreTrainedModel, packing: str) -> Scorer:
    """Check values and gradients of all samples in one micro-batch; return the scorer."""
    model.eval()
    scorer, batch = Scorer(model), pad(rows_of(packing))
    back = [batch.samples.index(one) for one in SAMPLES]
    values, entropies, kl = scorer(batch, entropy=True)
    assert entropies is not None and kl is None
    wanted = expected(model)
    torch.testing.assert_close(values[back], wanted[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies[back], wanted[1], atol=1e-5, rtol=1e-5)
    right = weighted_gradient(model, *wanted)
    found = weighted_gradient(model, values[back], entropies[back])
    assert float((found - right).norm() / right.norm()) < 1e-5
    return scorer


@pytest.mark.parametrize("kind", ["llama", "gpt2", "phi", "mamba"])
@pytest.mark.parametrize("logits", [2**25, 3 * 24, 1])
def test_values_and_gradients_for_any_number_of_logits_at_once(
    kind: str, logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "LOGITS", {"cpu": logits})
    assert agrees(ordinary(kind), "rows").note == ""
    if kind != "mamba":
        agrees(ordinary(kind), "trie")


def expected_kl(
    model: PreTrainedModel, reference: PreTrainedModel, divergence: Divergence
) -> torch.Tensor:
    """Return [3, 4] nats by torch's own KL, from the logits of both models' forward passes."""
    found = torch.zeros(3, 4)
    for row, one in enumerate(SAMPLES):
        turn = one.turn
        ids = torch.tensor([[*turn.prompt_ids, *turn.completion_ids]])
        logits = [model(input_ids=ids).logits, reference(input_ids=ids).logits.detach()]
        own, theirs = (
            torch.distributions.Categorical(
                logits=each[0, len(turn.prompt_ids) - 1 : -1] / turn.temperature
            )
            for each in logits
        )
        nats = generalised_jsd(own, theirs, divergence)
        found[row, : len(nats)] = nats * torch.tensor(turn.loss_mask)
    return found


@pytest.mark.parametrize("divergence", [1.0, 0.0, 0.3])
@pytest.mark.parametrize("packing", ["rows", "trie"])
@pytest.mark.parametrize(
    ("kinds", "logits"),
    [(("llama", "gpt2"), 2**25), (("llama", "gpt2"), 1), (("llama", "gemma2"), 3 * 24)],
)
def test_the_kl_over_the_vocabulary_and_its_gradient(
    kinds: tuple[str, str],
    logits: int,
    packing: str,
    divergence: Divergence,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check references of another architecture; Gemma 2 computes all its logits at once."""
    monkeypatch.setattr(logprobs, "LOGITS", {"cpu": logits})
    model, other = ordinary(kinds[0]).eval(), kinds[1]
    reference = (peculiar(other) if other == "gemma2" else ordinary(other)).eval()
    with torch.no_grad():  # with small random weights the models are almost uniform
        model.get_output_embeddings().weight.mul_(10)
    batch = pad(rows_of(packing))
    back = [batch.samples.index(one) for one in SAMPLES]
    for keep in (False, True):
        with torch.no_grad():
            before = Scorer(reference).next_tokens(batch, keep=keep)
        found = Scorer(model)(batch, reference=before, divergence=divergence).kl
        assert found is not None
        wanted = expected_kl(model, reference, divergence)
        assert float(wanted.detach().max()) > 0.1
        torch.testing.assert_close(found[back], wanted, atol=1e-5, rtol=1e-5)
        right, own = (
            weighted_gradient(model, nats, torch.zeros(3, 4)) for nats in (wanted, found[back])
        )
        assert float((own - right).norm() / right.norm()) < 1e-5
    assert all(p.grad is None for p in reference.parameters())


@pytest.mark.parametrize("kind", ["granite", "cohere", "gemma2"])
def test_a_model_that_changes_logits_after_its_head_makes_them(kind: str) -> None:
    scorer = agrees(peculiar(kind), "rows")
    assert "changes the logits that its output embedding makes" in scorer.note
    if kind != "gemma2":  # which has sliding windows
        agrees(peculiar(kind), "trie")


def test_an_empty_row_has_a_gradient() -> None:
    """Check the empty row that a rank computes while others still have samples."""
    found = Scorer(peculiar("gemma2"))(pad([nothing()])).logprobs
    assert found.shape == (1, 1)
    found.sum().backward()


def test_a_change_is_found_however_small_the_logits() -> None:
    """Check a cap at 30, which hardly changes the logits of a new model."""
    torch.manual_seed(0)
    small: dict[str, Any] = {**SIZES, "initializer_range": 1e-6, "head_dim": 8}
    model = Gemma2ForCausalLM(Gemma2Config(**small, **KEYS, final_logit_softcapping=30.0))
    assert "changes the logits" in Scorer(model).note


class Halved(LlamaForCausalLM):
    """A model that changes its decoder's states before the head and always makes all logits."""

    def forward(self, input_ids: Any, use_cache: bool = False) -> Any:
        states = self.model(input_ids=input_ids).last_hidden_state
        return CausalLMOutputWithPast(logits=self.lm_head(states / 2))


class Headless(Halved):
    """A model that names no output embedding."""

    def get_output_embeddings(self) -> None:
        return None


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Halved, "changes its decoder's states"), (Headless, "names no decoder and output embedding")],
)
def test_models_of_another_build_make_their_logits_themselves(
    kind: type[LlamaForCausalLM], message: str
) -> None:
    torch.manual_seed(0)
    assert message in agrees(kind(llama().config), "rows").note


class Peak(TorchDispatchMode):
    """A mode that counts the bytes of all tensors that are alive, and their maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.alive = {k: (ref, size) for k, (ref, size) in self.alive.items() if not ref.expired()}
        self.most = max(self.most, sum(size for _, size in self.alive.values()))
        return out


def memory(tokens: int, vocabulary: int, *, terms: str) -> int:
    """Return the peak bytes of a forward and backward pass from `tokens` states to the loss."""
    head = torch.nn.Linear(4, vocabulary, bias=False)
    hidden = torch.randn(tokens, 4, requires_grad=True)
    targets = torch.arange(tokens) % vocabulary
    temperatures = torch.full((tokens,), 0.5)
    other = NextTokens(torch.randn(tokens, 4), torch.nn.Linear(4, vocabulary).requires_grad_(False))
    with Peak() as counter:
        found = logprobs.read(
            hidden,
            head,
            targets,
            temperatures,
            entropy="entropy" in terms,
            reference=other if "kl" in terms else None,
        )
        loss = sum(values.sum() for values in found if values is not None)
        del found
        assert isinstance(loss, torch.Tensor)
        loss.backward()
    assert hidden.grad is not None and head.weight.grad is not None
    return counter.most


@pytest.mark.parametrize("terms", ["", "entropy", "kl", "entropy and kl"])
def test_peak_memory_does_not_grow_with_length_times_vocabulary(
    terms: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "LOGITS", {"cpu": 2**14})
    for tokens, vocabulary in ((128, 1024), (512, 1024), (128, 4096), (512, 4096)):
        held = memory(tokens, vocabulary, terms=terms)
        # The limit is a few copies of the logits made at once, the weights and the hidden states.
        assert held < 4 * (6 * 2**14 + 4 * 4 * vocabulary + 16 * 4 * tokens)
    assert held < 4 * tokens * vocabulary / 12  # a twelfth of all logits
    # Check the measure: if all logits are made at once, there are several copies of them.
    monkeypatch.setattr(logprobs, "LOGITS", {"cpu": 2**30})
    assert memory(512, 1024, terms=terms) > 2 * 4 * 512 * 1024
