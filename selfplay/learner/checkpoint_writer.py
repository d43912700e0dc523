"""Writes checkpoints: completely or not at all, in the calling thread or in another thread."""

import functools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from selfplay.credit import Stateful
from selfplay.errors import DivergedError, RunError
from selfplay.learner import Sharded
from selfplay.learner.checkpoint import (
    ASIDE,
    MANIFEST,
    SHARDS,
    WRITERS,
    WRITERS_LOCK,
    before,
    recover,
)
from selfplay.learner.checkpoint_content import CheckpointContent, FrozenPolicy, named_tensors
from selfplay.models.policy import Policy
from selfplay.run.directory import reporting_disk, sync
from selfplay.run.files import sha256
from selfplay.run.run_folder import checkpoints_in, step_of


class CheckpointWriter:
    """Writes the checkpoints of a run, one at a time.

    `Trainer` makes it. With `background`, `save` only copies the state to main memory, and a thread
    writes the copy while training goes on. The next `save` waits for that thread, so that there is
    one copy at most. Every function of `checkpoint` that reads in the folder waits for it too.
    """

    def __init__(self, folder: Path, *, background: bool = False) -> None:
        """Args:
        folder: Folder of the checkpoints.
        background: True to write in a thread.
        """
        self.folder, self.background = folder, background
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def save(
        self,
        *,
        step: int,
        policies: Mapping[str, Policy],
        learners: Mapping[str, Stateful],
        state: Mapping[str, Any],
        keep: int,
        spare: int | None = None,
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> Path:
        """Write `folder/<step>`, and keep only the newest `keep` checkpoints, this one included.

        Checkpoints of later steps are not counted, and stay. With `spare`, the newest checkpoint up
        to that step and all later ones stay too. Returns the folder; with `background` it exists
        only after `wait`.

        Everything is written into a partial folder that is then renamed, so that a kill leaves
        either the old state or the new one. A checkpoint that already exists is set aside before
        the renaming, and removed only after it. The manifest with the hash of every file is written
        last. Ranks write their parts before this method returns. With `background` they only copy
        their parts before, and write the copies while training goes on.

        Raises DivergedError, and writes nothing, if a trained weight (of a policy or of a credit
        method) is not finite: a run cannot continue from such weights. Raises the error of the
        previous write in the thread.
        """
        self.wait()
        for learner in learners.values():
            if isinstance(learner, Sharded):
                learner.fetch_weights()
        _refuse_broken(self.folder, step, policies, learners)
        place = self.folder / f"{step:06d}"
        partial = self.folder / f".{place.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        recover(self.folder)
        with self._cleared(partial):
            partial.mkdir(parents=True)
            shards = _save_shards(learners, partial, background=self.background)
            versions = {name: policy.version for name, policy in policies.items()}
            content = CheckpointContent(
                policies=policies,
                learners={
                    name: learner.state_dict()
                    for name, learner in learners.items()
                    if not isinstance(learner, Sharded)
                },
                frozen=frozen or {},
                state=json.dumps({"step": step, "versions": versions, **state}),
            )
            if self.background:
                content = content.copied()
        write = functools.partial(self._write, content, partial, place, shards, keep, spare)
        if self.background:
            self._start(write)
        else:
            write()
        return place

    def wait(self) -> None:
        """Wait for the write in progress. Raises its error."""
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise the error of a write that has failed; do not wait."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _start(self, write: Callable[[], None]) -> None:
        """Write in a thread."""
        # A daemon thread does not keep the process alive: a second interrupt acts like a kill, and
        # the old checkpoint stays.
        thread = Thread(target=self._try, args=(write,), name="checkpoint", daemon=True)
        with WRITERS_LOCK:
            WRITERS[self.folder.resolve()] = self._thread = thread
            thread.start()

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:  # `wait` and `check` raise it in the training loop
            self._error = error

    def _write(
        self,
        content: CheckpointContent,
        partial: Path,
        place: Path,
        shards: Callable[[], Mapping[str, str]],
        keep: int,
        spare: int | None,
    ) -> None:
        """Write the files and the manifest, put the folder in its place, and remove older ones.

        `shards` waits for the files that ranks write, and returns their hashes.
        """
        aside = self.folder / f".{place.name}{ASIDE}"
        try:
            with self._cleared(partial):
                written = content.write(partial, place)
                write_manifest(partial, {**written, **shards()})
                for path in (*partial.rglob("*"), partial):
                    sync(path)
                if place.exists():
                    place.rename(aside)
                partial.rename(place)
                sync(self.folder)
        finally:
            recover(self.folder)
        self.remove_older(step_of(place), keep, spare)

    def remove_older(self, step: int, keep: int, spare: int | None = None) -> None:
        """Keep only the newest `keep` checkpoints up to a step, and what `spare` names (`save`)."""
        # A checkpoint of a later step is not counted: the run resumed from an older one because it
        # is damaged, or a rollback is about to remove it.
        done = [path for path in checkpoints_in(self.folder) if step_of(path) <= step]
        spared = [step_of(path) for path in done if spare is not None and step_of(path) <= spare]
        with reporting_disk(self.folder):
            for old in reversed(done[keep:]):
                if not spared or step_of(old) < max(spared):
                    shutil.rmtree(old)

    @contextmanager
    def _cleared(self, partial: Path) -> Iterator[None]:
        """Remove the partial folder after an error, and report a full disk in one line."""
        with reporting_disk(self.folder):
            try:
                yield
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise


def _save_shards(
    learners: Mapping[str, Stateful], partial: Path, *, background: bool
) -> Callable[[], dict[str, str]]:
    """Let ranks write their parts of the state; with `background` they only begin to write copies.

    Returns a function that waits for the files and returns their hashes.
    """
    written: dict[Path, Callable[[], Mapping[str, str]]] = {}
    for name, learner in learners.items():
        if isinstance(learner, Sharded):
            folder = Path(SHARDS, name)
            (partial / folder).mkdir(parents=True)
            if background:
                written[folder] = learner.begin_shards(partial / folder)
            else:
                written[folder] = functools.partial(dict, learner.save_shards(partial / folder))
    return lambda: {
        str(folder / file): digest
        for folder, wait in written.items()
        for file, digest in wait().items()
    }


def write_manifest(partial: Path, known: Mapping[str, str]) -> None:
    """Write the manifest with the SHA-256 of all files of a folder.

    Args:
        partial: The folder.
        known: SHA-256 by path in the folder; a file that is not listed is read and hashed.
    Raises:
        RunError: If a listed file does not exist.
    """
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
            for keys, value in named_tensors(learner.state_dict()):
                # An optimizer's squares of large gradients may be infinite, the weights finite.
                if "optimizer" not in keys and not _finite(value):
                    yield f"{name}: {'.'.join(keys)}"


def _finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())
