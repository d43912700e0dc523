"""Demonstrations of attacked answers, for the warm start: comparisons of three numbers.

A solver answers, and is often wrong in the last part. An adversary names one of the other two
numbers, right or wrong. A solver that was challenged keeps its answer, follows the challenge, or
answers the question anew. Training has to discover which of these habits pays.
"""

from collections.abc import Iterator, Sequence
from random import Random

from arenas.questions.attacked import CLAIM, attacked_view
from arenas.questions.comparisons import KINDS, check_comparisons, comparison
from arenas.questions.demonstrations import answered
from selfplay.types import Demonstration

HEARD = 0.8
"""Fraction of last answers that are given after a challenge; the others after none."""


class AttackDemonstrations:
    """Stream of answers, challenges and last answers, without held-out questions."""

    def __init__(
        self,
        *,
        kinds: Sequence[str] = tuple(KINDS),
        smallest: int = 10,
        largest: int = 99,
        right_share: float = 0.6,
        true_share: float = 0.5,
        kept: float = 0.3,
        followed: float = 0.4,
        practice_until: float = 0.85,
    ) -> None:
        """Args:
        kinds, smallest, largest: Questions, as in `arenas.questions.comparisons.comparisons`.
        right_share: Fraction of demonstrated first answers that are right, in the last part of the
            warm start. It also is the fraction of right ones among the first answers that a view
            shows, in all parts.
        true_share: Fraction of challenges that name the right answer, where the first one is wrong.
        kept: Fraction of last answers that repeat the first one, in the last part.
        followed: Fraction of last answers that name the challenge's answer, in the last part;
            without a challenge they repeat the first answer. The others answer anew, as often right
            as a first answer.
        practice_until: Start of the last part, as a fraction of the warm start. Before it, all
            demonstrated answers of the solver are right.
        """
        check_comparisons(kinds, smallest=smallest, largest=largest)
        shares = (right_share, true_share, kept, followed)
        if not all(0 <= share <= 1 for share in shares) or kept + followed > 1:
            raise ValueError("right_share, true_share, kept + followed are fractions, in [0, 1]")
        self.kinds, self.smallest, self.largest = list(kinds), smallest, largest
        self.right_share, self.true_share = right_share, true_share
        self.kept, self.followed = kept, followed
        self.practice_until = practice_until

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end: a third of each kind of move."""
        practice = progress < self.practice_until
        right_share = 1.0 if practice else self.right_share
        while True:
            payload = comparison(
                rng, kinds=self.kinds, smallest=self.smallest, largest=self.largest
            )
            question, right = str(payload["question"]), str(payload["answer"])
            numbers = list(map(str, payload["numbers"]))
            first = self._answer(numbers, right, rng, self.right_share)
            claim = self._claim(numbers, first, right, rng)
            move = rng.randrange(3)
            if move == 0:
                said = self._answer(numbers, right, rng, right_share)
                yield Demonstration(
                    role="solver", observation=attacked_view(question), completion=answered(said)
                )
            elif move == 1:
                seen = attacked_view(question, answer=first, again=True)
                yield Demonstration(role="adversary", observation=seen, completion=CLAIM + claim)
            else:
                heard = rng.random() < HEARD
                habit = 1.0 if practice else rng.random()
                said = self._answer(numbers, right, rng, right_share)
                if habit < self.kept + self.followed:
                    said = first if habit < self.kept or not heard else claim
                seen = attacked_view(
                    question, answer=first, challenge=CLAIM + claim if heard else "", again=True
                )
                yield Demonstration(role="solver", observation=seen, completion=answered(said))

    @staticmethod
    def _answer(numbers: Sequence[str], right: str, rng: Random, share: float) -> str:
        """Return the right answer or, at random, a wrong one."""
        if rng.random() < share:
            return right
        return rng.choice([number for number in numbers if number != right])

    def _claim(self, numbers: Sequence[str], first: str, right: str, rng: Random) -> str:
        """Return another number than the first answer."""
        if first != right and rng.random() < self.true_share:
            return right
        return rng.choice([number for number in numbers if number not in (first, right)])

    def pieces(self) -> list[str]:
        """Return the parts of questions, tags, phrases and numbers, one token each."""
        texts = [part for text in KINDS.values() for part in text.split("{}") if part]
        words = [*dict.fromkeys(texts), CLAIM, " | ", "nothing", "Attack ", "<answer>", "</answer>"]
        return [*words, *map(str, range(self.smallest, self.largest + 1))]
