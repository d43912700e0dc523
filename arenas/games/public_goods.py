"""A public-goods game of two or more players, one-shot or repeated: a social dilemma of a group.

In each round every player has one coin and chooses at once to give or to keep it. All coins that
were given are multiplied and shared equally, also with those who kept theirs. If the multiplier is
between 1 and the number of players, keeping is a dominant action, and all are better off if all
give. Every player then sees what the others chose.

Version history: v0, first version.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from selfplay.arena import Arena
from selfplay.drawing import StateDrawing, table
from selfplay.types import Action, Metric, Observation, Task


class PublicGoods(Arena):
    """A repeated public-goods game, whose players have one role or several."""

    name = "public_goods_v0"
    measures = {
        "team_return": Metric(unit="reward", better="higher"),
        "illegal_fraction": Metric(unit="fraction", better="lower"),
        "share_give": Metric(unit="fraction"),
    }
    chief = ("team_return",)

    def __init__(
        self,
        *,
        players: Sequence[str] = ("player",) * 4,
        multiplier: float = 1.6,
        rounds: int = 1,
        actions: tuple[str, str] = ("give", "keep"),
        shared_reward: bool = False,
        fine: float = 1.0,
    ) -> None:
        """Args:
        players: Role of each player. Players of the same role share a policy.
        multiplier: Factor of the coins that were given, at least 0. Between 1 and the number of
            players the game is a dilemma.
        rounds: Number of rounds per episode.
        actions: Words for giving and for keeping the coin.
        shared_reward: If true, all get the mean of the rewards: a team (Dec-POMDP).
        fine: Pay that a player loses by a text that is neither word, at least 0. The text counts
            as giving, so that it harms no other player.
        """
        if len(players) < 2:
            raise ValueError(f"players: the game needs at least two, not {list(players)}")
        if multiplier < 0 or fine < 0:
            raise ValueError(f"multiplier and fine are at least 0, not {multiplier:g} and {fine:g}")
        if rounds < 1:
            raise ValueError(f"rounds is at least 1, not {rounds}")
        if len(set(actions)) != 2 or not all(word and word == word.strip() for word in actions):
            raise ValueError(
                f"actions: {list(actions)}: two different words, without white space around them"
            )
        super().__init__(Counter(players))
        self.give, self.keep = actions
        self.multiplier, self.rounds, self.fine = multiplier, rounds, fine
        self.shared_reward = shared_reward

    def default_task(self, rng: Random) -> Task:
        """Return the game."""
        return Task(id="game")

    def setup(self, task: Task, rng: Random) -> None:
        """Begin the first round."""
        self.played: list[dict[str, str]] = []
        self.earned = 0.0  # pay of all players
        self.invalid = 0

    def acting(self) -> Sequence[str]:
        """Return all players: they choose at once."""
        return self.possible_agents

    def view(self, agent: str) -> Observation:
        """Return the legal moves, and the player's own and the others' moves of all rounds."""
        others = [each for each in self.possible_agents if each != agent]
        history = [
            {
                "mine": moves[agent],
                "theirs": [moves[each] for each in others],
                "gave": sum(moves[each] == self.give for each in others),
            }
            for moves in self.played
        ]
        return Observation(
            text=" ".join(["move", *(f"{each['mine']}/{each['gave']}" for each in history)]),
            fields={
                "legal": [self.give, self.keep],
                "history": history,
                "round": len(self.played) + 1,
                "rounds": self.rounds,
                "players": len(self.possible_agents),
                "multiplier": self.multiplier,
                "shared": self.shared_reward,
            },
        )

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Play a round."""
        legal = {agent: actions[agent] in (self.give, self.keep) for agent in self.possible_agents}
        moves = {
            agent: str(actions[agent]) if legal[agent] else self.give
            for agent in self.possible_agents
        }
        each = self.multiplier * self._gave(moves) / len(moves)
        pay = {
            agent: each + (move == self.keep) - self.fine * (not legal[agent])
            for agent, move in moves.items()
        }
        total = sum(pay.values())
        for agent in self.possible_agents:
            if not legal[agent]:
                self.note(agent, verdict="illegal")
            self.pay(agent, total / len(pay) if self.shared_reward else pay[agent])
        self.earned += total
        self.invalid += len(legal) - sum(legal.values())
        self.played.append(moves)
        if len(self.played) == self.rounds:
            made = self.rounds * len(moves)
            self.measure(
                # Mean over rounds and players: the reward of a team.
                team_return=self.earned / made,
                illegal_fraction=self.invalid / made,
                share_give=sum(map(self._gave, self.played)) / made,
            )
            self.finish()

    def _gave(self, moves: Mapping[str, str]) -> int:
        return list(moves.values()).count(self.give)

    def draw(self, agent: str | None = None) -> StateDrawing:
        """Return the moves of all players, a row for each round; all players see them."""
        rounds = [str(number) for number in range(1, len(self.played) + 1)]
        cells = {
            (number, player): moves[player]
            for number, moves in zip(rounds, self.played, strict=True)
            for player in self.possible_agents
        }
        return table(
            rounds,
            self.possible_agents,
            cells,
            title=f"Moves: {len(self.played)} of {self.rounds} rounds played",
        )

    def explain(self) -> str:
        """Return the rules."""
        number = len(self.possible_agents)
        return "\n".join(
            [
                super().explain(),
                "",
                f"{self.rounds} round{'s' if self.rounds > 1 else ''} of {number} players.",
                f"A coin that is kept pays its owner 1; a coin that is given pays each player "
                f"{self.multiplier / number:g}.",
                f"A text that is neither {self.give} nor {self.keep} counts as {self.give}, and "
                f"costs {self.fine:g}.",
            ]
        )


def raw_env(**settings: Any) -> PublicGoods:
    """Return the arena without a wrapper."""
    return PublicGoods(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
