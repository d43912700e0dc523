"""Main memory of the driver's machine: models, weights and states that are not on a GPU."""

from collections.abc import Mapping

from selfplay.plan.cluster import ClusterSpec
from selfplay.plan.member import Member
from selfplay.plan.model_shape import ModelShape

VERSIONS = 2
"""Versions of the weights in Ray's object store at once, as `selfplay.runtime.placement` counts
them: one is used, the next arrives."""
FLOAT32 = 4
"""Bytes per number of weights that learn, in the driver, in ranks and in checkpoints."""
MOMENTS = 8
"""Bytes per trained number of the two float32 moments of AdamW."""


def host_memory(
    members: Mapping[str, Member],
    cluster: ClusterSpec,
    *,
    state: float,
    copies: float,
    kept: float = 0.0,
    background: bool = False,
) -> dict[str, float]:
    """Return the bytes of main memory at the moment that needs most, by component.

    Some components are there all the time: the driver's copy of the policies (`RayRuntime.device`
    is the CPU), the models from which engines over several devices are loaded
    (`Placement.device`), and an optimizer that is offloaded. Other components are there only at
    some of the following moments, and the peak is at one of them:

    - loading: the first rank has all models in main memory (`learner_worker.LearnerWorker._begin`),
      and the store the first version for the workers (`RayRuntime.trainers`),
    - saving: the first rank gathers a policy's whole weights in float32 (`fsdp.gather`), Ray copies
      them to its store in addition to the versions for the workers, and the driver reads them from
      there,
    - sending: the same after an update, in the type of the engines, while the copy of a checkpoint
      that a thread writes is still there (`run.async_checkpoints`),
    - resting: the ranks' tensors are in main memory (`Colocation`), in addition to that copy.

    Workers of colocated layouts have their models in main memory whenever the ranks compute, and
    while a device passes from one to the other. A sleeping engine also keeps adapters with their
    base there (`EngineCore.sleep`), even without ranks, while the learner of the process works. All
    these processes are assumed to be on the driver's machine. Policies are sent and read one after
    another.

    Args:
        members: Policies by name.
        cluster: Layout.
        state: Bytes of a device's weights, moments and references, without gradients, which an
            offload drops.
        copies: Bytes of the models from which an engine is loaded: one over several devices, or one
            on a single device whose models rest in main memory while ranks compute.
        kept: Bytes of the weights that an engine keeps in main memory while it sleeps.
        background: True if a thread writes a copy of each checkpoint.
    """
    devices = min(cluster.node, cluster.devices)
    learned = [member for member in members.values() if member.learns]
    offloaded = MOMENTS * sum(member.own for member in learned) / cluster.sharded * devices
    always = {
        "driver": whole_models(members, cluster) if cluster.driver else 0.0,
        "optimizer": offloaded * cluster.offload,
    }
    if cluster.tensor > 1:
        always["engines' copies"] = copies * min(cluster.node, cluster.generators)
    resting = cluster.asleep and not cluster.rollout
    asleep = {"engines' copies": copies * devices} if resting and cluster.tensor == 1 else {}
    if cluster.sleeps and not cluster.rollout:
        asleep["engines asleep"] = kept * devices
    moments = [{**asleep, "at rest": state * devices * resting}]
    writing = _checkpoint_copy(learned, cluster) if background else 0.0
    moments[0]["copied checkpoint"] = writing
    if cluster.driver:
        sent = [_sent(member, cluster) for member in learned]
        float32 = max((FLOAT32 * member.own for member in learned), default=0.0)
        moments[0]["object store"] = VERSIONS * sum(sent)
        moments += [
            {**asleep, "loading": _loaded(members, cluster), "object store": sum(sent)},
            {**asleep, "gathered": float32, "object store": VERSIONS * sum(sent) + float32},
            {
                **asleep,
                "gathered": max(sent, default=0.0),
                "object store": VERSIONS * sum(sent),
                "copied checkpoint": writing,
            },
        ]
    most = max(moments, key=lambda moment: sum(moment.values()))
    return {name: size for name, size in {**always, **most}.items() if size}


def whole_models(members: Mapping[str, Member], cluster: ClusterSpec) -> float:
    """Return the bytes of the models of policies in one process, with each base of adapters once.

    `load_policies` loads them: weights that learn and adapters in float32.
    """
    bases = {m.base: m.frozen_width(cluster) * m.outline.parameters for m in _adapters(members)}
    return float(sum(bases.values()) + sum(_own(m, cluster) for m in members.values()))


def _loaded(members: Mapping[str, Member], cluster: ClusterSpec) -> float:
    """Return the bytes of the models that the first rank has in main memory before it shards them.

    A rank alone moves each model to its GPU before it loads the next one, and copies references
    there. Otherwise references are in main memory too: copies of all weights or of an adapter that
    is averaged, and teachers.
    """
    if cluster.learners == 1:
        bases = [m.frozen_width(cluster) * m.outline.parameters for m in _adapters(members)]
        whole = [_own(m, cluster) for m in members.values() if not m.rank]
        shapes = {shape for m in members.values() if m.learns for shape in m.teachers}
        teachers = [cluster.width * shape.parameters for shape in shapes]
        return float(max([*bases, *whole, *teachers], default=0.0))
    learned = [member for member in members.values() if member.learns]
    known: set[ModelShape] = set()
    references = FLOAT32 * sum(member.own for member in learned if member.copied)
    references += sum(member.teacher_bytes(cluster, known) for member in learned)
    return whole_models(members, cluster) + references


def _adapters(members: Mapping[str, Member]) -> list[Member]:
    return [member for member in members.values() if member.rank]


def _own(member: Member, cluster: ClusterSpec) -> float:
    """Return the bytes of a policy's own weights in the driver, without the base of an adapter."""
    wide = member.learns or member.rank
    return (FLOAT32 if wide else member.frozen_width(cluster)) * member.own


def _sent(member: Member, cluster: ClusterSpec) -> float:
    """Return the bytes of a policy's weights on their way to workers: adapters stay float32."""
    return float((FLOAT32 if member.rank else cluster.engine_width) * member.own)


def _checkpoint_copy(learned: list[Member], cluster: ClusterSpec) -> float:
    """Return the bytes of the copy that a thread writes: the driver's weights, and the moments and
    averages of the ranks of one machine."""
    weights = FLOAT32 * sum(member.own for member in learned)
    averaged = sum(member.own for member in learned if member.reference and member.average)
    moments = MOMENTS * sum(member.own for member in learned)
    ranks = min(cluster.node, cluster.learners)
    return weights + (moments + FLOAT32 * averaged) * ranks / cluster.sharded
