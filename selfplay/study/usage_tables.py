"""Tables of recorded usage: a row for each situation that was seen often enough.

A situation is one text that an agent saw, its view. Situations without a row are counted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from selfplay.errors import ConfigError
from selfplay.run.formatting import counted
from selfplay.study.measure import Option
from selfplay.study.recorded_usage import AgentUsage, label, shortened
from selfplay.study.result import Cell, Table
from selfplay.study.stats.usage import SPEECH, WHOLE, Kind, UsageTable
from selfplay.study.usage_chances import INVALID, ViewChances

FEWEST_USES = 20
"""Smallest number of uses of a situation with a row, without the option `--least`."""
MOST_VIEWS = 40
"""Largest number of situations in the tables of one agent, kind and step."""
MOST_ACTIONS = 12
"""Largest number of actions in a table of the result."""
MOST_PHASES = 6
"""Largest number of tables of one agent, kind and step; with more phases there is one table."""
ON_TERMINAL = 7
"""Largest number of columns of a table of one step on a terminal: view, uses and five actions."""
LEAST = Option(
    name="least",
    type=int,
    default=FEWEST_USES,
    metavar="N",
    help=f"smallest number of uses of a situation with a row (default: {FEWEST_USES})",
)


@dataclass(frozen=True, kw_only=True)
class ShownViews:
    """Situations of one table with a row, and counts of the others. `shown_views` makes it."""

    views: Sequence[str]
    """Situations with a row, sorted by their text."""
    uses: int
    """Number of uses of the situations with a row."""
    rare: Sequence[int]
    """Number of uses of each situation that was seen too rarely."""
    beyond: Sequence[int]
    """Number of uses of each frequent situation after the `MOST_VIEWS` most frequent ones."""


def check_least(least: int) -> None:
    """Raise ConfigError if a situation without a use would have a row."""
    if least < 1:
        raise ConfigError(f"--least {least}: at least 1 is needed")


def shown_views(table: UsageTable, least: int) -> ShownViews:
    """Choose the situations with a row: the most frequent ones, each with `least` uses or more."""
    counts = Counter[str]()
    for (view, _), lines in table.lines.items():
        counts[view] += len(lines)
    ordered = counts.most_common()
    frequent = [(view, uses) for view, uses in ordered if uses >= least]
    shown = frequent[:MOST_VIEWS]
    return ShownViews(
        views=sorted(view for view, _ in shown),
        uses=sum(uses for _, uses in shown),
        rare=[uses for _, uses in ordered if uses < least],
        beyond=[uses for _, uses in frequent[MOST_VIEWS:]],
    )


def tables_of(
    usage: AgentUsage, step: int, whole: UsageTable | None, title: str, *, least: int
) -> list[Table]:
    """Return the tables of one step: a row per situation, the probability of each action.

    Each phase of a game has a table of its own, see `phases`. A table has only the actions that
    occurred in its rows. A dash is a move that is not legal in the situation.

    Args:
        usage: Usage of one agent and kind.
        step: Chosen step.
        whole: Table of the texts if `usage` is about their words.
        title: Title of the table; several tables have their moves in the title too.
        least: Smallest number of uses of a situation with a row.
    """
    table = usage.chosen[step]
    chances = ViewChances(table, whole)
    groups = phases(table, shown_views(whole or table, least).views)
    tables = []
    for views in groups:
        used = _used(table, views)
        actions = [action for action, _ in used.most_common() if action is not None]
        kept = actions[:MOST_ACTIONS]
        if usage.kind not in SPEECH:
            kept = _in_legal_order(table, views, kept)
        names = [shortened(action) for action in kept]
        shown: list[str | None] = [*kept, *([None] if used[None] else [])]
        more = f"; moves {', '.join(names)}" if len(groups) > 1 and names else ""
        if len(actions) > len(kept):
            more += f"; the {len(kept)} most frequent of {len(actions)} actions"
        tables.append(
            Table(
                title=f"{title}{more}",
                columns=["view", "uses", *names, *([INVALID] if None in shown else [])],
                rows=[_row(usage.kind, table, chances, view, shown) for view in views],
                terminal=ON_TERMINAL,
            )
        )
    return tables


def _row(
    kind: Kind, table: UsageTable, chances: ViewChances, view: str, actions: Sequence[str | None]
) -> list[Cell]:
    cells: list[Cell] = [label(kind, view), chances.uses(view)]
    legal = table.legal.get(view, ()) if kind not in SPEECH else ()
    for action in actions:
        impossible = legal and action is not None and action not in legal
        if impossible and (view, action) not in table.lines:
            cells.append(None)
            continue
        found = chances.of(view, action)
        cells.append(f"{100 * found.value:.0f}% ({100 * found.low:.0f} to {100 * found.high:.0f})")
    return cells


def phases(table: UsageTable, views: Sequence[str]) -> list[list[str]]:
    """Return the views in groups; views of different groups have no legal move in common.

    More than `MOST_PHASES` groups become a single one.
    """
    groups: list[tuple[set[str], list[str]]] = []
    for view in views:
        moves, joined, apart = set(table.legal.get(view, ())), [view], []
        for others, grouped in groups:
            if others & moves or (not others and not moves):
                moves |= others
                joined = [*grouped, *joined]
            else:
                apart.append((others, grouped))
        groups = [*apart, (moves, joined)]
    if len(groups) > MOST_PHASES:
        return [sorted(views)]
    return sorted(sorted(grouped) for _, grouped in groups)


def _used(table: UsageTable, views: Sequence[str]) -> Counter[str | None]:
    """Return the number of uses of each action in these views."""
    known, found = set(views), Counter[str | None]()
    for (view, action), lines in table.lines.items():
        if view in known:
            found[action] += len(lines)
    return found


def _in_legal_order(table: UsageTable, views: Sequence[str], actions: Sequence[str]) -> list[str]:
    """Return the actions in the order of the legal moves; other actions last."""
    legal = list(dict.fromkeys(move for view in views for move in table.legal.get(view, ())))
    order = {move: place for place, move in enumerate(legal)}
    return sorted(actions, key=lambda action: order.get(action, len(order)))


def left_out(usages: Iterable[AgentUsage], *, least: int) -> tuple[list[Table], list[str]]:
    """Return a table and a note about situations without a row; two empty lists if there are none.

    Words have the situations of their texts, so tables of words are not counted again.
    """
    found = {
        f"{usage.agent}, {usage.kind}, step {step}": shown_views(table, least)
        for usage in usages
        if usage.kind not in WHOLE
        for step, table in usage.chosen.items()
    }
    rare = [uses for each in found.values() for uses in each.rare]
    beyond = [uses for each in found.values() for uses in each.beyond]
    if not rare and not beyond:
        return [], []
    table = Table(
        title=f"Situations without a row: seen fewer than {least} times in the step, or after the "
        f"{MOST_VIEWS} most frequent ones",
        columns=[
            "",
            *("with a row", "uses with a row"),
            *("too rare", "uses too rare"),
            *("after the most frequent", "uses after them"),
        ],
        rows=[
            [
                name,
                *(len(each.views), each.uses),
                *(len(each.rare), sum(each.rare)),
                *(len(each.beyond), sum(each.beyond)),
            ]
            for name, each in found.items()
        ],
    )
    return [table], [_note(found, rare, beyond, least)]


def _note(
    found: Mapping[str, ShownViews], rare: Sequence[int], beyond: Sequence[int], least: int
) -> str:
    if not any(each.views for each in found.values()):
        most = max(rare)
        return (
            f"no situation was seen at least {least} times in a step, so no table has "
            f"probabilities ({_situations(rare)}); the most frequent situation was seen "
            f"{counted(most, 'time')}: measure with --least {most} or less, or record more episodes"
        )
    every = sum(len(each.views) + len(each.rare) + len(each.beyond) for each in found.values())
    parts = []
    if rare:
        changes = "--least N changes this number"
        parts.append(f"{_situations(rare)}, seen fewer than {least} times in a step ({changes})")
    if beyond:
        parts.append(
            f"{_situations(beyond)}, after the {MOST_VIEWS} most frequent ones of an agent and step"
        )
    which = "; ".join(parts)
    return f"left out of the tables, of {every:,} situations of all agents and steps: {which}"


def _situations(uses: Sequence[int]) -> str:
    return f"{counted(len(uses), 'situation')} with {counted(sum(uses), 'use')}"
