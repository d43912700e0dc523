"""The test at the end of a warm start: the fraction of sampled answers that are legal moves."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from selfplay.errors import ConfigError
from selfplay.models.demonstration_prompt import prompt_ids
from selfplay.models.renderer import ChatRenderer
from selfplay.rng import derive
from selfplay.role import BrokenRole, Role
from selfplay.types import Observation

Question = tuple[str, Observation, Sequence[str]]
"""(role, observation, legal moves)."""
ANSWERS = 200
"""Number of answers that the test samples if there are fewer questions; each question then gets the
same number of answers."""


def legal_answers(
    model: Any,
    renderer: ChatRenderer,
    roles: Mapping[str, Role],
    questions: Sequence[Question],
    *,
    batch: int,
    seed: int,
) -> str:
    """Return one line with the fraction of the model's answers that are legal moves.

    The number of answers is about `ANSWERS`, or one per question if there are more questions.
    Raises ConfigError if a role fails on an answer.

    Args:
        model: Causal language model in evaluation mode.
        renderer: Renderer of its prompts.
        roles: Name to role, for prompts and answers.
        questions: At least one situation with its legal moves.
        batch: Number of answers per forward pass.
        seed: Seed of the answers.
    """
    right, asked = 0, [*questions] * max(1, round(ANSWERS / len(questions)))
    for first in range(0, len(asked), batch):
        part = asked[first : first + batch]
        prompts = [prompt_ids(roles[role], observation, renderer) for role, observation, _ in part]
        longest = max(len(renderer.completion_ids(move)) for *_, legal in part for move in legal)
        drawn = derive(seed, "legal answers", first)  # a question's answers are independent
        answers = sampled(model, prompts, longest + 1, ends=renderer.end_ids, seed=drawn)
        for (role, _, legal), ids in zip(part, answers, strict=True):
            try:
                action, _ = roles[role].parse_completion(renderer.text(ids))
            except BrokenRole as error:
                raise ConfigError(f"warmstart.roles.{role}: {error}") from error
            right += action in legal
    fraction = right / len(asked)
    return f"{fraction:.0%} of {len(asked)} sampled answers are legal moves"


@torch.no_grad()
def sampled(
    model: Any,
    prompts: Sequence[Sequence[int]],
    longest: int,
    *,
    ends: Sequence[int],
    seed: int,
) -> list[list[int]]:
    """Return an answer of at most `longest` tokens to each prompt, at temperature 1.

    An answer ends with its first token that is in `ends`.
    """
    width, takes = max(map(len, prompts)), inspect.signature(model.forward).parameters
    ids = torch.tensor([[ends[0]] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    generator = torch.Generator().manual_seed(seed)
    caches, kept, known = "past_key_values" in takes, None, 0
    over = torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(longest):
        places = (mask.cumsum(-1) - 1).clamp(min=0)[:, known:]
        more = {
            "position_ids": places.to(model.device),
            "logits_to_keep": 1,
            "past_key_values": kept,
            "attention_mask": mask.to(model.device),
        }
        out = model(
            input_ids=ids[:, known:].to(model.device),
            use_cache=caches,
            **{name: value for name, value in more.items() if name in takes},
        )
        if caches:
            kept, known = out.past_key_values, ids.shape[1]
        chances = torch.softmax(out.logits[:, -1].float().cpu(), dim=-1)
        new = torch.multinomial(chances, 1, generator=generator)
        ids = torch.cat([ids, new], dim=-1)
        mask = torch.cat([mask, torch.ones_like(new)], dim=-1)
        over |= torch.isin(new[:, 0], torch.tensor(ends))
        if bool(over.all()):
            break
    return [_ended(row[width:], ends) for row in ids.tolist()]


def _ended(answer: list[int], ends: Sequence[int]) -> list[int]:
    last = next((place for place, token in enumerate(answer) if token in ends), len(answer))
    return answer[: last + 1]
