"""The GPU stream of a vLLM engine, on which every thread of its process computes with it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Compute on this stream during the context; None changes nothing.

    vLLM 0.32 takes a stream for each thread, but copies sampled tokens after the stream of its
    first step: a step in another thread would be read before it is computed. Work of this thread
    that came before the context is done before that in it, which is done before what follows.
    """
    if stream is None or (caller := torch.cuda.current_stream()) == stream:
        yield
        return
    stream.wait_stream(caller)
    with torch.cuda.stream(stream):
        yield
    caller.wait_stream(stream)
