"""Tests of the limits on a run folder from another author: names, loaded files, and links."""

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
import yaml
from torch.distributed.checkpoint import save as save_shards

from selfplay.cli.main import main
from selfplay.config import compose
from selfplay.config.instantiate import build, check, import_target
from selfplay.config.trust import (
    GUARDS,
    TrustLimit,
    admit,
    admit_config,
    admit_file,
    limited,
)
from selfplay.errors import ConfigError, RunError
from selfplay.learner.sharded_checkpoint import PlainReader
from selfplay.models.lora import load_adapter
from selfplay.models.policy import load_policy
from tests.helpers.command_process import copy_of_finished, one_line, run
from tests.helpers.repository import ROOT

EVIL = "evil_games"
"""A package in the current folder that creates the file `mark` when it is imported."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a copy of a finished run, and write a package that creates a file when imported."""
    package = tmp_path / EVIL
    package.mkdir()
    (package / "__init__.py").write_text(
        "from pathlib import Path\n"
        f"Path({str(tmp_path / 'mark')!r}).touch()\n"
        "from roles.proposer import Proposer as _Proposer\n"
        "class Proposer(_Proposer):\n    pass\n"
    )
    return copy_of_finished(tmp_path)


def change(place: Path, key: str, value: Any) -> None:
    """Set `a.b.c` in the config of a run."""
    path = place / "config.yaml"
    plain = yaml.safe_load(path.read_text())
    *parents, last = key.split(".")
    node = plain
    for parent in parents:
        node = node[parent]
    node[last] = value
    path.write_text(yaml.safe_dump(plain))


COMMANDS: dict[str, list[str]] = {
    "evaluate": ["evaluate", "runs/copy"],
    "replay": ["replay", "runs/copy"],
    "play": ["play", "runs/copy", "--as", "proposer_0"],
    "study": ["study", "passk", "runs/copy"],
    "resume": ["train", "resume=runs/copy"],
    "again": ["train", "--config-path", "runs/copy", "run.name=new"],
    "check": ["check", "--config-path", "runs/copy"],
    "plan": ["plan", "--run", "runs/copy", "cluster=local"],
}


@pytest.mark.parametrize(
    ("name", "target"),
    [*((name, f"{EVIL}.Proposer") for name in COMMANDS), ("replay", "subprocess.getoutput")],
)
def test_a_run_names_only_our_own_packages(name: str, target: str, place: Path) -> None:
    change(place, "roles.proposer._target_", target)
    outcome = run(*COMMANDS[name], cwd=place.parent.parent)
    package = target.partition(".")[0]
    assert outcome.code == 2, outcome.err
    assert "roles.proposer._target_" in outcome.err
    assert one_line(outcome.err).endswith(f"selfplay {' '.join(COMMANDS[name])} --trust {package}")
    assert not (place.parent.parent / "mark").exists()


@pytest.mark.parametrize("typed", [("--trust", "evilgames"), ("--trust=evil_games.arena",)])
def test_the_suggested_command_has_the_right_package_in_place_of_the_wrong_one(
    typed: tuple[str, ...],
) -> None:
    limit = TrustLimit(
        packages=(typed[-1].removeprefix("--trust="), "json"),
        command=("selfplay", "replay", "runs/copy", *typed, "--trust", "json"),
    )
    assert limit.advice([EVIL]) == (
        f"to allow it, type: selfplay replay runs/copy --trust json --trust {EVIL}"
    )


def test_a_package_that_the_user_trusts_is_used(place: Path) -> None:
    change(place, "roles.proposer._target_", f"{EVIL}.Proposer")
    outcome = run("evaluate", "runs/copy", "--trust", EVIL, cwd=place.parent.parent)
    assert outcome.code == 0, outcome.err
    assert (place.parent.parent / "mark").exists()


def test_a_module_of_the_current_folder_does_not_come_first(place: Path) -> None:
    for name in ("peft", "openai", "wandb", "roles"):
        (place.parent.parent / f"{name}.py").write_text("open('mark', 'w')\n")
    outcome = run("evaluate", "runs/copy", cwd=place.parent.parent)
    assert outcome.code == 0, outcome.err
    assert not (place.parent.parent / "mark").exists()


def test_python_m_does_not_search_the_current_folder_first(tmp_path: Path) -> None:
    for name in ("hydra", "torch", "roles"):
        (tmp_path / f"{name}.py").write_text("open('mark', 'w')\n")
    # An empty entry would name the current folder, as if the user had asked for it.
    given = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, given))
    listed = subprocess.run(
        [sys.executable, "-m", "selfplay", "list", "arena"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert listed.returncode == 0 and listed.stdout.startswith("absolute_zero"), listed.stderr
    assert not (tmp_path / "mark").exists()


REFUSED = [
    "selfplay.config.instantiate.import_module",
    "selfplay.config.instantiate.import_target",
    "selfplay.run.directory.write_atomic",
    "selfplay.run.directory.TemporaryDirectory",
    "selfplay.models.warmstart.make",
    "selfplay.learner.sharded_checkpoint.read",
    "selfplay.sandbox.fork_server.main",
    "arenas.memory.retrieval.import_package",
    "arenas.external.imports.import_module",
    "arenas.absolute_zero.arena.derive",
    "os.system",
]


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_in_our_packages_must_be_something_that_a_config_names(name: str) -> None:
    with limited(TrustLimit()), pytest.raises(ConfigError, match=r"^x\._target_: "):
        import_target(name, "x")


def test_names_in_shipped_configs_are_allowed() -> None:
    names: set[str] = set()
    for path in compose.config_folder().rglob("*.yaml"):
        text = path.read_text()
        names |= {
            part.split()[0].strip("\"'{},")
            for part in text.split("_target_:")[1:]
            if part.split()[0].strip("\"'{},").partition(".")[0] in ("selfplay", "roles", "arenas")
        }
    assert len(names) > 80
    with limited(TrustLimit()):
        for name in sorted(names):
            import_target(name, "x")


@pytest.mark.parametrize(
    ("node", "package"),
    [
        ({"_target_": "arenas.external.pettingzoo.PettingZoo", "env": "os.getcwd"}, "os"),
        ({"_target_": "selfplay.engines.scripted.Scripted", "script": "os.system"}, "os"),
    ],
)
def test_import_paths_among_the_arguments_pass_the_same_gate(
    node: dict[str, Any], package: str
) -> None:
    with limited(TrustLimit()), pytest.raises(ConfigError, match=f"--trust {package}"):
        build(node, where="arena")


@pytest.mark.parametrize(
    ("node", "module"),
    [
        (
            {"_target_": "selfplay.sandbox.Executor", "isolation": "rlimits"},
            "selfplay.sandbox",
        ),
        (
            {"_target_": "selfplay.sandbox.Executor", "packages": ["antigravity"]},
            "selfplay.sandbox",
        ),
        (
            {"_target_": "arenas.questions.reasoning_gym.ReasoningGym", "isolation": "rlimits"},
            "arenas.questions.reasoning_gym",
        ),
        (
            {"_target_": "arenas.questions.taskset.VerifiersTaskset", "id": "antigravity"},
            "arenas.questions.taskset",
        ),
        (
            {"_target_": "selfplay.engines.openai.OpenAIEngine", "model": "m"},
            "selfplay.engines.openai",
        ),
        (
            {
                "_target_": "selfplay.engines.vllm.engine.VLLMEngine",
                "options": {"worker_cls": "os.x"},
            },
            "selfplay.engines.vllm.engine",
        ),
        (
            {"_target_": "selfplay.runtime.ray.RayRuntime", "address": "10.0.0.1:6379"},
            "selfplay.runtime.ray",
        ),
        ({"_target_": "selfplay.run.trackers.MLflow", "uri": "http://x"}, "selfplay.run.trackers"),
    ],
)
def test_settings_that_reach_outside_need_trust(node: dict[str, Any], module: str) -> None:
    with limited(TrustLimit()), pytest.raises(ConfigError, match=f"--trust {module}"):
        check({"services": {"x": node}})
    with limited(TrustLimit(packages=(module,))):
        check({"services": {"x": node}})


@pytest.mark.parametrize(
    "text",
    [
        "seed: ${oc.env:HOME}\n",
        'seed: "\\x24{oc.env:HOME}"\n',
        "hydra: {searchpath: ['pkg://evil_games']}\n",
        "defaults: [other]\n",
        "a: " + "[" * 5000 + "\n",
    ],
)
def test_the_config_of_a_run_holds_plain_values(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with limited(TrustLimit()), pytest.raises(ConfigError):
        admit_file(path)


def test_text_that_looks_like_a_reference_is_text(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(compose.to_yaml({"a": "${b}", "c": "\\${b}", "d": "\\\\${b}"}))
    with limited(TrustLimit()):
        admit_file(path)


@pytest.mark.parametrize("name", [None, 7, ["os.system"], "os", "arenas:os.system", "arenas..x"])
def test_a_target_that_is_no_name_is_not_advised_to_be_trusted(name: Any) -> None:
    with (
        limited(TrustLimit()),
        pytest.raises(ConfigError, match=r"a\._target_: .* is not a dotted name"),
    ):
        admit_config({"a": {"_target_": name}})


def test_a_trusted_name_is_the_name_of_a_package() -> None:
    with pytest.raises(ConfigError, match="no package name"):
        TrustLimit(packages=("a b",))


class Touch:
    """An object whose pickle makes a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def sign(place: Path) -> None:
    """Write a manifest that fits the files of a checkpoint."""
    files = [path for path in place.rglob("*") if path.is_file() and path.name != "manifest.json"]
    hashes = {
        str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
    (place / "manifest.json").write_text(json.dumps(hashes))


@pytest.mark.parametrize("name", ["evaluate", "play", "resume"])
def test_no_command_runs_a_pickle_of_a_checkpoint(name: str, place: Path, tmp_path: Path) -> None:
    newest = place / "checkpoints/000003"
    shards = newest / "learners/base"
    shards.mkdir(parents=True)
    evil = pickle.dumps(Touch(tmp_path / "mark"), protocol=2)
    (shards / ".metadata").write_bytes(evil)
    (newest / "learners.pt").write_bytes(evil)
    sign(newest)
    outcome = run(*COMMANDS[name], cwd=tmp_path)
    assert not (tmp_path / "mark").exists()
    if name == "evaluate":
        assert outcome.code == 0, outcome.err
    if name == "resume":
        assert outcome.code == 2 and "learners.pt cannot be read" in one_line(outcome.err)


@pytest.mark.parametrize("text", ["[]", "null", "{}", '{"versions": 7}', "[" * 200_000])
def test_a_state_of_another_shape_is_one_line(
    text: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for checkpoint in (place / "checkpoints").iterdir():
        (checkpoint / "state.json").write_text(text)
        sign(checkpoint)
    for arguments in (["evaluate", str(place)], ["train", f"resume={place}"]):
        assert main(arguments) == 2
        assert "checkpoints/000003" in one_line(capsys.readouterr().err)


def test_shards_hold_tensors_and_no_code(tmp_path: Path) -> None:
    state = {"steps": torch.tensor(3), "mean": torch.zeros(2, 3, dtype=torch.bfloat16)}
    save_shards(state, checkpoint_id=tmp_path / "good", no_dist=True)
    found = PlainReader(tmp_path / "good").read_metadata()
    assert set(found.state_dict_metadata) == set(state)
    save_shards({**state, "other": [1, 2]}, checkpoint_id=tmp_path / "object", no_dist=True)
    with pytest.raises(RunError, match=r"names .*BytesStorageMetadata"):
        PlainReader(tmp_path / "object").read_metadata()
    (tmp_path / "good/.metadata").write_bytes(pickle.dumps(Touch(tmp_path / "mark")))
    with pytest.raises(RunError, match=r"names posix\.mkdir"):
        PlainReader(tmp_path / "good").read_metadata()
    assert not (tmp_path / "mark").exists()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the folder of a model that a test may damage."""
    return copy_of_finished(tmp_path) / "checkpoints/000003/policies/base"


def test_the_user_is_not_asked_to_run_code_of_a_model_folder(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def yes(text: str = "") -> str:
        asked.append(text)
        return "y"

    monkeypatch.setattr("builtins.input", yes)
    path = model / "config.json"
    settings = json.loads(path.read_text())
    settings |= {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"},
    }
    path.write_text(json.dumps(settings))
    (model / "mine.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    with pytest.raises(ConfigError, match="policy 'p': cannot load model"):
        load_policy("p", model=str(model))
    assert not asked and not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},  # needs another package
        {"num_hidden_layers": "many"},
        {"rope_scaling": 7},
        {"architectures": 7},
        {"torch_dtype": "none"},
    ],
)
def test_a_model_config_that_transformers_fails_at_is_one_line(
    change: dict[str, Any], model: Path
) -> None:
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    try:
        load_policy("p", model=str(model))
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1


def test_pickled_weights_are_read_as_tensors_only(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").unlink()
    torch.save({"x": Touch(tmp_path / "mark")}, model / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="policy 'p': cannot load model"):
        load_policy("p", model=str(model))
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"peft_type": "LORA", "megatron_config": {"a": 1}, "megatron_core": "evil_games"},
        {"peft_type": "XLORA"},
        {"peft_type": "LORA", "auto_mapping": {"parent_library": "evil_games"}},
    ],
)
def test_an_adapter_that_names_modules_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    plain = {"base_model_name_or_path": "x", **settings}
    (tmp_path / "adapter_config.json").write_text(json.dumps(plain))
    with pytest.raises(ConfigError, match="no plain LoRA adapter"):
        load_adapter(torch.nn.Linear(1, 1), tmp_path, where="policy 'p'")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["evaluate", "replay", "play", "study", "resume"])
def test_no_command_follows_a_link_out_of_a_run(name: str, place: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    for folder in ("studies", "games"):
        shutil.rmtree(place / folder, ignore_errors=True)
        (place / folder).symlink_to(tmp_path / "outside")
    outcome = run(*COMMANDS[name], cwd=tmp_path)
    assert outcome.code == 2
    assert "is a link that leads out of the run" in one_line(outcome.err)
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize(
    "name", ["selfplay.collapse.CollapseMonitor", "selfplay.missing", f"selfplay.{'a' * 999}.b"]
)
def test_a_moved_module_gets_no_advice_to_trust_it(name: str) -> None:
    with limited(TrustLimit()), pytest.raises(ConfigError, match=r"CHANGELOG\.md") as caught:
        admit(name, "collapse")
    assert "--trust" not in str(caught.value)


@pytest.mark.parametrize("name", [f"{guard.module}.{guard.name}" for guard in GUARDS])
def test_guarded_names_exist(name: str) -> None:
    """After a rename, a guard of the old name would protect nothing."""
    assert resolve_name(name)
