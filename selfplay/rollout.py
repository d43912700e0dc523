"""The rollout plays many arenas at once and keeps every ready agent's request in flight."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeAlias

from selfplay.arena import Arena
from selfplay.engines import Engine
from selfplay.errors import ConfigError, SelfplayError, nearest
from selfplay.role import Role
from selfplay.seeds import derive
from selfplay.tokens import Renderer
from selfplay.types import (
    Action,
    Completion,
    Episode,
    InvalidAction,
    Message,
    Request,
    Status,
    Task,
    Turn,
    well_formed,
)


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Who sits where: the role of an agent, the policy behind it and how it is sampled."""

    role: Role
    """Makes prompts and reads actions."""
    policy: str
    """Name of the policy."""
    renderer: Renderer
    """The policy's token seam."""
    max_tokens: int = 256
    """Longest completion."""
    temperature: float = 1.0
    """0 is greedy."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One episode to play."""

    task: Task
    """Its initial state."""
    seed: int
    """With the task, all that the episode depends on; same within a group but for `member`."""
    member: int = 0
    """Which sibling of its group it is."""


@dataclass(kw_only=True)
class _Game:
    """An episode being played."""

    index: int
    job: Job
    arena: Arena
    turns: list[Turn] = field(default_factory=list)
    latest: dict[str, int] = field(default_factory=dict)
    """Index of each agent's latest turn."""
    early: dict[str, float] = field(default_factory=dict)
    """Paid to agents before their first turn."""
    asked: dict[str, tuple[Request, tuple[Message, ...]]] = field(default_factory=dict)
    """Requests of the current stage and the messages each one added."""
    moves: dict[str, Turn] = field(default_factory=dict)
    """Turns of the current stage that are in."""
    said: dict[str, list[Message]] = field(default_factory=dict)
    """What each agent with a memory has seen and said."""
    begun: bool = False
    error: str = ""


_InFlight: TypeAlias = dict[int, tuple[_Game, str]]
"""By request id: whose episode and which agent waits for it."""


class Rollout:
    """Plays jobs to their end. Nothing is dropped: a broken arena becomes a failed episode."""

    def __init__(
        self,
        *,
        arena: Callable[[], Arena],
        seats: Mapping[str, Seat],
        engines: Mapping[str, Engine],
        max_turns: int = 1000,
        max_live: int = 4096,
        threads: int = 8,
        patience: int = 100_000,
    ) -> None:
        """Args:
        arena: Makes a fresh arena.
        seats: Role name to seat; an agent `solver_3` takes the seat of `solver`.
        engines: Policy name to the engine that serves it.
        max_turns: Turns after which an episode is cut off as truncated.
        max_live: Episodes in flight at once.
        threads: Arenas that advance at once where `Arena.blocking`.
        patience: Steps in a row without any completion, after which the engines are stuck.
        """
        self.arena, self.seats, self.engines = arena, dict(seats), dict(engines)
        self.max_turns, self.max_live, self.threads = max_turns, max_live, threads
        self.patience = patience
        self._requests = count()

    def play(self, jobs: Sequence[Job]) -> list[Episode]:
        """The episodes of `jobs`, in their order."""
        episodes: dict[int, Episode] = {}
        in_flight: _InFlight = {}
        engines = list({id(engine): engine for engine in self.engines.values()}.values())
        upcoming = deque(enumerate(jobs))
        live = idle = 0
        with ThreadPoolExecutor(self.threads, thread_name_prefix="advance") as pool:
            ready: list[_Game] = []
            while len(episodes) < len(jobs):
                while upcoming and live < self.max_live:
                    index, job = upcoming.popleft()
                    ready.append(_Game(index=index, job=job, arena=self.arena()))
                    live += 1
                # A fixed order, whatever order the engines finished in.
                ready.sort(key=lambda game: game.index)
                self._advance_all(ready, pool)
                for game in ready:
                    if self._status(game) is None:
                        self._ask(game, in_flight)
                    status = self._status(game)
                    if status is not None:
                        episodes[game.index] = self._episode(game, status)
                        live -= 1
                ready = []
                if not in_flight:
                    continue
                idle += 1
                if idle > self.patience:
                    lost = f"{len(in_flight)} request(s) in flight"
                    raise RuntimeError(f"no answer to {lost} in {self.patience} engine steps")
                for engine in engines:
                    for completion in engine.step():
                        idle = 0
                        game = self._receive(completion, in_flight)
                        if len(game.moves) == len(game.asked):
                            ready.append(game)
        return [episodes[index] for index in range(len(jobs))]

    def _advance_all(self, games: Sequence[_Game], pool: ThreadPoolExecutor) -> None:
        """Play the complete stages: side by side where the arenas wait for something outside."""
        side_by_side = bool(games) and games[0].arena.blocking
        list((pool.map if side_by_side else map)(self._advance, games))

    def _advance(self, game: _Game) -> None:
        """Begin the episode, or play the stage whose moves are all in, and book the rewards."""
        try:
            if not game.begun:
                game.begun = True
                game.arena.begin(game.job.task, game.job.seed)
                paid = dict(game.arena.paid)
            else:
                paid = game.arena.play(self._close_stage(game))
        except SelfplayError:
            raise
        except Exception as error:  # the arena's own fault: a failed episode, counted by its kind
            game.error = _one_line(error)
            return
        for agent, reward in paid.items():
            if agent in game.latest:
                turn = game.turns[game.latest[agent]]
                info = {**turn.info, **game.arena.notes.get(agent, {})}
                turn = replace(turn, reward=turn.reward + reward, info=info)
                game.turns[game.latest[agent]] = turn
            elif reward:
                game.early[agent] = game.early.get(agent, 0.0) + reward

    @staticmethod
    def _close_stage(game: _Game) -> dict[str, Action | None]:
        """Book the stage's turns in the arena's order, not in the order they finished in."""
        for agent in game.asked:
            turn = game.moves[agent]
            game.latest[agent] = len(game.turns)
            game.turns.append(replace(turn, reward=game.early.pop(agent, 0.0)))
            said = game.said.setdefault(agent, [])
            said += [*turn.messages, {"role": "assistant", "content": turn.text}]
        moves = {agent: game.moves[agent].action for agent in game.asked}
        game.asked, game.moves = {}, {}
        return moves

    def _status(self, game: _Game) -> Status | None:
        if game.error:
            return Status.FAILED
        if game.arena.finished:
            return Status.FINISHED
        return Status.TRUNCATED if len(game.turns) >= self.max_turns else None

    def _ask(self, game: _Game, in_flight: _InFlight) -> None:
        """Ask for the moves of all agents of the stage."""
        try:
            views = {agent: game.arena.view(agent) for agent in game.arena.stage}
        except SelfplayError:
            raise
        except Exception as error:  # as in _advance
            game.error = _one_line(error)
            return
        for agent, observation in views.items():
            seat = self._seat(agent)
            messages = seat.role.prompt(observation)
            if seat.role.memory == "conversation" and agent in game.latest:
                messages = [message for message in messages if message["role"] != "system"]
            request = Request(
                id=next(self._requests),
                policy=seat.policy,
                prompt_ids=self._prompt_ids(game, agent, seat, messages),
                seed=derive(game.job.seed, game.job.member, agent, len(game.turns)),
                max_tokens=seat.max_tokens,
                temperature=seat.temperature,
                agent=agent,
                observation=observation,
            )
            game.asked[agent] = (request, tuple(messages))
            in_flight[request.id] = (game, agent)
            self.engines[seat.policy].add(request)

    @staticmethod
    def _prompt_ids(
        game: _Game, agent: str, seat: Seat, messages: Sequence[Message]
    ) -> tuple[int, ...]:
        """What the policy sees: the messages alone, or behind all it has seen and said."""
        if seat.role.memory == "none" or agent not in game.latest:
            return seat.renderer.start(messages)
        turn = game.turns[game.latest[agent]]
        extended = seat.renderer.extend(turn.prompt_ids, turn.completion_ids, messages)
        if extended is not None:
            return extended
        # The chat template does not keep its prefix: start a new sequence rather than guess.
        return seat.renderer.start([*game.said[agent], *messages])

    def _seat(self, agent: str) -> Seat:
        role = agent.rpartition("_")[0]
        if role not in self.seats:
            raise ConfigError(
                f"no seat for role {role!r} of agent {agent!r}; {nearest(role, self.seats)}"
            )
        return self.seats[role]

    def _receive(self, completion: Completion, in_flight: _InFlight) -> _Game:
        """Book a completion as its agent's turn; its action waits for the rest of the stage."""
        if completion.id not in in_flight:
            raise RuntimeError(f"an engine answered request {completion.id}, not in flight")
        game, agent = in_flight.pop(completion.id)
        request, messages = game.asked[agent]
        seat = self._seat(agent)
        text = completion.text
        if text is None:
            text = seat.renderer.text(completion.completion_ids)
        text = well_formed(text)
        info: dict[str, Any] = dict(seat.role.facts(text))
        try:
            action: Action | None = seat.role.parse(text)
        except InvalidAction as reason:
            action, info["invalid"] = None, str(reason)
        game.moves[agent] = Turn(
            agent=agent,
            role=agent.rpartition("_")[0],
            policy=seat.policy,
            version=completion.version,
            prompt_ids=request.prompt_ids,
            completion_ids=completion.completion_ids,
            logprobs=completion.logprobs,
            trainable=(1,) * len(completion.completion_ids),
            temperature=request.temperature,
            messages=messages,
            text=text,
            action=action,
            stop_reason=completion.stop_reason,
            info=info,
        )
        return game

    def _episode(self, game: _Game, status: Status) -> Episode:
        failed = status is Status.FAILED
        return Episode(
            arena=game.arena.name,
            task=game.job.task,
            seed=game.job.seed,
            turns=tuple(game.turns),
            status=status,
            metrics={} if failed else dict(game.arena.metrics),
            created=() if failed else tuple(game.arena.created),
            error=game.error,
        )


def _one_line(error: Exception) -> str:
    """What broke, whatever line breaks or control characters its message holds."""
    words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return "".join(c if c.isprintable() else "?" for c in words)
