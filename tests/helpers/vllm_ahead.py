"""vLLM's async scheduling on a CPU, where vLLM turns it off and torch has no streams.

vLLM's own code schedules the steps, queues them, and prepares each step before it has read the
tokens of the previous step. Only the streams of a GPU are missing: a step is computed at once when
it is scheduled, and its tokens are read one step later.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from selfplay.engines.vllm.compat import import_vllm


class Stream:
    """A replacement for `torch.cuda.Stream` and `torch.cuda.Event`, with nothing to wait for.

    A step that a stream records or waits for was computed before the call.
    """

    device = torch.device("cpu")

    def __init__(self, *args: Any, **settings: Any) -> None: ...
    def record(self, *args: Any) -> None: ...
    def synchronize(self) -> None: ...
    def wait_stream(self, other: "Stream") -> None: ...


@contextmanager
def ahead() -> Iterator[None]:
    """Let engines that start in the context keep the async scheduling that vLLM chose at first."""
    import_vllm()
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def kept(config: Any) -> None:
        chosen = config.scheduler_config.async_scheduling
        check(config)
        config.scheduler_config.async_scheduling = chosen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuPlatform, "check_and_update_config", staticmethod(kept))
        patch.setattr(torch.cuda, "Stream", Stream)
        patch.setattr(torch.cuda, "Event", Stream)
        patch.setattr(torch.cuda, "current_stream", Stream)
        patch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        yield
