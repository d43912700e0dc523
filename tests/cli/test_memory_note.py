"""Tests of the line about missing memory that `selfplay train` prints before it loads models."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from selfplay.cli.main import main
from selfplay.cli.plan import memory_note
from selfplay.config.compose import load
from tests.cli.test_plan import SEVEN

PAPER = "+experiment=paper/absolute_zero_7b"


@pytest.fixture
def seven(tmp_path: Path) -> str:
    """Return the override of a model folder that has only the config of a 7B model."""
    (tmp_path / "config.json").write_text(json.dumps(SEVEN))
    return f"policy.model={tmp_path}"


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch report one H100."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    size = SimpleNamespace(total_memory=80 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: size)


@pytest.mark.usefixtures("one_gpu")
def test_all_weights_of_7b_do_not_fit_and_an_adapter_does(seven: str) -> None:
    line = memory_note(load([PAPER, seven]))
    assert line is not None and "learning needs 139.5 GB of the 73.6 GB per device" in line
    assert memory_note(load([PAPER, "+recipe=gpu_1_lora_7b", seven])) is None
    assert memory_note(load(["+experiment=tiny/kuhn"])) is None


@pytest.mark.usefixtures("one_gpu")
def test_a_config_without_a_plan_has_no_line(tmp_path: Path) -> None:
    assert memory_note(load([PAPER, f"policy.model={tmp_path / 'nothing'}"])) is None


@pytest.mark.usefixtures("one_gpu")
def test_a_fault_of_the_plan_is_a_line_and_no_error(
    seven: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("selfplay.cli.plan.members", broken)
    line = memory_note(load([PAPER, seven]))
    assert line is not None and line.endswith("ZeroDivisionError: division by zero")


def test_without_a_gpu_there_is_no_line(seven: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert memory_note(load([PAPER, seven])) is None


@pytest.mark.usefixtures("one_gpu")
def test_train_prints_the_line_before_it_loads_models(
    seven: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", PAPER, seven, f"run.folder={tmp_path / 'runs'}"]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    notes = [number for number, line in enumerate(lines) if "for lack of memory" in line]
    failed = [number for number, line in enumerate(lines) if "cannot load model" in line]
    assert notes and failed and notes[0] < failed[0]
