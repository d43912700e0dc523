"""The calls of a credit method, which may be an author's own, and the checks of their results."""

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from math import isfinite
from numbers import Real
from typing import Any

from selfplay.author_code import check_members, naming, saved_state, stated_list, stated_metrics
from selfplay.credit import Credit
from selfplay.errors import ConfigError
from selfplay.types import Group, Sample, Turn


def assigned(credit: Credit, groups: Sequence[Group], where: str = "credit") -> list[Sample]:
    """Return the samples that a credit method makes of groups.

    Args:
        credit: The method.
        groups: The groups.
        where: Config key of the method, for errors.
    Raises:
        ConfigError: In one line that names the method, if code outside this library raises an
            error, and if the result is not a list of samples with finite advantages: one per
            sample, or one per completion token. Advantages of tokens without loss may be anything.
    """
    name = f"{where}: {type(credit).__name__}.assign"
    with naming(name, credit):
        samples = stated_list(credit.assign(groups), Sample, name)
    for sample in samples:
        for number in _used(sample):
            if not is_number(number):
                raise ConfigError(
                    f"{name} gave {sample.turn.agent} the advantage {number!r}; an advantage is a "
                    "finite number, or a tuple with one for each token"
                )
        tokens = len(sample.turn.completion_ids)
        if isinstance(sample.advantage, tuple) and len(sample.advantage) != tokens:
            raise ConfigError(
                f"{name} gave {sample.turn.agent} {len(sample.advantage)} advantages for "
                f"{tokens} completion tokens; an advantage is a finite number, or a tuple with one "
                "for each token"
            )
    return samples


def by_turn(
    samples: Sequence[Sample], groups: Sequence[Group]
) -> dict[int, float | tuple[float, ...]]:
    """Return the advantages of the turns of groups, by the id() of the turn.

    A sample usually holds a turn of its episode itself. A credit method may also return a copy, for
    instance with more `info` for an objective; it counts as the turn with the same agent, stage and
    tokens, and copies of equal turns in their order.
    """
    given = {id(sample.turn): sample.advantage for sample in samples}
    played = {id(turn) for group in groups for each in group.episodes for turn in each.turns}
    copies = [sample for sample in samples if id(sample.turn) not in played]
    if not copies:
        return given
    originals: dict[Hashable, deque[int]] = defaultdict(deque)
    for group in groups:
        for index, episode in enumerate(group.episodes):
            for turn in episode.turns:
                originals[_place(group.id, index, turn)].append(id(turn))
    for sample in copies:
        if same := originals[_place(sample.group, sample.episode, sample.turn)]:
            given[same.popleft()] = sample.advantage
    return given


def _place(group: str, episode: int, turn: Turn) -> Hashable:
    """Return the key of a turn, which its copies with other notes share."""
    return (group, episode, turn.agent, turn.stage, turn.prompt_ids, turn.completion_ids)


def measured(credit: Credit, where: str = "credit") -> dict[str, float]:
    """Return the metrics of a credit method.

    Args:
        credit: The method.
        where: Config key of the method, for errors.
    Raises:
        ConfigError: In one line that names the method, for an error of an author's code, and for a
            result that is not a mapping of names to numbers.
    """
    return stated_metrics(credit, where)


def saved(credit: Credit, where: str = "credit") -> dict[str, Any]:
    """Return the state of a credit method for a checkpoint.

    Args:
        credit: The method.
        where: Config key of the method, for errors.
    Raises:
        ConfigError: In one line that names the method, for an error of an author's code, and for a
            state that is not plain data.
    """
    return saved_state(credit, where, advice=" (tensors belong to modules())")


def check_method(credit: Credit | None, where: str) -> None:
    """Raise ConfigError for a method of `credit=by_role` that is missing or lacks an attribute.

    Args:
        credit: The method.
        where: Config key of the method.
    """
    if credit is None:
        raise ConfigError(f"{where}: no method; drop it: ~{where}")
    check_members(credit, "credit", where)


def is_number(value: object) -> bool:
    """Return True for a finite real number."""
    return isinstance(value, Real) and isfinite(value)


def _used(sample: Sample) -> Sequence[Any]:
    """Return the advantages that the learner uses: one, or those of the tokens with loss."""
    given, mask = sample.advantage, sample.turn.loss_mask
    if not isinstance(given, tuple):
        return (given,)
    return [each for each, used in zip(given, mask, strict=False) if used]
