"""Demonstrations of designs and of moves for a tiny model that learns to design and to play.

A design is random, and of any quality: its entries are uniform up to a bound that is itself random,
and some designs are invalid. At first, a player takes the action with the largest payoff, if the
game has few actions; later it does so with a given probability, and otherwise moves at random. So a
policy can read a table at the start of training, but mostly does not play by it. In games with more
actions it moves at random from the beginning.
"""

from collections.abc import Collection, Iterator
from random import Random

from arenas.design.arena import designer_view
from arenas.design.matrix_designs import NAMES, MatrixDesigns
from arenas.design.space import Settings, play_task
from selfplay.types import Demonstration, role_of


class MatrixDesignDemonstrations:
    """Stream of random designs and random moves in matrix games."""

    def __init__(
        self,
        *,
        space: MatrixDesigns,
        design_share: float = 0.3,
        invalid: float = 0.1,
        skilled: int = 2,
        right_first: float = 1.0,
        right_last: float = 0.3,
        first: float = 0.8,
        forbidden: Collection[str] = (),
    ) -> None:
        """Args:
        space: Designs to draw from.
        design_share: Fraction of designs among the demonstrations.
        invalid: Fraction of invalid designs among these.
        skilled: Largest number of actions of either player in games in which moves are not random.
        right_first: Probability of the action with the largest payoff in these games, at first; any
            other move is uniform over all actions.
        right_last: The same probability at the end.
        first: Fraction of the warm start after which the last part begins.
        forbidden: Ids of games that are not shown, such as those of an evaluation.
        """
        shares = (design_share, invalid, right_first, right_last, first)
        if not all(0 <= share <= 1 for share in shares):
            raise ValueError(
                "design_share, invalid, right_first, right_last and first lie in [0, 1]"
            )
        self.space, self.design_share, self.invalid = space, design_share, invalid
        self.right_first, self.right_last, self.first = right_first, right_last, first
        self.skilled, self.forbidden = skilled, forbidden

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end."""
        right = self.right_first if progress < self.first else self.right_last
        while True:
            if rng.random() < self.design_share:
                yield self._designed(rng)
            else:
                yield self._moved(rng, right)

    def _drawn(self, rng: Random) -> Settings:
        """Return a random design that is not forbidden."""
        while True:
            settings = self.space.draw(rng, rng.randint(1, self.space.largest))
            if play_task(self.space, settings).id not in self.forbidden:
                return settings

    def _designed(self, rng: Random) -> Demonstration:
        settings = self._drawn(rng)
        if rng.random() < self.invalid:
            settings = self._spoiled(settings, rng)
        return Demonstration(
            role="designer",
            observation=designer_view(self.space, []),
            completion=self.space.written(settings),
        )

    def _spoiled(self, settings: Settings, rng: Random) -> Settings:
        """Return an invalid design: all entries equal, or a row that is too short."""
        table = [list(row) for row in settings["payoffs"]]
        if rng.random() < 0.5:
            table = [[table[0][0]] * len(row) for row in table]
        else:
            table[rng.randrange(len(table))].pop()
        return {**settings, "payoffs": table}

    def _moved(self, rng: Random, right: float) -> Demonstration:
        settings = self._drawn(rng)
        game = self.space.game(settings)
        game.begin(self.space.game_task(settings, rng), 0)
        for _ in range(rng.randrange(settings["rounds"])):
            game.play_stage({a: rng.choice(game.view(a).fields["legal"]) for a in game.stage})
        agent = rng.choice(game.stage)
        seen = game.view(agent)
        outcomes, table = seen.fields["outcomes"], settings["payoffs"]
        said = str(rng.choice(seen.fields["legal"]))
        if max(len(table), len(table[0])) <= self.skilled and rng.random() < right:
            said = max(outcomes, key=lambda outcome: float(outcome["pay"]))["mine"]
        return Demonstration(role=role_of(agent), observation=seen, completion=said)

    def pieces(self) -> list[str]:
        """Return the fixed parts of a design, the numbers, the actions and their pairs."""
        space = self.space
        numbers = range(space.smallest, space.largest + 1)
        rounds = range(space.rounds[0], space.rounds[1] + 1)
        return [
            *(f'{{"rounds": {r}, "payoffs": [[' for r in rounds),
            "], [",
            "]]}",
            ", ",
            *map(str, numbers),
            *(f" {number}" for number in numbers),
            *NAMES[: space.actions[1]],
            "\n",
            "Design",
        ]
