"""Tests of sampled answers of several kinds of models, and of the fraction of legal moves."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MambaConfig, MambaForCausalLM

from selfplay.errors import ConfigError
from selfplay.models.legal_answers import legal_answers, sampled
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.role import Role
from selfplay.types import Observation
from tests.helpers.builders import llama

PROMPTS = [[5, 6, 7, 8], [9], [4, 11]]
ENDS = (3, 2)


def model_of(kind: str) -> Any:
    torch.manual_seed(1)
    if kind == "gpt2":
        config = GPT2Config(
            vocab_size=24, n_embd=16, n_layer=2, n_head=4, initializer_range=0.5, n_positions=32
        )
        return GPT2LMHeadModel(config).eval()
    if kind == "mamba":
        sizes: Any = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 2}
        return MambaForCausalLM(MambaConfig(**sizes, initializer_range=0.5)).eval()
    return llama(seed=1)


def most_likely(chances: torch.Tensor, count: int, generator: Any = None) -> torch.Tensor:
    return chances.argmax(-1, keepdim=True)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mamba"])
def test_answers_do_not_depend_on_padding_and_caches(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "multinomial", most_likely)
    model, wanted = model_of(kind), []
    for prompt in PROMPTS:
        ids = list(prompt)
        while len(ids) < len(prompt) + 6 and (len(ids) == len(prompt) or ids[-1] not in ENDS):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
        wanted.append(ids[len(prompt) :])
    assert sampled(model, PROMPTS, 6, ends=ENDS, seed=0) == wanted
    assert len({tuple(answer) for answer in wanted}) > 1


def test_an_answer_is_drawn_at_temperature_one_and_ends_with_an_end_token() -> None:
    model = llama()
    with torch.no_grad():
        chances = model(input_ids=torch.tensor([[5, 6]])).logits[0, -1].softmax(-1)
    answers = sampled(model, [[5, 6]] * 4000, 1, ends=ENDS, seed=0)
    drawn = torch.bincount(torch.tensor([answer[0] for answer in answers]), minlength=24) / 4000
    assert float((drawn - chances).abs().max()) < 4 * (0.25 / 4000) ** 0.5
    longer = sampled(model, [[5, 6]] * 200, 9, ends=ENDS, seed=0)
    over = [answer for answer in longer if set(answer) & set(ENDS)]
    assert over and all(len(answer) == 9 for answer in longer if answer not in over)
    assert all(answer[-1] in ENDS and not set(answer[:-1]) & set(ENDS) for answer in over)


def test_the_fraction_counts_actions_that_are_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = ChatRenderer(build_tokenizer(["yes", "no"]))
    model = build_model(len(renderer.tokenizer), seed=0, hidden=16, layers=1, heads=2)
    yes = renderer.tokenizer("yes", add_special_tokens=False)["input_ids"]
    answers, seeds = [[*yes, renderer.end_ids[0]], yes, [7]], list[int]()

    def sample(
        model: Any, prompts: Any, *given: Any, seed: int, **settings: Any
    ) -> list[list[int]]:
        seeds.append(seed)
        return answers[: len(prompts)]

    monkeypatch.setattr("selfplay.models.legal_answers.sampled", sample)
    asked = [("bird", Observation(text=text), ["yes", "no"]) for text in "abc"]
    line = legal_answers(model, renderer, {"bird": Role()}, asked, batch=3, seed=0)
    assert line == "67% of 201 sampled answers are legal moves"
    assert len(set(seeds)) == 67  # no two answers to a question have the same draws


def test_few_questions_get_several_answers_each_and_many_get_one() -> None:
    renderer = ChatRenderer(build_tokenizer(["yes", "no"]))
    model = build_model(len(renderer.tokenizer), seed=0, hidden=16, layers=1, heads=2).eval()
    for count, answers in ((1, 200), (8, 200), (60, 180), (250, 250)):
        asked = [("bird", Observation(text=str(each)), ["yes"]) for each in range(count)]
        line = legal_answers(model, renderer, {"bird": Role()}, asked, batch=64, seed=0)
        assert line.endswith(f"% of {answers} sampled answers are legal moves")


def test_one_tenth_of_illegal_moves_is_seen_in_one_question() -> None:
    renderer = ChatRenderer(build_tokenizer(["yes", "no"]))
    (yes,), (no,) = (
        renderer.tokenizer(word, add_special_tokens=False)["input_ids"] for word in ("yes", "no")
    )

    class Mostly(torch.nn.Module):
        """A model that says yes with probability 0.9, otherwise no, and then ends."""

        device = torch.device("cpu")

        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
            logits = torch.full((*input_ids.shape, len(renderer.tokenizer)), -1e9)
            said = ((input_ids[:, -1] == yes) | (input_ids[:, -1] == no))[:, None]
            start, end = torch.full_like(logits[:, -1], -1e9), torch.full_like(logits[:, -1], -1e9)
            start[:, yes], start[:, no] = 0.9, 0.1
            start[:, [yes, no]] = start[:, [yes, no]].log()
            end[:, renderer.end_ids[0]] = 0.0
            logits[:, -1] = torch.where(said, end, start)
            return SimpleNamespace(logits=logits)

    asked = [("bird", Observation(text="a"), ["yes"])]
    before = torch.random.get_rng_state()
    line = legal_answers(Mostly(), renderer, {"bird": Role()}, asked, batch=8, seed=0)
    legal = int(line.partition("%")[0]) / 100
    assert abs(legal - 0.9) < 4 * (0.9 * 0.1 / 200) ** 0.5
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_role_that_raises_an_error_is_named() -> None:
    class Broken(Role):
        def parse(self, text: str) -> str:
            raise RuntimeError("oh")

    renderer = ChatRenderer(build_tokenizer([]))
    model = build_model(len(renderer.tokenizer), seed=0, hidden=16, layers=1, heads=2).eval()
    asked = [("bird", Observation(text="a"), ["y"])]
    with pytest.raises(ConfigError, match=r"warmstart\.roles\.bird: Broken\.parse raised Runtime"):
        legal_answers(model, renderer, {"bird": Broken()}, asked, batch=1, seed=0)
