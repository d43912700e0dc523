"""Equilibrium of a small game, by counterfactual regret minimisation.

OpenSpiel's CFR+ (Tammelin 2014, 1407.5042) runs until the exploitability of the mean strategy is
below `PRECISION` of the range of pay. It converges in games of two players with a constant sum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfplay.errors import ConfigError
from selfplay.types import InformationSet

PRECISION = 0.0003
"""Largest exploitability, as a fraction of the range of pay."""
MOST_ROUNDS = 2_000
"""Largest number of iterations."""
CHECKED = 50
"""Number of iterations between two checks of the exploitability."""


@dataclass(frozen=True, kw_only=True)
class Equilibrium:
    """One approximate equilibrium. `solve` makes it; the study of behaviour shows it."""

    chances: Mapping[tuple[str, str], Mapping[str, float]]
    """(agent, key of the information set) to legal action to its probability."""
    exploitability: float
    """Exploitability of this strategy, in units of pay."""


def solve(game: Any, sets: Sequence[InformationSet]) -> Equilibrium:
    """Return an equilibrium of a game at the arena's information sets.

    Args:
        game: OpenSpiel's version of the game.
        sets: The arena's information sets.
    Raises:
        ConfigError: If the game has no constant sum or not two players, or is not solved in
            `MOST_ROUNDS` iterations.
    """
    import pyspiel

    kind = game.get_type()
    utility = pyspiel.GameType.Utility
    if game.num_players() != 2 or kind.utility not in (utility.ZERO_SUM, utility.CONSTANT_SUM):
        raise ConfigError("only games of two players with a constant sum are solved")
    solver = pyspiel.CFRPlusSolver(game)
    bound = PRECISION * (game.max_utility() - game.min_utility())
    for done in range(1, MOST_ROUNDS + 1):
        solver.evaluate_and_update_policy()
        if done % CHECKED == 0:
            policy = solver.average_policy()
            left = pyspiel.exploitability(game, policy)
            if left <= bound:
                return Equilibrium(chances=_at(policy, sets), exploitability=float(left))
    raise ConfigError(f"the game is not solved after {MOST_ROUNDS} iterations")


def _at(policy: Any, sets: Sequence[InformationSet]) -> dict[tuple[str, str], dict[str, float]]:
    found: dict[tuple[str, str], dict[str, float]] = {}
    for each in sets:
        chances = dict(policy.get_state_policy(each.key))
        found[each.agent, each.key] = {
            action: float(chances.get(number, 0.0)) for action, number in each.actions.items()
        }
    return found
