"""Judged debate: two sides defend two answers and a judge decides between them (1805.00899).

One answer is right, the other wrong; the sides are drawn at random. Both sides argue at once, round
by round, and see the earlier rounds. Then the judge, who does not know the answer, names a side.
The sides' rewards are zero-sum. The judge is paid for naming the side that is right, so that the
judge can learn, and the debaters learn against the judge. With `exchange`, a second judge decides
on the same debate with the sides exchanged, and a side wins only if both judges name it.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal, get_args

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.questions.arithmetic import questions
from arenas.quotes import in_one_line
from selfplay.arena import Arena
from selfplay.credit.rewards import mean
from selfplay.errors import check_choice
from selfplay.types import Action, Metric, Observation, Task

JUDGE = "judge_0"
SIDES = ("A", "B")
NoVerdict = Literal["draw", "coin"]


class JudgedDebate(Arena):
    """Two debaters and one or two judges."""

    name = "judged_debate_v0"
    roles = {"debater": 2, "judge": 1}
    measures = {
        "accuracy": Metric(unit="fraction", better="higher"),
        "verdict": Metric(unit="fraction", better="higher"),
        "side_a_won": Metric(unit="fraction"),
        "agreement": Metric(unit="fraction", better="higher"),
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
        exchange: bool = False,
        agreement: float = 0.0,
    ) -> None:
        """Args:
        rounds: Arguments per side.
        stake: Reward that the losing side transfers to the winning side.
        silence: Reward that a side without an argument transfers to the other side, per round.
        no_verdict: Result of a judge's move that names no side, and of two judges that disagree.
            draw: no side wins. coin: the winner is drawn at random.
        malformed: Judge's reward for a move that names no side. The reward for naming the right
            side is 1, and for the wrong side 0.
        argument_length: Maximum characters of an argument that the others see; the rest is cut off.
        exchange: If true, judge_1 sees the same debate with the sides exchanged, so that a verdict
            that depends on the place alone makes the judges disagree. This works only if the same
            policy plays both judges.
        agreement: Added to the reward of both judges if they name the same side, and subtracted
            if they name different ones; needs `exchange`.
        """
        super().__init__(self._cast(judges=2 if exchange else 1))
        check_choice("no_verdict", no_verdict, get_args(NoVerdict))
        if rounds < 1 or argument_length < 1:
            raise ValueError("rounds and argument_length are at least 1")
        if agreement and not exchange:
            raise ValueError(f"agreement={agreement} needs two judges; set exchange=true")
        self.rounds, self.stake, self.silence = rounds, stake, silence
        self.no_verdict, self.malformed = no_verdict, malformed
        self.argument_length = argument_length
        self.agreement = agreement
        self.sides, self.judges = self.possible_agents[:2], self.possible_agents[2:]

    def _cast(self, *, judges: int) -> dict[str, int]:
        """Return the number of agents of each role: two sides, then the judges."""
        return {"debater": 2, "judge": judges}

    def default_task(self, rng: Random) -> Task:
        """Return a small sum."""
        return questions(count=1, seed=rng.randrange(2**32))[0]

    def setup(self, task: Task, rng: Random) -> None:
        """Assign the two answers to the sides at random."""
        missing = [key for key in ("question", "answer", "wrong") if key not in task.payload]
        if missing:
            raise ValueError(
                f"task {task.id}: the payload needs {' and '.join(map(repr, missing))}; "
                "'answer' is the right answer, and 'wrong' one that the other side defends"
            )
        self.question = str(task.payload["question"])
        answers = [str(task.payload["answer"]), str(task.payload["wrong"])]
        self.right = rng.randrange(2)
        self.answers = answers if self.right == 0 else answers[::-1]
        self.said: list[list[str]] = []
        self.silent = 0

    def acting(self) -> Sequence[str]:
        """Return both sides, then the judge or both judges."""
        return self.sides if len(self.said) < self.rounds else self.judges

    def messengers(self) -> Sequence[str]:
        """Return both sides; the verdict is no message."""
        return self.sides if len(self.said) < self.rounds else ()

    def judged(self, judge: str) -> Mapping[str, bool]:
        """Return per side True if it defends the right answer."""
        if judge not in self.judges:
            return {}
        return {agent: place == self.right for place, agent in enumerate(self.sides)}

    def accepts(self, judge: str, verdict: Action | None) -> Sequence[str]:
        """Return the side that the verdict names, or []."""
        named = self._named(judge, verdict)
        return [] if named is None else [self.sides[named]]

    def _named(self, judge: str, verdict: Action | None) -> int | None:
        """Return the index of the side that a verdict names, or None."""
        named = (verdict or "").strip().rstrip(".").upper()
        return self._order(judge)[SIDES.index(named)] if named in SIDES else None

    def _order(self, agent: str) -> Sequence[int]:
        """Return the indices of the sides that an agent sees as A and B."""
        return (1, 0) if self.judges[1:] == [agent] else (0, 1)

    def saying(self, agent: str, words: str) -> Action:
        """Return the words unchanged, because any text is an argument."""
        return words

    def swapped(self) -> "JudgedDebate":
        """Return a copy with answers and arguments of the two sides exchanged."""
        twin = self.fork()
        assert isinstance(twin, JudgedDebate)
        twin.right, twin.answers = 1 - self.right, self.answers[::-1]
        twin.said = [row[::-1] for row in self.said]
        return twin

    def view(self, agent: str) -> Observation:
        """Return the question, both answers and all earlier arguments; for a side, also its letter.

        The view does not show which answer is right.
        """
        side = "" if agent in self.judges else SIDES[self.sides.index(agent)]
        order = self._order(agent)
        return judged_view(
            self.question,
            dict(zip(SIDES, [self.answers[place] for place in order], strict=True)),
            [[row[place] for place in order] for row in self.said],
            side=side,
            rounds=self.rounds,
        )

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Store both arguments, or apply the verdicts."""
        if self.judges[0] in actions:
            self._decide(actions)
            return
        # An argument has one line, so that it cannot look like one of the other side.
        row = [in_one_line(actions[agent] or "")[: self.argument_length] for agent in self.sides]
        self.said.append(row)
        for place, agent in enumerate(self.sides):
            if not row[place]:
                self.silent += 1
                self.note(agent, verdict="silent")
                self._transfer(1 - place, self.silence)

    def _transfer(self, winner: int, amount: float) -> None:
        self.pay(self.sides[winner], amount)
        self.pay(self.sides[1 - winner], -amount)

    def _decide(self, verdicts: Mapping[str, Action | None]) -> None:
        named = {judge: self._named(judge, verdicts[judge]) for judge in self.judges}
        counted = []
        for judge, place in named.items():
            if place is not None:
                self.pay(judge, float(place == self.right))
                self.note(judge, verdict="correct" if place == self.right else "wrong")
            else:
                self.pay(judge, self.malformed)
                self.note(judge, verdict="none")
            missing = place is None and self.no_verdict == "coin"
            counted.append(self.rng.randrange(2) if missing else place)
        agree = len(set(named.values())) == 1 and None not in named.values()
        winner = counted[0] if len(set(counted)) == 1 else None
        if self.agreement and None not in named.values():
            for judge in self.judges:
                self.pay(judge, self.agreement if agree else -self.agreement)
        if winner is None and self.no_verdict == "coin":
            winner = self.rng.randrange(2)
        if winner is not None:
            self._transfer(winner, self.stake)
        first = [self._order(judge)[0] for judge in self.judges]
        self.measure(
            verdict=mean([place is not None for place in named.values()]),
            accuracy=mean([place == self.right for place in counted]),
            side_a_won=mean([a == place for a, place in zip(first, counted, strict=True)]),
            silent=self.silent / (2 * self.rounds),
        )
        if len(self.judges) > 1:
            self.measure(agreement=agree)
        self.finish()


def judged_view(
    question: str,
    answers: Mapping[str, str],
    said: Sequence[Sequence[str]],
    *,
    side: str,
    rounds: int,
) -> Observation:
    """Return the view of a side or a judge.

    Args:
        question: The question of the debate.
        answers: Answer that each side defends, by letter.
        said: [rounds so far][2] arguments of the sides A and B.
        side: Letter of the side that sees this; "" for a judge.
        rounds: Number of rounds of the debate.
    """
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
