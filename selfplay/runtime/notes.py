"""Lines for the user about the processes of a runtime, at the time when something happens."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from selfplay.config.instantiate import TARGET
from selfplay.errors import printable

Note: TypeAlias = Callable[[str], None]
"""Function that shows a line to the user."""
VLLM = "selfplay.engines.vllm."
"""Beginning of the name of vLLM's engine in a config."""


def print_note(line: str) -> None:
    """Print a line to standard error: the display of a run keeps such lines above its panel."""
    print(printable(line), file=sys.stderr, flush=True)


def slow_start(config: Mapping[str, Any], *, gpus: float) -> str | None:
    """Return a line about the first start of the workers; None if their engine does not compile.

    The engine prints a line too, but in a worker that line goes to a log file.

    Args:
        config: Config of the run.
        gpus: GPUs of each worker; without one vLLM does not compile.
    """
    engine = config.get("engine", {})
    if not (gpus and str(engine.get(TARGET)).startswith(VLLM)) or engine.get("eager"):
        return None
    return (
        "runtime: vLLM compiles its model at the first start of a worker; this takes minutes "
        "without output (engine.eager=true leaves it out)"
    )
