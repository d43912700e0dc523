"""Matchups: the gains of players against each other, and their noise over games."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from selfplay.errors import RunError
from selfplay.league.empirical_game import alpha_rank, cycles, effective_diversity, sizes
from selfplay.run.formatting import number
from selfplay.study.stats.bootstrap import Draws, Estimate, divide, percentiles, weighted

CLEAR = 2.0
"""Number of standard deviations from which on the gain of a pair counts as beyond noise."""
MOST_NOISE = 0.5
"""Largest fraction of noise in the matrix for which its parts are estimated."""
LEAST_KNOWN = 0.5
"""Smallest fraction of resamples that must have a game of every pair."""
ALPHAS = 2.0 ** np.arange(-8, 8)
"""Values of alpha for alpha-rank, times the largest payoff."""

Pays = Mapping[tuple[int, int], np.ndarray]
"""(player in the first seat, in the second) to [episodes] half of the difference of their pay."""


@dataclass(frozen=True, kw_only=True)
class Matchups:
    """Matrix of gains with its resamples. `Matchups.of` makes it; `payoffs` reads it."""

    labels: Sequence[str]
    """[N] names of the players."""
    whole: np.ndarray
    """[N, N] antisymmetric gains of the rows against the columns."""
    drawn: np.ndarray
    """[resamples, N, N] gains of each resample, for intervals."""
    noise: np.ndarray
    """[resamples, N, N] errors of the gains, whose variance has no bias (see `Draws.nested`)."""
    draws: Draws
    """Resampling of the episodes."""

    @classmethod
    def of(cls, pays: Pays, draws: Draws, labels: Sequence[str]) -> "Matchups":
        """Make the matrix. Raises RunError if too many games of a pair failed."""
        for (i, j), pay in pays.items():
            if not np.isfinite(pay).any():
                raise RunError(f"payoffs: every game of {labels[i]} with {labels[j]} failed")
        whole = _matrix(pays, np.ones((1, len(draws.tasks))), len(labels))[0]
        drawn = _matrix(pays, draws.weights, len(labels))
        known = np.isfinite(drawn).all(axis=(1, 2))
        if known.mean() < LEAST_KNOWN:
            i, j = min(pays, key=lambda pair: np.isfinite(pays[pair]).sum())
            raise RunError(
                f"payoffs: too many games of {labels[i]} with {labels[j]} failed to estimate the "
                "noise; play more, or leave one of them out"
            )
        errors = _matrix(pays, replace(draws, nested=False).weights, len(labels)) - whole
        errors = errors[np.isfinite(errors).all(axis=(1, 2))]
        return cls(labels=labels, whole=whole, drawn=drawn[known], noise=errors, draws=draws)

    def estimate(
        self, name: str, statistic: Callable[[np.ndarray], np.ndarray], **more: Any
    ) -> Estimate:
        """Return an estimate of a continuous statistic of matrices, [B, N, N] to [B]."""

        def found(weights: np.ndarray) -> np.ndarray:
            return statistic(self.whole[None] if len(weights) == 1 else self.drawn)

        return self.draws.of(name, found, **more)

    def gain(self, player: int) -> Estimate:
        """Return the mean gain of a player against the others; `player` is its index."""
        others = [other for other in range(len(self.labels)) if other != player]

        def found(payoffs: np.ndarray) -> np.ndarray:
            return np.asarray(payoffs[:, player, others].mean(axis=1))

        return self.estimate(f"{self.labels[player]} gains on the others", found, null=0.0)

    def ranked(self, player: int) -> Estimate:
        """Return the alpha-rank of the player with this index, at the largest alpha."""
        alpha = float(self.alphas()[-1])

        def found(payoffs: np.ndarray) -> np.ndarray:
            return np.asarray(alpha_rank(payoffs, alpha=alpha)[:, player])

        return self.estimate(f"{self.labels[player]}: alpha-rank", found, bounds=(0.0, 1.0))

    def clear(self) -> np.ndarray:
        """Return [N, N] distances of the entries from 0, in standard deviations of the resamples.

        The standard deviations are those of `drawn`. Those of `noise` would be too small if two to
        nine tasks are alike by chance.
        """
        spread = self.drawn.std(axis=0)
        spread = np.where(spread < 1e-12, 0.0, spread)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.nan_to_num(np.abs(self.whole) / spread, nan=0.0, posinf=math.inf)

    def alphas(self) -> np.ndarray:
        """Return the values of alpha per unit of payoff."""
        return np.asarray(ALPHAS / (np.abs(self.whole).max() or 1.0))


def shape(found: Matchups, mixture: np.ndarray) -> list[Estimate]:
    """Return the estimates of order and cycles: transitive part, 3-cycles and diversity.

    `mixture` is the [N] Nash mixture, NaN if no solver found it. With fewer than three players only
    the diversity is returned.
    """
    details: dict[str, Any] = {"unit": found.draws.unit, "count": found.draws.count}
    diversity = Estimate(
        name="effective diversity",
        value=effective_diversity(found.whole, mixture),
        direction="biased_up",
        null=0.0,
        notes="jumps with the Nash mixture: no interval"
        if np.isfinite(mixture).all()
        else "no solver found the Nash mixture",
        **details,
    )
    if len(found.labels) < 3:
        return [diversity]
    ordered, every = map(float, sizes(found.whole))
    noises = sizes(found.noise)
    ordered_noise, noise = (float(part.mean()) for part in noises)
    drawn_ordered, drawn_noise = (float(p.mean()) for p in sizes(found.drawn - found.whole))
    share = noise / every if every else math.nan
    alone = divide(*noises)
    floor = 2 / len(found.labels)
    least, most = percentiles(alone)
    seen = Estimate(
        name="transitive share as measured",
        value=ordered / every if every else math.nan,
        direction="biased_down" if every and ordered / every > floor else "biased_up",
        null=floor,
        notes=f"noise alone: {number(least)} to {number(most)}" if noise else "",
        **details,
    )

    def parts(weights: np.ndarray) -> np.ndarray:
        part, rest = sizes(found.whole[None] if len(weights) == 1 else found.drawn)
        part, rest = part - ordered_noise, rest - noise
        if len(weights) > 1:  # a resample has the noise of the resampling too
            part, rest = part - drawn_ordered, rest - drawn_noise
        known = (rest > 0) & (share <= MOST_NOISE)
        return np.where(known, divide(part, rest), np.nan)

    why = "" if every else "no player gains anything against any other"
    if share > MOST_NOISE:
        why = "most of the matrix is noise: play more games"
    beats = found.whole > 0
    clear = beats & (found.clear() > CLEAR)
    triples = f"of {math.comb(len(found.labels), 3)} triples"
    return [
        found.draws.of("transitive share, noise taken off", parts, notes=why),
        seen,
        Estimate(name="noise, fraction of the matrix", value=share, null=1.0, notes=why, **details),
        Estimate(
            name="3-cycles",
            value=len(list(cycles(beats))),
            direction="biased_up",
            notes=triples,
            **details,
        ),
        Estimate(
            name="3-cycles beyond noise",
            value=len(list(cycles(clear))),
            direction="biased_down",
            notes=f"{triples}; each of its pairs by {CLEAR:g} standard deviations",
            **details,
        ),
        diversity,
    ]


def _matrix(pays: Pays, weights: np.ndarray, count: int) -> np.ndarray:
    """Return [B, N, N] gains of rows against columns, averaged over the seats.

    Args:
        pays: See `Pays`.
        weights: [B, episodes] weights of the episodes.
        count: Number N of players.
    """
    found = np.zeros((len(weights), count, count))
    for (i, j), pay in pays.items():
        found[:, i, j] = weighted(weights, pay)
    return np.asarray((found - np.swapaxes(found, 1, 2)) / 2)
