"""The matches of one step: the opponents, the seats and the results."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from selfplay.credit.base import pay_by_agent
from selfplay.league import Chances, LeagueState
from selfplay.league.matchmaking import Anchors, mixed
from selfplay.rng import derive
from selfplay.rollout.matches import Result, result
from selfplay.rollout.rollout import EpisodeSpec, RolloutFn
from selfplay.types import Episode, Task


@dataclass(frozen=True, kw_only=True)
class MatchAssignment:
    """The match of one group."""

    player: str
    """Policy that learns from the group."""
    opponent: str
    """Policy in the other seats; the player itself in self-play."""
    seat: str
    """The player's agent; empty in self-play."""
    seats: Sequence[str]
    """The agents of the group's task that the player or its opponent plays."""
    policy_map: Mapping[str, str]
    """`EpisodeSpec.policy_map` of the group's episodes."""
    learner: str | None
    """`EpisodeSpec.learner` of the group's episodes."""


@dataclass(frozen=True, kw_only=True)
class MatchResult:
    """The result of one game of a match between two policies."""

    match: MatchAssignment
    """The match."""
    result: Result
    """Result of the player."""
    paid: float
    """Return of the player's agent."""


@dataclass(kw_only=True)
class SeatCounts:
    """Numbers of groups so far, which decide the player and the seat of the next group."""

    groups: Counter[str] = field(default_factory=Counter)
    """Number of groups with a match by first seat and type of the task."""
    met: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Number of groups by player, opponent and first seat of the task."""

    def copy(self) -> "SeatCounts":
        """Return an independent copy."""
        return SeatCounts(groups=self.groups.copy(), met=self.met.copy())

    def state_dict(self, known: Collection[str]) -> dict[str, Any]:
        """Return the counts as plain data, without pairs of a policy that is not in `known`."""
        return {
            "groups": dict(self.groups),
            "met": [
                [*pair, count]
                for pair, count in self.met.items()
                if pair[0] in known and pair[1] in known
            ],
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any], first: Sequence[str]) -> "SeatCounts":
        """Return the counts of a `state_dict`.

        Args:
            state: The plain data.
            first: List of the arena's first seat. Counts of older runs, which have no seats, are
                counts of this seat.
        """
        groups = state["groups"] if isinstance(state["groups"], Mapping) else {}  # older runs
        met = {
            (player, other, *(seat or first)): count for player, other, *seat, count in state["met"]
        }
        return cls(groups=Counter(groups), met=Counter(met))


class StepMatches:
    """Assigns a match to every group of a step and keeps the results.

    `League.wrap` makes it in the thread that samples the step, and `League.end_step` reads it when
    the step has been learned from. The matches depend on the arguments and on the groups' seeds
    only, and assigning them changes nothing else, so that sampling may be stopped at any time.
    """

    def __init__(
        self,
        table: LeagueState,
        counts: SeatCounts,
        *,
        learning: Sequence[str],
        own: str,
        seats: Sequence[str],
        agents_of: Callable[[Task], Collection[str]],
        anchored: float = 0.0,
        opponents: int = 0,
    ) -> None:
        """Args:
        table: Players, snapshots and results that the opponents are drawn from; not changed.
        counts: Counts before the step; not changed.
        learning: Players that learn in the step, in the order in which groups go to them.
        own: The policy that plays all seats in a group without a match.
        seats: The agents that a player or its opponent plays.
        agents_of: Returns the agents that take part in a task (`Arena.agents_of`).
        anchored: Smallest fraction of the main players' groups that meet anchors.
        opponents: Number of opponents that a player draws in the step; 0: one per group.
        """
        self.table, self.counts, self.learning = table, counts.copy(), list(learning)
        self.own, self.seats, self.agents_of = own, list(seats), agents_of
        self.anchored, self.opponents = anchored, opponents
        self.results: list[MatchResult] = []
        self._matches: dict[tuple[str, int], MatchAssignment] = {}
        self._drawn: dict[str, list[str]] = defaultdict(list)
        self._asked: Counter[str] = Counter()
        self._chances: dict[str, Chances] = {}

    def wrap(self, rollout_fn: RolloutFn) -> RolloutFn:
        """Return a rollout function that assigns a match to every group and keeps the results."""

        def run_matches(specs: Sequence[EpisodeSpec]) -> list[Episode]:
            if not self.learning:
                return rollout_fn(specs)
            matches = [self._match(spec) for spec in specs]
            pairs = zip(specs, matches, strict=True)
            episodes = rollout_fn(
                [
                    replace(spec, policy_map=m.policy_map, learner=m.learner, seats=m.seats)
                    for spec, m in pairs
                ]
            )
            for match, episode in zip(matches, episodes, strict=True):
                self._keep(match, episode)
            return episodes

        return run_matches

    def chances(self, player: str) -> Chances:
        """Return the probability of each opponent of the player."""
        chances = self.table.players[player].chances(player, self.table)
        if self.anchored and player in self.table.mains:
            anchors = Anchors().chances(player, self.table)
            chances = mixed([(self.anchored, anchors), (1 - self.anchored, chances)])
        return chances

    def met(self, player: str) -> Counter[str]:
        """Return the number of the player's groups with a match, by opponent."""
        matches = [each for each in self._matches.values() if len(each.seats) > 1]
        return Counter(each.opponent for each in matches if each.player == player)

    def _match(self, spec: EpisodeSpec) -> MatchAssignment:
        """Return the match of an episode's group: the episodes of one task and seed."""
        key = (spec.task.id, spec.seed)
        if key not in self._matches:
            there = set(self.agents_of(spec.task))
            seats = [seat for seat in self.seats if seat in there]
            if len(seats) < 2:
                self._matches[key] = self._self_play(seats)
            else:
                # Each arena and type of tasks has its own count, by which the players take turns.
                # With one count for all, types that take turns too could each get one player only.
                kind = f"{seats[0]}/{spec.task.type}"
                player = self.learning[self.counts.groups[kind] % len(self.learning)]
                self.counts.groups[kind] += 1
                self._matches[key] = self._seated(player, self._opponent(player, spec), seats)
        return self._matches[key]

    def _opponent(self, player: str, spec: EpisodeSpec) -> str:
        drawn, place = self._drawn[player], self._asked[player]
        self._asked[player] += 1
        if self.opponents and len(drawn) >= self.opponents:
            return drawn[place % len(drawn)]
        if player not in self._chances:
            self._chances[player] = self.chances(player)
        chances = self._chances[player]
        rng = Random(derive(spec.seed, "league", spec.task.id))
        (name,) = rng.choices(list(chances), list(chances.values()))
        drawn.append(name)
        return name

    def _self_play(self, seats: Sequence[str]) -> MatchAssignment:
        return MatchAssignment(
            player=self.own, opponent=self.own, seat="", seats=seats, policy_map={}, learner=None
        )

    def _seated(self, player: str, opponent: str, seats: Sequence[str]) -> MatchAssignment:
        if opponent == player and player == self.own:
            return self._self_play(seats)
        pair = (player, opponent, seats[0])
        seat = seats[self.counts.met[pair] % len(seats)]
        self.counts.met[pair] += 1
        seating = {agent: opponent for agent in seats if agent != seat}
        if player != self.own:
            seating[seat] = player
        # If the opponent is a current player, it does not learn from the match of another.
        learner = player if opponent in self.table.players else None
        return MatchAssignment(
            player=player,
            opponent=opponent,
            seat=seat,
            seats=seats,
            policy_map=seating,
            learner=learner,
        )

    def _keep(self, match: MatchAssignment, episode: Episode) -> None:
        if match.opponent == match.player:
            return
        others = [seat for seat in match.seats if seat != match.seat]
        # In a game of three or more, the player is compared with one of the others: the best of
        # them would win more than half of the games against an equal policy.
        rival = others[len(self.results) % len(others)]
        found = result(episode, match.seat, rival)
        if found is not None:
            paid = pay_by_agent(episode).get(match.seat, 0.0)
            self.results.append(MatchResult(match=match, result=found, paid=paid))
