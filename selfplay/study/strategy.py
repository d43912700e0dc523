"""A policy as a strategy: its exact chance of every legal action at every information set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from selfplay.errors import ConfigError
from selfplay.rollout import Seat
from selfplay.types import InformationSet, InvalidAction


@dataclass(frozen=True, kw_only=True)
class Choice:
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
    seats: Mapping[str, Seat],
    models: Mapping[str, PreTrainedModel],
) -> list[Choice]:
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
        Choice(
            where=each,
            mass={
                action: _chance(action, each, seat, models[seat.policy]) for action in each.actions
            },
        )
        for each in where
        for seat in [seats[each.agent.rpartition("_")[0]]]
    ]


def _chance(action: str, where: InformationSet, seat: Seat, model: PreTrainedModel) -> float:
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


def _ids(action: str, seat: Seat) -> list[int]:
    """The tokens of an action's text."""
    tokenizer = getattr(seat.renderer, "tokenizer", None)
    if tokenizer is None:
        raise ConfigError(f"policy {seat.policy!r}: has no tokenizer, so no chances to read")
    return [int(token) for token in tokenizer(action, add_special_tokens=False)["input_ids"]]


def _refuse_unread(action: str, seat: Seat, agent: str) -> None:
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
