"""Memory traffic of a learner's passes on a GPU, apart from that of their matrix products.

Normalisations, casts, sums, activation functions and rotations are kernels of their own: each reads
its inputs from memory and writes its results there. The constants are not fitted: they count these
bytes in the learner's own passes in bfloat16 on one device (`scripts/check_traffic.py`). If all
weights learn and are sharded, the residual stream has 16 bits; a plan counts its bytes as on one
device.
"""

from dataclasses import dataclass

from selfplay.plan.model_shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class LayerTraffic:
    """Bytes of a layer per token, for each unit of a width."""

    hidden: float
    """Bytes of the residual stream: norms, residual sums, casts of inputs."""
    query: float
    """Bytes of all queries: rotation, casts, the result of attention."""
    key: float
    """Bytes of all keys; those of the values are included."""
    wide: float
    """Bytes of the feed-forward layer: activation function, product with the gate."""
    norms: float
    """Bytes of queries and keys together if they have norms."""

    def bytes(self, outline: ModelShape) -> float:
        """Return the bytes per token of all layers."""
        own = self.hidden * outline.hidden + self.query * outline.query + self.key * outline.key
        own += self.wide * outline.active_intermediate
        if outline.qk_norm:
            own += self.norms * (outline.query + outline.key)
        return outline.layers * own


@dataclass(frozen=True, kw_only=True)
class PassTraffic:
    """Bytes of forward and backward passes."""

    forward: LayerTraffic
    """Bytes of a forward pass."""
    backward: LayerTraffic
    """Bytes of a backward pass, without a second computation of the layers."""
    weight: float = 0.0
    """Bytes per weight of the layers and forward pass: a cast to 16 bits."""
    gradient: float = 0.0
    """Bytes per weight of the layers and backward pass: a cast from 16 bits, and a sum."""


WHOLE = PassTraffic(
    forward=LayerTraffic(hidden=106, query=36, key=36, wide=10, norms=48),
    backward=LayerTraffic(hidden=286, query=60, key=62, wide=18, norms=114),
    weight=6,
    gradient=18,
)
"""All weights, in float32: the residual stream and its gradients are in float32 too."""
ADAPTER = PassTraffic(
    forward=LayerTraffic(hidden=104, query=30, key=40, wide=30, norms=36),
    backward=LayerTraffic(hidden=236, query=42, key=40, wide=32, norms=85),
)
"""An adapter over weights of 16 bits."""
LOGIT_FORWARD, LOGIT_BACKWARD = 8, 24
"""Bytes per logit in float32, in the forward pass for a softmax, and in the backward pass for its
gradient and that of the chosen tokens."""
HEAD = 12
"""Bytes per weight of the output embedding for each piece of logits: the sum of its gradients, or
two casts of frozen weights to float32."""


def of(rank: int) -> PassTraffic:
    """Return the traffic of a policy with an adapter of a rank, or 0 if all weights learn."""
    return ADAPTER if rank else WHOLE


def scoring(outline: ModelShape, rank: int, tokens: float, head: float) -> float:
    """Return the bytes of a forward pass over `tokens` tokens, of which `head` need logits."""
    layers = of(rank).forward.bytes(outline) * tokens
    return layers + LOGIT_FORWARD * outline.vocabulary * head


def training(
    outline: ModelShape,
    rank: int,
    tokens: float,
    head: float,
    *,
    passes: float,
    checkpointing: bool,
    logits: int,
) -> float:
    """Return the bytes of forward and backward passes.

    Args:
        outline: Shape of the model.
        rank: Rank of the adapter; 0: all weights learn.
        tokens: Tokens of all passes together.
        head: Tokens whose logits are needed.
        passes: Number of pairs of a forward and a backward pass.
        checkpointing: True if the backward pass computes the layers again.
        logits: Tokens whose logits exist at once, and are computed again in the backward pass; 0:
            those of the whole micro-batch, which are computed once.
    """
    kind, times = of(rank), 2 if checkpointing else 1
    forward, backward = kind.forward.bytes(outline), kind.backward.bytes(outline)
    weights = outline.layers * outline.layer_parameters
    found = (times * forward + backward) * tokens
    found += (times * kind.weight + kind.gradient) * weights * passes
    seen = 2 if logits else 1
    found += (seen * LOGIT_FORWARD + LOGIT_BACKWARD) * outline.vocabulary * head
    pieces = head / logits if logits else passes
    return found + HEAD * outline.embedding * pieces
