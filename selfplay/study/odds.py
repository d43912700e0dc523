"""How much rather a policy does one thing than another in a given prompt."""

import math
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from selfplay import reach
from selfplay.errors import ConfigError
from selfplay.study.games import Games
from selfplay.study.players import Player
from selfplay.types import Turn

ROWS = 128
"""Completions that are scored in one forward pass."""


def log_odds(games: Games, player: Player, turns: Sequence[Turn], default: str) -> list[float]:
    """ln p(what was said) - ln p(default) of a player in the prompts of these turns."""
    found = [0.0] * len(turns)
    for role in dict.fromkeys(turn.role for turn in turns):
        policy = player.policies[role]
        if policy not in games.models:
            raise ConfigError(f"{player.label}: {policy} is no model, so it has no chances to read")
        places = [place for place, turn in enumerate(turns) if turn.role == role]
        for first in range(0, len(places), ROWS):
            part = places[first : first + ROWS]
            mine = [turns[place] for place in part]
            said = logprobs(games.models[policy], [(t, t.completion_ids) for t in mine])
            other = logprobs(
                games.models[policy], [(t, _ids(games, player, t, default)) for t in mine]
            )
            for place, one, two in zip(part, said, other, strict=True):
                found[place] = one - two
    return found


def _ids(games: Games, player: Player, turn: Turn, text: str) -> tuple[int, ...]:
    """A completion's tokens with the end of the turn; refuses another tokenizer than the turn's."""
    renderer = games.renderers[player.policies[turn.role]]
    tokenizer = getattr(renderer, "tokenizer", None)
    if tokenizer is None or renderer.start(turn.messages) != turn.prompt_ids:
        raise ConfigError(
            f"{player.label}: does not read the prompts of {turn.policy} as it does; compare "
            "policies that share a tokenizer and prompts"
        )
    return (*tokenizer(text, add_special_tokens=False)["input_ids"], renderer.end_ids[0])


def logprobs(model: PreTrainedModel, pairs: Sequence[tuple[Turn, tuple[int, ...]]]) -> list[float]:
    """ln p of each completion after its turn's prompt, at temperature 1.

    Rows with the frequencies of long rows are computed in separate passes.
    """
    bound = reach.turn(model.config)
    most = math.inf if bound is None else bound.tokens
    far = [len(turn.prompt_ids) + len(ids) > most for turn, ids in pairs]
    if any(far) and not all(far):
        apart = [
            iter(
                logprobs(model, [pair for pair, own in zip(pairs, far, strict=True) if own is side])
            )
            for side in (False, True)
        ]
        return [next(apart[side]) for side in far]
    width = max(len(turn.prompt_ids) + len(ids) for turn, ids in pairs)
    rows = [[*turn.prompt_ids, *ids] for turn, ids in pairs]
    padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    with torch.inference_mode():
        # Padding stands on the right, where causal attention never looks back from.
        logits = model.eval()(input_ids=padded.to(model.device), use_cache=False).logits
        read = logits[:, :-1].float().log_softmax(-1)
        chosen = read.gather(-1, padded[:, 1:, None].to(read.device))[..., 0].double().cpu()
    return [
        float(chosen[number, len(turn.prompt_ids) - 1 : len(turn.prompt_ids) + len(ids) - 1].sum())
        for number, (turn, ids) in enumerate(pairs)
    ]
