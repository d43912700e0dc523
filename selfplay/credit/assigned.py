"""The call of a credit method, which may be an author's own, and the check of its result."""

from collections.abc import Sequence
from math import isfinite
from numbers import Real
from typing import Any

from selfplay.credit import Credit
from selfplay.errors import ConfigError, SelfplayError, raised_by_author, with_place
from selfplay.types import Group, Sample


def assigned(credit: Credit, groups: Sequence[Group]) -> list[Sample]:
    """Return the samples that a credit method makes of groups.

    Raises ConfigError, which names the method, if code outside this library raises an error, and if
    the result is not a list of samples with finite advantages.
    """
    name = f"credit: {type(credit).__name__}.assign"
    try:
        samples: Any = credit.assign(groups)
    except SelfplayError:
        raise
    except Exception as error:
        if not raised_by_author(error):
            raise
        raise ConfigError(f"{name} raised {with_place(error)}") from error
    if not isinstance(samples, list) or not all(isinstance(each, Sample) for each in samples):
        raise ConfigError(f"{name} returned {type(samples).__name__}, not a list of Sample")
    for sample in samples:
        for number in _used(sample):
            if not isinstance(number, Real) or not isfinite(number):
                raise ConfigError(
                    f"{name} gave {sample.turn.agent} the advantage {number!r}; an advantage is a "
                    "finite number, or a tuple with one for each token"
                )
    return samples


def _used(sample: Sample) -> Sequence[Any]:
    """Return the advantages that the learner uses: one, or those of the tokens with loss."""
    given, mask = sample.advantage, sample.turn.loss_mask
    if not isinstance(given, tuple):
        return (given,)
    # The learner refuses another number of advantages than of tokens.
    return [each for each, used in zip(given, mask, strict=False) if used]
