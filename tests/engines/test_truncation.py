"""Tests of truncated sampling against its definition, written out for one row at a time."""

import math
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch
from transformers import PreTrainedModel

from selfplay.engines.truncation import BLOCK, truncate, truncates
from selfplay.types import Request
from tests.helpers.engine_requests import answer, ask, engine


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Sampling settings of a row."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


CASES = [
    Settings(),
    Settings(top_k=1),
    Settings(top_k=3),
    Settings(top_k=10**6),
    Settings(top_p=0.9),
    Settings(top_p=0.5),
    Settings(top_p=1e-9),
    Settings(min_p=0.2),
    Settings(min_p=1.0),
    Settings(top_k=5, top_p=0.8),
    Settings(top_k=5, top_p=0.8, min_p=0.3),
    Settings(temperature=0.7, top_p=0.9),
    Settings(temperature=0.0, top_k=2),
]


def enumerated(chances: list[float], settings: Settings) -> list[float]:
    """Return the truncated distribution by applying the rules one after another."""
    order = sorted(range(len(chances)), key=lambda token: (-chances[token], token))
    kept = [token for token in order if chances[token] >= settings.min_p * chances[order[0]]]
    kept = kept[: settings.top_k or None]
    total, mass = math.fsum(chances[token] for token in kept), 0.0
    for count, token in enumerate(kept, start=1):
        mass += chances[token] / total
        if settings.top_p < 1 and mass >= settings.top_p:
            kept = kept[:count]
            break
    total = math.fsum(chances[token] for token in kept)
    return [chances[token] / total if token in kept else 0.0 for token in range(len(chances))]


@pytest.mark.parametrize("vocabulary", [1, 2, 7, 40, 3 * BLOCK + 1])
def test_the_kept_tokens_are_those_of_the_definition(vocabulary: int) -> None:
    torch.manual_seed(vocabulary)
    logits = torch.randn(len(CASES), vocabulary, dtype=torch.float64) * 3
    heat = torch.tensor([each.temperature or 1.0 for each in CASES])[:, None]
    logprobs = (logits / heat).log_softmax(-1)
    found = truncate(logprobs, logits, CASES)
    for row, settings in enumerate(CASES):
        if not truncates(settings):
            assert torch.equal(found[row], logprobs[row])
            continue
        chances = enumerated(logprobs[row].exp().tolist(), settings)
        wanted = torch.tensor(chances, dtype=torch.float64)
        assert torch.equal(found[row].isfinite(), wanted > 0), settings
        torch.testing.assert_close(found[row].exp(), wanted, atol=1e-12, rtol=1e-9)
        assert found[row].argmax() == logits[row].argmax()


def test_greedy_and_full_sampling_do_not_truncate() -> None:
    assert [each for each in CASES if not truncates(each)] == [CASES[0], CASES[-1]]
    logprobs = torch.randn(2, 5).log_softmax(-1)
    assert truncate(logprobs, logprobs, [CASES[0], CASES[-1]]) is logprobs


def test_tokens_that_tie_are_kept_in_the_order_of_their_ids() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, 2.0]], dtype=torch.float64)
    logprobs = logits.log_softmax(-1)

    def kept(settings: Settings) -> list[int]:
        found = truncate(logprobs, logits, [settings])[0]
        return torch.nonzero(found.isfinite())[:, 0].tolist()

    assert kept(Settings(top_k=1)) == [1] == [int(logits.argmax())]
    assert kept(Settings(top_k=2)) == [1, 3]
    assert kept(Settings(min_p=1.0)) == [1, 3, 4]
    two = float(2 * logprobs[0, 1].exp())
    assert kept(Settings(top_p=two - 1e-9)) == [1, 3]
    assert kept(Settings(top_p=two + 1e-9)) == [1, 3, 4]


def test_scores_decide_where_rounding_made_a_tie() -> None:
    scores = torch.tensor([[0.0, 1e-30]])
    equal = scores.log_softmax(-1)
    assert equal[0, 0] == equal[0, 1]
    assert truncate(equal, scores, [Settings(top_k=1)]).tolist() == [[-math.inf, 0.0]]


def test_a_row_does_not_depend_on_the_other_rows() -> None:
    logits = torch.randn(len(CASES), 700)
    logprobs = logits.log_softmax(-1)
    together = truncate(logprobs, logits, CASES)
    for row, settings in enumerate(CASES):
        own = slice(row, row + 1)
        assert torch.equal(truncate(logprobs[own], logits[own], [settings])[0], together[row])


@pytest.mark.parametrize(
    "settings",
    [
        Settings(top_p=0.6),
        Settings(top_k=4),
        Settings(top_k=6, top_p=0.7, temperature=1.5),
        Settings(min_p=0.3),
    ],
)
def test_tokens_are_as_frequent_as_the_enumeration_says(
    model: PreTrainedModel, settings: Settings
) -> None:
    count, prompt = 3000, (7, 8, 9)
    requests = [
        Request(
            id=number,
            policy="p",
            prompt_ids=prompt,
            seed=number,
            max_tokens=1,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p,
        )
        for number in range(count)
    ]
    found = answer(engine(model), requests)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt])).logits[0, -1].double()
    chances = enumerated((logits / settings.temperature).softmax(-1).tolist(), settings)
    assert 1 < sum(chance > 0 for chance in chances) < len(chances)
    seen = Counter(done.completion_ids[0] for done in found.values())
    assert set(seen) <= {token for token, chance in enumerate(chances) if chance > 0}
    for token, chance in enumerate(chances):
        assert abs(seen[token] / count - chance) <= 5 * (chance * (1 - chance) / count) ** 0.5
    for done in found.values():  # log-probabilities are those of the truncated distribution
        assert done.logprobs[0] == pytest.approx(
            math.log(chances[done.completion_ids[0]]), abs=1e-4
        )


@pytest.mark.parametrize("settings", [Settings(top_k=1), Settings(top_p=1e-6), Settings(min_p=1.0)])
def test_one_kept_token_is_the_greedy_choice(model: PreTrainedModel, settings: Settings) -> None:
    limits = {"top_p": settings.top_p, "top_k": settings.top_k, "min_p": settings.min_p}
    plain = ask(20)
    greedy = answer(engine(model), [replace(each, temperature=0.0) for each in plain])
    found = answer(engine(model), [replace(each, **limits) for each in plain])  # type: ignore[arg-type]
    for number, done in greedy.items():
        assert found[number].completion_ids == done.completion_ids
        assert set(found[number].logprobs) == {0.0}


def test_other_requests_are_sampled_as_before(model: PreTrainedModel) -> None:
    plain = ask(20)
    alone = answer(engine(model), plain)
    others = [replace(each, id=each.id + 100, top_p=0.5) for each in ask(20, seed=1)]
    together = answer(engine(model), [*plain, *others])
    for request in plain:
        done = together[request.id]
        assert done.completion_ids == alone[request.id].completion_ids
        assert done.logprobs == pytest.approx(alone[request.id].logprobs, abs=1e-5)
