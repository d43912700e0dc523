"""Enumerated games of three agents, with skipped stages, pay without a turn and early ends.

The policies are tabular softmax policies in float64. An agent's state is the whole public history,
so that different stages have different states. `EpisodeRunner` records the episodes, as in a run.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np
import torch

from selfplay.arena import Arena
from selfplay.credit import Credit
from selfplay.rollout.episode_runner import EpisodeRunner, EpisodeSpec
from selfplay.types import Action, Episode, Group, Observation, Status, Task
from tests.helpers.builders import group, turn

AGENTS = ("first_0", "second_0", "third_0")
Moves = tuple[tuple[str, int], ...]
History = tuple[Moves, ...]
"""For each stage, the agents that moved with their actions."""


class Team(Arena):
    """The first two agents move at once. Their moves decide which agents move next, if any.

    The third agent is paid even if it never moves, and the first also in a stage that it skips.
    """

    name = "team_v0"
    roles = {"first": 1, "second": 1, "third": 1}

    def setup(self, task: Task, rng: random.Random) -> None:
        self.played: History = ()
        self.next: Sequence[str] = AGENTS[:2]
        self.pay("third_0", 0.3)

    def acting(self) -> Sequence[str]:
        return self.next

    def view(self, agent: str) -> Observation:
        return Observation(text=str(self.played))

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        self.played = (*self.played, tuple((a, int(x or 0)) for a, x in actions.items()))
        did = dict(self.played[-1])
        if len(self.played) == 1:
            self.start(did["first_0"], did["second_0"])
        elif len(self.played) == 2:
            self.go_on(did)
        else:
            self.pay("first_0", 1.5 * did["first_0"] - 0.7)
            self.pay("second_0", 2.0 - did["first_0"])
            self.pay("third_0", -0.4)
            self.finish()

    def start(self, first: int, second: int) -> None:
        self.pay("first_0", 1.0 + first - 0.5 * second)
        self.pay("third_0", 0.7 * first - 1.1 * second)
        if (first, second) == (1, 1):
            self.finish()
        self.next = {
            (0, 0): ["third_0"],
            (1, 0): ["second_0", "third_0"],
            (0, 1): ["first_0"],
            (1, 1): [],
        }[first, second]

    def go_on(self, did: Mapping[str, int]) -> None:
        third = did.get("third_0")
        self.pay("first_0", 0.9 if third else -0.2)
        self.pay("second_0", 1.0 + did.get("second_0", 0))
        self.pay(
            "third_0", 2.0 * did.get("first_0", 1) - did.get("second_0", 0) + 3.0 * (third or 0)
        )
        if third == 1 or did.get("first_0") == 1:
            self.finish()
        self.next = ["first_0"]


@dataclass(frozen=True)
class Enumerated:
    """All plays of an arena whose actions are 0 and 1."""

    arena: Callable[[], Arena] = Team
    agents: tuple[str, ...] = AGENTS

    @cached_property
    def plays(self) -> list[tuple[History, Episode, tuple[dict[str, float], ...]]]:
        """Return every play: its moves, its episode, and the pay of each stage."""
        return list(self._ends(()))

    @cached_property
    def states(self) -> list[History]:
        """Return all histories after which an agent moves."""
        seen = [h[:n] for h, _, _ in self.plays for n in range(len(h))]
        return list(dict.fromkeys(seen))

    def _ends(self, played: History) -> Iterator[tuple]:
        game, paid = self._game(played)
        if game.arena.finished:
            yield played, game.episode(Status.FINISHED), tuple(paid)
            return
        acting = game.arena.stage
        for actions in product((0, 1), repeat=len(acting)):
            yield from self._ends((*played, tuple(zip(acting, actions, strict=True))))

    def _game(self, played: History) -> tuple[EpisodeRunner, list[dict[str, float]]]:
        game = EpisodeRunner(EpisodeSpec(task=Task(id="t"), seed=0), self.arena())
        game.advance()
        paid, before = [], dict(game.arena.paid)
        for number, moves in enumerate(played):
            ids = tuple(ord(letter) for letter in str(played[:number]))
            game.moves = {
                agent: turn(agent, prompt_ids=ids, completion_ids=(a,), action=str(a), stage=number)
                for agent, a in moves
            }
            game.advance()
            assert not game.error, game.error
            paid.append({a: total - before.get(a, 0.0) for a, total in game.arena.paid.items()})
            before = dict(game.arena.paid)
        return game, paid

    def table(self, seed: int) -> torch.Tensor:
        """Return random [agent, state, action] logits."""
        generator = torch.Generator().manual_seed(seed)
        shape = (len(self.agents), len(self.states), 2)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def decisions(self, history: History) -> list[tuple[int, int, int, int]]:
        """Return (stage, agent, state, action) of every move, in order."""
        return [
            (number, self.agents.index(agent), self.states.index(history[:number]), action)
            for number, moves in enumerate(history)
            for agent, action in moves
        ]

    def chances(self, logits: torch.Tensor) -> np.ndarray:
        """Return the [play] probabilities of all plays."""
        chosen = logits.softmax(-1).numpy()
        return np.array(
            [
                prod(chosen[a, s, x] for _, a, s, x in self.decisions(history))
                for history, _, _ in self.plays
            ]
        )

    def exact(
        self,
        logits: torch.Tensor,
        worth: Callable[[int, Sequence[Mapping[str, float]], int], float],
    ) -> np.ndarray:
        """Return E[sum over turns of worth * grad log pi], with `worth(agent, pays, stage)`."""
        found = np.zeros(tuple(logits.shape))
        chosen = logits.softmax(-1).numpy()
        for chance, (history, _, paid) in zip(self.chances(logits), self.plays, strict=True):
            for stage, a, s, x in self.decisions(history):
                score = -chosen[a, s]
                score[x] += 1
                found[a, s] += chance * worth(a, paid, stage) * score
        return found

    def own(self, logits: torch.Tensor) -> np.ndarray:
        """Return every agent's gradient of its own expected return."""
        return self._gradient(logits, lambda paid, agent: paid[agent])

    def team(self, logits: torch.Tensor) -> np.ndarray:
        """Return every agent's gradient of the expected mean return of all agents."""
        return self._gradient(logits, lambda paid, _: sum(paid.values()) / len(paid))

    def shared(self, logits: torch.Tensor) -> np.ndarray:
        """Return every agent's gradient of the expected return of the first agent."""
        return self._gradient(logits, lambda paid, _: paid[self.agents[0]])

    def _gradient(
        self, logits: torch.Tensor, judged: Callable[[Mapping[str, float], str], float]
    ) -> np.ndarray:
        """Differentiate the expected return automatically, without the score function."""
        rows = []
        for number, agent in enumerate(self.agents):
            table = logits.clone().requires_grad_()
            chosen = table.log_softmax(-1)
            value = torch.zeros((), dtype=torch.float64)
            for history, _, paid in self.plays:
                logprob = sum(chosen[a, s, x] for _, a, s, x in self.decisions(history))
                total = {a: sum(stage.get(a, 0.0) for stage in paid) for a in self.agents}
                assert isinstance(logprob, torch.Tensor)
                value = value + logprob.exp() * judged(total, agent)
            (gradient,) = torch.autograd.grad(value, table)
            rows.append(gradient[number].numpy())
        return np.stack(rows)

    def visits(self, logits: torch.Tensor) -> np.ndarray:
        """Return the [state] probabilities that a play reaches a state."""
        found = np.zeros(len(self.states))
        for chance, (history, _, _) in zip(self.chances(logits), self.plays, strict=True):
            for number in range(len(history)):
                found[self.states.index(history[:number])] += chance
        return found

    def taking_part(self, logits: torch.Tensor) -> np.ndarray:
        """Return the [agent] probabilities that an agent moves at all."""
        found = np.zeros(len(self.agents))
        for chance, (history, _, _) in zip(self.chances(logits), self.plays, strict=True):
            for agent in {a for _, a, _, _ in self.decisions(history)}:
                found[agent] += chance
        return found

    def groups(self, logits: torch.Tensor, size: int) -> Iterator[tuple[float, Group]]:
        """Yield (probability, group) for all groups of independent plays."""
        plays = list(zip(self.chances(logits), (e for _, e, _ in self.plays), strict=True))
        for drawn in product(plays, repeat=size):
            yield float(prod(p for p, _ in drawn)), group(*(one for _, one in drawn))

    def expected(self, credit: Credit, logits: torch.Tensor, *, size: int) -> np.ndarray:
        """Return E[1/G sum A grad log pi] over all groups of `size`, each with fresh credit."""
        chosen = logits.softmax(-1).numpy()
        places = {tuple(map(ord, str(state))): n for n, state in enumerate(self.states)}
        found = np.zeros_like(chosen)
        for chance, one in self.groups(logits, size):
            for sample in deepcopy(credit).assign([one]):
                agent = self.agents.index(sample.turn.agent)
                state, action = places[tuple(sample.turn.prompt_ids)], sample.turn.completion_ids[0]
                score = -chosen[agent, state]
                score[action] += 1
                assert isinstance(sample.advantage, float)
                found[agent, state] += chance * sample.advantage / size * score
        return found


class Calling(Arena):
    """A planner ends the game or calls a worker, which joins the episode; it may call a second one.

    All agents in the episode are paid the same amount, which depends on all moves.
    """

    name = "calling_v0"
    roles = {"planner": 1, "worker": 2}

    def starting_agents(self, task: Task) -> Sequence[str]:
        return ["planner_0"]

    def setup(self, task: Task, rng: random.Random) -> None:
        self.played: list[int] = []

    def acting(self) -> Sequence[str]:
        turn = len(self.played)
        return ["planner_0"] if turn % 2 == 0 else [f"worker_{turn // 2}"]

    def view(self, agent: str) -> Observation:
        return Observation(text=str(self.played))

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        ((agent, action),) = actions.items()
        self.played.append(int(action or 0))
        if agent == "planner_0" and action == "1" and len(self.played) < 5:
            self.add(f"worker_{len(self.played) // 2}")
        elif agent == "planner_0":
            worth = (0.3, -0.4, 1.1, 0.7, 2.0)
            for each in self.agents:
                self.pay(each, 0.2 + sum(w * x for w, x in zip(worth, self.played, strict=False)))
            self.finish()


TEAM = Enumerated()
"""All plays of `Team`."""
CALLING = Enumerated(arena=Calling, agents=("planner_0", "worker_0", "worker_1"))
"""All plays of `Calling`."""
