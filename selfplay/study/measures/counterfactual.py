"""Counterfactual credit compared with learning: did training prefer the actions that helped?

**Definition.** The worth of an action is its difference reward: the return minus the return with
the default action instead. The return is the mean over agents (`--pay team`) or that of the agent
that acted (`--pay own`). An action mattered if its worth is not 0. The learned preference of
an action is the change, from the untrained to the trained policy, of its log-odds against the
default after the same prompt: [ln p1(action) - ln p1(default)] - [ln p0(action) - ln p0(default)].
Agreement is the fraction of the actions that mattered whose preference has the sign of their worth;
a preference of exactly 0 does not agree.

The preference uses log-odds against the default because the worth is relative to the default too.
The log-probability of the action alone would also fall if a third action is better than both. A
natural policy gradient moves the log-odds of two actions by the difference of their values. A plain
policy gradient moves likely actions faster, so the likelier of two bad actions may lose more.

**Source.** Difference rewards as COMA (1705.08926) reads them from a critic.

**Estimator.** In each player's own games the worth is that of the credit method `counterfactual`:
the game is replayed without the action, and everything else is as recorded. A third group consists
of single moves of the untrained player in games of the trained player, at every turn of every game.
These moves are often wrong, and the trained player decides what follows. Their worth is the
difference between two games, one with the move and one with the default, that the trained player
continues with the same seeds. A bootstrap over tasks.

**Limits.** In a game with a constant sum no action changes the mean over agents: `--pay own` is for
such games. In a view where the default is not legal, the worth is relative to an illegal move. The
recorded moves of a replay do not react to the change. For example, an operation on an entry that
the replay does not have fails, so the entry seems worth more than it was. In the untrained player's
own games, later mistakes count too: a good action may do harm there. A policy that prefers every
action to the default agrees with every action that helped, so also read the agreement for actions
that did harm.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np

from selfplay.credit.replay import MoveReplayer, actions_of
from selfplay.errors import ConfigError, nearest
from selfplay.rollout.rollout import EpisodeSpec
from selfplay.study.default_action import default_action, refuse_never_legal
from selfplay.study.matches import RETURN, StudyMatches
from selfplay.study.measure import (
    DEFAULT,
    METRIC,
    PAY,
    PLAYING,
    ROLE,
    Measure,
    open_games,
    references_or_start,
)
from selfplay.study.players import StudyPlayer
from selfplay.study.plots import IntervalPlot
from selfplay.study.policy_probs import log_odds
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.bootstrap import Estimate
from selfplay.types import Episode, Status, Turn

LONGEST = 1000
"""Largest number of stages of a replay."""
ROUNDING = 1e-9
"""Largest difference of two returns that counts as none."""
Pay: TypeAlias = Literal["team", "own"]
"""Return that an action is judged by."""
WHOSE: Mapping[Pay, str] = {
    "team": "the mean return over agents",
    "own": "the return of the agent that acted",
}
"""Pay to its description."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An action that the default replaced.

    `replayed` and `slips` make it; `scored` adds the preference.
    """

    episode: int
    """Index of the episode."""
    turn: Turn
    """Turn of the action."""
    worth: float
    """Difference reward by the chosen pay."""
    own: float
    """Difference reward of the agent that acted."""
    preference: float = math.nan
    """Change of the log-odds against the default by training, in nats."""

    @property
    def mattered(self) -> bool:
        """True if the worth is not 0."""
        return abs(self.worth) > ROUNDING

    @property
    def agrees(self) -> bool:
        """True if the preference has the sign of the worth."""
        return self.worth * self.preference > 0


def study(
    games: StudyMatches,
    players: Sequence[StudyPlayer],
    *,
    default: str,
    role: str | None = None,
    pay: Pay = "team",
) -> Result:
    """Judge the actions of `role` (None: all roles) by this pay.

    The first player is the trained one. `default` is a text; every judged role must read the same
    action in it. Raises ConfigError if the games, the players or the default do not allow this.
    """
    if len(players) != 2:
        raise ConfigError("counterfactual: name two players, the trained and the untrained, or RUN")
    roles = [role] if role else _with_chances(games, players)
    for name in roles:
        if name not in games.agent_specs:
            raise ConfigError(f"--role {name}: no such role; {nearest(name, games.agent_specs)}")
    action = default_action([games.agent_specs[name] for name in roles], default)
    trained, untrained = players
    own = [games.run(player.seats(games.agents)) for player in players]
    refuse_never_legal(games, own[0], roles, action)
    apart = [replayed(games, episodes, roles, action, pay) for episodes in own]
    slipped, single = slips(games, own[0], trained, untrained, roles, action, pay, text=default)
    estimates: list[Estimate] = []
    rows: list[list[Cell]] = []
    judged: list[Judged] = []
    for label, episodes, found in (
        (trained.label, own[0], apart[0]),
        (f"{untrained.label}, one in a game of {trained.label}", slipped, single),
        (untrained.label, own[1], apart[1]),
    ):
        known = scored(games, players, [each for each in found if each.mattered], default)
        estimates += _estimates(games, label, episodes, known, judged=len(found))
        rows += _rows(label, known)
        judged += found
    settings = games.record()
    settings.pop("metric", None)  # the worth is a difference of returns
    return Result(
        measure="counterfactual",
        title=f"Worth of actions and learned preference in {games.arena().name}",
        definition=f"Among the actions whose replacement by {default} changes {WHOSE[pay]}: "
        f"the fraction whose log-odds against {default} moved in the direction of their worth, "
        f"from {untrained.label} to {trained.label}.",
        estimates=estimates,
        tables=[
            Table(
                title="Actions that mattered, by outcome",
                columns=["actions of", "outcome", "helped", "agree", "did harm", "agree there"],
                rows=rows,
            )
        ],
        drawings=[
            IntervalPlot(
                title="Agreement, with 95 % intervals",
                estimates=estimates,
                label=f"fraction of actions ({pay} pay)",
                null=0.5,
            )
        ],
        params={**settings, "default": default, "roles": roles, "pay": pay},
        notes=[*games.notes, *_notes(judged, action, pay)],
    )


def _with_chances(games: StudyMatches, players: Sequence[StudyPlayer]) -> list[str]:
    """Return the roles with a model on both sides: a script has no probabilities to read.

    Raises ConfigError if there is no such role.
    """
    roles = games.arena().roles
    scripts = {
        role: each.policies[role]
        for role in roles
        for each in players
        if each.policies[role] not in games.models
    }
    found = [role for role in roles if role not in scripts]
    if not found:
        names = ", ".join(dict.fromkeys(scripts.values()))
        raise ConfigError(
            f"counterfactual: {names} is not a model, so no role has probabilities to read; study "
            "a run in which both players have a model for the same role"
        )
    if scripts:
        left = ", ".join(scripts)
        games.notes.append(f"{left}: played by opponents without a model, and not judged")
    return found


def _notes(judged: Sequence[Judged], default: str, pay: Pay) -> list[str]:
    """Return notes about the actions: why none mattered, and where the default is not legal."""
    notes = []
    if not judged:
        notes.append(f"no action was judged: these games have none other than {default}")
    elif not any(each.mattered for each in judged):
        own = sum(abs(each.own) > ROUNDING for each in judged)
        note = f"no action mattered: none of {len(judged)} judged actions changed {WHOSE[pay]}"
        notes.append(f"{note}, but {own} changed {WHOSE['own']}: use --pay own" if own else note)
    beyond = sum(bool(each.turn.legal) and default not in each.turn.legal for each in judged)
    if beyond:
        notes.append(
            f"for {beyond} of {len(judged)} judged actions {default} is not a legal move of the "
            "view: there their worth is relative to an illegal move"
        )
    return notes


def replayed(
    games: StudyMatches,
    episodes: Sequence[Episode],
    roles: Sequence[str],
    default: str,
    pay: Pay = "team",
) -> list[Judged]:
    """Return the actions of `roles` other than the default, with their worth in a replay."""
    replayer = MoveReplayer(games.arena, limit=LONGEST, default=default)
    found = []
    for number, episode in enumerate(episodes):
        if episode.status is Status.FAILED:
            continue
        moves = actions_of(episode)
        paid = replayer.paid(episode, moves)
        taken: dict[str, int] = defaultdict(int)
        for turn in episode.moves():
            place = taken[turn.agent]
            taken[turn.agent] += 1
            if turn.role not in roles or turn.action == default:
                continue
            own = list(moves[turn.agent])
            own[place] = default
            without = replayer.paid(episode, {**moves, turn.agent: own})
            if paid is None or without is None:
                continue
            changed = {
                "team": _mean(paid) - _mean(without),
                "own": paid.get(turn.agent, 0.0) - without.get(turn.agent, 0.0),
            }
            if all(map(math.isfinite, changed.values())):
                found.append(
                    Judged(episode=number, turn=turn, worth=changed[pay], own=changed["own"])
                )
    return found


def slips(
    games: StudyMatches,
    episodes: Sequence[Episode],
    host: StudyPlayer,
    guest: StudyPlayer,
    roles: Sequence[str],
    default: str,
    pay: Pay = "team",
    *,
    text: str,
) -> tuple[list[Episode], list[Judged]]:
    """Play games of the host in which the guest makes a single move, for every turn of `roles`.

    Return these games, and the moves other than the default with their worth. `text` is what a
    player writes to make the action `default`.
    """
    rollout, hosts, guests = (
        games.rollout(),
        host.seats(games.agents),
        guest.seats(games.agents),
    )
    places = [
        (episode, turn)
        for episode in episodes
        if episode.status is not Status.FAILED
        for turn in episode.moves()
        if turn.role in roles
    ]

    def begun(episode: Episode, stages: int, **seating: str) -> EpisodeSpec:
        prefix = tuple(turn for turn in episode.turns if turn.stage < stages)
        return EpisodeSpec(
            task=episode.task,
            seed=episode.seed,
            prefix_turns=prefix,
            policy_map={**hosts, **seating},
        )

    moved = rollout.run(
        [begun(e, turn.stage, **{turn.agent: guests[turn.agent]}) for e, turn in places]
    )
    found = [
        (each, next(t for t in each.moves() if (t.agent, t.stage) == (turn.agent, turn.stage)))
        for each, (_, turn) in zip(moved, places, strict=True)
        if each.status is not Status.FAILED
    ]
    specs = [begun(each, turn.stage + 1) for each, turn in found]
    without = [
        replace(
            spec,
            prefix_turns=tuple(
                replace(t, action=default, text=text)
                if (t.agent, t.stage) == (turn.agent, turn.stage)
                else t
                for t in spec.prefix_turns
            ),
        )
        for spec, (_, turn) in zip(specs, found, strict=True)
    ]
    played, replaced = (games.count(rollout.run(each)) for each in (specs, without))

    def changed(metric: str) -> list[float]:
        worth: list[float] = (
            games.scores(played, metric) - games.scores(replaced, metric)
        ).tolist()
        return worth

    team = changed(RETURN)
    own = {a: changed(f"{RETURN}/{a}") for a in dict.fromkeys(turn.agent for _, turn in found)}
    return played, [
        Judged(
            episode=number,
            turn=turn,
            worth=team[number] if pay == "team" else own[turn.agent][number],
            own=own[turn.agent][number],
        )
        for number, (_, turn) in enumerate(found)
        if math.isfinite(team[number]) and turn.action != default
    ]


def _mean(paid: Mapping[str, float]) -> float:
    """Return the mean return over the agents."""
    return sum(paid.values()) / len(paid)


def scored(
    games: StudyMatches, players: Sequence[StudyPlayer], found: Sequence[Judged], default: str
) -> list[Judged]:
    """Return the actions with the learned preference, from the second player to the first."""
    turns = [each.turn for each in found]
    odds = [log_odds(games, player, turns, default) for player in players]
    return [
        replace(each, preference=now - then) for each, now, then in zip(found, *odds, strict=True)
    ]


def _estimates(
    games: StudyMatches,
    label: str,
    episodes: Sequence[Episode],
    found: Sequence[Judged],
    *,
    judged: int,
) -> list[Estimate]:
    """Return the agreement for all actions that mattered, and for those that did harm.

    `found` are those that mattered among this number of judged actions.
    """
    draws = games.draws(episodes)

    def count(these: Sequence[Judged]) -> np.ndarray:
        return np.bincount([each.episode for each in these], minlength=len(episodes))

    kinds = {
        "that mattered": list(found),
        "that did harm": [each for each in found if each.worth < 0],
    }
    return [
        draws.ratio(
            f"agreement, actions of {label} {kind}",
            count([each for each in these if each.agrees]),
            count(these),
            null=0.5,
            notes=f"{len(these)} of {judged} judged actions",
        )
        for kind, these in kinds.items()
    ]


def _rows(label: str, found: Sequence[Judged]) -> list[list[Cell]]:
    """Return counts and agreement by the arena's verdict on the action, if it gives one."""
    by_verdict: dict[str, list[Judged]] = defaultdict(list)
    for each in found:
        by_verdict[str(each.turn.info.get("verdict", "-"))].append(each)
    rows: list[list[Cell]] = []
    for verdict, these in sorted(by_verdict.items()):
        cells: list[Cell] = [label, verdict]
        for sign in (1, -1):
            part = [each for each in these if each.worth * sign > 0]
            agreeing = sum(each.agrees for each in part)
            cells += [len(part), agreeing / len(part) if part else None]
        rows.append(cells)
    return rows


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    if options.default is None:
        raise ConfigError(
            "counterfactual: needs --default TEXT, the action that replaces the judged one, "
            """such as --default '{"event":"NOOP"}' of a memory manager"""
        )
    pay = _pay_of(options.pay)
    references = references_or_start(options, "counterfactual")
    with open_games(options, references[0].run) as games:
        players = games.admit(references)
        return study(games, players, default=options.default, role=options.role, pay=pay)


def _pay_of(text: str) -> Pay:
    for pay in get_args(Pay):
        if text == pay:
            return pay
    raise ConfigError(f"--pay {text}: {nearest(text, WHOSE)}")


MEASURE = Measure(
    name="counterfactual",
    help="worth of actions, by replay without them, and learned preference for them",
    target="players",
    run=from_options,
    options=(*(option for option in PLAYING if option is not METRIC), DEFAULT, ROLE, PAY),
)
"""The measure `counterfactual` of the command line."""
