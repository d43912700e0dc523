"""Collaboration: a helper and a main agent write one program together, for one reward (2508.04652).

Both write at once, without seeing what the other writes: the helper a function `aux`, the main
agent the function that the task asks for, which should call `aux`. The program is run against tests
in the executor, and both are paid the same (`arenas.collaboration.code_reward`). With several turns
they see the program and what became of its first tests, and write again; every turn is paid for its
own program.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.collaboration.code_reward import AUX, MOST, Grade, Test, grade
from arenas.collaboration.problems import problems
from selfplay.arena import Arena
from selfplay.sandbox import Executor
from selfplay.types import Action, Metric, Observation, Task

HELPER, MAIN = "helper_0", "main_0"


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
        shift: float = 0.0,
        malformed: float = 0.0,
    ) -> None:
        """Args:
        executor: Runs the tests. The paper allows 10 s per test: `services.executor.cpu_seconds`.
        turns: Programs that the two may write.
        shown_tests: Tests whose outcome they see after a turn; all of them count.
        stop_at: A reward that ends the episode: the most there is, unless told otherwise.
        shift: Added to every reward; the released configs shift by -4, so that perfect is 0.
        malformed: Added to the pay of an agent that wrote no code, and of no other.
        """
        super().__init__()
        if turns < 1 or shown_tests < 0:
            raise ValueError("turns is at least 1, shown_tests at least 0")
        self.executor, self.turns, self.shown_tests = executor, turns, shown_tests
        self.stop_at, self.shift, self.malformed = stop_at, shift, malformed

    def default_task(self, rng: Random) -> Task:
        """A small problem."""
        return problems(count=1, seed=rng.randrange(2**32))[0]

    def setup(self, task: Task, rng: Random) -> None:
        """Nothing is written yet. The payload has `text`, `entry` and `tests`."""
        self.tests = [
            Test(arguments=str(arguments), expected=str(expected))
            for arguments, expected in task.payload["tests"]
        ]
        if not self.tests:
            raise ValueError(f"task {task.id}: a problem without tests")
        self.written: list[dict[str, str]] = []
        self.grades: list[Grade] = []

    def acting(self) -> Sequence[str]:
        """Both at once."""
        return self.possible_agents

    def view(self, agent: str) -> Observation:
        """The problem, this agent's part, and what the last turn came to."""
        last = self.written[-1] if self.written else {}
        return coder_view(
            agent.rpartition("_")[0],
            self.task.payload,
            helper=last.get(HELPER, ""),
            main=last.get(MAIN, ""),
            outcomes=self._outcomes()[: self.shown_tests],
            turn=len(self.grades) + 1,
            turns=self.turns,
        )

    def _outcomes(self) -> Sequence[str]:
        """What became of the last program's tests; nothing where there is none yet."""
        if not self.grades:
            return ()
        return self.grades[-1].outcomes or ("no program",) * len(self.tests)

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Grade the program and pay both for it."""
        self.written.append({agent: text or "" for agent, text in actions.items()})
        found = grade(
            actions[HELPER] or "",
            actions[MAIN] or "",
            entry=str(self.task.payload["entry"]),
            tests=self.tests,
            executor=self.executor,
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
    """What the agent of a part ("helper" or "main") sees: the problem, and after a turn both codes
    and the outcomes of the first tests, in the arena's words and with no output of the program.
    """
    text, entry = str(problem["text"]), str(problem["entry"])
    feedback = [
        {"call": f"{entry}({arguments})", "expected": str(expected), "outcome": outcome}
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
    """The arena itself, with an executor of its own unless one is given."""
    settings.setdefault("executor", Executor())
    return Collaboration(**settings)


def env(**settings: Any) -> Any:
    """The arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
