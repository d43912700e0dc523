"""Engines without a model: each policy is a function from an observation to a text."""

import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeAlias

from selfplay.config.instantiate import import_target
from selfplay.engines import Engine
from selfplay.engines.stop_strings import cut
from selfplay.errors import ConfigError, nearest, with_place
from selfplay.types import Completion, Observation, Request, StopReason

Script: TypeAlias = Callable[[str, Observation, Random], str]
"""(agent, observation, rng) -> the completion's text."""


class ScriptedEngine(Engine):
    """Answers with the texts of scripts; ids are their UTF-8 bytes, log-probabilities are 0.

    A script's text ends at a stop string of the request, or after `max_tokens` bytes. The request's
    `temperature`, `top_p`, `top_k` and `min_p` have no effect, because nothing is sampled from a
    distribution over tokens.
    """

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        """`scripts` are the scripts by policy."""
        self.scripts = dict(scripts)
        self._waiting: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """Queue a request; raises ConfigError for a policy without a script."""
        if request.policy not in self.scripts:
            hint = nearest(request.policy, self.scripts)
            raise ConfigError(f"no script for policy {request.policy!r}; {hint}")
        self._waiting.append(request)

    def step(self) -> list[Completion]:
        """Answer all queued requests."""
        answers = []
        while self._waiting:
            request = self._waiting.popleft()
            script = self.scripts[request.policy]
            text = script(request.agent, request.observation, Random(request.seed))
            text = cut(text, request.stop, keep=request.keep_stop)
            ids = tuple(text.encode("utf-8", "replace"))
            longer = len(ids) > request.max_tokens
            ids = ids[: request.max_tokens]
            answers.append(_answer(request, ids, StopReason.LENGTH if longer else StopReason.STOP))
        return answers

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        """Raise ConfigError, because a script has no weights."""
        raise ConfigError(f"policy {policy!r} is scripted and cannot be trained")


class Scripted(ScriptedEngine):
    """Plays an opponent of a config by one function, or by an object that is called like one.

    Neither a token limit nor a stop string cuts its texts, because they are actions of the arena,
    not a model's words.
    """

    def __init__(self, *, script: str | Script) -> None:
        """Args:
        script: Dotted name of a `Script`, such as arenas.games.opponents.random_legal, or an object
            that is one: {_target_: arenas.external.mcts.MCTS, simulations: 100}.

        Raises ValueError if there is no such function, or if its arguments do not fit.
        """
        super().__init__({})
        self.name = script if isinstance(script, str) else type(script).__name__
        try:
            self.script: Script = (
                import_target(script, "", key="script") if isinstance(script, str) else script
            )
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if not _is_script(self.script):
            raise ValueError(
                f"script: {self.name} is not an opponent; name a function (agent, observation, "
                "rng) that returns the move, such as arenas.games.opponents.random_legal"
            )

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def step(self) -> list[Completion]:
        """Answer all queued requests; raises ConfigError if the function fails or returns no
        text."""
        answers = []
        while self._waiting:
            request = self._waiting.popleft()
            try:
                text: object = self.script(request.agent, request.observation, Random(request.seed))
            except Exception as error:  # a function for another arena, or a faulty one
                raise ConfigError(
                    f"opponent {request.policy!r}: {self.name} failed: {with_place(error)}"
                ) from error
            if not isinstance(text, str):
                raise ConfigError(
                    f"opponent {request.policy!r}: {self.name} returned {type(text).__name__}, "
                    "not a text"
                )
            ids = tuple(text.encode("utf-8", "replace"))
            answers.append(_answer(request, ids, StopReason.STOP))
        return answers


def _answer(request: Request, ids: tuple[int, ...], stop_reason: StopReason) -> Completion:
    return Completion(
        id=request.id,
        completion_ids=ids,
        logprobs=(0.0,) * len(ids),
        stop_reason=stop_reason,
        text=bytes(ids).decode("utf-8", "replace"),
    )


def _is_script(function: Any) -> bool:
    """Return True if a callable needs exactly three positional arguments, as a script does.

    Other callables are refused, so that a config cannot have them called.
    """
    if inspect.isclass(function):
        return False
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # a function in C without a signature
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty]
    return len(needed) == 3 and all(p.kind in places for p in needed)


def constant(text: str) -> Script:
    """Return a script that always says `text`."""
    return lambda agent, observation, rng: text


def choice(texts: Sequence[str]) -> Script:
    """Return a script that says one of `texts`, sampled uniformly."""
    return lambda agent, observation, rng: rng.choice(list(texts))


def replay(texts: Mapping[str, Sequence[str]]) -> Script:
    """Return a script that says each agent's texts in order.

    It raises IndexError after the last text.
    """
    spoken = dict.fromkeys(texts, 0)

    def script(agent: str, observation: Observation, rng: Random) -> str:
        position = spoken[agent]
        spoken[agent] += 1
        return texts[agent][position]

    return script
