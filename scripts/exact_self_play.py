"""Trains a policy in a small game with the exact values of all moves, in place of sampled games.

A run of `selfplay train` estimates the value of each move from sampled games. This script shows
how far the same policy, learner and objective come without the noise of the samples. Before each
step it reads the probabilities of the policy at all information sets. OpenSpiel's game tree gives
the value of each legal move if both players follow the policy afterwards. The learner gets every
legal move of every information set once, with the advantage

    n * p(move) * (value of the move - largest loss),

where n is the number of legal moves of the set. The sum over the moves is then the exact policy
gradient of the set. Illegal text costs the largest loss, as by default in the arenas, and needs no
samples, because advantages are relative to this loss. The value of a move is a mean over the
histories of the set, weighted by the probability that chance and the other player lead to them.
Every set has about the same weight, however often the policy visits it, as in magnetic mirror
descent (2206.05825).

It trains in zero-sum games of two players who move in turn, if `selfplay study exploitability` can
solve them, such as Kuhn and Leduc poker. The objective must have no ratio, and no KL term or an
exact one. It writes a run, which studies and `selfplay average` can read; a resumed run learns from
sampled games again. Needs selfplay[games].

Usage: python scripts/exact_self_play.py +experiment=tiny/leduc run.name=exact
       objective.estimator=exact [OVERRIDE ...]
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfplay.config.compose import load
from selfplay.credit.base import StatelessCredit
from selfplay.errors import ConfigError, SelfplayError
from selfplay.experiment.experiment import Experiment
from selfplay.learner.objective import Objective, PolicyLoss
from selfplay.run.directory import Run
from selfplay.run.progress import Progress
from selfplay.study.measures.exploitability import known_game
from selfplay.study.policy_probs import read
from selfplay.train import Trainer
from selfplay.types import Group, InformationSet, Sample, Turn, role_of

SAMPLED = ("curriculum.batch=1", "sampler.group_size=2", "run.episodes_every=0")
"""Overrides for the sampled games, which are played only for the metrics."""


class Tree:
    """A game of two players as a tree of histories, with the values of a policy."""

    def __init__(self, game: Any, sets: Sequence[InformationSet]) -> None:
        self._numbers = {each.key: number for number, each in enumerate(sets)}
        self.legal = np.zeros((len(sets), game.num_distinct_actions()), dtype=bool)
        """[sets, moves] True for a legal move."""
        for each in sets:
            self.legal[self._numbers[each.key], list(each.actions.values())] = True
        self._root = self._grown(game.new_initial_state())

    def _grown(self, state: Any) -> Any:
        """Return a history: pay of the first player, [(probability, history)] after chance, or
        (player, set, {move: history})."""
        if state.is_terminal():
            return float(state.returns()[0])
        if state.is_chance_node():
            return [(p, self._grown(state.child(move))) for move, p in state.chance_outcomes()]
        player = state.current_player()
        after = {move: self._grown(state.child(move)) for move in state.legal_actions()}
        return player, self._numbers[state.information_state_string(player)], after

    def values(self, policy: np.ndarray) -> np.ndarray:
        """Return [sets, moves] values of legal moves for their player; 0 elsewhere.

        Args:
            policy: [sets, moves] probabilities of legal moves.
        """
        total, weight = np.zeros(policy.shape), np.zeros(len(policy))

        def value(node: Any, reach: tuple[float, float]) -> float:
            """Return the first player's mean pay; `reach` has for each player the probability that
            chance and the other player lead to the history."""
            if isinstance(node, float):
                return node
            if isinstance(node, list):
                return sum(p * value(each, (reach[0] * p, reach[1] * p)) for p, each in node)
            player, number, after = node
            mean = 0.0
            for move, each in after.items():
                p = policy[number, move]
                later = (reach[0], reach[1] * p) if player == 0 else (reach[0] * p, reach[1])
                found = value(each, later)
                total[number, move] += reach[player] * (found if player == 0 else -found)
                mean += p * found
            weight[number] += reach[player]
            return mean

        value(self._root, (1.0, 1.0))
        return total / np.maximum(weight, 1e-300)[:, None]


def check_objective(objective: Objective) -> None:
    """Raise ConfigError for an objective that needs sampled moves."""
    if not isinstance(objective, PolicyLoss) or objective.off_policy:
        raise ConfigError("objective: set ratio=none and correction=none, as objective=magrpo does")
    if objective.kl and objective.divergence is None:
        raise ConfigError(
            f"objective.estimator: {objective.estimator} estimates the KL term from sampled moves; "
            "set objective.estimator=exact"
        )


def check_game(game: Any) -> None:
    """Raise ConfigError unless two players move in turn and one wins what the other loses."""
    import pyspiel

    kind = game.get_type()
    if (
        game.num_players() != 2
        or kind.utility != pyspiel.GameType.Utility.ZERO_SUM
        or kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL
    ):
        raise ConfigError(
            f"arena: {kind.short_name} is not a zero-sum game of two players who move in turn; "
            "choose arena=kuhn or arena=leduc"
        )


class ExactValues(StatelessCredit):
    """A credit method with samples of all legal moves of all information sets. It ignores games."""

    def __init__(self, experiment: Experiment) -> None:
        rollout = experiment.players.rollout
        self.seats = rollout.agent_specs
        game, self.sets = known_game(rollout.arena())
        self.largest_loss = float(game.min_utility())
        self.histories = Tree(game, self.sets)
        self.models = {name: each.model for name, each in experiment.policies.items()}
        self.turns = [
            {action: self._turn(where, action) for action in where.actions} for where in self.sets
        ]
        """The turn of each legal move of each information set."""

    def assign(self, groups: Sequence[Group]) -> list[Sample]:
        """Return a sample for each legal move of each information set."""
        choices = read(self.sets, agent_specs=self.seats, models=self.models)
        policy = np.zeros(self.histories.legal.shape)
        for number, choice in enumerate(choices):
            for move, p in choice.chances().items():
                policy[number, move] = p
        better = self.histories.values(policy) - self.largest_loss
        return [
            Sample(turn=turn, advantage=len(turns) * choice.mass[action] * float(gain[move]))
            for choice, turns, gain in zip(choices, self.turns, better, strict=True)
            for action, turn in turns.items()
            for move in [choice.where.actions[action]]
        ]

    def _turn(self, where: InformationSet, action: str) -> Turn:
        seat = self.seats[role_of(where.agent)]
        renderer: Any = seat.renderer
        ids = [*renderer.completion_ids(action), renderer.end_ids[0]][: seat.max_tokens]
        return Turn(
            agent=where.agent,
            role=role_of(where.agent),
            policy=seat.policy,
            version=0,
            prompt_ids=tuple(renderer.start(seat.role.prompt(where.observation))),
            completion_ids=ids,
            logprobs=(0.0,) * len(ids),
            loss_mask=(1,) * len(ids),
            temperature=seat.temperature,
            action=action,
        )


def train(overrides: Sequence[str]) -> None:
    """Train the experiment of these overrides and write its run."""
    config = load([*SAMPLED, *overrides])
    if config["run"]["name"] is None:
        raise ConfigError("run.name: the run needs a name, such as run.name=exact")
    folder = Path(config["run"]["folder"], config["run"]["name"])
    Run.check_new(folder)
    experiment = Experiment(config)
    try:
        check_objective(experiment.objective)
        check_game(known_game(experiment.players.arena())[0])
        experiment.load()
        experiment.credit = ExactValues(experiment)
        run = Run.create(folder, config)
        with Progress(experiment.settings.steps, run.folder.name) as progress:
            Trainer(experiment, run, progress).run()
    finally:
        experiment.close()


def main() -> None:
    try:
        train(sys.argv[1:])
    except SelfplayError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
