"""Any PettingZoo env as an arena: observations and moves are text, rewards are the env's.

Agents of an AEC env move in turn, those of a parallel env at once; PettingZoo's own conversion
turns a parallel env into an AEC env. OpenSpiel's games are available through
`arenas/external/openspiel.py`.

Version history: v0, first version.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.external.base import BrokenEnv, WrappedGame
from arenas.external.boards import MASK, written
from arenas.external.game_text import Stakes, format_of
from arenas.external.imports import Factory, function, make_env
from arenas.external.moves import Moves, check_moves_written
from arenas.external.pictures import grid, picture
from arenas.external.private_random import PrivateRandom
from arenas.games.illegal_moves import SHOWN, Illegal, check_rule
from selfplay.drawing import StateDrawing
from selfplay.errors import ConfigError
from selfplay.types import Action, InformationSet, Metric, Observation, Task

MOST_NUMBERS = 20_000
"""Maximum numbers of an observation for the default rendering; pictures need their own function."""
LEAST_COST = -1.0
"""Reward of an illegal move that ends a game, if nothing else is known."""


class PettingZoo(WrappedGame):
    """Adapter from an env to an arena; the env's agents become `<role>_<n>`, in the same order."""

    measures = {
        "*_return": Metric(unit="reward"),
        "forfeit": Metric(unit="fraction", better="lower"),
        "illegal": Metric(unit="count", better="lower"),
        "illegal_fraction": Metric(unit="fraction", better="lower"),
        "moves": Metric(unit="count"),
    }

    def __init__(
        self,
        *,
        env: str | Factory,
        arguments: Mapping[str, Any] | None = None,
        seats: Sequence[str] = (),
        rules: str = "",
        render: str | Callable[[Any, str, Any], str] | None = None,
        action_names: Sequence[str] | str | Callable[[Any, str, int], str] | None = None,
        illegal: Illegal = "lose",
        retries: int = 2,
        illegal_reward: float | None = None,
        others_reward: float | None = None,
    ) -> None:
        """Args:
        env: An id of PettingZoo's registry (`classic/chess-v6`), a module
            (`pettingzoo.classic.tictactoe_v3`), or a function that makes an AEC or parallel env.
        arguments: Keyword arguments of the env.
        seats: Roles of the env's agents; all are `player` if empty.
        rules: Rules of the game in the prompt.
        render: Function (or its import path) of the env, its agent and the observation, that
            returns the text to show. If None, the game's own in `arenas.external.game_text`, or
            else `arenas.external.boards.written` of the observation.
        action_names: Names of a discrete space's actions in order, or a function (or its import
            path) of the env, its agent and the action's number. If None, the game's own in
            `arenas.external.game_text`, or else the numbers themselves.
        illegal: Consequence of an illegal move: lose, retry or random_legal.
        retries: Number of times in a row that a player is asked again before it loses.
        illegal_reward: Reward of a player that loses by an illegal move. If None, it is at most
            -1, and brings the player's return down to the game's smallest, which OpenSpiel and
            `arenas.external.game_text` know; for other games it is -1, with a warning if a game
            pays less.
        others_reward: Reward of each other player in that case. If None, the negative of the
            loser's if the game is known to be a zero-sum game of two players, and otherwise 0.
        """
        self.env, self.arguments = env, dict(arguments or {})
        self.wrapped = self.make_game()
        theirs = list(getattr(self.wrapped, "possible_agents", ()))
        if not theirs:
            raise ConfigError(f"env {env}: names no possible_agents, so it has no players")
        metadata = getattr(self.wrapped, "metadata", {})
        title = str(metadata.get("name", type(self.wrapped).__name__))
        self.seat(title, theirs, seats, f"env {env}")
        check_rule(illegal, retries)
        self.illegal, self.retries = illegal, retries
        self.illegal_reward, self.others_reward = illegal_reward, others_reward
        self.rules = rules
        known = format_of(self.wrapped)
        stakes = known.stakes if known else getattr(self.wrapped.unwrapped, "stakes", None)
        self.stakes = stakes if isinstance(stakes, Stakes) else None
        self.show = function(render, "render") if isinstance(render, str) else render
        self.action_names: Any = action_names
        if known is not None:
            self.show = self.show or known.show
            self.action_names = known.name_move if action_names is None else action_names
        if isinstance(action_names, str):
            self.action_names = function(action_names, "action_names")
        self._refuse_unwritten()

    def make_game(self) -> Any:
        """Make the env with a fixed random state; convert a parallel env."""
        with PrivateRandom(0).swapped():
            made = make_env(self.env, self.arguments)
        self.simultaneous = isinstance(made, ParallelEnv)
        if self.simultaneous:
            made = parallel_to_aec(made)
        if not isinstance(made, AECEnv):
            raise ConfigError(f"env {self.env}: a {type(made).__name__} is no PettingZoo env")
        self._new = True
        return made

    def _refuse_unwritten(self) -> None:
        for theirs in self._ours:
            check_moves_written(self.wrapped.action_space(theirs), f"env {self.env}")
            size = _numbers(self.wrapped.observation_space(theirs))
            if self.show is None and size > MOST_NUMBERS:
                raise ConfigError(
                    f"env {self.env}: an observation has {size} numbers, too many to write; name a "
                    "function that shows it: render=package.module.name"
                )

    @property
    def openspiel(self) -> Callable[[Any], Any]:
        """Function that returns the game in OpenSpiel; AttributeError for another env."""
        found: Callable[[Any], Any] = self.wrapped.unwrapped.openspiel
        return found

    @property
    def information_sets(self) -> Callable[[], list[InformationSet]]:
        """Function that lists the information sets; AttributeError for another env."""
        return partial(self.wrapped.unwrapped.information_sets, self)

    # The game ----------------------------------------------------------------------------------

    def explain(self) -> str:
        """Return the rules that the config gives, or else the name of the game."""
        return self.rules or f"{self.name}. The config has no rules of this game (arena.rules)."

    def setup(self, task: Task, rng: Random) -> None:
        """Reset the env with the task's `seed` and `options`, or a seed from the episode's."""
        self.chosen: dict[str, Any] = {}
        self.refused: dict[str, str] = {}
        self.asked_again: dict[str, int] = {}
        self.restart()
        self._open_stage()

    def acting(self) -> Sequence[str]:
        """Return the agents due to move: all living ones of a parallel env, otherwise one."""
        return [agent for agent in self.due if agent not in self.chosen]

    def view(self, agent: str) -> Observation:
        """Return the env's observation of the agent as text, with its legal moves."""
        theirs = self._theirs[agent]
        if theirs not in self.wrapped.agents:
            return Observation(text="out of the game", fields=self._fields(agent))
        observation = self.wrapped.observe(theirs)
        show = self.show
        board = written(observation) if show is None else show(self.wrapped, theirs, observation)
        if not isinstance(board, str):
            raise TypeError(f"render returned a {type(board).__name__}, not text")
        moves = self._allowed(agent, observation)
        refused = self.refused.get(agent, "")
        lines = [
            board,
            f"legal moves: {', '.join(moves.legal)}" if moves.legal else moves.form,
            f"not legal: {refused}" if agent in self.refused else "",
        ]
        return Observation(
            text="\n".join(line for line in lines if line),
            fields=self._fields(
                agent, board=board, legal=moves.legal, form=moves.form, refused=refused
            ),
        )

    def draw(self, agent: str | None = None) -> StateDrawing | None:
        """Return the env's picture if its `render_mode` is rgb_array, else the board of an agent.

        A board is drawn if the text of an observation consists of rows of single characters. For
        `agent` None it is the board of the first agent, on which the first player's squares have
        the number 1. The result is None if the env has neither picture nor board.
        """
        title = f"{self.name} after {self.moves_made} moves"
        if agent is None and getattr(self.wrapped, "render_mode", None) == "rgb_array":
            with self.private_random.swapped():
                return picture(self.wrapped.render(), title=title)
        seen_by = self._theirs[agent or self.possible_agents[0]]
        observation = self.wrapped.observe(seen_by)
        show = self.show
        text = written(observation) if show is None else show(self.wrapped, seen_by, observation)
        return grid(text, title=title)

    def _fields(self, agent: str, **known: Any) -> dict[str, Any]:
        empty = {"board": "", "legal": [], "form": "", "refused": ""}
        public: dict[str, Any] = getattr(self.wrapped.unwrapped, "public_state", dict)()
        return {"game": self.name, "rules": self.rules, "player": agent, **empty, **known, **public}

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Read the moves, apply the rule for illegal ones, and step the env when all moved."""
        losers = [agent for agent, action in actions.items() if not self._take(agent, action)]
        self.asked += len(actions)
        self.measure(
            forfeit=bool(losers),
            illegal=self.illegal_moves,
            illegal_fraction=self.illegal_moves / self.asked,
        )
        if losers:
            self._pay_forfeit(losers)
            self._end()
        elif len(self.chosen) == len(self.due):
            while self.chosen:
                self._step()
            self._open_stage()

    def _pay_forfeit(self, losers: Sequence[str]) -> None:
        """Pay the rewards after an illegal move that ends the game."""
        lost = self.illegal_reward
        if lost is None:
            lost = LEAST_COST
            if self.stakes is not None:
                paid = max(self.paid[agent] for agent in losers)
                lost = min(lost, self.stakes.least_return - paid)
        won = self.others_reward
        if won is None:
            mirrored = self.stakes is not None and self.stakes.zero_sum and len(self._ours) == 2
            won = -lost if mirrored else 0.0
        for agent in self.possible_agents:
            self.pay(agent, lost if agent in losers else won)

    def _warn_if_a_loss_costs_more(self) -> None:
        """Warn if a game paid less than the reward that was assumed for illegal moves."""
        assumed = self.illegal_reward is None and self.stakes is None
        if assumed and self.illegal != "random_legal" and min(self.paid.values()) < LEAST_COST:
            warnings.warn(
                f"{self.name} pays less than {LEAST_COST:g}, the default reward of an illegal "
                "move, so breaking the rules can be better than losing: set arena.illegal_reward "
                "to the game's smallest return, or arena.illegal=random_legal",
                stacklevel=2,
            )

    def _take(self, agent: str, action: Action | None) -> bool:
        """Read one agent's move; return False if the agent loses by an illegal move."""
        moves = self._allowed(agent, self.wrapped.observe(self._theirs[agent]))
        move = None if action is None else moves.read(action)
        if move is None:
            self.illegal_moves += 1
            self.note(agent, verdict="illegal")
            if self.illegal == "random_legal":
                move = moves.draw(self.rng)
            elif self.illegal == "retry" and self.asked_again.get(agent, 0) < self.retries:
                self.asked_again[agent] = self.asked_again.get(agent, 0) + 1
                self.refused[agent] = (action or "")[:SHOWN]
                return True
            else:
                return False
        self.chosen[agent] = move
        self.refused.pop(agent, None)
        self.asked_again.pop(agent, None)
        return True

    def _allowed(self, agent: str, observation: Any) -> Moves:
        theirs = self._theirs[agent]
        mask = observation.get(MASK) if isinstance(observation, Mapping) else None
        if mask is None:
            mask = self.wrapped.infos.get(theirs, {}).get(MASK)
        names = self.action_names
        named: Callable[[int], str] | None = None
        if callable(names):
            named = lambda number: names(self.wrapped, theirs, number)  # noqa: E731
        elif names is not None:
            named = names.__getitem__
        return Moves(self.wrapped.action_space(theirs), mask=mask, named=named)

    def _open_stage(self) -> None:
        """Remove dead agents and set the agents due to move; end if none is left."""
        self._bury()
        self.due: list[str] = []
        if not self.wrapped.agents:
            self._warn_if_a_loss_costs_more()
            self._end()
            return
        self.due = [self._selected()]
        if self.simultaneous:
            self.due = [self._ours[theirs] for theirs in self._living()]
        for agent in self.due:
            moves = self._allowed(agent, self.wrapped.observe(self._theirs[agent]))
            if not moves.legal and not moves.form:
                raise BrokenEnv(f"{agent} is to move and its mask allows no action")

    def _end(self) -> None:
        self.measure(**{f"{agent}_return": paid for agent, paid in self.paid.items()})
        self.finish()

    # The env -----------------------------------------------------------------------------------

    def reset_game(self) -> None:
        """Reset a new env with PettingZoo's reset, because some envs keep state over a reset.

        The env that the constructor made is used for the first episode, so that a rollout, which
        makes an arena for each episode, makes each env once.
        """
        if not self._new:
            self.wrapped = self.make_game()
        self._new = False
        self.wrapped.reset(seed=self.env_seed, options=self.task.payload.get("options"))
        if not self.wrapped.agents:
            raise BrokenEnv("reset leaves no agents")

    def step_game(self, move: Any) -> None:
        """Call PettingZoo's step."""
        self.wrapped.step(move)

    def place(self) -> Any:
        """Return the living agents and the agent in turn."""
        agents = list(self.wrapped.agents)
        return agents, self.wrapped.agent_selection if agents else None

    def _step(self) -> None:
        """Give the env the move of its selected agent, and pay the env's rewards."""
        agent = self._selected()
        if agent not in self.chosen:
            raise BrokenEnv(f"asks {agent} for a move out of turn")
        self.apply(self.chosen.pop(agent))
        self.moves_made += 1
        self.measure(moves=self.moves_made)
        for theirs, reward in dict(self.wrapped.rewards).items():
            if theirs not in self._ours:
                raise BrokenEnv(f"pays {theirs!r}, which is none of its possible_agents")
            value = float(reward)
            if not math.isfinite(value):
                raise BrokenEnv(f"pays {self._ours[theirs]} a reward of {value}")
            self.pay(self._ours[theirs], value)

    def _selected(self) -> str:
        theirs = self.wrapped.agent_selection
        if theirs not in self.wrapped.agents or theirs not in self._ours:
            raise BrokenEnv(f"selects {theirs!r}, which is none of its living agents")
        return self._ours[theirs]

    def _living(self) -> list[Any]:
        done = (self.wrapped.terminations, self.wrapped.truncations)
        return [each for each in self.wrapped.agents if not any(flags[each] for flags in done)]

    def _bury(self) -> None:
        """Step dead agents with None, as PettingZoo requires, until a living one is selected."""
        for _ in range(len(self._ours) + 1):
            if not self.wrapped.agents or self._theirs[self._selected()] in self._living():
                return
            self.apply(None)
        raise BrokenEnv("does not remove its dead agents")


def _numbers(space: Any) -> int:
    """Return the number of values in an observation of a space."""
    if hasattr(space, "spaces"):
        inner = space.spaces.values() if isinstance(space.spaces, Mapping) else space.spaces
        return sum(map(_numbers, inner))
    return math.prod(space.shape or ())


def raw_env(**settings: Any) -> PettingZoo:
    """Return the arena without a wrapper; the default game is tic-tac-toe."""
    return PettingZoo(**{"env": "classic/tictactoe-v3", **settings})


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
