"""The moves of a game that no arena expects: no action, and texts that are no legal move."""

from collections.abc import Iterator, Mapping, Sequence

from selfplay.arena import Arena
from selfplay.errors import with_place
from selfplay.types import Action, Task, role_of

TEXTS = ("", "\N{SUPERSCRIPT TWO}", "{'no': [\"legal move")
"""Texts that break code which reads a first character, a number of digits or a literal."""


def faults_of_odd_moves(
    arena: Arena, task: Task, seed: int, stages: Sequence[Mapping[str, Action | None]]
) -> Iterator[str]:
    """Play odd moves in copies of a game; yield a line for each error that they cause.

    In the first and the last stage of each role, all agents of the stage give None, or one of
    `TEXTS`. An arena that waits for a service gets only None, because a text may cost a call.

    Args:
        arena: A new arena, which can be copied in mid-game.
        task: Task of the game.
        seed: Seed of the game.
        stages: Recorded moves of the game, by stage.
    """
    chosen = _ends(stages)
    kinds: Sequence[Action | None] = (None,) if arena.blocking else (None, *TEXTS)
    said = set[str]()
    arena.begin(task, seed)
    for number, moves in enumerate(stages):
        for odd in kinds if number in chosen else ():
            error = _error_of(arena.fork(), odd)
            if error is not None and (shown := with_place(error)) not in said:
                said.add(shown)
                meaning = " (no action was read)" if odd is None else ""
                yield (
                    f"the move {odd!r}{meaning} of {', '.join(moves)} raises {shown}; an arena "
                    "accepts any move, for example as an illegal one"
                )
        arena.play_stage(moves)


def _ends(stages: Sequence[Mapping[str, Action | None]]) -> set[int]:
    """Return the numbers of the first and the last stage of each role."""
    first, last = dict[str, int](), dict[str, int]()
    for number, moves in enumerate(stages):
        for role in map(role_of, moves):
            first.setdefault(role, number)
            last[role] = number
    return {*first.values(), *last.values()}


def _error_of(arena: Arena, odd: Action | None) -> Exception | None:
    """Return the error that an arena raises if all agents of its stage give one odd move."""
    try:
        arena.play_stage(
            {
                agent: None if odd is None else arena.with_calls(agent, odd, ())
                for agent in arena.stage
            }
        )
        for agent in arena.stage:
            arena.view(agent)
    except Exception as error:  # the author's arena may raise any error
        return error
    return None
