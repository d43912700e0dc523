"""Base class of games in which two players move in turn."""

from collections.abc import Mapping, Sequence
from random import Random

from arenas.games.illegal_moves import SHOWN, Illegal, check_rule
from selfplay.arena import Arena
from selfplay.types import Action, Metric, Observation, Task


class TurnGame(Arena):
    """Two players who move in turn; a subclass writes the methods that here raise
    NotImplementedError, and may override `read` and `forfeited`."""

    measures = {
        "*_payoff": Metric(unit="reward"),
        "illegal": Metric(unit="count", better="lower"),
        "illegal_fraction": Metric(unit="fraction", better="lower"),
        "forfeit": Metric(unit="fraction", better="lower"),
    }

    def __init__(
        self,
        *,
        players: tuple[str, str] = ("player", "player"),
        illegal: Illegal = "lose",
        retries: int = 2,
        illegal_reward: float = -1.0,
        other_reward: float = 1.0,
    ) -> None:
        """Args:
        players: Roles of the two players. Players of the same role share a policy.
        illegal: Consequence of an illegal move: lose, retry or random_legal.
        retries: Number of times in a row that a player is asked again before it loses.
        illegal_reward: Reward of a player that loses by an illegal move.
        other_reward: Reward of the other player in that case.
        """
        first, second = players
        super().__init__({first: 2} if first == second else {first: 1, second: 1})
        self.players = tuple(self.possible_agents)
        """Names of the first and the second player. A subclass may add other agents."""
        check_rule(illegal, retries)
        self.illegal, self.retries = illegal, retries
        self.illegal_reward, self.other_reward = illegal_reward, other_reward

    def default_task(self, rng: Random) -> Task:
        """Return a game with random events from the episode's seed."""
        return Task(id="game")

    # Methods of a subclass ---------------------------------------------------------------------

    def start(self, task: Task, rng: Random) -> None:
        """Build the initial state."""
        raise NotImplementedError(f"{type(self).__name__}.start")

    def mover(self) -> int:
        """Return the player in turn: 0 or 1."""
        raise NotImplementedError(f"{type(self).__name__}.mover")

    def legal(self) -> list[str]:
        """Return the legal moves of the player in turn; unused after the end of the game."""
        raise NotImplementedError(f"{type(self).__name__}.legal")

    def seen(self, player: int, refused: str) -> Observation:
        """Return a player's observation; `refused` is its latest text if illegal, else ""."""
        raise NotImplementedError(f"{type(self).__name__}.seen")

    def move(self, text: str) -> None:
        """Play a legal move, and call `settle` if it ends the game."""
        raise NotImplementedError(f"{type(self).__name__}.move")

    def read(self, text: str) -> str | None:
        """Return the legal move that a text means, or None."""
        return text if text in self.legal() else None

    def forfeited(self) -> dict[str, float]:
        """Return the game's own metrics if an illegal move ends it now."""
        return {}

    # The arena ---------------------------------------------------------------------------------

    def setup(self, task: Task, rng: Random) -> None:
        """Reset the counts of illegal moves and start the game."""
        self.refused, self.times_refused, self.illegal_moves, self.asked = "", 0, 0, 0
        self.start(task, rng)

    def acting(self) -> Sequence[str]:
        """Return the player in turn."""
        return [self.players[self.mover()]]

    def view(self, agent: str) -> Observation:
        """Return the agent's observation, with its refused move if it is asked again."""
        player = self.players.index(agent)
        mine = not self.finished and player == self.mover()
        return self.seen(player, self.refused if mine else "")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Play the move, or apply the rule for illegal moves."""
        ((agent, action),) = actions.items()
        self.asked += 1
        move = None if action is None else self.read(action)
        if move is None:
            self.illegal_moves += 1
            self.note(agent, verdict="illegal")
            if self.illegal == "random_legal":
                move = self.rng.choice(self.legal())
            elif self.illegal == "retry" and self.times_refused < self.retries:
                self.times_refused += 1
                self.refused = (action or "")[:SHOWN] or "nothing"
                return
        self.refused, self.times_refused = "", 0
        if move is not None:
            self.move(move)
            return
        pay = [self.other_reward, self.other_reward]
        pay[self.players.index(agent)] = self.illegal_reward
        self.settle(pay, forfeit=1, **self.forfeited())

    def settle(self, pay: Sequence[float], **metrics: float) -> None:
        """End the game with these rewards of the first and the second player."""
        for agent, reward in zip(self.players, pay, strict=True):
            self.pay(agent, reward)
            self.measure(**{f"{agent}_payoff": reward})
        fraction = self.illegal_moves / max(self.asked, 1)
        self.measure(illegal=self.illegal_moves, illegal_fraction=fraction)
        self.measure(**{"forfeit": 0, **metrics})
        self.finish()


def words_of(text: str, refused: str) -> str:
    """Return an observation's text, with the refused move if there is one."""
    return f"{text} not legal: {refused}" if refused else text
