"""An endpoint with OpenAI's chat completions API as a frozen opponent or judge.

A config names it in `population.opponents`. The API key comes from an environment variable; it
appears in no config, record or message.
"""

import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from selfplay.engines import Engine
from selfplay.engines.messages import MessageRenderer, read
from selfplay.engines.request_queue import RequestQueue
from selfplay.engines.stop_strings import cut
from selfplay.errors import ConfigError, RunError, import_package
from selfplay.types import Completion, Request, StopReason, well_formed

if TYPE_CHECKING:
    from openai import OpenAI

PATIENCE = 0.02
"""Seconds that a step waits for an answer. Other engines take no step in this time."""
PAUSE = 60.0
"""Maximum number of seconds between two attempts, if an endpoint asks for a pause."""
REFUSED = (400, 413, 422)
"""HTTP statuses of an endpoint that refuses a request."""
FULL = re.compile(r"context[ _](length|window|size)", re.IGNORECASE)
"""Pattern in the error of an endpoint whose model's context is too short for the prompt."""
MOST_STOPS = 4
"""Maximum number of stop strings of a request in OpenAI's API."""
UNKNOWN = ("top_k", "min_p")
"""Sampling settings that OpenAI's API does not have; some servers accept them as `options`."""
RESERVED = ("model", "messages", "temperature", "seed", "stream", "n")
"""Keys of a request's body that `options` cannot set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """The answer to one request."""

    text: str
    cut: bool
    """True if the token limit ended the text."""
    counts: Mapping[str, float]
    """Metrics of the request by name."""
    too_long_reason: str = ""
    """See `Completion.too_long_reason`."""


class OpenAIEngine(Engine):
    """Samples completions from one remote model, with several requests in flight.

    The client repeats failed attempts. An answer without text counts as `malformed` and is an
    empty completion: the agent's action is invalid, and the episode continues. A request that the
    endpoint refuses for its content, after other requests were answered, counts as `refused` and is
    an empty completion too. A request whose prompt does not fit into the model's context also
    counts as `refused`, and truncates the episode. The run ends with a RunError if the endpoint
    cannot be reached, refuses the key or the first request, or does not know the model; the run can
    be resumed.
    """

    def __init__(
        self,
        *,
        model: str,
        base_url: str = "https://api.openai.com/v1",
        key_variable: str | None = "OPENAI_API_KEY",
        timeout: float = 120.0,
        retries: int = 5,
        concurrency: int = 16,
        requests_per_minute: float | None = None,
        limit_key: str = "max_tokens",
        price: Mapping[str, float] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Args:
        model: Its name at the endpoint.
        base_url: The endpoint, up to and with /v1.
        key_variable: Environment variable with the API key; None for an endpoint without keys.
        timeout: Maximum number of seconds in which the endpoint sends nothing during an attempt.
        retries: Attempts after the first, with growing pauses between them, if the endpoint is
            busy, fails or cannot be reached.
        concurrency: Maximum number of requests in flight.
        requests_per_minute: Maximum number of requests per minute, without retries; None: no limit.
        limit_key: The endpoint's name of the token limit of an answer: max_tokens, or
            max_completion_tokens for newer models.
        price: Dollars per million tokens, such as {prompt: 0.1, completion: 0.4}, for the metric
            `dollars`; not a limit.
        options: Further keys of the request's body, such as {top_p: 0.9}. They replace the role's
            sampling settings of the same names.

        Raises ValueError for impossible settings, and ConfigError if the client or the key is
        missing.
        """
        if not 0 < timeout < math.inf or retries < 0 or concurrency < 1:
            raise ValueError("timeout must be above 0, retries at least 0, concurrency at least 1")
        if requests_per_minute is not None and not requests_per_minute > 0:
            raise ValueError("requests_per_minute must be above 0")
        if "@" in base_url.split("?")[0]:
            raise ValueError("base_url contains a user or password, which records would show")
        for key in options or {}:
            if key in (*RESERVED, limit_key):
                raise ValueError(f"options.{key}: the engine sets this key itself")
        for key in price or {}:
            if key not in ("prompt", "completion"):
                raise ValueError(f"price.{key}: unknown key; the keys are prompt and completion")
        self.model, self.base_url, self.key_variable = model, base_url, key_variable
        self.timeout, self.retries, self.concurrency = timeout, retries, concurrency
        self.requests_per_minute, self.limit_key = requests_per_minute, limit_key
        self.price, self.options = dict(price or {}), dict(options or {})
        self.renderer: MessageRenderer = MessageRenderer()
        self._client = self._connected()
        self._answered = False
        self._waiting = RequestQueue()
        self._asked: dict[Future[_Answer], Request] = {}
        self._begun: dict[int, float] = {}
        """Monotonic time of the first attempt, by the request's id."""
        self._counts: Counter[str] = Counter()
        self._pace, self._next = Lock(), 0.0

    def _connected(self) -> "OpenAI":
        client: type[OpenAI] = import_package("openai", "openai", "OpenAIEngine").OpenAI
        key = "none"
        if self.key_variable is not None:
            key = os.environ.get(self.key_variable, "")
        if not key:
            raise ConfigError(
                f"{self.base_url}: no API key; set the environment variable {self.key_variable}, "
                "or key_variable=null for an endpoint without keys"
            )
        return client(
            api_key=key,
            base_url=self.base_url,
            timeout=self.timeout,
            max_retries=self.retries,
        )

    def add(self, request: Request) -> None:
        """Queue a request whose prompt was rendered by this engine's renderer.

        Raises ConfigError for a sampling setting that the API does not have.
        """
        for name in UNKNOWN:
            if getattr(request, name) and name not in self.options:
                raise ConfigError(
                    f"policy {request.policy!r}: OpenAI's API has no {name}; set "
                    f"options: {{{name}: ...}} of the opponent if {self.base_url} accepts it, or "
                    f"drop {name} from the role's sampling"
                )
        self._waiting.add(request)

    def step(self) -> list[Completion]:
        """Send queued requests, wait a moment and return the completions that arrived.

        Raises RunError if the endpoint cannot be used. Also raises it if one answer takes more than
        (retries + 1) x (timeout + 60) seconds. The client's timeout limits each read, not the whole
        answer.
        """
        while self._waiting and len(self._asked) < self.concurrency:
            request = self._waiting.pop()
            self._asked[self._begin(request)] = request
        done = wait(self._asked, timeout=PATIENCE, return_when=FIRST_COMPLETED).done
        # The results are in the order of the requests, whatever the order of the answers.
        finished = [future for future in self._asked if future in done]
        try:
            completions = [self._completion(self._asked.pop(future), future) for future in finished]
            self._refuse_endless()
        except RunError:
            self.close()
            raise
        return completions

    @property
    def awaiting(self) -> bool:
        """True while a request has no answer; `step` limits the time of each."""
        return bool(self._asked or self._waiting)

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        """Raise ConfigError, because a remote model cannot be trained."""
        raise ConfigError(
            f"policy {policy!r} is {self.model!r} at an endpoint and cannot be trained"
        )

    def drain_metrics(self) -> dict[str, float]:
        """Return requests, retries, malformed, refused, tokens and dollars since the last call."""
        counts, self._counts = dict(self._counts), Counter()
        return {name: float(value) for name, value in counts.items()}

    def close(self) -> None:
        """Close the client; requests in flight are lost."""
        self._asked.clear()
        self._client.close()

    def _refuse_endless(self) -> None:
        """Raise RunError for an answer that takes longer than all attempts may take."""
        longest, now = (self.retries + 1) * (self.timeout + PAUSE), time.monotonic()
        if any(now - self._begun.get(each.id, now) > longest for each in self._asked.values()):
            raise RunError(f"endpoint {self.base_url}: an answer did not end within {longest:g} s")

    def _begin(self, request: Request) -> "Future[_Answer]":
        """Start a request in a daemon thread, which does not keep the process alive."""
        future: Future[_Answer] = Future()

        def ask() -> None:
            try:
                future.set_result(self._answer(request))
            except BaseException as error:
                future.set_exception(error)

        Thread(target=ask, name="openai", daemon=True).start()
        return future

    def _completion(self, request: Request, future: "Future[_Answer]") -> Completion:
        self._begun.pop(request.id, None)
        answer = future.result()
        self._counts.update(answer.counts)
        text = cut(answer.text, request.stop, keep=request.keep_stop)
        ids = tuple(text.encode("utf-8", "replace"))
        longer = answer.cut and text == answer.text
        return Completion(
            id=request.id,
            completion_ids=ids,
            logprobs=(0.0,) * len(ids),
            stop_reason=StopReason.LENGTH if longer else StopReason.STOP,
            text=text,
            too_long_reason=answer.too_long_reason,
        )

    def _answer(self, request: Request) -> _Answer:
        """Send a request and wait for its answer; runs in the request's thread; raises RunError."""
        from openai import APIError, APIResponseValidationError

        self._wait_turn()
        self._begun[request.id] = time.monotonic()
        try:
            raw = self._client.chat.completions.with_raw_response.create(
                model=self.model,
                messages=read(request.prompt_ids),  # type: ignore[arg-type]
                temperature=request.temperature,
                seed=request.seed % 2**31,
                extra_body={
                    **_limits(request),
                    **self.options,
                    self.limit_key: request.max_tokens,
                },
            )
        except APIError as error:
            status, code = getattr(error, "status_code", 0), str(error.code or "")
            if status in REFUSED and FULL.search(f"{code} {error}"):
                return _Answer(
                    text="",
                    cut=False,
                    counts={"requests": 1, "refused": 1},
                    too_long_reason=self._full(error),
                )
            if self._answered and status in REFUSED and not code.startswith("unsupported_"):
                # The fault is in this conversation, not in the endpoint.
                return _Answer(text="", cut=False, counts={"requests": 1, "refused": 1})
            raise RunError(self._complaint(error)) from None  # the cause may show the key
        self._answered = True
        counts: dict[str, float] = {"requests": 1, "retries": raw.retries_taken}
        try:
            parsed: Any = json.loads(raw.text)
            text, cut = _words(parsed)
            spent = self._spent(parsed.get("usage"))
        except (
            APIResponseValidationError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
            OverflowError,
        ):
            return _Answer(text="", cut=False, counts={**counts, "malformed": 1})
        return _Answer(text=text, cut=cut, counts=counts | spent)

    def _wait_turn(self) -> None:
        """Wait until the request rate allows a request; requests start at equal intervals."""
        if self.requests_per_minute is None:
            return
        with self._pace:
            now = time.monotonic()
            begin = max(now, self._next)
            self._next = begin + 60.0 / self.requests_per_minute
        time.sleep(begin - now)

    def _spent(self, usage: Any) -> dict[str, float]:
        """Return the endpoint's token counts, and their price in dollars."""
        counts = {}
        for name in ("prompt", "completion"):
            count = usage.get(f"{name}_tokens") if isinstance(usage, Mapping) else None
            counts[f"{name}_tokens"] = float(count) if isinstance(count, int) else 0.0
        if self.price:
            counts["dollars"] = sum(
                self.price.get(name, 0.0) * counts[f"{name}_tokens"] / 1e6
                for name in ("prompt", "completion")
            )
        return counts

    def _full(self, error: Exception) -> str:
        """Return one line for a prompt that does not fit into the model's context."""
        return (
            f"endpoint {self.base_url}: {self._scrubbed(error)}; lower max_tokens of the role's "
            "sampling, or shorten the prompt"
        )

    def _complaint(self, error: Exception) -> str:
        """Return one line that says why the endpoint cannot be used, without the key."""
        from openai import (
            APIConnectionError,
            APITimeoutError,
            AuthenticationError,
            NotFoundError,
            PermissionDeniedError,
        )

        where = f"endpoint {self.base_url}"
        tries = f"{self.retries + 1} attempt(s)"
        if isinstance(error, APITimeoutError):
            return f"{where}: no answer within {self.timeout:g} s in {tries}; raise timeout"
        if isinstance(error, APIConnectionError):
            cause = self._scrubbed(error.__cause__ or error)
            return (
                f"{where}: cannot be reached in {tries} ({cause}); check base_url, and that the "
                "endpoint is up"
            )
        if isinstance(error, AuthenticationError | PermissionDeniedError):
            return f"{where}: refuses the key in {self.key_variable} ({self._scrubbed(error)})"
        if isinstance(error, NotFoundError):
            return f"{where}: does not know the model {self.model!r} ({self._scrubbed(error)})"
        if getattr(error, "status_code", 0) in REFUSED:  # the client does not repeat such a request
            return (
                f"{where}: refuses the request ({self._scrubbed(error)}); check limit_key, options "
                "and the role's sampling"
            )
        return f"{where}: failed {tries} ({self._scrubbed(error)})"

    def _scrubbed(self, error: BaseException) -> str:
        text = " ".join(str(error).split()).replace(self._client.api_key, "***")
        return well_formed(text[:300]) or type(error).__name__


def _limits(request: Request) -> dict[str, Any]:
    """Return the keys of a request's body for truncated sampling and stop strings.

    The API leaves the stop string out of its answer and does not name it. If the text must keep it,
    the endpoint is not asked to stop. The text is cut here in any case, so that it also ends at the
    stop strings that are too many for the API.
    """
    limits: dict[str, Any] = {}
    if request.top_p < 1:
        limits["top_p"] = request.top_p
    if request.stop and not request.keep_stop:
        limits["stop"] = list(request.stop[:MOST_STOPS])
    return limits


def _words(parsed: Any) -> tuple[str, bool]:
    """Return the text of a parsed answer, and True if the token limit ended it.

    Raises an error if there is no text.
    """
    choice = parsed["choices"][0]
    text = choice["message"]["content"]
    if not isinstance(text, str):
        raise ValueError("no text")
    return well_formed(text), choice.get("finish_reason") == "length"
