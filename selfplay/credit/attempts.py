"""Selects the turns that led to an episode's end in arenas that play some moves again."""

from collections import defaultdict
from dataclasses import replace

from selfplay.types import Episode, Turn


def decisive(episode: Episode) -> list[Turn]:
    """Return the turns that led to the end, in order, without messages and notes.

    These are all turns if no move was played again. An arena that replays another arena from some
    stage on, such as `arenas.collaboration.repair`, records in each turn's `info` its `attempt` and
    `place` (the stage of the other arena), and `advised` if the turn was given advice. An advised
    turn is returned with the prompt of the turn that it replaces, which does not contain the
    advice. Its tool calls, whose prompts contain the advice, are left out; those of any other turn
    come before this turn. Turns without an `attempt`, such as the adviser's, are left out.
    """
    noted = [turn for turn in episode.turns if "attempt" in turn.info]
    if not noted:
        return [_plain(turn) for turn in episode.turns]
    calls = _calls(episode)
    stages: dict[int, dict[int, dict[str, Turn]]] = defaultdict(lambda: defaultdict(dict))
    for turn in noted:
        stages[int(turn.info["place"])][int(turn.info["attempt"])][turn.agent] = turn
    last = max(int(turn.info["attempt"]) for turn in noted)
    end = max(place for place, attempts in stages.items() if last in attempts)
    final: list[Turn] = []
    for place in sorted(stages):
        *earlier, latest = (turns for _, turns in sorted(stages[place].items()))
        for agent, turn in latest.items() if place <= end else ():
            if turn.info.get("advised"):
                (*_, replaced) = (turns[agent] for turns in earlier if agent in turns)
                turn = replace(turn, prompt_ids=replaced.prompt_ids)
            else:
                final += map(_plain, calls[agent, turn.stage])
            final.append(_plain(turn))
    return final


def _calls(episode: Episode) -> dict[tuple[str, int], list[Turn]]:
    """Return the turns of tool calls by agent and stage."""
    found: dict[tuple[str, int], list[Turn]] = defaultdict(list)
    for turn in episode.turns:
        if not turn.final:
            found[turn.agent, turn.stage].append(turn)
    return found


def _plain(turn: Turn) -> Turn:
    return replace(turn, messages=(), info={})
