"""Designed games: a designer sets up a game, and several groups of players play it at once.

The designer writes the settings of a game as JSON (EnvGen, 2403.12014). Settings that are out of
bounds, or that make a game which is known already, are refused with a named reason, and the episode
ends. A valid design is played `plays` times, each time by other players, who see the game and
not the designer's text. The score of a play is 1 minus its regret, a number in [0, 1].

The designer is paid within the episode, by the scores of these plays. With `pay: none` the arena
pays the designer nothing, and `selfplay.credit.learning_progress` pays for the change of the score
until a later step.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, ClassVar, Literal, get_args

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.design.matrix_designs import MatrixDesigns
from arenas.design.space import DesignSpace, RefusedDesign, Settings, play_task, read_design
from arenas.mixture.inside import pass_on
from selfplay.arena import Arena
from selfplay.credit.rewards import mean
from selfplay.curriculum.task_buffer import TaskBuffer
from selfplay.errors import check_choice
from selfplay.rng import derive
from selfplay.types import Action, Metric, Observation, Task, ToolCall, role_of

DESIGNER = "designer_0"
Pay = Literal["spread", "regret", "random", "none"]


class DesignedGames(Arena):
    """One designer and the players of n plays of the designed game.

    A task with the mode "propose" begins with the design. Any other task, such as one of
    `arenas.design.space.play_task`, gives the game and has no design stage.
    """

    name = "designed_games_v0"
    optional_roles = ("designer",)
    services: ClassVar[tuple[str, ...]] = ("space", "buffer")
    measures = {
        "score": Metric(unit="fraction", better="higher"),
        "spread": Metric(unit="fraction"),
        "optimal": Metric(unit="fraction", better="higher"),
        "illegal_fraction": Metric(unit="fraction", better="lower"),
        "valid_design": Metric(unit="fraction", better="higher"),
        "new_design": Metric(unit="fraction", better="higher"),
        "designed_score": Metric(unit="fraction"),
        "designed_spread": Metric(unit="fraction"),
        "attempts": Metric(unit="count"),
        "solved": Metric(unit="count", better="higher"),
    }
    chief = ("score",)

    def __init__(
        self,
        *,
        space: DesignSpace,
        buffer: TaskBuffer | None = None,
        designers: int = 1,
        plays: int = 8,
        pay: Pay = "spread",
        invalid: float = -1.0,
        duplicate: float = 0.0,
        forbidden: frozenset[str] = frozenset(),
        longest: int = 2000,
    ) -> None:
        """Args:
        space: Designable settings with their limits.
        buffer: Earlier designs; a design of a game that the buffer contains is a duplicate. None:
            no design is a duplicate.
        designers: 1, or 0 if all games are given.
        plays: Plays of a game in one episode, at once and by different players.
        pay: Designer's reward for a design that is played. spread: 4 times the variance of the
            scores, which is 4 p (1 - p) for scores of 0 and 1. regret: 1 minus the mean score.
            random: a uniform draw from [0, 1) by the episode's seed, as a control; it needs groups
            of one episode, because siblings have the same seed. none: 0, for a credit method that
            pays later.
        invalid: Designer's reward for a text that is not a design.
        duplicate: Designer's reward for a game that is known or held out.
        forbidden: Ids of tasks (see `arenas.design.space.play_task`) that may not be designed.
        longest: Maximum characters of a design.
        """
        if designers not in (0, 1) or plays < 1 or longest < 1:
            raise ValueError("designers is 0 or 1; plays and longest are at least 1")
        check_choice("pay", pay, get_args(Pay))
        roles = {role: plays * count for role, count in space.seats.items()}
        super().__init__({"designer": 1, **roles} if designers else roles)
        self.space, self.buffer, self.plays, self.designer_pay = space, buffer, plays, pay
        self.invalid, self.duplicate = invalid, duplicate
        self.forbidden, self.longest = forbidden, longest

    def default_task(self, rng: Random) -> Task:
        """Return a task to design, or a random game if there is no designer."""
        if DESIGNER in self.possible_agents:
            return Task(id="design", type=self.space.kind, payload={"mode": "propose", "known": 0})
        return play_task(self.space, self.space.draw(rng))

    def setup(self, task: Task, rng: Random) -> None:
        """Begin with the design or, if the game is given, with its plays.

        Raises ValueError for a task of another type, for a task to design without a designer, and
        for a given design that the space refuses.
        """
        self.games: list[Arena] = []
        self.settings: Settings = {}
        self.references: list[Settings] = []
        self.known = 0
        self.designing = task.payload.get("mode") == "propose"
        if task.type != self.space.kind:
            raise ValueError(
                f"task {task.id[:60]}: its type is {task.type[:60]!r}, and this arena plays "
                f"{self.space.kind!r}; set curriculum.types to [{self.space.kind}]"
            )
        if self.designing:
            if DESIGNER not in self.possible_agents:
                raise ValueError(f"task {task.id[:60]}: a task to design needs designers: 1")
            self.known = int(task.payload.get("known", 0))
            self.references = [
                self._given(task, each) for each in task.payload.get("references", ())
            ]
            return
        self._open(self._given(task, task.payload))

    def _given(self, task: Task, payload: Any) -> Settings:
        """Return the checked design in the payload of a task."""
        try:
            return self.space.read(dict(payload["settings"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"task {task.id[:60]}: no design in `settings`: {error}") from error

    def acting(self) -> Sequence[str]:
        """Return the designer, then the players whose turn it is in all games."""
        if self.designing:
            return [DESIGNER]
        return [
            self._outer(number, agent)
            for number, game in enumerate(self.games)
            if not game.finished
            for agent in game.stage
        ]

    def messengers(self) -> Sequence[str]:
        """Return the players whose moves are messages in their games."""
        return [
            self._outer(number, agent)
            for number, game in enumerate(self.games)
            if not game.finished
            for agent in game.messengers()
        ]

    def view(self, agent: str) -> Observation:
        """Return the limits of a design, or what a player sees of its game."""
        if agent == DESIGNER:
            return designer_view(self.space, self.references)
        if not self.games:
            return Observation(text="wait for the designer")
        number, inner = self._inner(agent)
        return self.games[number].view(inner)

    def tool_state(self, agent: str, calls: Sequence[ToolCall]) -> Any:
        """Return the data of the player's game for its tools; a designer has none."""
        if agent == DESIGNER or not self.games:
            return super().tool_state(agent, calls)
        number, inner = self._inner(agent)
        return self.games[number].tool_state(inner, calls)

    def with_calls(self, agent: str, action: Action, calls: Sequence[ToolCall]) -> Action:
        """Return the player's complete move in its game; a design is returned unchanged."""
        if agent == DESIGNER or not self.games:
            return action
        number, inner = self._inner(agent)
        return self.games[number].with_calls(inner, action, calls)

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Check the design, or play a stage of every game that is not finished."""
        if self.designing:
            self._check(actions[DESIGNER])
            return
        moves: dict[int, dict[str, Action | None]] = {}
        for agent, action in actions.items():
            number, inner = self._inner(agent)
            moves.setdefault(number, {})[inner] = action
        for number, made in moves.items():
            game = self.games[number]
            before = dict(game.paid)
            game.play_stage(made)
            pass_on(game, self, paid=before, named=partial(self._outer, number))
        if all(game.finished for game in self.games):
            self._settle()

    # The design --------------------------------------------------------------------------------

    def _check(self, action: Action | None) -> None:
        try:
            settings = read_design(self.space, action, longest=self.longest)
        except RefusedDesign as refused:
            self.note(DESIGNER, verdict=str(refused))
            self.measure(valid_design=0, new_design=0)
            self.pay(DESIGNER, self.invalid)
            self.finish()
            return
        task = play_task(self.space, settings)
        known = self.buffer is not None and self.buffer.known(task.id, self.known)
        verdict = "held_out" if task.id in self.forbidden else "duplicate" if known else "valid"
        self.note(DESIGNER, verdict=verdict)
        self.measure(valid_design=1, new_design=verdict == "valid")
        if verdict != "valid":
            self.pay(DESIGNER, self.duplicate)
            self.finish()
            return
        self.designing = False
        self._open(settings)

    # The plays ---------------------------------------------------------------------------------

    def _open(self, settings: Settings) -> None:
        """Begin all plays; each has its own random events."""
        self.settings = settings
        for number in range(self.plays):
            seed = derive(self.seed, "play", number)
            game = self.space.game(settings)
            game.begin(self.space.game_task(settings, Random(derive(seed, "task"))), seed)
            self.games.append(game)

    def _settle(self) -> None:
        scores = [self.space.score(self.settings, game) for game in self.games]
        solved = sum(score == 1.0 for score in scores)
        self.measure(
            score=mean(scores),
            spread=spread(scores),
            optimal=solved / self.plays,
            attempts=self.plays,
            solved=solved,
        )
        illegal = [game.metrics.get("illegal_fraction") for game in self.games]
        if None not in illegal:
            self.measure(illegal_fraction=mean([share for share in illegal if share is not None]))
        if self.task.payload.get("mode") == "propose":
            self.measure(designed_score=mean(scores), designed_spread=spread(scores))
            self.pay(DESIGNER, self._worth(scores))
            self.create(play_task(self.space, self.settings))
        self.finish()

    def _worth(self, scores: Sequence[float]) -> float:
        """Return the designer's reward for the scores of the plays."""
        if self.designer_pay == "spread":
            return spread(scores)
        if self.designer_pay == "regret":
            return 1.0 - mean(scores)
        return self.rng.random() if self.designer_pay == "random" else 0.0

    def _outer(self, number: int, inner: str) -> str:
        role, place = role_of(inner), int(inner.rpartition("_")[2])
        return f"{role}_{number * self.space.seats[role] + place}"

    def _inner(self, agent: str) -> tuple[int, str]:
        role, place = role_of(agent), int(agent.rpartition("_")[2])
        number, inner = divmod(place, self.space.seats[role])
        return number, f"{role}_{inner}"


def spread(scores: Sequence[float]) -> float:
    """Return 4 times the variance of scores in [0, 1]: from 0 to 1, and 4 p (1 - p) if a fraction p
    of them is 1 and the others are 0."""
    center = mean(scores)
    return 4 * mean([(score - center) ** 2 for score in scores])


def designer_view(space: DesignSpace, references: Sequence[Settings]) -> Observation:
    """Return the view of a designer: the limits, and earlier designs that it should not repeat."""
    shown = [space.written(each) for each in references]
    return Observation(
        text="\n".join([space.describe(), *shown]),
        fields={"limits": space.describe(), "references": shown},
    )


def raw_env(**settings: Any) -> DesignedGames:
    """Return the arena without a wrapper; the default space is that of small team games."""
    settings.setdefault("space", MatrixDesigns())
    return DesignedGames(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
