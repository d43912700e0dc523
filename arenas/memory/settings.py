"""Checks of the memory arena's settings."""

from collections.abc import Sequence
from typing import get_args

from arenas.memory.answers import Outcome
from arenas.memory.bank import EVENTS
from arenas.memory.reflection import ReflectorPay
from selfplay.errors import check_choice


def check_settings(
    *,
    reader: object,
    capacity: int,
    outcome: str,
    manager: bool,
    extractor: bool,
    summarizer: bool,
    operations: Sequence[str],
    reflector: bool,
    reflector_pay: str,
    **counts: int,
) -> None:
    """Raise ValueError, in one line, for settings that do not fit.

    `counts` are the settings that are at least 1.
    """
    if extractor and summarizer:
        raise ValueError("extractor and summarizer are both true; set one of them to false")
    if reader and not manager and not extractor and not summarizer:
        raise ValueError(
            "manager, extractor and summarizer are false and there is a reader: no agent is left"
        )
    if not operations or not set(operations) <= set(EVENTS):
        raise ValueError(f"operations are some of {', '.join(EVENTS)}, not {list(operations)}")
    if reader and reflector:
        raise ValueError("a reflector is paid by answer agents, and a reader replaces them")
    if not manager and capacity:
        raise ValueError(f"without a manager capacity is 0 (no limit), not {capacity}")
    if capacity < 0:
        raise ValueError(f"capacity is 0 (no limit) or more, not {capacity}")
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} is at least 1, not {value}")
    for name, chosen, known in (
        ("outcome", outcome, get_args(Outcome)),
        ("reflector_pay", reflector_pay, get_args(ReflectorPay)),
    ):
        check_choice(name, chosen, known)
