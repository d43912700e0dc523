"""The tool calls of many agents: the calls of one completion run in order, and calls of different
agents run at the same time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from selfplay.tools.call_format import ParsedCall
from selfplay.tools.runner import ToolRunner
from selfplay.tools.toolbox import Toolbox
from selfplay.types import ToolCall, Turn

R = TypeVar("R")
"""Type of the request whose completion calls tools."""

CALL_LIMIT, NO_ROOM = "call_limit", "no_room_for_results"
UNANSWERED = frozenset({CALL_LIMIT, NO_ROOM})
"""Reasons for which a move ends with a completion that calls tools and has no action."""


def spent(turns: Sequence[Turn]) -> bool:
    """Return True if the limit of calls refused every call of the latest completion.

    Args:
        turns: The agent's completions of this move so far, each with its calls.
    """
    calls = turns[-1].tool_calls if turns else ()
    return bool(calls) and all(call.error == CALL_LIMIT for call in calls)


@dataclass(eq=False, kw_only=True)
class _Calls(Generic[R]):
    """The calls of one completion."""

    asked: R
    toolbox: Toolbox
    left: list[ParsedCall]
    """Calls that are not answered, in order."""
    used: int
    """Number of calls of the move before the next one."""
    earlier: list[ToolCall]
    """The agent's calls of the episode before the next one."""
    state: Callable[[Sequence[ToolCall]], Any] | None
    """Function that makes the data of the episode for a stateful tool, from the earlier calls of
    the move."""
    answered: list[ToolCall] = field(default_factory=list)


class ToolLoop(Generic[R]):
    """A loop that runs the tool calls of completions. A rollout has one."""

    def __init__(self, *, threads: int) -> None:
        """`threads`: maximum number of calls that run at once."""
        self._runner: ToolRunner[_Calls[R], ToolCall] = ToolRunner(threads=threads)
        self._answered: list[_Calls[R]] = []
        self._pending: dict[_Calls[R], None] = {}

    def asked(self) -> list[R]:
        """Return the requests of the completions that `finished` has not returned yet."""
        return [calls.asked for calls in self._pending]

    def clear(self) -> None:
        """Forget all calls, such as those of a rollout that ended with an error."""
        self._runner.clear()
        self._answered, self._pending = [], {}

    def begin(
        self,
        asked: R,
        toolbox: Toolbox,
        calls: Sequence[ParsedCall],
        *,
        used: int,
        earlier: Sequence[ToolCall],
        state: Callable[[Sequence[ToolCall]], Any] | None = None,
    ) -> None:
        """Start to answer the calls of a completion.

        Args:
            asked: Request of the completion; `finished` returns it with the answers.
            toolbox: Tools of the agent's role.
            calls: The parsed calls. Of those beyond the limit only the first is answered.
            used: Number of calls of the agent's move before these.
            earlier: The agent's calls of the episode before these.
            state: Makes the data of the episode for a stateful tool, from the earlier calls of the
                agent's move.
        """
        kept = list(calls[: max(0, toolbox.max_calls - used) + 1])
        begun = _Calls(
            asked=asked,
            toolbox=toolbox,
            left=kept,
            used=used,
            earlier=list(earlier),
            state=state,
        )
        self._pending[begun] = None
        self._next(begun)

    def finished(self, *, wait: float) -> list[tuple[R, tuple[ToolCall, ...]]]:
        """Return the completions whose calls are all answered, with the answers.

        Args:
            wait: Seconds to wait if there is none.
        """
        for calls, answer in self._runner.collect(wait=0.0 if self._answered else wait):
            self._answer(calls, answer)
            self._next(calls)
        done, self._answered = self._answered, []
        for calls in done:
            del self._pending[calls]
        return [(calls.asked, tuple(calls.answered)) for calls in done]

    def _next(self, calls: "_Calls[R]") -> None:
        """Start the next call that runs a tool; answer those before it that are refused."""
        while calls.left:
            call, toolbox = calls.left[0], calls.toolbox
            refused = toolbox.refused(call, used=calls.used)
            if refused is None:
                own = [each for each in calls.earlier if each.name == call.name]
                of_move = calls.earlier[len(calls.earlier) - calls.used :]
                state = partial(calls.state, of_move) if calls.state else None
                self._runner.submit(
                    calls,
                    name=call.name,
                    seconds=toolbox.tools[call.name].seconds,
                    work=partial(toolbox.run, call, own, state),
                    overdue=partial(toolbox.timed_out, call),
                    stuck=partial(toolbox.unavailable, call),
                )
                return
            self._answer(calls, refused)
        self._answered.append(calls)

    @staticmethod
    def _answer(calls: "_Calls[R]", answer: ToolCall) -> None:
        calls.left.pop(0)
        calls.used += 1
        calls.earlier.append(answer)
        calls.answered.append(answer)
