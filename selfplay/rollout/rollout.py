"""Plays many episodes at once, with one request in flight for every agent that is to move."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeAlias

from selfplay.arena import Arena
from selfplay.engines import Engine
from selfplay.engines.stop_strings import cut
from selfplay.errors import ConfigError, PromptTooLong, SelfplayError, nearest
from selfplay.models.renderer import Renderer
from selfplay.models.tool_use import ToolUse
from selfplay.number_array import NumberArray
from selfplay.rng import derive
from selfplay.role import BrokenRole
from selfplay.rollout.agent_spec import AgentSpec
from selfplay.rollout.asked import Asked, Calling, InFlight
from selfplay.rollout.episode_runner import EpisodeRunner, EpisodeSpec, notes_of
from selfplay.rollout.game_queue import GameQueue, RolloutCall
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.rollout.shared_loop import SharedLoop
from selfplay.rollout.tool_loop import CALL_LIMIT, ToolLoop, spent
from selfplay.run.activity import ACTIVITY
from selfplay.types import (
    Action,
    Completion,
    Episode,
    Message,
    Observation,
    Request,
    Turn,
    role_of,
    well_formed,
)

__all__ = ["AgentSpec", "EpisodeSpec", "Rollout"]

DEFAULTS = RolloutSettings()
"""Limits of a rollout that is made without any."""
MOST_LEGAL = 64
"""Largest number of legal moves that a record lists."""
RESULTS = "tool_results"
"""Field of a request's observation with the results of the move's calls, for scripted engines."""

RolloutFn: TypeAlias = Callable[[Sequence[EpisodeSpec]], list[Episode]]
"""Function that plays specifications and returns their episodes in order: `Rollout.run`."""


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
        settings: RolloutSettings = DEFAULTS,
    ) -> None:
        """Args:
        arena: Function that makes a new arena.
        seats: Role name to the specification of its agents; `solver_3` is an agent of `solver`.
        engines: Policy name to the engine that serves it. `engines`, `renderers` and `learning`
            are read at every use, so that policies can be added at any time.
        renderers: Policy name to its renderer, for the agents in a `policy_map`.
        learning: Names of the policies that learn; None: all.
        settings: Limits of the rollout.
        """
        self.arena, self.seats, self.engines = arena, dict(seats), engines
        self.renderers = {} if renderers is None else renderers
        self.learning = learning
        self.max_turns, self.schedules = settings.max_turns, settings.schedules
        self.max_live, self.max_waiting = settings.max_live, settings.max_waiting
        self.threads, self.overlap = settings.threads, settings.overlap
        self.patience = settings.patience
        self._requests = count()
        self.tools: ToolLoop[Calling] = ToolLoop(threads=settings.tool_threads)
        self._tool_uses: dict[tuple[int, int], ToolUse] = {}
        self._prompts: dict[tuple[str, bytes], NumberArray] = {}
        self._loop = SharedLoop(GameQueue(self))

    def run(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        """Play all specifications and return their episodes in the same order.

        Calls of several threads share one queue of games (`GameQueue`): the later ones begin as
        soon as there is room, although games of the earlier ones are still in progress.
        """
        with ACTIVITY.counting("episodes", len(specs)) as tally:
            call = RolloutCall(specs, tally)
            self._loop.run(call)
        return [call.episodes[place] for place in range(len(specs))]

    # For the queue ------------------------------------------------------------------------------

    def begin_game(self, job: EpisodeSpec) -> EpisodeRunner:
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
                info=notes_of(turn, self._seat(turn.agent, job).role),
            )
            for turn in job.prefix_turns
        ]
        return EpisodeRunner(job, arena, prefix=prefix)

    def ask(self, game: EpisodeRunner, in_flight: InFlight) -> None:
        """Send the requests of all agents of the stage."""
        try:
            views = {agent: _view(game.arena, agent) for agent in game.arena.stage}
            speakers = set(game.arena.messengers())
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
            if fault := _fault_of(messages):
                broken = BrokenRole(f"{type(seat.role).__name__}.prompt returned {fault}")
                game.fail(self._named(agent, broken))
                return
            first = seat.role.memory == "none" or agent not in game.latest
            if not first:
                messages = [message for message in messages if message["role"] != "system"]
            use = self._tool_use(seat)
            if use:
                messages = use.prompt(messages, first=first)
            request = self._request(
                game, agent, seat, self._prompt_ids(game, agent, seat, messages), observation
            )
            try:
                self.engines[seat.policy].add(request)
            except PromptTooLong as error:
                game.run_out(error)
                return
            in_flight[request.id] = Asked(
                game=game,
                agent=agent,
                seat=seat,
                request=request,
                messages=tuple(messages),
                spoken=agent in speakers,
            )

    def ask_again(self, asked: Asked, turn: Turn, in_flight: InFlight) -> None:
        """Send the request after the tool calls of a turn; without room for it the move ends."""
        game, agent, seat = asked.game, asked.agent, asked.seat
        if game.error or game.too_long:
            return
        game.calls.setdefault(agent, []).append(turn)
        use = self._tool_use(seat)
        messages = use.results(turn.tool_calls) if use else []
        prompt_ids = self._renderer(seat).extend(turn.prompt_ids, turn.completion_ids, messages)
        if prompt_ids is None:
            said = game.conversation(agent, move_only=seat.role.memory == "none")
            prompt_ids = self._renderer(seat).start([*said, *messages])
        shown = asked.request.observation
        earlier = shown.fields.get(RESULTS, ())
        fields = {**shown.fields, RESULTS: [*earlier, *(call.result for call in turn.tool_calls)]}
        request = self._request(game, agent, seat, prompt_ids, replace(shown, fields=fields))
        try:
            self.engines[seat.policy].add(request)
        except PromptTooLong:
            game.end_move(agent)
            return
        in_flight[request.id] = replace(asked, request=request, messages=tuple(messages))

    def _request(
        self,
        game: EpisodeRunner,
        agent: str,
        seat: AgentSpec,
        prompt_ids: tuple[int, ...],
        observation: Observation,
    ) -> Request:
        calls = len(game.calls.get(agent, ()))
        draw = (len(game.turns), "call", calls) if calls else (len(game.turns),)
        return Request(
            id=next(self._requests),
            policy=seat.policy,
            prompt_ids=prompt_ids,
            seed=derive(game.spec.seed, game.spec.member, agent, *draw),
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
            group=game.spec.seed,
            turns_taken=game.sampled_turns + calls,
        )

    def _tool_use(self, seat: AgentSpec) -> ToolUse | None:
        """Return how the agents of a seat use tools; None if their role has none."""
        toolbox = seat.role.tools
        if toolbox is None:
            return None
        key = (id(toolbox), id(seat.renderer))
        found = self._tool_uses.get(key)
        if found is None or found.base is not seat.renderer:
            found = self._tool_uses[key] = ToolUse(toolbox, seat.renderer)
        return found

    def _renderer(self, seat: AgentSpec) -> Renderer:
        """Return the renderer of a seat's prompts, which may describe tools."""
        use = self._tool_use(seat)
        return use.renderer if use else seat.renderer

    @staticmethod
    def _named(agent: str, error: BrokenRole) -> BrokenRole:
        """Return `error` with the name of the role whose code must be corrected."""
        return BrokenRole(f"roles.{role_of(agent)}: {error}")

    def _prompt_ids(
        self, game: EpisodeRunner, agent: str, seat: AgentSpec, messages: Sequence[Message]
    ) -> tuple[int, ...]:
        """Return the prompt: the messages alone, or appended to the agent's conversation."""
        renderer = self._renderer(seat)
        if seat.role.memory == "none" or agent not in game.latest:
            return renderer.start(messages)
        turn = game.latest[agent]
        extended = renderer.extend(turn.prompt_ids, turn.completion_ids, messages)
        if extended is not None:
            return extended
        # The chat template does not keep its prefix, so the conversation is rendered again.
        return renderer.start([*game.conversation(agent), *messages])

    def most_turns(self, game: EpisodeRunner) -> int:
        """Return the number of turns after which an episode is truncated."""
        schedule = self.schedules.get("max_turns")
        return round(schedule.at(game.spec.step)) if schedule else self.max_turns

    def _seat(self, agent: str, job: EpisodeSpec) -> AgentSpec:
        """Return how an agent is played, with the policy and the limits of the episode."""
        role = role_of(agent)
        if role not in self.seats:
            raise ConfigError(
                f"no seat for role {role!r} of agent {agent!r}; {nearest(role, self.seats)}"
            )
        seat, policy = self.seats[role].at(job.step), job.policy_map.get(agent)
        if policy is None or policy == seat.policy:
            return seat
        if policy not in self.renderers:
            raise ConfigError(
                f"no policy {policy!r} for agent {agent!r}; {nearest(policy, self.renderers)}"
            )
        return replace(seat, policy=policy, renderer=self.renderers[policy])

    def _learns(self, policy: str, job: EpisodeSpec) -> bool:
        return job.learner in (None, policy) and (self.learning is None or policy in self.learning)

    def forget_prompts(self) -> None:
        """Drop the prompts that are kept to be shared by turns with equal prompts."""
        self._prompts.clear()

    def _shared(self, prompt: Sequence[int]) -> NumberArray:
        """Return a prompt in few bytes; equal prompts share them until `forget_prompts`."""
        made = NumberArray.of(prompt, "integers")
        return self._prompts.setdefault(made.data, made)

    def receive(self, completion: Completion, in_flight: InFlight) -> EpisodeRunner:
        """Store a completion as its agent's turn until the stage is complete, or run its calls."""
        if completion.id not in in_flight:
            raise RuntimeError(f"an engine answered request {completion.id}, not in flight")
        asked = in_flight.pop(completion.id)
        game, earlier = asked.game, asked.game.calls.get(asked.agent, [])
        if completion.too_long:
            if earlier:
                game.end_move(asked.agent)
            else:
                game.run_out(PromptTooLong(completion.too_long))
            return game
        text = _text(asked, completion)
        use = self._tool_use(asked.seat)
        calls = use.calls(text) if use else []
        if use and calls and not spent(earlier):
            turn = self._turn(asked, completion, text)
            used = sum(len(each.tool_calls) for each in earlier)
            before = list(game.tool_calls(asked.agent))
            state = partial(game.arena.tool_state, asked.agent)
            self.tools.begin(
                (asked, turn), use.toolbox, calls, used=used, earlier=before, state=state
            )
        else:
            self._end_move(asked, completion, text, refused=bool(calls))
        return game

    def _turn(
        self,
        asked: Asked,
        completion: Completion,
        text: str,
        *,
        action: Action | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> Turn:
        """Return the turn of a completion with this text; one with tool calls has no action."""
        seat, request = asked.seat, asked.request
        return Turn(
            agent=asked.agent,
            role=role_of(asked.agent),
            policy=seat.policy,
            version=completion.version,
            versions=completion.versions,
            prompt_ids=self._shared(request.prompt_ids),
            completion_ids=completion.completion_ids,
            logprobs=completion.logprobs,
            loss_mask=NumberArray.ones(len(completion.completion_ids)),
            temperature=request.temperature,
            messages=asked.messages,
            text=text,
            action=action,
            info=info or {},
            stage=asked.game.stage,
            stop_reason=completion.stop_reason,
            trainable=self._learns(seat.policy, asked.game.spec),
            legal=_legal(request.observation),
            spoken=asked.spoken,
        )

    def _end_move(self, asked: Asked, completion: Completion, text: str, *, refused: bool) -> None:
        """Parse the action of a completion, and store its turn as the agent's move.

        Args:
            asked: The request of the turn.
            completion: The answer of the engine.
            text: Its text.
            refused: True if the limit of calls refuses those of the turn, which then has no action.
        """
        game = asked.game
        action: Action | None = None
        info: dict[str, Any] = {"invalid": CALL_LIMIT}
        try:
            if not refused:
                action, info = asked.seat.role.parse_completion(text)
        except BrokenRole as error:
            game.fail(self._named(asked.agent, error))
            return
        if action is not None:
            earlier = game.calls.get(asked.agent, [])
            made = [call for each in earlier for call in each.tool_calls]
            try:
                action = game.arena.with_calls(asked.agent, action, made)
            except SelfplayError:
                raise
            except Exception as error:  # as in EpisodeRunner.advance
                game.fail(error)
                return
        game.moves[asked.agent] = self._turn(asked, completion, text, action=action, info=info)


def _text(asked: Asked, completion: Completion) -> str:
    """Return the text of a completion, without a stop string that the role does not keep."""
    text = completion.text
    if text is None:
        text = asked.seat.renderer.text(completion.completion_ids)
        text = cut(text, asked.request.stop, keep=asked.request.keep_stop)
    return well_formed(text)


def _fault_of(messages: Any) -> str:
    """Return how the result of a role's `prompt` is not a list of messages; "" if it is one."""
    if not isinstance(messages, list) or not all(isinstance(each, Mapping) for each in messages):
        return f"{type(messages).__name__}, not a list of chat messages"
    if not all(isinstance(each.get("role"), str) and "content" in each for each in messages):
        return "a chat message without role or content"
    return ""


def _legal(observation: Observation) -> tuple[str, ...]:
    """Return the legal moves that an observation lists, for the record."""
    legal = observation.fields.get("legal")
    if not isinstance(legal, list | tuple) or len(legal) > MOST_LEGAL:
        return ()
    return tuple(move for move in legal if isinstance(move, str))


def _view(arena: Arena, agent: str) -> Observation:
    """Return the observation of an agent. Raises TypeError if the arena's `view` returns anything
    else, or an observation whose text is none."""
    shown: Any = arena.view(agent)
    if not isinstance(shown, Observation):
        raise TypeError(
            f"{arena.name}: view({agent!r}) returned {type(shown).__name__}, not an Observation"
        )
    if not isinstance(shown.text, str):
        raise TypeError(
            f"{arena.name}: view({agent!r}) returned an Observation whose text is "
            f"{type(shown.text).__name__}, not str"
        )
    return shown
