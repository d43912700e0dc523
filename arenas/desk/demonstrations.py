"""Demonstrations of a service desk: an agent and a customer that decide at random.

The agent looks records up, and then grants or refuses a wish, in few words. Its decision is right
only with a given probability, so that a model still has to learn the rules. A customer that a model
plays speaks as the scripted one with the same probability, and otherwise asks for what the customer
of another task wants.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from arenas.desk.arena import BYE, Desk, User
from arenas.desk.bookings import DAYS
from arenas.desk.customer import named_ids
from arenas.desk.domain import CUSTOMERS, Change, after, copied
from arenas.desk.domains import DOMAINS, OPERATIONS
from arenas.desk.orders import ITEMS, STATES
from arenas.desk.tasks import TEMPERS, desk_tasks, read_task
from arenas.desk.tool import TOOLS
from selfplay.tools import ToolError
from selfplay.types import Demonstration, ToolCall

YES, NO, WHICH = "ok", "no", "which?"
"""Words of the agent after it granted or refused a wish, and before it knows the record."""


class DeskDemonstrations:
    """Demonstrations of the agent, in the format of tags, and of a customer that a model plays."""

    def __init__(
        self,
        *,
        customer: bool = False,
        right: float = 0.6,
        count: int = 720,
        domains: Sequence[str] = tuple(DOMAINS),
        tempers: Sequence[str] = ("plain",),
        answers: int = 4,
        seed: int = 0,
    ) -> None:
        """Args:
        customer: True to demonstrate a customer that a model plays too. False: the customer is
            scripted.
        right: Probability that the agent decides as the desk's policy says, and that a customer
            that a model plays speaks as the scripted one.
        count: Number of different tasks.
        domains: Domains of the tasks.
        tempers: Tempers of the customer.
        answers: Largest number of answers of the agent.
        seed: Seed of the tasks, which are of the training split.
        """
        if not 0 <= right <= 1:
            raise ValueError("right is a probability")
        self.customer, self.right, self.answers = customer, right, answers
        self.tasks = desk_tasks(count=count, domains=domains, tempers=tempers, seed=seed)
        self._by_domain = {
            name: [read_task(each) for each in self.tasks if each.type == name] for name in domains
        }

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end: every completion of an episode is one."""
        while True:
            user: User = "cooperative" if self.customer else "scripted"
            arena = Desk(user=user, terse=True, answers=self.answers)
            arena.begin(rng.choice(self.tasks), seed=0)
            asked: Sequence[Change] = ()
            while not arena.finished:
                if arena.users_turn:
                    seen = arena.view("user_0")
                    text, asked = self._request(arena, rng)
                    yield Demonstration(role="user", observation=seen, completion=text)
                    arena.play_stage({"user_0": text})
                    continue
                if not self.customer:
                    asked = arena.desk.wishes[arena.customer.wish]
                seen, done = arena.view("agent_0"), list[ToolCall]()
                called: list[tuple[str, str]] = []
                calls, words = self._move(arena, asked, rng)
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

    def _request(self, arena: Desk, rng: Random) -> tuple[str, Sequence[Change]]:
        """Return the words of a customer that a model plays, and the changes that it asks for.

        With probability `right` the customer says what the scripted one would say, who leaves when
        the wish is granted. Otherwise it asks for what the customer of another task wants, in half
        of these cases for its own record.
        """
        desk, customer = arena.desk, arena.customer
        if rng.random() < self.right:
            words = customer.speak(desk, arena.tables, terse=True)
            return words or BYE, desk.wishes[customer.wish]
        wish = rng.choice(rng.choice(self._by_domain[desk.domain.name]).wishes)
        ids = named_ids(desk.wishes[0]) if rng.random() < 0.5 else []
        own = {"name": desk.customer, **({"id": ids[0]} if ids else {})}
        asked = [
            Change(name, {key: own.get(key, value) for key, value in given.items()})
            for name, given in wish
        ]
        return " and ".join(desk.domain.words(each, terse=True) for each in asked), asked

    def _move(self, arena: Desk, asked: Sequence[Change], rng: Random) -> tuple[list[Change], str]:
        """Return the calls of one move, and its words if all of them succeed."""
        desk, ids = arena.desk, named_ids(asked)
        if ids and not any(id in arena.said[-1]["text"] for id in ids):
            return [], WHICH
        looks = [each for change in asked for each in desk.domain.look_ups(arena.tables, change)]
        unique = list({written(*each): each for each in looks}.values())
        grants = _allowed(arena, asked) == (rng.random() < self.right)
        if not grants:
            return unique, NO
        return [*unique, *asked], YES

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
        if self.customer:
            said += [BYE, "want: ", *TEMPERS, "not_found: '", "' is not in "]
        numbers = [f" {number}" for number in range(max(DAYS) + 10)]
        words = [*CUSTOMERS, *ITEMS, *columns, *values, *verbs, *DOMAINS]
        return [*tags, *frame, *ids, *said, *words, *[f" {each}" for each in words], *numbers, '"}']


def written(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as tags: the text of the only argument, or JSON with all."""
    single = TOOLS[name].text_parameter
    inside = arguments[single] if single else json.dumps(dict(arguments))
    return f"<{name}>{inside}</{name}>"


def _allowed(arena: Desk, asked: Sequence[Change]) -> bool:
    """Return True if the agent should make the changes: those of the wish that the policy allows,
    or of no wish if the policy allows each of them."""
    desk, wish, now = arena.desk, tuple(asked), copied(arena.tables)
    if wish in desk.wishes:
        return desk.wishes.index(wish) == desk.granted
    for change in wish:
        later = after(desk.domain, now, [change])
        if later is None or desk.domain.forbidden(now, desk.customer, desk.rules, change):
            return False
        now = later
    return True
