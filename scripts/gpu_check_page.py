"""Runs the sections of `scripts/gpu_check`, each in a process of its own, and writes one page.

A section prints what it finds, and as its last line `RESULT` with JSON: a list of rows, each with a
name, a value, and true, false or null for passed, failed or no verdict. A section that ends with an
error, takes longer than its limit or prints no result has failed, and the next one begins.

Usage: python scripts/gpu_check_page.py [--page runs/gpu_check.md] [--list] [NAME ...]
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENDED = re.compile(r"\d (passed|failed|skipped|error|deselected)")
"""Part of pytest's last line, after which the libraries of a GPU may print more."""
RESULT = "RESULT "
"""Beginning of the line with a section's rows."""
KEPT = 25
"""Number of last lines of a failed section that the page shows."""
LONGEST = 300
"""Number of characters of a line that the page shows."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of the check, with its command."""

    name: str
    """Name on the command line."""
    title: str
    """Title on the page."""
    command: Sequence[str]
    """Arguments of the process."""
    limit: float
    """Seconds after which the process and its children are ended."""
    gpus: int = 0
    """Smallest number of GPUs that it needs."""
    packages: Sequence[str] = ()
    """Packages that it needs."""
    remedy: str
    """Advice if it fails."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the process."""
    tests: bool = False
    """True for a run of pytest, whose last line is the result."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a section."""

    section: Section
    state: str
    """passed, failed or skipped."""
    reason: str = ""
    """Reason of a failure or of a skip."""
    seconds: float = 0.0
    """Wall clock of the process."""
    rows: Sequence[tuple[str, str, bool | None]] = ()
    """Name, value and verdict."""
    output: Sequence[str] = ()
    """Last lines of a failed section."""


def sections() -> list[Section]:
    """Return all sections in the order of the page."""
    inner = [sys.executable, str(ROOT / "scripts/gpu_check_sections.py")]
    pytest = [sys.executable, "-m", "pytest", "-q", "-rfE", "--no-header"]
    runner = "VLLM_USE_V2_MODEL_RUNNER"
    engine = [*pytest, "-m", "vllm and gpu", "tests/engines/vllm/test_engine_gpu.py"]
    unserved = (
        "Train with engine=transformers until this passes, or with the other model runner "
        f"(environment variable {runner}, 0 or 1). If only float32 fails, by its tolerance: "
        "engine.tolerance=0.01."
    )
    return [
        Section(
            name="machine",
            title="Devices and versions",
            command=[*inner, "machine"],
            limit=120,
            remedy="Install a torch that fits the driver (nvidia-smi shows its CUDA version).",
        ),
        Section(
            name="speed",
            title="Matrix products and memory",
            command=[*inner, "speed"],
            limit=300,
            remedy="Check that nothing else uses the device, and its clocks and power limit.",
        ),
        Section(
            name="kernels",
            title="Attention kernels of the learner",
            command=[*inner, "kernels"],
            limit=900,
            remedy="Leave learner.attention=null (sdpa) and do not choose a kernel that failed. If "
            "sdpa itself failed, choose learner.attention=eager.",
        ),
        Section(
            name="vllm_v1",
            title="vLLM, model runner V1",
            command=engine,
            limit=1800,
            gpus=1,
            packages=["vllm"],
            remedy=unserved,
            environment={runner: "0"},
            tests=True,
        ),
        Section(
            name="vllm_v2",
            title="vLLM, model runner V2",
            command=engine,
            limit=1800,
            gpus=1,
            packages=["vllm"],
            remedy=unserved,
            environment={runner: "1"},
            tests=True,
        ),
        Section(
            name="shards",
            title="vLLM over two GPUs",
            command=[
                *pytest,
                "-m",
                "vllm and gpu",
                "tests/engines/vllm/test_tensor_parallel_gpu.py",
            ],
            limit=1800,
            gpus=2,
            packages=["vllm"],
            remedy="Leave engine.tensor_parallel=1 until this passes. If the processes hang at the "
            "start: NCCL_DEBUG=INFO, and NCCL_P2P_DISABLE=1 if peer access is the reason.",
            tests=True,
        ),
        Section(
            name="tests",
            title="Tests that need a GPU",
            command=[*pytest, "-m", "gpu and not vllm", *_files()],
            limit=3600,
            gpus=1,
            remedy="Run each failed test alone: python -m pytest -m gpu FILE::TEST. If it tests "
            "flex_attention, do not choose that kernel.",
            tests=True,
        ),
        Section(
            name="weights",
            title="Transfers of weights",
            command=[*inner, "weights"],
            limit=1800,
            remedy="If the object store is full or slow: enlarge /dev/shm to twice the weights of "
            "all policies in 16 bits. A wrong checksum is a fault of the transfer: do not train. "
            "If copies through pinned buffers are slow, find the limit: the link (its width is "
            "in nvidia-smi -q), or new main memory (more threads, run.threads; huge pages).",
        ),
        Section(
            name="updates",
            title="Updates against `selfplay plan`",
            command=[*inner, "updates"],
            limit=1800,
            remedy="More memory than planned: lower learner.max_tokens by that factor. Slower than "
            "planned by more than 2: see the sections on speed and kernels first.",
        ),
        Section(
            name="throughput",
            title="Updates at the shape of Qwen3-0.6B",
            command=[*inner, "throughput"],
            limit=1800,
            remedy="Out of memory: see the section on updates.",
        ),
        Section(
            name="sampling",
            title="Sampling at the shape of Qwen3-0.6B",
            command=[*inner, "sampling"],
            limit=1800,
            remedy="If vLLM failed, see its own sections. The embedded engine is slow on a GPU: it "
            "launches each kernel from Python.",
        ),
        Section(
            name="packing",
            title="Shared prefixes at the shape of Qwen3-0.6B",
            command=[*inner, "packing"],
            limit=1800,
            remedy="Choose learner.packing=rows if shared rows differ or are slower, and "
            "learner.attention=sdpa if flex_attention failed.",
        ),
        Section(
            name="one_gpu",
            title="A run with engine and learner on one device",
            command=[*inner, "one_gpu"],
            limit=1800,
            remedy="Out of memory: lower engine.memory or learner.max_tokens. If engine.sleep "
            "fails, set engine.sleep=false and engine.memory=0.3.",
        ),
        Section(
            name="split",
            title="A run with workers and ranks on devices of their own",
            command=[*inner, "split"],
            limit=1800,
            packages=["ray"],
            remedy="If ranks do not find each other: NCCL_DEBUG=INFO, and NCCL_SOCKET_IFNAME or "
            "GLOO_SOCKET_IFNAME with the interface of the network.",
        ),
        Section(
            name="colocated",
            title="A run with a worker and a rank on each device",
            command=[*inner, "colocated"],
            limit=1800,
            packages=["ray"],
            remedy="Out of memory when the engine wakes: lower engine.memory by 0.1, because "
            "resting ranks keep a CUDA context, or set runtime.colocated=false.",
        ),
        Section(
            name="resume",
            title="Runs that go on after a checkpoint, with 2^24 trained parameters or more",
            command=[*inner, "resume"],
            limit=1800,
            remedy="Keep the checkpoint. The error names a tensor's device if the state of AdamW "
            "is on another one than its parameters.",
        ),
    ]


def _files() -> list[str]:
    """Return the files of the tests that need a GPU and not vLLM; others may import packages that
    are not installed."""
    texts = {path: path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    return [
        str(path.relative_to(ROOT))
        for path, text in texts.items()
        if "mark.gpu" in text and "mark.vllm" not in text
    ]


def run(section: Section, *, gpus: int, packages: Mapping[str, bool]) -> Outcome:
    """Run one section, and end all its processes at its limit."""
    if gpus < section.gpus:
        reason = f"it needs {section.gpus} GPU(s), and torch sees {gpus}"
        return Outcome(section=section, state="skipped", reason=reason)
    for name in section.packages:
        if not packages[name]:
            reason = f"the package {name} is not installed: pip install 'selfplay[{name}]'"
            return Outcome(section=section, state="skipped", reason=reason)
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            section.command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, **section.environment, "SELFPLAY_GPU_CHECK": "1"},
            start_new_session=True,
        )
        late = False
        try:
            process.wait(section.limit)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _end(process)
        output.seek(0)
        lines = output.read().splitlines()
    seconds = time.monotonic() - began
    rows, reason = _judged(section, lines, process.returncode)
    if late:
        reason = f"it took longer than its limit of {section.limit:g} s"
    return Outcome(
        section=section,
        state="failed" if reason else "passed",
        reason=reason,
        seconds=seconds,
        rows=rows,
        output=[line[:LONGEST] for line in lines[-KEPT:]] if reason else (),
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all other processes of its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _judged(
    section: Section, lines: Sequence[str], code: int
) -> tuple[list[tuple[str, str, bool | None]], str]:
    """Return a section's rows, and the reason if it failed."""
    if section.tests:
        last = next((line for line in reversed(lines) if ENDED.search(line)), "")
        if code == 5:  # pytest found no test
            return [], "pytest selected no test"
        rows: list[tuple[str, str, bool | None]] = [("pytest", last.strip("= "), code == 0)]
        if code == 0 and " passed" not in last:
            return rows, "every test was skipped"
        return rows, "" if code == 0 else f"pytest ended with exit code {code}"
    if code:
        ended = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
        return _rows(lines)[0], f"it ended with {ended}"
    rows, readable = _rows(lines)
    if not readable:
        return rows, "it printed no result"
    failed = [name for name, _, passed in rows if passed is False]
    return rows, f"not as it should be: {', '.join(failed)}" if failed else ""


def _rows(lines: Sequence[str]) -> tuple[list[tuple[str, str, bool | None]], bool]:
    """Return the rows of the last RESULT line, and True if there is a readable one."""
    for line in reversed(lines):
        if line.startswith(RESULT):
            try:
                found = json.loads(line.removeprefix(RESULT))
                rows = [(str(name), str(value), passed) for name, value, passed in found]
                return rows, bool(rows)
            except (ValueError, TypeError):
                return [], False
    return [], False


MARKS = {True: "ok", False: "**no**", None: ""}


def page(outcomes: Sequence[Outcome], *, waiting: Sequence[Section] = ()) -> str:
    """Return the page of the sections so far, as Markdown."""
    lines = ["# GPU check", "", "| section | result | seconds | reason |", "|---|---|---|---|"]
    for each in outcomes:
        state = f"**{each.state}**" if each.state == "failed" else each.state
        lines.append(
            f"| {each.section.title} (`{each.section.name}`) | {state} | {each.seconds:.0f} | "
            f"{_cell(each.reason)} |"
        )
    lines += [f"| {each.title} (`{each.name}`) | not yet run | | |" for each in waiting]
    for each in outcomes:
        if each.state == "skipped":
            continue
        lines += ["", f"## {each.section.title}", ""]
        if each.state == "failed":
            lines += [f"**Failed**: {each.reason}.", "", f"What to do: {each.section.remedy}", ""]
        if each.rows:
            lines += ["| | | |", "|---|---|---|"]
            lines += [f"| {_cell(n)} | {_cell(v)} | {MARKS[p]} |" for n, v, p in each.rows]
        if each.output:
            lines += ["", "The end of its output:", ""]
            lines += [f"    {line}" for line in each.output]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def check(
    chosen: Sequence[Section], *, place: Path, gpus: int, packages: Mapping[str, bool]
) -> int:
    """Run sections and write the page after each one; return 1 if one failed."""
    place.parent.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for index, section in enumerate(chosen):
        print(f"{section.name} ...", flush=True)
        outcomes.append(run(section, gpus=gpus, packages=packages))
        found = outcomes[-1]
        print(f"{section.name}: {found.state} {found.reason} ({found.seconds:.0f} s)", flush=True)
        place.write_text(page(outcomes, waiting=chosen[index + 1 :]), encoding="utf-8")
    failed = [each.section.name for each in outcomes if each.state == "failed"]
    print(f"{place}: {', '.join(failed) + ' failed' if failed else 'nothing failed'}")
    return bool(failed)


def main() -> None:
    # A section runs in a session of its own, which must not outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    known = sections()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="sections to run; all by default")
    parser.add_argument("--page", type=Path, default=Path("runs/gpu_check.md"))
    parser.add_argument("--list", action="store_true", help="print the sections and stop")
    options = parser.parse_args()
    if options.list:
        for section in known:
            print(f"{section.name:<9} {section.title}")
        return
    names = [section.name for section in known]
    for name in options.names:
        if name not in names:
            parser.error(f"no section {name!r}; choose from {', '.join(names)}")
    chosen = [each for each in known if each.name in (options.names or names)]
    probe = subprocess.run(
        [sys.executable, str(ROOT / "scripts/gpu_check_sections.py"), "probe"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    if probe.returncode:
        sys.exit(f"gpu_check: torch cannot be loaded: {probe.stderr.strip().splitlines()[-1]}")
    there = json.loads(probe.stdout.splitlines()[-1])
    sys.exit(check(chosen, place=options.page, gpus=there["gpus"], packages=there["packages"]))


if __name__ == "__main__":
    main()
