"""An output embedding that computes its logits in float32 from weights of 16 bits.

Logits of a language model are often between 16 and 32, where bfloat16 has steps of 1/8. A policy
that is sampled from such logits has few different probabilities, and cannot tell similar prompts
apart. MiniMax-M1 (2506.13585) and ScaleRL (2510.13786) compute logits in float32 for this reason.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional
from transformers import PreTrainedModel

SHORT = (torch.bfloat16, torch.float16)
"""Types of 16 bits, in which logits are rounded too much and small optimizer steps are lost."""


class Float32Head(torch.nn.Linear):
    """A linear layer that multiplies in float32, whatever the type of its weights."""

    def forward(self, input: Tensor) -> Tensor:
        """Return float32 logits [..., V] of hidden states [..., H]."""
        if self.weight.dtype not in SHORT:
            return super().forward(input)
        bias = None if self.bias is None else self.bias.float()
        return functional.linear(input.float(), self.weight.float(), bias)


def compute_logits_in_float32(model: PreTrainedModel) -> None:
    """Let a model in 16 bits compute its logits in float32; its weights stay as they are.

    Heads other than a plain linear layer are left alone.
    """
    head = model.get_output_embeddings()
    if model.dtype in SHORT and type(head) is torch.nn.Linear:
        head.__class__ = Float32Head


def in_float32(head: torch.nn.Module, *, keep: bool = False) -> Callable[[Tensor], Tensor]:
    """Return a function from states to logits, with weights of 16 bits cast to float32 once.

    Its calls add their gradients of the weights in float32, where the calls of `head` would add
    them in 16 bits, as FSDP gathers them. A head whose weights are fixed or have more bits is
    returned as it is.

    Args:
        head: An output embedding.
        keep: True if the function must have copies of the weights without gradients, because the
            weights may be freed or change.
    """
    weights: dict[str, Tensor] = dict(head.named_parameters())
    short = any(w.dtype in SHORT and (w.requires_grad or keep) for w in weights.values())
    if not short and not keep:
        return head
    if keep:
        weights = {name: weight.detach().clone() for name, weight in weights.items()}
    if short:
        weights = {name: weight.float() for name, weight in weights.items()}

    def logits(states: Tensor) -> Tensor:
        given = states.float() if short else states
        found: Tensor = functional_call(head, weights, (given,))
        return found

    return logits
