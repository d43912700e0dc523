"""Checkpoints: everything that a run needs to continue. This module finds, checks and reads them.

`CheckpointWriter` writes them, completely or not at all.
"""

import json
import os
import pickle
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread, current_thread
from typing import TYPE_CHECKING, Annotated, Any, Required, cast

import torch
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from selfplay.credit import Stateful
from selfplay.errors import RunError, one_line, printable
from selfplay.learner import Sharded
from selfplay.models.policy import Policy
from selfplay.run.directory import reporting_disk
from selfplay.run.files import sha256_once
from selfplay.run.record_reader import decode
from selfplay.run.run_folder import CHECKPOINTS, LEARNERS, POLICIES, STATE, checkpoints_in, step_of
from selfplay.run.untrusted import is_confined

if TYPE_CHECKING:
    from selfplay.learner.learner import Learner

MANIFEST = "manifest.json"
"""File of a checkpoint with the SHA-256 of all its other files."""
SHARDS = "learners"
"""Folder of the learners whose state several processes write in parts."""
FROZEN = "snapshots"
"""Folder of the policies that do not change any more."""
ASIDE = ".old"
"""Suffix of a checkpoint that is about to be replaced."""
REPLACED = "being replaced; if no process trains the run, train resume=RUN puts it back"
"""Fault of a checkpoint that was set aside while its replacement is not in its place yet."""

WRITERS: dict[Path, Thread] = {}
"""Newest thread of this process that writes into a folder of checkpoints, by folder."""
WRITERS_LOCK = Lock()
"""Held while a thread enters `WRITERS` and starts."""


def wait_for_writer(folder: Path) -> None:
    """Wait until no thread of this process writes into a folder of checkpoints.

    Every function of this module that reads in such a folder waits first. That thread itself does
    not wait.
    """
    with WRITERS_LOCK:
        thread = WRITERS.get(folder.resolve())
    if thread is not None and thread.is_alive() and thread is not current_thread():
        thread.join()


def latest(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest whole checkpoint, and the fault of each newer one.

    The checkpoint is None if the run has not reached its first one. Raises RunError, naming the
    faults, if there are checkpoints but no whole one. Nothing is written, because the run may be
    active.
    """
    wait_for_writer(folder)
    aside = (folder / path.stem[1:] for path in folder.glob(f".[0-9]*{ASIDE}"))
    found = {*kept(folder), *(place for place in aside if place.name.isdecimal())}
    found |= {*kept(folder)}  # a save may have ended between the two listings
    faults: list[str] = []
    for place in sorted(found, key=step_of, reverse=True):
        fault = broken(place) if place.exists() else REPLACED
        if fault is None:
            return place, faults
        faults.append(f"{place.name}: {fault}")
    if faults:
        detail = "; ".join(faults)
        raise RunError(f"{folder.parent} has no whole checkpoint to go on from ({detail})")
    return None, []


def report_faults(faults: Sequence[str], place: Path | None) -> None:
    """Print on stderr why newer checkpoints than `place` are not used."""
    instead = "left out" if place is None else f"using {place}"
    for fault in faults:
        print(printable(f"checkpoint {fault}; {instead}"), file=sys.stderr)


def choose(run: Path, *, step: int | None = None) -> Path:
    """Return the checkpoint of a step of a run, or else its newest whole one.

    Commands that play a run's policies call it. A line on stderr names the fault of each damaged
    checkpoint that is newer. Raises RunError if the run has no such checkpoint.
    """
    folder = run / CHECKPOINTS
    if step is not None:
        return at(folder, step)
    place, faults = latest(folder)
    report_faults(faults, place)
    if place is None:
        raise RunError(f"run {run} has no checkpoint yet; continue it: train resume={run}")
    return place


def kept(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first, whole or damaged; an empty folder does not
    count."""
    wait_for_writer(folder)
    return [path for path in checkpoints_in(folder) if _holds_something(path)]


def _holds_something(path: Path) -> bool:
    try:
        return any(path.iterdir())
    except OSError:  # removed in the meantime by a run in progress
        return False


def before(folder: Path, step: int) -> Path | None:
    """Return the newest whole checkpoint from before a step, or None."""
    return next((p for p in kept(folder) if int(p.name) < step and broken(p) is None), None)


def at(folder: Path, step: int) -> Path:
    """Return the whole checkpoint of a step. Raises RunError with the steps that exist if there is
    none."""
    whole = {int(path.name): path for path in kept(folder) if broken(path) is None}
    if step not in whole:
        steps = ", ".join(map(str, sorted(whole))) or "none"
        raise RunError(f"run {folder.parent} kept no checkpoint of step {step}; it has {steps}")
    return whole[step]


def drop_after(folder: Path, step: int) -> None:
    """Remove the checkpoints after a step, the newest first."""
    wait_for_writer(folder)
    with reporting_disk(folder):
        for place in checkpoints_in(folder):
            if step_of(place) > step:
                shutil.rmtree(place)


def broken(place: Path) -> str | None:
    """Return the fault of a checkpoint, or None."""
    hashes = _manifest(place)
    if hashes is None:
        return "its manifest is missing or damaged"
    if STATE not in hashes:
        return "its manifest is damaged"
    return next(filter(None, (fault_of(place, *entry) for entry in hashes.items())), None)


def fault_of(place: Path, name: str, expected: str) -> str | None:
    """Return the fault of one file of a checkpoint, or None."""
    path = place / name
    if not is_confined(place, path):
        return "its manifest names a file outside it"
    if not os.path.isfile(path):  # False for a name that no disk can hold
        return f"{name} is missing"
    return None if sha256_once(path) == expected else f"{name} is damaged"


def hashes_of(place: Path, at: Path) -> dict[str, str]:
    """Return the hashes that a checkpoint's manifest has for all files below one of its folders."""
    hashes = _manifest(place) or {}
    return {name: known for name, known in hashes.items() if Path(name).is_relative_to(at)}


def _manifest(place: Path) -> dict[str, Any] | None:
    """Return the content of a checkpoint's manifest; None if it is missing or no JSON object."""
    try:
        found = decode((place / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def load(
    place: Path, *, policies: Mapping[str, Policy], learners: Mapping[str, Stateful] | None
) -> dict[str, Any]:
    """Restore policies and learners from a whole checkpoint. Returns the rest of the state.

    With `learners` None the state of learners is not read, because nothing will be trained. Raises
    RunError for a damaged checkpoint, other policies, and a state that cannot be read.
    """
    wait_for_writer(place.parent)
    fault = broken(place)
    if fault:
        raise RunError(f"checkpoint {place}: {fault}; resume from an older one")
    state = read_state(place)
    if set(state["versions"]) != set(policies):
        raise RunError(
            f"checkpoint {place} has policies {sorted(state['versions'])}, "
            f"the config names {sorted(policies)}"
        )
    for name, policy in policies.items():
        policy.load_weights(place / POLICIES / name)
        policy.version = state["versions"][name]
    if learners is None:
        return state
    learning = _read_learners(place / LEARNERS)
    for name, learner in learners.items():
        written = place / SHARDS / name
        if not written.is_dir():
            learner.load_state_dict(learning[name])
        elif isinstance(learner, Sharded):
            learner.load_shards(written)
        else:
            from selfplay.learner import sharded_checkpoint  # a slow import that few runs need

            sharded_checkpoint.load(cast("Learner", learner), written)
    return state


def _read_learners(path: Path) -> dict[str, Any]:
    """Return the state of learners, as plain values and tensors in main memory. Raises RunError for
    anything else.

    A learner moves the tensors to its own device, which need not be the one that they came from.
    """
    try:
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise RunError(
            f"checkpoint {path.parent} has no state of optimizers, so that its run can be played "
            "and not continued; begin a run from its weights: policy.model="
            f"{path.parent / 'policies'}/NAME"
        ) from error
    except pickle.UnpicklingError as error:
        raise RunError(
            f"{path} cannot be read: it holds more than tensors and plain values; resume from "
            "another checkpoint"
        ) from error
    except (EOFError, RuntimeError) as error:
        raise RunError(f"{path} cannot be read: {one_line(error)}") from error
    return found


class _State(TypedDict, total=False):
    """The values of state.json that belong to no component."""

    step: Required[Annotated[int, Field(ge=0, strict=True)]]
    """Training step of the checkpoint."""
    versions: Required[dict[str, Annotated[int, Field(ge=0, strict=True)]]]
    """Number of updates of each policy."""
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    evaluations_before: dict[str, dict[str, float | None]] | None
    evaluations_after: dict[str, dict[str, float | None]] | None


_STATE: TypeAdapter[_State] = TypeAdapter(_State)


def read_state(place: Path) -> dict[str, Any]:
    """Return the state of a whole checkpoint without weights and optimizers. Raises RunError if it
    cannot be read."""
    path = place / STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {one_line(error)}") from error
    if not isinstance(state, dict):
        raise RunError(f"{path} cannot be read: it holds no values by name")
    try:
        _STATE.validate_python(state)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"]))
        raise RunError(f"{path} cannot be read: {printable(key)}: {fault['msg']}") from error
    return state


def recover(folder: Path) -> None:
    """Put back a checkpoint that was set aside when its writer was killed; remove it if its
    successor exists.

    Only the holder of the run's lock may call this function, because another process's save may be
    between its two renames.
    """
    wait_for_writer(folder)
    with reporting_disk(folder):
        for aside in folder.glob(f".*{ASIDE}"):
            place = folder / aside.stem[1:]
            if place.exists():
                shutil.rmtree(aside, ignore_errors=True)
            else:
                aside.rename(place)
