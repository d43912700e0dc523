"""Test of a run, its export, and a run whose model is fine-tuned on the export."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.helpers.command_process import Outcome, one_line, run

KUHN = ("+experiment=tiny/kuhn", "run.steps=1", "run.episodes_every=1", "evaluations=none")
FEW = ("sampler.group_size=2", "run.threads=1", "policy=huggingface", "policy.device=cpu")


def test_a_run_begins_with_its_model_fine_tuned_on_an_export(tmp_path: Path) -> None:
    def selfplay(*words: str) -> Outcome:
        outcome = run(*words, cwd=tmp_path, cache=tmp_path / "cache")
        assert outcome.code == 0, outcome.err
        return outcome

    def weights(folder: Path | str) -> dict[str, torch.Tensor]:
        return load_file(Path(folder) / "model.safetensors")

    base = one_line(selfplay("warmstart", "+experiment=tiny/kuhn", "warmstart.steps=60").out)
    ours = (*KUHN, *FEW, f"policy.model={base}")
    selfplay("train", *ours, "run.name=first")
    selfplay("export", "runs/first", "--best", "0.5", "--out", "chats.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "chats.jsonl").read_text().splitlines()]
    assert lines and {line["metadata"]["run"] for line in lines} == {"first"}
    tuned = (
        *ours,
        "warmstart=fine_tune",
        "warmstart.examples.path=chats.jsonl",
        "warmstart.steps=3",
        "warmstart.lr=1e-2",
    )
    made = selfplay("warmstart", *tuned)
    assert f"{len(lines)} examples in chats.jsonl" in made.err
    place = one_line(made.out)
    still = ("learner.lr=0", "objective.kl=1", "objective.reference=initial", "run.name=second")
    selfplay("train", *tuned, *still)
    begun, kept = weights(tmp_path / "runs/second/checkpoints/000001/policies/base"), weights(place)
    assert all(torch.equal(begun[name], kept[name]) for name in kept)
    assert any(not torch.equal(weights(base)[name], kept[name]) for name in kept)
    last = json.loads((tmp_path / "runs/second/metrics.jsonl").read_text().splitlines()[-1])
    # The reference is the fine-tuned model, not its base.
    assert abs(last["policy/base/reference_kl"]) < 1e-6
