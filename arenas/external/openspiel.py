"""OpenSpiel's games as PettingZoo envs, through shimmy, and their states and moves as text.

Shimmy's env counts chance events as moves and cuts long games off, pays a move twice if players act
at once, and ignores parameters in a game's name (`leduc_poker(players=3)`). The env of this module
ends with the game, and its rewards are the increases of the game's returns. The adapter
`arenas.external.pettingzoo` plays it with the settings `env=arenas.external.openspiel
render=arenas.external.openspiel.show action_names=arenas.external.openspiel.name_move`.
"""

from difflib import get_close_matches
from typing import Any

import numpy as np
import pyspiel
from shimmy.openspiel_compatibility import OpenSpielCompatibilityV0

from arenas.external.game_text import Stakes
from arenas.external.information_sets import information_sets
from selfplay.arena import Arena
from selfplay.errors import ConfigError
from selfplay.types import InformationSet


class OpenSpielEnv(OpenSpielCompatibilityV0):
    """A game of OpenSpiel, with moves in turn or simultaneous moves."""

    def __init__(self, *, game: str) -> None:
        """`game` is the name in OpenSpiel: `connect_four`, `leduc_poker(players=3)`.

        Raises ConfigError if OpenSpiel has no such game, and for a mean-field game.
        """
        _refuse(game)
        super().__init__(game_name=game)
        self.metadata: dict[str, Any] = {**self.metadata, "name": self.game_name}
        self.config = self._env.get_parameters()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin a game with chance events from the seed."""
        self._returns = [0.0] * len(self.possible_agents)
        super().reset(seed=seed, options=options)

    def step(self, action: Any) -> None:
        """Play the selected agent's move."""
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
        else:
            super().step(action)

    @property
    def game(self) -> Any:
        """OpenSpiel's game object."""
        return self._env

    @property
    def stakes(self) -> Stakes:
        """The game's smallest return, and True for a zero-sum game, as OpenSpiel states them."""
        utility = self.game_type.utility
        return Stakes(
            least_return=float(self.game.min_utility()),
            zero_sum=utility == pyspiel.GameType.Utility.ZERO_SUM,
        )

    def openspiel(self, pyspiel: Any) -> Any:
        """Return the same game in OpenSpiel, for `selfplay study exploitability`."""
        return self._env

    def information_sets(self, arena: Arena) -> list[InformationSet]:
        """Return the information sets with the observations of `arena`; [] if they cannot be
        listed."""
        return information_sets(arena, self)

    def public_state(self) -> dict[str, Any]:
        """Return the game's name and all its actions so far, from which the state can be rebuilt.

        The result is {} for a game in which a player does not see everything, in which players move
        at once, or whose chance OpenSpiel does not enumerate.
        """
        kind = self.game.get_type()
        if (
            kind.information != kind.Information.PERFECT_INFORMATION
            or kind.dynamics != kind.Dynamics.SEQUENTIAL
            or kind.chance_mode == kind.ChanceMode.SAMPLED_STOCHASTIC
        ):
            return {}
        return {"openspiel": str(self.game), "history": list(self.game_state.history())}

    def stand(self, state: Any) -> None:
        """Replace the current state by one in which a player has to move."""
        self.game_state = state
        self.agents = list(self.possible_agents)
        self.agent_selection = self.agent_id_name_mapping[state.current_player()]
        self._update_action_masks()
        self._update_observations()

    def _update_rewards(self) -> None:
        before, self._returns = self._returns, list(self.game_state.returns())
        self.rewards = {
            agent: now - then
            for agent, now, then in zip(self.agents, self._returns, before, strict=True)
        }

    def _update_termination_truncation(self) -> None:
        self.terminations = dict.fromkeys(self.agents, bool(self.game_state.is_terminal()))
        self.truncations = dict.fromkeys(self.agents, False)


def _refuse(game: str) -> None:
    """Raise ConfigError for an unknown game and for a mean-field game.

    OpenSpiel's own error for an unknown name lists all its games.
    """
    known = {each.short_name: each for each in pyspiel.registered_games()}
    name = game.partition("(")[0].strip()
    if name not in known:
        close = get_close_matches(name, known, n=3, cutoff=0.4) or ["tic_tac_toe", "kuhn_poker"]
        raise ConfigError(
            f"OpenSpiel has no game {name!r}; the nearest of its {len(known)} are "
            f"{', '.join(close)}"
        )
    if known[name].dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
        raise ConfigError(
            f"OpenSpiel's {name} is a mean-field game, in which a population moves instead of "
            "single players; choose a game with players"
        )


def show(env: Any, agent: str, observation: Any) -> str:
    """Return OpenSpiel's text of a player's information, or of a fully visible board."""
    state = env.unwrapped.game_state
    player, kind = env.unwrapped.agent_name_id_mapping[agent], env.unwrapped.game_type
    seen = kind.information == kind.Information.PERFECT_INFORMATION
    if kind.provides_observation_string and (seen or not kind.provides_information_state_string):
        return str(state.observation_string(player))
    if kind.provides_information_state_string:
        return str(state.information_state_string(player))
    return " ".join(f"{value:g}" for value in np.ravel(observation))


def name_move(env: Any, agent: str, action: int) -> str:
    """Return OpenSpiel's name of an action in this state."""
    player = env.unwrapped.agent_name_id_mapping[agent]
    return str(env.unwrapped.game_state.action_to_string(player, action))


def env(**settings: Any) -> OpenSpielEnv:
    """Return the game as a PettingZoo env."""
    return OpenSpielEnv(**settings)
