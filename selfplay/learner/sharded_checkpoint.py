"""State of a learner without its weights, written and read by each rank in part.

The files are those of torch.distributed.checkpoint. Each rank writes its part, and any number of
ranks reads the parts that they need, so that no process ever holds a whole optimizer.

Torch unpickles the file `.metadata` of such a folder, and the entries that are not tensors; a
pickle can call any function. This module therefore has its own reader, which runs no code from the
folder: `.metadata` may name only the few classes that describe tensors and files, and an entry that
is not a tensor is refused.
"""

import io
import os
import pathlib
import pickle
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint import filesystem as files
from torch.distributed.checkpoint import load as read
from torch.distributed.checkpoint import metadata as kinds
from torch.distributed.checkpoint import save as write
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.serialization import _get_layout

from selfplay.errors import RunError, one_line
from selfplay.learner.fsdp import learned, like
from selfplay.learner.learner import Learner, ema_pairs, place_steps
from selfplay.models.main_memory import in_main_memory
from selfplay.run.hashing_file import HashingFile

_KNOWN: dict[tuple[str, str], Any] = {
    **{
        (kinds.__name__, name): getattr(kinds, name)
        for name in (
            "Metadata",
            "TensorStorageMetadata",
            "TensorProperties",
            "ChunkStorageMetadata",
            "MetadataIndex",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        )
    },
    (files.__name__, "_StorageInfo"): files._StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _get_layout,
    **{
        (module, name): getattr(pathlib, name)
        for module in ("pathlib", "pathlib._local")
        for name in ("Path", "PosixPath", "PurePosixPath")
    },
}
"""All classes in a description of tensors."""


class _Unpickler(pickle.Unpickler):
    """Reads a description of tensors. Raises UnpicklingError for any other class."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class of a name, if the list of allowed classes has it."""
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}") from None


class PlainReader(FileSystemReader):
    """Reads tensors, and refuses a folder that holds anything else."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the description of the folder. Raises RunError if the file holds anything else."""
        path = pathlib.Path(str(self._get_metadata_path(kwargs.get("rank"))))
        content = io.BytesIO(path.read_bytes())
        try:
            found = _Unpickler(content).load()
        except Exception as error:  # a damaged pickle can raise nearly anything
            raise _refused(path, str(error)) from error
        if not isinstance(found, Metadata):
            raise _refused(path, "it is another object")
        tables = (found.state_dict_metadata, found.storage_data)
        if not all(isinstance(table, dict) for table in tables):
            raise _refused(path, "its tables are missing")
        for name, entry in found.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise _refused(path, f"{name} is not a tensor")
        for place in tables[1].values():
            name = str(place.relative_path)
            if pathlib.PurePosixPath(name).name != name or place.transform_descriptors:
                raise _refused(path, f"it names the file {name!r}")
        described = getattr(found, "storage_meta", None) or kinds.StorageMeta()
        described.load_id = self.load_id
        found.storage_meta = described
        return found


def _refused(path: pathlib.Path, why: str) -> RunError:
    return RunError(f"{path} is not a description of tensors: {why}; it is not read")


class _HashingFiles(files.FileSystem):
    """Files of a disk that are hashed while they are written."""

    def __init__(self) -> None:
        self.hashes: dict[str, str] = {}
        """SHA-256 of each file that was written, by name."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase]:
        """Open a file to write it from its beginning to its end."""
        if mode != "wb":
            raise ValueError(f"a file is hashed while it is written, and not in mode {mode!r}")
        with HashingFile(Path(path)) as file:
            yield file
        self.hashes[Path(path).name] = file.sha256()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Rename a file that was written."""
        super().rename(path, new_path)
        self.hashes[Path(new_path).name] = self.hashes.pop(Path(path).name)


STEPS = "steps"
"""Name of the number of optimizer steps in the saved state."""
SKIPPED = "skipped"
"""Name of the number of optimizer steps that were skipped in a row."""
ADAM = "optimizer"
"""Beginning of the names of AdamW's tensors: optimizer/PARAMETER/KEY."""
EMA = "ema"
"""Beginning of the names of averaged weights: ema/PARAMETER."""


def parts(learner: Learner) -> dict[str, Tensor]:
    """Return this rank's parts of the state by name; they are the learner's own tensors."""
    state: dict[str, Tensor] = {STEPS: torch.tensor(learner.steps)}
    state[SKIPPED] = torch.tensor(learner.skipped)
    for name, parameter in learned(learner.model).items():
        for key, value in learner.optimizer.state.get(parameter, {}).items():
            state[f"{ADAM}/{name}/{key}"] = value
    return state | {f"{EMA}/{name}": mean for name, mean in _ema(learner).items()}


def copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of these parts in main memory, which training does not change."""
    return {name: in_main_memory(tensor, copy=True) for name, tensor in state.items()}


def save(
    state: Mapping[str, Tensor], folder: Path, group: dist.ProcessGroup | None = None
) -> dict[str, str]:
    """Write this rank's parts. All ranks save together.

    Args:
        state: The parts.
        folder: An existing folder, the same for all ranks.
        group: Process group of the calling threads; None: the one of all other work.

    Returns:
        The SHA-256 of this rank's files by name.
    Raises:
        RunError: If the files cannot be written.
    """
    writer = FileSystemWriter(folder)
    writer.fs = written = _HashingFiles()
    alone = not dist.is_initialized()
    try:
        write(dict(state), storage_writer=writer, process_group=group, no_dist=alone)
    except (CheckpointException, OSError) as error:
        raise RunError(f"cannot write to {folder}: {_cause(error)}") from error
    return written.hashes


def load(learner: Learner, folder: Path) -> None:
    """Restore a saved state, which any number of ranks wrote. All ranks load together.

    Raises RunError if the folder cannot be read, or holds anything else than tensors of parameters
    that this learner trains.
    """
    try:
        known: Mapping[str, Any] = PlainReader(folder).read_metadata().state_dict_metadata
    except (CheckpointException, OSError) as error:
        raise RunError(f"cannot read {folder}: {_cause(error)}; every rank must see it") from error
    parameters = learned(learner.model)
    state: dict[str, Tensor] = {
        name: torch.tensor(0) for name in (STEPS, SKIPPED) if name in (STEPS, *known)
    }
    for place, entry in known.items():
        kind, _, rest = place.partition("/")
        if kind == ADAM:
            name, _, key = rest.rpartition("/")
            if name not in parameters:
                raise RunError(
                    f"{folder}: it has an optimizer of {name}, which is not trained here; resume "
                    "with the policy that the run began with"
                )
            pattern = parameters[name]
            cut = tuple(entry.size) == tuple(pattern.shape)
            made = torch.zeros_like(pattern) if cut else torch.zeros(entry.size)
            state[place] = made.detach().to(entry.properties.dtype)
    state |= {f"{EMA}/{name}": mean for name, mean in _ema(learner).items()}
    try:
        read(state, storage_reader=PlainReader(folder), no_dist=not dist.is_initialized())
    except (CheckpointException, OSError, RuntimeError) as error:
        raise RunError(f"cannot read {folder}: {_cause(error)}") from error
    learner.steps, learner.skipped = int(state[STEPS]), int(state.get(SKIPPED, 0))
    learner.optimizer.state.clear()
    for place, value in state.items():
        kind, _, rest = place.partition("/")
        if kind == ADAM:
            name, _, key = rest.rpartition("/")
            learner.optimizer.state[parameters[name]][key] = value
    place_steps(learner.optimizer)


def take(learner: Learner, state: Mapping[str, Any]) -> None:
    """Restore the state of a learner of one process, sharded like this learner's tensors."""
    learner.steps, learner.skipped = state["steps"], state.get("skipped", 0)
    learner.optimizer.state.clear()
    for number, values in state["optimizer"]["state"].items():
        parameter = learner.parameters[int(number)]
        learner.optimizer.state[parameter] = {
            # A copy, because a shard that is a view would keep the whole tensor in memory.
            key: (like(parameter, value) if value.shape == parameter.shape else value).clone()
            for key, value in values.items()
        }
    place_steps(learner.optimizer)
    if "ema" in state:
        with torch.no_grad():
            for name, mean in _ema(learner).items():
                mean.copy_(like(mean, state["ema"][name]))


def _ema(learner: Learner) -> dict[str, Tensor]:
    if not learner.keeps_average:
        return {}
    return {name: mean for name, mean, _ in ema_pairs(learner.references.average, learner.model)}


def _cause(error: BaseException) -> str:
    """Return one line with the error of the first rank that failed."""
    failures = getattr(error, "failures", None)
    inner = next(iter(failures.values()))[0] if failures else error
    return one_line(inner)
