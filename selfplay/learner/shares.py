"""The samples of a batch cut into shares, one for each rank."""

from collections.abc import Sequence

import numpy as np

from selfplay.learner.batch import computed
from selfplay.learner.packing import common
from selfplay.types import Sample


def shares(samples: Sequence[Sample], count: int, *, packed: bool) -> list[list[int]]:
    """Indices of the samples by share: of about equal work, and with neighbours together.

    Sorted by their tokens, samples that share a prefix are neighbours. The order is cut in places
    of equal work, so that at most `count` - 1 prefixes are computed twice.

    Args:
        samples: What is to be computed.
        count: Number of shares; some are empty where there are fewer samples.
        packed: Whether neighbours may compute what they share once.
    """
    if count == 1 or not samples:
        return [list(range(len(samples))), *([] for _ in range(count - 1))]
    ids = [computed(sample) for sample in samples]
    order = sorted(range(len(samples)), key=ids.__getitem__)
    arrays = [np.array(ids[index], dtype=np.int64) for index in order]
    work = [len(each) for each in arrays]
    if packed:
        before = [np.zeros(0, dtype=np.int64), *arrays[:-1]]
        work = [len(now) - common(then, now) for then, now in zip(before, arrays, strict=True)]
    # A sample belongs where its middle falls; one that is another's whole prefix costs something.
    costs = np.maximum(work, 1)
    middles = np.cumsum(costs) - costs / 2
    found: list[list[int]] = [[] for _ in range(count)]
    for index, middle in zip(order, middles, strict=True):
        found[int(middle * count / costs.sum())].append(index)
    return [sorted(share) for share in found]
