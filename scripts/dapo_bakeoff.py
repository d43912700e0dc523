"""Compares the parts of DAPO (2503.14476) in a game of words with a limit on length.

The game is that of `word_game.py`: two letters, and at most eight tokens with the one that ends a
word. The first policy seldom ends a word, so that about half of the words are cut off. The game has
two lists of targets: `short`, which end at least two tokens below the limit, and `long`, two of
which end within these two tokens, where DAPO's penalty lowers their pay too.

Samplers, shaping, credit (`grpo`) and objectives are those of the library. A step plays 48 words,
12 of each of four tasks, and makes one step of Adam. Runs have the same number of words and not of
steps, because `dynamic` plays more words in a step. The learning rate of each method is the one of
three with the best area in three seeds that are not reported.

`penalty`: treatments of words that are cut off, or nearly, with the objective of DAPO.

- as paid: nothing is done; such a word is paid for the letters with which it begins;
- paid 0: a word that is cut off is paid 0;
- left out: words that are cut off are not learned from, but count in the mean of their group. The
  library has no such option; this script drops the samples (DAPO's overlong filtering);
- buffer 1, buffer 2: `selfplay.credit.shaping.Overlong`, with a penalty of 1 for words of eight
  tokens, and with buffer 2 of 0.5 for words of seven;
- buffer 2, half: the same with a weight of 0.5;
- paid 0, buffer 2: both, in this order.

`parts`: GRPO with single parts of DAPO, with parts added one after another, and with all of them.
The words are those of the policy two steps before, so that ratios can reach their bounds.

- final: exact expected return at the end, without penalties;
- area: its mean over the words of the budget, the area under the learning curve;
- gain: the area minus that of the first method with the same seed;
- right: exact fraction of words that are their task's target, at the end; `more right` is the
  difference to the first method with the same seed;
- cut off: exact fraction of the words that are cut off, mean over the words of the budget, and at
  the end;
- length: exact mean number of tokens of a word at the end.

Means have Student's interval over seeds. `table` prints the tables again, and `draw` makes
pictures, of the numbers that `--json` kept.

Usage: python scripts/dapo_bakeoff.py penalty [--targets short long] [--methods ...] [--seeds 12]
           [--budget 2880] [--rates 0.1 0.3 1] [--json FILE]
       python scripts/dapo_bakeoff.py parts ...
       python scripts/dapo_bakeoff.py table --json FILE
       python scripts/dapo_bakeoff.py draw --json FILE [--folder FOLDER]
"""

import argparse
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bakeoff_learning import (
    Ascent,
    Curve,
    add_run_options,
    area_by_cost,
    best_rate,
    kept_rows,
    last_within,
)
from bakeoff_table import mean, table_head, table_row, write_picture
from torch import Tensor
from word_game import Leaves, WordGame, gradient

from selfplay.credit.grpo import GRPO
from selfplay.credit.shaping import EachTurn, Overlong, Shaping
from selfplay.curriculum.fixed import FixedTasks
from selfplay.errors import NothingToLearn
from selfplay.learner.objective import PolicyLoss
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.sampler.dynamic import Dynamic
from selfplay.sampler.independent import Independent
from selfplay.study.figure_files import printed
from selfplay.study.plots import CurvePlot
from selfplay.study.stats.bootstrap import over_runs
from selfplay.types import Episode, Status, StopReason, Task, Turn

LIMIT = 8
"""Largest number of tokens of a word."""
TARGETS: Mapping[str, Sequence[tuple[int, ...]]] = {
    "short": ((1,), (0, 1, 1), (1, 0, 0, 1), (0, 0, 1, 0, 1)),
    "long": ((1,), (0, 1, 1), (1, 0, 0, 1, 1, 0), (0, 0, 1, 0, 1, 1, 0)),
}
"""Lists of targets, of up to 6 and of up to 8 tokens with the one that ends a word."""
RARE = 2.0
"""Nats by which the logits of the end token are lower at the start."""
GROUP = 12
"""Words of a task in a group."""
Row = dict[str, Any]


class CutOffPaidNothing(EachTurn):
    """A term that pays 0 for a word that was cut off."""

    def reward(self, turn: Turn) -> float:
        """Return the reward, or 0."""
        return 0.0 if turn.stop_reason is StopReason.LENGTH else turn.reward


@dataclass(frozen=True, kw_only=True)
class Method:
    """The parts of DAPO that a method has, and its treatment of long words."""

    higher: bool = True
    """True for an upper bound of the ratio of 1.28, False for 1.2."""
    token_mean: bool = True
    """True for the mean over all tokens, False for the mean over words of means over tokens."""
    dynamic: bool = False
    """True to replace groups in which all words have the same pay."""
    shaping: Mapping[str, EachTurn] = field(default_factory=dict)
    """Terms that change the rewards."""
    left_out: bool = False
    """True to drop the samples of words that are cut off."""

    def objective(self) -> PolicyLoss:
        """Return the objective."""
        return PolicyLoss(
            ratio="token",
            clip="ppo",
            low=0.2,
            high=0.28 if self.higher else 0.2,
            aggregate="token_mean" if self.token_mean else "sequence_mean",
        )

    def sampler(self) -> Independent | Dynamic:
        """Return the sampler."""
        return Dynamic(group_size=GROUP) if self.dynamic else Independent(group_size=GROUP)


SOFT = {"overlong": Overlong(limit=LIMIT, buffer=2)}
PENALTY: Mapping[str, Method] = {
    "as paid": Method(),
    "paid 0": Method(shaping={"cut_off": CutOffPaidNothing()}),
    "left out": Method(left_out=True),
    "buffer 1": Method(shaping={"overlong": Overlong(limit=LIMIT, buffer=1)}),
    "buffer 2": Method(shaping=SOFT),
    "buffer 2, half": Method(shaping={"overlong": Overlong(limit=LIMIT, buffer=2, weight=0.5)}),
    "paid 0, buffer 2": Method(shaping={"cut_off": CutOffPaidNothing(), **SOFT}),
}
"""Treatments of words that are cut off, or nearly."""
PARTS: Mapping[str, Method] = {
    "grpo": Method(higher=False, token_mean=False),
    "clip higher": Method(token_mean=False),
    "dynamic": Method(higher=False, token_mean=False, dynamic=True),
    "token mean": Method(higher=False),
    "overlong": Method(higher=False, token_mean=False, shaping=SOFT),
    "clip higher, dynamic": Method(token_mean=False, dynamic=True),
    "clip higher, dynamic, token mean": Method(dynamic=True),
    "all four (dapo)": Method(dynamic=True, shaping=SOFT),
}
"""GRPO, each part of DAPO alone, and the parts one after another."""
LAGS = {"penalty": 0, "parts": 2}
"""Age of the weights that draw words, in steps."""
METHODS = {"penalty": PENALTY, "parts": PARTS}


class Writer:
    """A player of episodes of one word for samplers, with the weights of `lag` steps ago."""

    def __init__(self, game: WordGame, logits: Tensor, rng: np.random.Generator, lag: int) -> None:
        """Args:
        game: The game.
        logits: The first weights.
        rng: Source of all draws.
        lag: Age of the weights that draw words, in steps.
        """
        self.game, self.rng = game, rng
        self.weights = deque([logits], maxlen=lag + 1)
        self.words = 0

    def __call__(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        """Return an episode for each spec."""
        self.words += len(specs)
        tasks = [int(spec.task.id) for spec in specs]
        return [
            Episode(
                arena="words", task=spec.task, seed=spec.seed, turns=(turn,), status=Status.FINISHED
            )
            for spec, turn in zip(
                specs, self.game.sampled(self.weights[0], tasks, self.rng), strict=True
            )
        ]


class Facts:
    """Exact return, fraction of words that are cut off, fraction of right words, and mean length of
    a policy."""

    def __init__(self, leaves: Leaves) -> None:
        """`leaves`: all words of the game."""
        self.leaves = leaves
        right = (leaves.pay == 1.0).to(torch.float64)
        self.of_words = torch.stack([leaves.pay, leaves.cut, right, leaves.mask.sum(1)], dim=1)

    def of(self, logits: Tensor) -> list[float]:
        """Return the four values of a policy."""
        found: list[float] = (self.leaves.chances(logits) @ self.of_words).tolist()
        return found


def learn(
    leaves: Leaves, method: Method, seed: int, *, lag: int, budget: int, rate: float
) -> list[tuple[int, list[float]]]:
    """Return the words played and the `Facts`, before the first step and after each step."""
    game, facts = leaves.game, Facts(leaves)
    start = np.random.default_rng([seed, 4]).normal(size=game.shape)
    start[:, game.letters] -= RARE
    logits = torch.from_numpy(start)
    writer = Writer(game, logits, np.random.default_rng([seed, 3]), lag)
    tasks = [Task(id=str(number)) for number in range(len(game.targets))]
    curriculum = FixedTasks(tasks=tasks, batch=len(tasks), seed=seed)
    objective, sampler, shaping = method.objective(), method.sampler(), Shaping(method.shaping)
    credit, ascent, found, step = GRPO(), Ascent(rate), [(0, facts.of(logits))], 0
    while writer.words < budget:
        step += 1
        try:
            groups = sampler.sample(curriculum, writer, step=step, seed=seed)
        except NothingToLearn:  # without a signal, the words count and nothing is learned
            writer.weights.append(logits)
            continue
        given = credit.assign(shaping.apply(groups)[0])
        if method.left_out:
            given = [each for each in given if each.turn.stop_reason is not StopReason.LENGTH]
        if given:
            direction, _ = gradient(game, objective, logits, given)
            logits = logits + torch.from_numpy(ascent.step(direction.numpy()))
        writer.weights.append(logits)
        found.append((writer.words, facts.of(logits)))
    return found


def curve(run: Sequence[tuple[int, Sequence[float]]], fact: int) -> Curve:
    """Return the curve of one of the `Facts` of a run."""
    return [(words, facts[fact]) for words, facts in run]


def rows_of(
    what: str, targets: str, name: str, leaves: Leaves, options: argparse.Namespace
) -> list[Row]:
    """Return the runs of a method, a row for each seed, with the rate that the tuning chose."""
    method, budget = METHODS[what][name], options.budget

    def run(rate: float, seed: int) -> list[tuple[int, list[float]]]:
        return learn(leaves, method, seed, lag=LAGS[what], budget=budget, rate=rate)

    rate = best_rate(
        options.rates, lambda rate, seed: area_by_cost(curve(run(rate, seed), 0), budget)
    )
    return [
        {
            "what": what,
            "targets": targets,
            "method": name,
            "seed": seed,
            "rate": rate,
            "budget": budget,
            "run": run(rate, seed),
        }
        for seed in range(options.seeds)
    ]


def areas(rows: Sequence[Row], fact: int = 0) -> list[float]:
    """Return the mean over the budget of one of the `Facts`, for each seed."""
    return [area_by_cost(curve(row["run"], fact), row["budget"]) for row in rows]


def lasts(rows: Sequence[Row], fact: int) -> list[float]:
    """Return one of the `Facts` after the last step within the budget, for each seed."""
    return [last_within(curve(row["run"], fact), row["budget"]) for row in rows]


def differences(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the differences, by seed."""
    return [a - b for a, b in zip(values, others, strict=True)]


def print_head(what: str, targets: str) -> None:
    """Print the head of the table of a comparison and a list of targets."""
    print(f"\n{what}, {targets} targets\n")
    head = ["method", "rate", "final", "area", "gain", "right", "more right"]
    print(table_head([*head, "cut off", "cut off at the end", "length"]))


def print_row(rows: Sequence[Row], first: Sequence[Row]) -> None:
    """Print the line of a method; `first` are the rows of the first one."""
    right = lasts(rows, 2)
    cells = [
        mean(lasts(rows, 0), digits=3),
        mean(areas(rows), digits=3),
        mean(differences(areas(rows), areas(first)), digits=3),
        mean(right, digits=3),
        mean(differences(right, lasts(first, 2)), digits=3),
        mean(areas(rows, 1), digits=3),
        mean(lasts(rows, 1), digits=3),
        mean(lasts(rows, 3), digits=2),
    ]
    print(table_row([f"`{rows[0]['method']}`", f"{rows[0]['rate']:g}", *cells]), flush=True)


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write pictures of the gains, and for `penalty` of the words that are cut off; return the
    paths of the SVG files."""
    paths = []
    for what, targets in dict.fromkeys((row["what"], row["targets"]) for row in rows):
        here = [row for row in rows if (row["what"], row["targets"]) == (what, targets)]
        names = list(dict.fromkeys(row["method"] for row in here))
        of = {name: [row for row in here if row["method"] == name] for name in names}
        title = f"{what}, {targets} targets"
        paths.append(
            write_picture(
                folder / f"bakeoff_dapo_{what}_{targets}.svg",
                title=title,
                estimates=[
                    over_runs(name, differences(areas(of[name]), areas(of[names[0]])))
                    for name in names
                ],
                label=f"area minus the area of {names[0]}",
            )
        )
        if what == "penalty":
            paths.append(draw_cut(of, title, folder / f"bakeoff_dapo_cut_{targets}.svg"))
    return paths


def draw_cut(rows: Mapping[str, Sequence[Row]], title: str, path: Path) -> Path:
    """Write a picture of the fraction of words that are cut off, by words played."""
    x = [words for words, _ in next(iter(rows.values()))[0]["run"]]
    means = {
        name: [float(np.mean(each)) for each in zip(*(
            [value for _, value in curve(row["run"], 1)] for row in of), strict=True)]
        for name, of in rows.items()
    }  # fmt: skip
    plot = CurvePlot(
        title=title,
        x=x,
        series=means,
        bands={},
        label="words that are cut off",
        xlabel="words played",
        percent=True,
    )
    path.write_bytes(dict(printed(plot))["svg"])
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each list of targets, and write all numbers if a file is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=(*METHODS, "table", "draw"))
    parser.add_argument(
        "--targets",
        nargs="+",
        choices=TARGETS,
        help="lists of targets; default: both for penalty, short for parts",
    )
    parser.add_argument("--methods", nargs="+", help="methods of the table; default: all")
    add_run_options(parser, seeds=12, unit="words")
    options = parser.parse_args(arguments)
    if options.what in ("table", "draw"):
        kept = kept_rows(parser, options)
        if options.what == "draw":
            print(*draw(kept, options.folder), sep="\n")
            return
        for what, targets in dict.fromkeys((row["what"], row["targets"]) for row in kept):
            here = [row for row in kept if (row["what"], row["targets"]) == (what, targets)]
            print_head(what, targets)
            for name in dict.fromkeys(row["method"] for row in here):
                own = [row for row in here if row["method"] == name]
                print_row(own, [row for row in here if row["method"] == here[0]["method"]])
        return
    known = METHODS[options.what]
    names = options.methods or list(known)
    if unknown := set(names) - set(known):
        parser.error(f"{options.what} has no methods {sorted(unknown)}; {list(known)}")
    torch.set_num_threads(1)
    every: list[Row] = []
    for targets in options.targets or (TARGETS if options.what == "penalty" else ("short",)):
        leaves = Leaves(WordGame(letters=2, longest=LIMIT, targets=TARGETS[targets]))
        print_head(options.what, targets)
        first: list[Row] = []
        for name in names:
            rows = rows_of(options.what, targets, name, leaves, options)
            first = first or rows
            every += rows
            print_row(rows, first)
        start = np.mean([row["run"][0][1] for row in first], axis=0)
        print(
            f"\nat the start: return {start[0]:.3f}, cut off {start[1]:.3f}, length {start[3]:.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps(every) + "\n")


if __name__ == "__main__":
    main()
