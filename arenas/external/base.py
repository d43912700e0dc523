"""Base class of the adapters of other libraries' games: agents, private randomness, copies."""

import copy
from collections.abc import Sequence
from random import Random
from typing import Any

from gymnasium.utils import EzPickle

from arenas.external.private_random import PrivateRandom
from selfplay.arena import Arena
from selfplay.errors import ConfigError
from selfplay.rng import derive
from selfplay.types import Task


class BrokenEnv(RuntimeError):
    """Raised if a game breaks a rule of its library. The episode fails, and the failure is counted
    by this class name."""


class WrappedGame(Arena):
    """A game of another library; a subclass makes, resets and steps it.

    The game's state belongs to the library. A fork copies the state if the copy is reliable, and
    otherwise plays the recorded moves again from the same seed.
    """

    services = ("wrapped",)  # not shared: __deepcopy__ and __setstate__ copy it
    wrapped: Any
    """The library's game object."""
    applied: list[Any]
    """Moves since the last restart."""
    restarted = False
    """True after the first restart."""

    def seat(self, title: str, theirs: Sequence[Any], seats: Sequence[str], where: str) -> None:
        """Name the agents `<role>_<n>` in the game's order.

        Raises ConfigError for a wrong number of roles.

        Args:
            title: Name of the game.
            theirs: The game's own agents, in its order.
            seats: Roles of these agents; all are `player` if empty.
            where: Beginning of the error.
        """
        self._title = title
        roles = list(seats) or ["player"] * len(theirs)
        if len(roles) != len(theirs):
            names = ", ".join(map(str, theirs))
            raise ConfigError(f"{where}: seats: {len(roles)} roles for the agents {names}")
        super().__init__({role: roles.count(role) for role in roles})
        ours = [f"{role}_{roles[:place].count(role)}" for place, role in enumerate(roles)]
        self._theirs = dict(zip(ours, theirs, strict=True))
        self._ours = dict(zip(theirs, ours, strict=True))

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the library's game."""
        return self._title

    def default_task(self, rng: Random) -> Task:
        """Return a game with random events from the episode's seed."""
        return Task(id="game")

    def restart(self) -> None:
        """Reset the game with the task's `seed`, or else one derived from the episode's seed."""
        given = self.task.payload.get("seed")
        self.env_seed = derive(self.seed, "env") % 2**31 if given is None else int(given)
        self.illegal_moves = self.moves_made = self.asked = 0
        self._begin_again()

    def apply(self, move: Any) -> None:
        """Step the game with its private random state, and record the move."""
        with self.private_random.swapped():
            try:
                self.step_game(move)
            except SystemExit as error:
                raise BrokenEnv("the game tried to exit the process") from error
        self.applied.append(move)

    # Methods of a subclass ---------------------------------------------------------------------

    def make_game(self) -> Any:
        """Return a new game; raises ConfigError if it cannot be made."""
        raise NotImplementedError(f"{type(self).__name__}.make_game")

    def reset_game(self) -> None:
        """Reset `wrapped` with `env_seed`."""
        raise NotImplementedError(f"{type(self).__name__}.reset_game")

    def step_game(self, move: Any) -> None:
        """Play one move in `wrapped`."""
        raise NotImplementedError(f"{type(self).__name__}.step_game")

    def place(self) -> Any:
        """Return a comparable description of the game's state, to check a copy."""
        raise NotImplementedError(f"{type(self).__name__}.place")

    # Copies ------------------------------------------------------------------------------------

    def _begin_again(self) -> None:
        self.private_random = PrivateRandom(self.env_seed)
        self.applied, self.restarted = [], True
        with self.private_random.swapped():
            self.reset_game()

    def __deepcopy__(self, memo: dict[int, Any]) -> "WrappedGame":
        twin = super().__deepcopy__(memo)
        assert isinstance(twin, WrappedGame)
        twin.wrapped = _copied(self.wrapped, memo)
        if twin.wrapped is None:
            twin._play_again(self._place())
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_place": self._place()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        place = state.pop("_place")
        self.__dict__.update(state)
        self._play_again(place)

    def _place(self) -> Any:
        return self.place() if self.restarted else None

    def _play_again(self, place: Any) -> None:
        """Make a new game and bring it to the same state, with the same seed and moves."""
        self.wrapped = self.make_game()
        if place is None:
            return
        moves = self.applied
        self._begin_again()
        for move in moves:
            self.apply(move)
        if self.place() != place:
            raise BrokenEnv("the same seed and moves do not lead to the same state")


def _copied(game: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of a game; None if it cannot be copied or its copy would be a new game.

    By gymnasium's design, copies of EzPickle envs are new games.
    """
    if any(isinstance(layer, EzPickle) for layer in _layers(game)):
        return None
    try:
        return copy.deepcopy(game, memo)
    except Exception:  # a game may raise any error; the caller plays it again
        return None


def _layers(env: Any) -> list[Any]:
    """Return an env and all envs that it wraps, the outermost first."""
    found = [env]
    while (inner := getattr(found[-1], "__dict__", {}).get("env")) is not None:
        found.append(inner)
    return found
