"""Published weights in the model of a policy, from which an engine of this process samples."""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel


@torch.no_grad()
def copy_published(weights: Mapping[str, Tensor], model: PreTrainedModel) -> None:
    """Copy weights by name into a model, except those that are the model's own tensors."""
    own = model.state_dict()
    for name, tensor in weights.items():
        if own[name].data_ptr() != tensor.data_ptr():
            own[name].copy_(tensor)
