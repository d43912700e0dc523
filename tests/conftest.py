"""Hooks of pytest, and fixtures that several test files share."""

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from transformers import PreTrainedModel

from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_model, build_tokenizer
from tests.helpers.repository import SHARED

torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder that the workers share, and choose a hypothesis profile without time limits.

    The workers inherit the folder's name from the first process.
    """
    if not hasattr(config, "workerinput"):
        os.environ[SHARED] = folder = tempfile.mkdtemp(prefix="selfplay-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    if find_spec("hypothesis"):  # the environment of vLLM has no hypothesis
        from hypothesis import HealthCheck, settings

        # A busy machine may pause a test for seconds, so hypothesis does not check times.
        quiet = [HealthCheck.too_slow]
        settings.register_profile("busy", deadline=None, suppress_health_check=quiet)
        settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need a GPU if there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_collection_finish() -> None:
    """Exclude the modules and tests, which stay until the end, from later garbage collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Set torch to one thread again after each test; more threads slow the later tests."""
    yield
    torch.set_num_threads(1)


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the charts of reports, because drawing them takes longer than a small run."""
    monkeypatch.setattr("selfplay.run.report.run_report.draw", lambda chart: "<svg></svg>")


@pytest.fixture(scope="session")
def renderer() -> ChatRenderer:
    """Return a renderer with the tiny tokenizer."""
    return ChatRenderer(build_tokenizer(["<think>", "</think>", "<answer>", "</answer>"]))


@pytest.fixture(scope="session")
def model(renderer: ChatRenderer) -> PreTrainedModel:
    """Return a small random model with sharp distributions, so that samples are not only noise."""
    made = build_model(
        len(renderer.tokenizer),
        seed=0,
        hidden=32,
        layers=2,
        heads=2,
        intermediate=64,
        positions=256,
    )
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)
    return made.eval()
