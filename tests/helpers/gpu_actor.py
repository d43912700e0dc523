"""An actor for tests of placement, whose process imports this module and little else."""

import os


class Seeing:
    """An actor that returns the GPUs that it sees, and its priority."""

    def visible(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def priority(self) -> int:
        return os.nice(0)
