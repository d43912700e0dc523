"""A policy as a strategy: its exact chance of every legal action at every information set.

How much rather a policy does one thing than another in a given prompt.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from selfplay.errors import ConfigError
from selfplay.models import position_limits
from selfplay.rollout.rollout import AgentSpec
from selfplay.study.matches import StudyMatches
from selfplay.study.players import StudyPlayer
from selfplay.types import InformationSet, InvalidAction, Turn

ROWS = 128
"""Completions that are scored in one forward pass."""


def log_odds(
    games: StudyMatches, player: StudyPlayer, turns: Sequence[Turn], default: str
) -> list[float]:
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
                games.models[policy],
                [(t, _completion_ids(games, player, t, default)) for t in mine],
            )
            for place, one, two in zip(part, said, other, strict=True):
                found[place] = one - two
    return found


def _completion_ids(
    games: StudyMatches, player: StudyPlayer, turn: Turn, text: str
) -> tuple[int, ...]:
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
    bound = position_limits.turn(model.config)
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


@dataclass(frozen=True, kw_only=True)
class ActionDistribution:
    """What is done at one information set."""

    where: InformationSet
    """The set."""
    mass: Mapping[str, float]
    """Legal action to the chance that its text is said."""

    @property
    def elsewhere(self) -> float:
        """The chance that anything else is said."""
        return max(0.0, 1.0 - sum(self.mass.values()))

    def chances(self) -> dict[int, float]:
        """OpenSpiel's number of each action to its chance, given that it is legal."""
        total = sum(self.mass.values())
        if total <= 0:  # underflow: nothing is known but that none is likelier than another
            return dict.fromkeys(self.where.actions.values(), 1.0 / len(self.mass))
        return {self.where.actions[action]: mass / total for action, mass in self.mass.items()}


def read(
    where: Sequence[InformationSet],
    *,
    seats: Mapping[str, AgentSpec],
    models: Mapping[str, PreTrainedModel],
) -> list[ActionDistribution]:
    """The choice at each information set, at the temperature that the seat samples with.

    The chance of an action is that of its text as the tokenizer writes it, with a token that ends
    the turn or cut off by the seat's limit. Other spellings (other tokens of the same text, white
    space around it) count as something else.

    Args:
        where: The information sets.
        seats: Role to seat.
        models: Policy to model.

    Raises ConfigError where the role does not take its move from the text alone.
    """
    return [
        ActionDistribution(
            where=each,
            mass={
                action: _chance(action, each, seat, models[seat.policy]) for action in each.actions
            },
        )
        for each in where
        for seat in [seats[each.agent.rpartition("_")[0]]]
    ]


def _chance(action: str, where: InformationSet, seat: AgentSpec, model: PreTrainedModel) -> float:
    _refuse_unread(action, seat, where.agent)
    renderer = seat.renderer
    prompt = renderer.start(seat.role.prompt(where.observation))
    tokens = _ids(action, seat)
    if len(tokens) > seat.max_tokens:
        return 0.0
    with torch.inference_mode():
        ids = torch.tensor([[*prompt, *tokens]], device=model.device)
        logits = model.eval()(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :]
        if seat.temperature == 0:
            logits = torch.where(logits == logits.max(-1, keepdim=True).values, 0.0, -torch.inf)
        logprobs = (logits.double() / (seat.temperature or 1.0)).log_softmax(-1)
    said = sum(float(logprobs[place, token]) for place, token in enumerate(tokens))
    ended = 0.0
    if len(tokens) < seat.max_tokens:
        ended = float(logprobs[len(tokens), list(renderer.end_ids)].logsumexp(-1))
    return float(torch.tensor(said + ended, dtype=torch.float64).exp())


def _ids(action: str, seat: AgentSpec) -> list[int]:
    """The tokens of an action's text."""
    tokenizer = getattr(seat.renderer, "tokenizer", None)
    if tokenizer is None:
        raise ConfigError(f"policy {seat.policy!r}: has no tokenizer, so no chances to read")
    return [int(token) for token in tokenizer(action, add_special_tokens=False)["input_ids"]]


def _refuse_unread(action: str, seat: AgentSpec, agent: str) -> None:
    name = type(seat.role).__name__
    if seat.role.memory != "none":
        raise ConfigError(
            f"{agent}: its role {name} has memory={seat.role.memory}, so that what it does depends "
            "on more than the information set; chances are read of roles with memory=none"
        )
    try:
        parsed = seat.role.parse(action)
    except InvalidAction as reason:
        parsed = f"nothing ({reason})"
    if parsed != action:
        raise ConfigError(
            f"{agent}: its role {name} reads {parsed!r} in {action!r}; chances are read of roles "
            "whose completion is the move alone, such as roles.player.Player"
        )
