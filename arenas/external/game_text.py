"""Readable text for games whose observations are arrays of numbers.

`FORMATS` names the games: chess as a board, a FEN record and moves in standard algebraic notation;
poker as cards and chips; Hanabi in OpenSpiel's form. A config's own `render` or `action_names`
replaces the functions of this table. The table also has the smallest return of each game, from
which the reward of an illegal move follows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SUITS = {"S": "spades", "H": "hearts", "D": "diamonds", "C": "clubs"}
RANKS = {"A": "ace", "K": "king", "Q": "queen", "J": "jack", "T": "ten"}
NO_LIMIT = ("fold", "", "raise half pot", "raise pot", "all in")
"""Names of the actions of no-limit hold'em; action 1 is a check or a call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stakes:
    """Limits of the returns of a game."""

    least_return: float
    """Smallest return of a player in a game without illegal moves."""
    zero_sum: bool
    """True if the returns of a game always add up to 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """The functions that show one game and name its moves, and the game's stakes."""

    show: Callable[[Any, str, Any], str]
    """Function of the env, its agent and the observation; returns the text to show."""
    name_move: Callable[[Any, str, int], str]
    """Function of the env, its agent and an action's number; returns the move's name."""
    stakes: Stakes
    """Stakes of the game."""


def format_of(env: Any) -> Format | None:
    """Return the format of an env's game; None if the table has none."""
    return FORMATS.get(type(env.unwrapped).__module__)


# Chess -----------------------------------------------------------------------------------------


def show_chess(env: Any, agent: str, observation: Any) -> str:
    """Return the side, the last move, the FEN record, and the board with White in capitals."""
    board = env.unwrapped.board
    side = ("White", "Black")[_seat(env, agent)]
    last = "none yet"
    if board.move_stack:
        before = board.copy(stack=1)
        last = before.san(before.pop())
    ranks = [f"{8 - row} {line}" for row, line in enumerate(str(board).splitlines())]
    lines = [f"You play {side}. Last move: {last}.", f"FEN: {board.fen()}", *ranks]
    return "\n".join([*lines, "  a b c d e f g h"])


def name_chess_move(env: Any, agent: str, action: int) -> str:
    """Return the move in standard algebraic notation, such as `Nf3` or `exd8=Q+`."""
    from pettingzoo.classic.chess.chess_utils import action_to_move

    board = env.unwrapped.board
    return str(board.san(action_to_move(board, action, _seat(env, agent))))


# Poker -----------------------------------------------------------------------------------------


def show_poker(env: Any, agent: str, observation: Any) -> str:
    """Return the player's cards, the cards on the table, and the chips of each player."""
    seat, state = _seat(env, agent), _poker(env, agent)
    shown = state.get("public_cards", state.get("public_card"))
    paid = [int(chips) for chips in state["all_chips"]]
    others = [
        f"{name} {chips}"
        for place, (name, chips) in enumerate(zip(env.possible_agents, paid, strict=True))
        if place != seat
    ]
    lines = [
        f"Your cards: {_cards(state['hand'])}",
        f"Cards on the table: {_cards(shown) or 'none yet'}",
        f"Chips in the pot: {sum(paid)} (you {paid[seat]}, {', '.join(others)})",
    ]
    if "stakes" in state:
        lines.append(f"Chips that you have left: {int(state['stakes'][seat])}")
    return "\n".join(lines)


def name_limit_move(env: Any, agent: str, action: int) -> str:
    """Return `call`, `raise`, `fold` or `check`."""
    return str(env.unwrapped.env.actions[action])


def name_no_limit_move(env: Any, agent: str, action: int) -> str:
    """Return `fold`, `check` or `call`, `raise half pot`, `raise pot`, or `all in`."""
    state = _poker(env, agent)
    owes = max(state["all_chips"]) > state["all_chips"][_seat(env, agent)]
    return NO_LIMIT[action] or ("call" if owes else "check")


def _poker(env: Any, agent: str) -> Mapping[str, Any]:
    """Return RLCard's raw observation of the player, by field name."""
    state: Mapping[str, Any] = env.unwrapped.env.get_state(_seat(env, agent))["raw_obs"]
    return state


def _cards(cards: str | Sequence[str] | None) -> str:
    """Return RLCard's cards (a suit, then a rank) in words."""
    listed = [cards] if isinstance(cards, str) else cards or []
    return ", ".join(f"{RANKS.get(card[1], card[1])} of {SUITS[card[0]]}" for card in listed)


# Hanabi ----------------------------------------------------------------------------------------


def show_hanabi(env: Any, agent: str, observation: Any) -> str:
    """Return OpenSpiel's observation string, which hides the player's own cards."""
    return str(env.unwrapped.hanabi_env.game_state.observation_string(_seat(env, agent)))


def name_hanabi_move(env: Any, agent: str, action: int) -> str:
    """Return OpenSpiel's name of the move without brackets, e.g. `Reveal player +1 color R`."""
    state = env.unwrapped.hanabi_env.game_state
    return str(state.action_to_string(_seat(env, agent), action)).strip("()")


def _seat(env: Any, agent: str) -> int:
    return int(env.possible_agents.index(agent))


def _poker_format(name_move: Callable[[Any, str, int], str], *, least_return: float) -> Format:
    """Return the format of a game of poker, which is a zero-sum game."""
    stakes = Stakes(least_return=least_return, zero_sum=True)
    return Format(show=show_poker, name_move=name_move, stakes=stakes)


_CLASSIC = "pettingzoo.classic"
FORMATS: Mapping[str, Format] = {
    f"{_CLASSIC}.chess.chess": Format(
        show=show_chess,
        name_move=name_chess_move,
        stakes=Stakes(least_return=-1.0, zero_sum=True),
    ),
    f"{_CLASSIC}.hanabi.hanabi": Format(
        show=show_hanabi,
        name_move=name_hanabi_move,
        stakes=Stakes(least_return=0.0, zero_sum=False),
    ),
    # The largest loss is the blind and all raises, in big blinds.
    f"{_CLASSIC}.rlcard_envs.leduc_holdem": _poker_format(name_limit_move, least_return=-7.0),
    f"{_CLASSIC}.rlcard_envs.texas_holdem": _poker_format(name_limit_move, least_return=-25.0),
    # The largest loss is all chips.
    f"{_CLASSIC}.rlcard_envs.texas_holdem_no_limit": _poker_format(
        name_no_limit_move, least_return=-100.0
    ),
}
"""Format by the module of the env's class."""
