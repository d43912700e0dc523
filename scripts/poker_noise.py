"""Prints bias and noise of the gradient of each credit method in Kuhn and Leduc poker.

A table of logits plays both seats, as in `poker_bakeoff.py`, with the same methods, samplers and
batches. The exact gradient of each seat's expected chips, for the other seat's policy as it is,
follows from all hands. `--policies random` draws the logits of a policy from a normal
distribution; `--policies trained` takes policies that learned for 200 steps by `rloo`, with the
setting that `poker_bakeoff.py` chose for it: noise during training is that of such policies.

- bias and noise: as `tabular_bakeoff.py noise` defines them, after estimates were divided by the
  scale that fits their mean best to the exact gradient;
- ratio: the noise, divided by that of `rloo` at the same policy; the geometric mean over policies.

Means have Student's interval over policies. `--draw` makes a picture of the ratios of each game
from the numbers that `--json` kept. Needs selfplay[games].

Usage: python scripts/poker_noise.py [--games kuhn] [--policies random] [--methods grpo gae]
           [--seeds 10] [--batches 200] [--json FILE]
       python scripts/poker_noise.py --json FILE --draw FOLDER
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bakeoff_table import mean, table_head, table_row, write_picture
from poker_bakeoff import (
    COMPLETIONS,
    METHODS,
    Dealer,
    Setting,
    credit_and_sampler,
    credited_turns,
    policies,
    tree_of,
)
from poker_tree import PokerTree, policy_gradient
from tabular_bakeoff import WARM, judged, shown
from tabular_bakeoff import mean as geometric_mean

STEPS = 200
"""Steps of training of a trained policy."""
SETTINGS = {"kuhn": Setting(lr=0.1, kl=0.3), "leduc": Setting(lr=0.3, kl=3.0)}
"""The settings of `rloo` in the tables of `poker_bakeoff.py`."""

Row = dict[str, Any]


def policy_of(game: str, kind: str, seed: int) -> np.ndarray:
    """Return a random or a trained policy: [sets, moves] probabilities."""
    if kind == "trained":
        *_, last = policies(game, "rloo", SETTINGS[game], seed=seed, steps=STEPS)
        return last
    tree = tree_of(game)
    return tree.probabilities(np.random.default_rng([seed, 1]).normal(size=tree.legal.shape))


def exact(tree: PokerTree, policy: np.ndarray) -> np.ndarray:
    """Return the exact gradient of each seat's expected chips by the logits of its own sets.

    Args:
        tree: The game.
        policy: [sets, moves] probabilities of both seats.
    """
    gradient = np.zeros_like(policy)
    sign = np.where(tree.player == 0, 1.0, -1.0)
    values = np.zeros(len(tree.set_of))

    def worth(node: int) -> float:
        """Return the chips that the first player wins on average from a node or an end."""
        return float(values[node] if node >= 0 else tree.chips[-1 - node])

    # A node comes before the nodes after it, so that the values of those are known in this order.
    for node in reversed(range(len(values))):
        known = tree.set_of[node]
        moves = np.flatnonzero(tree.legal[known])
        values[node] = sum(policy[known, move] * worth(tree.after[node, move]) for move in moves)
    reach = np.zeros(len(values))
    np.add.at(reach, tree.deals, 1 / len(tree.deals))
    for node, known in enumerate(tree.set_of):
        for move in np.flatnonzero(tree.legal[known]):
            likely, after = reach[node] * policy[known, move], tree.after[node, move]
            gradient[known, move] += likely * sign[node] * (worth(after) - values[node])
            if after >= 0:
                reach[after] += likely
    return gradient


def noise(game: str, method: str, policy: np.ndarray, seed: int, *, batches: int) -> Row:
    """Return bias and noise of a method at a policy, see `tabular_bakeoff.judged`."""
    credit, sampler = credit_and_sampler(method)
    dealer = Dealer(tree_of(game), np.random.default_rng([seed, 2]))
    found = []
    for step in range(WARM + batches):
        groups = dealer.sample(policy, sampler, least=COMPLETIONS[game], step=step)
        turns = credited_turns(credit, groups)
        # The mean over all samples, as the learner takes it.
        found.append(policy_gradient(policy, *turns).ravel() / len(turns[0]))
    return judged(np.array(found[WARM:]), exact(tree_of(game), policy).ravel())


def ratios(rows: Sequence[Row], game: str, kind: str, method: str) -> list[float]:
    """Return, by seed, the logarithm of a method's noise divided by that of `rloo`."""

    def of(name: str) -> list[float]:
        wanted = (game, kind, name)
        return [
            each["noise"]
            for each in rows
            if (each["game"], each["policies"], each["credit"]) == wanted
        ]

    return [math.log(one / two) for one, two in zip(of(method), of("rloo"), strict=True)]


def table(game: str, kind: str, options: argparse.Namespace) -> list[Row]:
    """Print and return the noise of each method in a game, at random or trained policies."""
    print(f"\n{game}, {kind} policies\n")
    print(table_head(["credit", "bias", "noise", "ratio"]), flush=True)
    played = [policy_of(game, kind, seed) for seed in range(options.seeds)]
    rows: list[Row] = []
    for name in options.methods:
        found = [
            noise(game, name, policy, seed, batches=options.batches)
            for seed, policy in enumerate(played)
        ]
        rows += [
            {"game": game, "policies": kind, "credit": name, "seed": seed, **each}
            for seed, each in enumerate(found)
        ]
        cells = [mean([each[column] for each in found]) for column in ("bias", "noise")]
        ratio = shown(ratios(rows, game, kind, name), logs=True)
        print(table_row([f"`{name}`", *cells, ratio]), flush=True)
    return rows


def draw(rows: Sequence[Row], folder: Path, methods: Sequence[str]) -> list[Path]:
    """Write a picture of the ratios of methods for each table; return the SVG files."""
    paths = []
    for game, kind in dict.fromkeys((each["game"], each["policies"]) for each in rows):
        kept = {each["credit"] for each in rows if each["game"] == game}
        names = [name for name in methods if name in kept]
        estimates = [
            geometric_mean(ratios(rows, game, kind, name), logs=True, name=name) for name in names
        ]
        paths.append(
            write_picture(
                folder / f"bakeoff_noise_{game}_{kind}.svg",
                title=f"{game.capitalize()} poker, {kind} policies",
                estimates=estimates,
                label="noise, relative to rloo",
                null=1.0,
            )
        )
    return paths


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each game and kind of policy, and write all numbers to a named file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--games", nargs="+", choices=list(COMPLETIONS), default=list(COMPLETIONS))
    kinds = ("random", "trained")
    parser.add_argument("--policies", nargs="+", choices=kinds, default=kinds)
    parser.add_argument(
        "--methods", nargs="*", choices=METHODS, default=METHODS, help="rloo always runs first"
    )
    parser.add_argument("--seeds", type=int, default=10, help="policies")
    parser.add_argument("--batches", type=int, default=200, help="batches per policy")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="draw the numbers of --json")
    options = parser.parse_args(arguments)
    if options.draw:
        if not options.json:
            parser.error("--draw needs --json FILE, as an earlier call wrote it")
        print(*draw(json.loads(options.json.read_text()), options.draw, options.methods), sep="\n")
        return
    options.methods = list(dict.fromkeys(["rloo", *options.methods]))  # ratios are relative to it
    rows: list[Row] = []
    for game in options.games:
        for kind in options.policies:
            rows += table(game, kind, options)
            if options.json:
                options.json.write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
