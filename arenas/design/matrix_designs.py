"""Designs of two-player matrix games: the payoffs, the number of actions and of rounds."""

from collections.abc import Mapping, Sequence
from itertools import permutations
from math import gcd
from random import Random
from typing import Any, Literal, get_args

from arenas.design.space import (
    DesignSpace,
    RefusedDesign,
    Settings,
    check_keys,
    whole_number,
)
from arenas.games.matrix import Matrix
from selfplay.arena import Arena
from selfplay.errors import check_choice

Payoff = Literal["team", "zero_sum"]
NAMES = "abcde"
"""Names of the actions; their number is the largest that a space allows."""
MOST_ROUNDS = 20
KEYS = ("rounds", "payoffs")


class MatrixDesigns(DesignSpace):
    """Matrix games with integer payoffs, each written as {"rounds": r, "payoffs": [rows]}.

    The number of rows and of columns is the number of actions of the two players. Two designs are
    the same game if they differ only in the names or the order of actions, if the players change
    places, or if all payoffs are multiplied by one positive number or shifted by one number.
    """

    kind = "matrix"

    def __init__(
        self,
        *,
        payoff: Payoff = "team",
        actions: tuple[int, int] = (2, 3),
        rounds: tuple[int, int] = (1, 1),
        largest: int = 9,
    ) -> None:
        """Args:
        payoff: Meaning of an entry. team: both players get it, and it is at least 0. zero_sum: the
            first player gets it, the second its negative.
        actions: Smallest and largest number of actions of each player.
        rounds: Smallest and largest number of rounds.
        largest: Largest absolute value of an entry.
        """
        check_choice("payoff", payoff, get_args(Payoff))
        if not 2 <= actions[0] <= actions[1] <= len(NAMES):
            raise ValueError(f"actions: a range within 2 and {len(NAMES)}, not {list(actions)}")
        if not 1 <= rounds[0] <= rounds[1] <= MOST_ROUNDS or not 1 <= largest <= 999:
            raise ValueError(f"rounds: within 1 and {MOST_ROUNDS}; largest: within 1 and 999")
        self.payoff, self.largest = payoff, largest
        self.actions, self.rounds = (actions[0], actions[1]), (rounds[0], rounds[1])
        self.smallest = 0 if payoff == "team" else -largest
        self.seats = {"player": 2}

    def describe(self) -> str:
        """Return the form and the limits of a design."""
        meaning = (
            "both players are paid the entry of their two actions"
            if self.payoff == "team"
            else "the first player wins the entry of the two actions, and the second loses it"
        )
        return (
            f'A game is {{"rounds": r, "payoffs": [[...], ...]}} with r from {self.rounds[0]} to '
            f"{self.rounds[1]}. The table has {self.actions[0]} to {self.actions[1]} rows, the "
            f"actions of the first player, and {self.actions[0]} to {self.actions[1]} columns, "
            f"those of the second. Its entries are whole numbers from {self.smallest} to "
            f"{self.largest}, not all equal: {meaning}."
        )

    def read(self, given: Mapping[str, Any]) -> Settings:
        """Return rounds and payoffs; raises RefusedDesign for anything else."""
        check_keys(given, KEYS)
        rounds, rows = whole_number(given["rounds"], *self.rounds), given["payoffs"]
        if not self._has_length(rows) or not all(self._has_length(row) for row in rows):
            raise RefusedDesign("wrong_shape")
        if len({len(row) for row in rows}) > 1:
            raise RefusedDesign("wrong_shape")
        table = [[whole_number(each, self.smallest, self.largest) for each in r] for r in rows]
        if len({each for row in table for each in row}) == 1:
            raise RefusedDesign("flat")
        return {"rounds": rounds, "payoffs": table}

    def _has_length(self, given: Any) -> bool:
        return isinstance(given, list) and self.actions[0] <= len(given) <= self.actions[1]

    def canonical(self, settings: Settings) -> Any:
        """Return the rounds and the lexicographically least table of the same game."""
        table = settings["payoffs"]
        sign = 1 if self.payoff == "team" else -1
        swapped = [[sign * each for each in column] for column in zip(*table, strict=True)]
        return [settings["rounds"], min(_least(table), _least(swapped))]

    def draw(self, rng: Random, largest: int | None = None) -> Settings:
        """Return a design with uniform entries, of absolute value up to `largest` if it is
        given."""
        top = self.largest if largest is None else largest
        rounds = rng.randint(*self.rounds)
        height, width = rng.randint(*self.actions), rng.randint(*self.actions)
        while True:
            table = [
                [rng.randint(max(self.smallest, -top), top) for _ in range(width)]
                for _ in range(height)
            ]
            if len({each for row in table for each in row}) > 1:
                return {"rounds": rounds, "payoffs": table}

    def game(self, settings: Settings) -> Arena:
        """Return the matrix game; an illegal move costs 1 more than any payoff can."""
        table = settings["payoffs"]
        if self.payoff == "zero_sum":
            table = [[[each, -each] for each in row] for row in table]
        return Matrix(
            actions=NAMES[: len(table)],
            columns=NAMES[: len(table[0])],
            payoffs=table,
            rounds=settings["rounds"],
            malformed=self.smallest - 1.0,
        )

    def score(self, settings: Settings, game: Arena) -> float:
        """Return 1 minus the mean regret per round; a round with an illegal move has regret 1.

        The unit of regret is the difference between the largest and the smallest entry. The regret
        of a team is the largest entry minus the one that it got. In a zero-sum game, a player's
        regret is the payoff of the best answer to the other player's action minus the player's own
        payoff, and the regret of the round is the mean over both players. It is 0 at a saddle
        point, and above 0 in every round of a game without a saddle point.
        """
        if not isinstance(game, Matrix):
            raise TypeError(f"a matrix game is needed, not {type(game).__name__}")
        table = settings["payoffs"]
        return 1.0 - sum(self._regret(table, *entry["moves"]) for entry in game.played) / len(
            game.played
        )

    def _regret(self, table: Sequence[Sequence[int]], first: str, second: str) -> float:
        if "nothing" in (first, second):
            return 1.0
        row, column = NAMES.index(first), NAMES.index(second)
        entries = [each for entries in table for each in entries]
        unit, got = max(entries) - min(entries), table[row][column]
        if self.payoff == "team":
            return (max(entries) - got) / unit
        best = max(each[column] for each in table)
        return (best - got + got - min(table[row])) / 2 / unit


def _least(table: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the least table over all orders of rows and columns.

    Its entries are shifted and divided so that the least one is 0 and their common divisor is 1.
    """
    least = min(each for row in table for each in row)
    unit = gcd(*(each - least for row in table for each in row))
    rows = [[(each - least) // unit for each in row] for row in table]
    return min(
        [list(row) for row in zip(*sorted(zip(*order, strict=True)), strict=True)]
        for order in permutations(rows)
    )
