"""Learner ranks as forks of the test's process, with the interface of remote ranks."""

import gc
import multiprocessing
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from selfplay.learner import fsdp
from selfplay.learner.learner import Learner
from selfplay.learner.objective import BatchCounts
from selfplay.learner.outline import shared
from selfplay.learner.process_group import shard
from selfplay.models.policy import Policy
from selfplay.runtime.distributed_learner import DistributedLearner
from selfplay.runtime.learner_worker import LearnerInfo, LearnerWorker
from selfplay.types import Sample
from tests.helpers.builders import sample

FORK = multiprocessing.get_context("fork")
LONGEST = 600
"""Seconds after which a rank counts as hanging."""

Make = Callable[[], Learner]


class Forks:
    """A group of ranks: see `selfplay.runtime.distributed_learner.Ranks`."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self.pipes, self.count = pipes, len(pipes)

    def ask(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        return self._ask(method, [arguments] * self.count, named)

    def ask_each(
        self, method: str, name: str, parts: Sequence[Any], *arguments: Any, **named: Any
    ) -> list[Any]:
        return self._ask(method, [(name, part, *arguments) for part in parts], named)

    def ask_apart(self, method: str, *arguments: Any) -> tuple[Any, Any]:
        apart, answer = self.ask(method, *arguments)[0]
        return answer, apart

    def ask_concurrently(self, method: str, *arguments: Any) -> Callable[[], list[Any]]:
        return partial(self.ask, method, *arguments)

    def put(self, value: Any) -> Any:
        return value

    def read(self, reference: Any) -> Any:
        return reference

    def _ask(
        self, method: str, each: Sequence[tuple[Any, ...]], named: Mapping[str, Any]
    ) -> list[Any]:
        for pipe, arguments in zip(self.pipes, each, strict=True):
            pipe.send((method, arguments, named))
        found = []
        for pipe in self.pipes:
            assert pipe.poll(LONGEST), f"{method}: a rank hangs"
            found.append(pipe.recv())
        for answer in found:
            if isinstance(answer, BaseException):
                raise answer
        return found


@contextmanager
def forked(count: int) -> Iterator[Forks]:
    """Yield ranks. Each call of `serve` sends them a function that makes their next learner."""
    with TemporaryDirectory() as folder:
        pairs = [FORK.Pipe() for _ in range(count)]
        processes = [
            FORK.Process(target=_child, args=(rank, count, Path(folder, "store"), pairs[rank][1]))
            for rank in range(count)
        ]
        for process in processes:
            process.start()
        try:
            yield Forks([ours for ours, _ in pairs])
        finally:
            for process in processes:
                process.kill()
                process.join()


def ranked(forks: Forks, make: Make, replicas: int = 1) -> DistributedLearner:
    """Return a distributed learner with learners on the ranks and its policy in this process."""
    about, *_ = forks.ask("serve", make, replicas)
    own = make()
    policy = Policy(name="base", model=own.model, renderer=None)  # type: ignore[arg-type]
    return DistributedLearner(forks, policy, own.objective, about)


def fetched(learner: DistributedLearner) -> PreTrainedModel:
    """Return the policy of this process with the learner's current weights."""
    learner.fetch_weights()
    return learner.policy.model


def _child(rank: int, count: int, store: Path, pipe: Connection) -> None:
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
        served = Rank()
        served._writers = dist.new_group(backend="gloo")
        while True:
            method, arguments, named = pipe.recv()
            try:
                if method == "serve":
                    answer: Any = _serve(served, *arguments)
                else:
                    answer = getattr(served, method)(*arguments, **named)
                    answer = tuple(answer) if isinstance(answer, Iterator) else answer
            except Exception as error:
                traceback.print_exc()
                answer = error
            pipe.send(answer)
    finally:
        os._exit(0)


class Rank(LearnerWorker):
    """A rank that counts its parameters, and whose thread that writes files can be blocked."""

    def hold(self) -> None:
        """Block the thread that writes files until `release`."""
        self._held = threading.Event()
        self._thread.submit(self._held.wait, LONGEST)

    def release(self) -> None:
        self._held.set()

    def count_sums(self, tokens: int) -> tuple[int, int]:
        """Make an optimizer step; return its numbers of micro-batches and of tensor all-reduces."""
        (learner,) = self.learners.values()
        learner.max_tokens, begun = tokens, learner.micro_batches_begun
        with mock.patch.object(dist, "all_reduce", side_effect=dist.all_reduce) as summed:
            learner.optimize(batch(), BatchCounts(tokens=30, sequences=9), step=1)
        over = [call for call in summed.call_args_list if call.args[0].numel() > 1]
        return learner.micro_batches_begun - begun, len(over)

    def held(self) -> int:
        parameters = self.learners["base"].parameters
        return sum(shard(parameter).numel() for parameter in parameters)

    def begin_with_equal_state(self, make: Make, *, on_every_rank: bool) -> list[bytes]:
        """Make the learner on every rank, or only on the first one.

        Return the bytes of this rank's parameter shards and buffers, and of its shards after an
        update.
        """

        def made() -> dict[str, Learner]:
            assert on_every_rank or dist.get_rank() == 0, "another rank makes a learner"
            return {"base": make()}

        self.learners = made() if on_every_rank else shared(made)
        self.spread("cpu")
        (learner,) = self.learners.values()
        models = [learner.model, *learner.references.models]
        found = [_bytes(tensor) for model in models for tensor in model.parameters()]
        found += [_bytes(tensor) for model in models for tensor in model.buffers()]
        learner.optimize(batch(), BatchCounts(tokens=30, sequences=9), step=1)
        return found + [_bytes(tensor) for tensor in learner.model.parameters()]

    def unsharded_while_sharding(self, make: Make) -> list[int]:
        """Return the number of parameters in unsharded tensors after each unit is sharded."""
        learner = make()
        tensors = [learner.model, *learner.references.models]
        known = {id(p): weakref.ref(p) for model in tensors for p in model.parameters()}
        del tensors
        alive: list[int] = []
        cut = fsdp.fully_shard

        def counted(*given: Any, **named: Any) -> Any:
            made = cut(*given, **named)
            gc.collect()
            whole = [one for ref in known.values() if (one := ref()) is not None]
            alive.append(sum(tensor.numel() for tensor in whole))
            return made

        self.learners = {"base": learner}
        del learner
        with mock.patch.object(fsdp, "fully_shard", counted):
            self.spread("cpu")
        return alive


def _bytes(tensor: torch.Tensor) -> bytes:
    own = shard(tensor.detach()).contiguous().flatten()
    return bytes(own.view(torch.uint8).numpy())


def _serve(rank: LearnerWorker, make: Make, replicas: int = 1) -> LearnerInfo:
    rank.learners = shared(lambda: {"base": make()})
    rank.spread("cpu", replicas)
    return rank.about()["base"]


def batch(count: int = 9, *, length: int = 3, stem: int = 3) -> list[Sample]:
    """Return samples that share prompts, with several lengths, temperatures and advantages."""
    made = []
    for number in range(count):
        rng = torch.Generator().manual_seed(number)
        prompt = [5 + place % 7 for place in range(stem)] + [1 + number % 3] * (number % 4)
        completion = torch.randint(3, 24, (length + number % 4,), generator=rng).tolist()
        own = tuple(int(place != 1 or number % 3 > 0) for place in range(len(completion)))
        scale = float(torch.randn((), generator=rng))
        made.append(
            sample(
                prompt,
                completion,
                scale if number % 4 else tuple(scale * place for place in range(len(completion))),
                loss_mask=own,
                logprobs=tuple(-2.5 - 0.1 * place for place in range(len(completion))),
                temperature=1.0 if number % 2 else 0.7,
            )
        )
    return made
