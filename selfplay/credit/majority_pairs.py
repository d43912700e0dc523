"""Majority pairs: traces that agree with the majority, preferred to traces that do not."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Literal

from selfplay.credit.base import StatelessCredit
from selfplay.credit.trace import AnsweringArena, Trace, traces
from selfplay.types import Group, Sample


class MajorityPairs(StatelessCredit):
    """Pairs of whole traces for objective=dpo, without any reward or label (MACA, 2509.15172).

    A trace is all turns of one agent in one episode. It votes for the answer of its last move; if
    that move has no answer, it does not vote and is in no pair. A trace of the majority and one of
    the minority form a pair of advantages +1 and -1 for all their turns; DPO adds up the
    log-probabilities of a trace. Traces of one policy are paired in order, each at most once. Votes
    are counted in one episode, as MACA does after a debate, or among all episodes of a group, which
    answer the same question. A tie, and a majority that has no more than the fraction `above` of
    the votes, makes no pair. Siblings must be independent: a tree would repeat shared turns.

    Failure mode: a wrong majority is preferred too; accuracy falls where most answers are wrong.
    """

    compares = "batch"

    def __init__(
        self,
        *,
        arena: Callable[[], AnsweringArena],
        votes: Literal["episode", "group"] = "episode",
        above: float = 0.5,
        roles: Sequence[str] = (),
    ) -> None:
        """Args:
        arena: Makes the arena, whose `canonical_answer` reads the answers.
        votes: Agents that vote together: those of an episode, or of a whole group.
        above: Fraction of the votes that a majority must exceed, in [0, 1).
        roles: Roles that vote; empty: all that answer.
        """
        if votes not in ("episode", "group"):
            raise ValueError(f"votes is one of episode, group, not {votes!r}")
        if not 0 <= above < 1:
            raise ValueError(f"above lies in [0, 1), not {above}")
        self.votes, self.above, self.roles = votes, above, frozenset(roles)
        self._arena = arena()
        self._metrics: Mapping[str, float] = {"pairs": 0, "agreement": 0.0}

    def metrics(self) -> Mapping[str, float]:
        """Return the number of pairs and the mean fraction of votes for the top answer."""
        return self._metrics

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return samples of all trainable turns of the traces that are in a pair."""
        samples, agreements = list[Sample](), list[float]()
        for group in groups:
            voters = traces(group, self._arena, self.roles)
            if self.votes == "group":
                voters = [[trace for each in voters for trace in each]]
            for number, together in enumerate(filter(None, voters)):
                agreement, pairs = _pairs(together, self.above)
                agreements.append(agreement)
                for place, (better, worse) in enumerate(pairs):
                    names = f"{better.turns[0].agent}/{worse.turns[0].agent}"
                    pair = f"{group.id}/{number}/{place}/{names}"
                    samples += [*better.samples(pair, 1.0), *worse.samples(pair, -1.0)]
        pairs_made = len({sample.pair for sample in samples})
        self._metrics = {"pairs": pairs_made, "agreement": fmean(agreements or [0.0])}
        return samples


def _pairs(voters: Sequence[Trace], above: float) -> tuple[float, list[tuple[Trace, Trace]]]:
    """Return the fraction of votes for the top answer, and pairs of majority and minority.

    Both traces of a pair are of one policy, because a learner leaves out half a pair.
    """
    (winner, most), *others = Counter(trace.answer for trace in voters).most_common()
    if most <= above * len(voters) or (others and others[0][1] == most):
        return most / len(voters), []
    able = [trace for trace in voters if trace.can_learn()]
    pairs = list[tuple[Trace, Trace]]()
    for policy in dict.fromkeys(trace.turns[0].policy for trace in able):
        own = [trace for trace in able if trace.turns[0].policy == policy]
        better = [trace for trace in own if trace.answer == winner]
        pairs += zip(better, [trace for trace in own if trace.answer != winner], strict=False)
    return most / len(voters), pairs
