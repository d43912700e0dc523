"""The policies of one vLLM engine: their weights, and the order of their requests."""

import json
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from selfplay.engines.request_queue import RequestQueue, order
from selfplay.engines.stop_strings import StopMatcher
from selfplay.engines.vllm import core, weight_check
from selfplay.engines.vllm.adapter_arrival import AdapterArrival, held_sums, sent_sums
from selfplay.engines.vllm.core import EngineCore
from selfplay.engines.vllm.gpu_stream import on_stream
from selfplay.engines.vllm.weight_update import (
    ask_models,
    is_split,
    load_adapter,
    load_base,
    load_weights,
    rank_of,
)
from selfplay.errors import RunError
from selfplay.types import Request, Versions

OTHER_KEYS = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "id2label",
        "initializer_range",
        "label2id",
        "pad_token_id",
        "transformers_version",
        "use_cache",
    }
)
"""Keys of a model's config that do not change what its layers compute, such as the end tokens,
which each policy passes with its requests."""

_NUMBERS = count(1)
"""Increasing numbers for policies and weight loads."""


class ServedPolicy:
    """One policy, and its requests that vLLM has not received yet."""

    def __init__(
        self,
        policy: str,
        model: PreTrainedModel,
        end_ids: Sequence[int],
        *,
        tolerance: float,
        shards: int = 1,
    ) -> None:
        """Args:
        policy: Name of the policy.
        model: Its model.
        end_ids: Tokens that end a completion.
        tolerance: Maximum mean difference of log-probabilities in nats.
        shards: Number of the engine's shards.
        """
        self.policy, self.model, self.end_ids = policy, model, frozenset(end_ids)
        self.limit = core.own_limit(model)
        self.version = 0
        self.loaded = False
        """True if vLLM has the policy's current weights."""
        self.loads: list[tuple[int, int]] = []
        """(number, version) of each weight load with which requests in flight were sampled."""
        self.number, self.salt, self.adapter = next(_NUMBERS), "", None
        self.weight_check = weight_check.WeightCheck(tolerance, shards=shards)
        self.folder = core.folder()
        self.waiting = RequestQueue()
        """Requests of the policy's turn."""
        self.later: list[Request] = []
        """Requests that came after the turn began, in order."""
        self.in_flight = 0
        """Number of requests that vLLM has received and not completed."""

    @property
    def busy(self) -> bool:
        """True if the policy has requests without a completion."""
        return bool(self.queued or self.in_flight)

    @property
    def queued(self) -> bool:
        """True if the policy has requests that vLLM has not received yet."""
        return bool(self.waiting or self.later)

    def ids(self) -> list[int]:
        """Return the ids of the requests that vLLM has not received yet."""
        return [*self.waiting.ids(), *(request.id for request in self.later)]

    def renew_salt(self) -> None:
        """Let later requests read only prefixes that are cached from now on."""
        self.salt = f"{self.policy} {next(_NUMBERS)}"

    def queue(self, request: Request) -> None:
        """Queue a request until the policy's turn."""
        self.later.append(request)

    def begin_turn(self) -> None:
        """Add all requests that came so far to the policy's turn."""
        for request in self.later:
            self.waiting.add(request)
        self.later = []

    def versions(self, spans: Sequence[Any]) -> Versions:
        """Convert vLLM's spans, which record numbers of weight loads, to versions of the policy."""
        versions: list[tuple[int, int]] = []
        for span in spans:
            last = int(span.version)
            version = next(v for number, v in reversed(self.loads) if number <= last)
            tokens = span.end - span.start
            if versions and versions[-1][0] == version:
                tokens += versions.pop()[1]
            versions.append((version, tokens))
        return tuple(versions)


class ServedPolicies:
    """Policies that share a vLLM engine: adapters at the same time, whole weights in turns.

    `VLLMEngine` makes one for each `engine_key`.
    """

    def __init__(self, host: EngineCore, rank: int | None) -> None:
        """`rank` is the largest rank of an adapter for a base with adapters, else None."""
        self.host, self.rank = host, rank
        self.all: list[ServedPolicy] = []
        self._active: ServedPolicy | None = None
        self._weight_check: weight_check.WeightCheck | None = None
        self._arrival = weight_check.ArrivalCheck()
        self._adapter_arrival = AdapterArrival()
        self._running: dict[str, tuple[ServedPolicy, Request]] = {}
        self._metrics: defaultdict[str, float] = defaultdict(float)

    def enter(self, served: ServedPolicy) -> None:
        """Serve one more policy and load its weights; raises RunError if they do not arrive.

        While another policy has requests in flight, whole weights are loaded later, when the
        policy's turn begins.
        """
        with on_stream(self.host.stream):
            if self.rank is not None and not self.all:
                load_base(self.host.engine, served.model)
            if self.rank is not None or self.host.idle:
                self._load(served)
        self.all.append(served)

    def leave(self, served: ServedPolicy) -> None:
        """Stop serving a policy."""
        self.all.remove(served)
        if self._active is served:
            self._active = None
        if self.rank is not None:
            with on_stream(self.host.stream):
                self.host.drop(served.number)
        served.folder.cleanup()

    def forget(self) -> None:
        """Read no prefixes from now on that earlier requests cached.

        vLLM empties its cache only without requests in flight, so that new salts separate the
        prefixes. The old ones leave the cache when it needs their place.
        """
        for served in self.all:
            served.renew_salt()

    def sleep(self) -> None:
        """Free the GPU's memory until the next request."""
        with on_stream(self.host.stream):
            if self.host.sleep():
                self._active = None

    def step(self) -> list[tuple[ServedPolicy, Request, Any]]:
        """Sample one token per running request; return (policy, request, output) of ended ones."""
        with on_stream(self.host.stream):
            self._admit()
            outputs = self.host.step()
        done = []
        for name, output in outputs:
            served, request = self._running.pop(name)
            served.in_flight -= 1
            done.append((served, request, output))
            self._metrics["prompt_tokens"] += len(request.prompt_ids)
            self._metrics["cached_tokens"] += output.num_cached_tokens or 0
        return done

    @property
    def idle(self) -> bool:
        """True if no policy has an unfinished request."""
        return not any(served.busy for served in self.all)

    def drain_metrics(self) -> Mapping[str, float]:
        """Return the metrics since the last call."""
        metrics, self._metrics = self._metrics, defaultdict(float)
        return metrics

    def _admit(self) -> None:
        """Start queued requests while vLLM has free rows.

        After an update, requests without a sampled token are aborted and started again, because
        they must not read cached prefixes of the older weights.
        """
        for stale in self.all:
            if stale.in_flight and not stale.loaded:
                self._take_back(stale)
                if stale.in_flight:
                    self._load(stale)
        if not self.idle:
            self.host.wake()
        while self.host.room and (served := self._next()) is not None:
            if not served.loaded or (self.rank is None and self._active is not served):
                self._load(served)
            self._begin(served, served.waiting.pop())

    def _next(self) -> ServedPolicy | None:
        """Return the policy of the next request; None if there is none.

        Adapters: the policy whose request is the first of all (`RequestQueue`). Whole weights: if
        several policies wait, the engine first answers the requests that the active policy had when
        another one began to wait. Then it loads the policy whose oldest request waits longest.
        """
        waiting = [served for served in self.all if served.queued]
        if not waiting:
            return None
        if self.rank is not None:
            for served in waiting:
                served.begin_turn()
            return min(waiting, key=lambda served: order(served.waiting.first()))
        active = self._active
        if self.host.idle or waiting == [active]:
            found = waiting[0]
            if len(waiting) > 1:
                found = min(waiting, key=lambda served: min(served.ids()))
            found.begin_turn()
            return found
        return active if active is not None and active.waiting else None

    def _begin(self, served: ServedPolicy, request: Request) -> None:
        import vllm

        sampling = vllm.SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            seed=request.seed % 2**63,
            max_tokens=request.max_tokens,
            stop_token_ids=list(served.end_ids),
            ignore_eos=True,  # only the policy's end tokens end a completion
            logprobs=0,
            detokenize=False,
            output_kind=core.final_only(),
        )
        name = self.host.begin(
            request.prompt_ids,
            sampling,
            salt=served.salt,
            adapter=served.adapter,
            priority=-request.turns_taken,
        )
        if request.stop:
            self.host.watch(name, StopMatcher(request))
        self._running[name] = (served, request)
        served.in_flight += 1

    def _take_back(self, served: ServedPolicy) -> None:
        """Move a policy's requests without a sampled token back to their places in its queue."""
        names = [name for name, (owner, _) in self._running.items() if owner is served]
        for name in self.host.take_back(names):
            _, request = self._running.pop(name)
            served.waiting.add(request)
            served.in_flight -= 1

    def _load(self, served: ServedPolicy) -> None:
        """Load a policy's weights into vLLM; raises RunError if they do not arrive."""
        host, model = self.host, served.model
        host.wake()
        host.settle()
        if self.rank is not None:
            folder = Path(served.folder.name)
            served.adapter = load_adapter(host.engine, model, served.number, folder)
            before = served.weight_check
        else:
            self._active = None
            load_weights(host.engine, model, model.state_dict())
            before = self._weight_check = self._weight_check or served.weight_check
        number = next(_NUMBERS)
        host.stamp(number)
        if not served.in_flight:
            served.loads.clear()
        served.loads.append((number, served.version))
        if not served.loaded:
            # Prefixes cached with older weights are not read again: their salt is another one.
            served.renew_salt()
            host.forget()
        try:
            compared = self._compare_sums(served)
            error = self._compare(served, before, number)
        except weight_check.WeightMismatch as reason:
            raise RunError(
                f"policy {served.policy!r}: version {served.version} did not reach vLLM: {reason}"
            ) from None
        self._metrics["loads"] += 1
        self._metrics["loads_compared"] += compared
        self._metrics["proof_difference"] = max(self._metrics["proof_difference"], error)
        served.loaded = True
        self._active = served

    def _compare_sums(self, served: ServedPolicy) -> bool:
        """Compare sums of vLLM's tensors with the policy's; return False if none are comparable.

        Raises WeightMismatch if they differ.
        """
        host, model = self.host, served.model
        if self.rank is None:
            known = bool(self._arrival.compared)  # the first load shows which tensors are
            report = partial(weight_check.shard_tensors, names=self._arrival.names)
            self._arrival.check(ask_models(host.engine, report), model.state_dict())
            return known
        if is_split(host.engine):
            return False
        (held,) = ask_models(host.engine, partial(held_sums, number=served.number))
        self._adapter_arrival.check(held, sent_sums(model, host.dtype))
        return bool(self._adapter_arrival.compared)

    def _compare(
        self, served: ServedPolicy, before: weight_check.WeightCheck, number: int
    ) -> float:
        """Compare vLLM's log-probabilities with the model's; return their difference in nats.

        Raises WeightMismatch if the check `before` does not accept the difference.
        """
        host, model = self.host, served.model
        asked = weight_check.prompts(model.config.get_text_config().vocab_size, host.limit - 1)
        said = host.next_logprobs(asked, salt=f"proof {number}", adapter=served.adapter)
        return before.check(said, weight_check.logprobs(model, asked))


def engine_key(model: PreTrainedModel) -> Hashable:
    """Return a key that is equal for models that one vLLM engine can serve.

    Adapters of one base share its parameters, whose memory may move while an engine sleeps.
    """
    if rank_of(model) is not None:
        embeddings: Any = model.get_input_embeddings()
        return id(embeddings.weight)
    config = model.config.to_dict()
    left_out = set(OTHER_KEYS)
    if (config.get("rope_parameters") or {}).get("rope_type") == "default":
        left_out.add("max_position_embeddings")  # a limit, and not the size of a table of weights
    # A key that is empty in one config may be missing in the other.
    kept = {name: value for name, value in config.items() if value and name not in left_out}
    shape = json.dumps(kept, sort_keys=True, default=str)
    return type(model).__name__, str(model.device), model.dtype, shape
