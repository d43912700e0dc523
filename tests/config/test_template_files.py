"""Tests of chat templates in files: the config of a run has their text."""

from pathlib import Path
from typing import Any

import pytest

from selfplay.cli.main import main
from selfplay.config import compose
from selfplay.config.template_files import with_texts
from selfplay.errors import ConfigError
from selfplay.models import warmstart
from selfplay.models.policy_settings import Lora, PolicySettings
from selfplay.models.population import Population
from selfplay.models.warmstart_settings import WarmStartSettings
from selfplay.rollout.policies import kept_base

SHOWN = ["+experiment=smollm2/pipeline", "population=separate"]


def test_the_path_of_a_template_is_replaced_by_its_text(tmp_path: Path) -> None:
    own, others = tmp_path / "own.jinja", tmp_path / "others.jinja"
    own.write_text("{{ messages }} own\n")
    others.write_text("{{ messages }} others")
    config = compose.load(
        [
            *SHOWN,
            f"policy.chat_template={own}",
            f"+population.overrides.verifier.chat_template={others}",
            "+population.overrides.refiner.model=another",
        ]
    )
    own.unlink()
    found = Population.of(config).policies
    assert found["generator"].chat_template == "{{ messages }} own\n"
    assert found["verifier"].chat_template == "{{ messages }} others"
    assert found["refiner"].chat_template is None, "another model has a template of its own"


def test_the_command_warmstart_makes_the_warm_start_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, made = tmp_path / "own.jinja", list[Any]()
    own.write_text("{{ messages }}")
    monkeypatch.setattr(warmstart, "make", lambda *given, **named: made.append(named))
    settings = [*SHOWN, "policy.model=some/name", f"policy.chat_template={own}"]
    assert main(["warmstart", *settings]) == 0
    chat = {
        "chat_template": "{{ messages }}",
        "chat_template_kwargs": None,
        "keep_thinking": False,
    }
    assert made == [{"base": "some/name", **chat}]


def test_a_path_in_the_config_of_a_run_is_not_read(tmp_path: Path) -> None:
    """A path in the config of a run is not read: its author may not be trusted."""
    (tmp_path / "own.jinja").write_text("secret")
    run = {"chat_template": str(tmp_path / "own.jinja")}
    (tmp_path / "config.yaml").write_text(f"policy: {{chat_template: {run['chat_template']}}}")
    found = compose.load([], name=compose.RUN, folder=tmp_path)
    assert found["policy"] == run


def test_files_that_are_no_template_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "a.jinja"

    def refused(words: str) -> None:
        with pytest.raises(ConfigError, match=f"^policy.chat_template: .*a.jinja .*{words}"):
            with_texts({"policy": {"chat_template": str(place)}})

    refused("no file")
    place.write_bytes(b"\xff\xfe")
    refused("utf-8")
    place.write_bytes(b" " * 1_000_001)
    refused("longer than 1,000,000 bytes")
    place.write_text("{{ messages }} ${seed}")
    refused("which a config would replace")
    place.unlink()
    place.mkdir()
    refused("no file")
    kept = {"policy": {"chat_template": "{{ messages }}.jinja"}, "arena": {"chat_template": None}}
    assert with_texts(kept) == kept


def test_bases_of_adapters_with_other_templates_have_other_names_in_a_checkpoint() -> None:
    tuning = WarmStartSettings(config={"_target_": "selfplay.learner.fine_tune.FineTune"})
    names = {
        kept_base(PolicySettings(model="m", lora=Lora(), chat_template=text), tuning)
        for text in (None, "{{ a }}", "{{ b }}")
    }
    assert len(names) == 3


def test_folders_of_models_are_kept_as_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("models/own", "models/other", "gpt"):
        (tmp_path / name).mkdir(parents=True)
    config = compose.load(
        [
            "+experiment=smollm2/pipeline",
            "policy.model=models/own",
            "+population.overrides.base.model=./models/other/",
            "+population.opponents.old.model=models/../gpt",
            "+population.opponents.far.model=models/absent",
            "+population.opponents.api={_target_: some.Endpoint, model: gpt}",
            "policy.teacher=gpt",
            "+population.overrides.base.teacher={solver: gpt, proposer: some/name}",
            "services=reward_model",
            "services.reward_model.model=models/other",
        ]
    )
    assert config["services"]["reward_model"]["model"] == str(tmp_path / "models/other")
    assert config["population"]["policy"]["teacher"] == str(tmp_path / "gpt")
    by_role = {"solver": str(tmp_path / "gpt"), "proposer": "some/name"}
    assert config["population"]["overrides"]["base"]["teacher"] == by_role
    population = config["population"]
    assert config["policy"]["model"] == str(tmp_path / "models/own")
    assert population["policy"]["model"] == str(tmp_path / "models/own")
    assert population["overrides"]["base"]["model"] == str(tmp_path / "models/other")
    opponents = {name: each["model"] for name, each in population["opponents"].items()}
    assert opponents == {"old": str(tmp_path / "gpt"), "far": "models/absent", "api": "gpt"}
