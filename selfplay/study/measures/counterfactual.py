"""Counterfactual credit compared with learning: did training prefer the actions that helped?

**Definition.** The worth of an action is its difference reward: the team's return minus its return
with the default action instead. An action mattered if its worth is not 0. The learned preference of
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

**Limits.** The recorded moves of a replay do not react to the change. For example, an operation on
an entry that the replay does not have fails, so the entry seems worth more than it was. In the
untrained player's own games, later mistakes count too: a good action may do harm there. A policy
that prefers every action to the default agrees with every action that helped, so also read the
agreement for actions that did harm.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selfplay.arena import Arena
from selfplay.credit.replay import MoveReplayer, actions_of, stages_of
from selfplay.errors import ConfigError, nearest
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec
from selfplay.study.matches import RETURN, StudyMatches
from selfplay.study.measure import (
    DEFAULT,
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
from selfplay.types import Episode, InvalidAction, Observation, Status, Turn, role_of


def views(arena: Arena, episode: Episode) -> Iterator[tuple[str, Observation]]:
    """Yield (agent, observation) of every turn in order, by playing the recorded moves again."""
    arena.begin(episode.task, episode.seed)
    for actions in stages_of(episode):
        yield from ((agent, arena.view(agent)) for agent in actions)
        arena.play_stage(actions)


LONGEST = 1000
"""Largest number of stages of a replay."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An action that mattered. `mattered` and `slips` make it; `scored` adds the preference."""

    episode: int
    """Index of the episode."""
    turn: Turn
    """Turn of the action."""
    worth: float
    """Difference reward of the team."""
    preference: float = math.nan
    """Change of the log-odds against the default by training, in nats."""

    @property
    def agrees(self) -> bool:
        """True if the preference has the sign of the worth."""
        return self.worth * self.preference > 0


def study(
    games: StudyMatches, players: Sequence[StudyPlayer], *, default: str, role: str | None = None
) -> Result:
    """Judge the actions of `role` (None: all roles). The first player is the trained one.

    `default` is a text; every judged role must read the same action in it. Raises ConfigError if
    the games, the players or the default do not allow this.
    """
    if len(players) != 2:
        raise ConfigError("counterfactual: name two players, the trained and the untrained, or RUN")
    roles = [role] if role else _with_chances(games, players)
    for name in roles:
        if name not in games.agent_specs:
            raise ConfigError(f"--role {name}: no such role; {nearest(name, games.agent_specs)}")
    action = _action([games.agent_specs[name] for name in roles], default)
    trained, untrained = players
    own = [games.run(player.seats(games.agents)) for player in players]
    _refuse_illegal(games, own[0], roles, action)
    apart = [mattered(games, episodes, roles, action) for episodes in own]
    slipped, single = slips(games, own[0], trained, untrained, roles, action, text=default)
    estimates: list[Estimate] = []
    rows: list[list[Cell]] = []
    for label, episodes, found in (
        (trained.label, own[0], apart[0]),
        (f"{untrained.label}, one in a game of {trained.label}", slipped, single),
        (untrained.label, own[1], apart[1]),
    ):
        judged = scored(games, players, found, default)
        estimates += _estimates(games, label, episodes, judged)
        rows += _rows(label, judged)
    return Result(
        measure="counterfactual",
        title=f"Worth of actions and learned preference in {games.arena().name}",
        definition=f"Among the actions whose replacement by {default} changes the pay of the team: "
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
                label="fraction of actions",
                null=0.5,
            )
        ],
        params={**games.record(), "default": default, "roles": roles},
        notes=games.notes,
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


def mattered(
    games: StudyMatches, episodes: Sequence[Episode], roles: Sequence[str], default: str
) -> list[Judged]:
    """Return the actions whose replacement by the default changes the team's pay in a replay."""
    replayer = MoveReplayer(games.arena, limit=LONGEST, default=default)
    found = []
    for number, episode in enumerate(episodes):
        if episode.status is Status.FAILED:
            continue
        moves = actions_of(episode)
        paid = _team(replayer, episode, moves)
        taken: dict[str, int] = defaultdict(int)
        for turn in episode.moves():
            place = taken[turn.agent]
            taken[turn.agent] += 1
            if turn.role not in roles or turn.action == default:
                continue
            own = list(moves[turn.agent])
            own[place] = default
            worth = paid - _team(replayer, episode, {**moves, turn.agent: own})
            if worth and math.isfinite(worth):
                found.append(Judged(episode=number, turn=turn, worth=worth))
    return found


def slips(
    games: StudyMatches,
    episodes: Sequence[Episode],
    host: StudyPlayer,
    guest: StudyPlayer,
    roles: Sequence[str],
    default: str,
    *,
    text: str,
) -> tuple[list[Episode], list[Judged]]:
    """Play games of the host in which the guest makes a single move, for every turn of `roles`.

    Return these games, and the moves among them that mattered. `text` is what a player writes to
    make the action `default`.
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
    played = games.count(rollout.run(specs))
    worth = games.scores(played, RETURN) - games.scores(games.count(rollout.run(without)), RETURN)
    return played, [
        Judged(episode=number, turn=turn, worth=w)
        for number, ((_, turn), w) in enumerate(zip(found, worth.tolist(), strict=True))
        if w and math.isfinite(w) and turn.action != default
    ]


def _team(replayer: MoveReplayer, episode: Episode, moves: dict[str, list[str | None]]) -> float:
    """Return the mean return over the agents; NaN if the arena failed."""
    paid = replayer.paid(episode, moves)
    return math.nan if not paid else sum(paid.values()) / len(paid)


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
    games: StudyMatches, label: str, episodes: Sequence[Episode], found: Sequence[Judged]
) -> list[Estimate]:
    """Return the agreement for all actions that mattered, and for those that did harm."""
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
            notes=f"{len(these)} actions",
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


def _action(agent_specs: Sequence[AgentSpec], default: str) -> str:
    """Return the action that the judged roles read in the text `default`."""
    found: dict[str, str] = {}
    for agent_spec in agent_specs:
        name = type(agent_spec.role).__name__
        if agent_spec.role.memory != "none":
            raise ConfigError(
                f"counterfactual: the role {name} has memory={agent_spec.role.memory}, so prompts "
                "contain more than the observation; use roles with memory=none"
            )
        if agent_spec.role.tools is not None:
            raise ConfigError(
                f"counterfactual: the role {name} has tools, so its moves depend on more than one "
                "completion; use roles with tools=null"
            )
        try:
            found.setdefault(agent_spec.role.parse(default), name)
        except InvalidAction as reason:
            raise ConfigError(
                f"--default {default}: {name} reads no action in it: {reason}"
            ) from None
    if len(found) > 1:
        (one, first), (two, second) = list(found.items())[:2]
        raise ConfigError(
            f"--default {default}: {first} reads {one!r} in it and {second} {two!r}; judge one "
            "role with --role"
        )
    return next(iter(found), default)


def _refuse_illegal(
    games: StudyMatches, episodes: Sequence[Episode], roles: Sequence[str], default: str
) -> None:
    """Raise ConfigError if every view lists its legal moves and the default is never legal."""
    known: set[str] = set()
    for episode in [each for each in episodes if each.status is not Status.FAILED]:
        for agent, seen in views(games.arena(), episode):
            if role_of(agent) in roles:
                legal = seen.fields.get("legal")
                if not legal or default in legal:
                    return
                known |= set(legal)
    if known:
        raise ConfigError(f"--default {default}: never legal here; {nearest(default, known)}")


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    if options.default is None:
        raise ConfigError(
            "counterfactual: needs --default TEXT, the action that replaces the judged one, "
            """such as --default '{"event":"NOOP"}' of a memory manager"""
        )
    references = references_or_start(options, "counterfactual")
    with open_games(options, references[0].run) as games:
        return study(games, games.admit(references), default=options.default, role=options.role)


MEASURE = Measure(
    name="counterfactual",
    help="worth of actions, by replay without them, and learned preference for them",
    target="players",
    run=from_options,
    options=(*PLAYING, DEFAULT, ROLE),
)
"""The measure `counterfactual` of the command line."""
