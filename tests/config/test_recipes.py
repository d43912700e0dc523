"""Tests of recipes for GPUs: each pair of recipe and experiment in the docs is valid and fits."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from selfplay.cli.main import main
from selfplay.config import compose
from selfplay.engines.vllm import engine as vllm_engine
from selfplay.experiment.experiment import check
from selfplay.runtime.placement import check_devices
from tests.cli.test_plan import SEVEN
from tests.helpers.repository import ROOT

CLUSTERS = {
    "gpu_1_lora_7b": "gpus_1",
    "gpu_8_full_7b": "gpus_8",
    "gpu_8_colocated_7b": "gpus_8",
    "gpu_16_two_policies": "gpus_16",
}
"""The smallest cluster of each recipe."""


def listed_pairs() -> list[tuple[str, str]]:
    """Return the pairs of recipe and experiment in the table of the docs."""
    page = (ROOT / "docs/clusters.md").read_text()
    found = []
    for row in re.findall(r"^\| `(gpu_\w+)` \|.*$", page, re.MULTILINE):
        line = next(line for line in page.splitlines() if line.startswith(f"| `{row}` |"))
        found += [(row, name) for name in re.findall(r"`(\w+)`", line.split("|")[-2])]
    return found


PAIRS = listed_pairs()


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate eight GPUs and an installed vLLM for the check of a config."""
    fields = dict.fromkeys(("seed",))
    library = type("vllm", (), {"EngineArgs": type("EngineArgs", (), {})})
    library.EngineArgs.__dataclass_fields__ = fields  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(vllm_engine, "require_vllm", lambda **_: "0")
    monkeypatch.setattr(vllm_engine, "import_vllm", lambda: library)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the override of a folder with the config of a 7B model, and write a file of questions.

    The config replaces every model of the experiments.
    """
    monkeypatch.chdir(tmp_path)
    Path("questions.jsonl").write_text('{"question": "7 + 5?", "answer": "12"}\n')
    sizes = {**SEVEN, "max_position_embeddings": 32_768}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    return f"policy.model={tmp_path}"


def test_every_paper_has_a_recipe_or_a_reason() -> None:
    page = (ROOT / "docs/clusters.md").read_text()
    papers = {path.stem for path in (ROOT / "configs/experiment/paper").glob("*.yaml")}
    without = papers - {name for _, name in PAIRS}
    assert {name for name in papers if f"`{name}` has no recipe" in page} == without


def test_every_recipe_is_listed_with_an_experiment() -> None:
    assert {recipe for recipe, _ in PAIRS} == set(CLUSTERS) == set(compose.choices("recipe"))
    assert len(PAIRS) >= 15


@pytest.mark.parametrize(("recipe", "name"), PAIRS)
def test_a_pair_composes_and_is_valid(
    recipe: str, name: str, model: str, gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = [f"+experiment=paper/{name}", f"+recipe={recipe}"]
    config: dict[str, Any] = compose.load([*pair, model])
    assert config["engine"]["_target_"].endswith("VLLMEngine")
    assert config["run"]["experiment"] == f"paper/{name}"
    check(config)
    if config["runtime"]["_target_"].endswith("RayRuntime"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        check_devices(config)  # where CUDA is available, the device auto is a GPU
    assert bool(config["policy"].get("lora")) == (recipe == "gpu_1_lora_7b")
    if name == "absolute_zero_7b":  # the other order: the experiment's own settings win
        other = compose.load([*pair[::-1], model])
        assert (config["engine"]["max_rows"], other["engine"]["max_rows"]) == (256, 128)
        check(other)


@pytest.mark.parametrize(("recipe", "name"), PAIRS)
def test_a_pair_fits_its_devices(
    recipe: str, name: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [f"+experiment=paper/{name}", f"+recipe={recipe}", f"cluster={CLUSTERS[recipe]}"]
    code = main(["plan", *asked, model, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    found = json.loads(captured.out)
    assert found["fits"] and found["cluster"]["devices"] == int(re.findall(r"\d+", recipe)[0])
    assert found["cluster"]["checkpointing"] and found["cluster"]["precision"] == "mixed"
