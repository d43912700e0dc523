"""Tests of runs whose policy is paid by a reward model."""

import json
from pathlib import Path
from random import Random
from string import ascii_letters
from typing import Any

import pytest
from transformers import LlamaForSequenceClassification

from arenas.questions.arena import Questions
from arenas.questions.reward_model import RewardModel
from arenas.questions.weighted import Weighted
from selfplay.cli.main import main
from selfplay.config import compose
from selfplay.config.plain_data import check_config
from selfplay.errors import ConfigError, RunError
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.rollout.setup import RolloutSetup
from selfplay.run.record_reader import read_metrics
from selfplay.runtime.local import Local
from tests.helpers.reward_models import saved_llama, train_to_prefer

pytestmark = pytest.mark.usefixtures("without_charts")

QUESTIONS = ["Say something.", "Say anything.", "Say a word.", "Say more."]


def settings(folder: Path, model: Path) -> list[str]:
    """Return the settings of a run of a random policy that a reward model pays."""
    tokenizer = build_tokenizer([])
    policy = build_model(
        len(tokenizer), seed=0, hidden=32, layers=1, heads=2, intermediate=64, positions=256
    )
    policy.save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    lines = [json.dumps({"question": each}) for each in QUESTIONS]
    (folder / "asked.jsonl").write_text("\n".join(lines))
    path = f"path={folder / 'asked.jsonl'}"
    return [
        *("services=reward_model", f"services.reward_model.model={model}"),
        *("arena=reward_model", "arena.solvers=1", "roles=replier", f"run.folder={folder}"),
        *("curriculum=question_file", f"curriculum.tasks.{path}", "curriculum.batch=8"),
        *("evaluations=question_file", f"evaluations.asked.tasks.{path}"),
        *("evaluations.asked.arena.solvers=4", f"policy.model={folder / 'policy'}"),
        *("run.name=run", "run.threads=1", "sampling.default.max_tokens=8"),
        *("algorithm=dr_grpo", "sampler.group_size=8"),
    ]


def ran(folder: Path, model: Path, *overrides: str) -> list[dict[str, float]]:
    """Train; return the metrics, one entry from before the first step and one per step."""
    assert main(["train", *settings(folder, model), *overrides]) == 0
    return list(read_metrics(folder / "run/metrics.jsonl").values())


def test_a_policy_gets_the_scores_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training and evaluation share the model, which is loaded once."""
    model = saved_llama(tmp_path / "model", seed=1)
    before, *steps = ran(tmp_path, model, "run.steps=2", "learner.lr=1e-3")
    assert 0.0 < before["evaluation/asked/accuracy"] < 1.0
    for line in steps:
        assert 0.0 < line["role/solver/reward"] < 1.0
        assert line["arena/solve_rate"] == pytest.approx(line["role/solver/reward"], abs=0.05)
        assert line["policy/base/gradient_norm"] > 0.0
        scored = line["service/reward_model/scored"]
        assert 0 < scored <= 64 and line["service/reward_model/passes"] == scored
    # A run folder of another user may name a reward model too, so its config is read as data.
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    model.rename(tmp_path / "moved")
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run")]) == 2
    assert "services.reward_model.model: no folder" in capsys.readouterr().err
    moved = f"services.reward_model.model={tmp_path / 'moved'}"
    assert main(["evaluate", str(tmp_path / "run"), moved, "--json"]) == 0
    after = json.loads(capsys.readouterr().out)["evaluations"]["asked"]["accuracy"]
    assert after == steps[-1]["evaluation/asked/accuracy"]


def with_second(folder: Path, reward_model: Any, **second: Any) -> dict[str, Any]:
    """Return the config of a run with two models; `reward_model` is that of the second part."""
    module = "arenas.questions.reward_model"
    config = compose.load(settings(folder, saved_llama(folder / "first")))
    verifier, service = f"{module}.RewardModelVerifier", f"{module}.RewardModel"
    parts = {
        "first": {"_target_": verifier},
        "second": {"_target_": verifier, "reward_model": reward_model},
    }
    weighted = {"_target_": "arenas.questions.weighted.Weighted", "parts": parts}
    config["services"]["second"] = {"_target_": service, "model": str(folder / "second"), **second}
    for arena in (config["arena"], config["evaluations"]["asked"]["arena"]):
        arena["verifier"] = weighted
    return config


def test_a_second_model_is_a_service_of_another_name(tmp_path: Path) -> None:
    """Training and evaluation share the model; its metrics and errors have its own name."""
    saved_llama(tmp_path / "second", seed=1)
    config = with_second(tmp_path, "services.second", max_length=40)
    check_config(config)
    players = RolloutSetup(config)
    first, second = players.services["reward_model"], players.services["second"]
    try:
        for arena in (players.arena(), players.evaluations["asked"].arena()):
            assert isinstance(arena, Questions) and isinstance(arena.verifier, Weighted)
            parts = arena.verifier.parts.values()
            assert [vars(part)["reward_model"] for part in parts] == [first, second]
        players.load_services()
        assert first._scorer is not None and second._scorer is not None
        scores = arena.verifier.scores("x" * 40, {"question": "q"})
        assert scores["first"] > 0.0 and scores["second"] == 0.0
        counts = players.drain_counts()
        assert counts["service/second/too_long"] == 1.0
        assert "service/reward_model/too_long" not in counts
        second._scorer.model.get_parameter("score.weight").fill_(float("nan"))
        with pytest.raises(RunError, match=r"^services\.second: the model .* gives nan"):
            arena.verifier.scores("x", {"question": "q"})
    finally:
        players.close()
    assert second._scorer is None


@pytest.mark.parametrize(
    ("reward_model", "text"),
    [
        (
            {"_target_": "arenas.questions.reward_model.RewardModel", "model": "second"},
            r"arena\.verifier\.parts\.second\.reward_model: .* is a service; .* services\.NAME",
        ),
        ("services.secnd", r"'services\.secnd' does not fit: .* has no service 'secnd'"),
        ("second", r"parts\.second\.reward_model: 'second' does not fit"),
    ],
)
def test_a_second_model_that_is_no_service_is_a_one_line_error(
    tmp_path: Path, reward_model: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved_llama(tmp_path / "second", seed=1)
    with pytest.raises(ConfigError, match=text) as raised:
        RolloutSetup(with_second(tmp_path, reward_model))
    assert "\n" not in str(raised.value)


def test_a_reward_that_is_no_number_is_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved_llama(tmp_path / "model")
    model = LlamaForSequenceClassification.from_pretrained(folder)
    model.score.weight.data.fill_(float("nan"))
    model.save_pretrained(folder)
    assert main(["train", *settings(tmp_path, folder)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("selfplay: services.reward_model: the model") and "gives nan" in last


def test_only_a_process_that_plays_loads_the_model(tmp_path: Path) -> None:
    config = compose.load(settings(tmp_path, saved_llama(tmp_path / "model")))
    players = RolloutSetup(config)
    try:
        model = players.services["reward_model"]
        players.load(players.build("engine"))
        assert isinstance(model, RewardModel) and model._scorer is None
        Local().rollout_fn(players)
        assert model._scorer is not None
    finally:
        players.close()
    assert model._scorer is None


def test_the_mean_reward_rises(tmp_path: Path) -> None:
    """The model prefers letters; half of the bytes of a random policy are not valid text."""
    rng, symbols = Random(0), "\ufffd" * 40 + "".join(map(chr, range(1, 64))) + ascii_letters
    texts = ["".join(rng.choices(symbols, k=rng.randint(1, 8))) for _ in range(3200)]

    def letters(text: str) -> float:
        return 6.0 * sum(map(str.isalpha, text)) / len(text) - 3.0

    model = saved_llama(tmp_path / "model", num_hidden_layers=1)
    train_to_prefer(model, letters, texts)
    _, *steps = ran(tmp_path, model, "run.steps=15", "learner.lr=1e-2", "curriculum.batch=16")
    rewards = [line["role/solver/reward"] for line in steps]
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.3, rewards
