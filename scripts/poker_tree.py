"""Kuhn and Leduc poker as trees of information sets, and a table of logits that learns in them.

`leduc_table.py` and `poker_bakeoff.py` use this file. Needs selfplay[games].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pyspiel

FLOOR = 0.03
"""Last learning rate, as a fraction of the first."""


@dataclass(frozen=True, kw_only=True)
class Poker:
    """The sizes of a game of poker that the tree needs."""

    game: str
    """Name and arguments of the game in OpenSpiel."""
    cards: int
    """Number of cards."""
    dealt: int
    """Number of cards that are dealt in a hand."""
    suits: int
    """Number of cards of a rank."""
    moves: int
    """Number of moves."""


GAMES: Mapping[str, Poker] = {
    "kuhn": Poker(game="kuhn_poker", cards=3, dealt=2, suits=1, moves=2),
    "leduc": Poker(game="leduc_poker(suit_isomorphism=true)", cards=6, dealt=3, suits=2, moves=3),
}


class PokerTree:
    """All hands of a game, as nodes that name an information set and the nodes after it."""

    def __init__(self, name: str) -> None:
        """`name`: kuhn or leduc."""
        poker = GAMES[name]
        self.game = pyspiel.load_game(poker.game)
        self.sets: dict[str, int] = {}
        legal: list[list[bool]] = []
        nodes: list[int] = []
        players: list[int] = []
        after: list[list[int]] = []
        chips: list[float] = []

        def add(state: pyspiel.State, deal: tuple[int, ...]) -> int:
            """Return the number of a new node; -1 - n for the n-th end of a hand."""
            while state.is_chance_node():
                state.apply_action(deal[0])
                deal = deal[1:]
            if state.is_terminal():
                chips.append(state.returns()[0])
                return -len(chips)
            player, moves = state.current_player(), state.legal_actions()
            known = self.sets.setdefault(state.information_state_string(player), len(self.sets))
            if known == len(legal):
                legal.append([move in moves for move in range(poker.moves)])
            node = len(nodes)
            nodes.append(known)
            players.append(player)
            after.append([0] * poker.moves)
            for move in moves:
                after[node][move] = add(state.child(move), deal)
            return node

        deals = permutations(range(poker.cards), poker.dealt)
        ranks = [tuple(card // poker.suits for card in deal) for deal in deals]
        first = {deal: add(self.game.new_initial_state(), deal) for deal in sorted(set(ranks))}
        self.deals = np.array([first[deal] for deal in ranks])
        """[deals] first node of each deal of the cards: 6 in Kuhn poker, 120 in Leduc poker."""
        self.legal = np.array(legal)
        """[sets, moves] True for a legal move."""
        self.set_of, self.player, self.after = map(np.array, (nodes, players, after))
        """[nodes] information set; [nodes] player that moves; [nodes, moves] next node."""
        self.chips = np.array(chips)
        """[ends] chips that the first player wins."""

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return the policy: [sets, moves] probabilities of the legal moves."""
        shown = np.where(self.legal, logits, -np.inf)
        weights = np.exp(shown - shown.max(1, keepdims=True))
        return weights / weights.sum(1, keepdims=True)

    def exploitability(self, policy: np.ndarray) -> float:
        """Return the gain of a best response, in chips a hand, as the mean of both seats."""
        table = {
            name: [(move, float(policy[n, move])) for move in np.flatnonzero(self.legal[n])]
            for name, n in self.sets.items()
        }
        return float(pyspiel.exploitability(self.game, pyspiel.TabularPolicy(table)))


def policy_gradient(
    policy: np.ndarray, sets: np.ndarray, moves: np.ndarray, advantages: np.ndarray
) -> np.ndarray:
    """Return [sets, moves] sum over turns of the advantage times the score of the logits.

    Args:
        policy: [sets, moves] probabilities.
        sets: [turns] information set of each turn.
        moves: [turns] its move.
        advantages: [turns] its advantage.
    """
    gradient, per_set = np.zeros_like(policy), np.zeros(len(policy))
    np.add.at(gradient, (sets, moves), advantages)
    np.add.at(per_set, sets, advantages)
    gradient -= per_set[:, None] * policy
    return gradient


class PokerTable:
    """Logits of the legal moves, with Adam and with a moving average (EMA) as their reference."""

    def __init__(self, tree: PokerTree, *, ema: float) -> None:
        """Args:
        tree: The game; all logits begin at 0.
        ema: Fraction of the distance to the logits that the EMA moves in a step.
        """
        self.tree, self.ema, self.steps = tree, ema, 0
        self.logits = np.zeros(tree.legal.shape)
        self.reference, self.mean, self.square = (self.logits.copy() for _ in range(3))

    def learn(
        self,
        sets: np.ndarray,
        moves: np.ndarray,
        advantages: np.ndarray,
        *,
        count: int,
        kl: float,
        entropy: float,
        lr: float,
    ) -> None:
        """Make one step up the policy gradient, minus a KL term, plus a bonus for entropy.

        The KL term, to the EMA, and the entropy are exact at each visited information set.

        Args:
            sets: [turns] information set of each turn.
            moves: [turns] its move.
            advantages: [turns] its advantage.
            count: Number that the sum over the turns is divided by.
            kl: Weight of the KL term, in the unit of the advantages.
            entropy: Weight of the entropy, in the same unit.
            lr: Learning rate of this step.
        """
        policy = self.tree.probabilities(self.logits)
        gradient = policy_gradient(policy, sets, moves, advantages)
        log_policy, log_reference = np.log(
            np.maximum([policy, self.tree.probabilities(self.reference)], 1e-12)
        )
        cost = kl * (log_policy - log_reference) + entropy * log_policy
        visits = np.bincount(sets, minlength=len(self.logits))[:, None]
        gradient -= visits * policy * (cost - (policy * cost).sum(1, keepdims=True))
        gradient /= count
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        root = np.sqrt(self.square / (1 - 0.999**self.steps)) + 1e-8
        self.logits = self.logits + lr * self.mean / (1 - 0.9**self.steps) / root
        self.reference = self.reference + self.ema * (self.logits - self.reference)


def falling(first: float, last: float, *, step: int, steps: int) -> float:
    """Return the value at a step of a schedule that falls linearly to `last` at the last step."""
    return last + (first - last) * (1 - step / steps)


def columns(rows: Sequence[tuple[int, int, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (set, move, advantage) of each turn as three arrays."""
    sets, moves, advantages = zip(*rows, strict=True)
    return np.array(sets), np.array(moves), np.array(advantages, dtype=float)
