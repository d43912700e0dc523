"""Content of a checkpoint: its copy in main memory, and its files."""

import copy
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selfplay.learner.checkpoint import FROZEN, fault_of, hashes_of, kept
from selfplay.models.lora import BASES
from selfplay.models.main_memory import in_main_memory
from selfplay.models.packaged import cached, is_packaged
from selfplay.models.policy import Base, Policy
from selfplay.run.hashing_file import HashingFile
from selfplay.run.run_folder import LEARNERS, POLICIES, STATE


@dataclass(frozen=True, kw_only=True)
class FrozenPolicy:
    """A policy that does not change from one checkpoint to the next, such as a snapshot."""

    policy: Policy
    """The frozen policy."""
    written: Path | None = None
    """Folder of the policy in the previous checkpoint."""


@dataclass(frozen=True, kw_only=True)
class CheckpointContent:
    """Everything that one checkpoint stores, except the parts that ranks have written themselves.

    `CheckpointWriter` makes it.
    """

    policies: Mapping[str, Policy]
    """The policies by name."""
    learners: Mapping[str, Any]
    """States of the trained objects of this process, by name."""
    frozen: Mapping[str, FrozenPolicy] = field(default_factory=dict)
    """Policies that do not change, by folder name."""
    state: str
    """The rest of the state, as JSON."""

    def copied(self) -> "CheckpointContent":
        """Return a copy in main memory, which training does not change.

        It has the trained weights and the state of the trained objects, and shares the frozen
        policies.
        """
        return replace(
            self,
            policies={name: policy.copied() for name, policy in self.policies.items()},
            learners=_copied(self.learners),
        )

    def write(self, partial: Path, place: Path) -> dict[str, str]:
        """Write everything into the folder `partial`, which will become `place`.

        Returns the SHA-256 of files by path in the folder: of files that were hashed while they
        were written, and of linked files, from the manifest of the earlier checkpoint. The small
        config files of policies that were written now are missing.
        """
        hashes = dict[str, str]()
        for name, policy in self.policies.items():
            hashes |= _save_policy(policy, Path(POLICIES, name), partial, place)
        for name, each in self.frozen.items():
            hashes |= _save_frozen(each, Path(FROZEN, name), partial, place)
        hashes[LEARNERS] = _save_learners(self.learners, partial / LEARNERS)
        with HashingFile(partial / STATE) as file:
            file.write(self.state.encode())
        return hashes | {STATE: file.sha256()}


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a nested state whose tensors are in main memory."""
    tensors = [tensor for _, tensor in named_tensors(state)]
    copies = {id(tensor): in_main_memory(tensor, copy=True) for tensor in tensors}
    return copy.deepcopy(dict(state), copies)


def named_tensors(
    state: Any, keys: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield all tensors of nested mappings and sequences, each with the keys that lead to it."""
    if isinstance(state, Tensor):
        yield keys, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from named_tensors(value, (*keys, str(key)))
    elif isinstance(state, list | tuple):
        for place, value in enumerate(state):
            yield from named_tensors(value, (*keys, str(place)))


def _save_learners(states: Mapping[str, Any], path: Path) -> str:
    """Write the states of trained objects; return the SHA-256 of the file."""
    with HashingFile(path) as file:
        try:
            torch.save(dict(states), file)
        except RuntimeError as error:
            raise file.error or error from None  # torch hides the error of a full disk
    return file.sha256()


def _save_policy(policy: Policy, name: Path, partial: Path, place: Path) -> dict[str, str]:
    """Write a policy.

    The base of its adapter is written too, if the base exists nowhere else and this checkpoint does
    not have it yet. An adapter names its base by an absolute path, because transformers resolves a
    relative one from the current folder, and knows no packaged models.
    """
    found, hashes = None, dict[str, str]()
    if policy.base is not None and policy.base.kept is not None:
        at = Path(BASES, policy.base.kept)
        if not (partial / at).exists():
            hashes = _save_base(policy.base, at, partial)
        found = place / at
    elif policy.base is not None and is_packaged(policy.base.source):
        found = cached(policy.base.source)
    base = str(found.absolute()) if found else None
    return hashes | _within(name, policy.save(partial / name, base=base))


def _save_base(base: Base, at: Path, partial: Path) -> dict[str, str]:
    """Write a base that never changes, or link to it in the newest checkpoint that has it whole.

    The files of the earlier checkpoint are read and compared with its manifest, so that damage is
    not passed on.
    """
    for earlier in kept(partial.parent):
        hashes = hashes_of(earlier, at)
        if hashes and not any(fault_of(earlier, *entry) for entry in hashes.items()):
            link_folder(earlier / at, partial / at)
            return hashes
    return _within(at, base.save(partial / at))


def _save_frozen(frozen: FrozenPolicy, name: Path, partial: Path, place: Path) -> dict[str, str]:
    """Write a policy that does not change.

    Full weights become hard links to the files of the previous checkpoint, so that they are on the
    disk only once. They stay there as long as any checkpoint has them. An adapter is small and is
    written again, because it names the base in its own checkpoint.
    """
    source = frozen.written
    if source is None or not source.is_dir() or frozen.policy.base is not None:
        return _save_policy(frozen.policy, name, partial, place)
    link_folder(source, partial / name)
    return hashes_of(source.parent.parent, name)


def link_folder(source: Path, target: Path) -> None:
    """Fill a new folder with hard links to all files of another folder."""
    target.mkdir(parents=True)
    for path in source.rglob("*"):  # a folder comes before its files
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir()
            continue
        try:
            os.link(path, place)
        except OSError:  # the file system has no hard links, or the file has too many
            shutil.copy2(path, place)


def _within(folder: Path, hashes: Mapping[str, str]) -> dict[str, str]:
    return {str(folder / name): digest for name, digest in hashes.items()}
