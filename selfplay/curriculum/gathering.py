"""The end of a curriculum's first gathering: an error for one that never gets its tasks."""

from collections.abc import Iterator

from selfplay.author_code import naming
from selfplay.curriculum import Curriculum
from selfplay.curriculum.checked_calls import WHERE
from selfplay.curriculum.mixture import MixtureCurriculum
from selfplay.curriculum.scheduled import ScheduledTasks
from selfplay.curriculum.self_proposed import ProposalCurriculum
from selfplay.errors import ConfigError

ROUNDS = 200
"""Number of rounds after which a curriculum is ready, if it has no `gathering_rounds`."""
MOST_METRICS = 6
"""Largest number of a curriculum's metrics that the error shows."""


def check_gathering(curriculum: Curriculum, rounds: int) -> None:
    """Raise ConfigError for a curriculum that is not ready after all the rounds that it may gather.

    Args:
        curriculum: The run's curriculum. In a mixture, each part is checked alone.
        rounds: Number of rounds that were played without an update.
    """
    for where, part in _parts(WHERE, curriculum):
        if rounds < getattr(part, "gathering_rounds", ROUNDS):
            continue
        name = type(part).__name__
        with naming(f"{where}: {name}.ready", part):
            ready = part.ready()
        if ready:
            continue
        with naming(f"{where}: {name}.metrics", part):
            found = list(part.metrics().items())[:MOST_METRICS]
        shown = ", ".join(f"{metric} {value}" for metric, value in found) or "none"
        raise ConfigError(
            f"{where}: {name}.ready() returns {ready!r} after {rounds} rounds of gathering first "
            f"tasks (its metrics: {shown}); return True once the curriculum has its tasks, or, if "
            "it needs more rounds, set the attribute gathering_rounds of the class to their number"
        )


def gathering_phase(curriculum: Curriculum, round_: int) -> str:
    """Return the words for a round of gathering: its number, the maximum, and the tasks so far.

    Args:
        curriculum: The run's curriculum, which is not ready.
        round_: Number of the round, from 1.
    """
    unready = [part for _, part in _parts(WHERE, curriculum) if not part.ready()]
    most = max((getattr(part, "gathering_rounds", ROUNDS) for part in unready), default=ROUNDS)
    words = f"gathering first tasks, round {round_} of at most {most}"
    gathered = [part.gathered() for part in unready if isinstance(part, ProposalCurriculum)]
    if not gathered:
        return words
    have, need = (sum(numbers) for numbers in zip(*gathered, strict=True))
    return f"{words}, {have:,} of {need:,} tasks"


def _parts(where: str, curriculum: Curriculum) -> Iterator[tuple[str, Curriculum]]:
    """Yield the curricula that gather tasks themselves, each with its config key."""
    if isinstance(curriculum, MixtureCurriculum):
        for name in curriculum.shares:
            yield from _parts(f"{where}.parts.{name}", curriculum.parts[name])
    elif isinstance(curriculum, ScheduledTasks):
        yield from _parts(f"{where}.curriculum", curriculum.curriculum)
    else:
        yield where, curriculum
