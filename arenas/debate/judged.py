"""Judged debate: two sides defend two answers and a judge decides between them (1805.00899).

One answer is right, the other wrong; the sides are drawn at random. Both sides argue at once, round
by round, and see the earlier rounds. Then the judge, who does not know the answer, names a side.
The sides' rewards are zero-sum. The judge is paid for naming the side that is right, so that the
judge can learn, and the debaters learn against it.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal, get_args

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.questions.arithmetic import questions
from selfplay.arena import Arena
from selfplay.types import Action, Metric, Observation, Task

JUDGE = "judge_0"
SIDES = ("A", "B")
NoVerdict = Literal["draw", "coin"]


class JudgedDebate(Arena):
    """Two debaters and a judge."""

    name = "judged_debate_v0"
    roles = {"debater": 2, "judge": 1}
    measures = {
        "accuracy": Metric(unit="fraction", better="higher"),
        "verdict": Metric(unit="fraction", better="higher"),
        "side_a_won": Metric(unit="fraction"),
        "silent": Metric(unit="fraction", better="lower"),
        "verdict/silent": Metric(unit="fraction", better="lower"),
        "verdict/none": Metric(unit="fraction", better="lower"),
    }
    chief = ("accuracy",)

    def __init__(
        self,
        *,
        rounds: int = 2,
        stake: float = 1.0,
        silence: float = 0.0,
        no_verdict: NoVerdict = "draw",
        malformed: float = -1.0,
        argument_length: int = 400,
    ) -> None:
        """Args:
        rounds: Arguments per side.
        stake: Reward that the losing side transfers to the winning side.
        silence: Reward that a side without an argument transfers to the other side, per round.
        no_verdict: Result of a judge's move that names no side. draw: no side wins. coin: the
            winner is drawn at random.
        malformed: Judge's reward for such a move; 1 for naming the right side, otherwise 0.
        argument_length: Characters of an argument that the others see.
        """
        super().__init__()
        if no_verdict not in get_args(NoVerdict):
            raise ValueError(
                f"no_verdict is one of {', '.join(get_args(NoVerdict))}, not {no_verdict!r}"
            )
        if rounds < 1 or argument_length < 1:
            raise ValueError("rounds and argument_length are at least 1")
        self.rounds, self.stake, self.silence = rounds, stake, silence
        self.no_verdict, self.malformed = no_verdict, malformed
        self.argument_length = argument_length
        self.sides = self.possible_agents[:2]

    def default_task(self, rng: Random) -> Task:
        """Return a small sum."""
        return questions(count=1, seed=rng.randrange(2**32))[0]

    def setup(self, task: Task, rng: Random) -> None:
        """Assign the two answers to the sides at random."""
        self.question = str(task.payload["question"])
        answers = [str(task.payload["answer"]), str(task.payload["wrong"])]
        self.right = rng.randrange(2)
        self.answers = answers if self.right == 0 else answers[::-1]
        self.said: list[list[str]] = []
        self.silent = 0

    def acting(self) -> Sequence[str]:
        """Return both sides, then the judge."""
        return self.sides if len(self.said) < self.rounds else [JUDGE]

    def messengers(self) -> Sequence[str]:
        """Return both sides; the verdict is no message."""
        return self.sides if len(self.said) < self.rounds else ()

    def judged(self, judge: str) -> Mapping[str, bool]:
        """Return per side True if it defends the right answer."""
        if judge != JUDGE:
            return {}
        return {agent: place == self.right for place, agent in enumerate(self.sides)}

    def accepts(self, judge: str, verdict: Action | None) -> Sequence[str]:
        """Return the side that the verdict names, or []."""
        named = _named(verdict)
        return [] if named is None else [self.sides[named]]

    def saying(self, agent: str, words: str) -> Action:
        """Return the words unchanged: any text is an argument."""
        return words

    def swapped(self) -> "JudgedDebate":
        """Return a copy with answers and arguments of the two sides exchanged."""
        twin = self.fork()
        assert isinstance(twin, JudgedDebate)
        twin.right, twin.answers = 1 - self.right, self.answers[::-1]
        twin.said = [row[::-1] for row in self.said]
        return twin

    def view(self, agent: str) -> Observation:
        """Return the question, both answers and all earlier arguments, and its name for a side.

        The view does not show which answer is right.
        """
        side = "" if agent == JUDGE else SIDES[self.sides.index(agent)]
        return judged_view(
            self.question,
            dict(zip(SIDES, self.answers, strict=True)),
            self.said,
            side=side,
            rounds=self.rounds,
        )

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Store both arguments, or apply the verdict."""
        if JUDGE in actions:
            self._decide(actions[JUDGE])
            return
        row = [(actions[agent] or "").strip()[: self.argument_length] for agent in self.sides]
        self.said.append(row)
        for place, agent in enumerate(self.sides):
            if not row[place]:
                self.silent += 1
                self.note(agent, verdict="silent")
                self._transfer(1 - place, self.silence)

    def _transfer(self, winner: int, amount: float) -> None:
        self.pay(self.sides[winner], amount)
        self.pay(self.sides[1 - winner], -amount)

    def _decide(self, action: Action | None) -> None:
        winner = _named(action)
        verdict = winner is not None
        if verdict:
            right = winner == self.right
            self.pay(JUDGE, float(right))
            self.note(JUDGE, verdict="correct" if right else "wrong")
        else:
            self.pay(JUDGE, self.malformed)
            self.note(JUDGE, verdict="none")
            if self.no_verdict == "coin":
                winner = self.rng.randrange(2)
        if winner is not None:
            self._transfer(winner, self.stake)
        self.measure(
            verdict=verdict,
            accuracy=winner == self.right,
            side_a_won=winner == 0,
            silent=self.silent / (2 * self.rounds),
        )
        self.finish()


def _named(verdict: Action | None) -> int | None:
    """Return the index of the side that a verdict names, or None."""
    named = (verdict or "").strip().rstrip(".").upper()
    return SIDES.index(named) if named in SIDES else None


def judged_view(
    question: str,
    answers: Mapping[str, str],
    said: Sequence[Sequence[str]],
    *,
    side: str,
    rounds: int,
) -> Observation:
    """Return a side's view after the rounds of arguments `said`; `side` is "" for the judge."""
    transcript = [dict(zip(SIDES, row, strict=True)) for row in said]
    claims = [f"{name} = {answer}" for name, answer in answers.items()]
    lines = [f"{name}: {argument}" for row in transcript for name, argument in row.items()]
    return Observation(
        text="\n".join([" | ".join([question, *claims, *([side] if side else [])]), *lines]),
        fields={
            "question": question,
            "side": side,
            "answers": answers,
            "transcript": transcript,
            "round": len(said) + 1,
            "rounds": rounds,
        },
    )


def raw_env(**settings: Any) -> JudgedDebate:
    """Return the arena without a wrapper."""
    return JudgedDebate(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
