"""Turns of a conversation that share memory: each prompt begins with the turn before it."""

from dataclasses import replace

from selfplay.number_array import NumberArray
from selfplay.types import Episode, Turn


def sharing_prompts(episode: Episode) -> Episode:
    """Return an equal episode in which a turn shares memory with the later prompt that contains it.

    Replayed turns are not copied: they stay the same objects.
    """
    turns: list[Turn] = list(episode.turns)
    later: dict[str, NumberArray] = {}
    for place in reversed(range(episode.shared_turns, len(turns))):
        turn = turns[place]
        prompt = NumberArray.of(turn.prompt_ids, "integers")
        longer = later.get(turn.agent)
        beginning = None if longer is None else prompt.within(longer)
        if longer is None or beginning is None:
            later[turn.agent] = prompt
            continue
        said = NumberArray.of(turn.completion_ids, "integers")
        turns[place] = replace(
            turn, prompt_ids=beginning, completion_ids=said.within(longer, len(prompt)) or said
        )
    if all(now is before for now, before in zip(turns, episode.turns, strict=True)):
        return episode
    return replace(episode, turns=tuple(turns))
