"""The GPU stream of a vLLM engine, on which every thread of its process computes with it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Compute on this stream during the context; None changes nothing.

    vLLM 0.32 computes on a stream of each thread, but copies sampled tokens after the work on the
    stream of its first step: the tokens of a step in another thread would be read before they are
    computed. The GPU first finishes the work that this thread started before the context, then the
    work of the context, then the work that this thread starts later.
    """
    if stream is None or (caller := torch.cuda.current_stream()) == stream:
        yield
        return
    stream.wait_stream(caller)
    with torch.cuda.stream(stream):
        yield
    caller.wait_stream(stream)
