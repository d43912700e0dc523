"""A long road: two walkers are paid once, at the end, for the few forks that they passed together.

In every round both walkers choose left or right at once. A few rounds are forks: the team passes a
fork if each walker makes the move that is right there for this walker. In all other rounds the
moves change nothing. At the end both are paid the same: the fraction of the forks that the team has
passed, minus the fraction of moves that were illegal.

A walker sees its number, how many forks it has met, how many of these were passed, and whether it
stands at a fork. It does not see the round: 64 rounds with 4 forks have 50 different observations.
An observation is a Markov state: if all moves are legal, the expected return of a policy depends on
the past only through the observation.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from selfplay.arena import Arena
from selfplay.types import Action, Metric, Observation, Task

MOVES = ("left", "right")


class LongRoad(Arena):
    """One walk of two walkers; random play has the mean return 1/4, and optimal play 1."""

    name = "long_road_v0"
    roles = {"walker": 2}
    measures = {
        "passed": Metric(unit="fraction", better="higher"),
        "illegal_fraction": Metric(unit="fraction", better="lower"),
    }
    chief = ("passed",)

    def __init__(self, *, rounds: int = 64, forks: int = 4, late: bool = True) -> None:
        """Args:
        rounds: Number of rounds; each has a turn of both walkers.
        forks: Number of forks, one in the middle of each of as many equal parts of the road.
        late: True: all is paid in the last round. False: each fork and each illegal move is paid
            in its own round.
        """
        super().__init__()
        if not 1 <= forks <= rounds:
            raise ValueError(f"forks: {forks} is not between 1 and rounds ({rounds})")
        self.rounds, self.forks, self.late = rounds, forks, late
        self.places = [rounds * (2 * fork + 1) // (2 * forks) for fork in range(forks)]

    def setup(self, task: Task, rng: Random) -> None:
        """Begin at the first round."""
        self.round = self.met = self.passed = self.illegal = 0
        self.earned = 0.0

    def acting(self) -> Sequence[str]:
        """Return both walkers."""
        return self.possible_agents

    @property
    def at_fork(self) -> bool:
        """True if this round is a fork."""
        return self.round in self.places

    def view(self, agent: str) -> Observation:
        """Return what a walker sees of its place."""
        walker = self.possible_agents.index(agent)
        place = "fork" if self.at_fork else "road"
        return Observation(
            text=f"walker {walker} {place} met {self.met} passed {self.passed}",
            fields={
                "walker": walker,
                "place": place,
                "met": self.met,
                "passed": self.passed,
                "forks": self.forks,
                "rounds": self.rounds,
                "legal": list(MOVES),
            },
        )

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Play one round."""
        moves = [actions[agent] for agent in self.possible_agents]
        for agent in self.possible_agents:
            if actions[agent] not in MOVES:
                self.illegal += 1
                self.earned -= 1 / (2 * self.rounds)
                self.note(agent, verdict="illegal")
        if self.at_fork:
            if moves == right_moves(self.met):
                self.passed += 1
                self.earned += 1 / self.forks
            self.met += 1
        self.round += 1
        if self.round == self.rounds or not self.late:
            for agent in self.possible_agents:
                self.pay(agent, self.earned)
            self.earned = 0.0
        if self.round == self.rounds:
            self.measure(
                passed=self.passed / self.forks,
                illegal_fraction=self.illegal / (2 * self.rounds),
            )
            self.finish()


def right_moves(fork: int) -> list[str]:
    """Return the right move of each walker at a fork; four forks have all four pairs of moves."""
    return [MOVES[fork >> walker & 1] for walker in (0, 1)]


def raw_env(**settings: Any) -> LongRoad:
    """Return the arena without a wrapper."""
    return LongRoad(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
