"""Checkpoints: everything that a run needs to continue, written completely or not at all."""

import io
import json
import os
import pickle
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from selfplay.credit import Stateful
from selfplay.errors import DivergedError, RunError, one_line
from selfplay.learner import Sharded
from selfplay.models.lora import BASES
from selfplay.models.policy import Base, Policy
from selfplay.run.directory import reporting_disk, sync
from selfplay.run.files import sha256
from selfplay.run.untrusted import is_confined

if TYPE_CHECKING:
    from selfplay.learner.learner import Learner

MANIFEST = "manifest.json"
SHARDS = "learners"
"""Folder of the learners whose state several processes write in parts."""
FROZEN = "snapshots"
"""Folder of the policies that do not change any more."""
ASIDE = ".old"
"""Suffix of a checkpoint that is about to be replaced."""
REPLACED = "being replaced, or left so by a kill, which train resume=RUN mends"
"""Fault of a checkpoint of which only the old version, set aside for its replacement, exists."""


@dataclass(frozen=True, kw_only=True)
class FrozenPolicy:
    """A policy that does not change from one checkpoint to the next, such as a snapshot."""

    policy: Policy
    """The frozen policy."""
    written: Path | None = None
    """Folder of the policy in the previous checkpoint."""


def save(
    folder: Path,
    *,
    step: int,
    policies: Mapping[str, Policy],
    learners: Mapping[str, Stateful],
    state: Mapping[str, Any],
    keep: int,
    spare: int | None = None,
    frozen: Mapping[str, FrozenPolicy] | None = None,
) -> Path:
    """Write `folder/<step>`, and remove all but the newest `keep` of the older checkpoints.

    With `spare`, the newest checkpoint up to that step stays too, with all after it.

    Everything is written into a partial folder that is then renamed, so that a kill leaves either
    the old state or the new one. A checkpoint that already exists is set aside before the renaming,
    and removed only after it. The manifest with the hash of every file is written last.

    Raises DivergedError, and writes nothing, if a trained weight (of a policy or of a credit
    method) is not finite: a run cannot continue from such weights.
    """
    for learner in learners.values():
        if isinstance(learner, Sharded):
            learner.fetch_weights()
    _refuse_broken(folder, step, policies, learners)
    place = folder / f"{step:06d}"
    aside = folder / f".{place.name}{ASIDE}"
    partial = folder / f".{place.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    recover(folder)
    with reporting_disk(folder):
        try:
            partial.mkdir(parents=True)
            known = _save_policies(policies, partial, place)
            known |= _save_frozen(frozen or {}, partial, place)
            known |= _save_learners(learners, partial)
            versions = {name: policy.version for name, policy in policies.items()}
            text = json.dumps({"step": step, "versions": versions, **state})
            (partial / "state.json").write_text(text, encoding="utf-8")
            hashes = {
                name: known.get(name) or sha256(path)
                for path in sorted(partial.rglob("*"))
                for name in [str(path.relative_to(partial))]
                if path.is_file()
            }
            if absent := known.keys() - hashes.keys():
                raise RunError(
                    f"{min(absent)} was written by a rank and is not seen here; let run.folder "
                    "name a folder that all machines share"
                )
            (partial / MANIFEST).write_text(json.dumps(hashes, indent=1), encoding="utf-8")
            for path in (*partial.rglob("*"), partial):
                sync(path)
            if place.exists():
                place.rename(aside)
            partial.rename(place)
            sync(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        finally:
            recover(folder)
    # A later checkpoint can only be a damaged one that the run fell back from: it is not counted.
    done = [path for path in folder.iterdir() if _numbered(path) and int(path.name) <= step]
    spared = [path for path in done if spare is not None and int(path.name) <= spare]
    for old in sorted(done, key=_step)[:-keep]:
        if not spared or _step(old) < max(map(_step, spared)):
            shutil.rmtree(old)
    return place


def _refuse_broken(
    folder: Path, step: int, policies: Mapping[str, Policy], learners: Mapping[str, Stateful]
) -> None:
    """Raise DivergedError for weights that hold NaN or an infinity."""
    broken_at = next(_broken(policies, learners), None)
    if broken_at is None:
        return
    good = before(folder, step + 1)
    then = f"the last good checkpoint is {good}" if good else "there is no good checkpoint"
    raise DivergedError(
        f"step {step}: {broken_at} is not finite, so no checkpoint was written; {then}: begin "
        "again with a lower learning rate"
    )


def _broken(policies: Mapping[str, Policy], learners: Mapping[str, Stateful]) -> Iterator[str]:
    """Yield the names of trained tensors that are not finite, of policies and of credit methods.

    Weights that other ranks train are checked in this process's policies.
    """
    for name, policy in policies.items():
        for path, tensor in policy.model.named_parameters():
            if tensor.requires_grad and not _finite(tensor):
                yield f"policy {name!r}: weight {path}"
    for name, learner in learners.items():
        if name not in policies and not isinstance(learner, Sharded):
            for path, value in _tensors(learner.state_dict(), ""):
                if not _finite(value):
                    yield f"{name}: {path}"


def _tensors(state: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all tensors of nested mappings and sequences, with their paths, except an optimizer's.

    An optimizer's squares of large gradients may be infinite although the weights are finite.
    """
    if isinstance(state, torch.Tensor):
        yield path, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            if key != "optimizer":
                yield from _tensors(value, f"{path}.{key}" if path else str(key))
    elif isinstance(state, list | tuple):
        for place, value in enumerate(state):
            yield from _tensors(value, f"{path}.{place}")


def _finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())


def latest(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest whole checkpoint, and the fault of each newer one.

    Returns None if the run has not reached its first checkpoint. Raises RunError, naming the
    faults, if there are checkpoints but no whole one. Nothing is written, because the run may be
    active.
    """
    aside = (folder / path.stem[1:] for path in folder.glob(f".[0-9]*{ASIDE}"))
    found = {*kept(folder), *(place for place in aside if place.name.isdecimal())}
    found |= {*kept(folder)}  # a save may have ended between the two listings
    faults: list[str] = []
    for place in sorted(found, key=_step, reverse=True):
        fault = broken(place) if place.exists() else REPLACED
        if fault is None:
            return place, faults
        faults.append(f"{place.name}: {fault}")
    if faults:
        detail = "; ".join(faults)
        raise RunError(f"{folder.parent} has no whole checkpoint to go on from ({detail})")
    return None, []


def kept(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first, whole or damaged; an empty folder does not
    count."""
    found = [path for path in folder.glob("[0-9]*") if _numbered(path) and _holds_something(path)]
    return sorted(found, key=_step, reverse=True)


def _step(place: Path) -> int:
    return int(place.name)


def _numbered(path: Path) -> bool:
    """Return True if `path` is a folder with a name that `save` gives a checkpoint."""
    return re.fullmatch(r"[0-9]{6}|[1-9][0-9]{6,17}", path.name) is not None and path.is_dir()


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
    found = [path for path in folder.glob("[0-9]*") if _numbered(path)]
    with reporting_disk(folder):
        for place in sorted(found, key=_step, reverse=True):
            if int(place.name) > step:
                shutil.rmtree(place)


def broken(place: Path) -> str | None:
    """Return the fault of a checkpoint, or None."""
    try:
        hashes = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "its manifest is missing or damaged"
    if not isinstance(hashes, dict) or "state.json" not in hashes:
        return "its manifest is damaged"
    return next(filter(None, (_fault(place, *entry) for entry in hashes.items())), None)


def _fault(place: Path, name: str, expected: str) -> str | None:
    """Return the fault of one file of a checkpoint, or None."""
    path = place / name
    if not is_confined(place, path):
        return "its manifest names a file outside it"
    if not path.is_file():
        return f"{name} is missing"
    return None if sha256(path) == expected else f"{name} is damaged"


def load(
    place: Path, *, policies: Mapping[str, Policy], learners: Mapping[str, Stateful] | None
) -> dict[str, Any]:
    """Restore policies and learners from a whole checkpoint. Returns the rest of the state.

    With `learners` None the state of learners is not read, because nothing will be trained.
    """
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
        policy.load_weights(place / "policies" / name)
        policy.version = state["versions"][name]
    if learners is None:
        return state
    learning = _read_learners(place / "learners.pt")
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
    """Return the state of learners, as tensors and plain values. Raises RunError for anything
    else."""
    try:
        found: dict[str, Any] = torch.load(path, weights_only=True)
    except pickle.UnpicklingError as error:
        raise RunError(
            f"{path} cannot be read: it holds more than tensors and plain values; resume from "
            "another checkpoint"
        ) from error
    except (EOFError, RuntimeError) as error:
        raise RunError(f"{path} cannot be read: {one_line(error)}") from error
    return found


def read_state(place: Path) -> dict[str, Any]:
    """Return the state of a whole checkpoint without weights and optimizers. Raises RunError if it
    cannot be read."""
    path = place / "state.json"
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {one_line(error)}") from error
    if not isinstance(state, dict):
        raise RunError(f"{path} cannot be read: it holds no values by name")
    return state


def recover(folder: Path) -> None:
    """Put back a checkpoint that `save` had set aside when it was killed; remove it if its
    successor exists.

    Only the holder of the run's lock may call this function, because another process's save may be
    between its two renames.
    """
    with reporting_disk(folder):
        for aside in folder.glob(f".*{ASIDE}"):
            place = folder / aside.stem[1:]
            if place.exists():
                shutil.rmtree(aside, ignore_errors=True)
            else:
                aside.rename(place)


def _save_learners(learners: Mapping[str, Stateful], partial: Path) -> dict[str, str]:
    """Write the state of learners, together or in parts by each rank. Returns the hashes that are
    known."""
    hashes: dict[str, str] = {}
    whole: dict[str, Any] = {}
    for name, learner in learners.items():
        if not isinstance(learner, Sharded):
            whole[name] = learner.state_dict()
            continue
        folder = partial / SHARDS / name
        folder.mkdir(parents=True)
        written = learner.save_shards(folder)
        hashes |= {str(Path(SHARDS, name, file)): digest for file, digest in written.items()}
    # Serialize in memory first: on a full disk, torch's own writer reports no OSError.
    memory = io.BytesIO()
    torch.save(whole, memory)
    (partial / "learners.pt").write_bytes(memory.getbuffer())
    return hashes


def _save_policies(policies: Mapping[str, Policy], partial: Path, place: Path) -> dict[str, str]:
    """Write the policies, and once each the bases of adapters that only this run has.

    An adapter names its base by an absolute path, because transformers resolves a relative one from
    the current folder. Returns the hashes that are known.
    """
    hashes: dict[str, str] = {}
    for name, policy in policies.items():
        hashes |= _save_policy(policy, Path("policies", name), partial, place)
    return hashes


def _save_policy(policy: Policy, name: Path, partial: Path, place: Path) -> dict[str, str]:
    at, hashes = None, dict[str, str]()
    if policy.base is not None and policy.base.kept is not None:
        at = Path(BASES, policy.base.kept)
        if not (partial / at).exists():
            hashes = _save_base(policy.base, at, partial)
    policy.save(partial / name, base=str((place / at).absolute()) if at else None)
    return hashes


def _save_base(base: Base, at: Path, partial: Path) -> dict[str, str]:
    """Write a base that never changes, or link to it in the newest checkpoint that has it whole.

    The files of the earlier checkpoint are read and compared with its manifest, so that damage is
    not passed on. Returns the hashes that are known.
    """
    for earlier in kept(partial.parent):
        hashes = _recorded(earlier, at)
        if hashes and not any(_fault(earlier, *entry) for entry in hashes.items()):
            _link(earlier / at, partial / at)
            return hashes
    base.save(partial / at)
    return {}


def _recorded(place: Path, at: Path) -> dict[str, str]:
    """Return the hashes that a checkpoint's manifest records for the files of one folder."""
    try:
        hashes = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(hashes, dict):
        return {}
    return {name: known for name, known in hashes.items() if Path(name).parent == at}


def _link(source: Path, target: Path) -> None:
    """Make a folder of hard links to the files of another one, or of copies where it has to be."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        try:
            os.link(path, target / path.name)
        except OSError:  # the file system has no hard links, or the file has too many
            shutil.copy2(path, target / path.name)


def _save_frozen(frozen: Mapping[str, FrozenPolicy], partial: Path, place: Path) -> dict[str, str]:
    """Write policies that do not change. Returns the hashes of files that existed before.

    Full weights become hard links to the files of the previous checkpoint, so that they are on the
    disk once, and as long as any checkpoint has them. An adapter is small, and names the base of
    its own checkpoint.
    """
    hashes: dict[str, str] = {}
    for name, copy in frozen.items():
        target, source = partial / FROZEN / name, copy.written
        if source is None or not source.is_dir() or copy.policy.base is not None:
            hashes |= _save_policy(copy.policy, Path(FROZEN, name), partial, place)
            continue
        _link(source, target)
        hashes |= _recorded(source.parent.parent, Path(FROZEN, name))
    return hashes
