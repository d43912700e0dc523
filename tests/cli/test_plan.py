"""Tests of the command `selfplay plan`: presets, runs, JSON, exit codes and errors."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from selfplay.cli.main import main
from selfplay.config import compose
from selfplay.plan import calibrate
from selfplay.plan.calibrate import PROBES, Probe, fit
from selfplay.plan.cluster import ClusterSpec, folder, load_cluster
from selfplay.run.directory import Run
from selfplay.types import Group
from tests.helpers.builders import episode, turn

SEVEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}


@pytest.fixture
def seven(tmp_path: Path) -> str:
    """Return the override of a model folder that has only the config of a 7B model."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(SEVEN))
    return f"policy.model={tmp_path / 'model'}"


def planned(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    code = main(["plan", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_an_invalid_learner_is_one_line(seven: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "experiment=tiny/kuhn", "cluster=local", seven, "learner.max_tokens=many"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("selfplay: learner.max_tokens: 'many' does not fit")


def test_the_text_says_how_many_of_all_tokens_are_sampled(
    seven: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["plan", "experiment=tiny/kuhn", "cluster=local", seven])
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "a step: " in each]
    assert re.search(r" turns, [\d.]+[kM]? tokens, of which [\d.]+[kM]? are sampled \(", line)


PRESETS = sorted(path.stem for path in folder().glob("*.yaml"))


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str, seven: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "experiment=paper/absolute_zero_7b",
        seven,
        f"cluster={name}",
        "workload.completion=1500",
    ]
    code, found = planned(asked, capsys)
    assert found["policies"]["base"]["parameters"] == 7_615_616_512
    assert code == (0 if found["fits"] else 3) and bool(found["complaints"]) != found["fits"]
    # The experiment's own runtime is one process, which uses one device; two presets place the
    # work themselves.
    assert found["fits"] == (name in ("gpus_64", "gpus_512"))
    assert found["cluster"]["devices"] == {"gpus_64": 64, "gpus_512": 512}.get(name, 1)
    assert found["cluster"]["basis"] == ("calibrated" if name == "local" else "datasheet")
    # 64 proposals of 3 types, and 8 attempts at each of as many tasks.
    assert found["workload"]["turns"] == 3 * 64 * 9 and found["workload"]["basis"] == "assumed"


@pytest.mark.parametrize(
    "path", sorted((folder() / "device").glob("*.yaml")), ids=lambda path: path.stem
)
def test_devices(path: Path) -> None:
    cluster, _ = load_cluster("gpus_8", [f"device={path.stem}"])
    device = cluster.device
    assert 8 < device.memory < 400 and 500 < device.bandwidth < 20_000
    assert 100 < device.tflops < 5000 and device.basis == "datasheet"


def test_keys_of_the_cluster_and_of_the_config(
    seven: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        "experiment=paper/absolute_zero_7b",
        "recipe=gpu_8_full_7b",
        seven,
        "cluster=gpus_8",
        "workload.completion=1500",
    ]
    before = planned(asked, capsys)[1]
    one_by_one = ["cluster.device=a100_80", "cluster.overhead=1", "runtime.max_staleness=0"]
    slower = planned([*asked, *one_by_one], capsys)[1]
    # An A100 has a third of the operations per second of an H100, and 0.6 of its bytes per second.
    assert slower["seconds"]["likely"]["train"] > 2 * before["seconds"]["likely"]["train"]
    parts = slower["seconds"]["likely"]
    assert parts.pop("step") == pytest.approx(sum(parts.values()))
    fewer = planned([*asked, "arena.solvers=4", "population=adapters"], capsys)[1]
    assert fewer["policies"]["solver"]["adapter_parameters"] > 0
    assert fewer["workload"]["turns"] == 3 * 64 * 5


@pytest.mark.parametrize(
    ("turns", "words"),
    [("1", "a mean completion half of its limit, 1 turn per"), ("2", "2 turns per")],
)
def test_lines_are_broken_between_parts(
    turns: str, words: str, seven: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["experiment=paper/magrpo", "recipe=gpu_16_two_policies", seven, "cluster=gpus_16"]
    main(["plan", *asked, f"workload.turns={turns}"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100 and "\u00a0" not in "".join(lines)
    assert words in " ".join(" ".join(lines).split())
    (place,) = [place for place, line in enumerate(lines) if line.startswith("  learning ")]
    row, rest = lines[place : place + 2]
    column = row.index("weights")
    assert row.endswith(",") and rest[:column].isspace() and re.match(r"[a-z]", rest[column])


def test_text_and_simulation(seven: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["experiment=paper/magrpo", "recipe=gpu_16_two_policies", seven]
    asked += ["cluster=gpus_16", "--simulate", "--steps", "3"]
    code = main(["plan", *asked])
    text = capsys.readouterr().out
    for part in (
        "16 x NVIDIA H100",
        "GB per device",
        "seconds of a step",
        "limited by",
        "would help",
    ):
        assert part in text
    assert "simulated, 2 steps" in text and "the planned times have no overlap" in text
    assert code == 0 and "\nfits\n" in text


def test_large_rates_are_rounded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "+experiment=tiny/kuhn", "cluster=gpus_8"]) == 0
    text = capsys.readouterr().out
    assert re.search(r" \d{1,3}\.\d[kM] tokens/s per device", text), text


def recorded(tmp_path: Path) -> Path:
    """A run of two steps: groups of two siblings that share a prompt, one frozen policy."""
    settings = compose.load(["+experiment=tiny/smoke", "services.executor.workers=1"])
    run = Run.create(tmp_path / "run", settings)
    for step in (1, 2):
        groups = []
        for place in range(3):
            prompt = (1, 2, 3, 10 + place)
            siblings = [
                episode(
                    turn("proposer_0", 1.0, prompt_ids=prompt, completion_ids=(7,) * 4, stage=0),
                    turn("solver_0", prompt_ids=(9, 9), completion_ids=(5, step), stage=1),
                    turn(
                        "solver_1", prompt_ids=(9, 9), completion_ids=(5,), stage=1, trainable=False
                    ),
                )
                for _ in range(2)
            ]
            groups.append(Group(id=f"{step}.{place}", episodes=tuple(siblings)))
        seconds = {"seconds/rollout": 1.0, "seconds/learn": 0.5, "seconds/evaluation": 4.0}
        counts = {"service/executor/ok": 6.0, "service/executor/cached": 9.0}
        run.record(step, {**seconds, **counts, "seconds/total": 5.6}, groups, [])
    return tmp_path / "run"


def test_a_plan_of_a_run_uses_its_recorded_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = planned(["--run", str(recorded(tmp_path)), "cluster=local"], capsys)
    assert code == 0 and found["fits"]
    asked = found["workload"]
    assert asked["basis"] == "recorded" and asked["turns"] == 18 and asked["calls"] == 6
    # Tokens of a step: 6 x (4 + 4) of the proposer, 6 x (2 + 2) and 6 x (2 + 1) of the solvers.
    assert asked["tokens"] == 6 * 8 + 6 * 4 + 6 * 3 and asked["completion_tokens"] == 42
    # The last 6 x 3 are not learned from. Distinct tokens: 3 + 3 x (1 + 4) of the proposer, and
    # 4 of the solver.
    assert asked["token_ratio"]["base"] == pytest.approx(72 / 22)
    assert found["measured"] == {"rollout": 1.0, "learn": 0.5, "step": pytest.approx(1.6)}
    assert main(["plan", "--run", str(tmp_path / "run"), "cluster=local"]) == 0
    assert "plan / measured" in capsys.readouterr().out


QUICKSTART = "experiment=tiny/quickstart"

BAD = [
    ([], "no arena is chosen"),
    (["cluster.devices=8"], "plan needs one cluster=NAME"),
    (["cluster=gpus_9"], "did you mean 'gpus_8'"),
    (["cluster=/nowhere/mine.yaml"], "--measure"),
    (["cluster=gpus_8", "cluster.devises=1"], "did you mean 'devices'"),
    (["cluster=gpus_8", "cluster.device=h300"], "no such device; did you mean 'h200'"),
    (["cluster=gpus_8", "cluster.tensor=3"], "tensor=3"),
    (["cluster=gpus_8", "cluster.lag=1"], "lag needs devices"),
    (["cluster=gpus_8", "cluster.rollout=8"], "rollout must be 0 to 7"),
    (["cluster=gpus_8", "cluster.tensor=0"], "tensor must be above 0, not 0"),
    (["cluster=gpus_8", "cluster.publish=0"], "publish must be above 0, not 0"),
    (["cluster=gpus_8", "cluster.pause=-1"], "pause must be at least 0, not -1"),
    (["cluster=gpus_8", "cluster.overhead=nan"], "overhead must be above 0, not nan"),
    (["cluster=gpus_8", "cluster.device.tflops=0"], "device.tflops must be above 0, not 0"),
    (["cluster=gpus_8", "cluster.device.rates.step=inf"], "rates.step must be at least 0"),
    (["cluster=gpus_8", "workload.promt=1"], "did you mean 'prompt'"),
    (["cluster=gpus_8", "workload.prompt=many"], "workload.prompt"),
    (["cluster=gpus_8", "workload.completion=-1"], "workload: completion must be above 0"),
    (["cluster=gpus_8", "workload.cv=nan"], "workload: cv must be at least 0, not nan"),
    (["cluster=gpus_8", "workload.turns=1e30"], "turns must be at most 10000"),
    (["cluster=gpus_8", "experiment=quickstrat"], "did you mean 'tiny/quickstart'"),
    (["cluster=gpus_8"], "no arena is chosen"),
    (["cluster=gpus_8", QUICKSTART, "policy=huggingface", "policy.model=/nowhere"], "config"),
    (["cluster=gpus_8", "--run", "/nowhere"], "not a run folder"),
    (["cluster=gpus_8", QUICKSTART, "--simulate", "--steps", "2"], "at least 3"),
    (["--measure", "mine.txt"], "ends in .yaml"),
    (["--measure", "mine.yaml", "cluster=local"], "takes no config and no --run"),
]


@pytest.mark.parametrize(("arguments", "complaint"), BAD, ids=lambda value: str(value)[:40])
def test_a_mistake_is_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_the_fit_finds_the_costs_that_made_the_timings() -> None:
    costs = [3e-4, 1e-3, 2e-5, 0.0, 2e-11]
    features = [probe.generating() for probe in PROBES]
    seconds = [sum(c * x for c, x in zip(costs, row, strict=True)) for row in features]
    assert fit(features, seconds) == pytest.approx(costs, rel=1e-6, abs=1e-12)
    # A cost whose fit is below 0 is set to 0, and the others are fitted again.
    assert fit([[1, 1], [1, 2], [1, 3]], [3, 2, 1])[1] == 0.0


def test_measuring_writes_a_cluster_that_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tuple(
        Probe(layers=1 + n % 3, hidden=16, requests=4 + 2 * n, prompts=2, prompt=4, new=2 + n)
        for n in range(4)
    )
    monkeypatch.setattr(calibrate, "PROBES", small)
    timings = calibrate.timings
    monkeypatch.setattr(calibrate, "timings", lambda: timings(small, rounds=1))
    hosted = calibrate.hosted
    monkeypatch.setattr(calibrate, "hosted", lambda: hosted(games=16))
    monkeypatch.setattr(
        calibrate, "fit", lambda features, seconds: [1e-4] * (len(features[0]) - 1) + [1e-10]
    )
    monkeypatch.setattr(calibrate, "products", lambda: 1e11)
    monkeypatch.setattr(calibrate, "streams", lambda: 2e10)
    monkeypatch.setattr(calibrate, "calls", lambda: 0.002)
    place = tmp_path / "mine.yaml"
    assert main(["plan", "--measure", str(place)]) == 0
    cluster, plain = load_cluster(str(place), [])
    assert isinstance(cluster, ClusterSpec) and cluster.device.basis == "calibrated"
    rates = cluster.device.rates
    assert rates.call == 0.002
    assert rates.turn >= 0  # 0 if noise hides the difference of few games
    assert 0 < rates.episode + rates.turn < 60
    assert cluster.device.rates.train[1] == pytest.approx(0.1)
    assert yaml.safe_load(place.read_text())["_target_"] == plain["_target_"]
    assert main(["plan", "--measure", str(place)]) == 2
    assert "not overwritten" in capsys.readouterr().err


def test_a_warm_start_that_fine_tunes_needs_a_model(
    seven: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["experiment=tiny/kuhn", "warmstart=random_play_fine_tune", "cluster=gpus_8"]
    assert main(["plan", *asked]) == 2
    assert "policy.model: missing, and the warm start" in capsys.readouterr().err
    code, found = planned([*asked, "policy=huggingface", seven], capsys)
    assert found["policies"]["base"]["parameters"] == 7_615_616_512 and code in (0, 3)
