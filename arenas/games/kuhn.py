"""Kuhn poker: one hand with a deck of three cards, the smallest game in which one must bluff.

Both players put one chip in and are dealt a card each: J, Q or K, the third stays hidden. player_0
moves first. Each may pass or bet one more chip; after a bet the other either bets too, and the
higher card takes all, or passes and has lost its chip. Two passes compare the cards. Zero-sum; in
equilibrium player_0 loses 1/18 a hand.

What an agent sees names its card and all moves so far, so that each of the 12 information sets has
one text of its own.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from random import Random
from typing import Any, Literal, get_args

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from selfplay.arena import Arena
from selfplay.types import Action, InformationSet, Metric, Observation, Task

CARDS = ("J", "Q", "K")
MOVES = ("pass", "bet")
TO_ACT: tuple[tuple[str, ...], ...] = ((), ("pass",), ("bet",), ("pass", "bet"))
"""The moves after which somebody moves; after any others the hand is over."""

Illegal = Literal["forfeit", "pass"]


class Kuhn(Arena):
    """A single hand between player_0 and player_1."""

    name = "kuhn_v0"
    roles = {"player": 2}
    measures = {
        "player_0_payoff": Metric(unit="reward"),
        "bets": Metric(unit="count"),
        "illegal": Metric(unit="fraction", better="lower"),
        "illegal_fraction": Metric(unit="fraction", better="lower"),
    }
    chief = ("player_0_payoff",)

    def __init__(self, *, illegal: Illegal = "forfeit") -> None:
        """`illegal` says what any other text than a move is. forfeit: it loses two chips, the most
        that can be lost. pass: it counts as a pass. Both are counted by the metric `illegal`."""
        super().__init__()
        if illegal not in get_args(Illegal):
            raise ValueError(f"illegal is one of {', '.join(get_args(Illegal))}, not {illegal!r}")
        self.illegal: Illegal = illegal

    def default_task(self, rng: Random) -> Task:
        """A hand whose cards the episode's seed deals."""
        return Task(id="hand")

    def setup(self, task: Task, rng: Random) -> None:
        """Deal, unless the task names the cards of player_0 and player_1."""
        dealt = list(task.payload.get("cards") or rng.sample(CARDS, 2))
        if len(dealt) != 2 or len(set(dealt)) != 2 or not set(dealt) <= set(CARDS):
            raise ValueError(f"task {task.id}: cards are two different ones of J, Q, K: {dealt}")
        self.cards: list[str] = dealt
        self.moves: list[str] = []
        self.asked = self.refused = 0

    def acting(self) -> Sequence[str]:
        """The players take turns."""
        return [self.possible_agents[len(self.moves) % 2]]

    def view(self, agent: str) -> Observation:
        """The agent's own card and the moves of both."""
        return seen(self.cards[self.possible_agents.index(agent)], self.moves)

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """One move; the hand ends when both have passed or a bet has been answered."""
        ((agent, action),) = actions.items()
        legal = action in MOVES
        self.asked, self.refused = self.asked + 1, self.refused + (not legal)
        if not legal:
            self.note(agent, verdict="illegal")
            if self.illegal == "forfeit":
                first = agent == self.possible_agents[0]
                self._settle(-2.0 if first else 2.0, illegal=True)
                return
        self.moves.append(str(action) if legal else "pass")
        if tuple(self.moves) not in TO_ACT:
            self._settle(payoff(self.cards, self.moves), illegal=not legal)

    def _settle(self, won: float, *, illegal: bool) -> None:
        """Pay what player_0 won."""
        first, second = self.possible_agents
        self.pay(first, won)
        self.pay(second, -won)
        self.measure(player_0_payoff=won, bets=self.moves.count("bet"), illegal=illegal)
        self.measure(illegal_fraction=self.refused / self.asked)
        self.finish()

    def openspiel(self, pyspiel: Any) -> Any:
        """The same game in OpenSpiel."""
        return pyspiel.load_game("kuhn_poker")

    def information_sets(self) -> list[InformationSet]:
        """All 12, with OpenSpiel's names."""
        return [
            InformationSet(
                key=f"{CARDS.index(card)}{''.join(move[0] for move in moves)}",
                agent=self.possible_agents[len(moves) % 2],
                observation=seen(card, moves),
                actions={move: number for number, move in enumerate(MOVES)},
            )
            for card in CARDS
            for moves in TO_ACT
        ]


def seen(card: str, moves: Sequence[str]) -> Observation:
    """What the holder of a card sees after these moves: one text for each information set."""
    return Observation(
        text=" ".join([card, *moves]),
        fields={"card": card, "moves": list(moves), "legal": list(MOVES)},
    )


def payoff(cards: Sequence[str], moves: Sequence[str]) -> float:
    """What player_0 wins with these cards after these moves, which end the hand."""
    if tuple(moves) == ("bet", "pass"):
        return 1.0
    if tuple(moves) == ("pass", "bet", "pass"):
        return -1.0
    stake = 2.0 if "bet" in moves else 1.0
    return stake if CARDS.index(cards[0]) > CARDS.index(cards[1]) else -stake


def deals() -> list[Task]:
    """The six ways to deal: played equally often, they leave no luck of the cards in a step."""
    return [
        Task(id=f"deal-{''.join(cards)}", payload={"cards": list(cards)})
        for cards in permutations(CARDS, 2)
    ]


def raw_env(**settings: Any) -> Kuhn:
    """The arena itself."""
    return Kuhn(**settings)


def env(**settings: Any) -> Any:
    """The arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
