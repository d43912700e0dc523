"""Play many episodes at once, with one request in flight for every agent that is to move."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeAlias

from selfplay.arena import Arena
from selfplay.engines import Engine
from selfplay.engines.stop_strings import cut
from selfplay.errors import ConfigError, PromptTooLong, SelfplayError, nearest
from selfplay.models.opened_thinking import thinking_note
from selfplay.models.renderer import Renderer
from selfplay.models.tool_use import ToolUse
from selfplay.number_array import NumberArray
from selfplay.rng import derive
from selfplay.role import BrokenRole
from selfplay.rollout.agent_spec import AgentSpec
from selfplay.rollout.episode_queue import EpisodeQueue, RolloutCall
from selfplay.rollout.episode_runner import EpisodeRunner, EpisodeSpec, notes_of
from selfplay.rollout.requests_in_flight import Calling, InFlight, RequestInFlight
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
    """A loop that plays episode specifications to their end.

    `PolicyPool.rollout` and `StudyMatches.rollout` make one. No specification is dropped: an error
    of an arena or a role becomes a failed episode.
    """

    def __init__(
        self,
        *,
        arena: Callable[[], Arena],
        agent_specs: Mapping[str, AgentSpec],
        engines: Mapping[str, Engine],
        renderers: Mapping[str, Renderer] | None = None,
        learning: Collection[str] | None = None,
        settings: RolloutSettings = DEFAULTS,
    ) -> None:
        """Args:
        arena: Function that makes a new arena.
        agent_specs: Role name to the specification of its agents; `solver_3` is an agent of
            `solver`.
        engines: Policy name to the engine that serves it. `engines`, `renderers` and `learning`
            are read at every use, so that policies can be added at any time.
        renderers: Policy name to its renderer, for the agents in a `policy_map`.
        learning: Names of the policies that learn; None: all.
        settings: Limits of the rollout.
        """
        self.arena, self.agent_specs, self.engines = arena, dict(agent_specs), engines
        self.renderers = {} if renderers is None else renderers
        self.learning, self.settings = learning, settings
        self._requests = count()
        self.tools: ToolLoop[Calling] = ToolLoop(threads=settings.tool_threads)
        self._tool_uses: dict[tuple[int, int], ToolUse] = {}
        self._prompts: dict[tuple[str, bytes], NumberArray] = {}
        self._loop = SharedLoop(EpisodeQueue(self))
        for name, each in self.agent_specs.items():
            if note := thinking_note(each.role, each.renderer, where=f"roles.{name}"):
                ACTIVITY.note(note)

    def run(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        """Play all specifications and return their episodes in the same order.

        Calls of several threads share one queue of episodes (`EpisodeQueue`): the later ones begin
        as soon as there is room, although episodes of the earlier ones are still in progress.

        Raises ConfigError for an unknown role, agent or policy, and StalledError if no answer comes
        for too long (`RolloutSettings.patience`).
        """
        with ACTIVITY.counting("episodes", len(specs)) as tally:
            call = RolloutCall(specs, tally)
            self._loop.run(call)
        return [call.episodes[place] for place in range(len(specs))]

    # For the queue ------------------------------------------------------------------------------

    def begin_episode(self, spec: EpisodeSpec) -> EpisodeRunner:
        """Return the runner of an episode.

        Recorded turns keep only the notes of their roles, because the arena adds its own again.
        """
        arena = self.arena()
        for agent in spec.policy_map:
            if agent not in arena.possible_agents:
                raise ConfigError(
                    f"no agent {agent!r} to be seated; {nearest(agent, arena.possible_agents)}"
                )
            self._agent_spec(agent, spec)
        prefix = [
            replace(
                turn,
                reward=0.0,
                info=notes_of(turn, self._agent_spec(turn.agent, spec).role),
            )
            for turn in spec.prefix_turns
        ]
        return EpisodeRunner(spec, arena, prefix=prefix)

    def ask(self, runner: EpisodeRunner, in_flight: InFlight) -> None:
        """Send the requests of the stage's agents; an error of arena or role fails the episode."""
        try:
            views = {agent: _view(runner.arena, agent) for agent in runner.arena.stage}
            speakers = set(runner.arena.messengers())
        except SelfplayError:
            raise
        except Exception as error:  # as in EpisodeRunner.advance
            runner.fail(error)
            return
        for agent, observation in views.items():
            agent_spec = self._agent_spec(agent, runner.spec)
            try:
                messages = agent_spec.role.prompt(observation)
            except SelfplayError:
                raise
            except Exception as error:  # the role's code may raise anything
                runner.fail(self._named(agent, agent_spec.role.broken("prompt", error)))
                return
            if fault := _fault_of(messages):
                broken = BrokenRole(f"{type(agent_spec.role).__name__}.prompt returned {fault}")
                runner.fail(self._named(agent, broken))
                return
            first = agent_spec.role.memory == "none" or agent not in runner.latest
            if not first:
                messages = [message for message in messages if message["role"] != "system"]
            use = self._tool_use(agent_spec)
            if use:
                messages = use.prompt(messages, first=first)
            prompt_ids = self._prompt_ids(runner, agent, agent_spec, messages, first=first)
            request = self._request(runner, agent, agent_spec, prompt_ids, observation)
            try:
                agent_spec.engine_in(self.engines).add(request)
            except PromptTooLong as error:
                runner.run_out(error)
                return
            in_flight[request.id] = RequestInFlight(
                runner=runner,
                agent=agent,
                agent_spec=agent_spec,
                request=request,
                messages=tuple(messages),
                spoken=agent in speakers,
            )

    def ask_again(self, asked: RequestInFlight, turn: Turn, in_flight: InFlight) -> None:
        """Send the request after the tool calls of a turn; without room for it the move ends."""
        runner, agent, agent_spec = asked.runner, asked.agent, asked.agent_spec
        if runner.error or runner.too_long_reason:
            return
        runner.calls.setdefault(agent, []).append(turn)
        use = self._tool_use(agent_spec)
        messages = use.results(turn.tool_calls) if use else []
        prompt_ids = self._renderer(agent_spec).extend(
            turn.prompt_ids, turn.completion_ids, messages
        )
        if prompt_ids is None:
            said = runner.conversation(agent, move_only=agent_spec.role.memory == "none")
            prompt_ids = self._renderer(agent_spec).start([*said, *messages])
        shown = asked.request.observation
        earlier = shown.fields.get(RESULTS, ())
        fields = {**shown.fields, RESULTS: [*earlier, *(call.result for call in turn.tool_calls)]}
        request = self._request(
            runner, agent, agent_spec, prompt_ids, replace(shown, fields=fields)
        )
        try:
            agent_spec.engine_in(self.engines).add(request)
        except PromptTooLong:
            runner.end_move(agent)
            return
        in_flight[request.id] = replace(asked, request=request, messages=tuple(messages))

    def _request(
        self,
        runner: EpisodeRunner,
        agent: str,
        agent_spec: AgentSpec,
        prompt_ids: tuple[int, ...],
        observation: Observation,
    ) -> Request:
        calls = len(runner.calls.get(agent, ()))
        draw = (len(runner.turns), "call", calls) if calls else (len(runner.turns),)
        return Request(
            id=next(self._requests),
            policy=agent_spec.policy,
            prompt_ids=prompt_ids,
            seed=derive(runner.spec.seed, runner.spec.member, agent, *draw),
            max_tokens=agent_spec.max_tokens,
            temperature=agent_spec.temperature,
            top_p=agent_spec.top_p,
            top_k=agent_spec.top_k,
            min_p=agent_spec.min_p,
            stop=agent_spec.stop,
            keep_stop=agent_spec.keep_stop,
            decode=_decoder(agent_spec.renderer) if agent_spec.stop else None,
            agent=agent,
            observation=observation,
            group_seed=runner.spec.seed,
            turns_taken=runner.sampled_turns + calls,
        )

    def _tool_use(self, agent_spec: AgentSpec) -> ToolUse | None:
        """Return the tool use of the agents of a role; None if the role has no tools."""
        toolbox = agent_spec.role.tools
        if toolbox is None:
            return None
        key = (id(toolbox), id(agent_spec.renderer))
        if key not in self._tool_uses:  # a ToolUse keeps both objects, so the ids stay unique
            self._tool_uses[key] = ToolUse(toolbox, agent_spec.renderer)
        return self._tool_uses[key]

    def _renderer(self, agent_spec: AgentSpec) -> Renderer:
        """Return the renderer of the prompts, which may describe tools."""
        use = self._tool_use(agent_spec)
        return use.renderer if use else agent_spec.renderer

    @staticmethod
    def _named(agent: str, error: BrokenRole) -> BrokenRole:
        """Return `error` with the name of the role whose code must be corrected."""
        return BrokenRole(f"roles.{role_of(agent)}: {error}")

    def _prompt_ids(
        self,
        runner: EpisodeRunner,
        agent: str,
        agent_spec: AgentSpec,
        messages: Sequence[Message],
        *,
        first: bool,
    ) -> tuple[int, ...]:
        """Return the prompt: the messages alone if they begin a conversation (`first`), else
        appended to the agent's conversation."""
        renderer = self._renderer(agent_spec)
        if first:
            return renderer.start(messages)
        turn = runner.latest[agent]
        extended = renderer.extend(turn.prompt_ids, turn.completion_ids, messages)
        if extended is not None:
            return extended
        # The chat template does not keep its prefix, so the conversation is rendered again.
        return renderer.start([*runner.conversation(agent), *messages])

    def most_turns(self, runner: EpisodeRunner) -> int:
        """Return the number of turns after which an episode is truncated."""
        return self.settings.at(runner.spec.step).max_turns

    def _agent_spec(self, agent: str, spec: EpisodeSpec) -> AgentSpec:
        """Return the specification of an agent, with its policy and limits in this episode."""
        role = role_of(agent)
        if role not in self.agent_specs:
            raise ConfigError(
                f"no specification for role {role!r} of agent {agent!r}; "
                f"{nearest(role, self.agent_specs)}"
            )
        agent_spec, policy = self.agent_specs[role].at(spec.step), spec.policy_map.get(agent)
        if policy is None or policy == agent_spec.policy:
            return agent_spec
        if policy not in self.renderers:
            raise ConfigError(
                f"no policy {policy!r} for agent {agent!r}; {nearest(policy, self.renderers)}"
            )
        return replace(agent_spec, policy=policy, renderer=self.renderers[policy])

    def _learns(self, policy: str, spec: EpisodeSpec) -> bool:
        return spec.learner in (None, policy) and (self.learning is None or policy in self.learning)

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
        runner, earlier = asked.runner, asked.runner.calls.get(asked.agent, [])
        if completion.too_long_reason:
            if earlier:
                runner.end_move(asked.agent)
            else:
                runner.run_out(PromptTooLong(completion.too_long_reason))
            return runner
        text = _text(asked, completion)
        use = self._tool_use(asked.agent_spec)
        calls = use.calls(text) if use else []
        if use and calls and not spent(earlier):
            turn = self._turn(asked, completion, text)
            used = sum(len(each.tool_calls) for each in earlier)
            before = list(runner.tool_calls(asked.agent))
            state = partial(runner.arena.tool_state, asked.agent)
            self.tools.begin(
                (asked, turn), use.toolbox, calls, used=used, earlier=before, state=state
            )
        else:
            self._end_move(asked, completion, text, refused=bool(calls))
        return runner

    def _turn(
        self,
        asked: RequestInFlight,
        completion: Completion,
        text: str,
        *,
        action: Action | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> Turn:
        """Return the turn of a completion with this text; one with tool calls has no action."""
        agent_spec, request = asked.agent_spec, asked.request
        return Turn(
            agent=asked.agent,
            role=role_of(asked.agent),
            policy=agent_spec.policy,
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
            stage=asked.runner.stage,
            stop_reason=completion.stop_reason,
            trainable=self._learns(agent_spec.policy, asked.runner.spec),
            legal=_legal(request.observation),
            spoken=asked.spoken,
        )

    def _end_move(
        self, asked: RequestInFlight, completion: Completion, text: str, *, refused: bool
    ) -> None:
        """Parse the action of a completion, and store its turn as the agent's move.

        Args:
            asked: The request of the turn.
            completion: The answer of the engine.
            text: Its text.
            refused: True if the limit of calls refuses those of the turn, which then has no action.
        """
        runner = asked.runner
        action: Action | None = None
        info: dict[str, Any] = {"invalid": CALL_LIMIT}
        try:
            if not refused:
                action, info = asked.agent_spec.role.parse_completion(text)
        except BrokenRole as error:
            runner.fail(self._named(asked.agent, error))
            return
        if action is not None:
            earlier = runner.calls.get(asked.agent, [])
            made = [call for each in earlier for call in each.tool_calls]
            try:
                action = runner.arena.with_calls(asked.agent, action, made)
            except SelfplayError:
                raise
            except Exception as error:  # as in EpisodeRunner.advance
                runner.fail(error)
                return
        runner.moves[asked.agent] = self._turn(asked, completion, text, action=action, info=info)


def _text(asked: RequestInFlight, completion: Completion) -> str:
    """Return the text of a completion, without a stop string that the role does not keep."""
    text = completion.text
    if text is None:
        renderer, request = asked.agent_spec.renderer, asked.request
        said = _decoder(renderer)(completion.completion_ids)
        text = renderer.text(()) + cut(said, request.stop, keep=request.keep_stop)
    return well_formed(text)


def _decoder(renderer: Renderer) -> Callable[[Sequence[int]], str]:
    """Return the function from sampled tokens to their text, in which stop strings are found."""
    return partial(_sampled, renderer=renderer, opened=len(renderer.text(())))


def _sampled(ids: Sequence[int], renderer: Renderer, opened: int) -> str:
    """Return the text of sampled tokens, without the `opened` characters that the generation prompt
    gives every completion."""
    return renderer.text(ids)[opened:]


def _fault_of(messages: Any) -> str:
    """Return the reason why a role's `prompt` result is no list of messages; "" if it is one."""
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
    else, or an observation whose text or fields are of another type."""
    shown: Any = arena.view(agent)
    if not isinstance(shown, Observation):
        raise TypeError(
            f"{arena.name}: view({agent!r}) returned {type(shown).__name__}, not an Observation"
        )
    for name, value, kind in (("text", shown.text, str), ("fields", shown.fields, Mapping)):
        if not isinstance(value, kind):
            raise TypeError(
                f"{arena.name}: view({agent!r}) returned an Observation whose {name} is "
                f"{type(value).__name__}, not {kind.__name__}"
            )
    return shown
