"""Service desks of tau2-bench: a user with a scenario, and an agent with a policy and tools.

Here a policy is the document with the rules of the desk. The agent of an airline, a shop or a
mobile network and a user speak in turn. The agent may look up and change records with tools before
each answer. In telecom the user has tools too, those of a phone.
The user leaves with ###STOP###, ###TRANSFER### or ###OUT-OF-SCOPE###. The agent is then paid 1 if
the package's evaluators accept the final databases, the agent's calls and the facts that it stated;
each task names the criteria that count. The agent is paid 0 if the user has not left after
the largest number of answers.

An answer completes a move: the changes of its calls then become final. A move without an answer
changes nothing, and a user who makes such a move leaves.

Version history: v0, first version.
"""

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal, get_args

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.desk.move import packed, succeeded, unpacked
from arenas.tau2.customer import AGREES, ENDS, leaving, opening, wanted
from arenas.tau2.package import (
    DomainName,
    Irreproducible,
    Side,
    Tau2Call,
    Tau2Records,
    domain_of,
    evaluated,
)
from arenas.tau2.tasks import package_task, tau2_tasks
from arenas.tau2.tool import Tau2Tool, tools_of
from selfplay.arena import Arena
from selfplay.errors import check_choice
from selfplay.tools import ToolError
from selfplay.types import Action, Metric, Observation, Task, ToolCall

Tau2User = Literal["scripted", "cooperative"]
GREETING = "Hi! How can I help you today?"
"""The package's first words of an agent."""


class Tau2Desk(Arena):
    """A domain of tau2-bench (2506.07982) with a scripted user, or with one that a language model
    plays."""

    name = "tau2_v0"
    optional_roles = ("user",)
    measures = {
        "success": Metric(unit="fraction", better="higher"),
        "part/*": Metric(unit="fraction", better="higher"),
        "left": Metric(unit="fraction"),
        "irreproducible": Metric(unit="fraction", better="lower"),
        "calls": Metric(unit="count"),
        "answers": Metric(unit="count"),
    }
    chief = ("success",)

    said: list[dict[str, str]]
    """The conversation: words have `by` and `text`, calls have `call` and `arguments` as well, and
    `text` is then the result."""

    def __init__(
        self,
        *,
        domain: DomainName = "airline",
        user: Tau2User = "scripted",
        answers: int = 20,
        message_length: int = 4000,
    ) -> None:
        """Args:
        domain: airline, retail, telecom, or mock, which is for tests.
        user: The user. scripted: part of the arena, see `arenas.tau2.customer`. cooperative: an
            agent with the same reward as the agent of the desk.
        answers: Largest number of answers of the agent.
        message_length: Maximum characters of a message, and of a call with its result in the
            conversation; the rest is cut off.
        """
        check_choice("user", user, get_args(Tau2User))
        if answers < 1 or message_length < 1:
            raise ValueError("answers and message_length must be at least 1")
        super().__init__({"agent": 1} if user == "scripted" else {"user": 1, "agent": 1})
        self.domain, self.user = domain, user
        self.answers, self.message_length = answers, message_length
        domain_of(domain)

    def default_task(self, rng: Random) -> Task:
        """Return a drawn task."""
        return rng.choice(tau2_tasks(domain=self.domain))

    def setup(self, task: Task, rng: Random) -> None:
        """Begin the conversation; raises ValueError for a task that does not fit."""
        self.records = Tau2Records(domain=self.domain, task=package_task(task, self.domain))
        self.said = [{"by": "agent", "text": GREETING}]
        self.answered = 0
        self.silent = False
        self.users_turn = True
        if self.user == "scripted":
            self._user_speaks(opening(self._task()))

    def acting(self) -> Sequence[str]:
        """Return the side whose turn it is."""
        return ["user_0"] if self.users_turn else ["agent_0"]

    def messengers(self) -> Sequence[str]:
        """Return the side whose turn it is: its words are for the other one."""
        return self.acting()

    def tool_state(self, agent: str, calls: Sequence[ToolCall]) -> Tau2Records:
        """Return the databases after the calls of the present move."""
        side, records = _side(agent), self.records
        for name, arguments in succeeded(calls, tools_of(self.domain, side)):
            if domain_of(self.domain).changes(side, name):
                records, _ = self._made(records, side, name, arguments) or (records, None)
        return records

    def with_calls(self, agent: str, action: Action, calls: Sequence[ToolCall]) -> Action:
        """Return the answer with its calls as JSON; words alone if there are no calls."""
        return packed(action, calls, tools_of(self.domain, _side(agent)))

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Make the calls of a move and store its words."""
        ((agent, action),) = actions.items()
        side = _side(agent)
        words = None
        if action is not None:
            words, calls = unpacked(action, tools_of(self.domain, side))
            for name, arguments in calls:
                self._call(side, name, arguments)
        if side == "user":
            self._user_speaks(ENDS[0] if words is None else words)
            return
        self.answered += 1
        self.silent = words is None
        if words is not None:
            self.said.append({"by": "agent", "text": self._words(words)})
            if self.user == "scripted":
                self._script_answers(words)
            else:
                self.users_turn = True
        if not self.finished and self.answered == self.answers and not self.users_turn:
            self._settle(left=False)

    def view(self, agent: str) -> Observation:
        """Return the conversation with the agent's policy, or with the user's scenario.

        Neither side sees the calls of the other.
        """
        side = _side(agent)
        said = [
            {"by": "call" if "call" in each else each["by"], "text": self._shown(each)}
            for each in self.said
            if each["by"] == side or "call" not in each
        ]
        home = domain_of(self.domain)
        fields: dict[str, Any] = {
            "domain": self.domain,
            "said": said,
            "message_length": self.message_length,
            "ends": list(ENDS),
        }
        if side == "agent":
            fields |= {"policy": home.policy, "silent": self.silent}
            top = [home.policy]
            if self.silent:
                top.append("Your last move had no answer, so that its calls changed nothing.")
        else:
            scenario = str(self._task().user_scenario)
            fields |= {"guidelines": home.guidelines, "scenario": scenario}
            top = [home.guidelines, scenario]
        lines = [f"{each['by']}: {each['text']}" for each in said]
        return Observation(text="\n".join([*top, *lines]), fields=fields)

    def _task(self) -> Any:
        return domain_of(self.domain).tasks[self.records.task]

    def _words(self, text: str) -> str:
        """Return a message on one line, so that it cannot imitate a message of the other side."""
        return " ".join(text[: 4 * self.message_length].split())[: self.message_length]

    def _shown(self, said: Mapping[str, str]) -> str:
        if "call" not in said:
            return said["text"]
        return self._words(f"{said['call']} {said['arguments']} -> {said['text']}")

    def _made(
        self, records: Tau2Records, side: Side, name: str, arguments: Mapping[str, Any]
    ) -> tuple[Tau2Records, dict[str, str]] | None:
        """Return the databases after a call, and its line in the conversation; None if it fails."""
        tool: Tau2Tool = tools_of(self.domain, side)[name]
        try:
            call, text = tool.made(arguments, records)
        except ToolError:
            return None
        line = {"by": side, "call": name, "arguments": call.arguments, "text": text}
        if not domain_of(self.domain).changes(side, name):
            return records, line
        changes: tuple[Tau2Call, ...] = (*records.changes, call)
        return Tau2Records(domain=records.domain, task=records.task, changes=changes), line

    def _call(self, side: Side, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Make a call that stays, and return its result; None if it fails."""
        made = self._made(self.records, side, name, arguments)
        if made is None:
            return None
        self.records, line = made
        self.said.append(line)
        return line["text"]

    def _script_answers(self, words: str) -> None:
        """Let the scripted user make the calls that the agent's words name, and answer."""
        said = enumerate(self.said)
        start = max(i for i, each in said if each["by"] == "user" and "call" not in each)
        called = [each["call"] for each in self.said[start:] if "call" in each]
        made = [
            (each["call"], json.loads(each["arguments"]))
            for each in self.said
            if each["by"] == "user" and "call" in each
        ]
        calls = wanted(self._task(), words, list(tools_of(self.domain, "user")), made)
        left = leaving(answers=self.answered, called=called, acted=bool(calls))
        results = []
        for name, arguments in calls if left is None else ():
            text = self._call("user", name, arguments)
            results.append(f"{name}: {'failed' if text is None else text}")
        self._user_speaks(left or "; ".join(results) or AGREES)

    def _user_speaks(self, text: str) -> None:
        words = self._words(text)
        self.said.append({"by": "user", "text": words})
        self.users_turn = False
        if any(end in words for end in ENDS):
            self._settle(left=True)
        elif self.answered == self.answers:
            self._settle(left=False)

    def _settle(self, *, left: bool) -> None:
        """Pay by the package's evaluation, and end the episode.

        For some customers of telecom the package adds a bill with a random number. If a result
        shows this number, the package cannot evaluate the conversation: all rewards are then 0, and
        `irreproducible` counts the episode.
        """
        reward, parts, failed = 0.0, dict[str, float](), False
        if left:
            try:
                reward, parts = evaluated(self.domain, self.records.task, self.said)
            except Irreproducible:
                failed = True
        self.pay("agent_0", reward)
        if self.user == "cooperative":
            self.pay("user_0", reward)
        self.measure(
            success=reward,
            left=float(left),
            irreproducible=float(failed),
            calls=sum("call" in each for each in self.said),
            answers=self.answered,
            **{f"part/{name}": value for name, value in parts.items()},
        )
        self.finish()


def _side(agent: str) -> Side:
    return "agent" if agent == "agent_0" else "user"


def raw_env(**settings: Any) -> Tau2Desk:
    """Return the arena without a wrapper."""
    return Tau2Desk(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
