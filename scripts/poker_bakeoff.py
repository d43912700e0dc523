"""Compares credit methods in Kuhn and Leduc poker, at equal completions, by exact exploitability.

A table of logits plays both seats. A step has groups of hands that share a deal, drawn in turn from
all deals, until the batch has enough completions. The credit methods and samplers are those of
training, with the settings of `enumerated_methods.py`. The rest is like the rule of `tiny/leduc`: a
KL term to a moving average (EMA) of the logits, exact in each visited information set; Adam; and a
learning rate that falls linearly to 0.03 of its first value. All rewards are chips, paid at the end
of a hand.

Methods differ in the scale of their advantages, and so in the best weight of the KL term. For each
method, three learning rates and four weights are tried in two seeds that are not reported; the pair
with the lowest mean exploitability over the run is taken.

- final: exploitability after the last step, in chips a hand;
- mean: its mean over ten measurements during the run, the area under the curve;
- gain: the mean of `rloo` with the same seed, minus this mean: above 0 is better than `rloo`;
- seconds: CPU time of a run.

Means have Student's interval over seeds. `--draw` makes a picture of the gains of each game from
the numbers that `--json` kept, and `--base` prints gains over another method. Needs
selfplay[games].

Usage: python scripts/poker_bakeoff.py [--games kuhn] [--methods grpo gae] [--seeds 5]
           [--steps 200] [--rates 0.03 0.1 0.3] [--kl 0.1 0.3 1 3] [--json FILE]
       python scripts/poker_bakeoff.py --json FILE --draw FOLDER
       python scripts/poker_bakeoff.py --json FILE --base dr_grpo
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from bakeoff_table import mean, table_head, table_row, write_picture
from enumerated_games import GAMES as ENUMERATED
from enumerated_methods import METHODS as CREDITS
from poker_tree import FLOOR, GAMES, PokerTable, PokerTree, columns, falling

from selfplay.curriculum.fixed import FixedTasks
from selfplay.rollout.rollout import EpisodeSpec
from selfplay.sampler.independent import Independent
from selfplay.sampler.tree import Branch, Tree
from selfplay.study.stats.bootstrap import over_runs
from selfplay.types import Episode, Group, Status, Task, Turn

SEATS = ("first", "second")
"""Roles of the two players."""
COMPLETIONS = {"kuhn": 240, "leduc": 1000}
"""Smallest number of completions of a batch."""
CHECKS = 10
"""Number of times at which a run is measured."""
EMA = 0.01
"""Fraction of the distance that the EMA moves in a step."""
TUNING = (100, 101)
"""Seeds of the tuning; no reported run has one of them."""
RATES, WEIGHTS = (0.03, 0.1, 0.3), (0.1, 0.3, 1.0, 3.0)
"""Learning rates and weights of the KL term that are tried for each method."""
NOT_COMPARED = ("pass_at_k", "advantage_alignment")
"""pass@k needs right and wrong; Advantage Alignment is for games in which both players can gain."""
METHODS = [name for name, each in CREDITS.items() if not each.team and name not in NOT_COMPARED]
"""Methods that are compared; for those of the team, its return is always 0."""
SAMPLERS: Mapping[str, Callable[[], Any]] = {
    "dr_grpo, branch": lambda: Branch(group_size=8, initial=4),
    "arpo, branch": lambda: Branch(group_size=8, initial=4),
    "agent_turn, tree": lambda: Tree(candidates=2, depth=3, go_on="all"),
}
"""Makers of the samplers of three methods; the others play eight independent hands of a deal."""

Row = dict[str, Any]


class Dealer:
    """A function that plays hands with a table of logits, and counts the completions."""

    def __init__(self, tree: PokerTree, rng: np.random.Generator) -> None:
        self.tree, self.rng, self.completions = tree, rng, 0
        self.bounds: list[list[float]] = []
        self._deals: list[int] = []
        self._nodes = [row.tolist() for row in tree.after]
        self._sets, self._players = tree.set_of.tolist(), tree.player.tolist()
        self._turns: dict[tuple[int, int, int, float], Turn] = {}

    def sample(self, policy: np.ndarray, sampler: Any, *, least: int, step: int) -> list[Group]:
        """Return groups of hands by the policy, with at least this number of completions."""
        self.bounds = policy.cumsum(1).tolist()
        groups: list[Group] = []
        end = self.completions + least
        while self.completions < end:
            if not self._deals:
                self._deals = self.rng.permutation(len(self.tree.deals)).tolist()
            deal = Task(id=str(self._deals.pop()))
            tasks = FixedTasks(tasks=[deal], batch=1)
            seed = int(self.rng.integers(2**31))
            found = sampler.sample(tasks, self, step=step, seed=seed)
            groups += [replace(each, id=f"{step}.{len(groups)}") for each in found]
        return groups

    def __call__(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        """Return an episode for each spec; one with a prefix goes on from it."""
        return [self._hand(spec) for spec in specs]

    def _hand(self, spec: EpisodeSpec) -> Episode:
        node = int(self.tree.deals[int(spec.task.id)])
        replayed = [turn.completion_ids[0] for turn in spec.prefix_turns]
        path: list[tuple[int, int, int]] = []
        while node >= 0:
            seat, known = self._players[node], self._sets[node]
            move = replayed[len(path)] if len(path) < len(replayed) else self._move(known)
            path.append((seat, known, move))
            node = self._nodes[node][move]
        self.completions += len(path) - len(replayed)
        won = float(self.tree.chips[-1 - node])
        pay, turns = {0: won, 1: -won}, []
        for stage, (seat, known, move) in reversed(list(enumerate(path))):
            turns.append(self._turn(stage, seat, known, move, pay.pop(seat, 0.0)))
        return Episode(
            arena="poker",
            task=spec.task,
            seed=spec.seed,
            turns=tuple(reversed(turns)),
            status=Status.FINISHED,
            branch_of=spec.branch_of,
            shared_turns=len(replayed),
        )

    def _move(self, known: int) -> int:
        drawn, bounds = self.rng.random() * self.bounds[known][-1], self.bounds[known]
        return next(move for move, bound in enumerate(bounds) if drawn < bound)

    def _turn(self, stage: int, seat: int, known: int, move: int, reward: float) -> Turn:
        key = (stage, known, move, reward)
        if key not in self._turns:
            self._turns[key] = Turn(
                agent=f"{SEATS[seat]}_0",
                role=SEATS[seat],
                policy="base",
                version=0,
                prompt_ids=(known,),
                completion_ids=(move,),
                logprobs=(-1.0,),
                loss_mask=(1,),
                action=str(move),
                reward=reward,
                stage=stage,
            )
        return self._turns[key]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Learning rate and weight of the KL term of a run."""

    lr: float
    """First learning rate."""
    kl: float
    """Weight of the KL term."""


def credit_and_sampler(method: str) -> tuple[Any, Any]:
    """Return a new credit method and its sampler."""
    credit = CREDITS[method].make(ENUMERATED["pennies"])  # these methods do not read the game
    return credit, SAMPLERS[method]() if method in SAMPLERS else Independent(group_size=8)


def credited_turns(
    credit: Any, groups: Sequence[Group]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the information set, the move and the advantage of each turn, [turns] each."""
    return columns(
        [
            (each.turn.prompt_ids[0], each.turn.completion_ids[0], float(each.advantage))
            for each in credit.assign(groups)
        ]
    )


def policies(
    game: str, method: str, setting: Setting, *, seed: int, steps: int
) -> Iterator[np.ndarray]:
    """Yield the policy after each step of a run: [sets, moves] probabilities."""
    tree = tree_of(game)
    credit, sampler = credit_and_sampler(method)
    table, dealer = PokerTable(tree, ema=EMA), Dealer(tree, np.random.default_rng(seed))
    policy = tree.probabilities(table.logits)
    for step in range(1, steps + 1):
        groups = dealer.sample(policy, sampler, least=COMPLETIONS[game], step=step)
        turns = credited_turns(credit, groups)
        table.learn(
            *turns,
            count=len(turns[0]),
            kl=setting.kl,
            entropy=0.0,
            lr=falling(setting.lr, FLOOR * setting.lr, step=step, steps=steps),
        )
        policy = tree.probabilities(table.logits)
        yield policy


def learn(game: str, method: str, setting: Setting, *, seed: int, steps: int) -> list[float]:
    """Return the exploitability at `CHECKS` steps of a run, the last one included."""
    found = enumerate(policies(game, method, setting, seed=seed, steps=steps), 1)
    return [
        tree_of(game).exploitability(policy)
        for step, policy in found
        if step * CHECKS // steps > (step - 1) * CHECKS // steps
    ]


@cache
def tree_of(game: str) -> PokerTree:
    """Return the tree of a game, which is built once."""
    return PokerTree(game)


def tuned(game: str, method: str, settings: Sequence[Setting], *, steps: int) -> Setting:
    """Return the setting with the lowest mean exploitability in the seeds of the tuning."""
    if len(settings) == 1:
        return settings[0]

    def score(setting: Setting) -> float:
        runs = [learn(game, method, setting, seed=seed, steps=steps) for seed in TUNING]
        return float(np.mean(runs))

    return min(settings, key=score)


def gains(
    rows: Sequence[Row], game: str, method: str, *, base: str = "rloo", final: bool = False
) -> list[float]:
    """Return, for each seed of both, the exploitability of `base` minus that of a method.

    It is the mean over the measurements of a run, or with `final` the last one.
    """

    def values(name: str) -> dict[int, float]:
        runs = [each for each in rows if each["game"] == game and each["credit"] == name]
        return {
            each["seed"]: each["values"][-1] if final else float(np.mean(each["values"]))
            for each in runs
        }

    own, reference = values(method), values(base)
    return [reference[seed] - own[seed] for seed in own if seed in reference]


def compare(rows: Sequence[Row], base: str) -> None:
    """Print the gains of all methods over another method than `rloo`."""
    for game in dict.fromkeys(each["game"] for each in rows):
        print(f"\n{game}, minus {base}\n\n{table_head(['credit', 'gain', 'gain of final'])}")
        for name in dict.fromkeys(each["credit"] for each in rows if each["game"] == game):
            found = [gains(rows, game, name, base=base, final=final) for final in (False, True)]
            print(table_row([f"`{name}`", *(mean(each, digits=3) for each in found)]))


def table(game: str, options: argparse.Namespace) -> list[Row]:
    """Print and return the runs of each method in a game."""
    print(f"\n{game}\n")
    print(table_head(["credit", "rate", "KL", "final", "mean", "gain", "seconds"]), flush=True)
    settings = [Setting(lr=lr, kl=kl) for lr, kl in product(options.rates, options.kl)]
    rows: list[Row] = []
    for name in options.methods:
        setting = tuned(game, name, settings, steps=options.steps)
        begun = time.process_time()
        curves = [
            learn(game, name, setting, seed=seed, steps=options.steps)
            for seed in range(options.seeds)
        ]
        seconds = (time.process_time() - begun) / options.seeds
        rows += [
            {"game": game, "credit": name, "seed": seed, "lr": setting.lr, "kl": setting.kl,
             "values": curve}
            for seed, curve in enumerate(curves)
        ]  # fmt: skip
        cells = [
            mean([curve[-1] for curve in curves], digits=3),
            mean([float(np.mean(curve)) for curve in curves], digits=3),
            mean(gains(rows, game, name), digits=3),
        ]
        chosen = [f"`{name}`", f"{setting.lr:g}", f"{setting.kl:g}"]
        print(table_row([*chosen, *cells, f"{seconds:.0f}"]), flush=True)
    return rows


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write a picture of the gains in each game; return the paths of the SVG files."""
    paths = []
    for game in dict.fromkeys(each["game"] for each in rows):
        names = dict.fromkeys(each["credit"] for each in rows if each["game"] == game)
        paths.append(
            write_picture(
                folder / f"bakeoff_{game}.svg",
                title=f"{game.capitalize()} poker",
                estimates=[over_runs(name, gains(rows, game, name)) for name in names],
                label="mean exploitability of rloo minus that of the method, chips a hand",
            )
        )
    return paths


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each game, and write all numbers if a file is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--games", nargs="+", choices=list(GAMES), default=list(GAMES))
    parser.add_argument(
        "--methods",
        nargs="*",
        choices=METHODS,
        default=METHODS,
        help="rloo always runs first",
    )
    parser.add_argument("--seeds", type=int, default=5, help="runs of each method")
    parser.add_argument("--steps", type=int, default=200, help="steps of a run")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="learning rates")
    parser.add_argument("--kl", type=float, nargs="+", default=WEIGHTS, help="weights of the KL")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="draw the numbers of --json")
    parser.add_argument("--base", choices=METHODS, help="gains over this method, from --json")
    options = parser.parse_args(arguments)
    if options.draw or options.base:
        if not options.json:
            parser.error("--draw and --base need --json FILE, as an earlier call wrote it")
        kept = json.loads(options.json.read_text())
        if options.base:
            compare(kept, options.base)
        if options.draw:
            print(*draw(kept, options.draw), sep="\n")
        return
    options.methods = list(dict.fromkeys(["rloo", *options.methods]))  # gains are relative to it
    rows: list[Row] = []
    for game in options.games:
        rows += table(game, options)
        if options.json:
            options.json.write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
