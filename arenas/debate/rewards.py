"""MAPoRL's rewards for a debate (2502.18439): the value of an answer for the whole discussion.

Scores are the verifier's, in [0, 1] and of shape [rounds][debaters]. All functions are pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from selfplay.credit.rewards import mean

Scores = Sequence[Sequence[float]]
Horizon = Literal["discounted", "last", "current"]
Whose = Literal["all", "own"]

RIGHT = 0.5
"""Threshold above which a score counts as right."""


def debate_return(
    scores: Scores,
    round_number: int,
    debater: int,
    *,
    horizon: Horizon = "discounted",
    whose: Whose = "all",
    discount: float = 0.3,
) -> float:
    """Return the reward of one debater's answer in round `round_number` (from 0).

    discounted: the weighted mean of its own score and, for the n-th round after this one, with the
    weight discount^n, the mean score of all debaters (`whose="own"`: of this debater). last: the
    mean score (`whose="own"`: own score) of the last round. current: its own score of this round.
    """
    own = scores[round_number][debater]
    if horizon == "current":
        return own
    if horizon == "last":
        return mean(scores[-1]) if whose == "all" else scores[-1][debater]
    later = [mean(row) if whose == "all" else row[debater] for row in scores[round_number + 1 :]]
    weights = [discount**number for number in range(len(later) + 1)]
    total = sum(weight * score for weight, score in zip(weights, [own, *later], strict=True))
    return total / sum(weights)


@dataclass(frozen=True, kw_only=True)
class Incentives:
    """Rewards for changes of the debater's own answer and of the others' answers, all >= 0.

    "The others" are right if their mean score is above 0.5. The sign follows the paper's
    intent: good changes and useful influence are paid, bad ones cost. The released code differs in
    two points. It pays +alpha[0] for a correction where the others were right and +alpha[1] where
    they were wrong, which the paper labels the other way round. Its influence has the opposite
    sign: -alpha[3] (own answer right) or -alpha[2] (own wrong) where the others went from wrong to
    right, +alpha[3] (own wrong) or +alpha[2] (own right) where they went from right to wrong.
    """

    corrected_by_others: float = 0.0
    """Reward for wrong to right where the others were right: a good argument was accepted."""
    corrected_alone: float = 0.0
    """Reward for wrong to right where the others were wrong."""
    misled_by_others: float = 0.0
    """Cost of right to wrong where the others were wrong."""
    misled_alone: float = 0.0
    """Cost of right to wrong where the others were right."""
    helped_by_being_right: float = 0.0
    """Reward if the others went from wrong to right after an own right answer."""
    helped_though_wrong: float = 0.0
    """Reward if the others went from wrong to right after an own wrong answer."""
    harmed_by_being_wrong: float = 0.0
    """Cost if the others went from right to wrong after an own wrong answer."""
    harmed_though_right: float = 0.0
    """Cost if the others went from right to wrong after an own right answer."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise ValueError(
                    f"{field.name} must be 0 or more: its name says if it is a reward or a cost"
                )

    def change(self, scores: Scores, round_number: int, debater: int) -> float:
        """Return the incentive for the debater's own change since the previous round."""
        if round_number == 0 or len(scores[round_number]) < 2:
            return 0.0
        was, now = (scores[t][debater] > RIGHT for t in (round_number - 1, round_number))
        others = others_right(scores, round_number - 1, debater)
        if now > was:
            return self.corrected_by_others if others else self.corrected_alone
        if now < was:
            return -(self.misled_alone if others else self.misled_by_others)
        return 0.0

    def influence(self, scores: Scores, round_number: int, debater: int) -> float:
        """Return the incentive for the others' change in the next round."""
        if round_number == len(scores) - 1 or len(scores[round_number]) < 2:
            return 0.0
        own = scores[round_number][debater] > RIGHT
        was, now = (others_right(scores, t, debater) for t in (round_number, round_number + 1))
        if now > was:
            return self.helped_by_being_right if own else self.helped_though_wrong
        if now < was:
            return -(self.harmed_though_right if own else self.harmed_by_being_wrong)
        return 0.0


def others_right(scores: Scores, round_number: int, debater: int) -> bool:
    """Return True if the mean score of the other debaters is above 0.5."""
    others = [score for place, score in enumerate(scores[round_number]) if place != debater]
    return mean(others) > RIGHT


def persuasion(answers: Sequence[Sequence[str | None]], scores: Scores) -> dict[str, float]:
    """Return how answers moved, as fractions of the (debater, round) pairs after the first round.

    corrections: wrong to right. wrong_persuasions: right to a wrong answer that another debater
    had given. conformity: from the own answer, or none, to a different one that another debater
    had given. Empty for a single round.
    """
    counts = {"corrections": 0, "wrong_persuasions": 0, "conformity": 0}
    moves = 0
    for round_number in range(1, len(answers)):
        for debater, answer in enumerate(answers[round_number]):
            before = answers[round_number - 1]
            others = [given for place, given in enumerate(before) if place != debater]
            was = scores[round_number - 1][debater] > RIGHT
            now = scores[round_number][debater] > RIGHT
            followed = answer is not None and answer != before[debater] and answer in others
            moves += 1
            counts["corrections"] += now > was
            counts["wrong_persuasions"] += now < was and followed
            counts["conformity"] += followed
    return {name: count / moves for name, count in counts.items()} if moves else {}
