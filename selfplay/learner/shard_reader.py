"""Reader of torch.distributed.checkpoint folders that runs no code from them.

Torch unpickles the file `.metadata` of such a folder, and the entries that are not tensors; a
pickle can call any function. Here `.metadata` may name only the few classes that describe tensors
and files, and an entry that is not a tensor is refused.
"""

import io
import pathlib
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint import filesystem as files
from torch.distributed.checkpoint import metadata as kinds
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.serialization import _get_layout

from selfplay.errors import RunError

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
"""All classes that a description of tensors consists of."""


class _Unpickler(pickle.Unpickler):
    """Reads a description of tensors; raises UnpicklingError for any other class."""

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
        """The description of the folder; raises RunError if the file holds anything else."""
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
