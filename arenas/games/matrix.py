"""Two-player matrix games with any payoffs, one-shot or repeated, with optional cheap talk.

Before each round the `speakers`, if any, send the other player a short message. Then both choose an
action at once and are paid by the matrix. Both players see the actions and messages of earlier
rounds. With several matrices, one per state of the world, the state is drawn once per episode and
shown only to the `informed` players; messages can then carry information.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.quotes import in_one_line
from selfplay.arena import Arena
from selfplay.drawing import StateDrawing, table
from selfplay.types import Action, InformationSet, Metric, Observation, Task

Pay = tuple[float, float]


class Matrix(Arena):
    """A normal-form game between two players, of the same role or of two roles."""

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
        malformed: float | None = None,
        malformed_move: str | None = None,
    ) -> None:
        """Args:
        actions: Actions of the first player, the rows of the matrix.
        payoffs: Matrix as a list of rows. An entry is [first player's reward, second player's
            reward], or one number that both get. With several states of the world, a mapping from
            the name of each state to its matrix.
        columns: Actions of the second player; None: those of the first.
        players: Roles of the two players. Players of the same role share a policy.
        rounds: Number of rounds per episode, all with the same matrix.
        speakers: Players (0, 1) that send a message before each round.
        message_length: Maximum characters of a message that the other player sees; the rest is cut
            off.
        informed: Players (0, 1) that see the state of the world, if there are several.
        shared_reward: If true, both get the mean of the two payoffs: a team (Dec-POMDP).
        malformed: Reward of a player whose move is not one of its actions. That round has no
            outcome, and the other player gets 0; with `shared_reward` both get half of `malformed`.
            It may not be above the smallest reward of a legal move, and with `shared_reward` not
            above twice this reward. If None, it is 1 less than the largest such number, and at
            most -1.
        malformed_move: Action of both players that is played in place of a text that is no action;
            `malformed` is not paid then. None: a round with such a text has no outcome.
        """
        names = list(players)
        super().__init__(dict.fromkeys(names, 1) if names[0] != names[1] else {names[0]: 2})
        self.players = tuple(self.possible_agents)
        """Names of the row and the column player. A subclass may add other agents."""
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
        self.rounds, self.message_length = rounds, message_length
        self.speakers, self.informed = sorted(set(speakers)), set(informed)
        self.shared_reward = shared_reward
        self.malformed = self._least(malformed)
        if malformed_move is not None and not all(malformed_move in legal for legal in self.moves):
            common = [move for move in self.moves[0] if move in self.moves[1]]
            raise ValueError(
                f"malformed_move: {malformed_move!r} is not an action of both players; choose one "
                f"of {[*common, None]}"
            )
        self.malformed_move = malformed_move

    def _table(self, table: Any, where: str) -> dict[tuple[str, str], Pay]:
        """Return the rewards per joint action; raises ValueError for another shape."""
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

    def _least(self, malformed: float | None) -> float:
        """Return the reward of a move that is no action.

        Raises ValueError if `malformed` is more than the smallest reward of a legal move or, with a
        shared reward, more than twice this reward: each player then gets half of `malformed` if one
        of the two makes no legal move.
        """
        paid = [self._paid(pay) for table in self.payoffs.values() for pay in table.values()]
        smallest = min(min(pay) for pay in paid)
        most = min(smallest, 2 * smallest) if self.shared_reward else smallest
        if malformed is not None and malformed > most:
            raise ValueError(
                f"malformed: {malformed:g} is more than the smallest reward of a legal move, so "
                f"that breaking the rules can be better than playing; set null, or at most {most:g}"
            )
        return min(most - 1.0, -1.0) if malformed is None else malformed

    def default_task(self, rng: Random) -> Task:
        """Return the game, with the state from the episode's seed."""
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
        """Return the speakers, then both players."""
        if self.talking:
            return [self.players[player] for player in self.speakers]
        return self.players

    def messengers(self) -> Sequence[str]:
        """Return the speakers in a stage of messages, otherwise ()."""
        return self.acting() if self.talking else ()

    def view(self, agent: str) -> Observation:
        """Return the phase, the legal moves and the player's history of actions and messages."""
        me = self.players.index(agent)
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
        """Return the payoffs of all joint actions, in every state that the player may be in."""
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
        """Deliver the messages or play the round."""
        if self.talking:
            for player in self.speakers:
                # A message has one line and no quotation mark, so that it cannot look like the
                # game's own words.
                text = in_one_line(actions[self.players[player]] or "").replace('"', "'")
                self.said[player] = text[: self.message_length]
            self.talking = False
            return
        moves = [
            action if action in self.moves[player] else None
            for player, action in enumerate(actions[agent] for agent in self.players)
        ]
        broken = [move is None for move in moves]
        moves = [self.malformed_move if move is None else move for move in moves]
        pay = [self.malformed if move is None else 0.0 for move in moves]
        if None not in moves:
            pay = list(self.payoffs[self.state][str(moves[0]), str(moves[1])])
        for player, agent in enumerate(self.players):
            if broken[player]:
                self.note(agent, verdict="illegal")
            self.pay(agent, self._paid((pay[0], pay[1]))[player])
            self.earned[player] += pay[player]
        self.invalid += sum(broken)
        self.played.append({"moves": [move or "nothing" for move in moves], "said": self.said})
        self.said, self.talking = ["", ""], bool(self.speakers)
        if len(self.played) == self.rounds:
            self._end()

    def _end(self) -> None:
        moves = [move for entry in self.played for move in entry["moves"]]
        known = dict.fromkeys([*self.moves[0], *self.moves[1]])
        self.measure(
            # Mean over rounds and over the two players: the reward of a team.
            team_return=sum(self.earned) / 2 / self.rounds,
            illegal=self.invalid / len(moves),
            illegal_fraction=self.invalid / len(moves),
            **{f"share_{action}": moves.count(action) / len(moves) for action in known},
        )
        self.finish()

    def draw(self, agent: str | None = None) -> StateDrawing:
        """Return the payoffs, those of player 1 after those of player 0, with the last moves."""
        me = None if agent is None else self.players.index(agent)
        known = me is None or me in self.informed or len(self.payoffs) == 1
        state = self.state if known else next(iter(self.payoffs))
        cells = {
            joint: ", ".join(f"{value:g}" for value in self._paid(pay)) if known else "?"
            for joint, pay in self.payoffs[state].items()
        }
        last = self.played[-1]["moves"] if self.played else ("", "")
        where = f"state {self.state}, " if known and self.state else ""
        return table(
            *self.moves,
            cells,
            title=f"Payoffs: {where}{len(self.played)} of {self.rounds} rounds played",
            marked={(last[0], last[1])},
        )

    def explain(self) -> str:
        """Return the rules, with the payoffs of every joint action."""
        first, second = self.players
        lines = [
            f"{f'{state}: ' if state else ''}{first} {row}, {second} {column}: "
            f"{first} gets {paid[0]:g}, {second} gets {paid[1]:g}"
            for state, table in self.payoffs.items()
            for (row, column), pay in table.items()
            for paid in [self._paid(pay)]
        ]
        rounds = f"{self.rounds} round{'s' if self.rounds > 1 else ''}."
        if self.malformed_move is not None:
            rounds += f" A text that is no action counts as {self.malformed_move}."
        return "\n".join([super().explain(), "", rounds, *lines])

    def openspiel(self, pyspiel: Any) -> Any:
        """Return the same game in OpenSpiel, where the players move in turn and the second one does
        not see the first one's move. Raises ValueError for several states of the world."""
        (table,) = self.payoffs.values()
        rows, columns = self.moves
        pay = [
            [[self._paid(table[row, column])[player] for column in columns] for row in rows]
            for player in (0, 1)
        ]
        game = pyspiel.create_matrix_game("matrix", "matrix", list(rows), list(columns), *pay)
        return pyspiel.convert_to_turn_based(game)

    def information_sets(self) -> list[InformationSet]:
        """Return a set per player; [] for several rounds or states, or with messages."""
        if self.rounds > 1 or self.speakers or len(self.payoffs) > 1:
            return []
        game = self.fork()  # an episode of this arena goes on
        game.begin(game.default_task(Random(0)), 0)
        return [
            InformationSet(
                key=f"Current player: {player}\nObserving player: {player}. Non-terminal",
                agent=agent,
                observation=game.view(agent),
                actions={move: number for number, move in enumerate(self.moves[player])},
            )
            for player, agent in enumerate(self.players)
        ]


def _words(*, said: str, heard: str, mine: str = "", theirs: str = "") -> str:
    """Return a short text of a round; a message of several words has quotation marks."""
    said, heard = (f'"{text}"' if " " in text else text for text in (said, heard))
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
    """Return a task per state; without states, one task whose episodes draw the state at random.

    Args:
        states: States of the world, by the names of `payoffs`.
    """
    named = [Task(id=f"game-{state}", payload={"state": state}) for state in states]
    return named or [Task(id="game")]


def raw_env(**settings: Any) -> Matrix:
    """Return the arena without a wrapper; the default game is the prisoner's dilemma."""
    dilemma = {"actions": ["cooperate", "defect"], "payoffs": [[[3, 3], [0, 5]], [[5, 0], [1, 1]]]}
    return Matrix(**{**dilemma, **settings})


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
