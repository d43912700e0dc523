"""Trains a table of logits in Leduc poker by the rule of `tiny/leduc`, to see what limits a run.

A run of `tiny/leduc` can miss the equilibrium because of its model, of the noise of its hands, or
of its rule of learning. Here the model is a table with three logits for each of the 288 information
sets, which can represent every policy, and thousands of steps take seconds. The rule is that of the
experiment: the chips of a hand, compared with the other hands of the same deal; a KL term to a
moving average (EMA) of the logits; Adam; a learning rate that falls linearly to 0.03 of its first
value. Only the KL term is better: it is exact at each visited set. `--entropy` is the weight of a
bonus for the entropy of the legal moves; with `--last-entropy` the weight falls linearly to that
value.

Prints the exploitability in chips a hand at the end of each run, and that of the mean of the logits
at four steps of its second half. Needs selfplay[games].

Usage: python scripts/leduc_table.py [--hands 8 32] [--steps 400] [--kl 2] [--ema 0.01]
       [--entropy 0 0.1] [--last-entropy 0.05] [--lr 0.1] [--seeds 3]
"""

import argparse
from dataclasses import dataclass
from itertools import product

import numpy as np
from poker_tree import FLOOR, PokerTable, PokerTree, falling

CHECKS = 8
"""Number of times at which a run is measured."""


def play(
    tree: PokerTree, policy: np.ndarray, hands: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return set, move and advantage of each turn of `hands` hands of every deal."""
    now, bounds = np.repeat(tree.deals, hands), policy.cumsum(1)
    live, won, turns = np.arange(len(now)), np.zeros(len(now)), []
    while len(live):
        at = now[live]
        move = (rng.random((len(live), 1)) >= bounds[tree.set_of[at]][:, :-1]).sum(1)
        turns.append((live, at, move))
        now[live] = tree.after[at, move]
        ended = now[live] < 0
        won[live[ended]] = tree.chips[-1 - now[live[ended]]]
        live = live[~ended]
    hand, node, move = map(np.concatenate, zip(*turns, strict=True))
    better = (won.reshape(-1, hands) - won.reshape(-1, hands).mean(1, keepdims=True)).ravel()
    return tree.set_of[node], move, better[hand] * np.where(tree.player[node] == 0, 1, -1)


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


def train(tree: PokerTree, rule: Rule, *, seed: int) -> tuple[list[float], float]:
    """Return the exploitability at `CHECKS` steps of a run, the last one included, and that of the
    mean of the logits at those in its second half; a run of fewer steps is measured at each."""
    rng, table = np.random.default_rng(seed), PokerTable(tree, ema=rule.ema)
    found: list[float] = []
    kept: list[np.ndarray] = []
    for step in range(1, rule.steps + 1):
        turns = play(tree, tree.probabilities(table.logits), rule.hands, rng)
        table.learn(
            *turns,
            count=len(tree.deals) * rule.hands,
            kl=rule.kl,
            entropy=falling(rule.entropy, rule.last_entropy, step=step, steps=rule.steps),
            lr=falling(rule.lr, FLOOR * rule.lr, step=step, steps=rule.steps),
        )
        if step * CHECKS // rule.steps > (step - 1) * CHECKS // rule.steps:
            found.append(tree.exploitability(tree.probabilities(table.logits)))
            kept.append(table.logits)
    last = np.mean(kept[len(kept) // 2 :], axis=0)
    return found, tree.exploitability(tree.probabilities(last))


def main() -> None:
    """Train every combination of the settings, with every seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--hands", type=int, nargs="+", default=[8])
    parser.add_argument("--steps", type=int, nargs="+", default=[400])
    parser.add_argument("--kl", type=float, nargs="+", default=[2.0])
    parser.add_argument("--ema", type=float, nargs="+", default=[0.01])
    parser.add_argument("--entropy", type=float, nargs="+", default=[0.0])
    parser.add_argument("--last-entropy", type=float, help="default: the weight of --entropy")
    parser.add_argument("--lr", type=float, nargs="+", default=[0.1])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    tree = PokerTree("leduc")
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
