"""The layout of a plan, derived from a config's runtime, engine and learner.

`selfplay plan` makes it. Keys of `cluster` that are set by hand have priority over derived ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from selfplay.config.instantiate import TARGET
from selfplay.engines.shards import shards_of
from selfplay.errors import ConfigError
from selfplay.learner.state_copies import Replicas, StateCopies, choose_copies
from selfplay.plan.cluster import GB, ClusterSpec, EngineGroup
from selfplay.plan.memory import Member, engine_weights, learning, served
from selfplay.plan.workload import learns_in_16_bits

PLACEMENT = ("rollout", "tensor", "shards")
"""Keys of a cluster that place the work. If one of them is set by hand, the plan is for that layout
and not for the one that the config's own runtime would use."""
DERIVED = (
    *("precision", "same_weights", "checkpointing", "logits", "offload", "asleep", "sequences"),
    *("engine_bytes", "engine_share", "copies", "in_turns", "stays", "driver"),
    *("sleeps", "longest", "lag", "continuous", "publish", "pause"),
)
"""Other keys that the config determines."""
TRANSFORMERS = "selfplay.engines.transformers.TransformersEngine"
VLLM = "selfplay.engines.vllm.engine.VLLMEngine"
COPY = 20.0
"""GB/s of a weight update within a device (an assumption)."""
SENT = 2.0
"""GB/s of a weight update between processes: what `scripts/bench weights` measured on a CPU."""


@dataclass(frozen=True, kw_only=True)
class Processes:
    """The processes of a run and the GPUs of each one."""

    workers: int = 0
    """Number of rollout workers; 0: one process does everything."""
    learners: int = 0
    """Number of learner ranks; 0: the driver learns."""
    worker_gpus: float = 0.0
    """GPUs of each worker."""
    learner_gpus: float = 0.0
    """GPUs of each rank."""
    replicas: Replicas = "auto"
    """Number of copies of the learners' state."""
    max_staleness: int = 0
    """Number of steps that are sampled ahead."""
    colocated: bool = False
    """True if each rank shares the device of one worker, and one of the two rests."""
    short_weights: bool = False
    """True if workers hold float32 models in 16 bits."""
    groups: Sequence[EngineGroup] = ()
    """Workers by policy; empty: each one holds all policies."""


def derive(
    cluster: ClusterSpec,
    config: Mapping[str, Any],
    members: Mapping[str, Member],
    processes: Processes,
    *,
    given: Mapping[str, Any],
) -> tuple[ClusterSpec, list[str]]:
    """Return a cluster with the layout of a config, and notes about it.

    Args:
        cluster: Hardware.
        config: Config of the run.
        members: Policies by name.
        processes: Processes of the runtime.
        given: Keys of the cluster that are set by hand.

    Raises ConfigError, in one line, for a layout that the hardware cannot hold or a plan does not
    cover.
    """
    engine = _engine(config["engine"])
    tensor = shards_of(config)
    if tensor > 1 and not processes.workers:
        raise ConfigError(
            f"engine.tensor_parallel: a plan covers {tensor} GPUs of a worker, not those of one "
            "process whose learner uses one of them; set runtime=ray"
        )
    if tensor > 1:
        _check_divisible(members, tensor)
    changes, notes = _placed(cluster, processes, tensor)
    apart, colocated = bool(changes["rollout"]), processes.colocated
    on_gpu = cluster.device.kind == "cuda"
    learner = config["learner"]
    checkpointing = learner.get("activation_checkpointing", "auto")
    changes |= {
        "precision": "mixed" if learns_in_16_bits(learner, on_gpu=on_gpu) else "float32",
        "checkpointing": on_gpu if checkpointing == "auto" else bool(checkpointing),
        "logits": _logits(members, cluster.device.kind),
        "same_weights": engine == TRANSFORMERS and not processes.workers,
        "sequences": int(config["engine"].get("max_rows", 256)),
        "longest": int(config["engine"].get("max_length") or 0),
        "engine_bytes": 2
        if _in_16_bits(config, processes, vllm=engine == VLLM, on_gpu=on_gpu)
        else max(member.frozen_bytes or 4 for member in members.values()),
        "copies": (engine == VLLM and apart) or colocated,
        "in_turns": engine == VLLM,
        "lag": processes.max_staleness if apart else 0,
        "continuous": False,
        "offload": False,
        "asleep": colocated and on_gpu,
        # On a CPU all processes share the main memory in equal parts.
        "driver": processes.workers > 0 and on_gpu,
        "publish": SENT if apart or colocated else COPY,
        "pause": 3.0 if engine == VLLM else 0.0,
    }
    if engine == VLLM and on_gpu:
        sleeps = bool(config["engine"].get("sleep"))
        _check_sleep(processes, sleeps=sleeps)
        changes["stays"] = not apart and not sleeps
        changes["sleeps"] = sleeps
        for together in _together(members, processes.groups):
            _check_engines(config["engine"], together, sleeps=sleeps, apart=apart)
    made = replace(cluster, **{k: v for k, v in changes.items() if k not in given})
    copies = _copies(made, members, processes.replicas)
    if copies.count > 1:
        made = replace(made, shards=made.learners // copies.count)
    notes += [copies.note] if copies.note else []
    if engine == VLLM and on_gpu and "engine_share" not in given:
        share = _share(config["engine"], members, made, alone=apart or colocated)
        made = replace(made, engine_share=share)
    if engine == VLLM and on_gpu and made.engine_bytes == 4:
        notes.append(
            "vLLM computes in float32, which is slow on a GPU; leave engine.dtype, and "
            "runtime.worker_dtype of workers, at auto"
        )
    return made, notes


def _placed(
    cluster: ClusterSpec, processes: Processes, tensor: int
) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of a cluster that place the processes of a run, and notes about them.

    `tensor` is the number of devices of an engine.
    """
    changes: dict[str, Any] = {"rollout": 0, "shards": 0, "tensor": tensor}
    notes = []
    if not processes.workers:
        changes |= {"devices": 1, "node": 1}
        if cluster.devices > 1:
            notes.append(
                f"runtime=local uses one of the {cluster.devices} devices; runtime=ray, or a "
                "recipe (selfplay list recipe), uses more"
            )
    elif cluster.device.kind == "cpu":
        changes |= _on_cpus(cluster, processes, tensor)
        notes.append(f"{changes['devices']} processes share the memory of this machine")
    else:
        changes |= _on_gpus(cluster, processes, tensor)
        idle = cluster.devices - changes["devices"]
        if idle:
            notes.append(f"{idle} of the {cluster.devices} devices have no work")
    changes["groups"] = processes.groups
    notes += [f"{' and '.join(g.policies)}: {g.engines} worker(s)" for g in processes.groups]
    return changes, notes


def _copies(cluster: ClusterSpec, members: Mapping[str, Member], replicas: Replicas) -> StateCopies:
    """Return the copies of the learners' state if Ray fills one machine after another, with the
    workers first."""
    held = learning(members, cluster, micro_batch=1)
    part = held["weights"] + held["gradients"] + held["optimizer"]
    return choose_copies(
        [str(device // cluster.node) for device in range(cluster.rollout, cluster.devices)],
        replicas,
        state=part * cluster.sharded,
        memory=cluster.device.memory * GB if cluster.device.kind == "cuda" else None,
    )


def _check_sleep(processes: Processes, *, sleeps: bool) -> None:
    """Raise ConfigError if engines sleep without ranks on their GPUs, or do not sleep with them."""
    if sleeps and processes.workers and not processes.colocated:
        raise ConfigError(
            "engine.sleep: engines of workers can sleep only if ranks use the same GPUs; set "
            "engine.sleep=false, or runtime.colocated=true"
        )
    if processes.colocated and not sleeps:
        raise ConfigError(
            "runtime.colocated: the engine would keep its GPU memory while the ranks learn; "
            "set engine.sleep=true"
        )


def _in_16_bits(
    config: Mapping[str, Any], processes: Processes, *, vllm: bool, on_gpu: bool
) -> bool:
    """Return True if the engine holds float32 models in 16 bits.

    A plan of workers that load models in float32 counts float32 for the model and for vLLM.
    """
    dtype = config["engine"].get("dtype", "auto") if vllm else "auto"
    if dtype == "float32":
        return False
    if processes.workers:
        return processes.short_weights
    return vllm and (dtype == "bfloat16" or on_gpu)


def engines(members: Mapping[str, Member]) -> dict[object, list[str]]:
    """Return the names of the policies of each vLLM engine of a process.

    Policies of one shape share an engine, and so do adapters over one base (`engine_key`).
    """
    found: dict[object, list[str]] = {}
    for name, member in members.items():
        found.setdefault(member.base if member.rank else member.outline, []).append(name)
    return found


def _together(
    members: Mapping[str, Member], groups: Sequence[EngineGroup]
) -> list[dict[str, Member]]:
    """Return the policies of each kind of worker."""
    found = [{n: m for n, m in members.items() if n in group.policies} for group in groups]
    return found or [dict(members)]


def _check_engines(
    node: Mapping[str, Any], members: Mapping[str, Member], *, sleeps: bool, apart: bool
) -> None:
    """Raise ConfigError if several vLLM engines of a process cannot be together."""
    several = [names[0] for names in engines(members).values()]
    if len(several) == 1:
        return
    both = f"policies {several[0]!r} and {several[1]!r} need two vLLM engines"
    if sleeps:
        raise ConfigError(
            f"engine.sleep: {both}, and only one engine of a process can sleep; set "
            "engine.sleep=false"
        )
    if apart and node.get("memory") is None and node.get("cache") is None:
        raise ConfigError(
            f"engine.memory: {both}, and by default the first one takes all that is free; set "
            "engine.cache in GiB, or engine.memory to the fraction of each"
        )


def _check_divisible(members: Mapping[str, Member], tensor: int) -> None:
    """Raise ConfigError if vLLM cannot divide a policy's model."""
    from selfplay.engines.vllm.shard_processes import DividedSizes

    for name, member in members.items():
        shape = member.outline
        sizes = DividedSizes(
            heads=shape.heads, kv_heads=shape.kv_heads, intermediate=shape.intermediate
        )
        sizes.check(tensor, where=f"policy {name!r}")


def _engine(node: Mapping[str, Any]) -> str:
    target = str(node[TARGET])
    if target not in (TRANSFORMERS, VLLM):
        raise ConfigError(
            f"engine.{TARGET}: a plan covers engine=transformers and engine=vllm, not {target}"
        )
    return target


def _on_cpus(cluster: ClusterSpec, processes: Processes, tensor: int) -> dict[str, Any]:
    """Return the layout of workers and learners that are processes of one machine."""
    if gpus := _gpus(processes):
        raise ConfigError(
            f"runtime: {gpus:g} GPUs are requested, and {cluster.device.name} has none; name a "
            "cluster, such as cluster=gpus_8"
        )
    rollout = processes.workers * tensor
    count = rollout + max(processes.learners, 1)
    memory = cluster.device.memory / count
    return {
        "rollout": rollout,
        "devices": count,
        "node": count,
        "device": replace(cluster.device, memory=memory),
    }


def _on_gpus(cluster: ClusterSpec, processes: Processes, tensor: int) -> dict[str, Any]:
    """Return the layout of workers and learner ranks on GPUs."""
    gpus = _gpus(processes)
    if gpus > cluster.devices + 1e-3:  # Ray counts in steps of 1/10000
        raise ConfigError(
            f"runtime: {processes.workers} worker(s) with {processes.worker_gpus:g} GPU(s) and "
            f"{processes.learners} rank(s) with {processes.learner_gpus:g} need {gpus:g} GPUs, and "
            f"the cluster has {cluster.devices}; lower runtime.workers or runtime.learners, or "
            "choose a larger cluster"
        )
    if not processes.learners or not processes.learner_gpus:
        raise ConfigError(
            "runtime.learners: the learner computes on a CPU and the workers on GPUs, which a plan "
            "does not cover; set runtime.learners=1 and runtime.learner_gpus=1"
        )
    if processes.colocated:
        return {"devices": processes.workers, "node": min(cluster.node, processes.workers)}
    if processes.workers == processes.learners == 1 and gpus <= 1:
        return {"devices": 1, "node": 1}
    for key, count, whole in (
        ("worker_gpus", processes.worker_gpus, tensor),
        ("learner_gpus", processes.learner_gpus, 1),
    ):
        if count != whole:
            fitting = (cluster.devices - processes.learners) // tensor
            fix = f"set runtime.{key}={whole}"
            if fitting < 1:
                fix = f"choose a larger cluster than one of {cluster.devices} GPUs"
            elif processes.workers > fitting:
                fix += f" and lower runtime.workers to {fitting}"
            raise ConfigError(
                f"runtime.{key}: a plan covers whole GPUs, one for each shard of a worker's engine "
                f"and for each rank, or one worker and one rank on one GPU, not {count:g}; {fix}"
            )
    rollout = processes.workers * tensor
    return {"rollout": rollout, "devices": rollout + processes.learners}


def _gpus(processes: Processes) -> float:
    return processes.workers * processes.worker_gpus + processes.learners * processes.learner_gpus


def _logits(members: Mapping[str, Member], device: str) -> int:
    """Return the number of tokens whose logits the learner computes at once on a kind of device."""
    from selfplay.learner.logprobs import most_logits

    vocabulary = max(member.outline.vocabulary for member in members.values())
    return max(1, most_logits(device) // vocabulary)


def _share(
    node: Mapping[str, Any], members: Mapping[str, Member], cluster: ClusterSpec, *, alone: bool
) -> float:
    """Return the fraction of a GPU that the engines of a process take.

    Args:
        node: Config of the engine.
        members: All policies.
        cluster: Layout.
        alone: True if no learner computes, or keeps its state, on the GPU while the engine works.
    """
    together = _together(members, cluster.groups)
    if node.get("cache") is not None:
        cache = float(node["cache"]) * 2**30
        held = max(engine_weights(each, cluster) + len(engines(each)) * cache for each in together)
        return (held + cluster.engine_reserved * GB) / (cluster.device.memory * GB)
    share = node.get("memory") or _default_share(members, cluster, alone=alone)
    return float(share) * max(len(engines(each)) for each in together)


def _default_share(members: Mapping[str, Member], cluster: ClusterSpec, *, alone: bool) -> float:
    """Return the fraction of a GPU that one engine takes if the config does not say it."""
    from selfplay.engines.vllm.memory_share import MARGIN, SHARED

    if not alone:
        return SHARED
    if cluster.tensor > 1:
        return 1 - MARGIN  # copies are in main memory
    largest = max(served(each, cluster) for each in _together(members, cluster.groups))
    copies = largest / (cluster.device.memory * GB)
    return max(1 - copies - MARGIN, MARGIN)
