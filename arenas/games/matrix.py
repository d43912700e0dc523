"""Two-player matrix games: any payoffs, once or repeated, with or without cheap talk.

Before each round the `speakers`, if there are any, send the other player a short message; then both
choose an action at once and are paid by the matrix. What both have done and heard in earlier rounds
is seen by both. Where there are several matrices, one for each state of the world, the state is
drawn once an episode and shown to the `informed` players alone: then messages can matter.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from selfplay.arena import Arena
from selfplay.types import Action, InformationSet, Metric, Observation, Task

Pay = tuple[float, float]


class Matrix(Arena):
    """A normal-form game between two players, of one role or of a role each."""

    name = "matrix_v0"
    measures = {
        "team_return": Metric(unit="reward", better="higher"),
        "illegal": Metric(unit="fraction", better="lower"),
        "illegal_fraction": Metric(unit="fraction", better="lower"),
        "share_*": Metric(unit="fraction"),
    }
    chief = ("team_return",)

    def __init__(
        self,
        *,
        actions: Sequence[str],
        payoffs: Any,
        columns: Sequence[str] | None = None,
        players: tuple[str, str] = ("player", "player"),
        rounds: int = 1,
        speakers: Sequence[int] = (),
        message_length: int = 80,
        informed: Sequence[int] = (0,),
        shared_reward: bool = False,
        malformed: float = -1.0,
    ) -> None:
        """Args:
        actions: What the first player may do: a row of the matrix each.
        payoffs: Rows of columns of [first player's pay, second player's pay], or of one number
            that both are paid. Or such a matrix for each state of the world, by the state's name.
        columns: What the second player may do; the same as the first where None.
        players: The roles of the two. Players of one role share a policy; of two, they need not.
        rounds: How often the game is played. All of them are played with the same matrix.
        speakers: Which players (0, 1) send a message before each round.
        message_length: Characters of a message that reach the other player.
        informed: Which players see the state of the world, where there are several.
        shared_reward: Both are paid the mean of the two payoffs: a team (Dec-POMDP).
        malformed: The pay of a player whose move is not one of its actions. The round has then no
            outcome, so that the other one gets nothing.
        """
        names = list(players)
        super().__init__(dict.fromkeys(names, 1) if names[0] != names[1] else {names[0]: 2})
        self.moves = (tuple(actions), tuple(actions if columns is None else columns))
        for legal in self.moves:
            if not legal or len(set(legal)) < len(legal) or not all(a.strip() == a for a in legal):
                raise ValueError(
                    f"actions: {list(legal)}: different names, without white space around them"
                )
        states = payoffs if isinstance(payoffs, Mapping) else {"": payoffs}
        if not states:
            raise ValueError("payoffs: no matrix")
        self.payoffs = {
            str(state): self._table(table, f"payoffs.{state}".rstrip("."))
            for state, table in states.items()
        }
        if rounds < 1 or message_length < 1:
            raise ValueError("rounds and message_length are at least 1")
        for key, chosen in (("speakers", speakers), ("informed", informed)):
            if not set(chosen) <= {0, 1}:
                raise ValueError(f"{key}: players are 0 and 1, not {list(chosen)}")
        self.rounds, self.message_length, self.malformed = rounds, message_length, malformed
        self.speakers, self.informed = sorted(set(speakers)), set(informed)
        self.shared_reward = shared_reward

    def _table(self, table: Any, where: str) -> dict[tuple[str, str], Pay]:
        """The pay of each joint action; raises ValueError for what is no such matrix."""
        rows, columns = self.moves
        if not _is_list(table, len(rows)) or not all(_is_list(row, len(columns)) for row in table):
            raise ValueError(
                f"{where}: needs {len(rows)} rows of {len(columns)} entries, one for each action"
            )
        return {
            (row, column): _pay(table[i][j], f"{where}[{i}][{j}]")
            for i, row in enumerate(rows)
            for j, column in enumerate(columns)
        }

    def default_task(self, rng: Random) -> Task:
        """The game, in a state that the episode's seed draws."""
        return Task(id="game")

    def setup(self, task: Task, rng: Random) -> None:
        """Draw the state of the world, unless the task names it."""
        state = task.payload.get("state")
        self.state = str(rng.choice(list(self.payoffs)) if state is None else state)
        if self.state not in self.payoffs:
            raise ValueError(f"task {task.id}: no state {state!r}")
        self.played: list[dict[str, Any]] = []
        self.said: list[str] = ["", ""]
        self.talking = bool(self.speakers)
        self.earned = [0.0, 0.0]
        self.invalid = 0

    def acting(self) -> Sequence[str]:
        """The speakers, then both."""
        if self.talking:
            return [self.possible_agents[player] for player in self.speakers]
        return self.possible_agents

    def messengers(self) -> Sequence[str]:
        """All who act while they talk."""
        return self.acting() if self.talking else ()

    def view(self, agent: str) -> Observation:
        """Whose turn it is for what, and all that this player has seen and heard."""
        me = self.possible_agents.index(agent)
        phase = "message" if self.talking else "move"
        state = self.state if me in self.informed else ""
        heard = "" if self.talking else self.said[1 - me]
        history = [
            {
                "mine": entry["moves"][me],
                "theirs": entry["moves"][1 - me],
                "said": entry["said"][me],
                "heard": entry["said"][1 - me],
            }
            for entry in self.played
        ]
        said = "" if self.talking else self.said[me]
        past = [_words(**entry) for entry in history]
        words = [str(me), phase, state, *past, _words(said=said, heard=heard)]
        return Observation(
            text=" ".join(word for word in words if word),
            fields={
                "player": me,
                "phase": phase,
                "state": state,
                "heard": heard,
                "said": said,
                "history": history,
                "round": len(self.played) + 1,
                "rounds": self.rounds,
                "legal": [] if self.talking else list(self.moves[me]),
                "outcomes": self._outcomes(me, state),
                "message_length": self.message_length,
            },
        )

    def _outcomes(self, me: int, state: str) -> list[dict[str, Any]]:
        """What is paid for what, in the states that the player holds possible."""
        return [
            {
                "state": name,
                "mine": joint[me],
                "theirs": joint[1 - me],
                "pay": self._paid(pay)[me],
                "their_pay": self._paid(pay)[1 - me],
            }
            for name, table in self.payoffs.items()
            if name == state or not state
            for joint, pay in table.items()
        ]

    def _paid(self, pay: Pay) -> Pay:
        return (sum(pay) / 2, sum(pay) / 2) if self.shared_reward else pay

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Deliver the messages, or play the round."""
        if self.talking:
            for player in self.speakers:
                text = actions[self.possible_agents[player]] or ""
                self.said[player] = text[: self.message_length]
            self.talking = False
            return
        moves = [
            action if action in self.moves[player] else None
            for player, action in enumerate(actions[agent] for agent in self.possible_agents)
        ]
        pay = [self.malformed if move is None else 0.0 for move in moves]
        if None not in moves:
            pay = list(self.payoffs[self.state][str(moves[0]), str(moves[1])])
        for player, agent in enumerate(self.possible_agents):
            if moves[player] is None:
                self.note(agent, verdict="illegal")
            self.pay(agent, self._paid((pay[0], pay[1]))[player])
            self.earned[player] += pay[player]
        self.invalid += moves.count(None)
        self.played.append({"moves": [move or "nothing" for move in moves], "said": self.said})
        self.said, self.talking = ["", ""], bool(self.speakers)
        if len(self.played) == self.rounds:
            self._end()

    def _end(self) -> None:
        moves = [move for entry in self.played for move in entry["moves"]]
        known = dict.fromkeys([*self.moves[0], *self.moves[1]])
        self.measure(
            # A round's, the mean of the two players: what a team would share.
            team_return=sum(self.earned) / 2 / self.rounds,
            illegal=self.invalid / len(moves),
            illegal_fraction=self.invalid / len(moves),
            **{f"share_{action}": moves.count(action) / len(moves) for action in known},
        )
        self.finish()

    def openspiel(self, pyspiel: Any) -> Any:
        """The same game in OpenSpiel, the players moving one after the other, unseen."""
        (table,) = self.payoffs.values()
        rows, columns = self.moves
        pay = [
            [[self._paid(table[row, column])[player] for column in columns] for row in rows]
            for player in (0, 1)
        ]
        game = pyspiel.create_matrix_game("matrix", "matrix", list(rows), list(columns), *pay)
        return pyspiel.convert_to_turn_based(game)

    def information_sets(self) -> list[InformationSet]:
        """One for each player, if the game is played once, without messages, in one state."""
        if self.rounds > 1 or self.speakers or len(self.payoffs) > 1:
            return []
        self.begin(self.default_task(Random(0)), 0)
        return [
            InformationSet(
                key=f"Current player: {player}\nObserving player: {player}. Non-terminal",
                agent=agent,
                observation=self.view(agent),
                actions={move: number for number, move in enumerate(self.moves[player])},
            )
            for player, agent in enumerate(self.possible_agents)
        ]


def _words(*, said: str, heard: str, mine: str = "", theirs: str = "") -> str:
    """A round in as few words as tell it from any other."""
    parts = [said and f"said {said}", heard and f"heard {heard}", mine and f"{mine}/{theirs}"]
    return " ".join(part for part in parts if part)


def _is_list(value: Any, count: int) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == count


def _pay(entry: Any, where: str) -> Pay:
    pair = entry if _is_list(entry, 2) else (entry, entry)
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in pair):
        raise ValueError(f"{where}: {entry!r} is neither a number nor a pair of numbers")
    return float(pair[0]), float(pair[1])


def tasks(states: Sequence[str] = ()) -> list[Task]:
    """A task for each of the states; without any, one whose state is drawn in every episode."""
    named = [Task(id=f"game-{state}", payload={"state": state}) for state in states]
    return named or [Task(id="game")]


def raw_env(**settings: Any) -> Matrix:
    """The arena itself; the prisoner's dilemma unless told otherwise."""
    dilemma = {"actions": ["cooperate", "defect"], "payoffs": [[[3, 3], [0, 5]], [[5, 0], [1, 1]]]}
    return Matrix(**{**dilemma, **settings})


def env(**settings: Any) -> Any:
    """The arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
