"""Tests of a league over a mixture of arenas: each match is among the agents of one part."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random

import pytest

from arenas.games.kuhn import Kuhn, deals
from arenas.games.tic_tac_toe import TicTacToe
from arenas.mixture.arena import Mixture
from selfplay.arena import Arena
from selfplay.curriculum.mixture import routed
from selfplay.errors import ConfigError
from selfplay.league.matchmaking import Anchors, MainExploiter
from selfplay.rollout.rollout import EpisodeSpec
from selfplay.types import Action, Episode, Observation, Task
from tests.helpers.builders import episode, turn
from tests.helpers.populations import population
from tests.helpers.scripted_league import ALL_THREE, Made

PARTS = ("kuhn", "noughts", "alone")
WORTH = {"base": 2.0, "random": 1.0, "perfect": 3.0}
"""Pay of each policy for a game of Kuhn poker; in the other parts its sign is changed."""


class Alone(Arena):
    """An arena of one agent that moves once."""

    name = "alone_v0"

    def __init__(self) -> None:
        super().__init__({"solver": 1})

    def setup(self, task: Task, rng: Random) -> None:
        """Draw nothing."""

    def acting(self) -> Sequence[str]:
        return self.agents

    def view(self, agent: str) -> Observation:
        return Observation()

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        self.finish()


@pytest.fixture(scope="module")
def arena() -> Mixture:
    return Mixture(parts={"kuhn": Kuhn(), "noughts": TicTacToe(), "alone": Alone()})


def task(part: str) -> Task:
    return routed(part, deals()[0] if part == "kuhn" else Task(id="game"))


def specs(step: int, count: int = 12) -> list[EpisodeSpec]:
    """Return two episodes for each group; the parts take turns."""
    return [
        EpisodeSpec(task=task(PARTS[group % 3]), seed=1000 * step + group, member=member)
        for group in range(count)
        for member in range(2)
    ]


class PlayedParts:
    """A game that pays each agent its policy's worth, with a sign that depends on the part."""

    def __init__(self, arena: Mixture) -> None:
        self.arena, self.specs = arena, list[EpisodeSpec]()

    def __call__(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        self.specs += specs
        return [self._played(spec) for spec in specs]

    def _played(self, spec: EpisodeSpec) -> Episode:
        sign = 1 if spec.task.id.startswith("kuhn") else -1
        agents = self.arena.agents_of(spec.task)
        policies = [spec.policy_map.get(agent, "base") for agent in agents]
        paid = [sign * WORTH.get(policy, 2.0) for policy in policies]
        rows = zip(agents, paid, policies, strict=True)
        return episode(*(turn(agent, pay, policy=policy) for agent, pay, policy in rows))


def made(arena: Mixture, **matchmaking: object) -> Made:
    return Made(
        matchmaking or {"base": ALL_THREE},  # type: ignore[arg-type]
        play=PlayedParts(arena),
        arena=arena,
    )


def test_the_agents_of_a_task_are_those_of_its_part(arena: Mixture) -> None:
    for part in PARTS:
        arena.begin(task(part), 0)
        assert arena.agents_of(task(part)) == arena.agents
    assert arena.agents_of(routed("nowhere", Task(id="game"))) == []
    assert Kuhn().agents_of(Task(id="any")) == ["player_0", "player_1"]


def test_only_agents_of_the_part_are_seated_and_each_equally_often(arena: Mixture) -> None:
    league = made(arena)
    for step in range(1, 25):
        league.begin(step)
        league.run(specs(step))
        league.league.end_step()
    taken: dict[tuple[str, str], Counter[str]] = {}
    for spec in league.play.specs:
        there = arena.agents_of(spec.task)
        assert list(spec.seats) == there and set(spec.policy_map) <= set(there)
        if len(there) == 1:
            assert not spec.policy_map and spec.learner is None
        elif spec.policy_map:
            ((seated, opponent),) = spec.policy_map.items()
            taken.setdefault((there[0], opponent), Counter())[seated] += 1
    assert len({part for part, _ in taken}) == 2 and len(taken) > 4
    for (first, opponent), seats in taken.items():
        counts = [seats[agent] for agent in seats] + [0] * (2 - len(seats))
        assert max(counts) - min(counts) <= 2, (first, opponent)  # a group has two episodes


def test_the_payoffs_are_those_of_the_parts_together(arena: Mixture) -> None:
    """Check by hand: base beats `random` at Kuhn poker and loses the other part.

    Against `perfect` it is the reverse.
    """
    league = made(arena, base=Anchors())
    payoff = league.league.table.payoff
    payoff.decay = 1.0
    league.begin(1)
    league.run(specs(1, 30))
    league.league.end_step()
    for opponent in ("random", "perfect"):
        met = [spec for spec in league.play.specs if opponent in spec.policy_map.values()]
        kuhn = sum(spec.task.id.startswith("kuhn") for spec in met)
        assert 0 < kuhn < len(met)
        won = kuhn if opponent == "random" else len(met) - kuhn
        assert payoff.games("base", opponent) == len(met)
        assert payoff.rate("base", opponent) == won / len(met)


def test_an_exploiter_has_no_match_in_a_part_with_one_seat(arena: Mixture) -> None:
    league = made(arena, base=ALL_THREE, hunter=MainExploiter())
    league.begin(1)
    league.run(specs(1, 30))
    by_part = {
        part: [spec for spec in league.play.specs if spec.task.id.startswith(part)]
        for part in PARTS
    }
    assert all(not spec.policy_map for spec in by_part["alone"])
    matched = [spec for part in PARTS[:2] for spec in by_part[part] if spec.learner != "hunter"]
    alone = sum(not spec.policy_map for spec in matched) / len(matched)
    metrics = league.league.end_step()
    assert matched and metrics["share/base/self"] == alone
    for part in ("kuhn", "noughts"):
        hunted = [spec for spec in by_part[part] if "hunter" in spec.policy_map.values()]
        assert hunted and all(spec.learner == "hunter" for spec in hunted)


def test_a_resumed_league_plays_the_same_matches(arena: Mixture, tmp_path: Path) -> None:
    one, other = made(arena), made(arena)
    for step in (1, 2, 3):
        one.begin(step)
        one.run(specs(step))
        one.league.end_step()
    other.league.load_state_dict(one.league.state_dict(), tmp_path, step=3)
    for league in (one, other):
        league.play.specs.clear()
        league.begin(4)
        league.run(specs(4))
    assert one.play.specs == other.play.specs
    assert any(chain.from_iterable(spec.policy_map for spec in one.play.specs))


def test_the_seats_of_one_part_may_be_named(arena: Mixture) -> None:
    league = Made(
        {"base": Anchors()},
        play=PlayedParts(arena),
        seats=["kuhn_player_0", "kuhn_player_1"],
        arena=arena,
    )
    league.begin(1)
    league.run(specs(1))
    for spec in league.play.specs:
        assert bool(spec.policy_map) == spec.task.id.startswith("kuhn")
    settings = league.league.settings
    assert replace(settings, seats=()).contested == arena.possible_agents
    with pytest.raises(ConfigError, match="different policies"):
        replace(settings, seats=(), population=population(arena.roles, sharing="separate"))
