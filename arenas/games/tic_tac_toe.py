"""Tic-tac-toe, with a perfect scripted opponent.

Three marks in a row win. The squares are numbered row by row from 1 to 9. The first player has X.

Version history: v0, first version.
"""

from functools import cache
from random import Random
from typing import Any

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.games.two_player import TurnGame, words_of
from selfplay.drawing import StateDrawing, board
from selfplay.types import Metric, Observation, Task

FREE = "."
MARKS = "XO"
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


class TicTacToe(TurnGame):
    """One game; a win pays 1, a loss -1, a draw 0."""

    name = "tic_tac_toe_v0"
    measures = {
        **TurnGame.measures,
        "drawn": Metric(unit="fraction"),
        "moves": Metric(unit="count"),
    }

    def start(self, task: Task, rng: Random) -> None:
        """Set up an empty board, or the task's `board`: nine characters X, O and '.'."""
        board = str(task.payload.get("board", FREE * 9))
        ahead = board.count("X") - board.count("O")
        fits = len(board) == 9 and set(board) <= set(MARKS + FREE) and ahead in (0, 1)
        if not fits or winner(board) or FREE not in board:
            raise ValueError(f"task {task.id}: {board!r} is no board with a player to move")
        self.board = board

    def mover(self) -> int:
        """Return 0 (X) if both have equally many marks, else 1 (O)."""
        return MARKS.index(to_move(self.board))

    def legal(self) -> list[str]:
        """Return the numbers of the free squares."""
        return [str(square + 1) for square in free(self.board)]

    def seen(self, player: int, refused: str) -> Observation:
        """Return the board, row by row in one word."""
        return Observation(
            text=words_of(self.board, refused),
            fields={
                "board": self.board,
                "mark": MARKS[player],
                "legal": [] if self.finished else self.legal(),
                "refused": refused,
            },
        )

    def move(self, text: str) -> None:
        """Mark a square, and end the game after a win or on a full board."""
        self.board = marked(self.board, int(text) - 1)
        won = winner(self.board)
        if won or FREE not in self.board:
            pay = {"X": [1.0, -1.0], "O": [-1.0, 1.0], "": [0.0, 0.0]}[won]
            self.settle(pay, drawn=not won, moves=9 - self.board.count(FREE))

    def forfeited(self) -> dict[str, float]:
        """Return the metrics of a game that is not drawn."""
        return {"drawn": 0, "moves": 9 - self.board.count(FREE)}

    def draw(self, agent: str | None = None) -> StateDrawing:
        """Return the board."""
        rows = [self.board[row : row + 3] for row in (0, 3, 6)]
        return board(rows, title=f"Board {' / '.join(rows)}", free=FREE)


def free(board: str) -> list[int]:
    """Return the free squares, from 0."""
    return [square for square, mark in enumerate(board) if mark == FREE]


def to_move(board: str) -> str:
    """Return the mark of the player in turn."""
    return MARKS[board.count("X") - board.count("O")]


def marked(board: str, square: int) -> str:
    """Return the board with the next mark on a square."""
    return board[:square] + to_move(board) + board[square + 1 :]


def winner(board: str) -> str:
    """Return the mark with three in a row, or ""."""
    for a, b, c in LINES:
        if board[a] != FREE and board[a] == board[b] == board[c]:
            return board[a]
    return ""


@cache
def value(board: str) -> int:
    """Return the reward of the player in turn under perfect play: 1, 0 or -1."""
    if winner(board):
        return -1  # the other player has just won
    return max((-value(marked(board, square)) for square in free(board)), default=0)


def optimal(board: str) -> list[int]:
    """Return all squares with which the player in turn reaches its value under perfect play."""
    values = {square: -value(marked(board, square)) for square in free(board)}
    best = max(values.values())
    return [square for square, each in values.items() if each == best]


def minimax(agent: str, observation: Observation, rng: Random) -> str:
    """Return one of the optimal moves, uniformly at random."""
    return str(rng.choice(optimal(observation.fields["board"])) + 1)


def raw_env(**settings: Any) -> TicTacToe:
    """Return the arena without a wrapper."""
    return TicTacToe(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
