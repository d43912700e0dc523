"""Memory of a learner's pass beside its state, in the part of the pass that needs most."""

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
    outline: ModelShape, rank: int, cluster: ClusterSpec, *, tokens: float, completions: float
) -> PassMemory:
    """Return the memory of a forward and backward pass when it is largest.

    It is largest in the backward pass of the output embedding, where all layers have stored their
    activations and a piece has its logits, or in that of a layer, which has its own activations and
    their gradients. With checkpointing a layer stores its input alone, and computes the rest again.

    Args:
        outline: Shape of the model.
        rank: Rank of the adapter; 0: all weights learn.
        cluster: Layout.
        tokens: Tokens of the pass.
        completions: Tokens whose logits are read.
    """
    kept, stream = _activations(outline, rank, cluster)
    head, layer = _unsharded(outline, rank, cluster)
    gradients = 2 * cluster.width * outline.active_intermediate + 4 * outline.hidden
    stored = outline.layers * (stream if cluster.checkpointing else kept)
    working = stored + gradients + (kept if cluster.checkpointing else 0)
    piece = min(cluster.logits or completions, completions)
    logits = piece * outline.vocabulary * (12 if rank else 16)
    return max(
        PassMemory(unsharded=head, activations=tokens * stored, logits=logits),
        PassMemory(unsharded=layer, activations=tokens * working, logits=0.0),
        key=lambda moment: moment.total,
    )


def _activations(outline: ModelShape, rank: int, cluster: ClusterSpec) -> tuple[float, float]:
    """Return the bytes per token that a layer stores without and with checkpointing.

    Beside `ModelShape.activations`, a layer stores its residual stream, and the inputs of the
    weights of its norms if they learn. If all weights learn in one process in mixed precision, the
    residual stream is in float32, and each matrix stores its own converted input: the input of
    queries, keys and values is stored three times, and that of gate and up twice.
    """
    width, hidden = cluster.width, outline.hidden
    kept = outline.activations(bytes_per_value=width) + (4 if rank else 8) * hidden
    if not rank and cluster.sharded == 1 and cluster.precision == "mixed":
        return kept + (3 * width + 4) * hidden, 4 * hidden
    return kept, width * hidden


def _unsharded(outline: ModelShape, rank: int, cluster: ClusterSpec) -> tuple[float, float]:
    """Return the bytes of unsharded weights and gradients in the backward pass of the output
    embedding and of a layer.

    Pieces of the output embedding add up their gradients in float32, with one more gradient for the
    present piece. If all weights learn in one process in mixed precision, the pass has copies of
    its layers in 16 bits: of one layer with checkpointing, and of all without. With shards, the
    embeddings and one layer are gathered, for an adapter two. Ranks that learn all weights have the
    gradients of one layer in the type of the passes and in float32, and in the backward pass of the
    output embedding a copy of it in float32 if passes have 16 bits.
    """
    width, size, embedding = cluster.width, outline.layer_parameters, outline.embedding
    if cluster.sharded == 1:
        if rank:
            return 0.0, 0.0
        mixed = cluster.precision == "mixed"
        copies = width * size * outline.layers if mixed and not cluster.checkpointing else 0
        again = width * size if mixed and cluster.checkpointing else 0
        gradient = (width if mixed else 0) + 4
        return copies + 8 * embedding, copies + again + gradient * size
    gathered = width * (size + embedding * (1 if outline.tied else 2))
    if rank:
        return gathered, gathered + width * size
    copy = 4 * embedding if width < 4 else 0
    layer = width * (size + embedding) + (width + 4) * size + 4 * embedding
    return gathered + copy + 8 * embedding, layer
