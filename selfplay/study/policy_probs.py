"""Probabilities of a policy: of every legal action at an information set, and log-odds.

The log-odds compare one completion with another one after the same prompt.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfplay.errors import ConfigError
from selfplay.rollout.rollout import AgentSpec
from selfplay.study.matches import StudyMatches
from selfplay.study.players import StudyPlayer
from selfplay.types import InformationSet, InvalidAction, Turn, role_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

ROWS = 128
"""Largest number of completions in one forward pass."""
LOGITS = 2**26
"""Largest number of logits of one forward pass; 256 MiB in float32."""


def log_odds(
    games: StudyMatches, player: StudyPlayer, turns: Sequence[Turn], default: str
) -> list[float]:
    """Return ln p(completion) - ln p(default) of a player after each turn's prompt, in nats.

    Raises ConfigError if a role's policy is not a model, or if its tokens for these prompts differ.
    """
    found = [0.0] * len(turns)
    for role in dict.fromkeys(turn.role for turn in turns):
        policy = player.policies[role]
        if policy not in games.models:
            raise ConfigError(
                f"{player.label}: {policy} is not a model and has no probabilities; name a player "
                "with a model"
            )
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
    """Return the tokens of a completion, with the token that ends the turn.

    Raises ConfigError if the player's tokenizer or prompts are not those of the turn.
    """
    renderer = games.renderers[player.policies[turn.role]]
    encode = getattr(renderer, "completion_ids", None)
    if encode is None or renderer.start(turn.messages) != turn.prompt_ids:
        raise ConfigError(
            f"{player.label}: its tokens for the prompts of {turn.policy} are different; compare "
            "policies that share a tokenizer and prompts"
        )
    return (*encode(text), renderer.end_ids[0])


def logprobs(model: "PreTrainedModel", pairs: Sequence[tuple[Turn, Sequence[int]]]) -> list[float]:
    """Return ln p of each completion after its turn's prompt, at temperature 1, in nats.

    Rows that need the rotary frequencies of long contexts are computed in a separate pass.
    """
    import torch

    from selfplay.models import position_limits

    bound = position_limits.frequency_change(model.config)
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
        # Padding is on the right: causal attention never reads it.
        logits = model.eval()(input_ids=padded.to(model.device), use_cache=False).logits
        read = logits[:, :-1].float().log_softmax(-1)
        chosen = read.gather(-1, padded[:, 1:, None].to(read.device))[..., 0].double().cpu()
    return [
        float(chosen[number, len(turn.prompt_ids) - 1 : len(turn.prompt_ids) + len(ids) - 1].sum())
        for number, (turn, ids) in enumerate(pairs)
    ]


@dataclass(frozen=True, kw_only=True)
class ActionDistribution:
    """Probabilities of the legal actions at one information set. `read` makes it."""

    where: InformationSet
    """Information set of the actions."""
    mass: Mapping[str, float]
    """Legal action to the probability of its text."""

    @property
    def elsewhere(self) -> float:
        """Probability of any text that is not a legal action."""
        return max(0.0, 1.0 - sum(self.mass.values()))

    def chances(self) -> dict[int, float]:
        """Return OpenSpiel's number of each action to its probability among the legal actions."""
        total = sum(self.mass.values())
        if total <= 0:  # underflow of all probabilities
            return dict.fromkeys(self.where.actions.values(), 1.0 / len(self.mass))
        return {self.where.actions[action]: mass / total for action, mass in self.mass.items()}


def read(
    where: Sequence[InformationSet],
    *,
    agent_specs: Mapping[str, AgentSpec],
    models: "Mapping[str, PreTrainedModel]",
) -> list[ActionDistribution]:
    """Return the distribution at each information set, with the temperature and the truncation of
    the agent's specification.

    The probability of an action is that of its text in the tokenizer's own tokens, followed by a
    token that ends the turn or by the limit of tokens. Other tokens of the same text, and white
    space around it, count as something else.

    Args:
        where: The information sets.
        agent_specs: Role to the specification of its agents.
        models: Policy to model.
    Raises:
        ConfigError: If the role does not take its move from the text alone, or if its policy has no
            tokenizer.
    """
    prompts = [_prompt(each, agent_specs[role_of(each.agent)]) for each in where]
    rows: dict[str, dict[tuple[int, ...], int]] = {}
    for each, prompt in zip(where, prompts, strict=True):
        agent_spec = agent_specs[role_of(each.agent)]
        for action in each.actions:
            row = (*prompt, *_inputs(action, agent_spec))
            known = rows.setdefault(agent_spec.policy, {})
            known[row] = min(known.get(row, len(row)), len(prompt) - 1)
    logits = {
        policy: dict(zip(known, _logits(models[policy], known), strict=True))
        for policy, known in rows.items()
    }
    return [
        ActionDistribution(
            where=each,
            mass={
                action: _chance(action, prompt, agent_spec, logits[agent_spec.policy])
                for action in each.actions
            },
        )
        for each, prompt in zip(where, prompts, strict=True)
        for agent_spec in [agent_specs[role_of(each.agent)]]
    ]


def _prompt(where: InformationSet, agent_spec: AgentSpec) -> tuple[int, ...]:
    """Return the tokens of the prompt; raises ConfigError if the role cannot be read."""
    for action in where.actions:
        _refuse_unread(
            action, agent_spec.renderer.text(_ids(action, agent_spec)), agent_spec, where.agent
        )
    return tuple(agent_spec.renderer.start(agent_spec.role.prompt(where.observation)))


def _inputs(action: str, agent_spec: AgentSpec) -> list[int]:
    """Return the tokens after the prompt that the model has to read for an action's probability."""
    tokens = _ids(action, agent_spec)
    return tokens[: agent_spec.max_tokens - 1] if len(tokens) >= agent_spec.max_tokens else tokens


def _chance(
    action: str,
    prompt: tuple[int, ...],
    agent_spec: AgentSpec,
    known: "Mapping[tuple[int, ...], Tensor]",
) -> float:
    """Return the probability of an action's text.

    Args:
        action: The action.
        prompt: Tokens of the prompt.
        agent_spec: Specification of the agent that is asked.
        known: Row of tokens to the logits of the tokens after the prompt, [N, vocabulary].
    """
    import torch

    from selfplay.engines.truncation import truncate

    tokens = _ids(action, agent_spec)
    if len(tokens) > agent_spec.max_tokens:
        return 0.0
    inputs = _inputs(action, agent_spec)
    logits = known[(*prompt, *inputs)][-1 - len(inputs) :]
    if agent_spec.temperature == 0:
        logits = torch.where(logits == logits.max(-1, keepdim=True).values, 0.0, -torch.inf)
    logprobs = (logits.double() / (agent_spec.temperature or 1.0)).log_softmax(-1)
    logprobs = truncate(logprobs, logits, [agent_spec] * len(logits))
    said = sum(float(logprobs[place, token]) for place, token in enumerate(tokens))
    ended = 0.0
    if len(tokens) < agent_spec.max_tokens:
        ended = float(logprobs[len(tokens), list(agent_spec.renderer.end_ids)].logsumexp(-1))
    return float(torch.tensor(said + ended, dtype=torch.float64).exp())


def _logits(model: "PreTrainedModel", rows: Mapping[tuple[int, ...], int]) -> "list[Tensor]":
    """Return for each row the logits after its tokens from an index on, each [N, vocabulary].

    The tokens that all rows begin with are computed once.

    Args:
        model: A causal language model.
        rows: Row of tokens to the index of the first token whose logits are returned.
    """
    import torch

    from selfplay.models import position_limits
    from selfplay.models.tree_attention import unordinary

    given = list(rows.items())
    unbounded = position_limits.frequency_change(model.config) is None
    stem, together = 0, unbounded and not unordinary(model)
    if together and len(given) > 1:
        read = [row[:first] for row, first in given]
        ends = zip(min(read), max(read), strict=False)
        stem = next((n for n, (a, b) in enumerate(ends) if a != b), min(map(len, read)))
    vocabulary = model.config.get_text_config().vocab_size
    order = sorted(range(len(given)), key=lambda number: len(given[number][0]))
    found: dict[int, Tensor] = {}
    with torch.inference_mode():
        model.eval()
        beginning = None
        if stem:
            ids = torch.tensor([given[0][0][:stem]], device=model.device)
            beginning = model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
        while order:
            width = len(given[order[0]][0]) - stem
            part = [order.pop(0)]
            while order and together:
                width = len(given[order[0]][0]) - stem
                if (len(part) + 1) * width * vocabulary > LOGITS:
                    break
                part.append(order.pop(0))
            tokens = [given[number][0][stem:] for number in part]
            width = max(map(len, tokens))
            # Padding is on the right: causal attention never reads it.
            ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in tokens])
            kept = None
            if beginning is not None:
                kept = copy.deepcopy(beginning)
                kept.batch_repeat_interleave(len(part))
            out = model(
                input_ids=ids.to(model.device), past_key_values=kept, use_cache=kept is not None
            )
            for number, logits, row in zip(part, out.logits, tokens, strict=True):
                found[number] = logits[given[number][1] - stem : len(row)].clone()
    return [found[number] for number in range(len(given))]


def _ids(action: str, agent_spec: AgentSpec) -> list[int]:
    """Return the tokens of an action's text."""
    encode = getattr(agent_spec.renderer, "completion_ids", None)
    if encode is None:
        raise ConfigError(
            f"policy {agent_spec.policy!r}: has no tokenizer, so its probabilities are unknown; "
            "seat a policy with a model"
        )
    return list(encode(action))


def _refuse_unread(action: str, text: str, agent_spec: AgentSpec, agent: str) -> None:
    """Raise ConfigError unless the role reads the action in the completion `text`."""
    name = type(agent_spec.role).__name__
    if agent_spec.role.memory != "none":
        raise ConfigError(
            f"{agent}: its role {name} has memory={agent_spec.role.memory}; its moves depend on "
            "more than the information set; use a role with memory=none"
        )
    if agent_spec.role.skip_thinking:
        raise ConfigError(
            f"{agent}: its role {name} has skip_thinking, so the probability of a move is a sum "
            "over all thinking before it; use a role with skip_thinking=false"
        )
    if agent_spec.role.tools is not None:
        raise ConfigError(
            f"{agent}: its role {name} has tools, so the probability of a move is a sum over all "
            "calls before it; use a role with tools=null"
        )
    if agent_spec.stop:
        raise ConfigError(
            f"{agent}: its completions end at stop strings (sampling.{role_of(agent)}.stop), so a "
            "move has more texts than one; measure a run whose role has none"
        )
    try:
        parsed = agent_spec.role.parse(text)
    except InvalidAction as reason:
        parsed = f"nothing ({reason})"
    if parsed != action:
        raise ConfigError(
            f"{agent}: its role {name} reads {parsed!r} in {text!r}; use a role whose completion "
            "is the move alone, such as roles.player.Player"
        )
