"""Reciprocity in repeated dilemmas: do players answer cooperation with cooperation?

**Definition.** Over all rounds except the first, P(C|C) and P(C|D) are the probabilities that a
player cooperates after the other player cooperated or defected; reciprocity is their difference.
The memory-one vector also conditions on the player's own last move: (CC, CD, DC, DD), with the own
move first. Retaliation is the effect of a forced deviation: the mean of P(C_{t+k} | do C_t) minus
P(C_{t+k} | do D_t), k rounds after the other player's move was set to C or to D.

**Source.** Press and Dyson 2012 for memory-one strategies; Axelrod's tournaments. The forced
deviation is the punishment test of Calvano et al. 2020.

**Estimator.** Counts of both players together, and of each seat alone. Rounds of an episode depend
on each other, so probabilities have the interval of a proportion at the effective number of rounds.
The probe plays each episode again up to round t with the other player's move replaced, and then
both players continue freely; its differences are paired. Unbiased.

**Limits.** P(C|C) - P(C|D) of self-play is confounded: a mixture of pairs that always cooperate and
pairs that always defect has the value 1 without any reciprocity. The effect of the forced deviation
is causal. For win-stay lose-shift, P(C|C) and P(C|D) depend on the visited states: read the
memory-one vector. Estimates from fewer than 20 visits are not given. A player that remembers its
own words would notice that its move was forced, so only roles with memory=none are measured.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from selfplay.errors import ConfigError
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.study.matches import StudyMatches
from selfplay.study.measure import COOPERATE, PLAYING, Measure, measure_one
from selfplay.study.players import StudyPlayer
from selfplay.study.plots import CurvePlot, IntervalPlot
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.bootstrap import Draws, Estimate
from selfplay.types import Episode, Status

BOTH = (0, 1)
"""Indices of the players whose moves are counted together."""


def answers(moves: np.ndarray, players: Sequence[int] = BOTH) -> list[list[float]]:
    """Count the answers of these players together.

    Args:
        moves: [rounds, 2] moves of one game, see `Rounds`.
        players: Indices of the players.
    Returns:
        [cooperations, all] after the other player's C, and the same after its D.
    """
    found = [[0.0, 0.0], [0.0, 0.0]]
    for _, other, now in transitions(moves, players):
        after = found[0 if other else 1]
        after[0] += now
        after[1] += 1
    return found


def in_state(moves: np.ndarray, state: str, players: Sequence[int] = BOTH) -> list[float]:
    """Return [cooperations, visits] of these players together after a state of `STATES`."""
    after = transitions(moves, players)
    answers = [now for own, other, now in after if "DC"[own] + "DC"[other] == state]
    return [float(sum(answers)), float(len(answers))]


def transitions(moves: np.ndarray, players: Sequence[int] = BOTH) -> Iterator[tuple[int, int, int]]:
    """Yield (own last, other's last, own next move) of these players, if all three are legal."""
    for before, now in pairwise(moves):
        for me in players:
            found = (before[me], before[1 - me], now[me])
            if np.isfinite(found).all():
                yield int(found[0]), int(found[1]), int(found[2])


STATES = ("CC", "CD", "DC", "DD")
"""Last moves: the player's own move, then the other player's."""
LATER = 5
"""Number of rounds after a forced deviation that are measured."""
FEWEST = 20
"""Smallest number of visits for an estimate."""


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Moves of two players by round. `rounds_of` makes it; the estimates count its moves."""

    moves: np.ndarray
    """[rounds, 2] 1 for cooperation, 0 for another legal move, NaN for an illegal or missing
    move."""
    stages: tuple[int, ...]
    """[rounds] stage of each round."""


def study(games: StudyMatches, player: StudyPlayer, *, cooperate: str = "cooperate") -> Result:
    """Play, count the moves, and force a move in the middle of each game.

    `cooperate` is the move that counts as cooperation. Raises ConfigError unless the game is a
    repeated game of two players with this move, whose roles have memory=none.
    """
    agents = games.agents
    _refuse_remembering(games)
    episodes = games.run(player.seats(agents))
    played = [rounds_of(games, episode, cooperate) for episode in episodes]
    length = check_repeated(games, played, cooperate)
    draws = games.draws(episodes)
    moves = [each.moves for each in played]
    probe = [forced(games, player, episodes, played, cooperate, who=who) for who in (0, 1)]
    estimates = [
        draws.ratio("cooperation", *_cooperation(moves)),
        *_visited(conditionals(moves, draws), moves),
        *retaliation(probe, draws),
    ]
    vector = memory_one(moves, draws)
    estimates += [each for each, _ in vector]
    seats = [by_seat(moves, draws, who, agent) for who, agent in enumerate(agents)]
    estimates += [each for found in seats for each in found]
    after = [retaliation([probe[1 - who]], draws, of=f" by {agents[who]}") for who in (0, 1)]
    estimates += [each for found in after for each in found[:1]]
    by_round = rates_by_round(moves, draws, length)
    effects = [each for each in estimates if each.null is not None]
    return Result(
        measure="reciprocity",
        title=f"Reciprocity of {player.label} in {games.arena().name}",
        definition="The probability that a player cooperates after the other player cooperated, "
        "minus that after it defected: as observed, and after a forced move.",
        estimates=estimates,
        tables=[
            Table(
                title="Memory one: probability of cooperation by own and other's last move",
                columns=["last", "chance", "low", "high", "visits"],
                rows=[_row(state, *found) for state, found in zip(STATES, vector, strict=True)],
            ),
            Table(
                title="Memory one by seat",
                columns=["seat", "last", "chance", "low", "high", "visits"],
                rows=[
                    [agent, *_row(state, *found)]
                    for who, agent in enumerate(agents)
                    for state, found in zip(
                        STATES, memory_one(moves, draws, players=(who,)), strict=True
                    )
                ],
            ),
            Table(
                title="Effect of a forced move of the other player, by seat",
                columns=["", "change", "low", "high"],
                rows=[
                    [each.name, each.value, each.low, each.high]
                    for found in after
                    for each in found
                ],
            ),
        ],
        drawings=[
            IntervalPlot(
                title="With 95 % intervals",
                estimates=effects,
                label="difference of probabilities",
                null=0.0,
            ),
            CurvePlot(
                title="Cooperation by round",
                x=list(range(1, length + 1)),
                series={"cooperation": [each.value for each in by_round]},
                bands={
                    "cooperation": (
                        [each.low for each in by_round],
                        [each.high for each in by_round],
                    )
                },
                xlabel="round",
                label="fraction of cooperation",
            ),
        ],
        params={**games.record(), "cooperation_is": cooperate, "rounds": length},
        notes=games.notes,
    )


def rounds_of(games: StudyMatches, episode: Episode, cooperate: str) -> Rounds:
    """Return the rounds of an episode: stages in which both players move and none speaks.

    A failed episode has no rounds.
    """
    agents, arena = games.agents, games.arena()
    if episode.status is Status.FAILED:
        return Rounds(moves=np.zeros((0, len(agents))), stages=())
    arena.begin(episode.task, episode.seed)
    rows, stages = [], []
    by_stage: dict[int, dict[str, str | None]] = {}
    for turn in episode.turns:
        by_stage.setdefault(turn.stage, {})[turn.agent] = turn.action
    for stage, actions in sorted(by_stage.items()):
        if set(actions) == set(agents) and not arena.messengers():
            legal = [arena.view(agent).fields.get("legal") or () for agent in agents]
            rows.append(
                [
                    (float(actions[agent] == cooperate) if actions[agent] in known else np.nan)
                    for agent, known in zip(agents, legal, strict=True)
                ]
            )
            stages.append(stage)
        arena.play_stage(actions)
    return Rounds(moves=np.array(rows).reshape(len(rows), len(agents)), stages=tuple(stages))


def _refuse_remembering(games: StudyMatches) -> None:
    for agent_spec in games.agent_specs.values():
        role = agent_spec.role
        if role.memory != "none":
            raise ConfigError(
                f"reciprocity: the role {type(role).__name__} has memory={role.memory}, "
                "so a player would remember its own move and not the forced one; measure roles "
                "with memory=none"
            )


def check_repeated(games: StudyMatches, played: Sequence[Rounds], cooperate: str) -> int:
    """Return the number of rounds of the longest game.

    Raises ConfigError unless two players play several rounds in which `cooperate` is a move.
    """
    name, serve = games.arena().name, "such as arena=prisoners_dilemma arena.rounds=5"
    if len(games.agents) != 2:
        raise ConfigError(
            f"reciprocity: {name} has {len(games.agents)} players, not two; measure a "
            f"repeated dilemma, {serve}"
        )
    length = max((len(each.moves) for each in played), default=0)
    if length < 2:
        raise ConfigError(
            f"reciprocity: {name} has {length or 'no'} round of simultaneous moves, so no move "
            f"answers another; measure a repeated game, {serve}"
        )
    if not any((each.moves == 1).any() for each in played):
        legal = sorted(set(_legal(games)))
        if cooperate not in legal:
            raise ConfigError(
                f"--cooperate {cooperate}: no such move in {name}; it has {', '.join(legal)}"
            )
    return length


def _legal(games: StudyMatches) -> list[str]:
    spec = games.episode_specs({}, count=1)[0]
    arena = games.arena()
    arena.begin(spec.task, spec.seed)
    while arena.messengers():
        arena.play_stage(dict.fromkeys(arena.stage, ""))
    return [move for agent in arena.stage for move in arena.view(agent).fields.get("legal") or ()]


def rates_by_round(moves: Sequence[np.ndarray], draws: Draws, length: int) -> list[Estimate]:
    """Return the rate of cooperation in each of `length` rounds, from [rounds, 2] moves."""
    return [
        draws.ratio(f"cooperation in round {t + 1}", *_cooperation([m[t : t + 1] for m in moves]))
        for t in range(length)
    ]


def by_seat(moves: Sequence[np.ndarray], draws: Draws, who: int, agent: str) -> list[Estimate]:
    """Return the rate of cooperation of one player, P(C|C), P(C|D) and their difference."""
    mine = [each[:, [who]] for each in moves]
    found = [
        draws.ratio("cooperation", *_cooperation(mine)),
        *_visited(conditionals(moves, draws, players=(who,)), moves, players=(who,)),
    ]
    return [replace(each, name=f"{agent}: {each.name}") for each in found]


def conditionals(
    moves: Sequence[np.ndarray], draws: Draws, *, players: Sequence[int] = BOTH
) -> list[Estimate]:
    """Return P(C|C), P(C|D) and their difference, from [rounds, 2] moves of each episode."""
    # [N, (after C, after D), (C, all)]
    counts = np.array([answers(each, players) for each in moves])
    after = [draws.ratio(f"P(C|{name})", *counts[:, i].T) for i, name in enumerate("CD")]

    def difference(weights: np.ndarray) -> np.ndarray:
        summed = np.einsum("bn,nij->bij", weights, counts)
        with np.errstate(divide="ignore", invalid="ignore"):
            chances = np.where(summed[:, :, 1] > 0, summed[:, :, 0] / summed[:, :, 1], np.nan)
        return chances[:, 0] - chances[:, 1]

    notes = "" if counts[:, :, 1].sum(0).all() else "one of the two moves never happened"
    return [
        *after,
        draws.of("reciprocity P(C|C) - P(C|D)", difference, null=0.0, notes=notes),
    ]


def _visited(
    found: Sequence[Estimate], moves: Sequence[np.ndarray], *, players: Sequence[int] = BOTH
) -> list[Estimate]:
    """Return the conditional probabilities, NaN for too few visits."""
    after = np.sum([answers(each, players) for each in moves], axis=0)[:, 1]
    visits = [*after, after.min()]  # the difference needs both
    return [_enough(each, int(count)) for each, count in zip(found, visits, strict=True)]


def _enough(chance: Estimate, visits: int) -> Estimate:
    """Return the estimate, NaN for too few visits."""
    if visits >= FEWEST:
        return chance
    few = f"{visits} visits; at least {FEWEST} are needed"
    return replace(chance, value=np.nan, low=np.nan, high=np.nan, notes=few)


def memory_one(
    moves: Sequence[np.ndarray], draws: Draws, *, players: Sequence[int] = BOTH
) -> list[tuple[Estimate, int]]:
    """Return, for each state, the probability of cooperation and the number of visits.

    The probability is NaN for too few visits.
    """
    found = []
    for state in STATES:
        counts = np.array([in_state(each, state, players) for each in moves])
        visits = int(counts[:, 1].sum())
        chance = draws.ratio(f"cooperation after {state}", *counts.T)
        found.append((_enough(chance, visits), visits))
    return found


def _row(state: str, chance: Estimate, visits: int) -> list[Cell]:
    few = visits < FEWEST
    shown = f"{visits} (too few)" if few else str(visits)
    return [state, chance.value, chance.low, chance.high, shown]


def retaliation(probes: Sequence[np.ndarray], draws: Draws, *, of: str = "") -> list[Estimate]:
    """Return the effect of a forced deviation k rounds later.

    Args:
        probes: [N, LATER] paired differences of each player.
        draws: Resampling of the episodes.
        of: Words that name the player, if the results are about a single player.
    """
    found = []
    for k in range(LATER):
        each = np.array([probe[:, k] for probe in probes])
        known = np.isfinite(each)
        if known.any():
            count = np.maximum(known.sum(0), 1)
            mean = np.where(known.any(0), np.where(known, each, 0.0).sum(0) / count, np.nan)
            rounds = "1 round" if k == 0 else f"{k + 1} rounds"
            found.append(draws.mean(f"after a forced move, {rounds} later{of}", mean, null=0.0))
    return found


def forced(
    games: StudyMatches,
    player: StudyPlayer,
    episodes: Sequence[Episode],
    played: Sequence[Rounds],
    cooperate: str,
    *,
    who: int,
) -> np.ndarray:
    """Force a move of player `who` in the middle round of each game, once C and once D.

    Return [N, LATER] cooperation of the other player after the forced C minus that after the D.
    """
    found = np.full((len(episodes), LATER), np.nan)
    specs: list[EpisodeSpec] = []
    places: list[tuple[int, int]] = []
    agent = games.agents[who]
    defect = [move for move in _legal(games) if move != cooperate][:1]
    for number, (episode, rounds) in enumerate(zip(episodes, played, strict=True)):
        middle = (len(rounds.stages) - 1) // 2
        if len(rounds.stages) < 2 or not defect:
            continue
        for move in (cooperate, defect[0]):
            prefix = tuple(
                replace(turn, text=move, action=move, reward=0.0)
                if turn.final and (turn.agent, turn.stage) == (agent, rounds.stages[middle])
                else turn
                for turn in episode.turns
                if turn.stage <= rounds.stages[middle]
            )
            seating = player.seats(games.agents)
            specs.append(
                EpisodeSpec(
                    task=episode.task, seed=episode.seed, prefix_turns=prefix, policy_map=seating
                )
            )
            places.append((number, middle))
    answered = games.count(games.rollout().run(specs))
    for at in range(0, len(specs), 2):
        number, middle = places[at]
        pair = [rounds_of(games, answered[at + i], cooperate).moves for i in (0, 1)]
        for later in range(LATER):
            if all(len(moves) > middle + 1 + later for moves in pair):
                after = [moves[middle + 1 + later, 1 - who] for moves in pair]
                found[number, later] = after[0] - after[1]
    return found


def _cooperation(moves: Sequence[np.ndarray]) -> tuple[list[float], list[float]]:
    return (
        [float(np.nansum(each)) for each in moves],
        [float(np.isfinite(each).sum()) for each in moves],
    )


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    return measure_one(options, partial(study, cooperate=options.cooperate))


MEASURE = Measure(
    name="reciprocity",
    help="cooperation after cooperation and after defection, in repeated dilemmas",
    target="player",
    run=from_options,
    options=(*PLAYING, COOPERATE),
)
"""The measure `reciprocity` of the command line."""
