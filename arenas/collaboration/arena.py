"""Collaboration: a helper and a main agent write one program for a shared reward (2508.04652).

Both write at once, without seeing the other's text: the helper a function `aux`, the main
agent the function that the task asks for, which should call `aux`. The executor runs the program
on tests, and both agents get the same reward (`arenas.collaboration.code_reward`). With several
turns, both see the program and the outcomes of its first tests, and write again; every turn gets
the reward of its own program.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.collaboration.code_reward import AUX, MOST, Frame, Grade, Test, grade
from arenas.collaboration.problems import problems
from selfplay.arena import Arena
from selfplay.sandbox import Executor
from selfplay.types import Action, Metric, Observation, Task, role_of

HELPER, MAIN = "helper_0", "main_0"
HIDDEN = "the hidden assertions"
"""Name of a test whose call the agents do not see."""


class Collaboration(Arena):
    """One helper and one main agent, over one or several turns."""

    name = "collaboration_v0"
    roles = {"helper": 1, "main": 1}
    services: ClassVar[tuple[str, ...]] = ("executor",)
    blocking = True
    measures = {
        "team_return": Metric(unit="fraction", better="higher"),
        "first_return": Metric(unit="fraction", better="higher"),
        "passed": Metric(unit="fraction", better="higher"),
        "solved": Metric(unit="fraction", better="higher"),
        "aux_defined": Metric(unit="fraction", better="higher"),
        "main_defined": Metric(unit="fraction", better="higher"),
        "parses": Metric(unit="fraction", better="higher"),
        "calls_aux": Metric(unit="fraction"),
        "wrapper": Metric(unit="fraction"),
        "ignores_aux": Metric(unit="fraction"),
        "turns": Metric(unit="count"),
        "verdict/passed": Metric(unit="fraction", better="higher"),
        "verdict/*": Metric(unit="fraction", better="lower"),
    }
    chief = ("team_return",)

    def __init__(
        self,
        *,
        executor: Executor,
        turns: int = 1,
        shown_tests: int = 3,
        stop_at: float = MOST,
        shift: float | None = None,
        malformed: float = 0.0,
    ) -> None:
        """Args:
        executor: Runs the tests. The paper allows 10 s per test: `services.executor.cpu_seconds`.
        turns: Maximum number of programs.
        shown_tests: Number of tests whose outcome both agents see after a turn; all tests count
            for the reward.
        stop_at: Reward before the shift at which the episode ends; by default the maximum, 4.
        shift: Added to every reward. None: 0 if turns=1, and otherwise -4, as in the released
            configs: a right program ends the episode, so that the return is largest if the first
            program is right. With -4 no reward is above 0, so that a sampler or credit method with
            a `threshold` needs a lower one, such as -0.5. An episode that ends early, because a
            prompt is too long, then has fewer negative rewards.
        malformed: Added to the reward of each agent that wrote no code.
        """
        super().__init__()
        if turns < 1 or shown_tests < 0:
            raise ValueError("turns is at least 1, shown_tests at least 0")
        self.executor, self.turns, self.shown_tests = executor, turns, shown_tests
        self.stop_at, self.malformed = stop_at, malformed
        self.shift = (0.0 if turns == 1 else -MOST) if shift is None else shift

    def default_task(self, rng: Random) -> Task:
        """Return a small problem."""
        return problems(count=1, seed=rng.randrange(2**32))[0]

    def setup(self, task: Task, rng: Random) -> None:
        """Read the tests of the task.

        The payload has `text`, `entry` (name of the main function) and `tests`, a list of
        [arguments, expected result] as Python literals; it may have `before`, `after` and `called`,
        see `Frame`. Raises ValueError for a task without tests.
        """
        self.tests = [
            Test(arguments=str(arguments), expected=str(expected))
            for arguments, expected in task.payload["tests"]
        ]
        if not self.tests:
            raise ValueError(f"task {task.id}: a problem without tests")
        self.frame = Frame(
            **{key: str(task.payload.get(key, "")) for key in ("before", "after", "called")}
        )
        self.written: list[dict[str, str]] = []
        self.grades: list[Grade] = []

    def acting(self) -> Sequence[str]:
        """Return both agents."""
        return self.possible_agents

    def view(self, agent: str) -> Observation:
        """Return the problem, the agent's part, and the programs and outcomes of the last turn."""
        last = self.written[-1] if self.written else {}
        return coder_view(
            role_of(agent),
            self.task.payload,
            helper=last.get(HELPER, ""),
            main=last.get(MAIN, ""),
            outcomes=self._outcomes()[: self.shown_tests],
            turn=len(self.grades) + 1,
            turns=self.turns,
        )

    def _outcomes(self) -> Sequence[str]:
        """Return the outcomes of the last program's tests, () before the first program."""
        if not self.grades:
            return ()
        return self.grades[-1].outcomes or ("no program",) * len(self.tests)

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Grade the program and pay both agents."""
        self.written.append({agent: text or "" for agent, text in actions.items()})
        found = grade(
            actions[HELPER] or "",
            actions[MAIN] or "",
            entry=str(self.task.payload["entry"]),
            tests=self.tests,
            executor=self.executor,
            frame=self.frame,
        )
        self.grades.append(found)
        for agent, text in actions.items():
            missing = text is None or not text.strip()
            self.pay(agent, found.reward + self.shift + (self.malformed if missing else 0.0))
            self.note(agent, verdict=self._verdict(agent, found, missing))
        if found.reward >= self.stop_at or len(self.grades) == self.turns:
            self._end(found)

    @staticmethod
    def _verdict(agent: str, found: Grade, missing: bool) -> str:
        if missing:
            return "malformed"
        defined = found.aux_defined if agent == HELPER else found.main_defined
        if not defined:
            return "not_defined"
        if not found.main_defined or not found.parses:
            return "no_program"
        failed = [outcome for outcome in found.outcomes if outcome != "passed"]
        return failed[0] if failed else "passed"

    def _end(self, last: Grade) -> None:
        self.measure(
            team_return=last.reward / MOST,
            first_return=self.grades[0].reward / MOST,
            passed=last.passed,
            solved=last.passed == 1.0,
            aux_defined=last.aux_defined,
            main_defined=last.main_defined,
            parses=last.parses,
            calls_aux=last.calls_aux,
            wrapper=last.wrapper,
            ignores_aux=last.ignores_aux,
            turns=len(self.grades),
        )
        self.finish()


def coder_view(
    part: str,
    problem: Mapping[str, Any],
    *,
    helper: str = "",
    main: str = "",
    outcomes: Sequence[str] = (),
    turn: int = 1,
    turns: int = 1,
) -> Observation:
    """Return the view of a part, "helper" or "main".

    The view contains the problem and, after a turn, both agents' code and the outcomes of the first
    tests. It contains no output of the program.
    """
    text, entry = str(problem["text"]), str(problem["entry"])
    hidden = bool(problem.get("called"))  # the tests call a function that the agents do not see
    feedback = [
        {
            "call": HIDDEN if hidden else f"{entry}({arguments})",
            "expected": "" if hidden else str(expected),
            "outcome": outcome,
        }
        for (arguments, expected), outcome in zip(problem["tests"], outcomes, strict=False)
    ]
    lines = [f"{part}: {text}", *([helper, main] if turn > 1 else [])]
    lines += [f"{item['call']} -> {item['outcome']}" for item in feedback]
    return Observation(
        text="\n".join(lines),
        fields={
            "problem": text,
            "entry": entry,
            "aux": AUX,
            "part": part,
            "turn": turn,
            "turns": turns,
            "helper": helper,
            "main": main,
            "feedback": feedback,
        },
    )


def raw_env(**settings: Any) -> Collaboration:
    """Return the arena without a wrapper; a new executor is made unless one is given."""
    settings.setdefault("executor", Executor())
    return Collaboration(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
