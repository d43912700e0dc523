"""Demonstrations in the tiny sub-language, for the warm start.

All demonstrated answers are right. They are given in two ways: at once, or after a thought that
works through the program line by line. A model that answers at once is nearly always wrong if the
program has several lines. With the thought it is nearly always right, but such demonstrations are
rare at the end of the warm start. Self-play has to discover which way has the higher reward.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from arenas.absolute_zero.arena import proposer_view, solver_view
from arenas.absolute_zero.tiny_python import FOOTER, HEADER, OPERATIONS, Domain, Program, problem
from selfplay.types import Demonstration, Task

# Proposers only have to imitate, which takes far fewer examples than solving. Induction is the
# hardest to learn.
MIXTURE: Mapping[tuple[str, str], float] = {
    ("solver", "deduction"): 2.0,
    ("solver", "abduction"): 2.0,
    ("solver", "induction"): 4.5,
    ("proposer", "deduction"): 0.5,
    ("proposer", "abduction"): 0.5,
    ("proposer", "induction"): 1.0,
}


class TinyDemonstrations:
    """Stream of solved tasks and proposals, without held-out programs."""

    def __init__(
        self,
        *,
        held_out: Sequence[Task] = (),
        pairs: int = 4,
        references: int = 2,
        worked_share: float = 0.2,
        practice_share: float = 0.9,
        practice_until: float = 0.85,
    ) -> None:
        """Args:
        held_out: Tasks whose programs are never shown.
        pairs: Inputs of an induction task.
        references: Maximum number of earlier programs that a proposer is shown.
        worked_share: Fraction of solutions worked line by line in the last part of the warm start,
            which the policy imitates when self-play begins.
        practice_share: The same fraction before that part, while the method itself is learned.
        practice_until: Start of the last part, as a fraction of the warm start.
        """
        self.domain = Domain()
        self.exclude: Collection[str] = frozenset(task.payload["program"] for task in held_out)
        self.pairs, self.references = pairs, references
        self.worked_share, self.practice_share = worked_share, practice_share
        self.practice_until = practice_until

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end, in the proportions of `MIXTURE`."""
        share = self.practice_share if progress < self.practice_until else self.worked_share
        forms, weights = list(MIXTURE), list(MIXTURE.values())
        while True:
            role, kind = rng.choices(forms, weights)[0]
            if role == "solver":
                yield self._solution(kind, rng, worked=rng.random() < share)
            else:
                yield self._proposal(kind, rng)

    def _solution(self, kind: str, rng: Random, *, worked: bool) -> Demonstration:
        program = self.domain.program(rng, self.exclude)
        words = self.domain.words(rng, self.pairs if kind == "induction" else 1)
        # The answer to an induction task may be another program than the task's own.
        while kind == "induction" and program.canonical(words[0]).source in self.exclude:
            program = self.domain.program(rng, self.exclude)
        return Demonstration(
            role="solver",
            observation=solver_view(kind, problem(program, words)),
            completion=solution(kind, program, words[0], worked=worked),
        )

    def _proposal(self, kind: str, rng: Random) -> Demonstration:
        program = self.domain.program(rng, self.exclude)
        if kind == "induction":
            words = self.domain.words(rng, self.pairs)
            payload = {"given": {"program": program.source}}
            blocks = "".join(f"```input\n{word!r}\n```\n" for word in words)
            answer = f"{blocks}```message\n{program.message}\n```"
        else:
            shown = [
                problem(self.domain.program(rng, self.exclude), [self.domain.word(rng)])
                for _ in range(rng.randint(0, self.references))
            ]
            payload = {"references": shown}  # type: ignore[dict-item]
            value = self.domain.word(rng)
            answer = f"```python\n{program.source}\n```\n```input\n{value!r}\n```"
        return Demonstration(
            role="proposer",
            observation=proposer_view(kind, payload, pairs=self.pairs),
            completion=completion(answer),
        )

    def pieces(self) -> list[str]:
        """Return the fixed strings of prompts and completions, one token each."""
        found = ["Output\n", "Input\n", "Program\n"]
        found += ["Propose deduction\n", "Propose abduction\n", "Propose inputs\n"]
        found += [HEADER, FOOTER, FOOTER + "\n"]
        found += ["f('", "') == '", "') == ?", "f(?) == '", "'\n", "')", "')\n"]
        for operation in OPERATIONS:
            line = f"    a = {operation.source}\n"
            found += line.split("{}") if operation.takes_letter else [line]
            found.append(operation.name)
        found += [", ", "<think>", "</think>", "<answer>", "</answer>", "</think><answer>"]
        found += ["</think><answer>'", "'</answer>", "</think><answer>" + HEADER]
        found += [FOOTER + "</answer>", "</think><answer>```python\n" + HEADER]
        found += [FOOTER + "\n```\n```input\n'", "```python\n", "```input\n", "```message\n"]
        found += ["\n```\n", "\n```", "'\n```</answer>", "</think><answer>```input\n'"]
        found += ["'\n```\n```input\n'", "'\n```\n```message\n", "\n```</answer>"]
        return list(dict.fromkeys(found))


def worked_deduction(program: Program, word: str) -> Demonstration:
    """Return the demonstration of a solver that finds an output line by line."""
    return Demonstration(
        role="solver",
        observation=solver_view("deduction", problem(program, [word])),
        completion=solution("deduction", program, word, worked=True),
    )


def proposed_deduction(program: Program, word: str, reference: Mapping[str, Any]) -> Demonstration:
    """Return the demonstration of a proposer that is shown one earlier problem."""
    return Demonstration(
        role="proposer",
        observation=proposer_view("deduction", {"references": [reference]}, pairs=1),
        completion=completion(f"```python\n{program.source}\n```\n```input\n{word!r}\n```"),
    )


def completion(answer: str, thought: str = "") -> str:
    """Return a completion in the format that prompts ask of solvers and proposers."""
    return f"<think>{thought}</think><answer>{answer}</answer>"


def solution(kind: str, program: Program, word: str, *, worked: bool) -> str:
    """Return the completion that solves a task, with or without the work.

    The work is a trace: each line of the program, followed by a value. Deduction: the value after
    each line. Abduction: the value before each line, last line first. Induction: the value of the
    first input after each operation that the message names, with a digit in place of each letter
    that is not known; the first output shows these letters.
    """
    output = program.trace(word)[-1]
    if kind == "deduction":
        lines, values = program.lines, program.trace(word)
        answer = repr(values[-1])
    elif kind == "abduction":
        lines, values = program.lines[::-1], program.back_trace(output)
        answer = repr(values[-1])
    else:
        holes = program.with_holes()
        lines, values = holes.lines, holes.trace(word)
        answer = program.canonical(word).source
    if not worked:
        return completion(answer)
    return completion(
        answer, "\n".join(f"{line.source}{v}" for line, v in zip(lines, values, strict=True))
    )
