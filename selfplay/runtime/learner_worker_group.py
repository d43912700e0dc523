"""Driver side of the learner ranks: starts, calls and ends them together."""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from selfplay.errors import LearnersLost, RunError, SelfplayError, one_line
from selfplay.learner.objective import Objective
from selfplay.learner.state_copies import Replicas, choose_copies
from selfplay.learner.state_memory import state_bytes
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime.cluster import TICK, RayCluster, death_reason
from selfplay.runtime.distributed_learner import DistributedLearner
from selfplay.runtime.learner_worker import LearnerConfig, LearnerInfo, LearnerWorker
from selfplay.runtime.notes import Note, print_note
from selfplay.runtime.rank_progress import RankProgress

LEARN, LISTEN, WRITE = "learn", "listen", "write"
"""Names of a rank's threads."""
SLOW = ("begin", "take", "load", "load_state", "save", "begin_save", "end_save")
"""Methods that load or write a model or its state."""
CONNECT = {"connect": "did not connect to rank 0", "join": "did not connect to the other ranks"}
"""Methods in which ranks connect to each other, each with words for the error of a late rank."""
COMPARED = 16
"""Two losses have the same reason if this many of their first words are equal; words with a digit
are left out."""
GRACE = 5.0
"""Seconds in which a living rank must answer `alive`. The cause of a failure may also arrive this
long after its consequences on other ranks."""


class LearnerWorkerGroup:
    """Learner ranks that start and end together, because none can continue without the others."""

    def __init__(
        self,
        cluster: RayCluster,
        *,
        bundles: Sequence[int],
        gpu: bool,
        timeout: float,
        max_restarts: int,
        load_timeout: float = 0.0,
        replicas: Replicas = "auto",
        dtype: torch.dtype | None = None,
        resources: Mapping[str, float] | None = None,
        before: Callable[[], None] = lambda: None,
        note: Note = print_note,
    ) -> None:
        """Args:
        cluster: The cluster of the ranks.
        bundles: Index of each rank's bundle. A single rank learns exactly like a learner of this
            process.
        gpu: True if each rank has a GPU.
        timeout: Maximum number of seconds in which no rank begins a micro-batch.
        max_restarts: Maximum number of restarts since the last checkpoint.
        load_timeout: Maximum number of seconds of a method in `SLOW`, at least `timeout`.
        replicas: Number of copies of the learners' state, which divides the number of ranks; auto:
            one per node if that is possible.
        dtype: Type of the weights in the workers' engines; None: that of each policy.
        resources: Each rank's part of its bundle; None: the whole bundle.
        before: Called before every call of the ranks, so that workers on the same GPUs rest.
        note: Shows the user a line for each loss of ranks that were starting.
        """
        self.cluster, self.count = cluster, len(bundles)
        self._bundles, self._resources, self._before = bundles, resources, before
        self._note, self._worked = note, False
        self.gpu, self.dtype = gpu, dtype
        self.timeout, self.max_restarts = timeout, max_restarts
        self.load_timeout, self.replicas = load_timeout, replicas
        self.notes: Sequence[str] = ()
        """Lines for the user about the ranks that were started last."""
        self._actors: list[Any] = []
        self._place = ("", 0)
        """Address and port at which rank 0 waits for the others."""
        self._losses = self._restarts = 0
        self._since: Path | None = None

    def trainers(
        self, players: RolloutSetup, objective: Objective
    ) -> dict[str, DistributedLearner]:
        """Start the ranks; return a learner for every policy that learns."""
        self._players, self._objective = players, objective
        about = self._begin(players.saved)
        return {
            name: DistributedLearner(
                self, players.policies[name], objective, info, dtype=self.dtype
            )
            for name, info in about.items()
        }

    def restart(self, lost: LearnersLost, saved: Path | None) -> None:
        """Replace lost ranks by new ones, with the initial state of the run or of a checkpoint.

        Raises RunError after more than `max_restarts` losses without a new checkpoint.
        """
        if saved != self._since:
            self._losses, self._since = 0, saved
        self._count_loss(lost)
        self._begin(saved)

    def ask(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        """Call a method on all ranks; return their results in order.

        Raises a SelfplayError of a rank as it is, and LearnersLost if a rank dies, fails or takes
        too long; all ranks are then ended.
        """
        self._before()
        return self._ask(method, [arguments] * self.count, named)

    def ask_each(
        self, method: str, name: str, parts: Sequence[Any], *arguments: Any, **named: Any
    ) -> list[Any]:
        """Call a method on all ranks, each with its own part after the policy's name."""
        self._before()
        return self._ask(method, [(name, part, *arguments) for part in parts], named)

    def ask_apart(self, method: str, *arguments: Any) -> tuple[Any, Any]:
        """Call a method on all ranks; it must yield two values.

        Returns the second value of the first rank, and a reference to its first value, which stays
        on the rank's machine until it is read. Ray stores the first value before it asks for the
        second.
        """
        self._before()
        values = self._ask(method, [arguments] * self.count, {}, apart=True)
        return values[0]

    def ask_concurrently(self, method: str, *arguments: Any) -> Callable[[], list[Any]]:
        """Call a method on all ranks in the thread that writes files, during their other work.

        Returns a function that waits for the results, in order. Any thread may call it. It raises
        as `ask` does, but ends no ranks: the next call of `ask` finds that one is lost.
        """
        if not self._actors:
            raise LearnersLost("the learner ranks were ended")
        called = [
            getattr(actor, method).options(concurrency_group=WRITE).remote(*arguments)
            for actor in self._actors
        ]
        return lambda: self._written(method, called)

    def put(self, value: Any) -> Any:
        """Store a value that all ranks receive, once per machine; return a reference."""
        return self.cluster.put(value)

    def read(self, reference: Any) -> Any:
        """Return the value of a reference of `ask_apart`; raise LearnersLost if it is lost."""
        try:
            return self.cluster.get(reference, "weights of the learner ranks")
        except self.cluster.ray.exceptions.ObjectLostError as error:
            raise LearnersLost(f"the newest weights are lost: {one_line(error)}") from error

    def rest(self) -> None:
        """Move the ranks' tensors to main memory; their next call moves them back."""
        if self._actors:
            self._ask("rest", [()] * self.count, {})

    def counts(self) -> dict[str, float]:
        """Return the number of restarts of all ranks so far."""
        return {"runtime/learner_restarts": float(self._restarts)}

    def close(self) -> None:
        """End all ranks."""
        actors, self._actors = self._actors, []
        for actor in actors:
            self.cluster.kill(actor)

    def _begin(self, saved: Path | None) -> dict[str, LearnerInfo]:
        if saved is not None:
            saved = saved.resolve()  # the ranks run in other folders
        reasons = set[str]()
        while True:
            try:
                about = self._start(saved)
            except LearnersLost as lost:
                reason = reason_of(lost)
                if reason in reasons and not self._worked:
                    # Each attempt loads the whole model. Ranks that have worked get more attempts.
                    raise RunError(
                        f"runtime: the learner ranks did not start: twice the same loss: {lost}"
                    ) from lost
                reasons.add(reason)
                self._count_loss(lost)
                self._note(f"runtime: the learner ranks did not start, and start again: {lost}")
            else:
                self._worked = True
                return about

    def _count_loss(self, lost: LearnersLost) -> None:
        """Count a loss; raise RunError if there were too many."""
        self._losses += 1
        if self._losses > self.max_restarts:
            raise RunError(
                f"runtime: the learners were lost {self._losses} times with no checkpoint in "
                f"between (runtime.max_restarts is {self.max_restarts}); the last time: {lost}"
            ) from lost
        self._restarts += 1

    def _start(self, saved: Path | None) -> dict[str, LearnerInfo]:
        self.close()
        self._actors = [
            self.cluster.actor(
                LearnerWorker,
                bundle=bundle,
                groups={LEARN: 1, LISTEN: 1, WRITE: 1},
                resources=self._resources,
            )
            for bundle in self._bundles
        ]
        alone, patience, copies = self.count == 1, self._limit("begin"), 1
        if not alone:
            nodes, memory = zip(*self._ask("node", [()] * self.count, {}), strict=True)
            learned = [policy for policy in self._players.policies.values() if policy.learn]
            chosen = choose_copies(
                nodes,
                self.replicas,
                state=sum(state_bytes(policy.model.parameters()) for policy in learned),
                memory=min(memory) if self.gpu else None,
            )
            copies, self.notes = chosen.count, [chosen.note] if chosen.note else []
            self._actors = [self._actors[rank] for rank in chosen.order]
            # The limit must allow a rank to wait while others load. The driver's own limits are
            # shorter for most methods.
            self._place, *_ = self._ask("open", [(patience,)], {})
            self._ask("connect", [(self._place, patience)] * self.count, {})
            each = [(rank, self.count, patience, self.gpu) for rank in range(self.count)]
            self._ask("join", each, {})
        setup = LearnerConfig(
            config=self._players.config,
            objective=self._objective,
            learners=self._players.learner_settings,
            saved=saved,
            gpu=self.gpu,
            # One rank computes like this process; several use their reserved cores.
            threads=torch.get_num_threads() if alone else 0,
            host=socket.gethostname(),
            replicas=copies,
        )
        about: dict[str, LearnerInfo]
        about, *_ = self.ask("begin", setup)
        return about

    def _ask(
        self,
        method: str,
        each: Sequence[tuple[Any, ...]],
        named: Mapping[str, Any],
        *,
        apart: bool = False,
    ) -> list[Any]:
        """Call a method on the first ranks, one per tuple of arguments.

        With `apart` the method yields two values, and the first of them stays a reference.
        """
        if not self._actors:
            raise LearnersLost("the learner ranks were ended")
        options = {"concurrency_group": LEARN, "num_returns": 2 if apart else 1}
        made = [
            getattr(actor, method).options(**options).remote(*arguments, **named)
            for actor, arguments in zip(self._actors, each, strict=False)
        ]
        refs = [second for _, second in made] if apart else made
        results: dict[int, Any] = {}
        faults: dict[int, Exception] = {}
        limit = self._limit(method)
        progress = RankProgress(self.cluster.ray, self._actors, group=LISTEN)
        end = time.monotonic() + limit
        while len(results) + len(faults) < len(refs) and time.monotonic() < end:
            waiting = [ref for rank, ref in enumerate(refs) if rank not in {*results, *faults}]
            left = max(0.0, end - time.monotonic())
            ready, _ = self.cluster.ray.wait(waiting, timeout=min(TICK, left))
            self.cluster.check()
            if not faults and progress.grown():
                end = time.monotonic() + limit
            for ref in ready:
                try:
                    results[refs.index(ref)] = self.cluster.ray.get(ref)
                except self.cluster.ray.exceptions.RayError as error:
                    faults[refs.index(ref)] = error
                    end = min(end, time.monotonic() + GRACE)
        if len(results) == len(refs):
            if apart:
                return [(results[rank], first) for rank, (first, _) in enumerate(made)]
            return [results[rank] for rank in range(len(refs))]
        self.cluster.check(now=True)
        silent = [] if faults else self._silent()
        self.close()
        late = silent or [rank for rank in range(len(refs)) if rank not in results]
        raise self._fault(method, faults, late, answers=not silent)

    def _written(self, method: str, called: Sequence[Any]) -> list[Any]:
        """Wait for the results of `ask_concurrently`."""
        ray, waiting, results = self.cluster.ray, list(called), dict[int, Any]()
        end = time.monotonic() + self._limit(method)
        while waiting and time.monotonic() < end:
            ready, waiting = ray.wait(waiting, timeout=TICK)
            for ref in ready:
                rank = called.index(ref)
                try:
                    results[rank] = ray.get(ref)
                except ray.exceptions.RayError as error:
                    raise self._fault(method, {rank: error}, (), answers=True) from error
        if waiting:
            late = [rank for rank in range(len(called)) if rank not in results]
            raise self._fault(method, {}, late, answers=True)
        return [results[rank] for rank in range(len(called))]

    def _limit(self, method: str) -> float:
        """Return the maximum number of seconds without a sign of a method's progress."""
        return max(self.timeout, self.load_timeout) if method in SLOW else self.timeout

    def _silent(self) -> list[int]:
        """Return the ranks that do not answer `alive`."""
        questions = [
            actor.alive.options(concurrency_group=LISTEN).remote() for actor in self._actors
        ]
        answered, _ = self.cluster.ray.wait(questions, num_returns=len(questions), timeout=GRACE)
        return [rank for rank, question in enumerate(questions) if question not in answered]

    def _fault(
        self,
        method: str,
        faults: Mapping[int, Exception],
        late: Sequence[int],
        *,
        answers: bool,
    ) -> Exception:
        """Return the error to raise: a SelfplayError first, then a death, then another failure.

        Args:
            method: The method that failed.
            faults: Error by rank.
            late: Ranks without a result, if there is no error.
            answers: True if these ranks answer `alive`.
        """
        broken = self.cluster.ray.exceptions.RayTaskError
        hint = self.cluster.log_hint
        causes = {rank: getattr(error, "cause", None) for rank, error in faults.items()}
        for cause in causes.values():
            if isinstance(cause, SelfplayError):
                return cause
        for rank, error in faults.items():
            if not isinstance(error, broken):
                why = death_reason(error)
                return LearnersLost(f"learner rank {rank} died ({method}): {why}{hint}")
        for rank, error in faults.items():
            why = one_line(causes[rank] or error)
            where = self._where(method)
            return LearnersLost(f"learner rank {rank} failed ({method}): {why}{where}{hint}")
        names = "rank " + ", ".join(map(str, late)) if len(late) == 1 else f"ranks {list(late)}"
        what = CONNECT.get(method, "is not done") if answers else "does not answer"
        key = "load_timeout" if method in SLOW else "timeout"
        return LearnersLost(
            f"learner {names} {what} after {self._limit(method):g} s without progress ({method})"
            f"{self._where(method)}; if this is too short, raise runtime.{key}{hint}"
        )

    def _where(self, method: str) -> str:
        """Return where ranks connect in a method of `CONNECT`, and what lets them; else ""."""
        if method not in CONNECT:
            return ""
        address, port = self._place
        place = f"rank 0 waits at address {address}, port {port}"
        if method == "connect":
            return (
                f"; {place}, and at another port after each start: let the nodes of the ranks "
                "reach each other on all ports"
            )
        return (
            f"; {place}, which all ranks have reached, but they also connect to each other at "
            "other ports: let their nodes reach each other on all ports, and set "
            "GLOO_SOCKET_IFNAME if a hostname has the address 127.x"
        )


def reason_of(lost: LearnersLost) -> str:
    """Return the part of a loss that is the same whenever it has the same reason.

    Numbers of ranks, processes, ports and seconds are left out.
    """
    words = str(lost).replace("learner ranks", "learner rank").split()
    plain = (word for word in words if not any(map(str.isdigit, word)))
    return " ".join(islice(plain, COMPARED))
