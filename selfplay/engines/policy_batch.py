"""The requests of one policy: their prompts, their decoding steps, and what they share."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from selfplay.engines import check_lengths
from selfplay.engines.decoding import DecodingRows
from selfplay.engines.greedy_answers import GreedyAnswers
from selfplay.engines.kv_cache import SlotCache
from selfplay.engines.prefix_cache import PrefixCache
from selfplay.engines.prompt_parts import PromptPart, prompt_parts
from selfplay.models.position_limits import reach
from selfplay.models.tree_attention import additive
from selfplay.types import Completion, Request


class PolicyBatch:
    """All requests of one policy, for which every distinct token is computed once.

    `TransformersEngine` makes one for each policy. Requests with equal histories are one row of the
    forward pass (`DecodingRows`). New prompts begin with the keys and values of earlier ones
    (`PrefixCache`) and of each other (`prompt_parts`). Equal greedy requests are one request
    (`GreedyAnswers`).
    """

    def __init__(
        self,
        policy: str,
        model: PreTrainedModel,
        end_ids: Sequence[int],
        *,
        max_rows: int,
        prefill_tokens: int,
        stride: int,
        prefix_tokens: int,
    ) -> None:
        config = model.config.get_text_config()
        self.model, self.policy, self.version = model, policy, 0
        self.max_rows, self.prefill_tokens, self.stride = max_rows, prefill_tokens, stride
        self.prefix_tokens = prefix_tokens
        self.device = model.device
        self.waiting: deque[Request] = deque()
        self.greedy = GreedyAnswers()
        self.rows = DecodingRows(end_ids)
        self.layers = config.num_hidden_layers
        self.counts: Counter[str] = Counter()
        """Numbers of tokens since the last `TransformersEngine.drain_metrics`."""
        self.release()
        self.limit, self.why = getattr(config, "max_position_embeddings", None), ""
        if self.limit is not None and self.limit < 1:  # XLNet has no limit and says so by -1
            self.limit = None
        served = reach(model).served()
        if served is not None and (self.limit is None or served.tokens < self.limit):
            self.limit, self.why = served.tokens, f" (it has {served.reason})"

    @property
    def busy(self) -> bool:
        """True while a request has no completion."""
        return bool(self.waiting or len(self.rows))

    def release(self) -> None:
        """Free the memory of all keys and values; no request may be in flight."""
        self.cache = SlotCache(self.layers, self.device)
        self.sleep()

    def sleep(self) -> None:
        """Free the memory of what earlier requests left for later ones."""
        self.prefixes = PrefixCache(self.prefix_tokens)
        self.forget()

    def forget(self) -> None:
        """Drop what earlier requests left for later ones."""
        self.prefixes.clear()
        self.greedy.forget()
        self._weights = _weights(self.model)

    def renew(self, version: int) -> None:
        """Sample with new weights from now on; completions in flight keep their keys and values."""
        self.rows.stamp(self.version)  # so that these are not stored
        self.version = version
        self.forget()

    def add(self, request: Request) -> None:
        """Queue a request."""
        check_lengths(request, self.limit, self.why)
        self.waiting.append(request)

    def step(self) -> list[Completion]:
        """Sample up to `stride` tokens for every request; return the completions that ended."""
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
                finished += self._collect()
        finally:
            self.model.train(training)
        self.counts["completion_tokens"] += sum(len(done.completion_ids) for done in finished)
        return finished

    def _admit(self) -> None:
        """Move waiting requests to rows, one row for each distinct prompt."""
        if self.waiting and self._weights != _weights(self.model):
            self.renew(self.version)  # an optimizer changed them in place
        siblings: dict[tuple[int, ...], list[Request]] = {}
        longest, room = 0, self.max_rows - len(self.rows)
        while self.waiting and room:
            request = self.waiting.popleft()
            self.counts["prompt_tokens"] += len(request.prompt_ids)
            if not self.greedy.take(request):
                siblings.setdefault(request.prompt_ids, []).append(request)
                longest = max(longest, len(request.prompt_ids) + request.max_tokens)
                room -= 1
        if not siblings:
            return
        self._regroup()
        prompts = sorted(siblings)
        rows = self.cache.extend(len(prompts), longest)
        known = self.prefixes.load(self.cache, rows.tolist(), prompts)
        self.counts["cached_tokens"] += sum(known)
        for wave in prompt_parts(prompts, known):
            self._copy_stems(wave, rows)
            for chunk in self._chunks(wave, prompts):
                self._prefill(chunk, prompts, siblings, rows)

    def _copy_stems(self, wave: Sequence[PromptPart], rows: Tensor) -> None:
        """Copy what the rows of a wave share with rows of earlier waves."""
        copies = [
            (part.source, part.prompt, part.start) for part in wave if part.source is not None
        ]
        if copies:
            source, target, length = torch.tensor(copies, device=self.device).T
            self.cache.copy(rows[source], rows[target], length)

    def _chunks(
        self, wave: Sequence[PromptPart], prompts: Sequence[tuple[int, ...]]
    ) -> Iterator[list[PromptPart]]:
        """Yield the parts of one pass each; parts of one length share a pass."""
        parts = deque(sorted(wave, key=lambda part: len(prompts[part.prompt]) - part.start))
        while parts:
            chunk = [parts.popleft()]
            while parts:
                width = len(prompts[parts[0].prompt]) - parts[0].start
                if (len(chunk) + 1) * width > self.prefill_tokens:
                    break
                chunk.append(parts.popleft())
            yield chunk

    def _prefill(
        self,
        parts: Sequence[PromptPart],
        prompts: Sequence[tuple[int, ...]],
        siblings: dict[tuple[int, ...], list[Request]],
        rows: Tensor,
    ) -> None:
        """Compute one part of each prompt, and sample the first token of its requests."""
        tokens = [prompts[part.prompt][part.start :] for part in parts]
        width = max(map(len, tokens))
        ids = torch.tensor([(0,) * (width - len(each)) + each for each in tokens])
        own = rows[torch.tensor([part.prompt for part in parts], device=rows.device)]
        logits = self._forward(own, ids, torch.tensor([len(each) for each in tokens]))
        asked = [siblings[prompts[part.prompt]] for part in parts]
        sources = [source for source, requests in enumerate(asked) for _ in requests]
        first = len(self.rows)
        self.rows.add(
            [request for requests in asked for request in requests],
            own[torch.tensor(sources, device=own.device)].tolist(),
        )
        self.rows.draw(logits, torch.tensor(sources), first)

    def _decode(self) -> None:
        """Compute the latest token of each distinct history, and sample the next ones."""
        inputs = self._regroup()
        rows = torch.arange(len(inputs), device=self.device)
        logits = self._forward(rows, inputs[:, None], torch.ones_like(inputs))
        self.rows.draw(logits, self.rows.row)

    def _regroup(self) -> Tensor:
        """Give each distinct history one row; return the rows' next input tokens [rows]."""
        sources, inputs = self.rows.regroup()
        self.cache.regroup(sources)
        return inputs

    def _forward(self, rows: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        """Return the logits [R, vocabulary] after the last token of each row.

        Args:
            rows: [R] rows of the cache.
            ids: [R, N] their new tokens, padded on the left.
            new: [R] number of new tokens of each row.
        """
        mask, positions = self.cache.begin(rows, new.to(self.device))
        if mask is not None and self.model.config._attn_implementation == "eager":
            mask = additive(mask, self.model.dtype)  # eager attention adds it to the scores
        out = self.model(
            input_ids=ids.to(self.device),
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.counts["computed_tokens"] += ids.numel()
        logits: Tensor = out.logits[:, -1]
        return logits

    def _collect(self) -> list[Completion]:
        """Remove and return the completions that have ended; store their keys and values."""
        finished, self.greedy.ready = self.greedy.ready, []
        if not bool(self.rows.ended.any()):
            return finished
        self.counts["stored_tokens"] += self.prefixes.store(self.cache, self.rows.computed())
        for done in self.rows.collect(self.version):
            finished += [done, *self.greedy.finish(done)]
        return finished


def _weights(model: PreTrainedModel) -> list[tuple[int, int]]:
    """Return address and number of changes of each of the model's tensors."""
    return [
        (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
        for tensor in model.parameters()
    ]
