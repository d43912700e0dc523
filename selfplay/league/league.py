"""The league of a run: assigns a match to every group, books the results, keeps snapshots."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from selfplay.errors import ConfigError
from selfplay.league import Chances, LeagueState, Snapshot
from selfplay.league.config import LeagueConfig
from selfplay.league.matchmaking import Anchors, mixed
from selfplay.league.snapshots import Snapshots
from selfplay.learner import PolicyLearner
from selfplay.learner.checkpoint import FrozenPolicy
from selfplay.rng import derive
from selfplay.rollout.matches import result, returns
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
    """The agents that change seats in the group's task."""
    policy_map: Mapping[str, str]
    """`EpisodeSpec.policy_map` of the group's episodes."""
    learner: str | None
    """`EpisodeSpec.learner` of the group's episodes."""


class League:
    """Assigns a match to every group that the sampler asks for.

    `Experiment` makes it and calls it around each step; `wrap` connects it to the rollout. The
    opponent of a group depends only on the group's seed and on the state at the beginning of the
    step, which the checkpoint stores, so that a resumed run plays the same matches. A player takes
    every seat of a task's arena equally often against each opponent. A task with fewer than two of
    the seats has no match: it is played without opponents, as without a league.
    """

    def __init__(
        self,
        settings: LeagueConfig,
        *,
        seats: Sequence[str],
        own: str,
        anchors: Sequence[str],
        snapshots: Snapshots,
        learners: Mapping[str, PolicyLearner],
        agents_of: Callable[[Task], Collection[str]],
        seed: int,
    ) -> None:
        """Args:
        settings: The settings of the config.
        seats: The agents that change seats.
        own: The policy that plays these seats.
        anchors: Names of opponents that do not change.
        snapshots: Makes and stores copies of the players.
        learners: Learners of the players; a reset player's learner is reset too.
        agents_of: Returns the agents that take part in a task (`Arena.agents_of`).
        seed: Seed of the run.
        """
        self.settings, self.seats, self.own = settings, list(seats), own
        self.snapshots, self.learners, self.seed = snapshots, learners, seed
        self.agents_of = agents_of
        self._adding = {name: each.add for name, each in settings.named(own).items()}
        self.ratings = settings.ratings
        self.table = LeagueState(
            players={name: each.matchmaking for name, each in settings.named(own).items()},
            anchors=list(anchors),
            snapshots=[],
            payoff=settings.payoff,
        )
        for name in (*self.table.players, *anchors):
            self.ratings.add(name)
        self._begun = False
        self._groups: Counter[str] = Counter()
        """Number of groups with a match by first seat of the task."""
        self._met: Counter[tuple[str, str, str]] = Counter()
        """Number of groups by player, opponent and first seat of the task."""
        self._played: dict[tuple[str, str, str], tuple[int, int]] = {}
        """Number of games and step of the latest game, by player, opponent and player's seat."""
        self._last = dict.fromkeys(self.table.players, 0)
        self._anchored = (0.0, 0)
        self.begin_step(0, ())

    # A step ------------------------------------------------------------------------------------

    def begin_step(self, step: int, learning: Collection[str]) -> None:
        """Args:
        step: Number of the step.
        learning: Names of the policies that learn in it; each group is assigned to one of them.
        """
        self.step = step
        self._learning = [name for name in self.table.players if name in learning]
        self._matches: dict[tuple[str, int], MatchAssignment] = {}
        self._drawn: dict[str, list[str]] = defaultdict(list)
        self._asked: Counter[str] = Counter()
        self._chances: dict[str, Chances] = {}
        self._paid: dict[str, list[float]] = defaultdict(list)
        if self._learning and not self._begun:
            self._begun = True
            for name in self.table.mains:
                self._add(name)

    def wrap(self, rollout_fn: RolloutFn) -> RolloutFn:
        """Return a rollout function that assigns a match to every group and books the results."""

        def run_matches(specs: Sequence[EpisodeSpec]) -> list[Episode]:
            if not self._learning:
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
                self._book(match, episode)
            return episodes

        return run_matches

    def end_step(self) -> dict[str, float]:
        """Add and drop snapshots after the players' updates; return the metrics of the step."""
        metrics = self._metrics()
        self.snapshots.rest()
        added = [name for name in self._learning if self._due(name)]
        for name in added:
            self._add(name)
        again = [name for name in added if self._begins_again(name)]
        dropped = self.settings.drop.dropped(self.table)
        for name in dropped:
            self._drop(name)
        counts = {"added": len(added), "dropped": len(dropped), "begun_again": len(again)}
        counts["snapshots"] = len(self.table.snapshots)
        return metrics | {name: float(count) for name, count in counts.items()}

    def mix_anchors(self, share: float, *, until: int) -> None:
        """Assign anchors to at least a fraction of the main players' groups, up to a step.

        Args:
            share: Fraction of the groups.
            until: The last step.
        Raises:
            ConfigError: If the league has no anchors.
        """
        if not self.table.anchors:
            raise ConfigError("league: there are no anchors; name some in population.opponents")
        self._anchored = (share, until)

    # Matches -----------------------------------------------------------------------------------

    def chances(self, player: str) -> Chances:
        """Return the probability of each opponent of the player in this step."""
        chances = self.table.players[player].chances(player, self.table)
        share, until = self._anchored
        if self.step <= until and player in self.table.mains:
            anchors = Anchors().chances(player, self.table)
            chances = mixed([(share, anchors), (1 - share, chances)])
        return chances

    def _match(self, job: EpisodeSpec) -> MatchAssignment:
        """Return the match of an episode's group: the episodes of one task and seed."""
        key = (job.task.id, job.seed)
        if key not in self._matches:
            there = set(self.agents_of(job.task))
            seats = [seat for seat in self.seats if seat in there]
            if len(seats) < 2:
                self._matches[key] = self._self_play(seats)
            else:
                # In turn within each arena: parts of a mixture that come in turn too would else go
                # to one player each.
                player = self._learning[self._groups[seats[0]] % len(self._learning)]
                self._groups[seats[0]] += 1
                self._matches[key] = self._seated(player, self._opponent(player, job), seats)
        return self._matches[key]

    def _opponent(self, player: str, job: EpisodeSpec) -> str:
        drawn, place = self._drawn[player], self._asked[player]
        self._asked[player] += 1
        if self.settings.opponents_per_step and len(drawn) >= self.settings.opponents_per_step:
            return drawn[place % len(drawn)]
        if player not in self._chances:
            self._chances[player] = self.chances(player)
        chances = self._chances[player]
        rng = Random(derive(job.seed, "league", job.task.id))
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
        seat = seats[self._met[pair] % len(seats)]
        self._met[pair] += 1
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

    def _book(self, match: MatchAssignment, episode: Episode) -> None:
        if match.opponent == match.player:
            return
        came = result(episode, match.seat, match.seats)
        if came is None:
            return
        self._paid[match.player].append(returns(episode).get(match.seat, 0.0))
        key = (match.player, match.opponent, match.seat)
        self._played[key] = (self._played.get(key, (0, 0))[0] + 1, self.step)
        self.table.payoff.book(match.player, match.opponent, came)
        self.ratings.book(match.player, match.opponent, came)

    # Snapshots ---------------------------------------------------------------------------------

    def _updates(self, player: str) -> int:
        return self.snapshots.policies[player].version

    def _due(self, player: str) -> bool:
        rivals = self.table.players[player].targets(player, self.table)
        rates = self.table.rates(player, rivals)
        return self._adding[player].due(self._updates(player) - self._last[player], rates)

    def _add(self, player: str) -> None:
        snapshot = Snapshot(player=player, updates=self._updates(player))
        self._last[player] = snapshot.updates
        self.learners[player].fetch_weights()
        self.snapshots.add(snapshot)
        self.table.snapshots.append(snapshot)
        self.table.payoff.remember(snapshot.name, player)
        self.ratings.add(snapshot.name, player)

    def _begins_again(self, player: str) -> bool:
        """Reset a player to its initial weights, at random; return True if it was reset."""
        rng = Random(derive(self.seed, "league", player, self._updates(player)))
        if rng.random() >= self.table.players[player].reset:
            return False
        self.snapshots.begin_again(player)
        self.learners[player].begin_again()
        return True

    def _drop(self, name: str) -> None:
        self.table.snapshots = [each for each in self.table.snapshots if each.name != name]
        self.snapshots.remove(name)
        self.table.payoff.forget(name)
        self.ratings.forget(name)
        for pair in [pair for pair in self._met if name in pair[:2]]:
            del self._met[pair]
        for key in [key for key in self._played if name in key[:2]]:
            del self._played[key]

    # State ------------------------------------------------------------------------------

    def _metrics(self) -> dict[str, float]:
        """Return metrics of this step's matches and of the state."""
        kinds = dict.fromkeys(self.table.players, "players")
        kinds |= dict.fromkeys(self.table.anchors, "anchors")
        found: dict[str, float] = {}
        for player in self._learning:
            met = Counter(
                "self" if each.opponent == player else kinds.get(each.opponent, "snapshots")
                for each in self._matches.values()
                if each.player == player
            )
            for kind in ("self", "players", "snapshots", "anchors"):
                found[f"share/{player}/{kind}"] = met[kind] / max(met.total(), 1)
            if self._paid[player]:
                found[f"return/{player}"] = sum(self._paid[player]) / len(self._paid[player])
        for player in self.table.players:
            found[f"rating/{player}"] = self.ratings.rating(player)
            for opponent in (*self.table.players, *self.table.anchors, *self.table.past()):
                if self.table.payoff.games(player, opponent):
                    rate = self.table.payoff.rate(player, opponent)
                    found[f"win_rate/{player}/{opponent}"] = rate
        for name in (*self.table.anchors, *self.table.past()):
            if any(self.table.payoff.games(player, name) for player in self.table.players):
                found[f"rating/{name}"] = self.ratings.rating(name)
        return found

    def frozen(self) -> dict[str, FrozenPolicy]:
        """Return the policies whose weights a checkpoint stores for the league."""
        return self.snapshots.frozen()

    def written(self, place: Path) -> None:
        """Remember the checkpoint that now stores the snapshots."""
        self.snapshots.written(place)

    def state_dict(self) -> dict[str, Any]:
        """Return the state without weights, as plain data."""
        return {
            "begun": self._begun,
            "groups": dict(self._groups),
            "met": [[*pair, count] for pair, count in self._met.items()],
            "seats": self.seats,
            "played": [[*key, *games] for key, games in self._played.items()],
            "last": self._last,
            "anchored": list(self._anchored),
            "snapshots": [[each.player, each.updates] for each in self.table.snapshots],
            "payoff": self.table.payoff.state_dict(),
            "ratings": self.ratings.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], place: Path) -> None:
        """Restore a state and the snapshots' weights from its checkpoint."""
        groups = state["groups"]
        if isinstance(groups, int):  # older runs have one number for all arenas
            groups = {self.seats[0]: groups}
        self._begun, self._groups = state["begun"], Counter(groups)
        self._met = Counter(
            {  # older runs have no first seat
                (player, other, *(seat or self.seats[:1])): count
                for player, other, *seat, count in state["met"]
            }
        )
        self._played = {
            (player, other, seat): (games, step)
            for player, other, seat, games, step in state.get("played", ())  # older runs have none
        }
        self._last = dict(state["last"])
        share, until = state["anchored"]
        self._anchored = (share, until)
        self.table.snapshots = [Snapshot(player=p, updates=n) for p, n in state["snapshots"]]
        self.table.payoff.load_state_dict(state["payoff"])
        self.ratings.load_state_dict(state["ratings"])
        self.snapshots.load(place, self.table.snapshots)
