"""The league of a run: seats every group, books the results, adds and drops snapshots.

No league: every policy plays its own roles.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from selfplay.errors import ConfigError
from selfplay.league import Chances, LeagueState, Snapshot
from selfplay.league.config import LeagueConfig
from selfplay.league.matchmaking import Anchors, mixed
from selfplay.league.snapshots import Snapshots
from selfplay.learner import Trainer
from selfplay.learner.checkpoint import FrozenPolicy
from selfplay.rng import derive
from selfplay.rollout.matches import result, returns
from selfplay.rollout.rollout import EpisodeSpec, RolloutFn
from selfplay.types import Episode


class NoLeague:
    """What the training loop asks of a league, where there is none."""

    def __init__(self, rollout_fn: RolloutFn) -> None:
        self._play = rollout_fn

    def begin_step(self, step: int, learning: Collection[str]) -> None:
        """Nothing to seat."""

    def run(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        """The episodes of the jobs as they are."""
        return self._play(specs)

    def end_step(self) -> dict[str, float]:
        """No figures."""
        return {}

    def mix_anchors(self, share: float, *, until: int) -> None:
        """Raises ConfigError."""
        raise ConfigError("league: there are no anchors without a league; choose league=anchors")

    def frozen(self) -> dict[str, FrozenPolicy]:
        """Nothing to keep."""
        return {}

    def written(self, place: Path) -> None:
        """Nothing was."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], place: Path) -> None:
        """Nothing to restore."""


@dataclass(frozen=True, kw_only=True)
class MatchAssignment:
    """Whose group it is, and whom it meets."""

    player: str
    """Who learns."""
    opponent: str
    """Who plays the other seats; the player itself in self-play."""
    seat: str
    """Where the player sits, if the opponent is another."""
    policy_map: Mapping[str, str]
    """As a job has it."""
    learner: str | None
    """As a job has it."""


class League:
    """Stands between sampler and rollout: `play` is a rollout's, with every group seated.

    Whom a group meets depends on the group's own seed and on what was known at the step's
    beginning, and all that is known is in the checkpoint: a resumed run plays the same matches.
    Against every opponent a player sits in each seat equally often.
    """

    def __init__(
        self,
        settings: LeagueConfig,
        *,
        seats: Sequence[str],
        own: str,
        anchors: Sequence[str],
        snapshots: Snapshots,
        learners: Mapping[str, Trainer],
        rollout_fn: RolloutFn,
        seed: int,
    ) -> None:
        """Args:
        settings: As configured.
        seats: The agents that change places.
        own: The policy whose seats they are.
        anchors: Opponents that do not change.
        snapshots: Makes copies of the players.
        learners: Of the players; one that begins again forgets what it was doing.
        rollout_fn: Plays seated jobs.
        seed: The run's.
        """
        self.settings, self.seats, self.own = settings, list(seats), own
        self.snapshots, self.learners, self.seed = snapshots, learners, seed
        self._play = rollout_fn
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
        self._groups = 0
        self._met: Counter[tuple[str, str]] = Counter()
        self._played: dict[tuple[str, str, str], tuple[int, int]] = {}
        """Player, opponent and the player's seat, to games in all and the step of the latest."""
        self._last = dict.fromkeys(self.table.players, 0)
        self._anchored = (0.0, 0)
        self.begin_step(0, ())

    # A step ------------------------------------------------------------------------------------

    def begin_step(self, step: int, learning: Collection[str]) -> None:
        """Args:
        step: Which one.
        learning: The policies that learn in it: each group is the match of one of them.
        """
        self.step = step
        self._learning = [name for name in self.table.players if name in learning]
        self._fixtures: dict[tuple[str, int], MatchAssignment] = {}
        self._drawn: dict[str, list[str]] = defaultdict(list)
        self._asked: Counter[str] = Counter()
        self._chances: dict[str, Chances] = {}
        self._paid: dict[str, list[float]] = defaultdict(list)
        if self._learning and not self._begun:
            self._begun = True
            for name in self.table.mains:
                self._add(name)

    def run(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        """The episodes of the jobs, in their order, each group seated."""
        if not self._learning:
            return self._play(specs)
        fixtures = [self._fixture(job) for job in specs]
        both = zip(specs, fixtures, strict=True)
        episodes = self._play(
            [
                replace(job, policy_map=each.policy_map, learner=each.learner, seats=self.seats)
                for job, each in both
            ]
        )
        for each, episode in zip(fixtures, episodes, strict=True):
            self._book(each, episode)
        return episodes

    def end_step(self) -> dict[str, float]:
        """Add and drop snapshots, now that the players have learned; the step's figures."""
        figures = self._figures()
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
        return figures | {name: float(count) for name, count in counts.items()}

    def mix_anchors(self, share: float, *, until: int) -> None:
        """Let main players meet anchors in at least this share of their groups, up to a step.

        Raises ConfigError where there are no anchors.
        """
        if not self.table.anchors:
            raise ConfigError("league: there are no anchors; name some in population.opponents")
        self._anchored = (share, until)

    # Matches -----------------------------------------------------------------------------------

    def chances(self, player: str) -> Chances:
        """Whom the player meets in this step, and how likely."""
        found = self.table.players[player].chances(player, self.table)
        share, until = self._anchored
        if self.step <= until and player in self.table.mains:
            anchors = Anchors().chances(player, self.table)
            found = mixed([(share, anchors), (1 - share, found)])
        return found

    def _fixture(self, job: EpisodeSpec) -> MatchAssignment:
        """The match of a job's group: jobs of one task and seed are siblings."""
        key = (job.task.id, job.seed)
        if key not in self._fixtures:
            player = self._learning[self._groups % len(self._learning)]
            self._groups += 1
            self._fixtures[key] = self._seated(player, self._opponent(player, job))
        return self._fixtures[key]

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

    def _seated(self, player: str, opponent: str) -> MatchAssignment:
        if opponent == player and player == self.own:
            return MatchAssignment(
                player=player, opponent=opponent, seat="", policy_map={}, learner=None
            )
        seat = self.seats[self._met[player, opponent] % len(self.seats)]
        self._met[player, opponent] += 1
        seating = {agent: opponent for agent in self.seats if agent != seat}
        if player != self.own:
            seating[seat] = player
        # A current player who is met does not learn from a match that it did not choose.
        learner = player if opponent in self.table.players else None
        return MatchAssignment(
            player=player, opponent=opponent, seat=seat, policy_map=seating, learner=learner
        )

    def _book(self, fixture: MatchAssignment, episode: Episode) -> None:
        if fixture.opponent == fixture.player:
            return
        came = result(episode, fixture.seat, self.seats)
        if came is None:
            return
        self._paid[fixture.player].append(returns(episode).get(fixture.seat, 0.0))
        key = (fixture.player, fixture.opponent, fixture.seat)
        self._played[key] = (self._played.get(key, (0, 0))[0] + 1, self.step)
        self.table.payoff.book(fixture.player, fixture.opponent, came)
        self.ratings.book(fixture.player, fixture.opponent, came)

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
        self.snapshots.add(snapshot)
        self.table.snapshots.append(snapshot)
        self.ratings.add(snapshot.name, player)

    def _begins_again(self, player: str) -> bool:
        """Whether a player whose snapshot was made went back to its first weights."""
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
        for pair in [pair for pair in self._met if name in pair]:
            del self._met[pair]
        for key in [key for key in self._played if name in key[:2]]:
            del self._played[key]

    # What is known ------------------------------------------------------------------------------

    def _figures(self) -> dict[str, float]:
        """Of this step's matches, and of all before."""
        kinds = dict.fromkeys(self.table.players, "players")
        kinds |= dict.fromkeys(self.table.anchors, "anchors")
        found: dict[str, float] = {}
        for player in self._learning:
            met = Counter(
                "self" if each.opponent == player else kinds.get(each.opponent, "snapshots")
                for each in self._fixtures.values()
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
        """The weights that a checkpoint keeps for it."""
        return self.snapshots.frozen()

    def written(self, place: Path) -> None:
        """They stand in this checkpoint now."""
        self.snapshots.written(place)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the weights, as plain data."""
        return {
            "begun": self._begun,
            "groups": self._groups,
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
        """Restore what `state_dict` gave, with the weights of its checkpoint."""
        self._begun, self._groups = state["begun"], state["groups"]
        self._met = Counter({(player, other): count for player, other, count in state["met"]})
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
