"""Tests of the division of new prompts: common beginnings are computed once if that is cheaper."""

from itertools import combinations
from math import ceil
from random import Random

import pytest

from selfplay.engines import prompt_parts as module
from selfplay.engines.prompt_parts import PromptPart, passes, prompt_parts
from tests.helpers.engine_requests import distinct


def test_a_long_common_beginning_is_computed_by_the_first_prompt() -> None:
    rules = tuple(range(100))
    prompts = [(*rules, 200 + n, 7) for n in range(3)]
    assert prompt_parts(prompts, [0, 0, 0]) == [
        [PromptPart(prompt=0, start=0)],
        [
            PromptPart(prompt=1, start=100, source=0, wave=1),
            PromptPart(prompt=2, start=100, source=0, wave=1),
        ],
    ]


def test_a_short_common_beginning_gets_no_pass_of_its_own() -> None:
    prompts = [(1, 2, 3, 4), (1, 2, 3, 5), (6,)]
    assert prompt_parts(prompts, [0, 0, 0]) == [
        [PromptPart(prompt=n, start=0) for n in range(3)],
    ]
    assert prompt_parts(prompts, [2, 3, 0]) == [
        [PromptPart(prompt=n, start=start) for n, start in enumerate((2, 3, 0))],
    ]


@pytest.mark.parametrize("seed", range(30))
def test_every_distinct_token_has_one_owner(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(seed)
    monkeypatch.setattr(module, "PASS", 0.001)
    monkeypatch.setattr(module, "DEEPEST", 100)
    drawn = {tuple(rng.choices(range(rng.choice([2, 9])), k=rng.randint(1, 12))) for _ in range(40)}
    prompts = sorted(drawn)
    stored = [tuple(rng.choices(range(3), k=6)) for _ in range(rng.choice([0, 5]))]
    known = [
        max(
            (n for n in range(len(prompt)) for other in stored if prompt[:n] == other[:n]),
            default=0,
        )
        for prompt in prompts
    ]
    waves = prompt_parts(prompts, known)
    done: dict[int, int] = {}
    for wave in waves:
        for part in wave:
            if part.source is None:
                assert part.start == known[part.prompt]
            else:
                assert done[part.source] >= part.start > known[part.prompt]
                assert prompts[part.source][: part.start] == prompts[part.prompt][: part.start]
        done |= {part.prompt: len(prompts[part.prompt]) for part in wave}
    assert sorted(done) == list(range(len(prompts)))
    computed = sum(len(prompts[part.prompt]) - part.start for wave in waves for part in wave)
    before = [prompt[:count] for prompt, count in zip(prompts, known, strict=True)]
    least = distinct(prompts) - distinct(before)
    # A last token that is known has to be computed again for its logits.
    again = sum(any(other[: len(p)] == p for other in stored) for p in prompts)
    assert least <= computed <= least + again


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_number_of_passes_that_wait_is_limited(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEEPEST", depth)
    ladder = [(*range(100 * n), 1000) for n in range(1, 8)]
    prompts = sorted(ladder)
    waves = prompt_parts(prompts, [0] * 7)
    assert len(waves) <= depth
    done: set[int] = set()
    for wave in waves:
        assert all(part.source is None or part.source in done for part in wave)
        done |= {part.prompt for part in wave}


def test_a_long_part_does_not_pad_short_ones() -> None:
    assert passes([1] * 80 + [20], limit=16_384) == [[*range(80)], [80]]
    assert passes([18, 20, 19], limit=16_384) == [[0, 2, 1]], "a second pass costs more"


@pytest.mark.parametrize("seed", range(30))
def test_no_division_among_passes_costs_less(seed: int) -> None:
    rng = Random(seed)
    lengths = [rng.choice([1, 5, 40, 90, rng.randint(1, 200)]) for _ in range(rng.randint(1, 9))]
    limit = rng.choice([64, 300, 16_384])

    def cost(ascending: list[int]) -> int:
        """Return the cost of padded tokens and passes, if parts are padded to the last one."""
        count, width = len(ascending), ascending[-1]
        return count * width + module.PASS * ceil(count / max(1, limit // width))

    ascending = sorted(lengths)
    least = min(
        sum(cost(ascending[a:b]) for a, b in zip((0, *cuts), (*cuts, len(lengths)), strict=True))
        for size in range(len(lengths))
        for cuts in combinations(range(1, len(lengths)), size)
    )
    found = passes(lengths, limit)
    assert sorted(index for each in found for index in each) == list(range(len(lengths)))
    widths = [max(lengths[index] for index in each) for each in found]
    assert all(len(e) == 1 or len(e) * w <= limit for e, w in zip(found, widths, strict=True))
    assert widths == sorted(widths)
    spent = sum(len(e) * w + module.PASS for e, w in zip(found, widths, strict=True))
    assert spent <= least
