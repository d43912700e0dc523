"""Demonstrations of an agent of a service desk that looks up records and then decides by chance.

They teach how to look up, how to change and how to answer, for terse customers. The decision to
grant or to refuse is right with a probability of its own, so that a policy still has to learn the
rules.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from arenas.desk.arena import Desk
from arenas.desk.bookings import DAYS
from arenas.desk.customer import named_ids
from arenas.desk.domain import CUSTOMERS, Change
from arenas.desk.domains import DOMAINS, OPERATIONS
from arenas.desk.orders import ITEMS, STATES
from arenas.desk.tasks import desk_tasks
from arenas.desk.tool import TOOLS
from selfplay.tools import ToolError
from selfplay.types import Demonstration, ToolCall

YES, NO, WHICH = "ok", "no", "which?"
"""Words of the agent after it granted or refused a wish, and before it knows the record."""


class DeskDemonstrations:
    """Demonstrations of the agent, in the format of tags."""

    def __init__(
        self,
        *,
        right: float = 0.6,
        count: int = 720,
        domains: Sequence[str] = tuple(DOMAINS),
        tempers: Sequence[str] = ("plain",),
        answers: int = 4,
        seed: int = 0,
    ) -> None:
        """Args:
        right: Probability that the agent decides as the policy says.
        count: Number of different tasks.
        domains: Domains of the tasks.
        tempers: Tempers of the customer.
        answers: Largest number of answers of the agent.
        seed: Seed of the tasks, which are of the training split.
        """
        if not 0 <= right <= 1:
            raise ValueError("right is a probability")
        self.right, self.answers = right, answers
        self.tasks = desk_tasks(count=count, domains=domains, tempers=tempers, seed=seed)

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end: every completion of an episode is one."""
        while True:
            arena = Desk(terse=True, answers=self.answers)
            arena.begin(rng.choice(self.tasks), seed=0)
            while not arena.finished:
                seen, done = arena.view("agent_0"), list[ToolCall]()
                called: list[tuple[str, str]] = []
                calls, words = self._move(arena, rng)
                for name, arguments in calls:
                    text = written(name, arguments)
                    yield Demonstration(
                        role="agent", observation=seen, completion=text, called=tuple(called)
                    )
                    state = arena.tool_state("agent_0", done)
                    try:
                        result, error = TOOLS[name].answer(arguments, state=state), ""
                    except ToolError as problem:
                        result, error = f"error: {problem}", problem.reason
                    called.append((text, result))
                    done.append(
                        ToolCall(
                            name=name,
                            arguments=json.dumps(dict(arguments)),
                            result=result,
                            error=error,
                        )
                    )
                    words = NO if error else words
                yield Demonstration(
                    role="agent", observation=seen, completion=words, called=tuple(called)
                )
                arena.play_stage({"agent_0": arena.with_calls("agent_0", words, done)})

    def _move(self, arena: Desk, rng: Random) -> tuple[list[Change], str]:
        """Return the calls of one move, and its words if all of them succeed."""
        desk, customer = arena.desk, arena.customer
        wish = desk.wishes[customer.wish]
        if desk.temper == "curt" and named_ids(wish) and not customer.named:
            return [], WHICH
        looks = [each for change in wish for each in desk.domain.look_ups(arena.tables, change)]
        unique = list({written(*each): each for each in looks}.values())
        grants = (customer.wish == desk.granted) == (rng.random() < self.right)
        if not grants:
            return unique, NO
        return [*unique, *wish], YES

    def pieces(self) -> list[str]:
        """Return the tags, names, numbers and words, one token each."""
        tags = [f"<{slash}{name}>" for name in OPERATIONS for slash in ("", "/")]
        frame = [
            "<tool_response>\n",
            "\n</tool_response>",
            '{"id": "',
            '", "day": ',
            '", "item": "',
        ]
        ids = [f"{letter}{number}" for letter in "bol" for number in range(1, 10)]
        columns = ["guest", "day", "fare", "status", "free", "customer", "item", "days", "sale"]
        columns += ["member", "due", "renewals", "reserved", "fine", "waive", "notice", "window"]
        values = [*STATES, "booked", "cancelled", "returned", "fixed", "flexible", "yes", "no"]
        verbs = [
            "cancel",
            "move",
            "change",
            "return",
            "renew",
            "waive fine",
            " and ",
            " to ",
            "now! ",
        ]
        said = [YES, WHICH, "customer: ", "agent: ", "call: ", " -> ", "done", "error: ", ", "]
        numbers = [f" {number}" for number in range(max(DAYS) + 10)]
        words = [*CUSTOMERS, *ITEMS, *columns, *values, *verbs, *DOMAINS]
        return [*tags, *frame, *ids, *said, *words, *[f" {each}" for each in words], *numbers, '"}']


def written(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as tags: the text of the only argument, or JSON with all."""
    single = TOOLS[name].text_parameter
    inside = arguments[single] if single else json.dumps(dict(arguments))
    return f"<{name}>{inside}</{name}>"
