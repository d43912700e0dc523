"""Plays many episodes at once, with one request in flight for every agent that is to move."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeAlias

from selfplay.arena import Arena
from selfplay.engines import Engine
from selfplay.engines.stop_strings import cut
from selfplay.errors import ConfigError, PromptTooLong, SelfplayError, StalledError, nearest
from selfplay.models.renderer import Renderer
from selfplay.rng import derive
from selfplay.role import BrokenRole, Role
from selfplay.rollout.episode_runner import EpisodeRunner, EpisodeSpec
from selfplay.types import Completion, Episode, Message, Request, Turn, role_of, well_formed

__all__ = ["AgentSpec", "EpisodeSpec", "Rollout", "check_sampling_limits"]

COOLEST, HOTTEST = 1e-6, 1e6
"""Smallest and largest temperature above 0 by which float32 logits can be divided."""
MOST_STOPS = 16
"""Maximum number of stop strings of a role."""
MOST_THREADS = 1024
"""Maximum number of arenas that advance at the same time."""


RolloutFn: TypeAlias = Callable[[Sequence[EpisodeSpec]], list[Episode]]
"""Function that plays specifications and returns their episodes in order: `Rollout.run`."""


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """Role, policy and sampling limits of the agents of a role."""

    role: Role
    """Makes prompts and parses actions."""
    policy: str
    """Name of the policy."""
    renderer: Renderer
    """Converts between messages and the policy's tokens."""
    max_tokens: int = 256
    """Maximum length of a completion in tokens."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: float = 1.0
    """Total probability of the most probable tokens that may be sampled; 1: all tokens."""
    top_k: int = 0
    """Number of the most probable tokens that may be sampled; 0: all tokens."""
    min_p: float = 0.0
    """Smallest probability of a token that may be sampled, as a fraction of the largest one."""
    stop: tuple[str, ...] = ()
    """Texts at which a completion ends. The role reads the text before the stop string; token ids
    and loss include it."""
    keep_stop: bool = False
    """True if the role reads the stop string too, such as a closing tag."""

    def __post_init__(self) -> None:
        check_sampling_limits(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            stop=self.stop,
        )


def check_sampling_limits(
    *,
    max_tokens: int = 1,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    stop: Sequence[str] = (),
) -> None:
    """Raise ValueError for limits that sampling cannot use. The limits are those of `AgentSpec`.

    Float32 logits overflow at temperatures between 0 and `COOLEST`.
    """
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p: {top_p} does not fit: above 0 and at most 1 is needed")
    if top_k < 0:
        raise ValueError(f"top_k: {top_k} does not fit: at least 0 is needed; 0 keeps all tokens")
    if not 0 <= min_p <= 1:
        raise ValueError(f"min_p: {min_p} does not fit: between 0 and 1 is needed")
    if len(stop) > MOST_STOPS:
        raise ValueError(f"stop: {len(stop)} strings do not fit: {MOST_STOPS} is the maximum")
    if "" in stop:
        raise ValueError("stop: an empty string does not fit: it would end every completion")
    if max_tokens < 1:
        raise ValueError(f"max_tokens: {max_tokens} does not fit: at least 1 is needed")
    if temperature != 0 and not COOLEST <= temperature <= HOTTEST:
        raise ValueError(
            f"temperature: {temperature} does not fit: 0 is greedy, and others lie between "
            f"{COOLEST:g} and {HOTTEST:g}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """A request in flight."""

    game: EpisodeRunner
    """The episode that waits for the completion."""
    agent: str
    """The agent that will make the move."""
    seat: AgentSpec
    """Role, policy and sampling limits of the agent."""
    request: Request
    """The request to the engine."""
    messages: tuple[Message, ...]
    """Messages that the request added to the agent's context."""


_InFlight: TypeAlias = dict[int, _Asked]
"""Requests in flight by their id."""


class Rollout:
    """Plays episode specifications to their end.

    `PolicyPool.rollout` makes one. No specification is dropped: an error of an arena or a role
    becomes a failed episode.
    """

    def __init__(
        self,
        *,
        arena: Callable[[], Arena],
        seats: Mapping[str, AgentSpec],
        engines: Mapping[str, Engine],
        renderers: Mapping[str, Renderer] | None = None,
        learning: Collection[str] | None = None,
        max_turns: int = 1000,
        max_live: int = 4096,
        threads: int = 8,
        patience: int = 100_000,
    ) -> None:
        """Args:
        arena: Function that makes a new arena.
        seats: Role name to the specification of its agents; `solver_3` is an agent of `solver`.
        engines: Policy name to the engine that serves it. `engines`, `renderers` and `learning`
            are read at every use, so that policies can be added between two calls of `run`.
        renderers: Policy name to its renderer, for the agents in a `policy_map`.
        learning: Names of the policies that learn; None: all.
        max_turns: Number of turns after which an episode is truncated.
        max_live: Maximum number of episodes in flight.
        threads: Number of arenas that advance at once if `Arena.blocking`.
        patience: Number of consecutive engine steps without a completion after which the rollout
            raises StalledError.
        """
        self.arena, self.seats, self.engines = arena, dict(seats), engines
        self.renderers = {} if renderers is None else renderers
        self.learning = learning
        self.max_turns, self.max_live, self.threads = max_turns, max_live, threads
        self.patience = patience
        self._requests = count()

    def run(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        """Play all specifications and return their episodes in the same order."""
        episodes: dict[int, Episode] = {}
        in_flight: _InFlight = {}
        engines = list({id(engine): engine for engine in self.engines.values()}.values())
        for engine in engines:
            engine.forget()
        upcoming = deque(enumerate(specs))
        places: dict[EpisodeRunner, int] = {}
        idle = 0
        with ThreadPoolExecutor(self.threads, thread_name_prefix="advance") as pool:
            ready: list[EpisodeRunner] = []
            # Requests of failed episodes are completed too, so that no engine keeps any.
            while len(episodes) < len(specs) or in_flight:
                while upcoming and len(places) < self.max_live:
                    place, job = upcoming.popleft()
                    game = self._game(job)
                    places[game] = place
                    ready.append(game)
                # A fixed order, independent of the order in which the engines finished.
                ready.sort(key=places.__getitem__)
                self._advance_all(ready, pool)
                for game in ready:
                    if game.status(max_turns=self.max_turns) is None:
                        self._ask(game, in_flight)
                    status = game.status(max_turns=self.max_turns)
                    if status is not None:
                        episodes[places.pop(game)] = game.episode(status)
                ready = []
                if not in_flight:
                    continue
                idle += 1
                if idle > self.patience:
                    lost = f"{len(in_flight)} request(s) in flight"
                    raise StalledError(
                        f"rollout: no answer to {lost} in {self.patience} engine steps "
                        "(rollout.patience)"
                    )
                for engine in engines:
                    for completion in engine.step():
                        idle = 0
                        game = self._receive(completion, in_flight)
                        complete = len(game.moves) == len(game.arena.stage)
                        ended = (game.error or game.too_long) and game not in ready
                        if game in places and (complete or ended):
                            ready.append(game)
        return [episodes[place] for place in range(len(specs))]

    def _game(self, job: EpisodeSpec) -> EpisodeRunner:
        """Return the runner of an episode.

        Recorded turns keep only the notes of their roles, because the arena adds its own again.
        """
        arena = self.arena()
        for agent in job.policy_map:
            if agent not in arena.possible_agents:
                raise ConfigError(
                    f"no agent {agent!r} to be seated; {nearest(agent, arena.possible_agents)}"
                )
            self._seat(agent, job)
        prefix = [
            replace(
                turn,
                reward=0.0,
                info=self._seat(turn.agent, job).role.parse_completion(turn.text)[1],
            )
            for turn in job.prefix_turns
        ]
        return EpisodeRunner(job, arena, prefix=prefix)

    @staticmethod
    def _advance_all(games: Sequence[EpisodeRunner], pool: ThreadPoolExecutor) -> None:
        """Play the complete stages, in parallel if the arenas wait for external work."""
        side_by_side = bool(games) and games[0].arena.blocking
        list((pool.map if side_by_side else map)(EpisodeRunner.advance, games))

    def _ask(self, game: EpisodeRunner, in_flight: _InFlight) -> None:
        """Send the requests of all agents of the stage."""
        try:
            views = {agent: game.arena.view(agent) for agent in game.arena.stage}
        except SelfplayError:
            raise
        except Exception as error:  # as in EpisodeRunner.advance
            game.fail(error)
            return
        for agent, observation in views.items():
            seat = self._seat(agent, game.spec)
            try:
                messages = seat.role.prompt(observation)
            except SelfplayError:
                raise
            except Exception as error:  # the role's code may raise anything
                game.fail(self._named(agent, seat.role.broken("prompt", error)))
                return
            if seat.role.memory == "conversation" and agent in game.latest:
                messages = [message for message in messages if message["role"] != "system"]
            request = Request(
                id=next(self._requests),
                policy=seat.policy,
                prompt_ids=self._prompt_ids(game, agent, seat, messages),
                seed=derive(game.spec.seed, game.spec.member, agent, len(game.turns)),
                max_tokens=seat.max_tokens,
                temperature=seat.temperature,
                top_p=seat.top_p,
                top_k=seat.top_k,
                min_p=seat.min_p,
                stop=seat.stop,
                keep_stop=seat.keep_stop,
                decode=seat.renderer.text if seat.stop else None,
                agent=agent,
                observation=observation,
            )
            try:
                self.engines[seat.policy].add(request)
            except PromptTooLong as error:
                game.run_out(error)
                return
            in_flight[request.id] = _Asked(
                game=game, agent=agent, seat=seat, request=request, messages=tuple(messages)
            )

    @staticmethod
    def _named(agent: str, error: BrokenRole) -> BrokenRole:
        """Return `error` with the name of the role whose code must be corrected."""
        return BrokenRole(f"roles.{agent.rpartition('_')[0]}: {error}")

    @staticmethod
    def _prompt_ids(
        game: EpisodeRunner, agent: str, seat: AgentSpec, messages: Sequence[Message]
    ) -> tuple[int, ...]:
        """Return the prompt: the messages alone, or appended to the agent's conversation."""
        if seat.role.memory == "none" or agent not in game.latest:
            return seat.renderer.start(messages)
        turn = game.latest[agent]
        extended = seat.renderer.extend(turn.prompt_ids, turn.completion_ids, messages)
        if extended is not None:
            return extended
        # The chat template does not keep its prefix, so the conversation is rendered again.
        return seat.renderer.start([*game.said(agent), *messages])

    def _seat(self, agent: str, job: EpisodeSpec) -> AgentSpec:
        """Return how an agent is played, with the policy of the episode's `policy_map` if any."""
        role = role_of(agent)
        if role not in self.seats:
            raise ConfigError(
                f"no seat for role {role!r} of agent {agent!r}; {nearest(role, self.seats)}"
            )
        seat, policy = self.seats[role], job.policy_map.get(agent)
        if policy is None or policy == seat.policy:
            return seat
        if policy not in self.renderers:
            raise ConfigError(
                f"no policy {policy!r} for agent {agent!r}; {nearest(policy, self.renderers)}"
            )
        return replace(seat, policy=policy, renderer=self.renderers[policy])

    def _learns(self, policy: str, job: EpisodeSpec) -> bool:
        return job.learner in (None, policy) and (self.learning is None or policy in self.learning)

    def _receive(self, completion: Completion, in_flight: _InFlight) -> EpisodeRunner:
        """Store a completion as its agent's turn until the stage is complete."""
        if completion.id not in in_flight:
            raise RuntimeError(f"an engine answered request {completion.id}, not in flight")
        asked = in_flight.pop(completion.id)
        game, seat, request = asked.game, asked.seat, asked.request
        if completion.too_long:
            game.run_out(PromptTooLong(completion.too_long))
            return game
        text = completion.text
        if text is None:
            text = seat.renderer.text(completion.completion_ids)
            text = cut(text, request.stop, keep=request.keep_stop)
        text = well_formed(text)
        try:
            action, info = seat.role.parse_completion(text)
        except BrokenRole as error:
            game.fail(self._named(asked.agent, error))
            return game
        game.moves[asked.agent] = Turn(
            agent=asked.agent,
            role=role_of(asked.agent),
            policy=seat.policy,
            version=completion.version,
            versions=completion.versions,
            prompt_ids=request.prompt_ids,
            completion_ids=completion.completion_ids,
            logprobs=completion.logprobs,
            loss_mask=(1,) * len(completion.completion_ids),
            temperature=request.temperature,
            messages=asked.messages,
            text=text,
            action=action,
            stage=game.stage,
            stop_reason=completion.stop_reason,
            info=info,
            trainable=self._learns(seat.policy, game.spec),
        )
        return game
