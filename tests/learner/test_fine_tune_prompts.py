"""Tests that a warm start has the prompts of the run and keeps the files of its model."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from selfplay.learner.fine_tune import FineTune
from selfplay.models import warmstart
from selfplay.models.policy import load_policy
from selfplay.models.policy_settings import Lora, PolicySettings
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.models.warmstart_settings import WarmStartSettings
from selfplay.rollout.policies import kept_base, load_policies
from selfplay.types import Demonstration, Observation
from tests.helpers.populations import population as population_of

SIZES = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "positions": 64}
SWITCH = "{% if short is defined and short %}{{ 'brief ' }}{% endif %}"


class Chirp:
    """A source of demonstrations of one role that say yes."""

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        while True:
            yield Demonstration(
                role="bird", observation=Observation(text="say yes"), completion="yes"
            )


TUNE = {
    "_target_": "selfplay.learner.fine_tune.FineTune",
    "examples": {"_target_": f"{__name__}.Chirp"},
    "roles": {"bird": {"_target_": "selfplay.role.Role"}},
    "steps": 1,
    "batch": 1,
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model whose chat template reads the setting `short`."""
    place = tmp_path_factory.mktemp("base")
    tokenizer = build_tokenizer(["say "])
    tokenizer.chat_template += SWITCH
    build_model(len(tokenizer), seed=3, **SIZES).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture
def base(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(original, tmp_path / "base"))


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_demonstrations_have_the_prompts_of_the_run(
    base: Path, lora: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    samples = FineTune.samples

    def kept(self: FineTune, *given: Any) -> Any:
        made = samples(self, *given)
        seen.append((given[1], made[0][0].turn.prompt_ids))
        return made

    monkeypatch.setattr(FineTune, "samples", kept)
    settings = {
        "model": str(base),
        "device": "cpu",
        "lora": lora,
        "chat_template_kwargs": {"short": True},
        "keep_thinking": True,
    }
    population = population_of(["bird"], warmstart=TUNE, policy=settings)
    renderer = load_policies(population, seed=0)["base"].renderer
    prompt = renderer.start([{"role": "user", "content": "say yes"}])
    assert renderer.tokenizer.decode(prompt).endswith("brief ")
    [(trained, ids)] = seen
    assert ids == prompt and trained.keep_thinking


def test_other_prompts_make_another_warm_start(base: Path) -> None:
    chats: list[dict[str, Any]] = [
        {},
        {"chat_template_kwargs": {"short": True}},
        {"chat_template_kwargs": {"short": False}},
        {"keep_thinking": True},
    ]
    settings = WarmStartSettings(config=TUNE)
    assert len({settings.place(base=str(base), **chat) for chat in chats}) == len(chats)
    names = {kept_base(PolicySettings(model="m", lora=Lora(), **chat), settings) for chat in chats}
    assert len(names) == len(chats)
    same: Any = {"chat_template": None, "chat_template_kwargs": {}, "keep_thinking": False}
    assert settings.place(base=str(base), **same) == settings.place(base=str(base))


def test_a_warm_start_keeps_all_generation_settings(
    base: Path,
) -> None:
    own = {"eos_token_id": 2, "temperature": 0.9, "top_p": 0.6}
    (base / "generation_config.json").write_text(json.dumps(own))
    place = warmstart.make(TUNE, base=str(base))
    written = json.loads((place / "generation_config.json").read_text())
    assert own.items() <= written.items()
    assert load_policy("base", model=str(place)).renderer.end_ids == (2,)
