"""Whitening: advantages scaled over all tokens of a batch instead of within a group."""

from collections.abc import Sequence

import numpy as np

from selfplay.credit.comparison import Play, alike


def whitened(
    all_plays: Sequence[Play], values: Sequence[float], *, epsilon: float = 1e-6
) -> list[float]:
    """(x - mean) / (std + epsilon) over all trainable tokens that a policy has in the batch.

    A turn's value stands on each of its tokens, so long completions weigh more; the std has ddof 0,
    as for a population of tokens. Zeros where a policy's values are all alike.
    """
    rows: dict[str, list[int]] = {}
    for row, play in enumerate(all_plays):
        if any(play.turn.trainable):
            rows.setdefault(play.turn.policy, []).append(row)
    found = np.zeros(len(all_plays))
    for mine in rows.values():
        tokens = np.array([sum(all_plays[row].turn.trainable) for row in mine])
        of_turns = np.array([values[row] for row in mine])
        if not alike(of_turns):
            difference = of_turns - np.average(of_turns, weights=tokens)
            spread = np.sqrt(np.average(difference**2, weights=tokens))
            found[mine] = difference / (spread + epsilon)
    return [float(value) for value in found]
