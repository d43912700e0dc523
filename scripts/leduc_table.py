"""Trains a table of logits in Leduc poker by the rule of `tiny/leduc`, to see what limits a run.

A run of `tiny/leduc` can miss the equilibrium because of its model, of the noise of its hands, or
of its rule of learning. Here the model is a table with three logits for each of the 288 information
sets, which can represent every policy, and thousands of steps take seconds. The rule is that of the
experiment: the chips of a hand, compared with the other hands of the same deal; a KL term to a
moving average (EMA) of the logits; Adam; a learning rate that falls linearly to 0.03 of its first
value. Only the KL term is better: it is exact at each visited set. `--entropy` weighs a bonus for
the entropy of the legal moves; with `--last-entropy` its weight falls linearly to another one.

Prints the exploitability in chips a hand at the end of each run, and that of the mean of the logits
at four steps of its second half. Needs selfplay[games].

Usage: python scripts/leduc_table.py [--hands 8 32] [--steps 400] [--kl 2] [--ema 0.01]
       [--entropy 0 0.1] [--last-entropy 0.05] [--lr 0.1] [--seeds 3]
"""

import argparse
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
import pyspiel

MOVES = 3
"""Number of moves: fold, call, raise."""
CHECKS = 8
"""Number of times at which a run is measured."""
FLOOR = 0.03
"""Last learning rate, as a fraction of the first."""


class Tree:
    """All hands of Leduc poker, as nodes that name an information set and the nodes after it."""

    def __init__(self) -> None:
        self.game = pyspiel.load_game("leduc_poker(suit_isomorphism=true)")
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
                legal.append([move in moves for move in range(MOVES)])
            node = len(nodes)
            nodes.append(known)
            players.append(player)
            after.append([0] * MOVES)
            for move in moves:
                after[node][move] = add(state.child(move), deal)
            return node

        ranks = [tuple(card // 2 for card in deal) for deal in permutations(range(6), 3)]
        first = {deal: add(self.game.new_initial_state(), deal) for deal in sorted(set(ranks))}
        self.deals = np.array([first[deal] for deal in ranks])
        """[120] first node of each deal of six cards."""
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

    def play(
        self, policy: np.ndarray, hands: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return set, move and advantage of each turn of `hands` hands of every deal."""
        now, bounds = np.repeat(self.deals, hands), policy.cumsum(1)
        live, won, turns = np.arange(len(now)), np.zeros(len(now)), []
        while len(live):
            at = now[live]
            move = (rng.random((len(live), 1)) >= bounds[self.set_of[at]][:, :-1]).sum(1)
            turns.append((live, at, move))
            now[live] = self.after[at, move]
            ended = now[live] < 0
            won[live[ended]] = self.chips[-1 - now[live[ended]]]
            live = live[~ended]
        hand, node, move = map(np.concatenate, zip(*turns, strict=True))
        better = (won.reshape(-1, hands) - won.reshape(-1, hands).mean(1, keepdims=True)).ravel()
        return self.set_of[node], move, better[hand] * np.where(self.player[node] == 0, 1, -1)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Settings of a run."""

    hands: int
    """Hands of each of the 120 deals in a step."""
    steps: int
    """Number of steps."""
    kl: float
    """Weight of the KL term, in chips."""
    ema: float
    """Fraction of the distance that the EMA moves in a step."""
    entropy: float
    """First weight of the entropy bonus, in chips."""
    last_entropy: float
    """Last weight of the entropy bonus, in chips."""
    lr: float
    """First learning rate."""


def train(tree: Tree, rule: Rule, *, seed: int) -> tuple[list[float], float]:
    """Return the exploitability at `CHECKS` steps, and that of the mean of the last logits."""
    rng = np.random.default_rng(seed)
    logits = np.zeros(tree.legal.shape)
    reference, mean, square = logits.copy(), logits.copy(), logits.copy()
    found: list[float] = []
    kept: list[np.ndarray] = []
    for step in range(1, rule.steps + 1):
        policy = tree.probabilities(logits)
        sets, moves, advantages = tree.play(policy, rule.hands, rng)
        gradient, per_set = np.zeros_like(logits), np.zeros(len(logits))
        np.add.at(gradient, (sets, moves), advantages)
        np.add.at(per_set, sets, advantages)
        gradient -= per_set[:, None] * policy
        log_policy, log_reference = np.log(
            np.maximum([policy, tree.probabilities(reference)], 1e-12)
        )
        left = 1 - step / rule.steps
        entropy = rule.last_entropy + (rule.entropy - rule.last_entropy) * left
        cost = rule.kl * (log_policy - log_reference) + entropy * log_policy
        visits = np.bincount(sets, minlength=len(logits))[:, None]
        gradient -= visits * policy * (cost - (policy * cost).sum(1, keepdims=True))
        gradient /= len(tree.deals) * rule.hands
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        rate = rule.lr * (FLOOR + (1 - FLOOR) * left)
        root = np.sqrt(square / (1 - 0.999**step)) + 1e-8
        logits = logits + rate * mean / (1 - 0.9**step) / root
        reference += rule.ema * (logits - reference)
        if step % (rule.steps // CHECKS) == 0:
            found.append(tree.exploitability(tree.probabilities(logits)))
            kept.append(logits)
    last = np.mean(kept[CHECKS // 2 :], axis=0)
    return found, tree.exploitability(tree.probabilities(last))


def main() -> None:
    """Train every combination of the settings, with every seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--hands", type=int, nargs="+", default=[8])
    parser.add_argument("--steps", type=int, nargs="+", default=[400])
    parser.add_argument("--kl", type=float, nargs="+", default=[2.0])
    parser.add_argument("--ema", type=float, nargs="+", default=[0.01])
    parser.add_argument("--entropy", type=float, nargs="+", default=[0.0])
    parser.add_argument("--last-entropy", type=float, help="by default that of --entropy")
    parser.add_argument("--lr", type=float, nargs="+", default=[0.1])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    tree = Tree()
    columns = ("hands", "steps", "kl", "ema", "entropy", "lr")
    print(f"| {' | '.join(columns)} | exploitability of seeds, at the end | mean of logits |")
    print("|---" * (len(columns) + 2) + "|")
    for values in product(*(getattr(given, name) for name in columns)):
        chosen = dict(zip(columns, values, strict=True))
        last = chosen["entropy"] if given.last_entropy is None else given.last_entropy
        rule = Rule(**chosen, last_entropy=last)
        runs = [train(tree, rule, seed=seed) for seed in range(given.seeds)]
        shown = [f"{value:g}" for value in values]
        ends = ", ".join(f"{found[-1]:.3f}" for found, _ in runs)
        means = ", ".join(f"{average:.3f}" for _, average in runs)
        print(f"| {' | '.join(shown)} | {ends} | {means} |", flush=True)


if __name__ == "__main__":
    main()
