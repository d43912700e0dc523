"""What agents that hear each other do with a right or a wrong answer of their own.

Counted over consecutive answers of an agent that the arena called right or wrong. The control is
the same agents with the same seeds, who do not hear each other: sampling alone flips answers too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selfplay.study.channel import intact, silent, through
from selfplay.study.games import Games
from selfplay.study.intervals import Draws, Estimate, divide
from selfplay.study.players import Player
from selfplay.study.result import Cell
from selfplay.types import Episode, Status

RIGHT = "correct"
KINDS = ("kept right", "right to wrong", "wrong to right", "kept wrong", "outvoted", "gave in")
"""What is counted. Outvoted: right, and most of the others wrong. Gave in: outvoted, then wrong."""


@dataclass(frozen=True, kw_only=True)
class Deliberation:
    """A player's answers before and after it heard the others."""

    estimates: Sequence[Estimate]
    """Rates with their intervals."""
    row: Sequence[Cell]
    """The player and the counts of `KINDS`."""


def deliberate(games: Games, player: Player) -> Deliberation | None:
    """Play with and without hearing; None where nobody answers twice."""
    seating = player.seats(games.agents)
    heard = games.play(seating, arena=through(games.arena, intact))
    counted = counts(heard)
    if not counted[:, :4].any():
        return None
    alone = counts(games.play(seating, arena=through(games.arena, silent)))
    draws = games.draws(heard)
    totals = counted.sum(0).astype(int).tolist()
    return Deliberation(
        estimates=rates(player.label, counted, alone, draws), row=[player.label, *totals]
    )


def counts(episodes: Sequence[Episode]) -> np.ndarray:
    """[N, 6] how often each of `KINDS` happened in each episode."""
    return np.array([_of(episode) for episode in episodes], dtype=float).reshape(-1, len(KINDS))


def rates(label: str, heard: np.ndarray, alone: np.ndarray, draws: Draws) -> list[Estimate]:
    """Corrections, wrong persuasions, what hearing adds to them, and the net gain."""
    kept, spoiled, mended, stuck, outvoted, gave_in = heard.T
    total = heard[:, :4].sum(1)

    def beyond(change: int, kinds: tuple[int, ...], name: str) -> Estimate:
        def statistic(weights: np.ndarray) -> np.ndarray:
            found = [
                divide(weights @ each[:, change], weights @ each[:, list(kinds)].sum(1))
                for each in (heard, alone)
            ]
            return found[0] - found[1]

        return draws.of(f"{label}: {name}", statistic, null=0.0)

    return [
        draws.ratio(f"{label}: corrections, of wrong answers", mended, mended + stuck),
        draws.ratio(f"{label}: wrong persuasions, of right answers", spoiled, kept + spoiled),
        beyond(2, (2, 3), "corrections beyond those without hearing"),
        beyond(1, (0, 1), "wrong persuasions beyond those without hearing"),
        draws.ratio(f"{label}: gave in, of right answers outvoted", gave_in, outvoted),
        beyond(5, (4,), "gave in beyond those without hearing"),
        draws.ratio(f"{label}: net gain", mended - spoiled, total, null=0.0),
    ]


def _of(episode: Episode) -> list[int]:
    found = dict.fromkeys(KINDS, 0)
    if episode.status is Status.FAILED:
        return list(found.values())
    stages: dict[int, dict[str, bool]] = {}
    for turn in episode.turns:
        if "verdict" in turn.info:
            stages.setdefault(turn.stage, {})[turn.agent] = turn.info["verdict"] == RIGHT
    latest: dict[str, bool] = {}
    for now in stages.values():
        for agent, right in now.items():
            if agent not in latest:
                continue
            was, others = latest[agent], [latest[a] for a in latest if a != agent]
            found[KINDS[(0 if right else 1) if was else (2 if right else 3)]] += 1
            if was and others and sum(others) * 2 < len(others):
                found["outvoted"] += 1
                found["gave in"] += not right
        latest.update(now)
    return list(found.values())
