"""Checkpoints: all that a run needs to go on, written whole or not at all."""

import hashlib
import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from selfplay.credit import Stateful
from selfplay.errors import RunError
from selfplay.lora import BASES
from selfplay.policy import Policy
from selfplay.runs import reporting_disk, sync

MANIFEST = "manifest.json"


def save(
    folder: Path,
    *,
    step: int,
    policies: Mapping[str, Policy],
    learners: Mapping[str, Stateful],
    state: Mapping[str, Any],
    keep: int,
) -> Path:
    """Write `folder/<step>` and drop all but the newest `keep`.

    Everything is written beside its place and renamed into it, so that a kill leaves either the old
    state or the new one. The manifest with every file's hash is written last.
    """
    place = folder / f"{step:06d}"
    partial = folder / f".{place.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    with reporting_disk(folder):
        try:
            partial.mkdir(parents=True)
            _save_policies(policies, partial, place)
            # By way of memory: on a full disk, torch's own writer reports no OSError.
            memory = io.BytesIO()
            torch.save({name: learner.state_dict() for name, learner in learners.items()}, memory)
            (partial / "learners.pt").write_bytes(memory.getbuffer())
            versions = {name: policy.version for name, policy in policies.items()}
            text = json.dumps({"step": step, "versions": versions, **state})
            (partial / "state.json").write_text(text, encoding="utf-8")
            hashes = {
                str(path.relative_to(partial)): _hash(path)
                for path in sorted(partial.rglob("*"))
                if path.is_file()
            }
            (partial / MANIFEST).write_text(json.dumps(hashes, indent=1), encoding="utf-8")
            for path in partial.rglob("*"):
                sync(path)
            shutil.rmtree(place, ignore_errors=True)
            partial.rename(place)
            sync(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    # A later one can only be a damaged one that the run fell back from: it counts for nothing.
    done = [path for path in folder.iterdir() if path.name.isdigit() and int(path.name) <= step]
    for old in sorted(done)[:-keep]:
        shutil.rmtree(old)
    return place


def latest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and what is wrong with each newer one.

    None if the run has not come as far as its first. Raises RunError, naming what is wrong, if
    there are checkpoints but no whole one.
    """
    found = sorted((p for p in folder.glob("*") if p.name.isdigit()), reverse=True)
    faults: list[str] = []
    for place in found:
        fault = broken(place)
        if fault is None:
            return place, faults
        faults.append(f"{place.name}: {fault}")
    if faults:
        detail = "; ".join(faults)
        raise RunError(f"{folder.parent} has no whole checkpoint to go on from ({detail})")
    return None, []


def broken(place: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        hashes = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "its manifest is missing or damaged"
    if not isinstance(hashes, dict) or "state.json" not in hashes:
        return "its manifest is damaged"
    for name, expected in hashes.items():
        path = place / name
        if not path.is_file():
            return f"{name} is missing"
        if _hash(path) != expected:
            return f"{name} is damaged"
    return None


def load(
    place: Path, *, policies: Mapping[str, Policy], learners: Mapping[str, Stateful]
) -> dict[str, Any]:
    """Restore policies and learners from a whole checkpoint; returns the rest of the state."""
    fault = broken(place)
    if fault:
        raise RunError(f"checkpoint {place}: {fault}; resume from an older one")
    state: dict[str, Any] = json.loads((place / "state.json").read_text(encoding="utf-8"))
    if set(state["versions"]) != set(policies):
        raise RunError(
            f"checkpoint {place} has policies {sorted(state['versions'])}, "
            f"the config names {sorted(policies)}"
        )
    for name, policy in policies.items():
        policy.load_weights(place / "policies" / name)
        policy.version = state["versions"][name]
    learning = torch.load(place / "learners.pt", weights_only=True)
    for name, learner in learners.items():
        learner.load_state_dict(learning[name])
    return state


def _save_policies(policies: Mapping[str, Policy], partial: Path, place: Path) -> None:
    """Write the policies, and once each the bases of adapters that only this run has.

    An adapter names its base by an absolute path, because transformers takes a relative one from
    the current folder.
    """
    for name, policy in policies.items():
        at = None
        if policy.base is not None and policy.base.kept is not None:
            at = Path(BASES, policy.base.kept)
            if not (partial / at).exists():
                policy.base.save(partial / at)
        policy.save(partial / "policies" / name, base=str((place / at).absolute()) if at else None)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
