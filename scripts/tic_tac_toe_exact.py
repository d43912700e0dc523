"""Prints exact results of a run's policy at tic-tac-toe, without sampled games.

The probabilities of all moves are read from the model at each of the 4,520 boards with a player to
move, at the run's own temperature or at those of --temperature. From these follow the chances to
win, draw and lose against random play and against minimax, which plays one of its optimal moves
uniformly at random, and the exploitability: what an opponent that knows the policy wins, in the
mean of both seats. A text that is not a legal move loses, so a run with another `arena.illegal` is
refused.

Runs may be sets, NAME=RUN with wildcards, as in `selfplay study compare`. Its means, intervals and
differences paired by seed are then the last lines. RUN@STEP and RUN@start (step 0) name a
checkpoint; --step is that of the other runs, by default the newest.

Usage: python scripts/tic_tac_toe_exact.py RUN [RUN ...] [--step N] [--temperature 1 0]
       python scripts/tic_tac_toe_exact.py 'none=runs/none/0*' 'pfsp=runs/pfsp/0*'
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from arenas.games.tic_tac_toe import (
    FREE,
    MARKS,
    TicTacToe,
    free,
    marked,
    optimal,
    to_move,
    winner,
)
from selfplay.arena import Arena
from selfplay.types import InformationSet, Observation

if TYPE_CHECKING:
    from selfplay.study.players import Reference
    from selfplay.study.result import Result

Policy = Mapping[str, Mapping[int, float]]
"""Board to the probability of each free square; an illegal move has the rest."""
Outcome = tuple[float, float, float]
"""Chances to win, to draw and to lose."""
Opponent = Callable[[str], list[int]]
"""Board to the squares of which the opponent takes one, uniformly at random."""


def boards() -> Iterator[str]:
    """Yield every board that can be reached and has a player to move, once."""
    start = FREE * 9
    seen, waiting = {start}, [start]
    while waiting:
        board = waiting.pop()
        yield board
        for square in free(board):
            after = marked(board, square)
            if not winner(after) and FREE in after and after not in seen:
                seen.add(after)
                waiting.append(after)


def outcome(policy: Policy, mark: str, opponent: Opponent) -> Outcome:
    """Return the outcome of the policy as X or O against an opponent that chooses at random."""

    @cache
    def chances(board: str) -> Outcome:
        won = winner(board)
        if won or FREE not in board:
            return float(won == mark), float(not won), float(bool(won) and won != mark)
        if to_move(board) == mark:
            moves = dict(policy[board])
        else:
            squares = opponent(board)
            moves = dict.fromkeys(squares, 1 / len(squares))
        parts = [(chance, chances(marked(board, square))) for square, chance in moves.items()]
        win, draw = (sum(chance * part[place] for chance, part in parts) for place in (0, 1))
        return win, draw, 1.0 - win - draw

    return chances(FREE * 9)


def best_response(policy: Policy, mark: str) -> float:
    """Return the largest expected pay of an opponent of the policy that plays X or O."""

    @cache
    def pay(board: str) -> float:
        won = winner(board)
        if won or FREE not in board:
            return 0.0 if not won else -1.0 if won == mark else 1.0
        if to_move(board) != mark:
            return max(pay(marked(board, square)) for square in free(board))
        moves = policy[board]
        illegal = 1.0 - sum(moves.values())
        return illegal + sum(chance * pay(marked(board, at)) for at, chance in moves.items())

    return pay(FREE * 9)


@dataclass(frozen=True, kw_only=True)
class Exact:
    """Exact results of a policy."""

    outcomes: Mapping[tuple[str, str], Outcome]
    """(opponent, mark of the policy) to the outcome."""
    exploitability: float
    """Pay of a best response, in the mean of both seats."""
    illegal: float
    """Mean probability of an illegal move over all boards."""


def measured(policy: Policy) -> Exact:
    """Return the exact results of a policy."""
    opponents: dict[str, Opponent] = {"random": free, "minimax": optimal}
    return Exact(
        outcomes={
            (name, mark): outcome(policy, mark, opponent)
            for name, opponent in opponents.items()
            for mark in MARKS
        },
        exploitability=sum(best_response(policy, mark) for mark in MARKS) / 2,
        illegal=1.0 - sum(sum(moves.values()) for moves in policy.values()) / len(policy),
    )


def information_sets(arena: TicTacToe) -> list[InformationSet]:
    """Return a set for each board, with the board as its key."""
    found = []
    for board in boards():
        legal = [str(square + 1) for square in free(board)]
        mark = to_move(board)
        found.append(
            InformationSet(
                key=board,
                agent=arena.possible_agents[MARKS.index(mark)],
                observation=Observation(
                    text=board,
                    fields={"board": board, "mark": mark, "legal": legal, "refused": ""},
                ),
                actions={move: int(move) - 1 for move in legal},
            )
        )
    return found


def measurable(arena: Arena, folder: Path) -> TicTacToe:
    """Return the arena of a run; raise SystemExit if it is not a game that this script measures."""
    if not isinstance(arena, TicTacToe):
        raise SystemExit(f"{folder}: its arena is {arena.name}, not tic-tac-toe")
    if arena.illegal != "lose":
        raise SystemExit(
            f"{folder}: arena.illegal is {arena.illegal}, but here an illegal move loses; measure "
            "a run with arena.illegal=lose"
        )
    return arena


def policies_of(
    folder: Path, *, step: int | None, temperatures: Sequence[float | None]
) -> tuple[int, list[Policy]]:
    """Return the step of a run's checkpoint, and its policy at each temperature.

    The checkpoint is the newest, or that of `step`; None is the run's own temperature.
    """
    from selfplay.config.compose import with_local_runtime
    from selfplay.experiment.experiment import Experiment  # loads torch
    from selfplay.run.directory import Run
    from selfplay.study.players import places
    from selfplay.study.policy_probs import read

    place = places(folder, step=step, every=False)[-1]
    experiment = Experiment(with_local_runtime(Run.open(folder).config()))
    experiment.load(place, learning=False)
    policies: list[Policy] = []
    try:
        rollout = experiment.players.rollout
        arena = measurable(rollout.arena(), folder)
        models = {name: each.model for name, each in experiment.policies.items()}
        for temperature in temperatures:
            seats = dict(rollout.agent_specs)
            if temperature is not None:
                seats = {
                    role: replace(seat, temperature=temperature) for role, seat in seats.items()
                }
            policies.append(
                {
                    each.where.key: {each.where.actions[at]: p for at, p in each.mass.items()}
                    for each in read(information_sets(arena), agent_specs=seats, models=models)
                }
            )
    finally:
        experiment.close()
    return int(place.name), policies


def result_of(
    reference: "Reference", *, step: int | None, temperatures: Sequence[float | None]
) -> "Result":
    """Print the results of a run; return those that `study compare` compares over sets of runs.

    The checkpoint is that of the reference, which is step 0 for RUN@start; a reference without a
    step has the checkpoint of `step`, or the newest if that is None.
    """
    from selfplay.study.result import Result
    from selfplay.study.stats.bootstrap import Estimate

    numbers: dict[str, float] = {}
    folder = reference.run
    if reference.start:
        step = 0
    elif reference.step is not None:
        step = reference.step
    number, policies = policies_of(folder, step=step, temperatures=temperatures)
    for temperature, policy in zip(temperatures, policies, strict=True):
        found = measured(policy)
        at = "" if temperature is None else f" temperature {temperature:g}"
        print(
            f"{folder} step {number}{at}: exploitability {found.exploitability:.3f}, "
            f"illegal {found.illegal:.4f} of a move"
        )
        numbers[f"exploitability{at}"] = found.exploitability
        for (name, mark), (won, drawn, lost) in found.outcomes.items():
            print(f"  {mark} against {name:7} {won:.3f} won {drawn:.3f} drawn {lost:.3f} lost")
            numbers[f"{mark} against {name}, drawn{at}"] = drawn
    return Result(
        measure="exact",
        title=f"Exact results of {folder}",
        definition="Exploitability, and chances to draw against each opponent.",
        estimates=[
            Estimate(name=name, value=value, direction="exact") for name, value in numbers.items()
        ],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the results of each run, and the comparison of sets."""
    from selfplay.study.measures import compare
    from selfplay.study.players import Reference

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", help="RUN, RUN@STEP or NAME=RUN")
    parser.add_argument("--step", type=int, help="checkpoint of runs without @STEP")
    parser.add_argument("--temperature", type=float, nargs="+", default=[None])
    options = parser.parse_args(arguments)
    measure = partial(result_of, step=options.step, temperatures=options.temperature)
    if any("=" in text for text in options.runs):
        sets = compare.parse_sets(options.runs)
        results = compare.measure_all(sets, measure)
        print(f"\n{compare.study('exact', results).to_text()}")
        return
    for text in options.runs:
        measure(Reference.parse(text))


if __name__ == "__main__":
    main()
