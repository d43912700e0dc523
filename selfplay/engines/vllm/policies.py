"""The policies of one vLLM engine: whose weights it has, proved, and whose requests it runs."""

import json
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from selfplay.engines.vllm import core, weight_check
from selfplay.engines.vllm.core import EngineCore
from selfplay.errors import RunError
from selfplay.models.lora import save_adapter
from selfplay.types import Request, Versions

_NUMBERS = count(1)


class ServedPolicy:
    """One policy, and its requests that are not in vLLM yet."""

    def __init__(
        self, policy: str, model: PreTrainedModel, end_ids: Sequence[int], *, tolerance: float
    ) -> None:
        self.policy, self.model, self.end_ids = policy, model, frozenset(end_ids)
        self.version = 0
        self.loaded = False
        """Whether its present weights are where vLLM can sample with them."""
        self.loads: list[tuple[int, int]] = []
        """Number and version of each load of weights that something in flight may have seen."""
        self.number, self.salt, self.adapter = next(_NUMBERS), "", None
        self.proof = weight_check.WeightCheck(tolerance)
        self.folder = core.folder()
        self.waiting: deque[tuple[int, Request]] = deque()
        self.flying = 0

    @property
    def busy(self) -> bool:
        """Whether it has requests that are not answered."""
        return bool(self.waiting or self.flying)

    def queue(self, request: Request) -> None:
        """Let a request wait for its turn."""
        self.waiting.append((next(_NUMBERS), request))

    def versions(self, spans: Sequence[Any]) -> Versions:
        """The spans that vLLM stamped with numbers of loads, as versions of this policy."""
        found: list[tuple[int, int]] = []
        for span in spans:
            last = int(span.version)
            version = next(v for number, v in reversed(self.loads) if number <= last)
            said = span.end - span.start
            if found and found[-1][0] == version:
                said += found.pop()[1]
            found.append((version, said))
        return tuple(found)


class ServedPolicies:
    """Policies that share an engine: adapters side by side, whole weights one after the other."""

    def __init__(self, host: EngineCore, rank: int | None) -> None:
        """`rank`: the largest adapter that there is room for, where it is a base with adapters."""
        self.host, self.rank = host, rank
        self.all: list[ServedPolicy] = []
        self._active: ServedPolicy | None = None
        self._turn = 0
        """Number of the last request of the turn that it has."""
        self._proof: weight_check.WeightCheck | None = None
        self._running: dict[str, tuple[ServedPolicy, int, Request]] = {}
        self._counts: Counter[str] = Counter()

    def enter(self, tenant: ServedPolicy) -> None:
        """Serve one more, once its weights have arrived; raises RunError where they do not.

        While another's requests are in flight, whole weights wait for their turn.
        """
        if self.rank is not None and not self.all:
            self.host.load(base_of(tenant.model), tied=_tied(tenant.model))
        if self.rank is not None or self.host.idle:
            self._load(tenant)
        self.all.append(tenant)

    def leave(self, tenant: ServedPolicy) -> None:
        """Serve one less."""
        self.all.remove(tenant)
        if self._active is tenant:
            self._active = None
        if self.rank is not None:
            self.host.drop(tenant.number)
        tenant.folder.cleanup()

    def rest(self) -> None:
        """Give a GPU's memory back until the next request."""
        if self.host.rest():
            self._active = None

    def step(self) -> list[tuple[ServedPolicy, Request, Any]]:
        """One token for everything that runs; who asked what, and what vLLM says, where done."""
        self._admit()
        done = []
        for name, output in self.host.step():
            tenant, _, request = self._running.pop(name)
            tenant.flying -= 1
            done.append((tenant, request, output))
            self._counts["prompt_tokens"] += len(request.prompt_ids)
            self._counts["cached_tokens"] += output.num_cached_tokens or 0
        return done

    @property
    def idle(self) -> bool:
        """Whether nobody waits for anything."""
        return not any(tenant.busy for tenant in self.all)

    def drain_counts(self) -> Counter[str]:
        """What was counted since the last call."""
        counts, self._counts = self._counts, Counter()
        return counts

    def _admit(self) -> None:
        """Hand over what waits, as far as vLLM has rows for it.

        Under new weights what vLLM has not begun is handed over anew: like what waits here, it
        shall read no prefix of the weights before.
        """
        for stale in self.all:
            if stale.flying and not stale.loaded:
                self._take_back(stale)
                if stale.flying:
                    self._load(stale)
        if not self.idle:
            self.host.wake()
        while self.host.room and (tenant := self._next()) is not None:
            if not tenant.loaded or (self.rank is None and self._active is not tenant):
                self._load(tenant)
            self._begin(tenant, *tenant.waiting.popleft())

    def _next(self) -> ServedPolicy | None:
        """Whose request is the next: the oldest of all adapters, or of the policy whose turn it is.

        A turn lasts for what waited when another policy began to wait, so that each one's comes.
        """
        waiting = [tenant for tenant in self.all if tenant.waiting]
        if not waiting:
            return None
        oldest = min(waiting, key=lambda tenant: tenant.waiting[0][0])
        if self.rank is not None:
            return oldest
        if self.host.idle or waiting == [self._active]:
            self._turn = oldest.waiting[-1][0]
            return oldest
        active = self._active
        mine = active is not None and active.waiting and active.waiting[0][0] <= self._turn
        return active if mine else None

    def _begin(self, tenant: ServedPolicy, number: int, request: Request) -> None:
        import vllm

        sampling = vllm.SamplingParams(
            temperature=request.temperature,
            seed=request.seed % 2**63,
            max_tokens=request.max_tokens,
            stop_token_ids=list(tenant.end_ids),
            ignore_eos=True,  # the policy's end tokens alone end a completion
            logprobs=0,
            detokenize=False,
        )
        name = self.host.begin(
            request.prompt_ids, sampling, salt=tenant.salt, adapter=tenant.adapter
        )
        self._running[name] = (tenant, number, request)
        tenant.flying += 1

    def _take_back(self, tenant: ServedPolicy) -> None:
        """Let those of a policy that have no token yet wait again, in front and in their order."""
        mine = [name for name, (whose, _, _) in self._running.items() if whose is tenant]
        for name in reversed(self.host.take_back(mine)):
            _, number, request = self._running.pop(name)
            tenant.waiting.appendleft((number, request))
            tenant.flying -= 1

    def _load(self, tenant: ServedPolicy) -> None:
        """Let vLLM sample with a policy's weights; raises RunError where they do not arrive."""
        host, model = self.host, tenant.model
        host.wake()
        if self.rank is not None:
            folder = Path(tenant.folder.name)
            save_adapter(model, folder, base="base")
            tenant.adapter = host.adapt(tenant.number, folder)
            before = tenant.proof
        else:
            self._active = None
            host.load(model.state_dict(), tied=_tied(model))
            before = self._proof = self._proof or tenant.proof
        number = next(_NUMBERS)
        host.stamp(number)
        if not tenant.flying:  # of whom no older token is asked for
            tenant.loads.clear()
        tenant.loads.append((number, tenant.version))
        if not tenant.loaded:
            # What was cached with other weights is never read again, whoever else is in flight.
            tenant.salt = f"{tenant.policy} {number}"
            host.forget()
        asked = weight_check.prompts(model.config.get_text_config().vocab_size, host.limit - 1)
        said = host.next_logprobs(asked, salt=f"proof {number}", adapter=tenant.adapter)
        try:
            error = before.check(said, weight_check.logprobs(model, asked))
        except weight_check.WeightMismatch as reason:
            raise RunError(
                f"policy {tenant.policy!r}: version {tenant.version} did not reach vLLM: {reason}"
            ) from None
        self._counts["loads"] += 1
        self._counts["proof_difference"] = max(self._counts["proof_difference"], error)  # type: ignore[assignment]
        tenant.loaded = True
        self._active = tenant


def rank_of(model: PreTrainedModel) -> int | None:
    """The rank of a model's adapter; None without one."""
    adapters = getattr(model, "peft_config", None)
    return None if not adapters else max(each.r for each in adapters.values())


def place_of(model: PreTrainedModel) -> Hashable:
    """Equal for models that one engine of vLLM can serve."""
    if rank_of(model) is not None:  # whose base several share, tensor by tensor
        embeddings: Any = model.get_input_embeddings()
        return embeddings.weight.data_ptr()
    config = {name: v for name, v in model.config.to_dict().items() if name != "_name_or_path"}
    shape = json.dumps(config, sort_keys=True, default=str)
    return type(model).__name__, str(model.device), model.dtype, shape


def base_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights beneath an adapter, in the names of a model that has none."""
    return dict(_beneath(model))


def _beneath(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in model.state_dict().items():
        if ".lora_" not in name:
            yield name.replace(".base_layer.", "."), tensor


def _tied(model: PreTrainedModel) -> bool:
    return bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False))
