"""Tests of layouts that follow from the runtime, engine and learner of a config."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from selfplay.cli.plan import plan
from selfplay.errors import ConfigError
from selfplay.plan.cluster import GB, ClusterSpec, EngineGroup, load_cluster, this_machine
from selfplay.plan.layout import VLLM, Processes, derive, engines
from selfplay.plan.memory import Member, learning, plan_memory
from selfplay.plan.model_shape import ModelShape
from tests.helpers.model_shapes import QWEN_3B, QWEN_7B, QWEN_32B

GPUS, _ = load_cluster("gpus_8", [])
CPU, _ = load_cluster("local", [])
ONE = {"base": Member(outline=QWEN_7B, frozen_bytes=4)}
SPLIT = Processes(
    workers=4, learners=4, worker_gpus=1, learner_gpus=1, max_staleness=1, short_weights=True
)


def config(engine: str = "transformers", *, learner: Any = None, **settings: Any) -> dict[str, Any]:
    target = {"transformers": "selfplay.engines.transformers.TransformersEngine", "vllm": VLLM}
    return {
        "engine": {"_target_": target.get(engine, engine), **settings},
        "learner": learner or {},
    }


def made(
    settings: dict[str, Any],
    processes: Processes,
    cluster: ClusterSpec = GPUS,
    members: dict[str, Member] = ONE,
    **given: Any,
) -> tuple[ClusterSpec, list[str]]:
    return derive(replace(cluster, **given), settings, members, processes, given=given)


def test_one_process_alternates_on_one_device() -> None:
    found, notes = made(config(max_rows=64), Processes())
    assert (found.devices, found.rollout, found.lag) == (1, 0, 0)
    assert found.same_weights and not found.stays and found.sequences == 64
    assert found.checkpointing and found.precision == "mixed" and found.engine_bytes == 4
    assert found.logits == 2**27 // QWEN_7B.vocabulary
    assert "one of the 8 devices" in notes[0]


def test_an_engine_in_the_learners_process_sleeps_or_keeps_memory() -> None:
    awake, _ = made(config("vllm"), Processes())
    assert awake.stays and awake.engine_share == 0.4 and not awake.copies and not awake.sleeps
    asleep, notes = made(config("vllm", sleep=True, memory=0.6, max_length=900), Processes())
    assert not asleep.stays and asleep.engine_share == 0.6 and asleep.longest == 900
    assert asleep.sleeps
    assert asleep.engine_bytes == 2 and not any("float32" in note for note in notes)
    wide, notes = made(config("vllm", dtype="float32"), Processes())
    assert wide.engine_bytes == 4 and any("float32" in note for note in notes)


def test_workers_and_ranks_split_the_devices() -> None:
    found, notes = made(config("vllm"), SPLIT)
    assert (found.devices, found.rollout, found.learners, found.sharded) == (8, 4, 4, 4)
    assert found.copies and found.lag == 1 and not found.continuous and not notes
    # 80 GB, of which the copy of the policy takes 15.2 and a tenth stays free.
    assert found.engine_share == pytest.approx(0.9 - 2 * QWEN_7B.parameters / 80e9)
    wide, notes = made(config("vllm", dtype="float32"), SPLIT)
    assert (found.engine_bytes, wide.engine_bytes) == (2, 4) and "float32" in notes[0]
    fewer, notes = made(config("vllm"), replace(SPLIT, workers=2))
    assert fewer.devices == 6 and notes == ["2 of the 8 devices have no work"]


def test_copies_of_the_state_are_sharded_over_fewer_ranks() -> None:
    found, _ = made(config("vllm"), replace(SPLIT, replicas=2))
    assert (found.learners, found.sharded) == (4, 2)
    flat, _ = made(config("vllm"), SPLIT)
    half, quarter = (
        learning(ONE, each, micro_batch=4096, completions=2048)["optimizer"]
        for each in (found, flat)
    )
    assert half == 2 * quarter


def test_one_gpu_is_shared_by_a_worker_and_a_rank() -> None:
    shared = replace(SPLIT, workers=1, learners=1, worker_gpus=0.5, learner_gpus=0.5)
    found, _ = made(config("vllm"), shared)
    assert (found.devices, found.rollout, found.lag, found.stays) == (1, 0, 0, True)


ALTERNATING = replace(
    SPLIT, workers=8, learners=8, worker_gpus=0.5, learner_gpus=0.5, max_staleness=0, colocated=True
)


def test_pairs_of_worker_and_rank_use_all_devices() -> None:
    found, notes = made(config("vllm", sleep=True), ALTERNATING)
    assert (found.devices, found.rollout, found.sharded, found.lag) == (8, 0, 8, 0)
    assert found.asleep and found.copies and not found.stays and not notes
    fraction = 0.9 - 2 * QWEN_7B.parameters / 80e9
    assert found.engine_share == pytest.approx(fraction)
    planned = plan_memory(ONE, found, micro_batch=16384, completions=8192, longest=16384)
    # The driver's copy: 4 bytes per parameter. The ranks' weights and moments: 12 over 8 devices.
    # The workers' copies of the policy: 2 on each of them. Two versions in the store: 2 each.
    assert planned.host == pytest.approx((4 + 12 + 8 * 2 + 2 * 2) * QWEN_7B.parameters)
    assert planned.fits and not planned.generating["learner's state"]
    two, notes = made(config("vllm", sleep=True), replace(ALTERNATING, workers=2, learners=2))
    assert (two.devices, two.node) == (2, 2) and notes == ["6 of the 8 devices have no work"]


MACHINES, _ = load_cluster("gpus_16", [])
LARGE = {"base": Member(outline=QWEN_32B, frozen_bytes=4)}


@pytest.mark.parametrize(
    ("processes", "members", "sharded", "note"),
    [
        # The workers are on the first machine, and the ranks on the second one.
        (replace(SPLIT, workers=8, learners=8), ONE, 8, ""),
        (replace(ALTERNATING, workers=16, learners=16), ONE, 8, "2 copies of the learners' state"),
        (replace(ALTERNATING, workers=16, learners=16), LARGE, 16, "more than 50% of its GPU's"),
        (replace(SPLIT, learners=12), ONE, 12, "unequal numbers of ranks (4, 8)"),
        (replace(SPLIT, workers=8, learners=8, replicas=2), ONE, 4, "each sharded over 4 ranks"),
    ],
)
def test_auto_makes_a_copy_per_machine_of_equally_many_ranks(
    processes: Processes, members: dict[str, Member], sharded: int, note: str
) -> None:
    settings = config("vllm", sleep=True) if processes.colocated else config("vllm")
    found, notes = made(settings, processes, MACHINES, members)
    assert found.sharded == sharded
    assert note in "".join(line for line in notes if "state" in line)
    assert bool(note) == any("state" in line for line in notes)


def test_one_copy_is_a_remedy_that_names_its_key(tmp_path: Path) -> None:
    save_sizes(tmp_path, QWEN_7B)
    run = ["+experiment=paper/absolute_zero_7b", "+recipe=gpu_8_colocated_7b"]
    run += [f"policy.model={tmp_path}", "runtime.workers=16"]
    before = plan(["cluster=gpus_16"], [*run, "runtime.replicas=8"])
    assert "learning needs" in before.memory.complaints[0]
    remedies = dict(before.advice(20))
    found = remedies["one copy of the learners' state over all ranks (runtime.replicas=1)"]
    assert found.cluster == plan(["cluster=gpus_16"], [*run, "runtime.replicas=1"]).cluster


def test_leaving_out_the_reference_is_a_remedy_only_if_a_run_reads_one(tmp_path: Path) -> None:
    save_sizes(tmp_path, QWEN_7B)
    run = ["+experiment=paper/absolute_zero_7b", "+recipe=gpu_8_full_7b"]
    run += [f"policy.model={tmp_path}"]
    key = "no reference (objective.kl=0)"
    without, reads = (plan(["cluster=gpus_8"], [*run, f"objective.kl={kl}"]) for kl in (0.0, 0.01))
    assert key not in dict(without.advice(20))
    assert dict(reads.advice(20))[key].workload == without.workload


def test_teachers_are_counted_and_are_no_reference_to_leave_out(tmp_path: Path) -> None:
    """A teacher that is an adapter has the sizes of its base."""
    places = [tmp_path / name for name in ("own", "large", "adapter")]
    for place, shape in zip(places, (QWEN_7B, QWEN_32B, None), strict=True):
        place.mkdir()
        if shape is not None:
            save_sizes(place, shape)
    adapter = {"peft_type": "LORA", "base_model_name_or_path": str(places[1])}
    (places[2] / "adapter_config.json").write_text(json.dumps(adapter))
    run = ["+experiment=paper/absolute_zero_7b", "+recipe=gpu_8_full_7b"]
    run += [f"policy.model={places[0]}"]
    none = plan(["cluster=gpus_8"], [*run, "objective.kl=0"]).memory.learning["reference"]
    for teacher in places[1:]:
        ways = ["algorithm=distillation", "objective.correction=none", f"policy.teacher={teacher}"]
        found = plan(["cluster=gpus_8"], [*run, *ways])
        shards = found.cluster.sharded
        assert found.memory.learning["reference"] == 2 * QWEN_32B.parameters / shards > none == 0
        assert "no reference (objective.kl=0)" not in dict(found.advice(20))
    with pytest.raises(
        ConfigError, match=r"policy\.teacher: missing, and objective\.reference=teac"
    ):
        plan(["cluster=gpus_8"], [*run, "algorithm=distillation", "objective.correction=none"])


def save_sizes(folder: Path, shape: ModelShape) -> None:
    """Write a config.json with the sizes of a Qwen2.5 model."""
    sizes = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "num_hidden_layers": shape.layers,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", **sizes}))


SHARDED = replace(SPLIT, workers=2, worker_gpus=2)
ON_CPUS = Processes(workers=2, learners=1)


def test_an_engine_of_several_shards_takes_as_many_devices() -> None:
    found, notes = made(config("vllm", tensor_parallel=2), SHARDED)
    assert (found.devices, found.rollout, found.tensor, found.engines) == (8, 4, 2, 2)
    assert found.engine_share == pytest.approx(0.9) and found.copies and not notes
    planned = plan_memory(ONE, found, micro_batch=16384, completions=8192, longest=16384)
    assert planned.generating["engine weights"] == QWEN_7B.parameters  # half of 2 bytes each
    assert not planned.generating["copies"]
    assert planned.host_parts["engines' copies"] == 2 * 2 * QWEN_7B.parameters, "one per engine"
    small = plan_memory(
        ONE, replace(found, host=20.0), micro_batch=16384, completions=8192, longest=16384
    )
    assert small.complaints == ("152 GB are needed in a machine's main memory of 20 GB",)
    one, _ = made(config("vllm"), SPLIT)
    alone = plan_memory(ONE, one, micro_batch=16384, completions=8192, longest=16384)
    assert alone.generating["copies"] and planned.cache_tokens > 2 * alone.cache_tokens
    shared, _ = made(config("vllm", tensor_parallel=2), ON_CPUS, CPU)
    assert (shared.devices, shared.rollout, shared.engines) == (5, 4, 2)


def test_a_model_too_large_for_one_gpu_fits_two() -> None:
    """The weights of 32B parameters and the copy of the policy need more memory than a GPU has."""
    before, _ = made(config("vllm"), SPLIT, members=LARGE)
    planned = plan_memory(LARGE, before, micro_batch=4096, completions=2048, longest=4096)
    assert any("generating leaves" in line for line in planned.complaints)
    after, _ = made(config("vllm", tensor_parallel=2), SHARDED, members=LARGE)
    planned = plan_memory(LARGE, after, micro_batch=4096, completions=2048, longest=4096)
    assert not any("generating leaves" in line for line in planned.complaints)


def test_larger_engines_are_a_remedy_that_names_its_key(tmp_path: Path) -> None:
    save_sizes(tmp_path, QWEN_32B)
    run = ["+experiment=paper/absolute_zero_7b", "+recipe=gpu_8_full_7b"]
    run += [f"policy.model={tmp_path}", "runtime.workers=8", "runtime.learners=16"]
    hardware = ["cluster=gpus_8", "cluster.devices=24"]
    before = plan(hardware, run)
    assert (
        len(before.memory.complaints) == 1 and "generating leaves 0" in before.memory.complaints[0]
    )
    remedies = [line for line, _ in before.advice(20)]
    assert "half as many workers, each over two GPUs (engine.tensor_parallel=2)" in remedies
    shards = ["engine.tensor_parallel=2", "runtime.workers=4", "runtime.worker_gpus=null"]
    after = plan(hardware, [*run, *shards])
    assert after.memory.fits and (after.cluster.rollout, after.cluster.engines) == (8, 4)


def test_on_a_cpu_all_processes_share_the_memory() -> None:
    found, notes = made(config(), Processes(workers=2, learners=1), CPU)
    assert (found.devices, found.rollout, found.precision) == (3, 2, "float32")
    assert found.device.memory == pytest.approx(CPU.device.memory / 3)
    assert not found.checkpointing and notes == ["3 processes share the memory of this machine"]


def test_settings_of_the_cluster_override_derived_ones() -> None:
    found, _ = made(config(learner={"activation_checkpointing": True}), Processes(), logits=7)
    assert found.logits == 7 and found.checkpointing
    found, _ = made(config(learner={"precision": "float32"}), Processes(), checkpointing=False)
    assert found.precision == "float32" and not found.checkpointing


TWO = {**ONE, "other": Member(outline=QWEN_3B, frozen_bytes=4)}
REFUSED = [
    (config("mine.Engine"), SPLIT, GPUS, ONE, "engine._target_: a plan covers"),
    (config("vllm", sleep=True), SPLIT, GPUS, ONE, "engine.sleep: engines of workers"),
    (config("vllm"), ALTERNATING, GPUS, ONE, "runtime.colocated: the engine would keep its"),
    (config("vllm", sleep=True), Processes(), GPUS, TWO, "only one engine of a process can"),
    (config("vllm"), SPLIT, GPUS, TWO, "engine.memory: policies 'base' and 'other'"),
    (config("vllm"), replace(SPLIT, workers=5), GPUS, ONE, "need 9 GPUs, and the cluster has 8"),
    (config(), replace(SPLIT, learners=0), GPUS, ONE, "runtime.learners: the learner computes"),
    (config(), replace(SPLIT, worker_gpus=0.5), GPUS, ONE, "runtime.worker_gpus: a plan covers"),
    (
        config(),
        replace(SPLIT, workers=8, learners=1, worker_gpus=0.5),
        GPUS,
        ONE,
        "not 0.5; set runtime.worker_gpus=1 and lower runtime.workers to 7",
    ),
    (
        config(),
        replace(SPLIT, workers=2, learners=8, worker_gpus=0.25, learner_gpus=0.5),
        GPUS,
        ONE,
        "not 0.25; choose a larger cluster than one of 8 GPUs",
    ),
    (
        config("vllm", tensor_parallel=2),
        Processes(),
        GPUS,
        ONE,
        "engine.tensor_parallel: a plan covers 2 GPUs of a worker",
    ),
    (
        config("vllm", tensor_parallel=3),
        replace(SHARDED, worker_gpus=3, learners=2),
        GPUS,
        ONE,
        "policy 'base': 3 shards cannot divide its 28 attention heads; set engine.tensor_par",
    ),
    (
        config("vllm", tensor_parallel=2),
        SPLIT,
        GPUS,
        ONE,
        "runtime.worker_gpus: a plan covers whole GPUs, one for each shard",
    ),
    (config(), SPLIT, CPU, ONE, "8 GPUs are requested, and AMD EPYC"),
]


@pytest.mark.parametrize(("settings", "processes", "cluster", "members", "complaint"), REFUSED)
def test_an_impossible_layout_is_refused_in_one_line(
    settings: Any, processes: Processes, cluster: ClusterSpec, members: Any, complaint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        made(settings, processes, cluster, members)
    assert complaint in str(refused.value) and "\n" not in str(refused.value)


def test_an_engine_that_stays_takes_the_learners_memory() -> None:
    awake = plan(["cluster=gpus_1"], ["+experiment=tiny/kuhn", "engine=vllm"])
    assert awake.memory.learning["engine"] == pytest.approx(0.4 * 80 * GB)
    asleep = plan(["cluster=gpus_1"], ["+experiment=tiny/kuhn", "engine=vllm", "engine.sleep=true"])
    assert not asleep.memory.learning["engine"]
    assert any("engine.sleep" in line for line, _ in awake.advice()) or awake.memory.fits


def test_a_cache_of_given_size_is_all_that_an_engine_takes() -> None:
    """`engine.memory` has no effect: vLLM takes weights, the memory of a pass, and the cache."""
    asked = ["+experiment=tiny/kuhn", "engine=vllm", "engine.cache=4"]
    for memory in ("null", "0.7"):
        found = plan(["cluster=gpus_1"], [*asked, f"engine.memory={memory}"])
        weights = found.memory.generating["engine weights"]
        taken = weights + found.cluster.engine_reserved * GB + 4 * 2**30
        assert found.memory.learning["engine"] == pytest.approx(taken)
        assert 0 < weights < taken < 0.2 * 80 * GB
        assert found.memory.cache == pytest.approx(4 * 2**30)


def test_two_engines_of_a_worker_have_a_cache_each() -> None:
    """Without `engine.cache` the first engine would take all free memory (see `REFUSED`)."""
    small, large = (
        made(config("vllm", cache=cache), SPLIT, members=TWO)[0].engine_share for cache in (4, 8)
    )
    assert 0 < small < large < 1
    assert (large - small) * GPUS.device.memory * GB == pytest.approx(2 * 4 * 2**30)


def test_adapters_over_two_models_of_one_shape_need_two_engines() -> None:
    """Adapters need an engine for each base; full policies of one shape share an engine."""
    shapes = [replace(QWEN_7B, model=name) for name in ("one", "two")]
    full = {shape.model: Member(outline=shape, frozen_bytes=4) for shape in shapes}
    adapted = {name: replace(member, rank=16) for name, member in full.items()}
    assert len(engines(full)) == 1 and len(engines(adapted)) == 2
    assert len(engines({**adapted, "third": replace(adapted["one"], rank=8)})) == 2
    with pytest.raises(ConfigError, match="policies 'one' and 'two' need two vLLM engines"):
        made(config("vllm"), SPLIT, members=adapted)


def test_many_equal_prompts_need_no_full_pass() -> None:
    """Hands of a group share their tokens: distinct ones are fewer than learner.max_tokens."""
    found = plan(["cluster=local"], ["+experiment=tiny/kuhn", "sampler.group_size=256"])
    distinct = found.workload.lessons["base"].distinct
    assert found.micro_batch == 16_384 > distinct
    fewer = plan(["cluster=local"], ["+experiment=tiny/kuhn", "learner.max_tokens=2048"])
    ratio = found.memory.learning["activations"] / fewer.memory.learning["activations"]
    assert ratio == pytest.approx(distinct / 2048)


def test_the_default_cluster_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    cluster, note = this_machine()
    assert cluster.device.kind == "cpu" and cluster.device.memory > 1 and "--measure" in note
    properties = type("Properties", (), {"total_memory": 141 * 10**9})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    for name, sheet in (
        ("NVIDIA H200", "NVIDIA H200"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM 80 GB"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe 80 GB"),
        ("NVIDIA H20", "NVIDIA H20"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM 80 GB"),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda name=name: name)
        cluster, note = this_machine()
        assert (cluster.device.name, cluster.devices) == (sheet, 2) and "this machine" in note
        assert cluster.device.memory == 141.0
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Unheard GPU")
    with pytest.raises(ConfigError, match="no data sheet of 'Unheard GPU'"):
        this_machine()


def test_each_policy_on_workers_of_its_own_has_a_cache_of_its_own() -> None:
    two = {"big": replace(ONE["base"]), "small": Member(outline=QWEN_3B, frozen_bytes=4)}
    groups = [
        EngineGroup(policies=["big"], engines=3),
        EngineGroup(policies=["small"], engines=1),
    ]
    found, notes = made(config("vllm"), replace(SPLIT, groups=groups), members=two)
    assert found.serving("big").engines == 3 and found.serving("small").engines == 1
    assert notes == ["big: 3 worker(s)", "small: 1 worker(s)"]
    planned = plan_memory(two, found, micro_batch=4096, completions=2048, longest=4096)
    assert planned.tokens_of["small"] > planned.tokens_of["big"] == planned.cache_tokens
