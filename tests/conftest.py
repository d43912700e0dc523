"""Fixtures that several test files share."""

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
    """Make the folder that the workers share, whose name they inherit from the first process, and
    choose a profile of hypothesis that measures no time."""
    if not hasattr(config, "workerinput"):
        os.environ[SHARED] = folder = tempfile.mkdtemp(prefix="selfplay-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    if find_spec("hypothesis"):  # the environment of vLLM has none
        from hypothesis import HealthCheck, settings

        # A busy machine may pause a test for seconds; no time is asserted.
        quiet = [HealthCheck.too_slow]
        settings.register_profile("busy", deadline=None, suppress_health_check=quiet)
        settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a GPU are skipped where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_collection_finish() -> None:
    """The modules and tests stay until the end, so that no later garbage collection visits them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Undo a change of the number of torch's threads, which slows the later tests."""
    yield
    torch.set_num_threads(1)


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the charts of reports, which take longer to draw than a small run takes."""
    monkeypatch.setattr("selfplay.run.report.run_report.draw", lambda chart: "<svg></svg>")


@pytest.fixture(scope="session")
def renderer() -> ChatRenderer:
    """The tiny tokenizer's token seam."""
    return ChatRenderer(build_tokenizer(["<think>", "</think>", "<answer>", "</answer>"]))


@pytest.fixture(scope="session")
def model(renderer: ChatRenderer) -> PreTrainedModel:
    """A small model with random weights, sharp enough that samples differ from noise."""
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
