"""The embedded engine: continuous batching of a Hugging Face causal LM, on a CPU or a GPU.

There is one prefill per distinct prompt and one random stream per request; rows join and leave
between decoding steps. The model must have ordinary attention layers and no recurrent state. Rows
of different lengths share one cache, so the engine tests a model with two short prompts before it
serves it: the log-probabilities must equal those of the model alone. Some models can be served
only with short rows (`selfplay.models.position_limits`).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from selfplay.engines import Engine, check_lengths
from selfplay.engines.decoding import DecodingRows
from selfplay.engines.kv_cache import SlotCache
from selfplay.errors import ConfigError, nearest, one_line
from selfplay.models.position_limits import reach
from selfplay.models.tree_attention import (
    CLEARLY_NEARER,
    ROUNDING,
    additive,
    evaluating,
    exact,
    unordinary,
)
from selfplay.types import Completion, Request


class TransformersEngine(Engine):
    """Serves several policies in this process, each with its own model."""

    can_update_in_flight = True

    def __init__(
        self,
        *,
        max_rows: int = 1024,
        prefill_tokens: int = 16_384,
        stride: int = 16,
    ) -> None:
        """Args:
        max_rows: Maximum number of completions in flight per policy.
        prefill_tokens: Maximum number of prompt tokens per prefill, with padding.
        stride: Number of decoding steps after which requests can join.
        """
        settings = {"max_rows": max_rows, "prefill_tokens": prefill_tokens, "stride": stride}
        for name, value in settings.items():
            if value < 1:
                raise ConfigError(f"engine.{name}: must be at least 1, not {value}")
        self._settings = settings
        self._batches: dict[str, _Batch] = {}
        self._known: dict[str, str] = {}

    def serve(self, policy: str, model: PreTrainedModel, end_ids: Sequence[int]) -> None:
        """Serve one more policy from now on with its model's own tensors.

        Args:
            policy: Its name.
            model: Its model; ConfigError if the engine cannot serve its attention.
            end_ids: The tokens that end a completion.
        """
        if problem := unordinary(model) or self._tried(model):
            raise ConfigError(
                f"policy {policy!r}: the transformers engine cannot serve {type(model).__name__} "
                f"with {problem}; choose another model or another engine"
            )
        self._batches[policy] = _Batch(policy, model, end_ids, **self._settings)

    def _tried(self, model: PreTrainedModel) -> str:
        """Return the reason why rows of a model cannot share a cache; empty if they can.

        Models with equal configs are tested only once.
        """
        kernel = model.config._attn_implementation
        build = f"{type(model)} {kernel} {model.dtype} {model.device} {model.config!r}"
        if build not in self._known:
            self._known[build] = _differs(model)
        return self._known[build]

    def withdraw(self, policy: str) -> None:
        """Stop serving a policy; raises RuntimeError while it has requests in flight."""
        self.release(policy)
        del self._batches[policy]

    def release(self, policy: str) -> None:
        """Free the memory of a policy's key-value cache until the policy's next request.

        Raises RuntimeError while it has requests in flight.
        """
        batch = self._batch(policy)
        if batch.busy:
            raise RuntimeError(f"policy {policy!r} withdrawn with requests in flight")
        batch.cache = SlotCache(len(batch.cache.layers), batch.device)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises ConfigError if its policy's model cannot serve the request, and PromptTooLong if
        only the length of the prompt is the reason.
        """
        self._batch(request.policy).add(request)

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """Sample up to `stride` tokens for every request in flight."""
        return [done for batch in self._batches.values() for done in batch.step()]

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        """Copy `weights` into the policy's model, unless they are the model's own tensors.

        With `in_flight_updates`, completions in flight continue with the new weights and record
        the version of every token. Their keys and values stay those of the older weights
        (PipelineRL, 2509.19128), because new ones would cost a prefill of all completions in flight
        with every update. Without it, raises RuntimeError while there are requests in flight.
        """
        batch = self._batch(policy)
        if batch.busy and not self.in_flight_updates:
            raise RuntimeError(f"policy {policy!r} got new weights with requests in flight")
        batch.rows.stamp(batch.version)
        own = batch.model.state_dict()
        with torch.no_grad():
            for name, tensor in weights.items():
                if own[name].data_ptr() != tensor.data_ptr():
                    own[name].copy_(tensor)
        batch.version = version

    def _batch(self, policy: str) -> "_Batch":
        if policy not in self._batches:
            hint = nearest(policy, self._batches)
            raise ConfigError(f"the engine serves no policy {policy!r}; {hint}")
        return self._batches[policy]


class _Batch:
    """The requests of one policy."""

    def __init__(
        self,
        policy: str,
        model: PreTrainedModel,
        end_ids: Sequence[int],
        *,
        max_rows: int,
        prefill_tokens: int,
        stride: int,
    ) -> None:
        config = model.config.get_text_config()
        self.model, self.policy, self.version = model, policy, 0
        self.max_rows, self.prefill_tokens, self.stride = max_rows, prefill_tokens, stride
        self.device = model.device
        self.waiting: deque[Request] = deque()
        self.rows = DecodingRows(end_ids)
        self.cache = SlotCache(config.num_hidden_layers, self.device)
        self.limit, self.why = getattr(config, "max_position_embeddings", None), ""
        if self.limit is not None and self.limit < 1:  # XLNet has no limit and says so by -1
            self.limit = None
        served = reach(model).served()
        if served is not None and (self.limit is None or served.tokens < self.limit):
            self.limit, self.why = served.tokens, f" (it has {served.reason})"

    @property
    def busy(self) -> bool:
        return bool(self.waiting or len(self.rows))

    def add(self, request: Request) -> None:
        check_lengths(request, self.limit, self.why)
        self.waiting.append(request)

    def step(self) -> list[Completion]:
        if not self.busy:
            return []
        training = self.model.training
        self.model.eval()
        try:
            self._admit()
            finished = self._collect()
            for _ in range(self.stride):
                if not len(self.rows):
                    break
                self._decode()
                # Rows that have ended cost compute until they leave; leaving costs a copy.
                if int(self.rows.ended.sum()) * 8 >= len(self.rows):
                    finished += self._collect()
            return finished + self._collect()
        finally:
            self.model.train(training)

    def _admit(self) -> None:
        count = min(len(self.waiting), self.max_rows - len(self.rows))
        if count <= 0:
            return
        # Sorted by prompt: equal prompts are neighbours, prompts of one length share a prefill.
        requests = sorted(
            (self.waiting.popleft() for _ in range(count)),
            key=lambda request: (len(request.prompt_ids), request.prompt_ids),
        )
        longest = max(len(request.prompt_ids) + request.max_tokens for request in requests)
        self.cache.reserve(len(self.rows) + count, longest)
        siblings: dict[tuple[int, ...], list[Request]] = {}
        for request in requests:
            siblings.setdefault(request.prompt_ids, []).append(request)
        prompts = deque(siblings)
        while prompts:
            chunk = [prompts.popleft()]
            while prompts and (len(chunk) + 1) * len(prompts[0]) <= self.prefill_tokens:
                chunk.append(prompts.popleft())
            self._prefill(chunk, [siblings[prompt] for prompt in chunk])

    def _prefill(
        self, prompts: Sequence[tuple[int, ...]], requests: Sequence[Sequence[Request]]
    ) -> None:
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros(len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        cache = DynamicCache(config=self.model.config)
        out = self.model(
            input_ids=ids.to(self.device),
            attention_mask=None if bool(mask.all()) else mask.to(self.device),
            position_ids=(mask.cumsum(1) - 1).clamp(min=0).to(self.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        new = [request for siblings in requests for request in siblings]
        sources = [source for source, siblings in enumerate(requests) for _ in siblings]
        first = len(self.rows)
        self.cache.admit(cache, sources, [len(request.prompt_ids) for request in new])
        self.rows.add(new)
        self.rows.draw(out.logits[torch.tensor(sources, device=self.device), -1], first)

    def _decode(self) -> None:
        mask = self.cache.start_step()
        if self.model.config._attn_implementation == "eager":  # it adds the mask to the scores
            mask = additive(mask, self.model.dtype)
        out = self.model(
            input_ids=self.rows.inputs[:, None].to(self.device),
            attention_mask=mask,
            position_ids=self.cache.live_columns[:, None],
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.cache.end_step((~self.rows.ended).to(self.device))
        self.rows.draw(out.logits[:, -1])

    def _collect(self) -> list[Completion]:
        """Remove the rows that have ended and return their completions."""
        if not bool(self.rows.ended.any()):
            return []
        completions, kept = self.rows.collect(self.version)
        self.cache.keep(kept)
        return completions


TEST_PROMPTS = ((1,), (2, 1, 3, 2, 1, 0, 3, 1))
"""Prompts of the test of a model; the longer one is cut to the model's limit."""
TEST_TOKENS = 3
"""Number of tokens that are sampled after each of these prompts."""


@torch.inference_mode()
def _differs(model: PreTrainedModel) -> str:
    """Return the reason why the engine's log-probabilities are wrong; empty if they are right.

    The difference must be rounding, or much smaller than the change that another first token makes.
    A model in 16 bits is tested with its first layers in float32 (`attention.exact`).
    """
    whole = exact(model)
    batch = _Batch("", whole, [], max_rows=8, prefill_tokens=64, stride=1)
    limit = batch.limit
    if limit is not None and limit < len(TEST_PROMPTS[0]) + TEST_TOKENS:
        return f"room for {limit} tokens only"
    apart = change = scale = 0.0
    try:
        vocabulary = int(whole.config.get_text_config().vocab_size)
        for number, ids in enumerate(TEST_PROMPTS):
            cut = ids if limit is None else ids[: limit - TEST_TOKENS]
            prompt = tuple(token % vocabulary for token in cut)
            batch.add(
                Request(
                    id=number, policy="", prompt_ids=prompt, seed=number, max_tokens=TEST_TOKENS
                )
            )
        prompts = {request.id: request.prompt_ids for request in batch.waiting}
        while batch.busy:
            for done in batch.step():
                said, engine = done.completion_ids, torch.tensor(done.logprobs).double()
                alone = _nats(whole, prompts[done.id], said)
                other = _nats(whole, (4 % vocabulary, *prompts[done.id][1:]), said)
                apart = max(apart, float((engine - alone).abs().max()))
                change = max(change, float((other - alone).abs().max()))
                scale = max(scale, float(alone.abs().max()))
    except Exception as error:  # a model's own code may fail in any way with our cache
        return f"a forward pass that does not take rows of different lengths ({one_line(error)})"
    if apart <= max(ROUNDING * torch.finfo(whole.dtype).eps * scale, change / CLEARLY_NEARER):
        return ""
    return f"log-probabilities that change by {apart:.2g} nats where rows share a cache"


def _nats(model: PreTrainedModel, prompt: Sequence[int], said: Sequence[int]) -> torch.Tensor:
    """Return the log-probabilities [C] of a completion by the model without a cache."""
    with evaluating(model):
        ids = torch.tensor([[*prompt, *said]], device=model.device)
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        chosen = torch.tensor([list(said)], device=logits.device).T
        return logits.double().log_softmax(-1).gather(1, chosen)[:, 0].cpu()
