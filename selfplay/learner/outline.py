"""Sends learners from the rank that loads the models to the other ranks, without the parameters.

If every rank of a machine loaded the model, its main memory would have to hold as many whole models
as it has ranks.
"""

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Parameter

from selfplay.learner.activation_checkpointing import original_class, recomputed_class
from selfplay.learner.learner import Learner


class OutlinePickler(pickle.Pickler):
    """Pickles modules with their buffers and attributes, and each parameter as its shape and type.

    A parameter that several modules share is one parameter in the copy too.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Parameter):
            return _empty, (tuple(obj.shape), obj.dtype, obj.requires_grad)
        if isinstance(obj, type) and (kind := original_class(obj)) is not None:
            return recomputed_class, (kind,)
        return NotImplemented


def _empty(shape: tuple[int, ...], dtype: torch.dtype, learns: bool) -> Parameter:
    """Return a parameter without data."""
    return Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=learns)


def outline(learners: Mapping[str, Learner]) -> bytes:
    """Return learners as bytes; `pickle.loads` makes learners with parameters without data."""
    written = io.BytesIO()
    OutlinePickler(written, protocol=pickle.HIGHEST_PROTOCOL).dump(learners)
    return written.getvalue()


def shared(make: Callable[[], Mapping[str, Learner]]) -> Mapping[str, Learner]:
    """Return the learners that the first rank makes, on other ranks without their parameters' data.

    All ranks call this together. `fsdp.spread` then gives each rank its part of the data. If `make`
    fails, the first rank raises its error, and the other ranks raise RuntimeError.
    """
    first = dist.get_rank() == 0
    sent: list[Any] = [None]
    try:
        learners = make() if first else {}
        if first:
            sent = [outline(learners)]
    finally:  # after an error too, because the other ranks wait
        dist.broadcast_object_list(sent, src=0)
    if first:
        return learners
    if sent[0] is None:
        raise RuntimeError("the first rank could not load the learners")
    received: Mapping[str, Learner] = pickle.loads(sent[0])
    return received
