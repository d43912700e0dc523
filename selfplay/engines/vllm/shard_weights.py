"""The update of weights inside the processes of a vLLM engine with tensor parallelism.

vLLM adds the methods of `ShardWeights` to its worker in each of these processes, the shards
(`worker_extension_cls`), and `collective_rpc` calls them in all shards at the same time.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import torch

from selfplay.engines.vllm.weight_buffer import TensorPlace, copies, mapped
from selfplay.errors import one_line

EXTENSION = f"{__name__}.ShardWeights"
"""Import path of the class, for vLLM."""
P = ParamSpec("P")


def _answered(
    method: Callable[Concatenate["ShardWeights", P], None],
) -> Callable[Concatenate["ShardWeights", P], str | None]:
    """Let a method return the reason of a failure, or None.

    An error that one shard raised would leave the answers of the others in their queues, where
    the next call would find them.
    """

    @wraps(method)
    def answer(self: "ShardWeights", *arguments: P.args, **named: P.kwargs) -> str | None:
        from vllm.config import set_current_vllm_config

        try:
            with torch.no_grad(), set_current_vllm_config(self.vllm_config):
                method(self, *arguments, **named)
        except Exception as error:  # vLLM can fail in any way
            return one_line(error)
        return None

    return answer


class ShardWeights:
    """Methods that load weights in a shard; each one returns the reason of a failure, or None.

    A load is one call of `begin_load`, one of `load_piece` per piece, and one of `end_load`. Each
    shard takes its part of every tensor by the model's own `load_weights`.
    """

    # Attributes of vLLM's worker.
    vllm_config: Any
    model_config: Any
    model_runner: Any

    @_answered
    def begin_load(self, path: str, size: int) -> None:
        """Map the buffer with this path and number of bytes, and prepare the model."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self.weight_memory = mapped(path, size)
        initialize_layerwise_reload(self.model_runner.get_model())

    @_answered
    def load_piece(self, places: Sequence[TensorPlace]) -> None:
        """Load the tensors that are in the buffer now."""
        self.model_runner.get_model().load_weights(copies(places, self.weight_memory))

    @_answered
    def end_load(self) -> None:
        """Complete the layers, and drop what vLLM derived from the old weights."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        del self.weight_memory
        finalize_layerwise_reload(self.model_runner.get_model(), self.model_config)
        self.model_runner.reset_lora_state()
        self.model_runner.reset_encoder_cache()
        self.model_runner.reset_mm_cache()

    @_answered
    def load_adapter(self, request: Any) -> None:
        """Load the adapter of a `LoRARequest` from its folder."""
        if not self.model_runner.add_lora(request):
            raise RuntimeError(f"the adapter {request.lora_name} was not added")
