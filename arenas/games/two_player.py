"""Games of two players who move in turn: whose move it is, what is legal, what follows if not."""

from collections.abc import Mapping, Sequence
from random import Random

from arenas.games.illegal_moves import SHOWN, Illegal, check_rule
from selfplay.arena import Arena
from selfplay.types import Action, Metric, Observation, Task


class TurnGame(Arena):
    """Two players in turn. A subclass writes the five methods of the second part."""

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
        players: The roles of the first and of the second. Players of one role share a policy.
        illegal: What follows a text that is no legal move: lose, retry or random_legal.
        retries: How often in a row a player is asked again before it loses.
        illegal_reward: The pay of one who loses by an illegal move.
        other_reward: The pay of the other then.
        """
        first, second = players
        super().__init__({first: 2} if first == second else {first: 1, second: 1})
        check_rule(illegal, retries)
        self.illegal, self.retries = illegal, retries
        self.illegal_reward, self.other_reward = illegal_reward, other_reward

    def default_task(self, rng: Random) -> Task:
        """A game whose luck, if it has any, the episode's seed decides."""
        return Task(id="game")

    # What a subclass writes --------------------------------------------------------------------

    def start(self, task: Task, rng: Random) -> None:
        """Build the initial state."""
        raise NotImplementedError(f"{type(self).__name__}.start")

    def mover(self) -> int:
        """Whose turn it is: 0 or 1."""
        raise NotImplementedError(f"{type(self).__name__}.mover")

    def legal(self) -> list[str]:
        """The moves of the one whose turn it is; of the other and after the end, none matter."""
        raise NotImplementedError(f"{type(self).__name__}.legal")

    def seen(self, player: int, refused: str) -> Observation:
        """What a player sees; `refused` is its latest text if that was no legal move, else ""."""
        raise NotImplementedError(f"{type(self).__name__}.seen")

    def move(self, text: str) -> None:
        """Play a legal move, and call `settle` if it ends the game."""
        raise NotImplementedError(f"{type(self).__name__}.move")

    def read(self, text: str) -> str | None:
        """The legal move that a text means; None for any other text."""
        return text if text in self.legal() else None

    # The arena ---------------------------------------------------------------------------------

    def setup(self, task: Task, rng: Random) -> None:
        """Begin, with no move refused."""
        self.refused, self.times_refused, self.illegal_moves, self.asked = "", 0, 0, 0
        self.start(task, rng)

    def acting(self) -> Sequence[str]:
        """One after the other, as the game says."""
        return [self.possible_agents[self.mover()]]

    def view(self, agent: str) -> Observation:
        """What the agent sees, with its refused move if it is asked again."""
        player = self.possible_agents.index(agent)
        mine = not self.finished and player == self.mover()
        return self.seen(player, self.refused if mine else "")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Play the move, or follow the rule for what is none."""
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
        pay[self.possible_agents.index(agent)] = self.illegal_reward
        self.settle(pay, forfeit=1)

    def settle(self, pay: Sequence[float], **metrics: float) -> None:
        """End the game with this pay of the first and the second player."""
        for agent, reward in zip(self.possible_agents, pay, strict=True):
            self.pay(agent, reward)
            self.measure(**{f"{agent}_payoff": reward})
        fraction = self.illegal_moves / max(self.asked, 1)
        self.measure(illegal=self.illegal_moves, illegal_fraction=fraction)
        self.measure(**{"forfeit": 0, **metrics})
        self.finish()


def words_of(text: str, refused: str) -> str:
    """An observation's text, with the refused move if there is one."""
    return f"{text} not legal: {refused}" if refused else text
