"""Exploitability of a mixture of a league's snapshots, whose equilibrium is known."""

from types import SimpleNamespace
from typing import Any

import pytest

from arenas.games.kuhn import Kuhn
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec
from selfplay.study.measures import exploitability as module
from selfplay.study.measures.exploitability import exploitability, known_game
from selfplay.study.policy_probs import ActionDistribution


def test_the_snapshots_of_a_league_are_mixed_by_their_equilibrium(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """a beats b and c beats a with probability 3/4, and b always beats c.

    The equilibrium is therefore 1/2 for a, 1/4 for b and 1/4 for c.
    """
    pytest.importorskip("scipy")
    bets = {"a": 0.1, "b": 0.5, "c": 0.9, "rival": 0.3}
    rates = {("b", "a"): 0.25, ("c", "b"): 0.0, ("c", "a"): 0.75}
    game, sets = known_game(Kuhn())

    def member(name: str) -> list[ActionDistribution]:
        mass = {"pass": 1 - bets[name], "bet": bets[name]}
        return [ActionDistribution(where=each, mass=mass) for each in sets]

    def frozen(name: str) -> Any:
        return SimpleNamespace(policy=SimpleNamespace(model=name, renderer=None))

    def reading(_: Any, *, agent_specs: Any, models: Any) -> list[ActionDistribution]:
        (name,) = models
        assert agent_specs["player"].policy == name
        return member(name)

    table = SimpleNamespace(
        snapshots=[
            SimpleNamespace(name=name, player="rival" if name == "rival" else "default")
            for name in ("rival", "a", "b", "c")
        ],
        payoff=SimpleNamespace(between=lambda home, away: (rates[home, away], 12)),
    )
    league = SimpleNamespace(
        table=table, own="default", frozen=lambda: {name: frozen(name) for name in bets}
    )
    seats = {"player": AgentSpec(role=Role(), policy="default", renderer=ByteRenderer())}
    rollout = SimpleNamespace(arena=Kuhn, agent_specs=seats)
    experiment: Any = SimpleNamespace(players=SimpleNamespace(rollout=rollout), league=league)
    monkeypatch.setattr(module, "read", reading)
    members = [member(name) for name in "abc"]
    found = {
        weighting: module._of_league(experiment, weighting, step=7)
        for weighting in ("nash", "uniform")
    }
    for weighting, weights in (("nash", [0.5, 0.25, 0.25]), ("uniform", [1 / 3] * 3)):
        wanted = exploitability(game, module.mixed(game, members, weights), step=7)
        assert found[weighting].nash_conv == pytest.approx(wanted.nash_conv, abs=1e-6)
        assert found[weighting].step == 7
    assert abs(found["nash"].nash_conv - found["uniform"].nash_conv) > 0.01
