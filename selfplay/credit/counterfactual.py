"""Counterfactual credit: what the team got, less what it would have got without this action."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

from selfplay.credit.base import CreditedTurn, StatelessCredit, learnable_turns, own_return, samples
from selfplay.credit.replay import MoveReplayer, ReplayedArena, actions_of
from selfplay.types import Group, Sample

Judged = Literal["team", "own"]


class Counterfactual(StatelessCredit):
    """A = R - R with this action replaced by a default, both from replaying the arena.

    The difference reward, which COMA (1705.08926) reads off a critic, with the others' recorded
    moves kept: every agent makes its own in their order, but for the one judged, and one that is
    asked more often than the record knows makes the default. R is the mean of what all agents are
    paid (`returns: team`) or the acting agent's own pay. No siblings are needed.

    In the last stage that an arena can have, as in games of one stage, nothing in the subtrahend
    depends on the action: the expected gradient is exactly that of the expected return. In earlier
    stages (and for an action that ended the episode early) it is biased, by the expectation of the
    subtrahend times the score: later words answered the action that the replay takes away. The
    pay of agents without a turn counts. Failure mode: replies to words that were never said earn
    nothing sensible, and of two agents that each alone suffice none gets credit. Costs a replay
    per turn.
    """

    def __init__(
        self,
        *,
        arena: Callable[[], ReplayedArena],
        default: str | None = None,
        returns: Judged = "team",
        limit: int = 1000,
    ) -> None:
        """`arena` replays, cut after `limit` stages; `default` is the action in place of the one
        judged, None one that did not parse."""
        if returns not in get_args(Judged):
            raise ValueError(f"no returns {returns!r}; {get_args(Judged)} are known")
        if limit < 1:
            raise ValueError(f"limit is at least 1 stage, not {limit}")
        self.returns, self.default, self.team = returns, default, returns == "team"
        self.replayer = MoveReplayer(arena, limit=limit, default=default)

    def metrics(self) -> Mapping[str, float]:
        """Replays of the last call, with the share of them that went beyond the record."""
        figures = self.replayer.metrics()
        share = figures["replays_beyond_moves"] / max(figures["replays"], 1.0)
        return {**figures, "beyond_moves_share": share}

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Advantages of all turns; 0 where the arena broke in a replay."""
        self.replayer.counts.clear()
        found = learnable_turns(groups, own_return)
        firsts = {play.trajectory[:2]: play for play in found}
        recorded = {episode: self._replayed(play) for episode, play in firsts.items()}
        advantages = []
        for play in found:
            earned, without = recorded[play.trajectory[:2]], self._replayed(play, play.number)
            if earned is None or without is None:
                advantages.append(0.0)
            else:
                advantages.append(self._judged(earned, play) - self._judged(without, play))
        return samples(found, advantages)

    def _judged(self, paid: Mapping[str, float], play: CreditedTurn) -> float:
        if self.returns == "own":
            return paid[play.turn.agent]
        return sum(paid.values()) / len(paid)

    def _replayed(
        self, play: CreditedTurn, without: int | None = None
    ) -> Mapping[str, float] | None:
        """What its episode pays, without the move of this number that its agent made."""
        episode = play.group.episodes[play.episode]
        moves = actions_of(episode)
        if without is not None:
            moves[play.turn.agent][without] = self.default
        return self.replayer.paid(episode, moves)
