"""A prediction: memory, seconds by phase, the bottleneck, and changes that would help."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from selfplay.plan.checkpoint_size import DiskPlan, plan_disk
from selfplay.plan.cluster import FAST, GB, LIKELY, SLOW, Case, ClusterSpec
from selfplay.plan.memory import Member, MemoryPlan, plan_memory
from selfplay.plan.step_time import (
    GenerationTime,
    LearningTime,
    decode_step,
    generation,
    learning,
    living,
    publication,
)
from selfplay.plan.workload import Workload

PHASES = ("prefill", "decode", "environment", "score", "train", "optimizer", "exchange", "publish")
"""Phases of a step. score: additional forward passes. exchange: collectives that do not overlap
with computing. publish: weight updates to the engines."""
GENERATING = ("prefill", "decode", "environment")
"""Phases that a run's records call rollout; all others are learning."""
TIGHT = 0.06
"""Fraction of the memory below which fragmentation may consume the margin."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted memory and time of a workload on a cluster."""

    workload: Workload
    """Requests and samples of a step."""
    members: Mapping[str, Member]
    """Policies by name."""
    cluster: ClusterSpec
    """Devices and layout."""
    micro_batch: float
    """Largest number of tokens of one forward pass of the learner."""
    own_layout: bool = False
    """True for the layout of the config's own runtime; False for an ideal one."""

    @property
    def longest(self) -> float:
        """Tokens of the longest prompt with its completion."""
        return max(flow.prompt + flow.completion.cap for flow in self.workload.flows)

    @cached_property
    def largest_pass(self) -> tuple[float, float]:
        """Tokens of the learner's largest pass on a device, and those of them whose logits are
        read."""
        lessons = self.workload.lessons.values()
        learned = sum(each.distinct for each in lessons) or self.workload.tokens
        read = sum(each.completions for each in lessons) or self.workload.generated
        # A pass is not larger than the part of a device in the largest update.
        part = max(
            (each.distinct * each.epochs / each.updates for each in lessons),
            default=self.micro_batch,
        )
        tokens = min(self.micro_batch, max(part / self.cluster.learners, self.longest))
        return tokens, max(1.0, min(read / max(learned, 1.0), 1.0) * tokens)

    @cached_property
    def memory(self) -> MemoryPlan:
        """Memory per device, in bytes."""
        tokens, completions = self.largest_pass
        return plan_memory(
            self.members,
            self.cluster,
            micro_batch=tokens,
            completions=completions,
            longest=self.longest,
            background=self._background,
        )

    @cached_property
    def disk(self) -> DiskPlan | None:
        """Disk for checkpoints, in bytes; None if none are planned."""
        run = self.workload.checkpoints
        return None if run is None else plan_disk(self.members, self.workload.frozen, run)

    @property
    def _background(self) -> bool:
        run = self.workload.checkpoints
        # On a CPU the copy is in the memory that is planned as the device's.
        return bool(run and run.background) and self.cluster.device.kind == "cuda"

    def generation(self, case: Case = LIKELY) -> GenerationTime:
        """Return the time of generation over all stages."""
        return generation(self.workload, self.members, self.cluster, self.memory, case)

    def learning(self, case: Case = LIKELY) -> dict[str, LearningTime]:
        """Return the time of learning by policy."""
        return {
            name: learning(
                lesson, self.members[name], self.cluster, micro_batch=self.micro_batch, case=case
            )
            for name, lesson in self.workload.lessons.items()
        }

    def seconds(self, case: Case = LIKELY) -> dict[str, float]:
        """Return the seconds by phase. With `lag` 0 the phases run one after another."""
        made, learned = self.generation(case), self.learning(case).values()
        rates = self.cluster.device.rates
        return {
            "prefill": made.prefill,
            "decode": made.decode,
            "environment": self.workload.episodes * rates.episode
            + self.workload.turns * rates.turn
            + self.workload.calls * rates.call,
            "score": sum(each.score for each in learned),
            "train": sum(each.train for each in learned),
            "optimizer": sum(each.optimizer for each in learned),
            "exchange": sum(each.exposed for each in learned),
            "publish": publication(self.members, self.cluster),
        }

    def step(self, case: Case = LIKELY) -> float:
        """Return the seconds of a step.

        A synchronous step is the sum of its phases times `overhead`. An asynchronous step is the
        slower of two parallel sides: learning with its weight update, and generation. Generation is
        a whole batch with its longest completions, or the mean work of a batch if engines are
        continuous (`flowing`).
        """
        parts = self.seconds(case)
        if not self.cluster.lag:
            return sum(parts.values()) * self.cluster.overhead
        learned = sum(value for name, value in parts.items() if name not in GENERATING)
        batch = sum(parts[name] for name in GENERATING)
        return max(learned, self.flowing(case) if self.cluster.continuous else batch)

    def flowing(self, case: Case = LIKELY) -> float:
        """Return the seconds to generate a step's completions if the engines are never idle."""
        totals: dict[int, float] = {}
        for flow in self.workload.flows:
            outline, own = self.members[flow.policy].outline, self.cluster.serving(flow.policy)
            live = living(flow, own, self.memory)[0]
            context = live * (flow.prompt + flow.completion.mean / 2)
            rate = live / decode_step(outline, own, case)(live, context)
            place = self.cluster.group_of(flow.policy)
            seconds = flow.requests * flow.completion.mean / (rate * own.engines)
            totals[place] = totals.get(place, 0.0) + seconds
        parts = self.seconds(case)
        return max(totals.values(), default=0.0) + parts["prefill"] + parts["environment"]

    @property
    def tokens_per_second(self) -> float:
        """Prompt and completion tokens per second and device."""
        return self.workload.tokens / self.step() / self.cluster.devices

    def bottleneck(self) -> tuple[str, str]:
        """Return the slowest part of the step and the reason."""
        parts, made = self.seconds(), self.generation()
        learned = sum(parts[name] for name in ("score", "train", "optimizer"))
        sides = {
            "generation": parts["prefill"] + parts["decode"],
            "learning": learned,
            "environment": parts["environment"],
            "exchange": parts["exchange"],
            "publish": parts["publish"],
        }
        slowest = max(sides, key=sides.__getitem__)
        if slowest != "generation":
            reasons = {
                "learning": "operations of the learner",
                "environment": "arenas and services on the host",
                "exchange": "links between devices",
                "publish": "transfer of weights to the engines",
            }
            return slowest, reasons[slowest]
        if made.tail > made.decode / 2 and not self.cluster.lag:
            return slowest, "the longest completions, while most of the engine is idle"
        if made.limited:
            return slowest, "memory of the cache: more sequences do not fit at once"
        rates = self.cluster.device.rates
        fixed = rates.step + rates.layer * max(m.outline.layers for m in self.members.values())
        flow = max(self.workload.flows, key=lambda each: each.requests * each.completion.mean)
        own = self.cluster.serving(flow.policy)
        live = living(flow, own, self.memory)[0]
        whole = decode_step(self.members[flow.policy].outline, own)(
            live, live * (flow.prompt + flow.completion.mean / 2)
        )
        if fixed + rates.row * live > whole / 2:
            return slowest, "fixed costs of a decoding step: few or small sequences"
        return slowest, "memory bandwidth" if made.starved else "operations of the engine"

    def advice(self, most: int = 3) -> list[tuple[str, "Prediction"]]:
        """Return the `most` best changes, the shortest step first, as (description, prediction).

        A change counts if it makes the memory fit, or a step at least 5 % shorter.
        """
        found = []
        for line, change in (OWN_CHANGES if self.own_layout else CHANGES).items():
            try:
                other = change(self)
            except ValueError:  # this cluster does not allow the layout
                continue
            if other is None or not other.memory.fits:
                continue
            if not self.memory.fits or other.step() < 0.95 * self.step():
                found.append((line, other))
        return sorted(found, key=lambda pair: pair[1].step())[:most]


def _on(**keys: object) -> Callable[[Prediction], Prediction | None]:
    def change(before: Prediction) -> Prediction | None:
        if all(getattr(before.cluster, key) == value for key, value in keys.items()):
            return None
        return replace(before, cluster=replace(before.cluster, **keys))  # type: ignore[arg-type]

    return change


def _without_reference(before: Prediction) -> Prediction | None:
    lessons = before.workload.lessons
    if not any(each.reference for each in lessons.values()):
        return None
    if any(member.teachers for member in before.members.values()):
        return None  # the policies learn from it
    lessons = {name: replace(each, reference=False) for name, each in lessons.items()}
    return replace(before, workload=replace(before.workload, lessons=lessons))


def _adapters(before: Prediction) -> Prediction:
    members = {
        name: replace(member, rank=member.rank or 32) if member.learns else member
        for name, member in before.members.items()
    }
    return replace(before, members=members)


def _apart(before: Prediction) -> Prediction | None:
    """Return the best split into devices that generate and devices that learn, with a lag of 1."""
    cluster, best = before.cluster, None
    if cluster.lag or cluster.devices == 1:
        return None
    for share in (0.375, 0.5, 0.625, 0.75):
        rollout = max(1, round(cluster.devices * share / cluster.tensor)) * cluster.tensor
        if rollout >= cluster.devices:
            continue
        other = replace(before, cluster=replace(cluster, rollout=rollout, shards=0, lag=1))
        if other.memory.fits and (best is None or other.step() < best.step()):
            best = other
    return best


def _smaller_passes(before: Prediction) -> Prediction | None:
    longest = max(flow.prompt + flow.completion.cap for flow in before.workload.flows)
    half = before.micro_batch / 2
    return replace(before, micro_batch=half) if half >= longest else None


def _asleep(before: Prediction) -> Prediction | None:
    cluster = before.cluster
    slept = replace(cluster, stays=False, sleeps=True)
    return replace(before, cluster=slept) if cluster.stays else None


def _ahead(before: Prediction) -> Prediction | None:
    cluster = before.cluster
    if cluster.lag or not cluster.rollout:
        return None
    return replace(before, cluster=replace(cluster, lag=1))


def _moved(workers: int) -> Callable[[Prediction], Prediction | None]:
    def change(before: Prediction) -> Prediction | None:
        cluster = before.cluster
        if cluster.groups or not cluster.rollout or cluster.tensor > 1:
            return None
        if not 0 < cluster.rollout + workers < cluster.devices:
            return None
        return replace(before, cluster=replace(cluster, rollout=cluster.rollout + workers))

    return change


def _shards(before: Prediction) -> Prediction | None:
    """Return half as many engines of vLLM, each over two devices."""
    from selfplay.engines.vllm.memory_share import MARGIN

    cluster = before.cluster
    ours = cluster.rollout and cluster.in_turns and cluster.device.kind == "cuda"
    if not ours or cluster.groups or cluster.tensor > 1:
        return None
    # The copies of the policies, which are then in main memory, leave their room to the engine.
    freed = before.memory.generating["copies"] / (cluster.device.memory * GB)
    share = min(cluster.engine_share + freed, 1 - MARGIN)
    return replace(before, cluster=replace(cluster, tensor=2, engine_share=share))


def _one_copy(before: Prediction) -> Prediction | None:
    cluster = before.cluster
    if cluster.sharded == cluster.learners:
        return None
    return replace(before, cluster=replace(cluster, shards=0))


def _more_actors(before: Prediction) -> Prediction | None:
    if not before.cluster.rollout or before.cluster.device.kind == "cpu":
        return None
    return _doubled(before)


def _doubled(before: Prediction) -> Prediction:
    cluster = before.cluster
    groups = [replace(group, engines=2 * group.engines) for group in cluster.groups]
    made = replace(cluster, devices=2 * cluster.devices, rollout=2 * cluster.rollout, groups=groups)
    return replace(before, cluster=made)


CHANGES: Mapping[str, Callable[[Prediction], Prediction | None]] = {
    "no reference (objective.kl=0)": _without_reference,
    "generate and learn on separate devices, with one version of lag (cluster.rollout)": _apart,
    "no activation checkpointing (cluster.checkpointing=false)": _on(checkpointing=False),
    "activation checkpointing (cluster.checkpointing=true)": _on(checkpointing=True),
    "logits in chunks (cluster.logits=1024)": _on(logits=1024),
    "learner's state in main memory during generation (cluster.asleep=true)": _on(asleep=True),
    "optimizer state in main memory (cluster.offload=true)": _on(offload=True),
    "engines over two devices (cluster.tensor=2)": _on(tensor=2),
    "engines over four devices (cluster.tensor=4)": _on(tensor=4),
    "engines on one device each (cluster.tensor=1)": _on(tensor=1),
    "adapters instead of all weights (population=adapters policy.lora.rank=32)": _adapters,
    "twice the devices (cluster.devices)": _doubled,
}
"""Functions from a prediction to the changed one, by the description of the change. They return
None if nothing changes."""

OWN_CHANGES: Mapping[str, Callable[[Prediction], Prediction | None]] = {
    "no reference (objective.kl=0)": _without_reference,
    "no activation checkpointing (learner.activation_checkpointing=false)": _on(
        checkpointing=False
    ),
    "activation checkpointing (learner.activation_checkpointing=true)": _on(checkpointing=True),
    "half as many tokens in a pass (learner.max_tokens)": _smaller_passes,
    "the engine sleeps while the learner works (engine.sleep=true)": _asleep,
    "one step sampled ahead (runtime.max_staleness=1)": _ahead,
    "one rank more and one worker fewer (runtime.learners, runtime.workers)": _moved(-1),
    "one worker more and one rank fewer (runtime.workers, runtime.learners)": _moved(1),
    "half as many workers, each over two GPUs (engine.tensor_parallel=2)": _shards,
    "one copy of the learners' state over all ranks (runtime.replicas=1)": _one_copy,
    "adapters instead of all weights (population=adapters policy.lora.rank=32)": _adapters,
    "twice the workers and ranks (runtime.workers, runtime.learners)": _more_actors,
}
"""Changes for the layout of a config, by descriptions that name its keys."""

CASES: Mapping[str, Case] = {"slow": SLOW, "likely": LIKELY, "fast": FAST}
