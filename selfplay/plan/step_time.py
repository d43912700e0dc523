"""Seconds of a step by phase, from its workload and the speed of the devices.

A decoding step reads all weights and the cache; prefill is limited by operations. The learner's
passes take the time of their matrix products, and on a GPU that of the memory traffic between them
(`traffic`). Fixed costs are measured (`Rates`).
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from selfplay.plan import traffic
from selfplay.plan.cluster import GB, LIKELY, Case, ClusterSpec
from selfplay.plan.memory import Member, MemoryPlan
from selfplay.plan.model_shape import ModelShape
from selfplay.plan.workload import Flow, Lesson, Workload

Step: TypeAlias = Callable[[float, float], float]
"""(sequences, tokens of their contexts) -> seconds of one decoding step."""

LATENCY = 15e-6
"""Latency of one all-reduce within an engine, in seconds."""
HIDDEN = 0.8
"""Fraction of the computing time with which collectives can overlap (an assumption)."""
TF32 = 0.5
"""Ratio of the peak operations in TF32 to those in bfloat16. A GPU computes the output embedding in
TF32."""
MASKED = 0.7
"""Fraction of the saving by shared prefixes that remains with attention masks (an assumption)."""


@dataclass(frozen=True, kw_only=True)
class GenerationTime:
    """Time of generation in a step."""

    prefill: float
    """Seconds of prefill."""
    decode: float
    """Seconds of decoding."""
    tail: float
    """Seconds of `decode` in which an engine has fewer than 8 sequences."""
    limited: bool
    """True if the cache limits the number of sequences; False if there are no more requests."""
    starved: bool
    """True if memory bandwidth limits a decoding step; False if operations do."""


def decode_step(outline: ModelShape, cluster: ClusterSpec, case: Case = LIKELY) -> Step:
    """Return the function for the seconds of a decoding step: max(reading, computing) + fixed.

    reading = (P_mm b + cache per token x C) / (tensor x bandwidth), computing =
    (2 P_mm B + 4 C q L) / (tensor x operations), for B sequences with C context tokens in all and b
    bytes per number. An engine on several devices adds two all-reduces per layer.
    """
    rates, tensor, width = cluster.device.rates, cluster.tensor, cluster.engine_width
    bandwidth = tensor * cluster.bytes_per_second * rates.bandwidth[case]
    operations = tensor * cluster.operations * rates.prefill[case]
    cache = outline.cache(width)
    attention = 4 * outline.query * outline.layers
    fixed = rates.step + rates.layer * outline.layers
    reduced = 0.0
    if tensor > 1:
        fixed += 2 * outline.layers * LATENCY
        share = 2 * (tensor - 1) / tensor
        reduced = 2 * outline.layers * share * outline.hidden * width / (cluster.device.link * GB)

    def seconds(sequences: float, context: float) -> float:
        read = (_read(outline, sequences) * width + cache * context) / bandwidth
        computed = (2 * outline.matrices * sequences + attention * context) / operations
        return max(read, computed) + fixed + (rates.row + reduced) * sequences

    return seconds


def _read(outline: ModelShape, sequences: float) -> float:
    """Return the parameters that a decoding step reads, with the expected number of experts that it
    uses."""
    if not outline.experts:
        return outline.matrices
    one = 3 * outline.hidden * outline.expert_intermediate
    missed = (1 - outline.active_experts / outline.experts) ** max(sequences, 1.0)
    idle = outline.active_experts - outline.experts * (1 - missed)
    return outline.matrices - outline.layers * one * idle


def prefill(outline: ModelShape, cluster: ClusterSpec, flow: Flow, case: Case = LIKELY) -> float:
    """Return an engine's seconds for its part of a flow's distinct prompts, without cached tokens.

    The prompts are divided evenly between the engines.
    """
    prompts = flow.prompts / cluster.engines
    new = max(flow.prompt - flow.context, 0.0)
    body = 2 * outline.layers * outline.active_layer_parameters * new
    operations = body + outline.attention(new, flow.context)
    speed = cluster.tensor * cluster.operations * cluster.device.rates.prefill[case]
    requests = flow.requests / cluster.engines
    return prompts * operations / speed + requests * cluster.device.rates.request


def makespan(lengths: Sequence[float], prompt: float, live: int, step: Step) -> tuple[float, float]:
    """Return the seconds of decoding in one engine with at most `live` sequences at once.

    Between two completions the batch is constant and every context grows by one token per step, so
    that k steps take k times the mean of the first and the last step.

    Args:
        lengths: Tokens of each completion, in the order in which they begin.
        prompt: Tokens of each prompt.
        live: Largest number of concurrent sequences.
        step: Seconds of one decoding step.
    Returns:
        All seconds, and the seconds with fewer than 8 sequences.
    """
    waiting = list(reversed(lengths))
    now, context, seconds, small = 0.0, 0.0, 0.0, 0.0
    running: list[tuple[float, float]] = []  # (step of the end, length)
    while waiting or running:
        while waiting and len(running) < live:
            length = waiting.pop()
            heapq.heappush(running, (now + length, length))
            context += prompt
        end, length = heapq.heappop(running)
        count, steps = len(running) + 1, end - now
        spent = steps * (step(count, context) + step(count, context + count * steps)) / 2
        seconds += spent
        small += spent if count < 8 else 0.0
        context += count * steps - prompt - length
        now = end
    return seconds, small


def generation(
    workload: Workload,
    members: Mapping[str, Member],
    cluster: ClusterSpec,
    memory: MemoryPlan,
    case: Case = LIKELY,
) -> GenerationTime:
    """Return the time of generation.

    Stages run one after another, each as long as its busiest engine. The flows of a stage use the
    engines one after another, or at the same time if their policies have engines apart. The lengths
    of a flow are quantiles of its distribution, divided evenly between the engines; the busiest
    engine has the longest.
    """
    read = decoded = tail = 0.0
    limited = starved = False
    for stage in workload.stages:
        used: dict[int, list[float]] = {}
        for flow in stage:
            outline, own = members[flow.policy].outline, cluster.serving(flow.policy)
            step = decode_step(outline, own, case)
            count = max(1, round(flow.requests))
            lengths = flow.completion.spread(count)[:: -own.engines]
            live, room = living(flow, own, memory)
            limited |= room < min(own.sequences, len(lengths))
            seconds, small = makespan(_dealt(lengths), flow.prompt, live, step)
            times = used.setdefault(cluster.group_of(flow.policy), [0.0, 0.0, 0.0])
            for place, value in enumerate((prefill(outline, own, flow, case), seconds, small)):
                times[place] += value
            context = live * (flow.prompt + flow.completion.mean / 2)
            starved |= _starved(outline, own, live, context, case)
        longest = max(used.values(), key=lambda times: times[0] + times[1])
        read, decoded, tail = read + longest[0], decoded + longest[1], tail + longest[2]
    return GenerationTime(prefill=read, decode=decoded, tail=tail, limited=limited, starved=starved)


def living(flow: Flow, cluster: ClusterSpec, memory: MemoryPlan) -> tuple[int, int]:
    """Return the number of concurrent sequences of an engine, and the capacity of its cache in
    sequences.

    A shared prompt is stored once. Completions count with their full mean length, because long
    completions run longer, so that the running ones have on average more than half of the mean.
    """
    held = flow.prompt * flow.prompts / flow.requests + flow.completion.mean
    tokens = memory.tokens_of.get(flow.policy, memory.cache_tokens)
    room = int(tokens / max(held, 1.0))
    requests = -(-flow.requests // cluster.engines)
    return max(1, min(room, cluster.sequences, int(requests))), room


def _dealt(lengths: Sequence[float]) -> list[float]:
    """Mix long and short lengths, so that waiting and running requests have similar lengths."""
    stride = 7 if len(lengths) % 7 else 5
    return [length for start in range(stride) for length in lengths[start::stride]]


def _starved(
    outline: ModelShape, cluster: ClusterSpec, sequences: float, context: float, case: Case
) -> bool:
    rates, width = cluster.device.rates, cluster.engine_width
    read = _read(outline, sequences) * width + outline.cache(width) * context
    computed = 2 * outline.matrices * sequences + 4 * outline.query * outline.layers * context
    return read / (cluster.bytes_per_second * rates.bandwidth[case]) > computed / (
        cluster.operations * rates.prefill[case]
    )


@dataclass(frozen=True, kw_only=True)
class LearningTime:
    """Time of learning from a step's samples."""

    score: float
    """Seconds of additional forward passes."""
    train: float
    """Seconds of forward and backward passes in training."""
    optimizer: float
    """Seconds of optimizer steps."""
    communication: float
    """Seconds of collectives."""
    exposed: float
    """Seconds of collectives that do not overlap with computing."""


def learning(
    lesson: Lesson, member: Member, cluster: ClusterSpec, *, micro_batch: float, case: Case = LIKELY
) -> LearningTime:
    """Return the seconds of all learning devices for one policy's samples.

    Training costs 3 forward passes, or 4 with checkpointing. An adapter saves the gradients of the
    frozen weights, a third of the linear part. A shared prefix is computed once. A GPU computes the
    output embedding in TF32, and again in the backward pass if logits are computed in pieces
    (`ClusterSpec.logits`); a CPU computes it once.

    Args:
        lesson: Samples of a step.
        member: The policy that learns.
        cluster: Devices and layout.
        micro_batch: Largest number of tokens of one forward pass on a device.
        case: Slow, likely or fast rates.
    """
    outline, rates, rank = member.outline, cluster.device.rates, member.rank
    gpu = cluster.device.kind == "cuda"
    saving = shared(lesson.sharing)
    tokens, squares = lesson.tokens / saving, lesson.squares / saving
    read = lesson.completions
    head = outline.forward(0.0, 0.0, read) / (TF32 if gpu else 1)
    linear = outline.forward(tokens, 0.0, 0.0)
    attention = outline.forward(0.0, squares, 0.0)
    again = linear + attention if cluster.checkpointing else 0.0
    if gpu and cluster.logits:
        again += head
    backward = (1 if rank else 2) * (linear + head) + 2 * attention
    devices = cluster.learners * cluster.operations
    passes = max(1.0, -(-tokens // (micro_batch * cluster.learners)))
    overhead = rates.sample * lesson.samples
    train = (linear + head + attention + backward + again) / (devices * rates.train[case])
    scored = _scored(member, lesson)
    operations = 0.0
    for shape, _, part in scored:
        logits = shape.forward(0.0, 0.0, read) / (TF32 if gpu else 1)
        operations += part * (shape.forward(tokens, squares, 0.0) + logits)
    score = operations / (devices * rates.forward[case])
    if gpu:
        speed = cluster.learners * cluster.bytes_per_second * rates.stream[case]
        score += (
            sum(
                traffic.scoring(shape, adapter, part * tokens, part * read)
                for shape, adapter, part in scored
            )
            / speed
        )
        moved = traffic.training(
            outline,
            rank,
            tokens,
            read,
            passes=passes * cluster.learners,
            checkpointing=cluster.checkpointing,
            logits=cluster.logits,
        )
        train += moved / speed
    train = lesson.epochs * (train + overhead)
    score += lesson.passes * overhead / 3
    exchanged = _communication(outline, member, cluster, passes, lesson)
    return LearningTime(
        score=score,
        train=train,
        optimizer=lesson.updates * _optimizer(member, cluster, case),
        communication=exchanged,
        exposed=max(0.0, exchanged - HIDDEN * train),
    )


def _scored(member: Member, lesson: Lesson) -> list[tuple[ModelShape, int, float]]:
    """Return the additional forward passes: the model's shape, the rank of its adapter, and the
    fraction of the samples. Several teachers are taken to have equal fractions."""
    passes = [(member.outline, member.rank, 1.0)] * lesson.passes
    if lesson.reference and member.teachers:
        equal = 1 / len(member.teachers)
        passes[:1] = [(shape, 0, equal) for shape in member.teachers]
    return passes


def shared(ratio: float) -> float:
    """Return the factor by which shared prefixes reduce computing, from the ratio of tokens."""
    return 1 + MASKED * (ratio - 1)


def _communication(
    outline: ModelShape, member: Member, cluster: ClusterSpec, passes: float, lesson: Lesson
) -> float:
    """Return the seconds of collectives.

    Weights are gathered in every forward and backward pass, and gradients are reduced in every
    backward pass. Copies of a sharded state also sum their gradients, 4 P / N bytes over the
    network, once in an optimizer step.
    """
    shards = cluster.sharded
    if cluster.learners == 1:
        return 0.0
    share = (shards - 1) / shards
    learned = outline.adapter(member.rank) if member.rank else outline.parameters
    scored = sum(shape.parameters for shape, _, _ in _scored(member, lesson))
    gathered = passes * 2 * (2 * lesson.epochs * outline.parameters + scored) * share
    reduced = passes * lesson.epochs * 4 * learned * share
    seconds = (gathered + reduced) / cluster.collective
    if shards < cluster.learners:
        seconds += lesson.updates * 4 * learned / shards / (cluster.network * GB)
    return seconds


def _optimizer(member: Member, cluster: ClusterSpec, case: Case) -> float:
    """Return the seconds of an optimizer step.

    AdamW reads and writes 32 bytes per parameter; with offloading, 24 bytes go over PCIe.
    """
    outline = member.outline
    learned = outline.adapter(member.rank) if member.rank else outline.parameters
    size = learned / cluster.sharded
    bandwidth = cluster.bytes_per_second * cluster.device.rates.bandwidth[case]
    rates = cluster.device.rates
    seconds = 32 * size / bandwidth + rates.update + rates.update_layer * outline.layers
    return seconds + (24 * size / (cluster.pcie * GB) if cluster.offload else 0.0)


def publication(members: Mapping[str, Member], cluster: ClusterSpec) -> float:
    """Return the seconds of a weight update: 2 bytes per parameter (4 in float32), and the pause.

    A learner whose state is in main memory during generation moves it in both directions: 32 bytes
    per parameter.
    """
    learned = [
        m.outline.adapter(m.rank) if m.rank else m.outline.parameters
        for m in members.values()
        if m.learns
    ]
    together = not cluster.rollout
    seconds = 0.0
    if not (cluster.same_weights and together):
        seconds = cluster.engine_width * sum(learned) / (cluster.publish * GB) + cluster.pause
    if cluster.asleep and together:
        seconds += 32 * sum(learned) / cluster.sharded / (cluster.pcie * GB)
    return seconds
