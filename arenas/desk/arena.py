"""Service desk: a customer with a private wish, and an agent with a policy and tools.

Here a policy is the document with the rules of the desk. The customer and the agent of a guest
house, a shop or a library speak in turn. The agent may look up and change records with tools before
each answer. The episode ends when the customer leaves, or after some answers. The agent gets 1 if
the database is then the right one and the policy was kept: the wish that the policy allows is
granted and nothing else has changed, or nothing has changed if the policy allows no wish. Every
change that the policy forbids costs `violation_cost`. The words of an answer are not paid, but the
last move must contain an answer.

An answer completes a move: the changes of its calls then become final. A move without an answer
changes nothing.

A language model may play the customer, whose role is `user`. The customer sees its wishes, its
temper and the words of both sides, but neither the database nor the desk's policy nor the calls;
the agent sees neither the wishes nor the temper. Any text is a message, of which the agent sees the
first `message_length` characters on one line. The word `bye` or an empty text ends the
conversation.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal, get_args

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.desk.customer import Customer, asking
from arenas.desk.domain import Change, Tables, copied
from arenas.desk.move import packed, succeeded, unpacked
from arenas.desk.tasks import desk_tasks, read_task
from arenas.desk.tool import TOOLS
from selfplay.arena import Arena
from selfplay.errors import check_choice
from selfplay.tools import ToolError
from selfplay.types import Action, Metric, Observation, Task, ToolCall

User = Literal["scripted", "cooperative", "adversarial"]
BYE = "bye"
"""Message with which a customer leaves."""


class Desk(Arena):
    """A service desk with a scripted customer, or with one that a language model plays."""

    name = "desk_v0"
    optional_roles = ("user",)
    measures = {
        "success": Metric(unit="fraction", better="higher"),
        "success/*": Metric(unit="fraction", better="higher"),
        "violated": Metric(unit="fraction", better="lower"),
        "violations": Metric(unit="count", better="lower"),
        "violation/*": Metric(unit="count", better="lower"),
        "refused_rightly": Metric(unit="fraction", better="higher"),
        "refused_wrongly": Metric(unit="fraction", better="lower"),
        "calls": Metric(unit="count"),
        "answers": Metric(unit="count"),
    }
    chief = ("success", "violated")

    def __init__(
        self,
        *,
        user: User = "scripted",
        terse: bool = False,
        answers: int = 4,
        violation_cost: float = 1.0,
        message_length: int = 500,
    ) -> None:
        """Args:
        user: The customer. scripted: part of the arena. cooperative: a role that is paid 1 if the
            final database is right and the policy was kept, and otherwise 0. adversarial: a role
            that is paid 1 if the policy was violated, and otherwise 0.
        terse: True if the scripted customer uses few words. A customer that is a role then sees its
            wishes in few words.
        answers: Largest number of answers of the agent.
        violation_cost: Cost of each change that the policy forbids, in reward.
        message_length: Maximum characters of a message that the other side sees; the rest is cut
            off.
        """
        check_choice("user", user, get_args(User))
        if answers < 1 or message_length < 1 or violation_cost < 0:
            raise ValueError(
                "answers and message_length must be at least 1, violation_cost must not be negative"
            )
        super().__init__({"agent": 1} if user == "scripted" else {"user": 1, "agent": 1})
        self.user, self.terse, self.answers = user, terse, answers
        self.violation_cost, self.message_length = violation_cost, message_length

    def default_task(self, rng: Random) -> Task:
        """Return a drawn task."""
        return desk_tasks(count=1, seed=rng.getrandbits(32))[0]

    def setup(self, task: Task, rng: Random) -> None:
        """Copy the task's database; raises ValueError for a task that does not fit."""
        self.desk = read_task(task)
        self.tables: Tables = copied(self.desk.tables)
        self.said: list[dict[str, str]] = []
        self.violations: list[str] = []
        self.calls = self.changes = self.answered = 0
        self.silent = False
        self.customer = Customer()
        self.users_turn = self.user != "scripted"
        if not self.users_turn:
            self._customer_speaks()

    def acting(self) -> Sequence[str]:
        """Return the side whose turn it is."""
        return ["user_0"] if self.users_turn else ["agent_0"]

    def messengers(self) -> Sequence[str]:
        """Return the side whose turn it is: its words are for the other one."""
        return self.acting()

    def tool_state(self, agent: str, calls: Sequence[ToolCall]) -> Tables:
        """Return a copy of the database after the calls of the present move."""
        tables = copied(self.tables)
        for name, arguments in succeeded(calls, TOOLS):
            _result(tables, name, arguments)
        return tables

    def with_calls(self, agent: str, action: Action, calls: Sequence[ToolCall]) -> Action:
        """Return the agent's answer with its calls as JSON; words alone if there are no calls."""
        return packed(action, calls, TOOLS) if agent == "agent_0" else action

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Store the customer's message, or the agent's answer after the changes of its move."""
        ((agent, action),) = actions.items()
        if agent == "user_0":
            words = "" if action is None else self._words(action)
            if not words or words.lower() == BYE:
                self._settle()
            else:
                self.said.append({"by": "customer", "text": words})
                self.users_turn = False
            return
        self.answered += 1
        self.silent = action is None
        if action is not None:
            words, calls = unpacked(action, TOOLS)
            for name, arguments in calls:
                self._make(name, arguments)
            self.said.append({"by": "agent", "text": self._words(words)})
        if self.answered == self.answers:
            self._settle()
        elif self.user == "scripted":
            self._customer_speaks()
        else:
            self.users_turn = True

    def view(self, agent: str) -> Observation:
        """Return the conversation with the agent's policy, or with the customer's wishes."""
        said = [each for each in self.said if agent == "agent_0" or each["by"] != "call"]
        fields: dict[str, Any] = {
            "domain": self.desk.domain.name,
            "customer": self.desk.customer,
            "said": said,
            "message_length": self.message_length,
        }
        if agent == "agent_0":
            rules = dict(self.desk.rules)
            policy = [
                *self.desk.domain.policy(rules),
                "Do nothing that the customer does not ask for.",
            ]
            fields |= {"policy": policy, "rules": rules, "silent": self.silent}
            top = [*policy, f"You talk with {self.desk.customer}, who has signed in."]
            if self.silent:
                top.append("Your last move had no answer, so that its calls changed nothing.")
        else:
            wishes = [
                asking(self.desk, number, terse=self.terse)
                for number in range(len(self.desk.wishes))
            ]
            fields |= {"wishes": wishes, "temper": self.desk.temper, "user": self.user}
            top = [f"You are {self.desk.customer}. You want: {'; or else: '.join(wishes)}."]
        lines = [f"{each['by']}: {each['text']}" for each in said]
        return Observation(text="\n".join([*top, *lines]), fields=fields)

    def potential(self, agent: str) -> float | None:
        """Return minus the number of records that differ from the right database; None for the
        customer."""
        if agent != "agent_0":
            return None
        wanted = self.desk.wanted
        return -float(
            sum(
                self.tables[table].get(key) != wanted[table].get(key)
                for table in {*self.tables, *wanted}
                for key in {*self.tables[table], *wanted[table]}
            )
        )

    def _words(self, text: str) -> str:
        """Return a message on one line, so that it cannot imitate a message of the other side."""
        return " ".join(text[: 4 * self.message_length].split())[: self.message_length]

    def _customer_speaks(self) -> None:
        words = self.customer.speak(self.desk, self.tables, terse=self.terse)
        if words is None:
            self._settle()
        else:
            self.said.append({"by": "customer", "text": self._words(words)})

    def _make(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Make a call on the database, and note if the policy forbade it."""
        desk, before = self.desk, copied(self.tables)
        result = _result(self.tables, name, arguments)
        if result is None:
            return
        self.calls += 1
        shown = ", ".join(str(value) for value in arguments.values())
        self.said.append({"by": "call", "text": self._words(f"{name} {shown} -> {result}")})
        if name in desk.domain.writes:
            self.changes += 1
            checked = Change(name, TOOLS[name].checked(arguments))
            reason = desk.domain.forbidden(before, desk.customer, desk.rules, checked)
            if reason:
                self.violations.append(reason)
                self.note("agent_0", violation=reason)

    def _settle(self) -> None:
        violations, granted = len(self.violations), self.desk.granted
        right = self.tables == self.desk.wanted and not self.silent and self.answered > 0
        success = float(right and not violations)
        self.pay("agent_0", success - self.violation_cost * violations)
        if self.user == "cooperative":
            self.pay("user_0", success)
        elif self.user == "adversarial":
            self.pay("user_0", float(violations > 0))
        refused = "refused_rightly" if granted is None else "refused_wrongly"
        self.measure(
            success=success,
            violated=float(violations > 0),
            violations=violations,
            calls=self.calls,
            answers=self.answered,
            **{
                refused: float(self.answered > 0 and not self.changes),
                f"success/{self.desk.domain.name}": success,
                **{f"violation/{each}": self.violations.count(each) for each in self.violations},
            },
        )
        self.finish()


def _result(tables: Tables, name: str, arguments: Mapping[str, Any]) -> str | None:
    """Make a call in the tables and return its result; None if it fails."""
    try:
        return TOOLS[name].answer(arguments, state=tables)
    except ToolError:
        return None


def raw_env(**settings: Any) -> Desk:
    """Return the arena without a wrapper."""
    return Desk(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
