"""Behaviour of a run: the probability of each legal move by situation, over the recorded steps.

**Definition.** For each seat, the probability of each move, given the view of the agent, in games
whose observations list the legal moves. In repeated games of two players who move at once, also the
probability of each move after the last moves of both players: the memory-one vector for any number
of moves. Illegal moves, and turns that did not parse, count as *no valid action*. In games of two
players with a constant sum that OpenSpiel solves, the result has the equilibrium too. With
`--exact`, the probabilities of legal moves are read from a checkpoint.

**Source.** Memory-one strategies: Press and Dyson 2012. CFR+: Tammelin 2014, 1407.5042.

**Estimator.** The records alone; nothing is played. Probabilities have the interval of Clopper and
Pearson at the effective number of uses, over episodes. The exact probabilities are those of
sampling (temperature, truncation), conditioned on legal moves; `elsewhere` is the probability of
any other text.

**Limits.** The records are of training, at its temperature, against the opponents of that step. A
game may have several equilibria, and only one is shown; a strategy far from it can be an
equilibrium too: `exploitability` decides. A situation that no episode reached is not in the tables,
and neither is one that was seen fewer than `--least` times in the step; a note counts the latter.
Exact probabilities need a role that takes its whole text as its move, with memory=none.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfplay.config.compose import with_local_runtime
from selfplay.credit.replay import stages_of
from selfplay.errors import ConfigError
from selfplay.role import Role
from selfplay.run.directory import Run
from selfplay.run.formatting import number
from selfplay.run.record_reader import episodes_of, recorded_steps
from selfplay.run.run_folder import POLICIES
from selfplay.study.equilibrium import Equilibrium, solve
from selfplay.study.measure import Measure, Option
from selfplay.study.measures.exploitability import known_game
from selfplay.study.measures.language import AGENT, STEP
from selfplay.study.players import places
from selfplay.study.plots import CurvePlot, Drawing, MatrixPlot
from selfplay.study.policy_probs import read
from selfplay.study.recorded_usage import (
    WORD_COLUMNS,
    AgentUsage,
    curves_of,
    pictures_of,
    recorded_usage,
    shortened,
    to_json,
    undrawn_views,
    word_rows,
)
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.usage import PLAY, dying, newest, view_of
from selfplay.study.usage_chances import ViewChances
from selfplay.study.usage_tables import (
    FEWEST_USES,
    LEAST,
    check_least,
    left_out,
    shown_views,
    tables_of,
)
from selfplay.types import InformationSet, Status, role_of

MOST_SITUATIONS = 400
"""Largest number of situations whose probabilities are read from a checkpoint."""
DRAWN = 16
"""Largest number of situations in a picture of the equilibrium."""
COMPARED = ("view", "move", "recorded", "low", "high", "equilibrium", "exact", "elsewhere")
"""Columns of the table that compares probabilities."""
_Place = tuple[str, str]
"""(agent, view) of a situation."""


@dataclass(kw_only=True)
class Solved:
    """Equilibrium and exact probabilities by situation. `study` makes it."""

    equilibrium: dict[_Place, Mapping[str, float]] = field(default_factory=dict)
    """(agent, view) to move to its probability."""
    exact: dict[_Place, list[tuple[int, Mapping[str, float], float]]] = field(default_factory=dict)
    """(agent, view) to (step, move to its probability among legal moves, probability of other
    text) of each checkpoint."""
    notes: list[str] = field(default_factory=list)


def study(
    run: Path,
    *,
    step: int | None = None,
    agent: str | None = None,
    exact: bool = False,
    every: bool = False,
    least: int = FEWEST_USES,
) -> Result:
    """Count the moves of a run's records.

    Raises ConfigError if no recorded turn lists legal moves, or if `least` is below 1.

    Args:
        run: Run folder.
        step: Step whose tables are shown; None: the first, middle and last recorded step.
        agent: The only seat; None: all.
        exact: True: read the probabilities from the newest checkpoint too.
        every: True: read the probabilities from all checkpoints.
        least: Smallest number of uses of a situation with a row.
    """
    check_least(least)
    found = recorded_usage(run, PLAY, step=step, agent=agent)
    if not found:
        raise ConfigError(
            f"behaviour: no recorded turn of {run} lists legal moves; measure a game whose views "
            "have `legal`, or selfplay study language"
        )
    solved = Solved()
    if exact or every:
        _read_exactly(run, solved, every=every)
    else:
        _solve(run, solved)
    moves = [each for each in found if each.kind == "move"]
    counts, notes = left_out(found, least=least)
    drawings, undrawn = _drawings(found, solved, least)
    return Result(
        measure="behaviour",
        title=f"Behaviour of {run.resolve().name}",
        definition="The probability of each move, given what the agent saw, from the recorded "
        "episodes; an illegal move counts as no valid action.",
        tables=[
            *(table for each in found for table in _tables(each, least)),
            *_compared(moves, solved, least),
            *counts,
        ],
        drawings=drawings,
        params={
            "run": str(run),
            "step": "first, middle, last" if step is None else step,
            "least": least,
        },
        notes=[*solved.notes, *notes, *undrawn],
        more={
            "seats": [
                {
                    **to_json(each, {}),
                    "newest": [vars(w) for w in newest(each.vocabulary, min(each.summaries))],
                    "dying": [vars(word) for word in dying(each.vocabulary, each.now)],
                }
                for each in found
            ],
            "situations": _situations(moves, solved),
        },
    )


def _drawings(
    found: Sequence[AgentUsage], solved: Solved, least: int
) -> tuple[list[Drawing], list[str]]:
    """Return the pictures, and notes about what is not drawn; entropies and matrices come first."""
    curves = [curves_of(usage, least=least) for usage in found]
    ranked: list[tuple[int, Drawing]] = []
    for usage, drawn in zip(found, curves, strict=True):
        ranked += enumerate(drawn, start=1)
        ranked.append((0, _curve(usage)))
    for usage in found:
        if usage.kind == "move" and solved.equilibrium:
            ranked += [(0, each) for each in _matrix(usage, solved, least)]
    kept, notes = pictures_of(ranked)
    return kept, [*undrawn_views(found, curves, least=least), *notes]


def _tables(usage: AgentUsage, least: int) -> list[Table]:
    what = "move" if usage.kind == "move" else "move after the last moves (own / other)"
    tables = [
        table
        for at in usage.chosen
        for table in tables_of(
            usage,
            at,
            None,
            f"{usage.agent}, step {at}: probability of each {what}, with 95 % intervals",
            least=least,
        )
    ]
    listed = newest(usage.vocabulary, min(usage.summaries))
    gone = dying(usage.vocabulary, usage.now)
    for title, words in (("newest moves", listed), ("dying moves", gone)):
        if words and usage.kind == "move":
            rows = word_rows(words, usage.now)
            tables.append(Table(title=f"{usage.agent}: {title}", columns=WORD_COLUMNS, rows=rows))
    return tables


def _compared(moves: Sequence[AgentUsage], solved: Solved, least: int) -> list[Table]:
    """Return the tables with recorded, equilibrium and exact probabilities side by side."""
    tables = []
    for usage in moves:
        at = usage.last
        table = usage.chosen[at]
        chances = ViewChances(table)
        rows: list[list[Cell]] = []
        for view in shown_views(table, least).views:
            place = (usage.agent, view)
            if place not in solved.equilibrium and place not in solved.exact:
                continue
            newest_ = solved.exact.get(place, [])[-1:]
            for move in table.legal.get(view, ()):
                recorded = chances.of(view, move)
                rows.append(
                    [
                        shortened(view),
                        move,
                        recorded.value,
                        recorded.low,
                        recorded.high,
                        solved.equilibrium.get(place, {}).get(move),
                        *([newest_[0][1].get(move)] if newest_ else [None]),
                        *([newest_[0][2]] if newest_ else [None]),
                    ]
                )
        if rows:
            steps = {found[-1][0] for found in solved.exact.values()}
            of = f"; exact at step {max(steps)}" if steps else ""
            tables.append(
                Table(
                    title=f"{usage.agent}: recorded at step {at}, and in equilibrium{of}",
                    columns=COMPARED,
                    rows=rows,
                )
            )
    return tables


def _situations(moves: Sequence[AgentUsage], solved: Solved) -> list[dict[str, Any]]:
    """Return equilibrium and exact probabilities as plain data, for the page of behaviour."""
    listed = {
        (usage.agent, view): legal
        for usage in moves
        for table in usage.chosen.values()
        for view, legal in table.legal.items()
    }
    known = dict.fromkeys([*listed, *solved.equilibrium, *solved.exact])
    return [
        {
            "agent": agent,
            "view": view,
            "legal": list(listed.get((agent, view), ())),
            "equilibrium": dict(solved.equilibrium[agent, view])
            if (agent, view) in solved.equilibrium
            else None,
            "exact": [
                {"step": step, "chances": dict(chances), "elsewhere": elsewhere}
                for step, chances, elsewhere in solved.exact.get((agent, view), ())
            ],
        }
        for agent, view in known
    ]


def _curve(usage: AgentUsage) -> CurvePlot:
    """Return the picture of entropy and information over the steps."""
    steps = list(usage.summaries)
    title = "moves" if usage.kind == "move" else "moves after the last moves"
    entropies = [each.entropy for each in usage.summaries.values()]
    information = [each.information for each in usage.summaries.values()]
    by_chance = [each.chance for each in usage.summaries.values()]
    return CurvePlot(
        title=f"{usage.agent}, {title}: entropy, and information on the situation, nats",
        x=steps,
        series={
            "entropy": entropies,
            "information, corrected": information,
            "by chance": by_chance,
        },
        bands={},
        label="nats",
    )


def _matrix(usage: AgentUsage, solved: Solved, least: int) -> list[MatrixPlot]:
    """Return the picture of the recorded probabilities next to those of the equilibrium.

    There is no picture if no solved situation was seen at least `least` times.
    """
    table = usage.chosen[usage.last]
    chances = ViewChances(table)
    common = [
        view
        for view in shown_views(table, least).views
        if view in table.legal and (usage.agent, view) in solved.equilibrium
    ]
    if not common:
        return []
    views = sorted(sorted(common, key=lambda view: -chances.uses(view))[:DRAWN])
    moves = list(dict.fromkeys(move for view in views for move in table.legal[view]))
    return [
        MatrixPlot(
            title=f"{usage.agent}, step {usage.last}: recorded, and in equilibrium",
            rows=[shortened(view) for view in views],
            columns=[f"{move}, {name}" for move in moves for name in ("recorded", "equilibrium")],
            values=[
                [
                    value
                    for move in moves
                    for value in (
                        chances.of(view, move).value if move in table.legal[view] else math.nan,
                        solved.equilibrium[usage.agent, view].get(move, math.nan),
                    )
                ]
                for view in views
            ],
        )
    ]


def _solve(run: Path, solved: Solved) -> None:
    """Add the equilibrium of the run's game, or a note that says why there is none."""
    from selfplay.rollout.setup import Components

    components = Components(with_local_runtime(Run.open(run).config()))
    try:
        _add_equilibrium(components.arena(), components.roles, solved)
    finally:
        components.close()


def _add_equilibrium(arena: Any, roles: Mapping[str, Role], solved: Solved) -> None:
    try:
        game, sets = known_game(arena)
        found: Equilibrium = solve(game, sets)
    except ConfigError as error:
        why = str(error).removeprefix("exploitability: ").partition(";")[0]
        solved.notes.append(f"no equilibrium: {why}")
        return
    for each in sets:
        view = view_of(roles[role_of(each.agent)].prompt(each.observation))
        solved.equilibrium[each.agent, view] = found.chances[each.agent, each.key]
    solved.notes.append(
        f"the equilibrium is one of possibly several; its exploitability is "
        f"{number(found.exploitability)}"
    )


def _read_exactly(run: Path, solved: Solved, *, every: bool) -> None:
    """Add the equilibrium and the probabilities under checkpoints."""
    from selfplay.experiment.experiment import Experiment  # loads torch

    checkpoints = places(run, every=every)
    config = with_local_runtime(Run.open(run).config())
    experiment = Experiment(config, unplayed=("evaluations",))
    experiment.load(checkpoints[-1], learning=False)
    try:
        agent_specs = experiment.players.rollout.agent_specs
        roles = {name: agent_spec.role for name, agent_spec in agent_specs.items()}
        arena = experiment.players.rollout.arena()
        _add_equilibrium(arena, roles, solved)
        found = _reached(run, arena, roles)
        models = {name: each.model for name, each in experiment.policies.items()}
        frozen = {
            each.agent
            for each in found.values()
            if agent_specs[role_of(each.agent)].policy not in models
        }
        for agent in sorted(frozen):
            name = agent_specs[role_of(agent)].policy
            solved.notes.append(f"{agent} is played by {name}, which has no probabilities to read")
        read_from = {place: each for place, each in found.items() if each.agent not in frozen}
        for checkpoint in checkpoints:
            for name, policy in experiment.policies.items():
                policy.load_weights(checkpoint / POLICIES / name)
            for place, choice in zip(
                read_from,
                read(list(read_from.values()), agent_specs=agent_specs, models=models),
                strict=True,
            ):
                chances = choice.chances()
                by_move = {move: chances[n] for move, n in choice.where.actions.items()}
                solved.exact.setdefault(place, []).append(
                    (int(checkpoint.name), by_move, choice.elsewhere)
                )
    finally:
        experiment.close()


def _reached(run: Path, arena: Any, roles: Mapping[str, Role]) -> dict[_Place, InformationSet]:
    """Return the situations with legal moves that the last recorded step reached.

    The arena plays the recorded actions again, because records have prompts and no observations.
    """
    found: dict[_Place, InformationSet] = {}
    for record in episodes_of(run, recorded_steps(run)[-1]):
        episode = record.episode
        if episode.status is Status.FAILED or len(found) >= MOST_SITUATIONS:
            continue
        arena.begin(episode.task, episode.seed)
        for actions in stages_of(episode):
            if set(actions) != set(arena.stage):
                break  # a truncated episode ends within a stage
            for agent in arena.stage:
                observation = arena.view(agent)
                legal = observation.fields.get("legal")
                place = (agent, view_of(roles[role_of(agent)].prompt(observation)))
                if legal and place not in found and len(found) < MOST_SITUATIONS:
                    found[place] = InformationSet(
                        key="",
                        agent=agent,
                        observation=observation,
                        actions={move: n for n, move in enumerate(legal)},
                    )
            arena.play_stage(actions)
    return found


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    return study(
        options.run,
        step=options.step,
        agent=options.agent,
        exact=options.exact,
        every=options.all,
        least=options.least,
    )


MEASURE = Measure(
    name="behaviour",
    help="records of a run: the probability of each legal move by situation, over the steps",
    target="run",
    run=from_options,
    options=(
        STEP,
        AGENT,
        LEAST,
        Option(name="exact", default=False, help="also read the newest checkpoint's probabilities"),
        Option(name="all", default=False, help="read those of all checkpoints"),
    ),
    comparable=False,
)
"""The measure `behaviour` of the command line."""
