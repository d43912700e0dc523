"""Reciprocity in repeated dilemmas: do players answer cooperation with cooperation?

**Definition.** Over all rounds except the first, P(C|C) and P(C|D) are the probabilities that a
player cooperates after the other player cooperated or defected; reciprocity is their difference.
With more players, P(C|k of m) is the probability after k of the m others cooperated, and
reciprocity is the slope of the player's move over the fraction of the others that cooperated
(least squares; for two players it is the difference). The memory-one vector also conditions on the
player's own last move: (CC, CD, DC, DD) for two players, with the own move first. Retaliation is
the effect of a forced deviation: the mean of P(C_{t+k} | do C_t) minus P(C_{t+k} | do D_t), k
rounds after another player's move was set to C or to D, over the players whose move is not set.

**Source.** Press and Dyson 2012 for memory-one strategies; Axelrod's tournaments. The forced
deviation is the punishment test of Calvano et al. 2020. Answers to the number of others are those
of conditional cooperation in public-goods games (Fischbacher, Gaechter and Fehr 2001).

**Estimator.** Counts of all players together, and of each seat alone. Rounds of an episode depend
on each other, so probabilities have the interval of a proportion at the effective number of rounds.
The probe plays each episode again up to round t with one player's move replaced, and then all
players continue freely; its differences are paired. Unbiased.

**Limits.** P(C|C) - P(C|D) of self-play is confounded: a mixture of groups that always cooperate
and groups that always defect has the value 1 without any reciprocity. The effect of the forced
deviation is causal. For win-stay lose-shift, P(C|C) and P(C|D) depend on the visited states: read
the memory-one vector. With more than two players one forced defection need not change the answer
of a player that asks for a majority. Estimates from fewer than 20 visits are not given. A player
that remembers its own words would notice that its move was forced, so only roles with memory=none
are measured.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from selfplay.errors import ConfigError
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.study.matches import StudyMatches
from selfplay.study.measure import COOPERATE, PLAYING, Measure, measure_one
from selfplay.study.players import StudyPlayer
from selfplay.study.plots import CurvePlot, IntervalPlot
from selfplay.study.repeated_rounds import (
    Rounds,
    answers,
    cooperation,
    rounds_of,
)
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.bootstrap import Draws, Estimate
from selfplay.types import Episode

LATER = 5
"""Number of rounds after a forced deviation that are measured."""
FEWEST = 20
"""Smallest number of visits for an estimate."""


def study(games: StudyMatches, player: StudyPlayer, *, cooperate: str = "cooperate") -> Result:
    """Play, count the moves, and force a move in the middle of each game.

    `cooperate` is the move that counts as cooperation. Raises ConfigError unless the game is a
    repeated game with this move of two or more players, whose roles have memory=none.
    """
    agents = games.agents
    _refuse_remembering(games)
    episodes = games.run(player.seats(agents))
    played = [rounds_of(games, episode, cooperate) for episode in episodes]
    length = check_repeated(games, played, cooperate)
    draws = games.draws(episodes)
    moves = [each.moves for each in played]
    seated = range(len(agents))
    probe = [forced(games, player, episodes, played, cooperate, who=who) for who in seated]
    answered = {
        who: [probe[other][:, :, who] for other in seated if other != who] for who in seated
    }
    estimates = [
        draws.ratio("cooperation", *cooperation(moves)),
        *conditionals(moves, draws, players=seated),
        *retaliation([each for found in answered.values() for each in found], draws),
    ]
    vector = memory_one(moves, draws, players=seated)
    estimates += [chance for _, chance, _ in vector]
    seats = [by_seat(moves, draws, who, agent) for who, agent in enumerate(agents)]
    estimates += [each for found in seats for each in found]
    after = [retaliation(answered[who], draws, of=f" by {agents[who]}") for who in seated]
    estimates += [each for found in after for each in found[:1]]
    by_round = rates_by_round(moves, draws, length)
    effects = [each for each in estimates if each.null is not None]
    others = "other's" if len(agents) == 2 else "others'"
    return Result(
        measure="reciprocity",
        title=f"Reciprocity of {player.label} in {games.arena().name}",
        definition="The probability that a player cooperates after the other player cooperated, "
        "minus that after it defected: as observed, and after a forced move. With more players: "
        "the slope over the fraction of the others that cooperated.",
        estimates=estimates,
        tables=[
            Table(
                title=f"Memory one: probability of cooperation by own and {others} last move",
                columns=["last", "chance", "low", "high", "visits"],
                rows=[_row(*each) for each in vector],
            ),
            Table(
                title="Memory one by seat",
                columns=["seat", "last", "chance", "low", "high", "visits"],
                rows=[
                    [agent, *_row(*each)]
                    for who, agent in enumerate(agents)
                    for each in memory_one(moves, draws, players=(who,))
                ],
            ),
            Table(
                title="Effect of a forced move of another player, by seat",
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

    Raises ConfigError unless two or more players play several rounds in which `cooperate` is a
    move.
    """
    name, serve = games.arena().name, "such as arena=prisoners_dilemma arena.rounds=5"
    if len(games.agents) < 2:
        raise ConfigError(
            f"reciprocity: {name} has a single player; measure a repeated dilemma, {serve}"
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
                f"--cooperate {cooperate}: no such move in {name}; it has {', '.join(legal)}; "
                "name the move that cooperates with --cooperate"
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
    """Return the rate of cooperation in each of `length` rounds, from [rounds, players] moves."""
    return [
        draws.ratio(f"cooperation in round {t + 1}", *cooperation([m[t : t + 1] for m in moves]))
        for t in range(length)
    ]


def by_seat(moves: Sequence[np.ndarray], draws: Draws, who: int, agent: str) -> list[Estimate]:
    """Return the rate of cooperation of one player, its answers and their reciprocity."""
    mine = [each[:, [who]] for each in moves]
    found = [
        draws.ratio("cooperation", *cooperation(mine)),
        *conditionals(moves, draws, players=(who,)),
    ]
    return [replace(each, name=f"{agent}: {each.name}") for each in found]


def conditionals(
    moves: Sequence[np.ndarray], draws: Draws, *, players: Sequence[int]
) -> list[Estimate]:
    """Return P(C|C), P(C|D) and reciprocity; with more players, P(C|k of m) from k = m down.

    Estimates from too few visits are NaN. The slope weights each visit equally; it leaves out the
    numbers of others with too few visits, and needs two numbers with enough.

    Args:
        moves: [rounds, players] moves of each episode.
        draws: Resampling of the episodes.
        players: Indices of the players that are counted.
    """
    counts = np.array([answers(each, players).sum(0)[::-1] for each in moves])
    most = counts.shape[1] - 1  # counts are [N, m + 1, (C, all)], from k = m down
    number = np.arange(most, -1, -1)  # of the others that cooperated
    visits = counts[:, :, 1].sum(0)
    known = visits >= FEWEST

    def slope(weights: np.ndarray) -> np.ndarray:
        summed = np.einsum("bn,nij->bij", weights, counts[:, known])
        made, all_moves = np.moveaxis(summed, -1, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = (all_moves @ number[known] / all_moves.sum(1))[:, None]
            spread = (all_moves * (number[known] - mean) ** 2).sum(1)
            rise = (made * (number[known] - mean)).sum(1)
            return np.where(spread > 0, most * rise / spread, np.nan)

    names = [f"P(C|{k} of {most})" for k in number] if most > 1 else ["P(C|C)", "P(C|D)"]
    found = [
        _enough(draws.ratio(name, *counts[:, i].T), int(visits[i])) for i, name in enumerate(names)
    ]
    how = "(slope over the fraction of the others)" if most > 1 else "P(C|C) - P(C|D)"
    both = draws.of(f"reciprocity {how}", slope, null=0.0)
    return [*found, _enough(both, int(np.sort(visits)[-2]))]


def _enough(chance: Estimate, visits: int) -> Estimate:
    """Return the estimate, NaN for too few visits."""
    if visits >= FEWEST:
        return chance
    few = f"{visits} visits; at least {FEWEST} are needed"
    return replace(chance, value=np.nan, low=np.nan, high=np.nan, notes=few)


def memory_one(
    moves: Sequence[np.ndarray], draws: Draws, *, players: Sequence[int]
) -> list[tuple[str, Estimate, int]]:
    """Return (state, probability of cooperation, visits) for each pair of last moves.

    A state is CC, CD, DC or DD, the player's own move first; with m > 1 others, such as "C, 2 of 3"
    if 2 of 3 others cooperated. The probability is NaN for too few visits.
    """
    found = []
    counts = np.array([answers(each, players) for each in moves])  # [N, 2, m + 1, (C, all)]
    most = counts.shape[2] - 1
    for own, others in product((1, 0), range(most, -1, -1)):
        state = "DC"[own] + (f", {others} of {most}" if most > 1 else "DC"[others])
        visits = int(counts[:, own, others, 1].sum())
        chance = draws.ratio(f"cooperation after {state}", *counts[:, own, others].T)
        found.append((state, _enough(chance, visits), visits))
    return found


def _row(state: str, chance: Estimate, visits: int) -> list[Cell]:
    few = visits < FEWEST
    shown = f"{visits} (too few)" if few else str(visits)
    return [state, chance.value, chance.low, chance.high, shown]


def retaliation(probes: Sequence[np.ndarray], draws: Draws, *, of: str = "") -> list[Estimate]:
    """Return the effect of a forced deviation k rounds later.

    Args:
        probes: [N, LATER] paired differences, an array for each forced and answering player.
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

    Return [N, LATER, players] cooperation of each player after the forced C minus that after the D.
    """
    found = np.full((len(episodes), LATER, len(games.agents)), np.nan)
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
                after = [moves[middle + 1 + later] for moves in pair]
                found[number, later] = after[0] - after[1]
    return found


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
