"""Clusters and workloads for the tests of predicted plans."""

from statistics import fmean

from selfplay.plan.cluster import ClusterSpec, load_cluster
from selfplay.plan.memory import Member
from selfplay.plan.model_shape import ModelShape
from selfplay.plan.prediction import Prediction
from selfplay.plan.workload import Flow, LengthDistribution, Lesson, Workload

H100 = load_cluster("gpus_1", [])[0].device


def cluster(devices: int = 1, **settings: object) -> ClusterSpec:
    return ClusterSpec(**{"device": H100, "devices": devices, "sequences": 1024, **settings})  # type: ignore[arg-type]


def workload(
    samples: int, mean: float, cap: int, *, cv: float = 1.0, prompt: float = 500, passes: int = 0
) -> Workload:
    """Return a workload with one turn per sample, in groups of 16."""
    lengths = LengthDistribution(average=mean, cv=cv, cap=cap)
    tokens = samples * (prompt + lengths.mean)
    flow = Flow(
        role="solver",
        policy="base",
        requests=samples,
        prompts=samples / 16,
        prompt=prompt,
        completion=lengths,
    )
    lesson = Lesson(
        samples=samples,
        tokens=tokens,
        distinct=tokens,
        completions=tokens,
        squares=samples * fmean((prompt + length) ** 2 for length in lengths.spread(1000)),
        reference=passes > 0,
        correction=passes > 1,
    )
    return Workload(stages=[[flow]], lessons={"base": lesson})


def predicted(asked: Workload, outline: ModelShape, layout: ClusterSpec) -> Prediction:
    members = {"base": Member(outline=outline)}
    return Prediction(workload=asked, members=members, cluster=layout, micro_batch=16_384)
