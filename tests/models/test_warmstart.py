"""Tests of the warm start: it is cached, reproducible, and never incomplete."""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from selfplay.config.compose import load
from selfplay.errors import ConfigError, DivergedError
from selfplay.models import partial_training, training_progress, warmstart
from selfplay.models.partial_training import PartialTraining
from selfplay.models.training_progress import TrainingProgress
from selfplay.models.warmstart_settings import WarmStartSettings
from selfplay.role import Role
from selfplay.run.activity import ACTIVITY
from selfplay.run.files import held
from selfplay.tools.calculator import Calculator
from selfplay.tools.toolbox import Toolbox
from selfplay.types import Demonstration, Observation
from tests.helpers.command_process import SMOKE, InjectedFault, one_line, run

SHORT = ("warmstart.steps=2", "warmstart.batch=4")


class Parrot:
    """Demonstrations with a fixed completion."""

    def __init__(self, *, words: str = "yes", role: str = "bird") -> None:
        self.words, self.role = words, role

    def pieces(self) -> list[str]:
        return ["yes"]

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        while True:
            observation = Observation(text=f"say {rng.random()}")
            yield Demonstration(role=self.role, observation=observation, completion=self.words)


class Mute(Parrot):
    """A source without demonstrations."""

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        return iter(())


class Torn(Parrot):
    """A source whose code has a fault."""

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        yield dict[str, Demonstration]()["bird"]


def parrot(words: str = "yes", **settings: Any) -> dict[str, Any]:
    """Return the config of a short warm start."""
    return {
        "_target_": "selfplay.models.warmstart.WarmStart",
        "demonstrations": {"_target_": f"{__name__}.Parrot", "words": words},
        "roles": {"bird": {"_target_": "selfplay.role.Role"}},
        "steps": 2,
        "batch": 4,
        "model": {"hidden": 16, "layers": 1, "heads": 1, "intermediate": 16, "positions": 64},
        **settings,
    }


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def weights(place: Path) -> bytes:
    return (place / "model.safetensors").read_bytes()


def test_the_same_seed_makes_the_same_bytes_and_another_seed_others(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = warmstart.make(parrot()), warmstart.make(parrot(seed=1))
    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path / "second"))
    again = warmstart.make(parrot())
    assert again != first and again.name == first.name
    for path in first.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name
    assert weights(other) != weights(first)


def test_a_warm_start_is_made_once_for_equal_settings(cache: Path) -> None:
    said: list[str] = []
    long = parrot(steps=20)
    first = warmstart.make(long, said.append)
    assert len(said) == 2 and "step 20/20" in said[1]
    assert re.search(r"training a model of [\d,]+ parameters for 20 steps of 4 demonstr", said[0])
    assert warmstart.make(long, said.append) == first and len(said) == 2
    assert f"warm start: from the cache, {first}" in ACTIVITY.notes
    changed = [parrot(words="no", steps=20), parrot(steps=21), parrot(steps=20, lr=0.1)]
    assert len({warmstart.make(config) for config in (long, *changed)}) == 4


def test_an_interrupted_warm_start_continues_to_the_same_weights(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_training, "INTERVAL", 0.0)
    monkeypatch.setattr(partial_training, "LARGEST_FRACTION", 1e9)
    shown, done = TrainingProgress.show, list[int]()

    def interrupt(self: TrainingProgress, step: int, *values: Any, **settings: Any) -> None:
        done.append(step)
        if done == [0, 1, 2]:
            raise KeyboardInterrupt
        shown(self, step, *values, **settings)

    monkeypatch.setattr(TrainingProgress, "show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        warmstart.make(parrot(steps=5))
    (left,) = (cache / "warmstart").iterdir()
    assert left.name.startswith(".") and left.name.endswith(".partial")
    said: list[str] = []
    continued = warmstart.make(parrot(steps=5), said.append)
    assert done == [0, 1, 2, 2, 3, 4]  # the step without a written state is made again
    assert "continuing an interrupted one after step 2/5" in said[1]
    assert list((cache / "warmstart").iterdir()) == [continued]
    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path / "second"))
    assert weights(warmstart.make(parrot(steps=5))) == weights(continued)


def test_a_loss_that_is_not_finite_ends_the_warm_start(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmstart.WarmStart, "_backward", lambda self, model, rows: math.inf)
    with pytest.raises(DivergedError, match="the loss is not finite at step 1;"):
        warmstart.make(parrot())


def test_a_state_that_cannot_be_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fills_the_disk(state: Any, path: Path) -> None:
        path.write_bytes(b"half of the state")
        raise RuntimeError("no space left on device")

    monkeypatch.setattr(partial_training.torch, "save", fills_the_disk)
    kept = PartialTraining(tmp_path / "state", clock=iter(range(0, 1000, 100)).__next__)
    kept.keep(dict)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_state_is_not_used(cache: Path) -> None:
    place = warmstart.place_of(parrot())
    place.parent.mkdir(parents=True)
    place.with_name(f".{place.name}.partial").write_bytes(b"nonsense")
    said: list[str] = []
    assert warmstart.make(parrot(), said.append) == place
    assert not any("continuing" in line for line in said)


def test_a_slow_warm_start_reports_its_progress(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_progress, "SECONDS_BETWEEN_REPORTS", 0.0)
    said: list[str] = []
    warmstart.make(parrot(steps=3), said.append)
    steps = [line for line in said if "loss" in line]
    assert [re.findall(r"step (\d)/3", line) for line in steps] == [["1"], ["2"], ["3"]]
    assert "about 0 s left" in steps[-1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": float("inf")}, "lr: inf does not fit"),
        ({"final_lr": float("inf")}, "final_lr: inf does not fit"),
        ({"demonstrations": {"_target_": f"{__name__}.Mute"}}, "Mute.stream yields no demonstr"),
        (
            {"demonstrations": {"_target_": f"{__name__}.Torn"}},
            r"Torn\.stream raised KeyError: 'bird' \(.*test_warmstart\.py, line \d+\)",
        ),
        ({"seed": 2**64}, "a seed has at most 64 bits"),
        ({"model": {"hidden": 15}}, "hidden: 15 does not fit: 4 heads need"),
        ({"model": {"heads": 0}}, "heads: 0 does not fit: 1 to "),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], words: str, cache: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        warmstart.make(parrot(**settings))


def test_a_change_of_the_demonstrations_is_a_new_warm_start(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = warmstart.make(parrot())
    monkeypatch.setattr(Parrot, "pieces", lambda self: ["yes", "no"])
    second = warmstart.make(parrot())
    assert second != first

    def late(self: Parrot, rng: Random, progress: float) -> Iterator[Demonstration]:
        words = "no" if progress == 1.0 else self.words
        while True:
            yield Demonstration(role="bird", observation=Observation(text="say"), completion=words)

    monkeypatch.setattr(Parrot, "stream", late)
    assert warmstart.make(parrot()) not in (first, second)


def test_a_warm_start_that_is_stopped_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: object, folder: Path, **settings: Any) -> None:
        (Path(folder) / "model.safetensors").write_text("half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("selfplay.models.tiny.PreTrainedTokenizerFast.save_pretrained", stop)
        with pytest.raises(KeyboardInterrupt):
            warmstart.make(parrot())
    assert not list((cache / "warmstart").iterdir())
    assert weights(warmstart.make(parrot()))


def test_a_warm_start_that_was_killed_is_made_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    killed = run(
        "warmstart",
        SMOKE,
        *SHORT,
        cwd=tmp_path,
        cache=cache,
        injected=InjectedFault(at="selfplay.models.model_cache.sync", call=2),
    )
    assert killed.code < 0
    assert all(path.name.startswith(".") for path in (cache / "warmstart").iterdir())
    outcome = run("warmstart", SMOKE, *SHORT, cwd=tmp_path, cache=cache)
    assert outcome.code == 0
    first, second, *_ = outcome.err.splitlines()
    assert first.startswith("warm start: making demonstrations with arenas.")
    assert second.startswith("warm start: training a model of ")
    assert (Path(outcome.out.strip()) / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"steps": 0}, "at least 1"),
        ({"batch": 0}, "at least 1"),
        ({"lr": -1.0}, "at least 0"),
        ({"stepps": 1}, "unknown key; did you mean 'steps'"),
        ({"model": {"hidden": "wide"}}, r"warmstart\.model\.hidden: 'wide' does not fit"),
        ({"roles": {}}, "no 'bird' to demonstrate"),
    ],
)
def test_unusable_settings_are_refused_before_any_work(
    settings: dict[str, Any], complaint: str, cache: Path
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        warmstart.make(parrot(**settings))
    assert not list(cache.glob("warmstart/*"))


def test_a_policy_has_its_own_model_or_that_of_the_warm_start(cache: Path) -> None:
    made = warmstart.make(parrot())
    assert WarmStartSettings().resolve("mine", where="policy") == "mine"
    assert WarmStartSettings(config=parrot()).resolve(None, where="p") == str(made)
    for nothing in ({}, {"steps": 3}):
        with pytest.raises(ConfigError, match=r"policy: set policy\.model"):
            WarmStartSettings(config=nothing).resolve(None, where="policy")


def test_the_command_prints_the_folder_alone(tmp_path: Path) -> None:
    outcome = run("warmstart", SMOKE, *SHORT, cwd=tmp_path, cache=tmp_path / "cache")
    place = Path(one_line(outcome.out))
    assert place.parent == tmp_path / "cache/warmstart" and place.is_dir()
    assert load([SMOKE, *SHORT])["warmstart"]["steps"] == 2


def test_a_demonstration_is_a_prompt_and_a_completion_that_ends() -> None:
    from selfplay.models.renderer import ChatRenderer
    from selfplay.models.tiny import build_tokenizer

    warm = warmstart.WarmStart(demonstrations=Parrot(), roles={"bird": Role()})
    renderer = ChatRenderer(build_tokenizer(["yes"]))
    shown = next(Parrot().stream(Random(0), 0.0))
    prompt, completion = warm.encode(shown, renderer)
    assert prompt == renderer.start([{"role": "user", "content": shown.observation.text}])
    assert renderer.text(completion) == "yes" and completion[-1] == renderer.end_ids[0]


def test_files_of_a_killed_warm_start_are_removed(cache: Path) -> None:
    home = cache / "warmstart"
    dead, alive = home / ".0123-dead", home / ".4567-alive"
    for folder in (dead, alive):
        (folder / "model").mkdir(parents=True)
        (folder / ".lock").touch()
        os.utime(folder, (0, 0))
    with held(alive):
        os.utime(alive, (0, 0))
        place = warmstart.make(parrot())
    assert place.is_dir() and alive.exists() and not dead.exists()


def test_fine_tuning_shows_tools_and_earlier_calls_as_a_new_model_sees_them() -> None:
    from selfplay.learner.fine_tune import FineTune
    from selfplay.models.renderer import ChatRenderer
    from selfplay.models.tiny import build_tokenizer

    renderer = ChatRenderer(build_tokenizer(["yes"]))
    role = Role(tools=Toolbox(tools={"calculator": Calculator()}))
    shown = Demonstration(
        role="bird",
        observation=Observation(text="2+2?"),
        completion="4",
        called=(("<calculator>2+2</calculator>", "4"),),
    )
    warm = warmstart.WarmStart(demonstrations=Parrot(), roles={"bird": role})
    tuned = FineTune(examples=Parrot(), roles={"bird": role})
    prompt, completion = tuned._example(shown).ids(renderer)
    assert (prompt, list(completion)) == warm.encode(shown, renderer)
    text = renderer.text(prompt)
    assert "calculator" in text.partition("2+2?")[0] and "<calculator>2+2" in text


def test_another_description_of_a_tool_is_another_warm_start() -> None:
    def fingerprint_of(words: str) -> str:
        tool = Calculator()
        tool.description = words
        role = Role(tools=Toolbox(tools={"calculator": tool}))
        return warmstart.WarmStart(demonstrations=Parrot(), roles={"bird": role}).fingerprint()

    assert fingerprint_of("Adds.") == fingerprint_of("Adds.") != fingerprint_of("Multiplies.")
