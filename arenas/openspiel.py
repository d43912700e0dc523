"""OpenSpiel's games as PettingZoo envs, through shimmy, and their states and moves in words.

Shimmy's env counts the cards that chance deals as moves and cuts long games off, pays a move twice
where players act at once, and forgets what a game's name sets (`leduc_poker(players=3)`). This one
ends where the game ends and pays what the game's returns have grown by. With `arenas.pettingzoo`:
`env=arenas.openspiel render=arenas.openspiel.show action_names=arenas.openspiel.name_move`.
"""

from typing import Any

import numpy as np
from shimmy.openspiel_compatibility import OpenSpielCompatibilityV0


class OpenSpielEnv(OpenSpielCompatibilityV0):
    """A game of OpenSpiel, turn by turn, or all players at once where it is played so."""

    def __init__(self, *, game: str) -> None:
        """`game` is what OpenSpiel loads it by: `connect_four`, `leduc_poker(players=3)`."""
        super().__init__(game_name=game)
        self.metadata: dict[str, Any] = {**self.metadata, "name": self.game_name}
        self.config = self._env.get_parameters()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin, chance moving by the seed."""
        self._returns = [0.0] * len(self.possible_agents)
        super().reset(seed=seed, options=options)

    def step(self, action: Any) -> None:
        """The selected agent's move."""
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
        else:
            super().step(action)

    def _update_rewards(self) -> None:
        before, self._returns = self._returns, list(self.game_state.returns())
        self.rewards = {
            agent: now - then
            for agent, now, then in zip(self.agents, self._returns, before, strict=True)
        }

    def _update_termination_truncation(self) -> None:
        self.terminations = dict.fromkeys(self.agents, bool(self.game_state.is_terminal()))
        self.truncations = dict.fromkeys(self.agents, False)


def show(env: Any, agent: str, observation: Any) -> str:
    """What OpenSpiel writes for the player: all that it knows, or the board where all is seen."""
    state = env.unwrapped.game_state
    player, kind = env.unwrapped.agent_name_id_mapping[agent], env.unwrapped.game_type
    seen = kind.information == kind.Information.PERFECT_INFORMATION
    if kind.provides_observation_string and (seen or not kind.provides_information_state_string):
        return str(state.observation_string(player))
    if kind.provides_information_state_string:
        return str(state.information_state_string(player))
    return " ".join(f"{value:g}" for value in np.ravel(observation))


def name_move(env: Any, agent: str, action: int) -> str:
    """OpenSpiel's name of an action in this state."""
    player = env.unwrapped.agent_name_id_mapping[agent]
    return str(env.unwrapped.game_state.action_to_string(player, action))


def env(**settings: Any) -> OpenSpielEnv:
    """The game as an env."""
    return OpenSpielEnv(**settings)
