"""The queue of a rollout's episodes, and the loop that plays them."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Protocol
from weakref import WeakKeyDictionary

from selfplay.engines import Engine
from selfplay.errors import StalledError
from selfplay.rollout.arena_threads import ArenaThreads
from selfplay.rollout.episode_runner import EpisodeRunner, EpisodeSpec
from selfplay.rollout.requests_in_flight import (
    Answered,
    Calling,
    InFlight,
    RequestInFlight,
    begun_episodes,
    waiting_episodes,
)
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.rollout.shared_prompts import sharing_prompts
from selfplay.rollout.tool_loop import ToolLoop
from selfplay.run.activity import Tally
from selfplay.types import Completion, Episode, Turn

TOOL_WAIT = 0.05
"""Seconds of a wait for tools while no engine has a request."""


class EpisodePlayer(Protocol):
    """The settings, engines, tools and methods of a `Rollout` that its `EpisodeQueue` uses."""

    engines: Mapping[str, Engine]
    """Engine by policy; policies may share one."""
    tools: ToolLoop[Calling]
    """Tool calls in progress."""
    settings: RolloutSettings
    """Limits of the rollout."""

    def begin_episode(self, spec: EpisodeSpec) -> EpisodeRunner:
        """Return the runner of an episode."""
        ...

    def most_turns(self, runner: EpisodeRunner) -> int:
        """Return the number of turns after which an episode is truncated."""
        ...

    def ask(self, runner: EpisodeRunner, in_flight: InFlight) -> None:
        """Send the requests of all agents of the stage."""
        ...

    def ask_again(self, asked: RequestInFlight, turn: Turn, in_flight: InFlight) -> None:
        """Send the request after the tool calls of a turn."""
        ...

    def receive(self, completion: Completion, in_flight: InFlight) -> EpisodeRunner:
        """Store a completion, and return the runner of its episode."""
        ...

    def forget_prompts(self) -> None:
        """Drop the prompts that are kept to be shared by turns with equal prompts."""
        ...


class RolloutCall:
    """The specifications of one call of `Rollout.run`, and its episodes so far."""

    def __init__(self, specs: Sequence[EpisodeSpec], tally: Tally) -> None:
        """Args:
        specs: The episodes to play.
        tally: Counts episodes and tokens.
        """
        self.specs, self.tally = specs, tally
        self.upcoming = deque(range(len(specs)))
        """Indices of the specifications that have not begun."""
        self.episodes: dict[int, Episode] = {}
        """Finished episodes by the index of their specification."""

    @property
    def step(self) -> int:
        """Training step of the episodes; 0 outside of training."""
        return (self.specs[0].step or 0) if self.specs else 0


class EpisodeQueue:
    """The work of a `Rollout`'s loop: it plays the episodes of all calls that are in progress.

    An episode begins as soon as there is room for it. Episodes of an earlier training step begin
    first, and within a step those of an earlier call. If only one call is in progress, its episodes
    depend neither on time nor on earlier calls.
    """

    def __init__(self, rollout: EpisodePlayer) -> None:
        """`rollout`: asks the engines for the moves of the episodes."""
        self._rollout = rollout
        self._reset()

    def _reset(self) -> None:
        self._calls: list[RolloutCall] = []
        self._owners = WeakKeyDictionary[EpisodeRunner, tuple[RolloutCall, int]]()
        """Call and index of the specification of each episode, while anything uses its runner."""
        self._places: dict[EpisodeRunner, int] = {}
        """Episodes in memory that have not ended: runner to place in the order of beginning."""
        self._numbers = count()
        self._in_flight: InFlight = {}
        self._ready: dict[EpisodeRunner, None] = {}
        self._answered: list[Answered] = []
        self._threads: ArenaThreads | None = None
        self._idle = 0
        """Number of engine steps since the last completion, without those in which an engine waited
        for an answer from elsewhere."""

    # The work of the loop ----------------------------------------------------------------------

    def begin(self) -> None:
        """Begin without episodes; engines drop what they keep of earlier requests."""
        for engine in self._engines():
            engine.forget()
        self._rollout.tools.clear()
        settings = self._rollout.settings
        self._threads = ArenaThreads(settings.threads, overlap=settings.overlap)

    def admits(self, call: RolloutCall) -> bool:
        """Return True: every call may join."""
        return True

    def admit(self, call: RolloutCall) -> None:
        """Add the specifications of a call to the queue."""
        self._calls.append(call)
        self._calls.sort(key=lambda each: each.step)

    def advance(self) -> Collection[RolloutCall]:
        """Let episodes go on and engines take a step; return the calls that have ended."""
        ended = self._ended()
        if ended:
            return ended
        self._advance()
        return self._ended()

    def end(self) -> None:
        """Drop all episodes."""
        if self._threads is not None:
            self._threads.close()
        self._rollout.forget_prompts()
        self._reset()

    def _ended(self) -> Collection[RolloutCall]:
        """Remove and return the calls that have ended.

        Requests and tool calls of failed episodes are completed too, so that no engine keeps any.
        """
        whole = [call for call in self._calls if len(call.episodes) == len(call.specs)]
        if not whole:
            return ()
        asked = [
            *self._in_flight.values(),
            *(each for each, _ in self._rollout.tools.asked()),
            *(each for (each, _), _ in self._answered),
        ]
        busy = [self._owners[each.runner][0] for each in asked]
        ended = [call for call in whole if call not in busy]
        for call in ended:
            self._calls.remove(call)
            self._rollout.forget_prompts()
        return ended

    # One iteration -----------------------------------------------------------------------------

    @property
    def _arenas(self) -> ArenaThreads:
        assert self._threads is not None, "begin() comes first"
        return self._threads

    def _advance(self) -> None:
        self._begin_episodes(self._ask_after_tools())
        self._play_stages()
        if self._in_flight:
            self._step_engines()

    def _engines(self) -> list[Engine]:
        """Return the engines; one that serves several policies is listed once."""
        # A tuple, because another thread may add a policy at the same time.
        served = tuple(self._rollout.engines.values())
        return list({id(engine): engine for engine in served}.values())

    def _room(self) -> int:
        """Return the number of episodes that may still come into memory."""
        settings = self._rollout.settings
        return settings.max_live + settings.max_waiting - len(self._places)

    def _ask_after_tools(self) -> int:
        """Send the next requests of moves whose tool calls are answered, if there is room; return
        the number of further episodes that may be sampled or advance."""
        rollout, places = self._rollout, self._places
        full = self._room() <= 0 or not any(call.upcoming for call in self._calls)
        stuck = full and not (self._in_flight or self._ready or self._answered or len(self._arenas))
        self._answered += rollout.tools.finished(wait=TOOL_WAIT if stuck else 0.0)
        # A fixed order, independent of the order in which the tools finished.
        self._answered.sort(key=lambda each: places.get(each[0][0].runner, -1))
        calling = [*rollout.tools.asked(), *(each for each, _ in self._answered)]
        waiting = waiting_episodes(places, self._in_flight, calling)
        free = rollout.settings.max_live - len(places) + len(waiting)
        held: list[Answered] = []
        for (asked, turn), calls in self._answered:
            runner = asked.runner
            if runner in waiting:
                if free <= 0:
                    held.append(((asked, turn), calls))
                    continue
                waiting.remove(runner)
                free -= 1
            answered = replace(turn, tool_calls=calls, final=False)
            rollout.ask_again(asked, answered, self._in_flight)
            self._note_ready(runner)
        self._answered = held
        return free

    def _begin_episodes(self, free: int) -> None:
        """Begin up to `free` episodes, if there is room in memory."""
        for call in self._calls:
            while call.upcoming and free > 0 and self._room() > 0:
                index = call.upcoming.popleft()
                runner = self._rollout.begin_episode(call.specs[index])
                self._owners[runner] = (call, index)
                self._places[runner] = next(self._numbers)
                self._ready[runner] = None
                free -= 1

    def _play_stages(self) -> None:
        """Advance the episodes that have all their moves; send the requests of the next stages."""
        rollout, arenas = self._rollout, self._arenas
        # A fixed order, independent of the order in which the engines finished.
        ready = sorted(self._ready, key=self._places.__getitem__)
        self._ready = {}
        arenas.begin(ready)
        live = begun = len(self._places)
        if arenas.waiting:
            full_ids = chain.from_iterable(engine.waiting_ids() for engine in self._engines())
            begun = begun_episodes(self._places, self._in_flight, full_ids)
        for runner in arenas.take(live=live, begun=begun, idle=not self._in_flight):
            if runner.status(max_turns=rollout.most_turns(runner)) is None:
                rollout.ask(runner, self._in_flight)
            status = runner.status(max_turns=rollout.most_turns(runner))
            if status is not None:
                del self._places[runner]
                call, index = self._owners[runner]
                call.episodes[index] = sharing_prompts(runner.episode(status))
                call.tally.add()

    def _step_engines(self) -> None:
        """Let each engine take a step. Raises StalledError after too many without an answer."""
        engines = self._engines()
        # An engine that awaits an endpoint has its own time limit; its error names the endpoint.
        self._idle += not any(engine.awaiting for engine in engines)
        patience = self._rollout.settings.patience
        if self._idle > patience:
            lost = f"{len(self._in_flight)} request(s) in flight"
            raise StalledError(
                f"rollout: no answer to {lost} in {patience} engine steps (rollout.patience)"
            )
        for engine in engines:
            for completion in engine.step():
                self._idle = 0
                runner = self._rollout.receive(completion, self._in_flight)
                self._owners[runner][0].tally.add(0, tokens=len(completion.completion_ids))
                self._note_ready(runner)

    def _note_ready(self, runner: EpisodeRunner) -> None:
        """Let an episode go on if it has all moves of its stage, or has ended."""
        if runner not in self._places or runner in self._arenas:
            return
        complete = len(runner.moves) == len(runner.arena.stage)
        if complete or runner.error or runner.too_long_reason:
            self._ready[runner] = None
