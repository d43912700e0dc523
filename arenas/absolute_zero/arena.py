"""Absolute Zero: a proposer makes programming tasks, solvers attempt them (2505.03335).

Three types of task over a program p, an input i and an output o = p(i): *deduction* asks for o,
*abduction* for any input that gives o, *induction* for a program from input-output pairs and a
message. The executor computes every output; the proposer gives none.

Version history: v0, first version.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import Any, ClassVar, Literal, get_args

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.absolute_zero.normal_form import normal_form
from arenas.absolute_zero.program_checks import canonical_arguments, comparable, fault
from arenas.absolute_zero.rewards import composite, learnability
from arenas.quotes import in_one_line
from selfplay.arena import Arena
from selfplay.curriculum.task_buffer import TaskBuffer
from selfplay.errors import check_choice
from selfplay.sandbox import Call, Executor, Outcome
from selfplay.sandbox.literals import LiteralError, canonical, parse_literal
from selfplay.types import Action, Metric, Observation, Task

TYPES = ("deduction", "abduction", "induction")
IDENTITY = "def f(a):\n    return a"
ProposerPay = Literal["learnability", "random"]


class AbsoluteZero(Arena):
    """One proposer and n solvers: first the proposal, then the attempts.

    A task with the mode "propose" has both stages, and a task with the mode "solve" only the
    attempts. `solve_task` makes tasks of the second mode.
    """

    name = "absolute_zero_v0"
    services: ClassVar[tuple[str, ...]] = ("executor", "buffer")
    blocking = True
    measures = {
        "solve_rate": Metric(unit="fraction", better="higher"),
        "valid_proposal": Metric(unit="fraction", better="higher"),
        "new_proposal": Metric(unit="fraction", better="higher"),
        "proposed_solve_rate": Metric(unit="fraction"),
        "proposed_lines": Metric(unit="count"),
        "attempts": Metric(unit="count"),
        "solved": Metric(unit="count", better="higher"),
        "verdict/*": Metric(unit="fraction", better="lower"),
    }
    chief = ("solve_rate",)

    def __init__(
        self,
        *,
        executor: Executor,
        buffer: TaskBuffer | None = None,
        solvers: int = 8,
        pairs: int = 10,
        degenerate_reward: float = 0.0,
        duplicate_reward: float | None = None,
        proposer_pay: ProposerPay = "learnability",
        wrong: float = -0.5,
        malformed: float = -1.0,
        forbidden: frozenset[str] = frozenset(),
        longest_value: int = 400,
    ) -> None:
        """Args:
        executor: Runs the programs.
        buffer: Earlier tasks; a proposal that it contains is a duplicate. None disables the rule.
        solvers: Number of solvers, at least 1; each makes one attempt at the task. The attempts
            estimate the task's solve rate, and are compared with each other.
        pairs: Number of input-output pairs of an induction task, at least 2 (N in the paper);
            solvers see the first half.
        degenerate_reward: Proposer's reward for a task that all or no solvers solved (0 in the
            paper, -0.5 in the released code).
        duplicate_reward: Proposer's reward for a known or held-out task; None: `degenerate_reward`.
        proposer_pay: Reward for a task that is played: its learnability or, as a control
            without information, a uniform draw from [0, 1) by the episode's seed. The siblings of
            a group have the same seed, so the control needs groups of one episode.
        wrong: Reward of a solver whose answer was parsed and is not correct, for example because
            it is no literal or its program fails.
        malformed: Reward of a solver whose answer was not parsed, and of a proposer for an invalid
            proposal.
        forbidden: Normal forms of held-out programs; a proposal with one of them is refused.
        longest_value: Maximum characters of each input and output of a proposal and of its
            message, so that prompts stay short.
        """
        check_choice("proposer_pay", proposer_pay, get_args(ProposerPay))
        for name, number, least in (("solvers", solvers, 1), ("pairs", pairs, 2)):
            if number < least:
                raise ValueError(f"{name}: {number} does not fit: at least {least} is needed")
        super().__init__({"proposer": 1, "solver": solvers})
        self.executor, self.buffer = executor, buffer
        self.pairs, self.wrong, self.malformed = pairs, wrong, malformed
        self.degenerate_reward = degenerate_reward
        self.proposer_pay = proposer_pay
        self.duplicate_reward = degenerate_reward if duplicate_reward is None else duplicate_reward
        self.forbidden, self.longest_value = forbidden, longest_value
        self.solvers = [agent for agent in self.possible_agents if agent.startswith("solver")]

    def default_task(self, rng: Random) -> Task:
        """Return a task to propose, with the identity function as its only reference."""
        seeds = {task.type: dict(task.payload) for task in identity_seeds()}
        kind = rng.choice(TYPES)
        given = seeds["deduction"] if kind == "induction" else None
        references = [] if given else [seeds[kind]]
        payload = {"mode": "propose", "references": references, "given": given, "known": 0}
        return Task(id=f"{kind}-default", type=kind, payload=payload)

    def setup(self, task: Task, rng: Random) -> None:
        """Begin with the proposal or, for a "solve" task, with the attempts.

        Raises ValueError for an unknown type, and for a given problem whose program fails.
        """
        if task.type not in TYPES:
            raise ValueError(f"no such task type: {task.type!r}")
        self.proposing = task.payload["mode"] == "propose"
        self.problem: dict[str, Any] = {}
        if not self.proposing:
            self.problem = dict(task.payload)
            if "outputs" not in self.problem:
                outputs, reason = self._run(self.problem["program"], self.problem["inputs"])
                if reason:
                    raise ValueError(f"task {task.id} is not a valid task: {reason}")
                self.problem["outputs"] = outputs

    def acting(self) -> Sequence[str]:
        """Return the proposer, then all solvers at once."""
        return ["proposer_0"] if self.proposing else self.solvers

    def canonical_answer(self, task: Task, agent: str, action: Action | None) -> str | None:
        """Return an output or input as a canonical literal; None for programs and proposals."""
        return comparable(task.type, action) if task.payload["mode"] == "solve" else None

    def view(self, agent: str) -> Observation:
        """Return references or a program for the proposer, the shown part of a task for solvers."""
        if agent == "proposer_0":
            return proposer_view(self.task.type, self.task.payload, pairs=self.pairs)
        if not self.problem:
            return Observation(text="wait for the proposer")
        return solver_view(self.task.type, self.problem)

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Check the proposal or the attempts."""
        if self.proposing:
            self._check_proposal(actions["proposer_0"])
        else:
            self._check_attempts(actions)

    # The proposal ------------------------------------------------------------------------------

    def _check_proposal(self, action: Action | None) -> None:
        problem, verdict = self._proposed(action)
        self.note("proposer_0", verdict=verdict)
        refused = verdict in ("duplicate", "held_out")  # valid tasks that are not played
        self.measure(valid_proposal=refused or verdict == "valid", new_proposal=verdict == "valid")
        if verdict == "valid":
            self.proposing, self.problem = False, problem
            self.create(solve_task(self.task.type, problem))
            self.measure(proposed_lines=len(normal_form(problem["program"]).splitlines()))
            return
        self.pay("proposer_0", self.duplicate_reward if refused else self.malformed)
        self.finish()

    def _proposed(self, action: Action | None) -> tuple[dict[str, Any], str]:
        """Return the proposed problem with its computed outputs, and the verdict on it."""
        if action is None:
            return {}, "malformed"
        try:
            proposal = json.loads(action)
            inputs = [str(text) for text in proposal["inputs"]]
            message = in_one_line(str(proposal.get("message", "")))
            given = self.task.payload.get("given")
            program = str(given["program"] if given else proposal["program"])
        except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
            return {}, "malformed"
        if reason := fault(program):
            return {}, reason
        if normal_form(program) in self.forbidden:
            return {}, "held_out"
        try:
            inputs = [canonical_arguments(text) for text in inputs]
        except LiteralError:
            return {}, "bad_arguments"
        wanted = self.pairs if self.task.type == "induction" else 1
        if len(inputs) != wanted or len(set(inputs)) != wanted:
            return {}, "wrong_number_of_inputs"
        if max(map(len, inputs)) > self.longest_value:
            return {}, "input_limit"
        if len(message) > self.longest_value:
            return {}, "message_limit"
        problem: dict[str, Any] = {"program": program, "inputs": inputs, "message": message}
        if self.task.type == "induction" and not message.strip():
            return {}, "no_message"
        task_id = solve_task(self.task.type, problem).id
        if self.buffer and self.buffer.known(task_id, self.task.payload.get("known", 0)):
            return {}, "duplicate"
        outputs, failure = self._run(program, inputs)
        if failure is None and max(map(len, outputs)) > self.longest_value:
            failure = "output_limit"
        return {**problem, "outputs": outputs}, failure or "valid"

    def _run(self, program: str, inputs: Sequence[str]) -> tuple[list[str], str | None]:
        """Return the outputs, each from two equal runs, and the first failure's reason, if any."""
        calls = [Call(program=program, arguments=arguments) for arguments in inputs]
        outcomes = self.executor.run(calls, runs=2, timeouts=1)
        failed = next((outcome for outcome in outcomes if not outcome.ok), None)
        reason = failed.reason.value if failed else None
        return [outcome.value or "" for outcome in outcomes], reason

    # The attempts ------------------------------------------------------------------------------

    def _check_attempts(self, actions: Mapping[str, Action | None]) -> None:
        # Each distinct answer is judged once.
        answers = list(dict.fromkeys(answer for answer in actions.values() if answer is not None))
        verdicts = dict(zip(answers, self._judge(answers), strict=True))
        solved = 0
        for agent, answer in actions.items():
            verdict = "malformed" if answer is None else verdicts[answer]
            right = verdict == "correct"
            solved += right
            outcome = None if answer is None else float(right)
            self.pay(agent, composite(outcome, wrong=self.wrong, malformed=self.malformed))
            self.note(agent, verdict=verdict)
        rate = solved / len(actions)
        self.measure(solve_rate=rate, attempts=len(actions), solved=solved)
        if self.task.payload["mode"] == "propose":
            self.pay("proposer_0", self._worth(rate))
            self.measure(proposed_solve_rate=rate)
        self.finish()

    def _worth(self, rate: float) -> float:
        """Return the proposer's reward for a task of this solve rate."""
        if self.proposer_pay == "random":
            return self.rng.random()
        return learnability(rate, degenerate=self.degenerate_reward)

    def _judge(self, answers: Sequence[str]) -> list[str]:
        """Return a verdict per answer: "correct" or the name of the reason."""
        if self.task.type == "deduction":
            return [self._judge_output(answer) for answer in answers]
        if self.task.type == "abduction":
            return self._judge_by_running(answers, self._abduction_calls, self.problem["outputs"])
        half = len(self.problem["inputs"]) // 2
        hidden = self.problem["outputs"][half:]
        return self._judge_by_running(answers, self._induction_calls, hidden)

    def _judge_output(self, answer: str) -> str:
        try:
            value = canonical(parse_literal(answer))
        except LiteralError:
            return "not_literal"
        return "correct" if value == self.problem["outputs"][0] else "wrong"

    def _abduction_calls(self, answer: str) -> list[Call] | str:
        try:
            return [Call(program=self.problem["program"], arguments=canonical_arguments(answer))]
        except LiteralError:
            return "not_literal"

    def _induction_calls(self, answer: str) -> list[Call] | str:
        if reason := fault(answer):
            return reason
        inputs = self.problem["inputs"]
        return [Call(program=answer, arguments=text) for text in inputs[len(inputs) // 2 :]]

    def _judge_by_running(
        self,
        answers: Sequence[str],
        calls_of: Callable[[str], list[Call] | str],
        wanted: Sequence[str],
    ) -> list[str]:
        plans = [calls_of(answer) for answer in answers]
        calls = [call for plan in plans if isinstance(plan, list) for call in plan]
        # Two runs must agree, as for a proposal. An induction answer is one program, which is
        # wrong after its first timeout; the inputs of an abduction task are separate answers.
        timeouts = 1 if self.task.type == "induction" else None
        outcomes = iter(self.executor.run(calls, runs=2, timeouts=timeouts) if calls else [])
        return [
            plan if isinstance(plan, str) else _verdict([next(outcomes) for _ in plan], wanted)
            for plan in plans
        ]


def _verdict(outcomes: Sequence[Outcome], wanted: Sequence[str]) -> str:
    for outcome in outcomes:
        if not outcome.ok:
            return outcome.reason.value
    right = all(o.value == value for o, value in zip(outcomes, wanted, strict=True))
    return "correct" if right else "wrong"


def proposer_view(kind: str, payload: Mapping[str, Any], *, pairs: int) -> Observation:
    """Return a proposer's view: earlier tasks to differ from, or a program that needs inputs."""
    given = payload.get("given") or {}
    return Observation(
        fields={
            "type": kind,
            "references": payload.get("references", []),
            "program": given.get("program", ""),
            "pairs": pairs,
        }
    )


def solver_view(kind: str, problem: Mapping[str, Any]) -> Observation:
    """Return a solver's view of a problem, without the part that is asked for."""
    hidden = {"program": "", "input": "", "output": "", "shown": [], "message": ""}
    if kind == "deduction":
        seen = {"program": problem["program"], "input": problem["inputs"][0]}
    elif kind == "abduction":
        seen = {"program": problem["program"], "output": problem["outputs"][0]}
    else:
        sides = list(zip(problem["inputs"], problem["outputs"], strict=True))
        seen = {"shown": sides[: len(sides) // 2], "message": problem["message"]}
    return Observation(fields={"type": kind, **hidden, **seen})


def solve_task(kind: str, problem: Mapping[str, Any], *, normal: str | None = None) -> Task:
    """Return the task to solve `problem`; its id is a hash of type, program and inputs.

    Args:
        kind: Type of the task.
        problem: Problem in the arena's format; `outputs` may be missing.
        normal: Normal form of the program. If None, it is computed, which takes milliseconds.
    """
    normal = normal_form(problem["program"]) if normal is None else normal
    content = json.dumps([kind, normal, problem["inputs"]])
    name = blake2b(content.encode("utf-8", "replace"), digest_size=8).hexdigest()
    return Task(id=f"{kind}-{name}", type=kind, payload={"mode": "solve", **problem})


def programs_of(tasks: Sequence[Task]) -> frozenset[str]:
    """Return the normal forms of the tasks' programs, for the argument `forbidden`."""
    return frozenset(normal_form(task.payload["program"]) for task in tasks)


def sources_of(tasks: Sequence[Task]) -> frozenset[str]:
    """Return the tasks' programs as they are written."""
    return frozenset(task.payload["program"] for task in tasks)


def identity_seeds(inputs: str = "'Hello world'") -> list[Task]:
    """Return the initial tasks of a buffer: the identity function as deduction and abduction.

    Args:
        inputs: Arguments of the call in the tasks, as Python source.
    """
    value = canonical(parse_literal(inputs))
    problem = {"program": IDENTITY, "inputs": [value], "outputs": [value], "message": ""}
    return [solve_task(kind, problem) for kind in ("deduction", "abduction")]


def raw_env(**settings: Any) -> AbsoluteZero:
    """Return the arena without a wrapper; a new executor is made unless one is given."""
    settings.setdefault("executor", Executor())
    return AbsoluteZero(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
