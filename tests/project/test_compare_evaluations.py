"""The script that compares the evaluations of sets of runs, on summaries with known means."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.helpers.repository import ROOT

main = runpy.run_path(str(ROOT / "scripts/compare_evaluations.py"))["main"]


def compare(monkeypatch: pytest.MonkeyPatch, *sets: str) -> None:
    monkeypatch.setattr(sys, "argv", ["compare_evaluations.py", *sets])
    main()


def write(folder: Path, seed: int, after: float) -> None:
    folder.mkdir()
    found = {"before": {"accuracy": 0.1}, "after": {"accuracy": after, "sum/accuracy": after}}
    summary = {"seed": seed, "evaluations": {"held_out": found}}
    (folder / "summary.json").write_text(json.dumps(summary))


def test_the_script_compares_sets_of_runs_by_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, (method, control) in enumerate([(0.5, 0.3), (0.6, 0.5), (0.7, 0.4)]):
        write(tmp_path / f"method_{seed}", seed, method)
        write(tmp_path / f"control_{seed}", seed, control)
    sets = [f"{name}={tmp_path}/{name}_*" for name in ("method", "control")]
    compare(monkeypatch, *sets)
    printed = capsys.readouterr().out
    # The standard deviations are 0.1, and 4.303 * 0.1 / sqrt(3) is 0.248.
    assert "method: 0.100 (0.100 to 0.100; 0.100, 0.100, 0.100) -> " in printed
    assert "-> 0.600 (0.352 to 0.848; 0.500, 0.600, 0.700), gain 0.500 (0.252 to" in printed
    assert "control less method, after training: -0.200 (-0.448 to 0.048; -0.2" in printed
    assert "sum/" not in printed
    write(tmp_path / "other_3", 3, 0.5)
    write(tmp_path / "method_again", 2, 0.5)
    for wrong, said in (
        ([sets[1], f"o={tmp_path}/other_*"], "seeds are not those of control"),
        ([sets[0]], "two runs have seed 2"),
        (["m=nowhere"], "no run there"),
        (["m"], "NAME=RUNS"),
    ):
        with pytest.raises(SystemExit, match=said):
            compare(monkeypatch, *wrong)
