"""Prints the exploitability of a game's equilibrium under a KL term to the uniform policy.

With `objective.reference=initial`, each decision is paid its return minus `objective.kl` times the
KL to the policy at the beginning. If that policy is uniform, self-play can end where every decision
has probabilities in proportion to exp(Q / kl), with Q the return of each move in chips: the logit
equilibrium of agents (McKelvey and Palfrey, 1998). With `objective.estimator=forward` they are in
proportion to 1 / (c - Q / kl), with c such that they add up to 1. The exploitability of this
equilibrium is what a run with this `kl` can reach without errors, so that `kl` can be chosen before
the run. Needs selfplay[games].

Usage: python scripts/regularised_equilibrium.py [--game leduc_poker] [--kl 2 1 0.5 0.25]
       [--divergence forward]
"""

import argparse
from typing import Any

import numpy as np
import pyspiel
from open_spiel.python.algorithms.exploitability import nash_conv
from open_spiel.python.policy import TabularPolicy

ENOUGH = 1e-3
"""Largest change of a probability by the fixed-point map at which the search ends."""
ROUNDS = 3000
"""Largest number of updates."""


class Equilibrium:
    """Search for the regularised equilibrium of a two-player zero-sum game."""

    def __init__(self, game: str, *, divergence: str = "reverse") -> None:
        """Args:
        game: Name of OpenSpiel with its parameters, such as leduc_poker.
        divergence: reverse: KL(policy, uniform). forward: KL(uniform, policy).
        """
        self.game = pyspiel.load_game(game)
        self._best = self._inverse if divergence == "forward" else self._softmax
        self.table = TabularPolicy(self.game)
        self.policy = self.table.action_probability_array
        self.legal = self.table.legal_actions_mask.astype(bool)
        self._root = self._node(self.game.new_initial_state())

    def solve(self, kl: float) -> float:
        """Set `policy` to the equilibrium at this `kl`; return the largest error of a probability.

        The search averages the returns of moves over its rounds, as smooth fictitious play does.
        """
        returns, error = self.returns(), 1.0
        for number in range(ROUNDS):
            self.policy[:] = self._best(returns / kl)
            found = self.returns()
            error = float(np.abs(self._best(found / kl) - self.policy).max())
            if error < ENOUGH:
                break
            returns += 2.0 / (number + 20) * (found - returns)
        return error

    def exploitability(self) -> float:
        """Return the gain of a best response to the policy, as the mean of both seats."""
        return float(nash_conv(self.game, self.table)) / 2

    def returns(self) -> Any:
        """Return [information sets, moves] expected returns of each move for its player."""
        total, weight = np.zeros_like(self.policy), np.zeros((len(self.policy), 1))
        self._value(self._root, (1.0, 1.0), 1.0, total, weight)
        return total / np.maximum(weight, 1e-300)

    def _node(self, state: Any) -> Any:
        """Return the tree below a state: a pay, or (player, information set, moves)."""
        if state.is_terminal():
            return float(state.returns()[0])
        if state.is_chance_node():
            return -1, 0, [(p, self._node(state.child(a))) for a, p in state.chance_outcomes()]
        player = state.current_player()
        number = self.table.state_lookup[state.information_state_string(player)]
        return player, number, [(a, self._node(state.child(a))) for a in state.legal_actions()]

    def _value(
        self, node: Any, reach: tuple[float, float], chance: float, total: Any, weight: Any
    ) -> float:
        """Return the first player's expected return; add the returns of moves, weighted by the
        probability that chance and the other player lead to them."""
        if isinstance(node, float):
            return node
        player, number, moves = node
        if player < 0:
            return sum(p * self._value(each, reach, chance * p, total, weight) for p, each in moves)
        others, sign, value = reach[1 - player] * chance, 1 - 2 * player, 0.0
        weight[number] += others
        for move, each in moves:
            chosen = float(self.policy[number, move])
            after = (reach[0] * chosen, reach[1]) if player == 0 else (reach[0], reach[1] * chosen)
            found = self._value(each, after, chance, total, weight)
            total[number, move] += others * sign * found
            value += chosen * found
        return value

    def _softmax(self, logits: Any) -> Any:
        shown = np.where(self.legal, logits, -np.inf)
        powers = np.exp(shown - shown.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def _inverse(self, returns: Any) -> Any:
        """Return the probabilities that maximise the sum of p Q + u log p, with u uniform."""
        uniform = self.legal / self.legal.sum(axis=1, keepdims=True)
        best = np.where(self.legal, returns, -np.inf).max(axis=1, keepdims=True)
        gaps = np.where(self.legal, best - returns, 0.0)
        low, high = np.zeros_like(best), np.ones_like(best)  # of c - best
        for _ in range(50):
            middle = (low + high) / 2
            too_much = (uniform / (middle + gaps)).sum(axis=1, keepdims=True) > 1
            low, high = np.where(too_much, middle, low), np.where(too_much, high, middle)
        found = uniform / (high + gaps)
        return found / found.sum(axis=1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--game", default="leduc_poker")
    parser.add_argument("--kl", type=float, nargs="+", default=[2.0, 1.0, 0.5, 0.25])
    parser.add_argument("--divergence", choices=["reverse", "forward"], default="reverse")
    options = parser.parse_args()
    found = Equilibrium(options.game, divergence=options.divergence)
    print(f"{options.game}: exploitability {found.exploitability():.3f} of uniform play")
    for kl in options.kl:
        error = found.solve(kl)
        print(f"kl {kl:g}: exploitability {found.exploitability():.4f} (error {error:.0e})")


if __name__ == "__main__":
    main()
