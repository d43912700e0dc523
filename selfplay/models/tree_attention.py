"""Tree attention: rows that hold a tree of tokens, their masks, and checks of what a model
supports.

Tokens are in depth-first order, so the subtree of a token holds the columns from its own to its
`end`. A token sees an earlier one exactly if its column lies in the subtree of the earlier one. So
one number per token is the whole mask. This module gives the mask in the form that each attention
kernel takes, and tests whether a model's attention supports such masks.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.hooks import RemovableHandle
from transformers import DynamicCache, PreTrainedModel
from transformers.utils import is_flash_attn_2_available

BLOCK = 128
"""Columns of a block: flex attention skips blocks that are masked completely."""


def visible(ends: Tensor, stem: int = 0) -> Tensor:
    """Return [R, 1, T - stem, T], True where a column from `stem` on sees a column.

    Args:
        ends: [R, T] last column of each token's subtree.
        stem: First column of the queries.
    """
    columns = torch.arange(ends.shape[1], device=ends.device)
    own = columns[stem:, None]
    return ((columns <= own) & (own <= ends[:, None]))[:, None]


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to the scores: 0 where `visible`, the least number of `dtype` elsewhere.

    Eager attention takes no other mask; sdpa would convert a boolean mask in every layer again.
    """
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, torch.finfo(dtype).min
    )


def blocks(ends: Tensor) -> BlockMask:
    """Return the mask of flex attention (2412.05496), without any tensor of T x T.

    Args:
        ends: [R, T] last column of each token's subtree.
    """
    columns = ends.shape[1]
    count = -(-columns // BLOCK)
    # Columns after the last one see nothing, so no block that contains them is completely visible.
    padded = torch.nn.functional.pad(ends, (0, count * BLOCK - columns), value=-1)
    padded = padded.unflatten(1, (count, BLOCK))
    first = torch.arange(count, device=ends.device) * BLOCK
    last, query = first + BLOCK - 1, first[:, None]
    whole = (last < query) & (last[:, None] <= padded.amin(-1)[:, None])
    some = (first <= query) & (query <= padded.amax(-1)[:, None]) & ~whole

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query <= ends[row, key])

    return BlockMask.from_kv_blocks(
        *_listed(some),
        *_listed(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(columns, columns),
    )


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return [R, 1, Q] number of chosen key blocks of each query block, and [R, 1, Q, K] indices of
    all key blocks, the chosen ones first.

    Args:
        chosen: [R, Q, K] True for the chosen blocks.
    """
    order = (~chosen).to(torch.int32).argsort(dim=-1, stable=True)
    return chosen.sum(-1, dtype=torch.int32)[:, None], order.to(torch.int32)[:, None]


Kernel: TypeAlias = Literal["sdpa", "eager", "flex_attention", "flash_attention_2"]
"""Attention kernel, by its name in transformers."""

FLEX, FLASH = "flex_attention", "flash_attention_2"
ON_GPUS = {
    FLEX: "has no backward pass on a CPU",
    FLASH: "has no code for a CPU",
}
"""Kernels that learn only on GPUs, each with the reason."""
PROGRAMS = 64
"""Largest number of programs that flex attention is compiled into, for rows of different shapes."""
CLEARLY_NEARER = 8
"""Factor by which logits or log-probabilities must be nearer to the right ones than those of a pass
with a deliberate mistake."""
LARGE = 2**28
"""Number of parameters from which only the first layers of a float32 model are tested on a CPU."""
ROUNDING = 32
"""Number of units of rounding (the type's epsilon times the largest logit or log-probability) up to
which a difference counts as rounding."""


def unordinary(model: PreTrainedModel, *kernels: str) -> str:
    """Return the reason why the model has no ordinary attention over all earlier tokens; empty if
    it has.

    Args:
        model: The model.
        kernels: Kernels that are allowed besides sdpa and eager.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if getattr(model, "_is_stateful", False):
        return "recurrent layers"
    if kinds != {"full_attention"}:
        return f"layers of other kinds than full attention ({', '.join(sorted(kinds))})"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return "sliding-window attention"
    if model.config._attn_implementation not in ("sdpa", "eager", *kernels):
        return f"attention of the kind {model.config._attn_implementation!r}"
    return ""


@contextmanager
def attending(kernel: Kernel | None, *models: PreTrainedModel) -> Iterator[None]:
    """Compute the models' attention with a kernel during the context; None changes nothing.

    Backward passes belong inside the context, because they may compute blocks again.
    """
    if kernel is None:
        yield
        return
    before = [model.config._attn_implementation for model in models]
    hooks: list[RemovableHandle] = []
    try:
        for model in models:
            model.set_attn_implementation(kernel)
            if kernel == FLEX:
                decoder: Any = model.get_decoder()
                hooks.append(decoder.register_forward_pre_hook(_one_kernel, with_kwargs=True))
        with _compiling(kernel):
            yield
    finally:
        for hook in hooks:
            hook.remove()
        for model, earlier in zip(models, before, strict=True):
            model.set_attn_implementation(earlier)


def _one_kernel(_: object, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Add the option that makes flex attention use one kernel for rows of all lengths.

    torch has another kernel for rows of less than 128 columns. It cannot be compiled if the columns
    times the query heads of a key head are more than 128 (torch 2.11, on an H100).
    """
    return given, {**named, "kernel_options": {"BACKEND": "TRITON"}}


def _compiling(kernel: Kernel) -> AbstractContextManager[Any]:
    """Return a context with torch's settings for a kernel."""
    if kernel != FLEX:
        return nullcontext()
    from torch._dynamo import config

    # Each combination of one or several rows, one or several blocks, and gradients or none is a
    # program. Above the limit torch would compute and store all scores.
    patched: AbstractContextManager[Any] = config.patch(recompile_limit=PROGRAMS)
    return patched


def kernel_device_problem(kernel: str | None, device: torch.device) -> str:
    """Return the reason why a kernel cannot learn on a device; empty if it can."""
    if kernel in ON_GPUS and device.type == "cpu":
        return f"{kernel} {ON_GPUS[kernel]}; set policy.device to a GPU, or learner.attention=sdpa"
    return ""


def kernel_model_problem(kernel: Kernel | None, model: PreTrainedModel) -> str:
    """Return the reason why a learner cannot use a kernel for the model's attention; else "".

    The kernel is tested with a few tokens on the model's device, on a CPU without the compiler.
    """
    if kernel is None:
        return ""
    name = type(model).__name__
    # A rank's model moves from the CPU to its GPU when it is sharded.
    dist = torch.distributed
    moves = dist.is_initialized() and "nccl" in dist.get_backend_config()
    if not moves and (reason := kernel_device_problem(kernel, model.device)):
        return reason
    if kernel == FLASH and not is_flash_attn_2_available():
        return "flash_attention_2 needs the package flash-attn (pip install flash-attn) and a GPU"
    if kernel == FLASH and model.dtype not in (torch.bfloat16, torch.float16):
        return (
            "flash_attention_2 computes in 16 bits, and the weights are "
            f"{str(model.dtype).removeprefix('torch.')}; set policy.dtype=bfloat16 (for weights "
            "that learn with an adapter, policy.lora), or learner.attention=flex_attention"
        )
    try:
        with attending(kernel, model):
            if model.config._attn_implementation != kernel:
                return f"{name} does not let its attention be chosen; leave it at null"
            if kernel != FLASH or model.device.type != "cpu":
                with evaluating(model):
                    ids = torch.tensor([[1, 2, 1, 0]], device=model.device)
                    model(input_ids=ids, use_cache=False)
    except Exception as error:  # packages, compilers and a model's own code can raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]
        return f"{name} cannot use {kernel} here: {reason}"
    return ""


def run_tree(
    module: Callable[..., Any],
    model: PreTrainedModel,
    ids: Tensor,
    ends: Tensor,
    places: Tensor,
    *,
    stem: int = 0,
) -> list[Any]:
    """Run a model, or its decoder, on rows that are trees. Returns outputs to join along the
    columns.

    Args:
        module: `model` or its decoder.
        model: The model.
        ids: [R, T] tokens, in depth-first order.
        ends: [R, T] last column of each token's subtree.
        places: [R, T] positions.
        stem: Number of columns that, in every row, see all columns before them. They are computed
            first and without a mask, except if the kernel skips masked blocks itself.
    """
    device = model.device
    ids, ends, places = ids.to(device), ends.to(device), places.to(device)
    flex = model.config._attn_implementation == FLEX
    if flex or not stem:
        mask = blocks(ends) if flex else additive(visible(ends), model.dtype)
        return [module(input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False)]
    cache = DynamicCache(config=model.config)
    return [
        module(input_ids=ids[:, :stem], past_key_values=cache, use_cache=True),
        module(
            input_ids=ids[:, stem:],
            attention_mask=additive(visible(ends, stem), model.dtype),
            position_ids=places[:, stem:],
            past_key_values=cache,
            use_cache=True,
        ),
    ]


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Run the model without dropout and without gradients during the context."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), ExitStack() as stack:
            if model.config._attn_implementation == FLEX and model.device.type == "cpu":
                # A rank tests here what a GPU computes later; the compiler would take a minute.
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield
    finally:
        model.train(training)


def exact(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model, its `sample_layers`, or the first two layers in float32 of a model in 16
    bits.

    In 16 bits, rounding would hide mistakes.
    """
    if model.dtype not in (torch.bfloat16, torch.float16):
        return sample_layers(model)
    return _first_layers(model, {}).float()


def sample_layers(model: PreTrainedModel) -> PreTrainedModel:
    """Return the first two layers of a large float32 model on a CPU, and any other model as it is.

    A few passes of all its layers would take minutes. The layers have the model's own parameters.
    """
    shared = {id(parameter): parameter for parameter in model.parameters()}
    large = sum(parameter.numel() for parameter in shared.values()) >= LARGE
    if not (large and model.dtype == torch.float32 and model.device.type == "cpu"):
        return model
    return _first_layers(model, shared)


def _first_layers(model: PreTrainedModel, shared: dict[int, Any]) -> PreTrainedModel:
    """Return a copy of the model with its first two layers; `shared` are tensors by `id` that are
    not copied."""
    decoder: Any = model.get_decoder()
    layers = getattr(decoder, "layers", None)
    if layers is None:
        return copy.deepcopy(model, shared)
    try:
        decoder.layers = layers[:2]
        made = copy.deepcopy(model, shared)
    finally:
        decoder.layers = layers
    config = made.config.get_text_config()
    config.num_hidden_layers = min(2, len(layers))  # a cache has as many
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:2]
    return made


def rows_problem(model: PreTrainedModel) -> str:
    """Return the reason why the model cannot learn to continue a text; empty if it can.

    Tokens after a row must not change the row. This is tested with a few tokens: the change must be
    rounding, or much smaller than the change that another first token makes.
    """
    model = exact(model)
    vocabulary = int(model.config.get_text_config().vocab_size)
    row = torch.tensor([[5, 6, 7, 5, 8, 9, 0, 0]]) % vocabulary
    other = torch.cat([torch.tensor([[4]]) % vocabulary, row[:, 1:]], dim=1)
    try:
        with evaluating(model):
            alone, longer, moved = (
                model(input_ids=ids.to(model.device), use_cache=False).logits[:, :6].double()
                for ids in (row[:, :6], row, other)
            )
    except Exception:  # reported when its logits are tested
        return ""
    apart = float((longer - alone).abs().max())
    least = ROUNDING * torch.finfo(model.dtype).eps * float(alone.abs().max())
    if apart <= max(least, float((moved - longer).abs().max()) / CLEARLY_NEARER):
        return ""
    return "attention to tokens that come later"


def tree_problem(model: PreTrainedModel) -> str:
    """Return the reason why the model cannot take a tree of tokens in one row; empty if it can.

    Layers with a window or a state would pass the test with a tree that is smaller than the window,
    so they are found in the config. Other models are tested with a small tree with two branches, as
    one row and as one row after its stem. The logits are compared with those of two separate rows.
    The model passes if their error is much smaller than the error without the mask, and than the
    error without the positions, if the model has positions.
    """
    if reason := unordinary(model, FLEX):
        return reason
    model = exact(model)
    stem, branches = [5, 6, 7, 5], [[8, 9, 6], [7, 5, 9]]
    vocabulary = int(model.config.get_text_config().vocab_size)
    rows = torch.tensor([stem + branch for branch in branches]) % vocabulary
    tree = torch.tensor([stem + branches[0] + branches[1]]) % vocabulary
    ends = torch.tensor([[9, 9, 9, 9, 6, 6, 6, 9, 9, 9]])
    places = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 4, 5, 6]])
    tried = {
        "tree": (ends, places, 0),
        "after a stem": (ends, places, len(stem)),
        "without mask": (torch.full_like(ends, 9), places, 0),
        "without positions": (ends, torch.arange(10)[None], 0),
    }
    try:
        with evaluating(model):
            rows_out = model(input_ids=rows.to(model.device), use_cache=False).logits.double()
            truth = torch.cat([rows_out[0], rows_out[1, len(stem) :]])
            apart = {}
            for name, (seen, at, first) in tried.items():
                parts = run_tree(model, model, tree, seen, at, stem=first)
                logits = torch.cat([part.logits for part in parts], dim=1)[0]
                apart[name] = float((logits.double() - truth).abs().max())
    except Exception as error:  # a model's own code can raise anything
        return f"a forward pass that does not take a tree's mask ({type(error).__name__})"
    distance = max(apart["tree"], apart["after a stem"])
    leak, shift = apart["without mask"], apart["without positions"]
    least = ROUNDING * torch.finfo(model.dtype).eps * float(truth.abs().max())
    if not leak > least:
        return "attention on which a mask has no effect beyond rounding"
    mistakes = [leak, shift] if shift > least else [leak]  # some models have no positions
    if not distance * CLEARLY_NEARER <= min(mistakes):
        return "attention that does not follow a tree's mask and positions"
    return ""
