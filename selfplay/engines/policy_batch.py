"""The requests of policies over one base: their prompts, decoding steps, and what they share."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby, zip_longest

import torch
from torch import Tensor
from transformers import PreTrainedModel

from selfplay.engines.batched_policy import BatchedPolicy
from selfplay.engines.decoding import DecodingRows
from selfplay.engines.kv_cache import SlotCache
from selfplay.engines.prompt_parts import PromptPart, passes, prompt_parts
from selfplay.models.mixed_adapters import MixedAdapters
from selfplay.models.tree_attention import additive
from selfplay.types import Completion, Request

Prompt = tuple[int, tuple[int, ...]]
"""The number of a policy, and the tokens of a prompt for it."""


class PolicyBatch:
    """All requests of policies over one base, for which every distinct token is computed once.

    `TransformersEngine` makes one for all adapters over a base, and one for each other policy.
    Requests with equal histories are one row of the forward pass (`DecodingRows`). New prompts
    begin with the keys and values of earlier ones (`PrefixCache`) and of each other
    (`prompt_parts`). Equal greedy requests are one request (`GreedyAnswers`). A pass with rows of
    several adapters computes their base once (`MixedAdapters`). Policies share no token.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        end_ids: Sequence[int],
        *,
        max_rows: int,
        prefill_tokens: int,
        stride: int,
        prefix_tokens: int,
    ) -> None:
        """`model`: one of the policies' models, which `join` adds; for the settings, see
        `TransformersEngine`."""
        self.max_rows, self.prefill_tokens, self.stride = max_rows, prefill_tokens, stride
        self.prefix_tokens = prefix_tokens
        self.device = model.device
        self.policies: dict[str, BatchedPolicy] = {}
        self.rows = DecodingRows(end_ids)
        self.layers = model.config.get_text_config().num_hidden_layers
        self.counts: Counter[str] = Counter()
        """Numbers of tokens since the last `TransformersEngine.drain_metrics`."""
        self._numbers = 0
        self._mixed: MixedAdapters | None = None
        self._empty()

    @property
    def busy(self) -> bool:
        """True while a request has no completion."""
        return any(policy.busy for policy in self.policies.values())

    def join(self, name: str, model: PreTrainedModel) -> None:
        """Serve a policy from now on; its model must have the same base as the others."""
        self.policies[name] = policy = BatchedPolicy(
            name, model, number=self._numbers, prefix_tokens=self.prefix_tokens
        )
        self._numbers += 1
        if self._mixed is not None:
            self._mixed.join(policy.number, model)
        elif len(self.policies) > 1:
            self._mixed = MixedAdapters(model)
            for each in self.policies.values():
                self._mixed.join(each.number, each.model)

    def leave(self, name: str) -> None:
        """Stop serving a policy, which must not have a request in flight."""
        self.release(name)
        policy = self.policies.pop(name)
        if self._mixed is not None:
            self._mixed.leave(policy.number)

    def release(self, name: str) -> None:
        """Free the memory of a policy's keys and values; it must not have a request in flight.

        The policies share the buffer of all rows. It is freed if none of them has a request in
        flight; the policies then compute the beginnings of their prompts again.
        """
        if not self.busy:
            self._empty()
        self.policies[name].sleep()

    def _empty(self) -> None:
        """Free the keys and values of all rows; no row may be in use.

        Kept prefixes are dropped, because the new buffer cannot hold any before its first pass.
        """
        for policy in self.policies.values():
            policy.prefixes.clear()
        self.cache = SlotCache(self.layers, self.device)
        self.owners = torch.zeros(0, dtype=torch.long)
        """[rows of the cache] number of the policy of each row, on the CPU."""

    def sleep(self) -> None:
        """Drop the results of earlier requests and free their memory.

        The buffer of all rows stays on a CPU, where new memory is slow, and where it takes no room
        from a learner's device.
        """
        if self.device.type != "cpu" and not self.busy:
            self._empty()
        for policy in self.policies.values():
            policy.sleep()

    def forget(self) -> None:
        """Drop the keys, values and completions of earlier requests; keep the memory."""
        for policy in self.policies.values():
            policy.forget()

    def renew(self, name: str, version: int) -> None:
        """Sample a policy's tokens with new weights from now on; completions in flight keep their
        keys and values."""
        policy = self.policies[name]
        self.rows.stamp(name, policy.version)  # `computed` leaves out completions with a stamp
        policy.version = version
        policy.forget()

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.policies[request.policy].add(request)

    def step(self) -> list[Completion]:
        """Sample up to `stride` tokens for every request; return the completions that ended."""
        if not self.busy:
            return []
        training = [policy.model for policy in self.policies.values() if policy.model.training]
        for model in training:
            model.eval()
        try:
            self._admit()
            finished = self._collect()
            for _ in range(self.stride):
                if not len(self.rows):
                    break
                self._decode()
                finished += self._collect()
        finally:
            for model in training:
                model.train()
        self.counts["completion_tokens"] += sum(len(done.completion_ids) for done in finished)
        return finished

    def _admit(self) -> None:
        """Move waiting requests to rows, one row for each distinct prompt of a policy, and sample
        their first tokens."""
        siblings: dict[Prompt, list[Request]] = {}
        for policy in self.policies.values():
            if policy.waiting and policy.changed():
                self.renew(policy.name, policy.version)  # an optimizer changed them in place
            while policy.waiting and policy.in_rows < self.max_rows:
                request = policy.waiting.pop()
                self.counts["prompt_tokens"] += len(request.prompt_ids)
                if not policy.greedy.take(request):
                    siblings.setdefault((policy.number, request.prompt_ids), []).append(request)
                    policy.in_rows += 1
        if not siblings:
            return
        longest = max(
            len(request.prompt_ids) + request.max_tokens
            for requests in siblings.values()
            for request in requests
        )
        self._regroup()
        # Sorted by name and not by number: the order in which policies join changes no rounding.
        names = {policy.number: policy.name for policy in self.policies.values()}
        asked = sorted(siblings, key=lambda each: (names[each[0]], each[1]))
        rows = self.cache.extend(len(asked), longest)
        numbers = torch.tensor([number for number, _ in asked])
        self.owners = torch.cat([self.owners, numbers])
        for wave in self._waves(asked, rows.tolist()):
            self._copy_stems(wave, rows)
            lengths = [len(asked[part.prompt][1]) - part.start for part in wave]
            for indices in passes(lengths, self.prefill_tokens):
                self._prefill([wave[index] for index in indices], asked, siblings, rows)

    def _waves(self, asked: Sequence[Prompt], rows: Sequence[int]) -> list[list[PromptPart]]:
        """Return the parts of all prompts in waves; a prompt shares tokens within its policy.

        Args:
            asked: Distinct prompts, by policy and in ascending order.
            rows: The row of each of them, which gets its stored beginning.
        """
        policies = {policy.number: policy for policy in self.policies.values()}
        divided, first = [], 0
        for number, found in groupby(asked, key=lambda each: each[0]):
            prompts = [prompt for _, prompt in found]
            own = rows[first : first + len(prompts)]
            known = policies[number].prefixes.load(self.cache, own, prompts)
            self.counts["cached_tokens"] += sum(known)
            parts = prompt_parts(prompts, known)
            divided.append([[part.moved(first) for part in wave] for wave in parts])
            first += len(prompts)
        return [
            [part for wave in waves for part in wave]
            for waves in zip_longest(*divided, fillvalue=[])
        ]

    def _copy_stems(self, wave: Sequence[PromptPart], rows: Tensor) -> None:
        """Copy the tokens that the rows of a wave share with rows of earlier waves."""
        copies = [
            (part.source, part.prompt, part.start) for part in wave if part.source is not None
        ]
        if copies:
            source, target, length = torch.tensor(copies, device=self.device).T
            self.cache.copy(rows[source], rows[target], length)

    def _prefill(
        self,
        parts: Sequence[PromptPart],
        prompts: Sequence[Prompt],
        siblings: dict[Prompt, list[Request]],
        rows: Tensor,
    ) -> None:
        """Compute one part of each prompt, and sample the first token of its requests."""
        tokens = [prompts[part.prompt][1][part.start :] for part in parts]
        width = max(map(len, tokens))
        ids = torch.tensor([(0,) * (width - len(each)) + each for each in tokens])
        own = rows[torch.tensor([part.prompt for part in parts], device=rows.device)]
        owners = [prompts[part.prompt][0] for part in parts]
        logits = self._forward(own, owners, ids, torch.tensor([len(each) for each in tokens]))
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
        owners = self.owners.tolist()
        logits = self._forward(rows, owners, inputs[:, None], torch.ones_like(inputs))
        self.rows.draw(logits, self.rows.row)

    def _regroup(self) -> Tensor:
        """Give each distinct history one row; return the rows' next input tokens [rows]."""
        sources, inputs = self.rows.regroup()
        self.cache.regroup(sources)
        self.owners = self.owners[sources]
        return inputs

    def _forward(self, rows: Tensor, owners: Sequence[int], ids: Tensor, new: Tensor) -> Tensor:
        """Return the logits [R, vocabulary] after the last token of each row.

        Args:
            rows: [R] rows of the cache.
            owners: [R] number of the policy of each row.
            ids: [R, N] their new tokens, padded on the left.
            new: [R] number of new tokens of each row.
        """
        model = self._model(owners)
        mask, positions = self.cache.begin(rows, new.to(self.device))
        if mask is not None and model.config._attn_implementation == "eager":
            mask = additive(mask, model.dtype)  # eager attention adds it to the scores
        out = model(
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

    def _model(self, owners: Sequence[int]) -> PreTrainedModel:
        """Return the model for a pass: that of the only policy, or the mixed one.

        Args:
            owners: [R] number of the policy of each row.
        """
        if len(distinct := set(owners)) == 1:
            (number,) = distinct
            return next(each.model for each in self.policies.values() if each.number == number)
        assert self._mixed is not None
        self._mixed.assign(owners)
        return self._mixed.model

    def _collect(self) -> list[Completion]:
        """Remove and return the completions that have ended; store their keys and values."""
        finished = []
        for policy in self.policies.values():
            finished += policy.greedy.ready
            policy.greedy.ready = []
        if not bool(self.rows.ended.any()):
            return finished
        for name, histories in self.rows.computed().items():
            stored = self.policies[name].prefixes.store(self.cache, histories)
            self.counts["stored_tokens"] += stored
        versions = {name: policy.version for name, policy in self.policies.items()}
        for name, done in self.rows.collect(versions):
            policy = self.policies[name]
            policy.in_rows -= 1
            finished += [done, *policy.greedy.finish(done)]
        return finished
