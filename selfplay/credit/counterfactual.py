"""Counterfactual credit: the team's return minus its return without this action."""

from collections.abc import Callable, Mapping, Sequence
from typing import get_args

from selfplay.credit.base import CreditedTurn, StatelessCredit, learnable_turns, own_return, samples
from selfplay.credit.replay import MoveReplayer, ReplayedArena, actions_of
from selfplay.credit.team_return import Judged
from selfplay.errors import check_choice
from selfplay.types import Group, Sample


class Counterfactual(StatelessCredit):
    """A = R - R with this action replaced by a default; both come from replaying the arena.

    This is the difference reward, which COMA (1705.08926) reads from a critic. All other recorded
    moves are kept; an agent that is asked for more moves than the record has makes the default. R
    is the mean return of all agents, with or without a turn (`returns: team`), or the acting
    agent's own. No siblings are needed. The cost is one replay per move and one per episode.

    In the last stage that an arena can have, the subtracted return does not depend on the action:
    the expected gradient is exactly that of the expected return. In earlier stages (and for an
    action that ended the episode early) it is biased, because later recorded moves are answers to
    the removed action. The bias is the mean of the subtracted return times the score. Failure mode:
    replies to messages that were never sent earn arbitrary rewards; if either of two agents alone
    would suffice, neither gets credit.
    """

    compares = "batch"
    replays = True

    def __init__(
        self,
        *,
        arena: Callable[[], ReplayedArena],
        default: str | None = None,
        returns: Judged = "team",
        limit: int = 1000,
    ) -> None:
        """Args:
            arena: Makes the arena that replays an episode.
            default: Action that replaces the agent's own; None: an invalid action.
            returns: Return that is compared: own (of the acting agent) or team (mean of all).
            limit: Largest number of stages of an episode that is replayed.

        Raises ValueError for a setting with a value that is not listed above.
        """
        check_choice("returns", returns, get_args(Judged))
        if limit < 1:
            raise ValueError(f"limit is at least 1 stage, not {limit}")
        self.returns, self.default, self.team = returns, default, returns == "team"
        self.replayer = MoveReplayer(arena, limit=limit, default=default)

    def metrics(self) -> Mapping[str, float]:
        """Return counts of replays, and the fraction of them that went beyond the record."""
        metrics = self.replayer.metrics()
        fraction = metrics["replays_beyond_moves"] / max(metrics["replays"], 1.0)
        return {**metrics, "beyond_moves_share": fraction}

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return all turns' advantages; a tool call has its move's, and a failed replay gives 0."""
        self.replayer.counts.clear()
        turns = learnable_turns(groups, own_return)
        firsts = {credited.trajectory[:2]: credited for credited in turns}
        recorded = {episode: self._replayed(each) for episode, each in firsts.items()}
        advantages = [0.0] * len(turns)
        moves = {(*credited.trajectory, credited.move): credited for credited in turns}
        removed = {move: self._replayed(each, each.move) for move, each in moves.items()}
        for index, credited in enumerate(turns):
            earned = recorded[credited.trajectory[:2]]
            without = removed[*credited.trajectory, credited.move]
            if earned is not None and without is not None:
                advantages[index] = self._judged(earned, credited) - self._judged(without, credited)
        return samples(turns, advantages)

    def _judged(self, paid: Mapping[str, float], credited: CreditedTurn) -> float:
        own = self.returns == "own"
        return paid[credited.turn.agent] if own else sum(paid.values()) / len(paid)

    def _replayed(
        self, credited: CreditedTurn, without: int | None = None
    ) -> Mapping[str, float] | None:
        """Return every agent's return in a replay of the turn's episode without the given move."""
        episode = credited.group.episodes[credited.episode]
        moves = actions_of(episode)
        if without is not None:
            moves[credited.turn.agent][without] = self.default
        return self.replayer.paid(episode, moves)
