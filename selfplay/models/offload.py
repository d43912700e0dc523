"""Moves models and optimizers to main memory and back, so that processes can share a GPU."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from selfplay.models.main_memory import in_main_memory


def offload(modules: Iterable[Module], optimizer: Optimizer | None = None) -> Callable[[], None]:
    """Move modules and an optimizer's state to main memory; return the function that restores them.

    Parameters stay the same objects, and so do those that several modules share. Gradients of the
    optimizer's parameters are dropped. For a model that is sharded by FSDP, pass its outermost
    sharded module.

    Args:
        modules: Modules, each with all its tensors on one device, except those that it shares with
            a module that is in main memory already.
        optimizer: Optimizer of some of their parameters.
    """
    if optimizer is not None:
        optimizer.zero_grad(set_to_none=True)
    places = [(module, _device(module)) for module in modules]
    states = optimizer.state.values() if optimizer is not None else ()
    moments = [
        (state, key, value.device)
        for state in states
        for key, value in state.items()
        if isinstance(value, Tensor) and value.device.type != "cpu"
    ]
    for module, _ in places:
        module._apply(in_main_memory)
    for state, key, _ in moments:
        state[key] = in_main_memory(state[key])
    free_cache()

    def restore() -> None:
        for module, device in places:
            module.to(device)
        for state, key, device in moments:
            state[key] = state[key].to(device)

    return restore


def _device(module: Module) -> torch.device:
    """Return the device of a module, also if another offload has moved its base to main memory."""
    devices = [parameter.device for parameter in module.parameters()]
    return next((device for device in devices if device.type != "cpu"), devices[0])


def free_cache() -> None:
    """Give memory of a GPU that torch keeps for later tensors back to other processes."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
