"""Peak memory of a learner's pass, without the learner's state."""

from dataclasses import dataclass

from selfplay.plan.cluster import ClusterSpec
from selfplay.plan.model_shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class PassMemory:
    """Bytes of one device at one moment of a pass."""

    unsharded: float
    """Weights that are gathered or cast, and gradients that are not yet sharded or added up."""
    activations: float
    """Values that the backward pass reads."""
    logits: float
    """Logits of one piece, with their probabilities and gradients."""

    @property
    def total(self) -> float:
        """Sum, in bytes."""
        return self.unsharded + self.activations + self.logits


def pass_memory(
    outline: ModelShape,
    cluster: ClusterSpec,
    *,
    adapter: bool,
    converted: bool,
    tokens: float,
    completions: float,
) -> PassMemory:
    """Return the memory of a forward and backward pass when it is largest.

    It is largest in the backward pass of the output embedding, where all layers have stored their
    activations and a piece has its logits, or in that of a layer, which has its own activations and
    their gradients. With checkpointing a layer stores its input alone, and computes the rest again.
    A logit takes 12 bytes in float32, with its probability and its gradient, and 16 if the output
    embedding learns (counted under fake tensors, `scripts/check_memory.py`).

    Args:
        outline: Shape of the model.
        cluster: Layout.
        adapter: True if an adapter learns, False if all weights do.
        converted: True if each matrix product converts float32 weights and inputs to 16 bits, as in
            one process in mixed precision.
        tokens: Tokens of the pass.
        completions: Tokens whose logits are read.
    """
    kept, stream = _activations(outline, cluster, adapter=adapter, converted=converted)
    piece = min(cluster.logits or completions, completions)
    head_gradients = 2 if piece < completions else 1
    head, layer = _unsharded(
        outline, cluster, adapter=adapter, converted=converted, head_gradients=head_gradients
    )
    gradients = 2 * cluster.width * outline.active_intermediate + 4 * outline.hidden
    stored = outline.layers * (stream if cluster.checkpointing else kept)
    working = stored + gradients + (kept if cluster.checkpointing else 0)
    logits = piece * outline.vocabulary * (12 if adapter else 16)
    return max(
        PassMemory(unsharded=head, activations=tokens * stored, logits=logits),
        PassMemory(unsharded=layer, activations=tokens * working, logits=0.0),
        key=lambda moment: moment.total,
    )


def _activations(
    outline: ModelShape, cluster: ClusterSpec, *, adapter: bool, converted: bool
) -> tuple[float, float]:
    """Return the bytes per token that a layer stores without and with checkpointing.

    In addition to `ModelShape.activations`, a layer stores its residual stream, and the inputs of
    the weights of its norms if they learn. If weights are converted, the residual stream is in
    float32, and each matrix stores its own converted input: the input of queries, keys and values
    is stored three times, and that of gate and up twice.
    """
    width, hidden = cluster.width, outline.hidden
    kept = outline.activations(bytes_per_value=width) + (4 if adapter else 8) * hidden
    if converted:
        return kept + (3 * width + 4) * hidden, 4 * hidden
    return kept, width * hidden


def _unsharded(
    outline: ModelShape,
    cluster: ClusterSpec,
    *,
    adapter: bool,
    converted: bool,
    head_gradients: int,
) -> tuple[float, float]:
    """Return the bytes of unsharded weights and gradients in the backward pass of the output
    embedding and of a layer.

    The output embedding has `head_gradients` gradients in float32: the sum over the pieces and, if
    there are several, one for the present piece. In one process, converted weights have copies in
    16 bits: those of one layer with checkpointing, and of all without. With shards, the embeddings
    and one layer are gathered in the backward pass of the output embedding, whose weights have a
    copy in float32 if passes have 16 bits and the weights learn. In the backward pass of a layer,
    ranks that learn an adapter have gathered the embeddings and two layers. Ranks that learn all
    weights then have one embedding and one layer, the layer's gradients in the type of the passes
    and in float32, and the gradient of the output embedding in float32.
    """
    width, size, embedding = cluster.width, outline.layer_parameters, outline.embedding
    if cluster.sharded == 1:
        copies = width * size * outline.layers if converted and not cluster.checkpointing else 0
        again = width * size if converted and cluster.checkpointing else 0
        if adapter:
            return copies, copies + again
        layer = copies + again + ((width if converted else 0) + 4) * size
        return copies + head_gradients * 4 * embedding, layer
    gathered = width * (size + embedding * (1 if outline.tied else 2))
    if adapter:
        return gathered, gathered + width * size
    copy = 4 * embedding if width < 4 else 0
    layer = width * (size + embedding) + (width + 4) * size + 4 * embedding
    return gathered + copy + head_gradients * 4 * embedding, layer
