"""Memory per device in learning and in generation, and a check that it fits."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from selfplay.plan.cluster import GB, ClusterSpec
from selfplay.plan.host_memory import host_memory
from selfplay.plan.member import Member as Member  # also for those who plan memory
from selfplay.plan.model_shape import ModelShape
from selfplay.plan.pass_memory import PassMemory, pass_memory

COMPONENTS = (
    "weights",
    "gradients",
    "optimizer",
    "reference",
    "unsharded",
    "activations",
    "logits",
    "engine",
)
"""Components of a learner's memory."""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Peak memory of one device, in bytes by component."""

    learning: Mapping[str, float]
    """Bytes in learning; empty on devices that only generate."""
    generating: Mapping[str, float]
    """Bytes in generation, without the cache."""
    cache: float
    """Bytes left for the key-value cache."""
    cache_tokens: float
    """Capacity of the cache per copy of the engine, in tokens; the smallest one of all copies."""
    tokens_of: Mapping[str, float] = field(default_factory=dict)
    """Capacity of the cache of the engines that hold a policy, in tokens, by policy."""
    host_parts: Mapping[str, float] = field(default_factory=dict)
    """Bytes of main memory of the driver's machine by component, without Python and libraries."""
    limit: float
    """Usable bytes per device."""
    complaints: tuple[str, ...] = field(default_factory=tuple)
    """A message for each part that does not fit, one line each."""

    @property
    def host(self) -> float:
        """Bytes of main memory of the driver's machine."""
        return sum(self.host_parts.values())

    @property
    def fits(self) -> bool:
        """True if everything fits."""
        return not self.complaints

    @property
    def margin(self) -> float:
        """Fraction of the limit that learning leaves free; fragmentation may use a small one."""
        return 1 - sum(self.learning.values()) / self.limit


def learning(
    members: Mapping[str, Member],
    cluster: ClusterSpec,
    *,
    micro_batch: float,
    completions: float = 0.0,
) -> dict[str, float]:
    """Return the bytes per device of a learner with N shards, by component.

    Training of all weights in mixed precision needs float32 master weights, gradients and two
    AdamW moments: 4 + 4 + 8 bytes per parameter over N (1910.02054). An adapter of A parameters
    needs 16 A / N, and its frozen base of P parameters 2 P / N or 4 P / N (`frozen_width`). In one
    process all adapters over one model share the base, which is their reference too; with several
    ranks each learner has a base of its own, and the reference another one. The reference of a
    policy that learns all weights, or that is an average of an adapter, is a copy in float32.
    Teachers are held once each, in the type of the passes.
    Policies do their passes one after another, so the memory that only passes need is that of the
    largest policy (`pass_memory`).

    Args:
        members: Policies by name.
        cluster: Layout.
        micro_batch: Tokens of one forward pass on a device.
        completions: Tokens of the pass whose logits are needed; 0: all of them.
    """
    shards = cluster.sharded
    found = dict.fromkeys(COMPONENTS, 0.0)
    apart = cluster.learners > 1
    bases: set[object] = set()
    references: set[object] = set()
    teachers: set[ModelShape] = set()
    passes: list[PassMemory] = []
    for member in members.values():
        outline, size = member.outline, member.own
        base = member.frozen_width(cluster) * outline.parameters / shards if member.rank else 0.0
        if member.rank and (member.learns if apart else member.base not in bases):
            found["weights"] += base
            bases.add(member.base)
        if not member.learns:
            continue
        found["weights"] += 4 * size / shards
        found["gradients"] += 4 * size / shards
        found["optimizer"] += 0.0 if cluster.offload else 8 * size / shards
        if member.teachers:
            found["reference"] += member.teacher_bytes(cluster, teachers) / shards
        elif member.copied:
            found["reference"] += 4 * size / shards + (base if apart else 0.0)
        elif member.reference and apart and member.base not in references:
            found["reference"] += base
            references.add(member.base)
        tokens = min(completions or micro_batch, micro_batch)
        passes.append(
            pass_memory(
                outline,
                cluster,
                adapter=member.rank > 0,
                converted=_converts(member, cluster),
                tokens=micro_batch,
                completions=tokens,
            )
        )
    if passes:
        found |= asdict(max(passes, key=lambda each: each.total))
    if cluster.stays:
        found["engine"] = cluster.engine_share * cluster.device.memory * GB
    return {**found, "reserved": cluster.reserved * GB}


def plan_memory(
    members: Mapping[str, Member],
    cluster: ClusterSpec,
    *,
    micro_batch: float,
    completions: float,
    longest: float,
    background: bool = False,
) -> MemoryPlan:
    """Plan the memory of a device that learns, generates, or alternates both.

    Args:
        members: Policies by name.
        cluster: Layout.
        micro_batch: Tokens of one forward pass on a device.
        completions: Tokens of the pass whose logits are needed.
        longest: Tokens of the longest prompt with its completion, which must fit in the cache.
        background: True if a thread writes a copy of each checkpoint.
    """
    limit = cluster.usable * cluster.device.memory * GB
    learned = learning(members, cluster, micro_batch=micro_batch, completions=completions)
    state = sum(learned[name] for name in ("weights", "gradients", "optimizer", "reference"))
    together = not cluster.rollout
    kept = state if together and not cluster.asleep else 0.0
    kinds = [
        _engine({name: members[name] for name in names}, cluster, kept)
        for names in cluster.held(members)
    ]
    generating, left, per_token = min(kinds, key=lambda kind: kind[1] / kind[2])
    copies = generating["copies"]
    longest = max(longest, cluster.longest)
    complaints = []
    if sum(learned.values()) > limit:
        largest = max(learned, key=learned.__getitem__)
        complaints.append(
            f"learning needs {sum(learned.values()) / GB:.1f} GB of the {limit / GB:.1f} GB per "
            f"device, {learned[largest] / GB:.1f} GB of it {largest}"
        )
    if left < longest * per_token:
        complaints.append(
            f"generating leaves {max(left, 0.0) / GB:.1f} GB per device for the cache, and one "
            f"sequence of {longest:.0f} tokens takes {longest * per_token / GB:.1f} GB"
        )
    engine_copies = copies
    if cluster.copies and cluster.tensor > 1:
        # Each engine has one whole copy, which is in main memory.
        held = cluster.held(members)
        engine_copies = max(
            served({name: members[name] for name in names}, cluster) for names in held
        )
    parts = host_memory(
        members,
        cluster,
        state=state - learned["gradients"],
        copies=engine_copies,
        kept=served({name: member for name, member in members.items() if member.rank}, cluster),
        background=background,
    )
    host = sum(parts.values())
    if host > cluster.host * GB:
        complaints.append(
            f"{host / GB:.0f} GB are needed in a machine's main memory of {cluster.host:.0f} GB"
        )
    return MemoryPlan(
        learning=learned,
        generating=generating,
        cache=max(left, 0.0),
        cache_tokens=max(left, 0.0) / per_token,
        tokens_of={
            name: max(room, 0.0) / size
            for names, (_, room, size) in zip(cluster.held(members), kinds, strict=True)
            for name in names
        },
        host_parts=parts,
        limit=limit,
        complaints=tuple(complaints),
    )


def _engine(
    members: Mapping[str, Member], cluster: ClusterSpec, kept: float
) -> tuple[dict[str, float], float, float]:
    """Return the bytes of a device with an engine by component, the bytes left for the engine's
    cache, and the bytes of a token in the cache.

    Args:
        members: Policies that the engine holds.
        cluster: Layout.
        kept: Bytes of the learner's state that stay on the device.
    """
    weights = engine_weights(members, cluster)
    copies = cluster.copies and cluster.tensor == 1
    generating = {
        "engine weights": weights,
        "copies": served(members, cluster) if copies else 0.0,
        "engine reserved": cluster.engine_reserved * GB,
        "learner's state": kept,
    }
    left = cluster.usable * cluster.device.memory * GB - sum(generating.values())
    if cluster.engine_share:
        share = cluster.engine_share * cluster.device.memory * GB
        left = min(left, share - weights - cluster.engine_reserved * GB)
    return generating, left, max(_cache(member.outline, cluster) for member in members.values())


def engine_weights(members: Mapping[str, Member], cluster: ClusterSpec) -> float:
    """Return the bytes of weights that the engines of a process hold at once, per device."""
    if cluster.same_weights and not cluster.rollout:
        return served({n: m for n, m in members.items() if not m.learns}, cluster)
    if not cluster.in_turns:
        return served(members, cluster)
    shapes = {(member.outline, bool(member.rank)): member for member in members.values()}
    adapters = {name: member for name, member in members.items() if member.rank}
    whole = {str(shape): member for shape, member in shapes.items() if not member.rank}
    return served({**adapters, **whole}, cluster)


def _converts(member: Member, cluster: ClusterSpec) -> bool:
    """Return True if passes convert float32 weights to 16 bits. With several shards they do not,
    because weights are gathered in 16 bits."""
    wide = not member.rank or (member.frozen_bytes or cluster.width) == 4
    return wide and cluster.sharded == 1 and cluster.precision == "mixed"


def served(members: Mapping[str, Member], cluster: ClusterSpec) -> float:
    """Return the engines' bytes of weights per device: those of each policy's own weights, and of
    each base of adapters once."""
    bases = {m.base: m.outline.parameters for m in members.values() if m.rank}
    whole = sum(member.own for member in members.values())
    return cluster.engine_width * (whole + sum(bases.values())) / cluster.tensor


def _cache(outline: ModelShape, cluster: ClusterSpec) -> float:
    """Return the cache's bytes per token and device. Tensor parallelism over more devices than
    key-value heads repeats heads."""
    return outline.cache(cluster.engine_width) / min(cluster.tensor, outline.kv_heads)
