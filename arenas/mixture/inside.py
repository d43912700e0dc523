"""Passing on what happens in an arena that another arena plays inside."""

from collections import ChainMap
from collections.abc import Callable, Mapping

from selfplay.arena import Arena
from selfplay.types import Action


def play_stage(inner: Arena, actions: Mapping[str, Action | None]) -> dict[str, float]:
    """Play a stage of `inner`; return the metrics that it measured in this stage.

    Metrics from earlier stages, such as those that a branch has from its parent, are not returned.
    """
    known = dict(inner.metrics)
    inner.metrics = ChainMap({}, known)
    inner.play_stage(actions)
    fresh = dict(inner.metrics.maps[0])
    inner.metrics = {**known, **fresh}
    return fresh


def pass_on(
    inner: Arena, outer: Arena, *, paid: Mapping[str, float], named: Callable[[str], str]
) -> None:
    """Give the agents of `outer` the rewards and notes of the last stage of `inner`.

    A reward for an earlier move stays a reward for that move, and a move that is left out of
    learning stays left out.

    Args:
        inner: The arena that was played.
        outer: The arena whose agents made the moves.
        paid: Returns of the agents of `inner` before the stage, by name.
        named: Returns the name in `outer` of an agent of `inner`.
    """
    rest = {agent: total - paid.get(agent, 0.0) for agent, total in inner.paid.items()}
    for agent, move, reward in inner.delayed_rewards:
        outer.pay(named(agent), reward, move=move)
        rest[agent] -= reward
    inner.delayed_rewards.clear()
    for agent in inner.left_out:
        outer.leave_out(named(agent))
    inner.left_out.clear()
    for agent, reward in rest.items():
        outer.pay(named(agent), reward)
    for agent, facts in inner.notes.items():
        outer.note(named(agent), **facts)
