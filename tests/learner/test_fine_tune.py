"""Tests of fine-tuning before a run: the loss, the cache, adapters, and the policies."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from selfplay.arena.demonstrations import ExampleSource
from selfplay.config.instantiate import build
from selfplay.config.trust import TrustLimit, admit_config, limited
from selfplay.errors import ConfigError
from selfplay.learner import fine_tune
from selfplay.learner.chat_file import ChatFile
from selfplay.learner.fine_tune import FineTune
from selfplay.learner.fine_tune_example import ChatExample
from selfplay.learner.learner import Learner
from selfplay.models import model_cache, partial_training, training_progress, warmstart
from selfplay.models.lora import adapted, merge
from selfplay.models.policy import load_policy
from selfplay.models.policy_settings import Lora
from selfplay.models.population import Population
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.models.warmstart_settings import WarmStartSettings
from selfplay.rollout.policies import load_policies
from selfplay.runtime.engine_worker import check_model_files
from selfplay.types import Demonstration, Observation
from tests.helpers.builders import same, weights
from tests.helpers.populations import population as population_of

SIZES = {"hidden": 16, "layers": 2, "heads": 2, "intermediate": 32, "positions": 64}
CHAT = [
    {"role": "user", "content": "ab"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "no"},
]


class Echo(ExampleSource):
    """A source of demonstrations of one role that say yes and no in turn."""

    def __init__(self, *, words: tuple[str, ...] = ("yes", "no")) -> None:
        self.words = tuple(words)

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        while True:
            for word in self.words:
                yield Demonstration(
                    role="bird", observation=Observation(text=f"say {word}"), completion=word
                )

    def questions(self) -> list[tuple[str, Observation, list[str]]]:
        return [("bird", Observation(text=f"say {word}"), [word]) for word in self.words]


def echo(**settings: Any) -> dict[str, Any]:
    """Return the config of a short fine-tuning."""
    return {
        "_target_": "selfplay.learner.fine_tune.FineTune",
        "examples": {"_target_": f"{__name__}.Echo"},
        "roles": {"bird": {"_target_": "selfplay.role.Role"}},
        "steps": 2,
        "batch": 4,
        "lr": 1e-2,
        "warmup_steps": 1,
        **settings,
    }


def chats(path: Path, *lines: Any) -> dict[str, Any]:
    """Write a file of these lines and return the config of its source."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"_target_": "selfplay.learner.chat_file.ChatFile", "path": str(path)}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("base")
    tokenizer = build_tokenizer(["say "])
    build_model(len(tokenizer), seed=3, **SIZES).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture
def base(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "base"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def losses(notes: list[str]) -> list[float]:
    return [float(line.split("loss ")[1].split(",")[0]) for line in notes if "loss " in line]


def loss_of(folder: Path, pairs: list[tuple[str, str]]) -> float:
    """Return the mean negative log-likelihood per completion token, one forward pass per pair."""
    policy = load_policy("base", model=str(folder))
    total, tokens = 0.0, 0
    for prompt, completion in pairs:
        start = list(policy.renderer.start([{"role": "user", "content": prompt}]))
        answer = policy.renderer.tokenizer(completion)["input_ids"] + [2]  # <|im_end|>
        with torch.no_grad():
            logits = policy.model(torch.tensor([start + answer])).logits[0, len(start) - 1 : -1]
        total += float(functional.cross_entropy(logits, torch.tensor(answer), reduction="sum"))
        tokens += len(answer)
    return total / tokens


def test_the_loss_is_the_mean_over_all_completion_tokens(
    base: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_progress, "SECONDS_BETWEEN_REPORTS", 0.0)
    notes: list[str] = []
    three = echo(examples={"_target_": f"{__name__}.Echo", "words": ["yes", "no", "no"]}, batch=3)
    warmstart.make(three, notes.append, base=str(base))
    expected = loss_of(base, [("say yes", "yes"), ("say no", "no"), ("say no", "no")])
    assert losses(notes)[0] == pytest.approx(expected, abs=6e-4)


def test_passes_in_bfloat16_learn_the_demonstrations_in_float32_weights(
    base: Path, cache: Path
) -> None:
    exact, rounded = (
        warmstart.make(echo(steps=120, lr=2e-2, precision=precision), base=str(base))
        for precision in ("float32", "bfloat16")
    )
    models = [load_policy("bird", model=str(place)).model for place in (exact, rounded)]
    assert not same(weights(models[0]), weights(models[1]))
    assert {value.dtype for value in models[1].state_dict().values()} == {torch.float32}
    assert loss_of(rounded, [("say yes", "yes"), ("say no", "no")]) < 0.05


def test_equal_examples_are_one_row_with_a_weight(base: Path) -> None:
    tune = FineTune(examples=Echo(), roles=fine_roles())
    model, renderer = fine_tune.load_with_renderer(
        str(base), where="base", dtype="float32", device="cpu"
    )
    shown = next(tune._batches())
    samples, totals = tune.samples(shown, renderer, tune._learner(model))
    assert [sample.advantage for sample in samples] == [32.0, 32.0]
    tokens = [len(sample.turn.completion_ids) for sample in samples]
    assert tokens == [4, 3] and totals.tokens == 32 * 7 and totals.sequences == 64


def fine_roles() -> dict[str, Any]:
    from selfplay.role import Role

    return {"bird": Role()}


def test_demonstrations_are_learned(base: Path, cache: Path) -> None:
    notes: list[str] = []
    place = warmstart.make(echo(steps=120, lr=2e-2), notes.append, base=str(base))
    pairs = [("say yes", "yes"), ("say no", "no")]
    assert loss_of(base, pairs) > 3 and loss_of(place, pairs) < 0.05
    assert notes[-1] == "warm start: 100% of 200 sampled answers are legal moves"
    assert "fine-tuning" in notes[0] and "step 120/120" in notes[-2]
    load_policy("base", model=str(place))


def test_an_interrupted_fine_tuning_ends_with_the_same_weights(
    base: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_training, "INTERVAL", 0.0)
    monkeypatch.setattr(partial_training, "LARGEST_FRACTION", 1e9)
    chat = chats(tmp_path / "chats.jsonl", *({"messages": CHAT[:2]}, {"messages": CHAT[2:]}))
    config = echo(examples=chat, batch=1, steps=4, lora={"rank": 2})
    optimize, steps = Learner.optimize, list[int]()

    def interrupt(self: Learner, *values: Any, step: int) -> dict[str, float]:
        steps.append(step)
        if steps == [1, 2, 3]:
            raise KeyboardInterrupt
        return optimize(self, *values, step=step)

    monkeypatch.setattr(Learner, "optimize", interrupt)
    with pytest.raises(KeyboardInterrupt):
        warmstart.make(config, base=str(base))
    continued = warmstart.make(config, base=str(base))
    assert steps == [1, 2, 3, 3, 4]
    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path / "second"))
    alone = warmstart.make(config, base=str(base))
    name = "model.safetensors"
    assert (continued / name).read_bytes() == (alone / name).read_bytes()


def test_the_same_seed_makes_the_same_weights(
    base: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = chats(tmp_path / "chats.jsonl", *({"messages": CHAT[:2]}, {"messages": CHAT[2:]}))
    config = echo(examples=chat, batch=1, steps=3, lora={"rank": 2})
    first = warmstart.make(config, base=str(base))
    other = warmstart.make({**config, "seed": 1}, base=str(base))
    monkeypatch.setenv("SELFPLAY_CACHE", str(tmp_path / "second"))
    again = warmstart.make(config, base=str(base))
    content = [(place / "model.safetensors").read_bytes() for place in (first, again, other)]
    assert content[0] == content[1] != content[2] and first != again


def test_a_finite_source_is_seen_whole_in_every_pass(tmp_path: Path) -> None:
    lines = [
        {"messages": [{"role": "user", "content": str(n)}, {"role": "assistant", "content": "a"}]}
        for n in range(5)
    ]
    source = ChatFile(path=chats(tmp_path / "chats.jsonl", *lines)["path"])
    batches = FineTune(examples=source, batch=2)._batches()
    examples = [each for _ in range(10) for each in next(batches)]
    shown = [each.messages[0]["content"] for each in examples if isinstance(each, ChatExample)]
    passes = [shown[start : start + 5] for start in range(0, 20, 5)]
    assert all(sorted(each) == list("01234") for each in passes)
    assert len({tuple(each) for each in passes}) > 1


class NoExamples:
    """A finite source without examples."""

    def examples(self) -> Sequence[ChatExample]:
        return []

    def fingerprint(self) -> str:
        return "none"


def test_a_source_without_examples_is_a_one_line_error() -> None:
    with pytest.raises(ConfigError, match=r"^warm start: NoExamples has no examples to learn$"):
        next(FineTune(examples=NoExamples())._batches())


def test_fine_tuning_ends_when_the_loss_is_low_enough(base: Path, cache: Path) -> None:
    notes: list[str] = []
    warmstart.make(echo(steps=500, until=0.5), notes.append, base=str(base))
    last = next(line for line in reversed(notes) if "loss" in line)
    assert losses([last])[0] < 0.5 and "about 0 s left" in last and "step 500" not in last


def test_a_merged_adapter_computes_like_the_adapter(base: Path) -> None:
    whole = AutoModelForCausalLM.from_pretrained(base).eval().requires_grad_(False)
    before = weights(whole)
    trained = adapted(whole, Lora(rank=2), seed=1, where="lora")
    with torch.no_grad():
        for parameter in trained.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3)
    ids = torch.tensor([[1, 5, 9, 30]])
    wanted = trained(ids).logits
    assert not torch.allclose(whole(ids).logits, wanted, atol=1e-2)
    merge(trained)
    assert torch.allclose(whole(ids).logits, wanted, atol=1e-4)
    assert not same(before, weights(whole))


def test_an_adapter_is_merged_into_one_ordinary_folder(base: Path, cache: Path) -> None:
    sharp = AutoModelForCausalLM.from_pretrained(base)
    embeddings: Any = sharp.get_input_embeddings()
    embeddings.weight.data *= 30  # the adapter cannot sharpen a frozen head
    sharp.save_pretrained(base)
    place = warmstart.make(echo(steps=80, lora={"rank": 8}, lr=3e-2), base=str(base))
    assert not list(place.glob("adapter*")) and (place / "model.safetensors").is_file()
    first, second = load_policy("a", model=str(base)), load_policy("b", model=str(place))
    assert {*first.model.state_dict()} == {*second.model.state_dict()}
    pairs = [("say yes", "yes"), ("say no", "no")]
    assert loss_of(place, pairs) < loss_of(base, pairs) / 4
    same_head = [m.get_input_embeddings().weight for m in (first.model, second.model)]
    assert torch.equal(*same_head)  # type: ignore[arg-type]


def test_a_model_is_made_once_for_each_base_and_examples(
    base: Path, cache: Path, tmp_path: Path
) -> None:
    config = echo(examples=chats(tmp_path / "chats.jsonl", {"messages": CHAT}))
    notes: list[str] = []
    first = warmstart.make(config, notes.append, base=str(base))
    lines = len(notes)
    assert warmstart.make(config, notes.append, base=str(base)) == first and len(notes) == lines
    copy = shutil.copytree(base, tmp_path / "copy")
    assert warmstart.place_of(config, base=str(copy)) == first
    chats(tmp_path / "chats.jsonl", {"messages": CHAT[:2]})
    second = warmstart.make(config, base=str(base))
    build_model(len(build_tokenizer(["say "])), seed=4, **SIZES).save_pretrained(copy)
    third = warmstart.make(config, base=str(copy))
    assert len({first, second, third}) == 3


def test_the_identity_of_a_large_file_is_that_of_its_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cache, "WHOLE", 100)
    monkeypatch.setattr(model_cache, "BLOCK", 10)
    content = bytearray(range(256)) * 40
    (tmp_path / "weights").write_bytes(content)
    before = model_cache.identity(str(tmp_path))
    content[-1] ^= 1
    (tmp_path / "weights").write_bytes(content)
    assert model_cache.identity(str(tmp_path)) != before
    assert model_cache.identity("some/name") == "some/name"


def test_policies_begin_with_their_own_fine_tuned_models(
    base: Path, cache: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(base, other)
    build_model(len(build_tokenizer(["say "])), seed=9, **SIZES).save_pretrained(other)
    population = population_of(
        ["a", "b", "c", "d"],
        warmstart=echo(),
        policy={"model": str(base), "device": "cpu"},
        sharing="separate",
        overrides={"c": {"model": str(other)}, "d": {"learn": False}},
    )
    with pytest.raises(ConfigError, match="the warm start is not in"):
        check_model_files(population)
    policies = load_policies(population, seed=0)
    check_model_files(population)
    kept = {name: weights(policy.model) for name, policy in policies.items()}
    assert same(kept["a"], kept["b"]) and not same(kept["a"], kept["c"])
    assert len(list((cache / "warmstart").iterdir())) == 2
    assert same(kept["d"], weights(load_policy("d", model=str(base)).model))
    policies["a"].freeze_reference()
    reference = policies["a"].reference
    assert reference is not None and same(kept["a"], weights(reference))
    assert not same(kept["a"], kept["d"])


def test_the_base_of_an_adapter_is_the_fine_tuned_model_and_is_kept(
    base: Path, cache: Path
) -> None:
    adapter = {"model": str(base), "lora": {"rank": 2}, "device": "cpu"}
    population = population_of(["a"], warmstart=echo(), policy=adapter)
    policy = load_policies(population, seed=0)["base"]
    place = warmstart.place_of(echo(), base=str(base))
    assert policy.base is not None and policy.base.source == str(place)
    assert policy.base.kept is not None and policy.base.kept.startswith("float32-")
    policy.freeze_reference()
    assert policy.reference is policy.base.model


def test_a_resumed_run_takes_the_base_of_its_adapters_from_the_checkpoint(
    base: Path, cache: Path, tmp_path: Path
) -> None:
    policy_settings = {"model": str(base), "lora": {"rank": 2}, "device": "cpu"}
    other = shutil.copytree(base, tmp_path / "other")
    build_model(len(build_tokenizer(["say "])), seed=9, **SIZES).save_pretrained(other)
    population = population_of(
        ["a", "b"],
        warmstart=echo(),
        policy=policy_settings,
        sharing="separate",
        overrides={"b": {"model": str(other)}},
    )
    begun = load_policies(population, seed=0)
    kept = {}
    for name, policy in begun.items():
        assert policy.base is not None and policy.base.kept is not None
        policy.base.save(tmp_path / "saved" / "bases" / policy.base.kept)
        kept[name] = weights(policy.base.model)
    assert not same(kept["a"], kept["b"])
    for folder in (cache, base, other):
        shutil.rmtree(folder)
    saved = tmp_path / "saved"
    resumed = load_policies(population, seed=0, saved=saved)
    for name, policy in resumed.items():
        assert policy.base is not None and same(kept[name], weights(policy.base.model))


def test_a_warm_start_of_a_new_model_leaves_a_named_one_alone(base: Path) -> None:
    tiny = {"_target_": "selfplay.models.warmstart.WarmStart"}
    assert WarmStartSettings(config=tiny).resolve(str(base), where="policy") == str(base)
    with pytest.raises(ConfigError, match="policy: this warm start fine-tunes a model; choose"):
        WarmStartSettings(config=echo()).resolve(None, where="policy")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"steps": 0}, "steps and batch must be at least 1"),
        ({"lr": float("nan")}, r"warmstart\.lr: nan does not fit"),
        ({"precision": "half"}, r"warmstart\.precision: 'half' does not fit: input should be"),
        ({"max_tokens": 0}, r"warmstart\.max_tokens: 0 does not fit"),
        ({"examples": "chats.jsonl"}, "examples: 'chats.jsonl' is no source of examples"),
        ({"until": float("nan")}, "until: nan does not fit"),
        ({"seed": 2**64}, "a seed has at most 64 bits"),
        ({"lora": {"rang": 2}}, r"warmstart\.lora\.rang: unknown key; did you mean 'rank'"),
        ({"lora": {"rank": 0}}, r"warmstart\.lora: rank is at least 1"),
        ({"lora": {"targets": ["q"]}}, r"warmstart\.lora\.targets: .* has no linear layer 'q'"),
        ({"roles": {}}, "no 'bird' to demonstrate"),
        ({"device": "gpu"}, "warm start: unknown device 'gpu'"),
    ],
)
def test_invalid_settings_are_one_line_errors(
    settings: dict[str, Any], complaint: str, base: Path, cache: Path
) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        warmstart.make(echo(**settings), base=str(base))
    assert "\n" not in str(caught.value) and not list(cache.glob("warmstart/*"))


def test_a_run_folder_may_name_a_fine_tuning(tmp_path: Path) -> None:
    node = {
        "_target_": "selfplay.learner.fine_tune.FineTune",
        "examples": chats(tmp_path / "chats.jsonl", {"messages": CHAT}),
    }
    with limited(TrustLimit()):
        admit_config({"warmstart": node})
        assert WarmStartSettings(config=node).tunes and isinstance(build(node), FineTune)
    for name in ("Counter", "load_with_renderer"):
        with limited(TrustLimit()), pytest.raises(ConfigError, match="not a component for configs"):
            build({"_target_": f"selfplay.learner.fine_tune.{name}"})


def test_an_invalid_base_or_example_is_a_one_line_error(
    base: Path, cache: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"warm start: no folder"):
        warmstart.make(echo(), base=str(tmp_path / "nowhere"))
    long = [{"role": "user", "content": "a" * 80}, {"role": "assistant", "content": "b"}]
    source = chats(tmp_path / "long.jsonl", {"messages": long})
    with pytest.raises(ConfigError, match=r"long.jsonl, line 1: \d+ tokens, and the model reads 6"):
        warmstart.make(echo(examples=source), base=str(base))


def test_a_base_without_a_chat_template_is_fine_tuned_with_a_given_one(
    base: Path, cache: Path
) -> None:
    own = base / "chat_template.jinja"
    text = "Chat. " + own.read_text()
    own.unlink()

    def population(template: str) -> Population:
        policy = {"model": str(base), "device": "cpu", "chat_template": template}
        return population_of(["a"], warmstart=echo(), policy=policy)

    (made,) = load_policies(population(text), seed=0).values()
    check_model_files(population(text))
    start = made.renderer.start([{"role": "user", "content": "x"}])
    assert made.renderer.tokenizer.decode(start).startswith("Chat.")
    with pytest.raises(ConfigError, match="the warm start is not in"):
        check_model_files(population("Talk. " + text))
