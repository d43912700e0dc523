"""Log-probabilities of chosen tokens, without all logits of a micro-batch in memory at once.

Logits are computed from the last hidden states for some tokens at a time, and again in the backward
pass, so that their memory depends neither on the number of tokens nor on the vocabulary.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from selfplay.learner.batch import Batch
from selfplay.learner.precision import computing
from selfplay.models.float32_head import in_float32
from selfplay.models.tree_attention import evaluating, run_tree, sample_layers

LOGITS = {"cpu": 2**25, "cuda": 2**27}
"""Largest number of logits in memory at once, by the kind of device: 128 and 512 MiB in float32. A
GPU needs larger products to be busy."""


Divergence: TypeAlias = float
"""Number from 0 to 1 that selects the divergence. 1: KL(pi, reference), the reverse KL. 0:
KL(reference, pi), the forward KL. A number b between them: the generalised Jensen-Shannon
divergence (2306.13649), b KL(reference, m) + (1 - b) KL(pi, m) with m = b reference + (1 - b) pi.

Divided by b, it tends to the forward KL as b tends to 0; divided by 1 - b, it tends to the reverse
KL as b tends to 1. The divergence itself tends to 0 at both ends."""
REVERSE: Divergence = 1.0
FORWARD: Divergence = 0.0


class TokenScores(NamedTuple):
    """Scores of the tokens that samples read: [N] in a function of logits, [S, C] from a scorer."""

    logprobs: Tensor
    """Nats of the tokens."""
    entropy: Tensor | None
    """Nats of the distributions from which the tokens were drawn, if asked."""
    kl: Tensor | None
    """Nats between these distributions and the reference's, if there is a reference."""


class NextTokens(NamedTuple):
    """Distributions of the next token at N places, by a model without gradients.

    `Scorer.next_tokens` makes them for a reference; the scorer of the policy reads them.
    """

    states: Tensor
    """[N, H] inputs of `head`."""
    head: Callable[[Tensor], Tensor]
    """Function from [n, H] states to [n, V] logits."""


class Scorer:
    """Scores the tokens of micro-batches under one causal language model. `Learner` calls it."""

    def __init__(self, model: PreTrainedModel, *, bfloat16: bool = False) -> None:
        """Check once, on a few tokens, that the model's logits are its output embedding applied to
        its decoder's states.

        With `bfloat16`, the decoder's matrix products compute in that type. The output embedding
        computes in the type of its weights.
        """
        self.model, self.bfloat16 = model, bfloat16
        self.problem = _unlike_its_parts(sample_layers(model))
        """Reason why the model must compute all its logits itself at once; "" if there is none."""
        self.note = f"all logits of a micro-batch at once: {self.problem}" if self.problem else ""
        self._takes = _parameters(model)

    def __call__(
        self,
        batch: Batch,
        *,
        entropy: bool = False,
        reference: NextTokens | None = None,
        divergence: Divergence = REVERSE,
    ) -> TokenScores:
        """Return [S, C] scores of the samples' tokens at their temperatures.

        A token that is not trainable is not computed: it gets the sampler's log-probability, and
        entropy and KL 0.

        Args:
            batch: The micro-batch.
            entropy: True if entropies are wanted.
            reference: Distributions of the reference at `batch.places`, if the KL is wanted.
            divergence: Kind of the divergence from the reference.
        """
        device = self.model.device
        targets = batch.targets.to(device)
        temperature = None
        if bool((batch.temperature != 1).any()):
            temperature = batch.temperature.to(device)
        states, head = self._states(batch)
        found = read(
            states,
            head,
            targets,
            temperature,
            entropy=entropy,
            reference=reference,
            divergence=divergence,
        )
        old = batch.old_logprobs.to(device=device, dtype=found.logprobs.dtype)
        none = torch.zeros_like(old)
        return TokenScores(
            logprobs=batch.scatter(found.logprobs, old),
            entropy=None if found.entropy is None else batch.scatter(found.entropy, none),
            kl=None if found.kl is None else batch.scatter(found.kl, none),
        )

    def next_tokens(self, batch: Batch, *, keep: bool = False) -> NextTokens:
        """Return the distributions at `batch.places`, from one forward pass.

        With `keep`, they have copies of the output embedding's weights, which then may be freed or
        change.
        """
        states, head = self._states(batch)
        return NextTokens(states, in_float32(head, keep=keep))

    def _states(self, batch: Batch) -> tuple[Tensor, torch.nn.Module]:
        """Return [N, H] states at `batch.places` and the output embedding, or [N, V] logits and the
        identity."""
        places = batch.places.to(self.model.device)
        with computing(self.model, bfloat16=self.bfloat16):
            if self.problem:
                return self._logits(batch, places), torch.nn.Identity()
            outs = self._run(self.model.get_decoder(), batch)
        hidden = torch.cat([out.last_hidden_state for out in outs], dim=1).flatten(0, 1)
        head = self.model.get_output_embeddings()
        return hidden[places].to(head.weight.dtype), head

    def _run(self, module: Callable[..., Any], batch: Batch, **more: Any) -> list[Any]:
        """Return outputs of the model or its decoder, to be joined along the columns."""
        ids = batch.ids.to(self.model.device)
        if batch.ends is None:
            outs = [module(input_ids=ids, use_cache=False, **more)]
        else:
            outs = run_tree(module, self.model, ids, batch.ends, batch.positions, stem=batch.stem)
        for _ in range(batch.passes - len(outs)):
            idle = module(input_ids=ids[:1, :1], use_cache=False)
            name = next(iter(idle))
            outs[0][name] = outs[0][name] + 0 * idle[name].sum()
        return outs

    def _logits(self, batch: Batch, places: Tensor) -> Tensor:
        """Return [N, vocabulary] logits at the indices `places`, from the model's own forward
        pass."""
        columns, more = batch.ids.shape[1], dict[str, int]()
        if batch.ends is None and len(places) and "logits_to_keep" in self._takes:
            more["logits_to_keep"] = columns - int((places % columns).min())
        outs = self._run(self.model, batch, **more)
        logits = torch.cat([out.logits for out in outs], dim=1)
        return logits[places // columns, places % columns - columns]


def read_logits(
    logits: Tensor,
    targets: Tensor,
    temperature: Tensor | None,
    *,
    entropy: bool,
    reference: Tensor | None = None,
    divergence: Divergence = REVERSE,
) -> TokenScores:
    """Return [N] scores of `targets` [N] by `logits` [N, V].

    The scores are computed in float32 at least, as in the sampler. `temperature` has [N] numbers;
    None means 1. `reference` are the [N, V] logits of a reference, which get the same temperature.
    If its V differs, because models of one family may pad their vocabularies differently, the KL is
    that over the tokens that both have.
    """
    distribution = _log_softmax(logits, temperature)
    chosen = distribution.gather(1, targets[:, None])[:, 0]
    spread = -(distribution.exp() * distribution).sum(-1) if entropy else None
    if reference is None:
        return TokenScores(chosen, spread, None)
    common = min(logits.shape[1], reference.shape[1])
    if common < logits.shape[1]:
        distribution = _log_softmax(logits[:, :common], temperature)
    given = _log_softmax(reference[:, :common], temperature)
    return TokenScores(chosen, spread, _divergence(distribution, given, divergence))


def _divergence(policy: Tensor, reference: Tensor, beta: Divergence) -> Tensor:
    """Return [N] nats between [N, V] log-probabilities of the policy and the reference."""
    if beta == REVERSE:
        return _kl(policy, reference)
    if beta == FORWARD:
        return _kl(reference, policy)
    mixture = torch.logaddexp(reference + math.log(beta), policy + math.log1p(-beta))
    return beta * _kl(reference, mixture) + (1 - beta) * _kl(policy, mixture)


def _kl(first: Tensor, second: Tensor) -> Tensor:
    return (first.exp() * (first - second)).sum(-1)


def kl_estimate(
    logprobs: Tensor, reference: Tensor, estimator: Literal["k1", "k2", "k3"]
) -> Tensor:
    """Return [S, C] per-token estimates of KL(pi, reference) on samples from pi."""
    d = (logprobs - reference).clamp(-20, 20)
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d.square() / 2
    return (-d).exp() - 1 + d


def _log_softmax(logits: Tensor, temperature: Tensor | None) -> Tensor:
    if logits.dtype != torch.float64:
        logits = logits.float()
    if temperature is not None:
        logits = logits / temperature[:, None]
    return logits.log_softmax(-1)


def read(
    states: Tensor,
    head: torch.nn.Module,
    targets: Tensor,
    temperature: Tensor | None,
    *,
    entropy: bool,
    reference: NextTokens | None = None,
    divergence: Divergence = REVERSE,
) -> TokenScores:
    """Apply `read_logits` to the logits `head(states)` of `states` [N, H], a few tokens at a
    time.

    If `head` is the identity, the logits exist already, and all are read at once.
    """

    def part(
        states: Tensor, targets: Tensor, temperature: Tensor | None, reference_states: Tensor | None
    ) -> TokenScores:
        reference_logits = None
        if reference is not None and reference_states is not None:
            with torch.no_grad():
                reference_logits = reference.head(reference_states)
        return read_logits(
            logits(states),
            targets,
            temperature,
            entropy=entropy,
            reference=reference_logits,
            divergence=divergence,
        )

    reference_states = None if reference is None else reference.states
    logits = in_float32(head)
    if isinstance(head, torch.nn.Identity):
        return part(states, targets, temperature, reference_states)
    models = 1 if reference is None else 2
    size = max(1, most_logits(states.device.type) // vocabulary(head) // models)
    if len(states) <= size:
        return part(states, targets, temperature, reference_states)
    count = -(-len(states) // size)
    given = [
        [None] * count if values is None else values.split(size)
        for values in (states, targets, temperature, reference_states)
    ]
    parts = [
        checkpoint(part, *piece, use_reentrant=False, preserve_rng_state=False)
        for piece in zip(*given, strict=True)
    ]
    return TokenScores(
        logprobs=torch.cat([part.logprobs for part in parts]),
        entropy=torch.cat([part.entropy for part in parts]) if entropy else None,
        kl=None if reference is None else torch.cat([part.kl for part in parts]),
    )


def most_logits(device: str) -> int:
    """Return the largest number of logits in memory at once on a kind of device."""
    return LOGITS.get(device, LOGITS["cpu"])


def vocabulary(head: torch.nn.Module) -> int:
    """Return the number of logits that an output embedding makes of a hidden state."""
    weight = head.weight
    assert isinstance(weight, Tensor)
    return int(weight.shape[0])


def _unlike_its_parts(model: PreTrainedModel) -> str:
    """Return the reason why a model's logits are not its output embedding applied to its decoder's
    states; "" if they are.

    In a forward pass the output of the embedding is replaced by large numbers. If the logits differ
    from these numbers, the model scales or caps them. The input of the embedding must equal the
    output of the decoder when it runs alone.
    """
    name = type(model).__name__
    parts = hasattr(model, "get_decoder") and hasattr(model, "get_output_embeddings")
    head = model.get_output_embeddings() if parts else None
    if head is None or model.get_decoder() is model:
        return f"{name} names no decoder and output embedding"
    seen: list[Tensor] = []
    swapped: list[Tensor] = []

    def swap(module: torch.nn.Module, given: tuple[Tensor, ...], made: Tensor) -> Tensor:
        seen.append(given[0])
        swapped.append(torch.linspace(-100, 100, made.numel()).to(made).view_as(made))
        return swapped[-1]

    ids = torch.tensor([[1, 2, 1, 0]], device=model.device)
    hook = head.register_forward_hook(swap)
    try:
        with evaluating(model):
            logits = model(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    if len(seen) != 1 or swapped[0].shape != logits.shape:
        return f"{name} calls its output embedding in a way of its own"
    if not torch.equal(logits.double(), swapped[0].double()):
        return f"{name} changes the logits that its output embedding makes"
    try:
        with evaluating(model):
            states = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    except Exception as error:  # a part that is not a decoder may fail in any way
        return f"{name} names a decoder that does not run alone ({type(error).__name__})"
    scale = float(states.abs().max())
    if states.shape != seen[0].shape or float((states - seen[0]).abs().max()) > 1e-2 * scale:
        return f"{name} changes its decoder's states before the output embedding"
    return ""


def _parameters(model: PreTrainedModel) -> set[str]:
    """Return the names of the arguments of the model's forward pass."""
    known = inspect.signature(model.forward).parameters
    wrapper = "input_ids" not in known and any(
        p.kind is p.VAR_KEYWORD for p in known.values()
    )  # a wrapper passes all arguments on
    return set(known) | ({"logits_to_keep"} if wrapper else set())
