"""Any endpoint that speaks OpenAI's chat completions, as a frozen opponent or judge.

Named by a population's opponents; its API key comes from an environment variable and stands in no
config, record or message.
"""

import json
import math
import os
import time
from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from selfplay.engines.messages import MessageRenderer, read
from selfplay.errors import ConfigError, RunError
from selfplay.types import Completion, Request, StopReason, well_formed

if TYPE_CHECKING:
    from openai import OpenAI

PATIENCE = 0.02
"""Seconds that a step waits for an answer: other engines' steps wait with it."""
PAUSE = 60.0
"""Seconds that the client waits at most between two attempts, where an endpoint asks for it."""
REFUSED = (400, 413, 422)
"""Statuses by which an endpoint refuses what it is asked."""
RESERVED = ("model", "messages", "temperature", "seed", "stream", "n")
"""What a request says itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """What came back of one request."""

    text: str
    cut: bool
    counts: Mapping[str, float]


class OpenAIEngine:
    """One remote model. Requests are sent side by side; whatever fails is tried again first.

    An answer without words counts as `malformed` and is an empty completion, which no role can
    read: the agent's action is invalid, and play goes on. An endpoint that is gone, refuses the key
    or does not know the model ends the run with one line: its checkpoints can be resumed.
    A conversation that it refuses after it has answered others (too long for it, or words that it
    will not read) is such an empty completion too, counted as `refused`.
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
        timeout: Seconds that one attempt may take.
        retries: Attempts after the first, with growing pauses between them, where the endpoint is
            busy, breaks or cannot be reached.
        concurrency: Requests in flight at once.
        requests_per_minute: Most attempts begun per minute, retries left out; None: no limit.
        limit_key: What the endpoint calls the most tokens of an answer: max_tokens, or
            max_completion_tokens for newer models.
        price: Dollars for a million tokens: {prompt: 0.1, completion: 0.4}; counted, not enforced.
        options: More keys of the request's body, such as {top_p: 0.9}.

        Raises ValueError for settings that cannot be, and ConfigError without the client, or
        without the key.
        """
        if not 0 < timeout < math.inf or retries < 0 or concurrency < 1:
            raise ValueError("timeout is above 0, retries at least 0, concurrency at least 1")
        if requests_per_minute is not None and not requests_per_minute > 0:
            raise ValueError("requests_per_minute is above 0")
        if "@" in base_url.split("?")[0]:
            raise ValueError("base_url holds a user or password, which would stand in records")
        for key in options or {}:
            if key in (*RESERVED, limit_key):
                raise ValueError(f"options.{key}: the engine says that itself")
        for key in price or {}:
            if key not in ("prompt", "completion"):
                raise ValueError(f"price.{key}: prices are of prompt and completion tokens")
        self.model, self.base_url, self.key_variable = model, base_url, key_variable
        self.timeout, self.retries, self.concurrency = timeout, retries, concurrency
        self.requests_per_minute, self.limit_key = requests_per_minute, limit_key
        self.price, self.options = dict(price or {}), dict(options or {})
        self.renderer = MessageRenderer()
        self._client = self._connected()
        self._answered = False
        self._waiting: deque[Request] = deque()
        self._asked: dict[Future[_Answer], Request] = {}
        self._begun: dict[int, float] = {}
        """When the first attempt of each request began, by its id."""
        self._counts: Counter[str] = Counter()
        self._pace, self._next = Lock(), 0.0

    def _connected(self) -> "OpenAI":
        try:
            from openai import OpenAI
        except ImportError as error:
            raise ConfigError(
                "OpenAIEngine needs the package openai: pip install 'selfplay[openai]'"
            ) from error
        key = "none"
        if self.key_variable is not None:
            key = os.environ.get(self.key_variable, "")
        if not key:
            raise ConfigError(
                f"{self.base_url}: no API key; set the environment variable {self.key_variable}, "
                "or key_variable=null for an endpoint that asks for none"
            )
        return OpenAI(
            api_key=key,
            base_url=self.base_url,
            timeout=self.timeout,
            max_retries=self.retries,
        )

    def add(self, request: Request) -> None:
        """Queue a request whose prompt this engine's renderer wrote."""
        self._waiting.append(request)

    def step(self) -> list[Completion]:
        """Send what may be sent, wait a little, return what was answered.

        Raises RunError where the endpoint cannot be used, in one line, and where it goes on
        answering for longer than all attempts may take: the client's timeout is of each byte.
        """
        while self._waiting and len(self._asked) < self.concurrency:
            request = self._waiting.popleft()
            self._asked[self._begin(request)] = request
        done = wait(self._asked, timeout=PATIENCE, return_when=FIRST_COMPLETED).done
        # In the order of asking, whatever order the answers came in.
        finished = [future for future in self._asked if future in done]
        try:
            found = [self._completion(self._asked.pop(future), future) for future in finished]
            self._refuse_endless()
        except RunError:
            self.close()
            raise
        return found

    def publish(self, policy: str, weights: Mapping[str, Any], version: int) -> None:
        """It cannot be trained; raises ConfigError."""
        raise ConfigError(
            f"policy {policy!r} is {self.model!r} at an endpoint: it cannot be trained"
        )

    def drain_counts(self) -> dict[str, float]:
        """Requests, retries, malformed and refused ones, tokens and dollars since the last call."""
        counts, self._counts = dict(self._counts), Counter()
        return {name: float(value) for name, value in counts.items()}

    def close(self) -> None:
        """Give up what is in flight."""
        self._asked.clear()
        self._client.close()

    def _refuse_endless(self) -> None:
        """Raise RunError for an answer that does not end."""
        longest, now = (self.retries + 1) * (self.timeout + PAUSE), time.monotonic()
        if any(now - self._begun.get(each.id, now) > longest for each in self._asked.values()):
            raise RunError(f"endpoint {self.base_url}: no end of an answer in {longest:g} s")

    def _begin(self, request: Request) -> "Future[_Answer]":
        """Ask in a thread that keeps no process alive; those of an executor would."""
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
        ids = tuple(answer.text.encode("utf-8", "replace"))
        return Completion(
            id=request.id,
            completion_ids=ids,
            logprobs=(0.0,) * len(ids),
            stop_reason=StopReason.LENGTH if answer.cut else StopReason.STOP,
            text=answer.text,
        )

    def _answer(self, request: Request) -> _Answer:
        """Ask, in a thread of its own; raises RunError."""
        from openai import APIError, APIResponseValidationError

        self._wait_turn()
        self._begun[request.id] = time.monotonic()
        try:
            raw = self._client.chat.completions.with_raw_response.create(
                model=self.model,
                messages=read(request.prompt_ids),  # type: ignore[arg-type]
                temperature=request.temperature,
                seed=request.seed % 2**31,
                extra_body={**self.options, self.limit_key: request.max_tokens},
            )
        except APIError as error:
            status, code = getattr(error, "status_code", 0), str(error.code or "")
            if self._answered and status in REFUSED and not code.startswith("unsupported_"):
                # Of this conversation, not of the endpoint: too long, or words it will not read.
                return _Answer(text="", cut=False, counts={"requests": 1, "refused": 1})
            raise RunError(self._complaint(error)) from None  # its chain may show the key
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
        """Keep to the rate: attempts begin at equal distances."""
        if self.requests_per_minute is None:
            return
        with self._pace:
            now = time.monotonic()
            begin = max(now, self._next)
            self._next = begin + 60.0 / self.requests_per_minute
        time.sleep(begin - now)

    def _spent(self, usage: Any) -> dict[str, float]:
        """Tokens as the endpoint counts them, and what they cost."""
        found = {}
        for name in ("prompt", "completion"):
            count = usage.get(f"{name}_tokens") if isinstance(usage, Mapping) else None
            found[f"{name}_tokens"] = float(count) if isinstance(count, int) else 0.0
        if self.price:
            found["dollars"] = sum(
                self.price.get(name, 0.0) * found[f"{name}_tokens"] / 1e6
                for name in ("prompt", "completion")
            )
        return found

    def _complaint(self, error: Exception) -> str:
        """One line for an endpoint that cannot be used, without the key."""
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
            return f"{where}: cannot be reached in {tries} ({cause}); is it up, is base_url right?"
        if isinstance(error, AuthenticationError | PermissionDeniedError):
            return f"{where}: refuses the key in {self.key_variable} ({self._scrubbed(error)})"
        if isinstance(error, NotFoundError):
            return f"{where}: knows no model {self.model!r} there ({self._scrubbed(error)})"
        return f"{where}: failed {tries} ({self._scrubbed(error)})"

    def _scrubbed(self, error: BaseException) -> str:
        text = " ".join(str(error).split()).replace(self._client.api_key, "***")
        return well_formed(text[:300]) or type(error).__name__


def _words(parsed: Any) -> tuple[str, bool]:
    """The words of a parsed answer, and whether a limit cut them; raises where there are none."""
    choice = parsed["choices"][0]
    text = choice["message"]["content"]
    if not isinstance(text, str):
        raise ValueError("no text")
    return well_formed(text), choice.get("finish_reason") == "length"
