"""Formatting of a prediction as text and as JSON."""

import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from selfplay.plan.cluster import GB
from selfplay.plan.prediction import CASES, GENERATING, TIGHT, Prediction
from selfplay.run.formatting import number, time_text

if TYPE_CHECKING:
    from selfplay.plan.simulate import Simulation


WIDTH = 100
"""Largest number of characters of a line of a text."""
TOGETHER = "\u00a0"
"""Space at which `_broken` breaks no line."""


def as_json(
    prediction: Prediction,
    simulated: "Simulation | None" = None,
    measured: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return a prediction as plain data in bytes, seconds and tokens.

    The key `basis` of each part names its source: datasheet or calibrated (the cluster), formula,
    assumed or recorded (the workload), or simulated.
    """
    cluster, memory, workload = prediction.cluster, prediction.memory, prediction.workload
    side, reason = prediction.bottleneck()
    return {
        "fits": memory.fits,
        "complaints": list(memory.complaints),
        "cluster": {**asdict(cluster), "basis": cluster.device.basis},
        "policies": {
            name: {
                "parameters": member.outline.parameters,
                "learns": member.learns,
                "adapter_parameters": member.outline.adapter(member.rank) if member.rank else 0,
                "cache_bytes_per_token": member.outline.cache(cluster.engine_width),
                "basis": "formula",
            }
            for name, member in prediction.members.items()
        },
        "workload": {
            "turns": workload.turns,
            "completion_tokens": workload.generated,
            "tokens": workload.tokens,
            "token_ratio": {name: each.sharing for name, each in workload.lessons.items()},
            "calls": workload.calls,
            "basis": workload.basis,
            "notes": list(workload.notes),
        },
        "memory": {
            "learning": dict(memory.learning),
            "generating": dict(memory.generating),
            "cache": memory.cache,
            "cache_tokens": memory.cache_tokens,
            "host": memory.host,
            "host_parts": dict(memory.host_parts),
            "limit": memory.limit,
            "tight": memory.fits and memory.margin < TIGHT,
            "basis": "formula",
        },
        **({"disk": {**asdict(prediction.disk), "basis": "formula"}} if prediction.disk else {}),
        "seconds": {
            name: {**prediction.seconds(case), "step": prediction.step(case)}
            for name, case in CASES.items()
        },
        "tokens_per_second_and_device": prediction.tokens_per_second,
        "bottleneck": {"side": side, "reason": reason},
        "advice": [
            {"change": line, "step": other.step(), "fits": other.memory.fits}
            for line, other in prediction.advice()
        ],
        **({"simulated": simulated.to_json()} if simulated else {}),
        **({"measured": dict(measured)} if measured else {}),
    }


def as_text(
    prediction: Prediction,
    simulated: "Simulation | None" = None,
    measured: Mapping[str, float] | None = None,
) -> str:
    """Format a prediction for a terminal, on one screen."""
    cluster, workload = prediction.cluster, prediction.workload
    split = f", {cluster.rollout} of them only to generate" if cluster.rollout else ""
    lines = [f"{cluster.devices} x {cluster.device.name} ({cluster.device.basis}){split}"]
    for name, member in prediction.members.items():
        kind = "frozen" if not member.learns else f"adapter {member.rank}" if member.rank else "all"
        lines.append(f"  policy {name}: {_count(member.outline.parameters)} parameters, {kind}")
    lines.append(
        f"  a step: {number(workload.turns)} turns, {_count(workload.tokens)} tokens, of which "
        f"{_count(workload.generated)} are sampled ({workload.basis})"
    )
    lines += [f"  {note}" for note in workload.notes]
    lines += ["", *_memory(prediction), ""]
    if prediction.memory.fits:
        side, reason = prediction.bottleneck()
        lines += [*_seconds(prediction, measured), "", f"limited by {side}: {reason}"]
    for line, other in prediction.advice():
        lines.append(f"  would help: {line}: {time_text(other.step())} a step")
    if simulated:
        lines += ["", *simulated.lines()]
    verdict = "fits" if prediction.memory.fits else "does not fit"
    if prediction.memory.fits and prediction.memory.margin < TIGHT:
        verdict = f"fits, tightly: {prediction.memory.margin:.0%} to spare"
    lines += ["", verdict, *(f"  {line}" for line in prediction.memory.complaints)]
    return "\n".join(part for line in lines for part in _broken(line))


def _broken(line: str) -> list[str]:
    """Break a line at spaces if it is longer than `WIDTH`; later parts are indented."""
    column = line.rfind("   ", 0, WIDTH // 3) + 3  # in which the text of a table's row begins
    indent = column if column > 2 else len(line) - len(line.lstrip()) + 2
    parts = textwrap.wrap(
        line,
        WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace(TOGETHER, " ") for part in parts] or [""]


def _memory(prediction: Prediction) -> list[str]:
    memory = prediction.memory
    lines = [f"GB per device, of {memory.limit / GB:.1f} that may be used"]
    for title, parts in (("learning", memory.learning), ("generating", memory.generating)):
        lines.append(f"  {title:<11} {_gb(sum(parts.values())):>7}   {_named(parts)}")
    lines.append(
        f"  {'cache':<11} {_gb(memory.cache):>7}   {_count(memory.cache_tokens)} tokens per engine"
    )
    if memory.host:
        held = _named(memory.host_parts)
        lines.append(f"  {'on the host':<11} {_gb(memory.host):>7}   of a machine: {held}")
    if disk := prediction.disk:
        whose = f"the {disk.kept} that are kept and the one being written"
        if disk.most == disk.kept:
            whose = "all that the run writes"
        lines.append(
            f"  {'on the disk':<11} {_bytes(disk.total)}   checkpoints of "
            f"{_bytes(disk.checkpoint)} each: {whose}"
        )
    return lines


def _named(parts: Mapping[str, float]) -> str:
    named = [f"{name} {_gb(size)}" for name, size in parts.items() if size]
    return ", ".join(each.replace(" ", TOGETHER) for each in named)


def _seconds(prediction: Prediction, measured: Mapping[str, float] | None) -> list[str]:
    cases = {name: prediction.seconds(case) for name, case in CASES.items()}
    lines = [f"{'seconds of a step':<20}{'likely':>9}   {'fast':>9} to {'slow'}"]
    for phase, likely in cases["likely"].items():
        if likely:
            fast, slow = time_text(cases["fast"][phase]), time_text(cases["slow"][phase])
            lines.append(f"  {phase:<18}{time_text(likely):>9}   {fast:>9} to {slow}")
    step = {name: time_text(prediction.step(case)) for name, case in CASES.items()}
    lines.append(
        f"  {'a step':<18}{step['likely']:>9}   {step['fast']:>9} to {step['slow']}   "
        f"{_count(prediction.tokens_per_second)} tokens/s per device"
    )
    if prediction.cluster.lag:
        lines.append("  generation and learning overlap; the slower of them determines the step")
    elif prediction.cluster.overhead != 1:
        lines.append(f"  times {prediction.cluster.overhead} for costs that the formulas leave out")
    if measured:
        lines += _compared(prediction, measured)
    return lines


def _compared(prediction: Prediction, measured: Mapping[str, float]) -> list[str]:
    """Format predicted and measured seconds, and their ratio."""
    lines = [f"  {'compared to run':<18}{'plan':>9}   {'measured':>9}   {'plan / measured'}"]
    for name, planned in sides(prediction).items():
        observed = measured[name]
        ratio = f"{planned / observed:.2f}" if observed else "-"
        lines.append(f"  {name:<18}{time_text(planned):>9}   {time_text(observed):>9}   {ratio}")
    return lines


def sides(prediction: Prediction) -> dict[str, float]:
    """Return predicted seconds under the names that a run records."""
    parts = prediction.seconds()
    rollout = sum(parts[name] for name in GENERATING)
    return {
        "rollout": rollout,
        "learn": sum(parts.values()) - rollout,
        "step": prediction.step(),
    }


def _gb(size: float) -> str:
    return f"{size / GB:.1f}" if size >= 0.05 * GB else f"{size / GB:.3f}"


def _bytes(size: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 1e3:.1f} kB"


def _count(value: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"
