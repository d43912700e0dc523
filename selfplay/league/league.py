"""The league of a run: plans the matches of every step, records the results, keeps snapshots."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from selfplay.errors import ConfigError
from selfplay.league import LeagueState, Snapshot
from selfplay.league.config import LeagueConfig
from selfplay.league.ratings import Payoff
from selfplay.league.snapshots import Snapshots
from selfplay.league.step_matches import SeatCounts, StepMatches
from selfplay.learner import PolicyLearner
from selfplay.learner.checkpoint_content import FrozenPolicy
from selfplay.rng import derive
from selfplay.rollout.rollout import RolloutFn


class League:
    """Plans the matches of every step and keeps the results.

    `Experiment` makes it. Two sides use it, in different threads if steps are sampled ahead of the
    learner by up to m = `max_staleness` steps:

    - The sampling side calls `wrap` once per step, in order. The matches of step s are drawn from
      the *view* after step s - 1 - m (of steps up to m + 1: from the view at the start). They
      depend on this view, on the groups' seeds and on the matches of earlier steps only.
    - The training side calls `begin_step` and `end_step` around each step. `end_step` records
      the results of step s, adds and drops snapshots, and makes the view after step s, which is a
      copy that nothing changes later. Sampling of step s + 1 + m may begin after that and not
      earlier.

    So every result counts once, and the timing of the threads changes no match. A checkpoint
    stores the state of the league, so that a resumed run plays the same matches. A player takes
    every seat of a task's arena equally often against each opponent. A task with fewer than two of
    the seats has no match and is played without opponents, as without a league.
    """

    def __init__(
        self,
        settings: LeagueConfig,
        *,
        snapshots: Snapshots,
        learners: Mapping[str, PolicyLearner],
        learning: Callable[[int], Collection[str]],
        seed: int,
        max_staleness: int = 0,
    ) -> None:
        """Args:
        settings: The settings of the config.
        snapshots: Makes and stores copies of the players.
        learners: Learners of the players; a reset player's learner is reset too.
        learning: Returns the policies that learn at a step; each group goes to one of them.
        seed: Seed of the run.
        max_staleness: Number of steps that are sampled ahead of the learner.
        """
        self.settings, self.seats, self.own = settings, settings.contested, settings.own
        self.snapshots, self.learners, self.seed = snapshots, learners, seed
        self.agents_of = settings.arena.agents_of
        """Returns the agents that take part in a task."""
        self.learning, self.max_staleness = learning, max_staleness
        self._adding = {name: each.add for name, each in settings.named().items()}
        self.ratings = settings.ratings
        self.table = LeagueState(
            players={name: each.matchmaking for name, each in settings.named().items()},
            anchors=settings.anchor_names,
            snapshots=[],
            payoff=settings.payoff,
        )
        for name in (*self.table.players, *self.table.anchors):
            self.ratings.add(name)
        self.step = 0
        self._begun = False
        self._played: dict[tuple[str, str, str], tuple[int, int]] = {}
        """Number of games and step of the latest game, by player, opponent and player's seat."""
        self._last = dict.fromkeys(self.table.players, 0)
        self._retired: list[tuple[Snapshot, int]] = []
        """Dropped snapshots, each with the last step that may seat it."""
        self._anchored: list[tuple[int, float, int]] = []
        """Fractions of anchors as (first step, fraction, last step); the latest one counts."""
        # The training side replaces these two and never changes them in place.
        self._views = {0: self._view()}
        """Views by the step after which they were made."""
        self._learned = SeatCounts()
        """Counts after the matches of the latest step that was learned from."""
        # The sampling side writes these two.
        self._counts = self._learned
        """Counts after the matches of the latest step that was sampled."""
        self._sampled: dict[int, StepMatches] = {}
        """Matches of the steps that were sampled and not learned from yet."""

    # The sampling side -------------------------------------------------------------------------

    def wrap(self, step: int, rollout_fn: RolloutFn) -> RolloutFn:
        """Return a rollout function that plays the matches of a step.

        Raises RuntimeError if the view that the matches depend on is not there yet.
        """
        matches = self.matches(step)
        self._counts = matches.counts  # the next step copies them
        self._sampled[step] = matches
        return matches.wrap(rollout_fn)

    def matches(self, step: int) -> StepMatches:
        """Return the matches of the next step, without groups so far."""
        view = self._views.get(max(0, step - 1 - self.max_staleness))
        if view is None:
            raise RuntimeError(
                f"league: step {step} was sampled before step {step - 1 - self.max_staleness} ended"
            )
        return StepMatches(
            view,
            self._counts,
            learning=self._learning(step),
            own=self.own,
            seats=self.seats,
            agents_of=self.agents_of,
            anchored=self._anchors(step),
            opponents=self.settings.opponents_per_step,
        )

    def _learning(self, step: int) -> list[str]:
        """Return the players that learn at a step."""
        learning = self.learning(step)
        return [name for name in self.table.players if name in learning]

    def _anchors(self, step: int) -> float:
        """Return the smallest fraction of a step's matches of main players against anchors."""
        _, fraction, until = ([(0, 0.0, 0), *(a for a in self._anchored if a[0] <= step)])[-1]
        return fraction if step <= until else 0.0

    # The training side -------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        """Begin a step; add the first snapshot of every main player if a player learns soon."""
        self.step = step
        if self._begin(step, step + self.max_staleness):
            view = self._view()
            self._views = dict.fromkeys(self._views, view)

    def end_step(self) -> dict[str, float]:
        """Count the step's results and add and drop snapshots, after the players' updates.

        Returns the metrics of the step. Sampling of the next step that depends on it may begin.
        """
        step, matches = self.step, self._sampled.pop(self.step)
        for each in matches.results:
            match = each.match
            key = (match.player, match.opponent, match.seat)
            self._played[key] = (self._played.get(key, (0, 0))[0] + 1, step)
            self.table.payoff.record(match.player, match.opponent, each.result)
            self.ratings.record(match.player, match.opponent, each.result)
        self._learned = matches.counts
        metrics = self._metrics(matches)
        self.snapshots.rest()
        added = [name for name in matches.learning if self._due(name)]
        for name in added:
            self._add(name)
        again = [name for name in added if self._begins_again(name)]
        dropped = self.settings.drop.dropped(self.table)
        for name in dropped:
            self._drop(name)
        counts = {"added": len(added), "dropped": len(dropped), "begun_again": len(again)}
        counts["snapshots"] = len(self.table.snapshots)
        self._remove_retired()
        self._begin(step + 1 + self.max_staleness, step + 1 + self.max_staleness)
        kept = {at: view for at, view in self._views.items() if at >= step - self.max_staleness}
        self._views = {**kept, step: self._view()}
        return metrics | {name: float(count) for name, count in counts.items()}

    def mix_anchors(self, share: float, *, until: int) -> None:
        """Assign anchors to at least a fraction of the main players' groups, up to a step.

        It begins with the first step whose sampling cannot have begun: the next step, or, if steps
        are sampled ahead, the step after the next `max_staleness` + 1 steps.

        Args:
            share: Fraction of the groups.
            until: The last step.
        Raises:
            ConfigError: If the league has no anchors.
        """
        if not self.table.anchors:
            raise ConfigError("league: there are no anchors; name some in population.opponents")
        ahead = self.max_staleness + 1 if self.max_staleness else 0
        now = [each for each in self._anchored if each[0] <= self.step][-1:]
        later = [each for each in self._anchored if each[0] > self.step]
        self._anchored = [*now, *later, (self.step + 1 + ahead, share, until)]

    def _begin(self, first: int, last: int) -> bool:
        """Add the first snapshots if a player learns in these steps; return True if any was
        added."""
        if self._begun or not any(self._learning(step) for step in range(first, last + 1)):
            return False
        self._begun = True
        for name in self.table.mains:
            self._add(name)
        return True

    def _view(self) -> LeagueState:
        """Return a copy of the table that nothing changes."""
        return self._viewed(self.table.snapshots, deepcopy(self.table.payoff))

    def _viewed(self, snapshots: Sequence[Snapshot], payoff: Payoff) -> LeagueState:
        anchors = list(self.table.anchors)
        return replace(self.table, anchors=anchors, snapshots=list(snapshots), payoff=payoff)

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
        """Leave a snapshot out of later views; steps that are sampled ahead still play it."""
        left = [each for each in self.table.snapshots if each.name != name]
        gone = [each for each in self.table.snapshots if each.name == name]
        self.table.snapshots = left
        self._retired += [(each, self.step + self.max_staleness) for each in gone]

    def _remove_retired(self) -> None:
        """Remove the dropped snapshots that no later step can seat, with their results."""
        for name in [each.name for each, last in self._retired if last <= self.step]:
            self.snapshots.remove(name)
            self.table.payoff.forget(name)
            self.ratings.forget(name)
            for key in [key for key in self._played if name in key[:2]]:
                del self._played[key]
        self._retired = [(each, last) for each, last in self._retired if last > self.step]

    # State ------------------------------------------------------------------------------

    def _metrics(self, matches: StepMatches) -> dict[str, float]:
        """Return metrics of a step's matches and of the state."""
        kinds = dict.fromkeys(self.table.players, "players")
        kinds |= dict.fromkeys(self.table.anchors, "anchors")
        paid: dict[str, list[float]] = defaultdict(list)
        for each in matches.results:
            paid[each.match.player].append(each.paid)
        found: dict[str, float] = {}
        for player in matches.learning:
            met: Counter[str] = Counter()
            for opponent, count in matches.met(player).items():
                met["self" if opponent == player else kinds.get(opponent, "snapshots")] += count
            for kind in ("self", "players", "snapshots", "anchors"):
                found[f"share/{player}/{kind}"] = met[kind] / max(met.total(), 1)
            if paid[player]:
                found[f"return/{player}"] = sum(paid[player]) / len(paid[player])
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
        """Return the state after the latest step, without weights, as plain data."""
        known = {*self.table.players, *self.table.anchors, *self.table.past()}
        known |= {each.name for each, _ in self._retired}
        return {
            "begun": self._begun,
            **self._learned.state_dict(known),
            "seats": self.seats,
            "played": [[*key, *games] for key, games in self._played.items()],
            "last": self._last,
            "anchored": [list(each) for each in self._anchored],
            "snapshots": _rows(self.table.snapshots),
            "retired": [[each.player, each.updates, last] for each, last in self._retired],
            "payoff": self.table.payoff.state_dict(),
            "ratings": self.ratings.state_dict(),
            "max_staleness": self.max_staleness,
            "views": [  # those of earlier steps: the view after this one is the state itself
                [at, _rows(view.snapshots), view.payoff.state_dict()]
                for at, view in self._views.items()
                if self.step - self.max_staleness <= at < self.step
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any], place: Path, *, step: int) -> None:
        """Restore the state after a step, and the snapshots' weights from its checkpoint.

        After a change of `max_staleness` the restored state is also the view after earlier steps.
        """
        self.step, self._begun = step, state["begun"]
        self._learned = self._counts = SeatCounts.of_state(state, self.seats[:1])
        self._sampled = {}
        self._played = {
            (player, other, seat): (games, at)
            for player, other, seat, games, at in state.get("played", ())  # older runs have none
        }
        self._last = dict(state["last"])
        self._anchored = _anchored(state["anchored"])
        self.table.snapshots = _snapshots(state["snapshots"])
        self._retired = [  # older runs have none
            (Snapshot(player=player, updates=updates), last)
            for player, updates, last in state.get("retired", ())
        ]
        self.table.payoff.load_state_dict(state["payoff"])
        self.ratings.load_state_dict(state["ratings"])
        now = self._view()
        self._views = dict.fromkeys(range(max(0, step - self.max_staleness), step + 1), now)
        same = state.get("max_staleness") == self.max_staleness  # older runs have none
        for at, rows, results in state["views"] if same else ():
            payoff = deepcopy(self.table.payoff)
            payoff.load_state_dict(results)
            self._views[at] = self._viewed(_snapshots(rows), payoff)
        retired = [each for each, _ in self._retired]
        self.snapshots.load(place, [*self.table.snapshots, *retired])


def _rows(snapshots: Sequence[Snapshot]) -> list[list[Any]]:
    return [[each.player, each.updates] for each in snapshots]


def _snapshots(rows: Sequence[Sequence[Any]]) -> list[Snapshot]:
    return [Snapshot(player=player, updates=updates) for player, updates in rows]


def _anchored(rows: Sequence[Any]) -> list[tuple[int, float, int]]:
    """Return the fractions of anchors of a state; an older run has a fraction and a last step."""
    if len(rows) == 2 and not isinstance(rows[0], list):
        share, until = rows
        return [(0, share, until)]
    return [(first, share, until) for first, share, until in rows]
