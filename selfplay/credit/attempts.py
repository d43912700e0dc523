"""Attempts: which turns led to an episode's end, where some moves were made again."""

from collections import defaultdict
from dataclasses import replace

from selfplay.types import Episode, Turn


def decisive(episode: Episode) -> list[Turn]:
    """The turns that led to the end, in order, without messages and notes; all of them where no
    move was made again.

    An arena that plays another one again from some stage on notes of each turn its `attempt` and
    `place` (the other arena's stage), and of one that was given advice that it was `advised`. Such
    a turn stands as the answer to the prompt of the turn that it replaces, in which the advice is
    not. Turns without these notes, such as the adviser's, are no part of what was played.
    """
    noted = [turn for turn in episode.turns if "attempt" in turn.info]
    if not noted:
        return [_plain(turn) for turn in episode.turns]
    stages: dict[int, dict[int, dict[str, Turn]]] = defaultdict(lambda: defaultdict(dict))
    for turn in noted:
        stages[int(turn.info["place"])][int(turn.info["attempt"])][turn.agent] = turn
    last = max(int(turn.info["attempt"]) for turn in noted)
    end = max(place for place, attempts in stages.items() if last in attempts)
    found: list[Turn] = []
    for place in sorted(stages):
        *earlier, latest = (turns for _, turns in sorted(stages[place].items()))
        for agent, turn in latest.items() if place <= end else ():
            if turn.info.get("advised"):
                (*_, replaced) = (turns[agent] for turns in earlier if agent in turns)
                turn = replace(turn, prompt_ids=replaced.prompt_ids)
            found.append(_plain(turn))
    return found


def _plain(turn: Turn) -> Turn:
    return replace(turn, messages=(), info={})
