"""Tests that padding, longer rows and shared rows do not change the result of a row.

The reference is a plain forward pass of each sequence alone, for many architectures.
"""

from random import Random
from typing import Any, Literal

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from selfplay.errors import ConfigError, PromptTooLong
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.learner.packing import packer
from selfplay.learner.value_model import TransformerCritic
from selfplay.models.position_limits import reach
from selfplay.study.policy_probs import logprobs
from selfplay.types import Request, Sample
from tests.helpers import architectures
from tests.helpers.architectures import SHORT_ROWS, TABLE, VOCABULARY, WINDOW, made
from tests.helpers.builders import sample, turn
from tests.helpers.engine_requests import answer, engine
from tests.helpers.shared_prefixes import apart

TREES = [
    "llama",
    "llama_yarn",
    "llama_dynamic",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma",
    "phi3",
    "phi3_longrope",
    "gpt2",
    "gpt_bigcode",
    "gptj",
    "codegen",
    "ctrl",
    "gpt_neo",
    "gpt_neo_global",
    "gpt_neox",
    "opt",
    "biogpt",
    "bert",
    "falcon",
]
"""Architectures that learn from shared rows."""
ROWS = [
    "gemma2",
    "gemma3",
    "mistral",
    "openai_gpt",
    "roberta",
    "bloom",
    "mpt",
    "falcon_alibi",
    "modernbert",
]
"""Architectures that learn from padded rows."""
SERVED = [kind for kind in TREES if kind != "qwen3_moe"] + ["mpt", "doge"]
REFUSED = {
    "gemma2": "other kinds than full attention",
    "gemma3": "other kinds than full attention",
    "mistral": "sliding-window attention",
    "modernbert": "other kinds than full attention",
    "bloom": "rows of different lengths",
    "falcon_alibi": "rows of different lengths",
    "openai_gpt": "rows of different lengths",
    "roberta": "when several rows share one cache, its log-probabilities change by .* nats",
    "xlnet": "rows of different lengths|when several rows share one cache",
}


def words(rng: Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, VOCABULARY) for _ in range(count))


def groups(longest: int) -> list[Sample]:
    """Return groups of five samples of 9 to 60 tokens that share a prompt, at most `longest` long.

    The shared row of a long group is wider than every table, window and limit of the models.
    """
    rng, found = Random(0), []
    for prompt, completion in ((5, 6), (20, 11), (33, 14), (45, 15)):
        if prompt + completion <= longest:
            shared = words(rng, prompt)
            for _ in range(5):
                own = words(rng, completion - rng.randrange(3))
                found.append(sample(shared, own, rng.gauss(0, 1)))
    return found


def alone(model: PreTrainedModel, given: list[Sample]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the gradient of the loss and each sample's log-probabilities without learner code.

    The loss is the mean of the negative log-probabilities weighted with the advantages.
    """
    model.zero_grad()
    tokens, nats = sum(len(one.turn.completion_ids) for one in given), []
    for one in given:
        ids = torch.tensor([[*one.turn.prompt_ids, *one.turn.completion_ids[:-1]]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(one.turn.prompt_ids) - 1 :]
        chosen = torch.tensor(one.turn.completion_ids)[:, None]
        found = logits.log_softmax(-1).gather(1, chosen)[:, 0]
        nats.append(found.detach().float())
        (-found.sum() * one.advantage / tokens).backward()
    return gradient(model), nats


def gradient(model: PreTrainedModel) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def limit(kind: str) -> int:
    """Return the longest sample that the learner accepts for an architecture."""
    return SHORT_ROWS if kind == "llama_dynamic" else TABLE


def learned(
    model: PreTrainedModel, given: list[Sample], packing: Literal["auto", "trie", "rows"]
) -> tuple[Learner, dict[str, float]]:
    """Return a learner after one update, and its metrics; the model has the gradient."""
    model.zero_grad()
    objective = PolicyLoss(ratio="none", clip="none")
    learner = Learner(
        model, objective=objective, settings=LearnerSettings(lr=0.0, clip_norm=1e9, packing=packing)
    )
    return learner, learner.update(given, step=1)


@pytest.mark.parametrize("kind", [*TREES, *ROWS])
def test_shared_and_padded_rows_have_the_gradient_of_samples_alone(kind: str) -> None:
    # Experts are multiplied in at most 32 bits.
    model = made(kind, torch.float32 if kind == "qwen3_moe" else torch.float64)
    given = groups(limit(kind))
    wanted, nats = alone(model, given)
    for packing in ("trie", "auto", "rows") if kind in TREES else ("auto", "rows"):
        learner, _ = learned(model, given, packing)
        assert apart(gradient(model), wanted) < 1e-5
        for own, row in zip(learner.logprobs(given), nats, strict=True):
            assert float((torch.tensor(own) - row).abs().max()) < 1e-4
        if packing == "trie":
            rows = learner.packer.rows(given, max_tokens=10_000)
            assert any(len(row.spans) > 1 for row in rows)
        elif kind in ROWS and packing == "auto":
            assert learner.packer.packing == "rows" and "padded rows" in learner.notes[0]


def test_rows_of_664_tokens_share_a_prompt_in_a_model_with_1024_positions() -> None:
    """Without the bound, a shared row would be wider than the table of positions."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_embd": 64, "n_layer": 1, "n_head": 2, "n_positions": 1024}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes)).double().eval()
    rng = Random(0)
    prompt = words(rng, 600)
    given = [sample(prompt, words(rng, 64), rng.gauss(0, 1)) for _ in range(8)]
    wanted, _ = alone(model, given)
    learner, found = learned(model, given, "auto")
    assert apart(gradient(model), wanted) < 1e-5
    assert learner.packer.widest == 1024
    assert found["computed_tokens"] < 8 * 663 / 2


@pytest.mark.parametrize("packing", ["auto", "rows"])
def test_rows_on_both_sides_of_a_longrope_limit_share_no_pass(
    packing: Literal["auto", "rows"],
) -> None:
    """One long row would change the frequencies of all rows in its pass."""
    model = made("phi3_longrope", torch.float64)
    rows = packer(packing, [model], device="cpu").rows(groups(TABLE), max_tokens=1000)
    assert {row.far for row in rows} == {(False,), (True,)}
    for row in rows:
        lengths = [len(span.columns) for span in row.spans]
        assert row.far == ((max(lengths) > SHORT_ROWS),) == ((min(lengths) > SHORT_ROWS),)
        assert row.stem in (0, row.width) or row.far == (False,)


def test_the_reach_of_models_with_tables_windows_and_limits() -> None:
    assert reach(made("llama")).shared() is None and reach(made("llama")).served() is None
    for kind in ("gpt2", "opt", "gptj", "codegen", "ctrl", "biogpt", "bert", "gpt_neo_global"):
        assert reach(made(kind)).shared() == TABLE
        assert reach(made(kind)).served() is None
    assert reach(made("gpt_neo")).shared() == WINDOW
    served = {
        "gpt_neo": WINDOW,
        "phi3_longrope": SHORT_ROWS,
        "llama_dynamic": SHORT_ROWS,
        "doge": WINDOW,
    }
    for kind, tokens in served.items():
        bound = reach(made(kind)).served()
        assert bound is not None and bound.tokens == tokens


@pytest.mark.parametrize("kind", ["llama_dynamic", "doge"])
def test_a_sample_longer_than_a_model_computes_correctly_is_refused(kind: str) -> None:
    learner, _ = learned(made(kind), groups(12), "auto")
    words = "sample 1.0.0/0/solver_0: it has .* tokens, and its model is correct for at most"
    with pytest.raises(ConfigError, match=words):
        learner.update(groups(TABLE), step=2)


def test_a_model_that_reads_later_tokens_cannot_learn() -> None:
    for packing in ("auto", "rows"):
        with pytest.raises(ConfigError, match="XLNetLMHeadModel has attention to tokens that come"):
            learned(made("xlnet"), groups(12), packing)


def requests(longest: int) -> list[Request]:
    """Return requests with short and long prompts, some up to the last token that is served."""
    rng = Random(1)
    lengths = [1, 2, longest // 3, longest // 2, longest - 8, longest - 4]
    return [
        Request(
            id=number,
            policy="p",
            prompt_ids=words(rng, length),
            seed=number,
            max_tokens=min(longest - length, (3, 20)[number % 2]),
        )
        for number, length in enumerate(lengths * 3)
    ]


@pytest.mark.parametrize("kind", SERVED)
def test_log_probabilities_of_the_engine_are_those_of_sequences_alone(kind: str) -> None:
    model = made(kind)
    bound = reach(model).served()
    asked = requests(TABLE if bound is None else bound.tokens)
    found = answer(engine(model), asked)
    with torch.no_grad():
        for request in asked:
            done = found[request.id]
            ids = torch.tensor([[*request.prompt_ids, *done.completion_ids]])
            logits = model(input_ids=ids, use_cache=False).logits[0, len(request.prompt_ids) - 1 :]
            chosen = torch.tensor(done.completion_ids)[:, None]
            nats = logits[:-1].log_softmax(-1).gather(1, chosen)[:, 0]
            assert float((torch.tensor(done.logprobs) - nats).abs().max()) < 1e-4
    # A sample does not depend on the other requests of the batch.
    for request in asked[:2]:
        single = answer(engine(model), [request])[request.id]
        assert single.completion_ids == found[request.id].completion_ids


@pytest.mark.parametrize("kind", ["gpt_neo", "phi3_longrope", "doge"])
def test_the_engine_refuses_rows_that_would_depend_on_others(kind: str) -> None:
    model = made(kind)
    bound = reach(model).served()
    assert bound is not None
    serves = engine(model)
    prompt = (5,) * (bound.tokens - 3)
    serves.add(Request(id=0, policy="p", prompt_ids=prompt, seed=0, max_tokens=3))
    words = f"exceeds the model's {bound.tokens} .it has "
    with pytest.raises(PromptTooLong, match=words):
        serves.add(Request(id=1, policy="p", prompt_ids=prompt, seed=0, max_tokens=4))


@pytest.mark.parametrize(("kind", "said"), REFUSED.items())
def test_the_engine_tries_a_model_and_refuses_one_that_it_cannot_serve(
    kind: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=f"policy 'p': .* cannot serve .*: .*({said})"):
        engine(made(kind))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2", "gpt_neox"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_in_16_bits_and_of_many_layers_are_served(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models in 16 bits are tested with two layers in 32 bits."""
    name, settings = architectures.CONFIGS[kind]
    layers = "n_layer" if kind == "gpt2" else "num_hidden_layers"
    monkeypatch.setitem(architectures.CONFIGS, kind, (name, {**settings, layers: 5}))
    model = made(kind, dtype)
    found = answer(engine(model), requests(TABLE)[:3])
    assert len(found) == 3 and model.dtype == dtype
    assert model.config.num_hidden_layers == 5


def test_models_of_one_build_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from selfplay.engines import transformers as module

    tried: list[PreTrainedModel] = []

    def differs(model: PreTrainedModel) -> str:
        tried.append(model)
        return ""

    monkeypatch.setattr(module, "serving_problem", differs)
    serves = engine(made("llama"))
    serves.serve("snapshot", made("llama"), [2])
    assert len(tried) == 1
    serves.serve("other", made("gpt2"), [2])
    assert len(tried) == 2


def test_a_study_reads_long_and_short_rows_apart() -> None:
    model = made("phi3_longrope")
    rng = Random(3)
    pairs = [
        (turn("solver_0", prompt_ids=words(rng, count)), words(rng, 4))
        for count in (4, SHORT_ROWS + 1, 9, SHORT_ROWS - 4, TABLE - 4)
    ]
    wanted = [logprobs(model, [pair])[0] for pair in pairs]
    assert logprobs(model, pairs) == pytest.approx(wanted, abs=1e-4)


def test_a_critic_reads_long_and_short_states_apart(tmp_path: Any) -> None:
    made("phi3_longrope").save_pretrained(tmp_path)
    critic = TransformerCritic(model=str(tmp_path), device="cpu")
    torch.nn.init.normal_(critic.head.weight)
    rng = Random(2)
    states = [words(rng, count) for count in (4, SHORT_ROWS, SHORT_ROWS + 1, TABLE)]
    together = critic.values(states)
    assert together == pytest.approx([critic.values([state])[0] for state in states], abs=1e-4)
