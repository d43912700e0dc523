"""Driver side of the rollout workers: sends specifications, collects episodes, restarts workers."""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from selfplay.errors import RunError, one_line
from selfplay.rollout.episode_runner import EpisodeSpec, with_shared_turns
from selfplay.rollout.shared_loop import SharedLoop
from selfplay.run.activity import ACTIVITY, Tally
from selfplay.runtime.cluster import TICK, RayCluster, death_reason
from selfplay.runtime.engine_worker import WorkerConfig
from selfplay.runtime.engine_worker_group import LISTEN, PLAY, EngineWorkerGroup, WorkerMember
from selfplay.runtime.notes import Note, print_note
from selfplay.runtime.rollout_worker import RolloutResult, RolloutWorker
from selfplay.runtime.weight_sync import Change
from selfplay.types import Episode


@dataclass(kw_only=True, eq=False)
class _Call:
    """One call of `RolloutWorkers.run`."""

    specs: Sequence[EpisodeSpec]
    """Specifications of the episodes to play."""
    evaluation: str | None
    """Name of the evaluation whose rollout plays; None: that of training."""
    first: Callable[[], None]
    """Function that is called when the turn of the episodes begins."""
    tally: Tally
    """Counts episodes and tokens."""
    number: int = 0
    """Number of the update that must arrive before the episodes are played."""
    chunks: Sequence[Sequence[EpisodeSpec]] = ()
    """Parts of the episodes that one worker plays at a time."""
    waiting: deque[int] = field(default_factory=deque)
    """Indices of the chunks that no worker plays."""
    done: dict[int, Sequence[Episode]] = field(default_factory=dict)
    """Episodes of the played chunks by index."""
    deaths: Counter[int] = field(default_factory=Counter)
    """Number of workers that died while they played each chunk."""

    @property
    def episodes(self) -> list[Episode]:
        """Episodes in the order of the specifications."""
        return [episode for index in range(len(self.chunks)) for episode in self.done[index]]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Assignment:
    """A chunk that a worker plays."""

    call: _Call
    """The call."""
    chunk: int
    """Index of the chunk."""
    result: Any
    """Reference to the result."""


@dataclass(kw_only=True, eq=False)
class _Member(WorkerMember):
    """A worker that plays chunks of episodes, at most one of each call."""

    playing: list[_Assignment] = field(default_factory=list)
    """Its chunks."""
    steps: int | None = None
    """Last known number of its engine's steps."""
    heard: float = 0.0
    """Monotonic time at which its number of steps last changed."""
    asked: Any = None
    """Reference to the answer to the open question for its number of steps."""
    rested: int | None = None
    """Number of its engine's steps when it last rested; None if it has woken since."""
    rest_deaths: int = 0
    """Number of deaths during a rest, or after it before an engine step ended. It is 0 again when a
    worker of this place has woken."""

    @property
    def idle(self) -> bool:
        """True if it plays nothing."""
        return not self.playing

    def drop(self) -> None:
        """Ignore the results of its chunks."""
        self.playing = []

    def woke(self) -> None:
        """Note that it computes; if it has rested, it has come through the rest."""
        if self.rested is not None:
            self.rested, self.rest_deaths = None, 0


class RolloutWorkers(EngineWorkerGroup[_Member]):
    """Dispatches episodes to rollout workers and replaces workers that die or hang.

    Each specification gets exactly one episode: results of a replaced worker are ignored. Calls of
    training share the workers: a worker gets its part of a later call at once, and begins these
    episodes as soon as it has room. An evaluation does not share the workers.
    """

    worker = RolloutWorker
    resubmitted = "resubmitted_episodes"

    def __init__(
        self,
        cluster: RayCluster,
        *,
        count: int,
        chunks: int,
        timeout: float,
        max_restarts: int,
        load_timeout: float = 0.0,
        resources: Mapping[str, float] | None = None,
        note: Note = print_note,
    ) -> None:
        """Args:
        cluster, timeout, max_restarts, load_timeout, resources, note: See `EngineWorkerGroup`.
        count: Number of workers.
        chunks: Number of chunks per worker that a list of episodes is divided into.
        """
        super().__init__(
            cluster,
            [_Member(bundle=number) for number in range(count)],
            timeout=timeout,
            load_timeout=load_timeout,
            max_restarts=max_restarts,
            resources=resources,
            note=note,
        )
        self.chunks = chunks
        self._calls: list[_Call] = []
        """Calls in progress, in the order in which they came."""
        self._loop = SharedLoop(self)

    def send(self, change: Change) -> None:
        """Send an update to all workers and to their later replacements."""
        self._send(0, change)

    def run(
        self,
        specs: Sequence[EpisodeSpec],
        evaluation: str | None = None,
        *,
        first: Callable[[], None] = lambda: None,
    ) -> list[Episode]:
        """Play specifications and return their episodes in the same order.

        Args:
            specs: The specifications. Those of training join those of other threads; an evaluation
                waits until all others are played, and others wait for it.
            evaluation: Name of the evaluation whose rollout plays; None: that of training.
            first: Called when the turn of these episodes begins, such as to send the state they
                need.

        Raises the error of a worker, and RunError if too many workers die with the same episodes.
        Such an error ends the calls of all threads.
        """
        with ACTIVITY.counting("episodes", len(specs)) as tally:
            call = _Call(specs=specs, evaluation=evaluation, first=first, tally=tally)
            self._loop.run(call)
        return call.episodes

    # The work of the loop ----------------------------------------------------------------------

    def begin(self) -> None:
        pass

    def admits(self, call: _Call) -> bool:
        """Return True for a call of training if all others are of training too."""
        return all(each.evaluation is None for each in (call, *self._calls))

    def admit(self, call: _Call) -> None:
        """Divide the episodes of a call into chunks."""
        with self._in_use():
            self.cluster.check(now=True)
            call.first()
            self._fill()
            call.chunks = list(cut(call.specs, len(self._members) * self.chunks))
            call.waiting.extend(range(len(call.chunks)))
            call.number = self._present[0].number
            self._calls.append(call)

    def advance(self) -> Collection[_Call]:
        """Give chunks to workers and wait a moment for results; return the calls that ended."""
        with self._in_use():
            for call in self._calls:
                for member in self._members:
                    if call.waiting and all(each.call is not call for each in member.playing):
                        self._submit(member, call, call.waiting.popleft())
            if not all(member.idle for member in self._members):
                for member, assignment in self._finished():
                    if assignment in member.playing:  # its worker was not replaced just now
                        why = self._take(member, assignment)
                        if why is not None:
                            self._replace_lost(member, why)
            ended = [call for call in self._calls if len(call.done) == len(call.chunks)]
            self._calls = [call for call in self._calls if call not in ended]
            return ended

    def end(self) -> None:
        """Forget all calls. After an error workers may still play; their results are ignored."""
        self._calls = []
        for member in self._members:
            member.drop()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Return a context for calls of Ray. `close` waits for its end; after `close`, entering it
        raises RunError."""
        with self._playing:
            if self._closed:
                raise RunError("runtime: closed while episodes were being played")
            yield

    def rest(self) -> None:
        """Let all workers leave their GPUs to the ranks, and wait until all workers rest.

        A worker that died, failed or does not answer is ended, and replaced before the next
        episodes. Raises RunError if too many workers of one place were lost at rests, one after
        another.
        """
        asked = {
            self._ask(member, "rest", thread=PLAY): member
            for member in self._members
            if member.actor is not None
        }
        patience = max(map(self._limit, asked.values()), default=0.0)
        key = "timeout" if all(member.loaded for member in asked.values()) else "load_timeout"
        waiting, lost, end = list(asked), dict[Any, str](), time.monotonic() + patience
        while waiting and time.monotonic() < end:
            ready, waiting = self.cluster.ray.wait(waiting, timeout=TICK)
            self.cluster.check()
            for answer in ready:
                try:
                    asked[answer].rested = self.cluster.ray.get(answer)
                    asked[answer].loaded = True  # it began before it rested
                except self.cluster.ray.exceptions.RayTaskError as error:
                    lost[answer] = one_line(error.cause)
                except self.cluster.ray.exceptions.RayError as error:
                    lost[answer] = death_reason(error)
        late = f"it did not rest within {patience:g} s (runtime.{key})"
        for answer in (*lost, *waiting):
            member, why = asked[answer], lost.get(answer, late)
            self._metrics.deaths += 1
            self._give_up(member)
            self._count_rest_death(member, why)
            self._note_loss(member, why)

    def _count_rest_death(self, member: _Member, why: str) -> None:
        """Count a death at a rest or after it; raise RunError if there were too many in a row.

        A worker that has woken ends the row: rare deaths in a long run are not added up.
        """
        member.rest_deaths += 1
        if member.rest_deaths > self.max_restarts:
            raise RunError(
                f"runtime: worker {member.bundle} died {member.rest_deaths} times in a row while "
                f"it rested or woke (runtime.max_restarts is {self.max_restarts}); the last time: "
                f"{why}{self.cluster.log_hint}"
            )

    def _give_up(self, member: _Member) -> None:
        super()._give_up(member)
        member.asked = member.rested = None

    def _play_threads(self, settings: WorkerConfig) -> int:
        """Return the number of steps that may be in progress."""
        return settings.max_staleness + 1

    def _replace_lost(self, member: _Member, why: str) -> None:
        """Start another worker in place of a lost one; its chunks are played again."""
        self.cluster.check(now=True)  # the calls below need Ray's head
        self._metrics.deaths += 1
        most, rested = 0, member.rested is not None
        for lost in member.playing:
            # Deaths are counted per chunk: many workers may die at once with their machine.
            lost.call.deaths[lost.chunk] += 1
            most = max(most, lost.call.deaths[lost.chunk])
            self._metrics.resubmitted += len(lost.call.chunks[lost.chunk])
            lost.call.waiting.appendleft(lost.chunk)
        self._give_up(member)
        if most > self.max_restarts:
            raise RunError(
                f"runtime: {most} workers died while they played the same episodes "
                f"(runtime.max_restarts is {self.max_restarts}); the last one: {why}"
                f"{self.cluster.log_hint}"
            )
        if rested:
            self._count_rest_death(member, why)
        self._note_loss(member, why)
        self._start(member)

    def _submit(self, member: _Member, call: _Call, index: int) -> None:
        if member.idle:
            member.heard, member.steps = time.monotonic(), None
        specs = list(call.chunks[index])
        result = self._ask(member, "run", specs, call.evaluation, call.number, thread=PLAY)
        member.playing.append(_Assignment(call=call, chunk=index, result=result))

    def _finished(self) -> list[tuple[_Member, _Assignment]]:
        """Return the chunks with a result or an error, and those of workers that hang."""
        busy = {each.result: (m, each) for m in self._members for each in m.playing}
        ready, _ = self.cluster.ray.wait(list(busy), num_returns=len(busy), timeout=0)
        if not ready:
            ready, _ = self.cluster.ray.wait(list(busy), timeout=min(TICK, self.timeout / 4))
        self.cluster.check()
        finished = [busy[result] for result in ready]
        now = time.monotonic()
        for member in self._members:
            if member.idle or any(member is each for each, _ in finished):
                continue
            if now - self._last_heard(member, now) > self._limit(member):
                finished.append((member, member.playing[0]))
        return finished

    def _last_heard(self, member: _Member, now: float) -> float:
        """Return the time at which a worker's number of engine steps last changed."""
        if member.asked is None:
            member.asked = self._ask(member, "steps", thread=LISTEN)
        answered, _ = self.cluster.ray.wait([member.asked], timeout=0)
        if answered:
            steps = self._steps_of(member.asked)
            if steps != member.steps:
                member.steps, member.heard = steps, now
                member.loaded = member.loaded or (steps is not None and steps >= 0)
                if member.rested is not None and (steps or 0) > member.rested + 1:
                    member.woke()  # the step in progress is not the first one
            member.asked = None
        return member.heard

    def _steps_of(self, question: Any) -> int | None:
        """Return the answer to a question for the number of steps; None if the worker died."""
        try:
            steps: int = self.cluster.ray.get(question, timeout=self.timeout)
            return steps
        except self.cluster.ray.exceptions.RayError:
            return None  # the result of its episodes shows the death

    def _take(self, member: _Member, assignment: _Assignment) -> str | None:
        """Take the result of a chunk; return the reason if the worker failed, else None."""
        played, why = self._result(member, assignment.result)
        if why is not None:
            return why
        assert isinstance(played, RolloutResult)
        member.woke()
        call = assignment.call
        specs = call.chunks[assignment.chunk]
        call.done[assignment.chunk] = [
            with_shared_turns(spec, episode) if spec.prefix_turns else episode
            for spec, episode in zip(specs, played.episodes, strict=True)
        ]
        turns = (turn for episode in played.episodes for turn in episode.turns)
        call.tally.add(len(played.episodes), tokens=sum(len(t.completion_ids) for t in turns))
        if call.evaluation is None:  # metrics of training only
            self._metrics.add(played.counts)
        member.playing.remove(assignment)
        return None


def cut(specs: Sequence[EpisodeSpec], count: int) -> Iterator[list[EpisodeSpec]]:
    """Divide episodes into at most `count` chunks of similar length.

    Specifications with the same task and seed stay in one chunk.
    """
    groups = [
        list(group) for _, group in groupby(specs, key=lambda spec: (spec.task.id, spec.seed))
    ]
    piece: list[EpisodeSpec] = []
    passed = pieces = 0
    for group in groups:
        piece += group
        passed += len(group)
        if passed * count >= (pieces + 1) * len(specs):
            yield piece
            piece = []
            pieces = passed * count // len(specs)
    if piece:
        yield piece
