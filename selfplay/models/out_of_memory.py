"""One line for a GPU that is full, with the keys of the config that need less memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from selfplay.errors import RunError

QUOTED = 3
"""Number of sentences of torch's error that are quoted; the others advise on its allocator."""


@contextmanager
def explained(what: str, remedy: str) -> Iterator[None]:
    """Raise a RunError in place of torch's error of a full GPU, which a repetition would not mend.

    Args:
        what: Name of the work, for the error.
        remedy: Keys to change, as an imperative.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        said = ". ".join(" ".join(str(error).split()).split(". ")[:QUOTED])
        raise RunError(f"{what}: {said}; {remedy}") from error
