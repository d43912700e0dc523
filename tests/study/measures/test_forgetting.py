"""The likelihood of held-out text: worked out by hand, over windows, and of whole runs."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfplay.errors import ConfigError
from selfplay.models.policy import load_policy
from selfplay.models.tiny import build_tokenizer
from selfplay.study.measures.forgetting import (
    HeldOutText,
    likelihoods,
    read_text,
    result,
    windows_of,
)
from tests.helpers.builders import llama
from tests.helpers.command_process import SMOKE, finished, one_line, run

ASKED = ("--tokens", "96", "--window", "16")


def test_the_likelihood_is_that_of_each_token_after_the_earlier_ones() -> None:
    model = llama()
    windows = [[1, 5, 9, 2], [7, 7, 3, 20], [4, 0, 11, 6]]
    found = likelihoods(model, windows)
    for window, value in zip(windows, found, strict=True):
        by_hand = []
        for place in range(1, len(window)):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([window[:place]])).logits[0, -1].double()
            by_hand.append(math.log(float(logits.softmax(-1)[window[place]])))
        assert value == pytest.approx(sum(by_hand) / 3, rel=1e-5)


def test_a_model_that_knows_nothing_has_the_likelihood_of_a_guess() -> None:
    model = llama()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert likelihoods(model, [[1, 2, 3], [4, 5, 6]]) == pytest.approx(-math.log(24), rel=1e-6)


def test_many_windows_are_scored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = [[number, number + 1, number + 2] for number in range(7)]
    whole = likelihoods(llama(), windows)
    monkeypatch.setattr("selfplay.study.measures.forgetting.LOGITS", 2 * 3 * 24)
    np.testing.assert_allclose(likelihoods(llama(), windows), whole, rtol=1e-6)


def test_windows_lie_at_equal_distances() -> None:
    tokenizer = build_tokenizer([])
    text = HeldOutText(source="letters", text="abcdefghijklmnopqrstuvwxyz")
    windows = windows_of(text, tokenizer, tokens=9, window=3)
    assert [tokenizer.decode(window) for window in windows] == ["abc", "ijk", "rst"]
    assert len(windows_of(text, tokenizer, tokens=10_000, window=3)) == 8  # as many as fit
    for tokens, window, said in ((2, 1, "2 tokens or more"), (60, 20, "letters has 26 tokens; 40")):
        with pytest.raises(ConfigError, match=said):
            windows_of(text, tokenizer, tokens=tokens, window=window)


def test_the_default_text_is_that_of_this_python() -> None:
    text = read_text()
    assert text.source.startswith("pydoc_data.topics, Python 3.")
    assert len(text.text) > 100_000 and "The following" in text.text
    assert text.sha256 == read_text().sha256


def test_a_file_that_is_not_a_text_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\xff\xfe\x00")
    for name, said in (("picture", "not UTF-8"), ("absent", "No such file"), (".", "directory")):
        with pytest.raises(ConfigError, match=said) as caught:
            read_text(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_the_change_is_paired_by_window() -> None:
    """Windows differ from each other by far more than training changes each of them."""
    before = np.linspace(-8.0, -2.0, 32)
    moved = -0.1 - 0.01 * np.cos(np.arange(32))
    scores = {"base": {0: before, 40: before + moved}}
    found = result(Path("runs/made"), scores, {"text": "made"})
    first, last, change = found.estimates
    assert (first.value, last.value) == pytest.approx((-5.0, -5.0 + moved.mean()))
    assert change.value == pytest.approx(moved.mean()) and change.unit == "window"
    assert change.low < -0.1 < change.high < 0 and change.high - change.low < 0.02
    assert first.high - first.low > 0.5
    row = found.tables[0].to_json()["rows"][1]
    assert row["perplexity"] == pytest.approx(math.exp(-last.value)) and row["step"] == 40


def test_no_change_is_the_same_in_every_window() -> None:
    before = np.linspace(-8.0, -2.0, 12)
    found = result(Path("runs/made"), {"base": {0: before, 1: before}}, {"text": "made"})
    change = found.estimates[-1]
    assert (change.low, change.value, change.high) == (0.0, 0.0, 0.0)
    assert "the same in every window" in change.notes


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "held_out.txt"
    file.write_text("It was the best of times, it was the worst of times. " * 20)
    return file


def study(folder: Path, *arguments: str | Path) -> dict[str, Any]:
    words = [str(word) for word in ("study", "forgetting", folder, "--json", *arguments)]
    outcome = run(*words, cwd=folder)
    assert outcome.code == 0, outcome.err
    output: dict[str, Any] = json.loads(outcome.out)
    return output


def test_a_run_is_measured_at_every_checkpoint(text: Path) -> None:
    folder = finished()
    output = study(folder, "--all", "--text", text, *ASKED)
    rows = output["tables"][0]["rows"]
    steps = [row["step"] for row in rows]
    assert steps[0] == 0 and len(steps) == len(set(steps)) > 1
    place = folder / f"checkpoints/{steps[-1]:06d}/policies/base"
    policy = load_policy("base", model=str(place))
    windows = windows_of(read_text(text), policy.renderer.tokenizer, tokens=96, window=16)
    assert rows[-1]["log-likelihood"] == pytest.approx(likelihoods(policy.model, windows).mean())
    change = output["estimates"][-1]
    assert change["name"] == "change of the log-likelihood, base" and change["value"] != 0
    assert change["value"] == pytest.approx(rows[-1]["log-likelihood"] - rows[0]["log-likelihood"])
    assert output["params"]["windows"] == {"base": 6}
    outcome = run("study", "forgetting", str(folder), "--window", "100000", cwd=folder)
    assert outcome.code == 2 and "--window 100000 is more than the 512" in one_line(outcome.err)


def test_an_adapter_is_measured_over_its_base(text: Path, tmp_path: Path) -> None:
    finished()  # makes the warm start of the run below
    adapters = ("population=adapters", "policy.lora.rank=4", "run.steps=1", "learner.lr=1e-2")
    outcome = run("train", SMOKE, *adapters, "run.name=lora", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    output = study(tmp_path / "runs/lora", "--text", text, *ASKED)
    rows = {(row["policy"], row["step"]): row for row in output["tables"][0]["rows"]}
    assert rows["proposer", 0]["log-likelihood"] == rows["solver", 0]["log-likelihood"]
    for name in ("proposer", "solver"):
        place = tmp_path / f"runs/lora/checkpoints/000001/policies/{name}"
        policy = load_policy(name, model=str(place))
        windows = windows_of(read_text(text), policy.renderer.tokenizer, tokens=96, window=16)
        expected = likelihoods(policy.model, windows).mean()
        assert rows[name, 1]["log-likelihood"] == pytest.approx(expected, rel=1e-4)
        assert rows[name, 1]["change"] != 0
