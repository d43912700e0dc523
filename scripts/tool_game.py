"""A game of one agent in which the result of a tool begins a new stage, for tables of logits.

A task is three questions, each with a hidden value of three. For each question the agent first
calls one of three tools: the right tool of the question returns the hidden value, and the others
return nothing. In the next stage the agent sees the result, and answers. In games with comments, a
comment is between the result and the answer; it changes nothing. At the end the agent is paid
the fraction of right answers. Each call, comment and answer is a stage with one completion of one
token, so samplers can branch before each of them. Policies are tables of logits by question, kind
of stage and result, and the expected return is exact. `branch_bakeoff.py` uses this file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import log

import numpy as np
from enumerated_games import softmax

from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.types import Episode, Status, Task, Turn

QUESTIONS = 3
"""Questions of a task."""
CHOICES = 3
"""Tools, values, comments and answers."""
NOTHING = CHOICES
"""Result of a wrong tool."""
KINDS = ("call", "comment", "answer")
"""Kinds of stages; each has a row of the table for each result, of which calls use the first."""
TASKS = [Task(id="".join(map(str, values))) for values in product(range(CHOICES), repeat=QUESTIONS)]
"""All hidden values."""


@dataclass(frozen=True, kw_only=True)
class ToolGame:
    """The stages of a question, and the preferences of the first policy in them."""

    name: str
    about: str
    stages: Sequence[str]
    """Kinds of the stages of a question."""
    sure: Mapping[str, tuple[float, bool]]
    """Kind of stage to the probability of the choice that the first policy prefers, and True if
    this choice is right. In the other stages it prefers nothing."""

    @property
    def length(self) -> int:
        """Return the number of stages of a play."""
        return QUESTIONS * len(self.stages)

    def kind(self, stage: int) -> str:
        """Return the kind of a stage."""
        return self.stages[stage % len(self.stages)]

    def right(self, question: int, kind: str, value: int) -> int:
        """Return the right tool of a question, or its right answer to a value."""
        return question if kind == "call" else (value + question) % CHOICES

    def logits(self, seed: int, *, noise: float = 0.5) -> np.ndarray:
        """Return the first [state, choice] logits: the preferences of `sure`, and normal noise of
        this standard deviation."""
        shape = len(KINDS) * QUESTIONS * (CHOICES + 1), CHOICES
        found = noise * np.random.default_rng(seed).standard_normal(shape)
        for (kind, (chance, right)), question in product(self.sure.items(), range(QUESTIONS)):
            for result in range(CHOICES):
                best = self.right(question, kind, result)
                choice = best if right else (best + 1) % CHOICES
                lead = log(chance / (1 - chance) * (CHOICES - 1))
                found[state(kind, question, result), choice] += lead
                if kind == "call":
                    break
        return found

    def value(self, logits: np.ndarray) -> float:
        """Return the exact expected fraction of right answers.

        Any guess without a result is right in a third of the tasks.
        """
        policy, total = softmax(logits), 0.0
        for question in range(QUESTIONS):
            called = policy[state("call", question, 0), self.right(question, "call", 0)]
            answered = [
                policy[state("answer", question, value), self.right(question, "answer", value)]
                for value in range(CHOICES)
            ]
            total += called * float(np.mean(answered)) + (1 - called) / CHOICES
        return float(total / QUESTIONS)


def state(kind: str, question: int, result: int) -> int:
    """Return the row of the table; all calls of a question have the same."""
    seen = 0 if kind == "call" else result
    return (KINDS.index(kind) * QUESTIONS + question) * (CHOICES + 1) + seen


class Solver:
    """A function that plays episodes of a game for samplers, with the policy `logits`."""

    def __init__(
        self,
        game: ToolGame,
        logits: np.ndarray,
        rng: np.random.Generator,
        *,
        entropies: bool = False,
    ) -> None:
        """Args:
        game: The game.
        logits: The first policy.
        rng: Source of all draws.
        entropies: True to record the negative entropy of the policy as the log-probability of a
            choice, so that `where=surprisal` ranks stages by the exact entropy.
        """
        self.game, self.logits, self.rng, self.entropies = game, logits, rng, entropies
        self.completions = 0

    def __call__(self, specs: Sequence[EpisodeSpec]) -> list[Episode]:
        """Return an episode for each spec; one with a prefix goes on from it."""
        policy = softmax(self.logits)
        return [self._one(spec, policy) for spec in specs]

    def _one(self, spec: EpisodeSpec, policy: np.ndarray) -> Episode:
        game, turns, right = self.game, list(spec.prefix_turns), 0
        values, draws = [int(value) for value in spec.task.id], self.rng.random(self.game.length)
        result = NOTHING
        for stage in range(game.length):
            question, kind = stage // len(game.stages), game.kind(stage)
            if stage == len(turns):
                row = state(kind, question, result)
                chosen = int((policy[row].cumsum() < draws[stage]).sum())
                choice = min(chosen, CHOICES - 1)
                turns.append(played(stage, row, choice, self._nats(policy[row], choice)))
            choice, value = turns[stage].completion_ids[0], values[question]
            if kind == "call":
                result = value if choice == game.right(question, kind, value) else NOTHING
            elif kind == "answer":
                right += choice == game.right(question, kind, value)
        shared = len(spec.prefix_turns)
        self.completions += game.length - shared
        turns[-1] = replace(turns[-1], reward=right / QUESTIONS)
        return Episode(
            arena=game.name,
            task=spec.task,
            seed=spec.seed,
            turns=tuple(turns),
            status=Status.FINISHED,
            branch_of=spec.branch_of,
            shared_turns=shared,
        )

    def _nats(self, chances: np.ndarray, choice: int) -> float:
        """Return the recorded log-probability of a choice."""
        return float(chances @ np.log(chances) if self.entropies else np.log(chances[choice]))


def played(stage: int, row: int, choice: int, nats: float) -> Turn:
    """Return the turn of a choice."""
    return Turn(
        agent="solver_0",
        role="solver",
        policy="base",
        version=0,
        prompt_ids=(row,),
        completion_ids=(choice,),
        logprobs=(nats,),
        loss_mask=(1,),
        action=str(choice),
        stage=stage,
    )


GAMES: Mapping[str, ToolGame] = {
    game.name: game
    for game in (
        ToolGame(
            name="answers",
            about="the policy calls the right tools, and does not know the answers",
            stages=("call", "answer"),
            sure={"call": (0.9, True)},
        ),
        ToolGame(
            name="calls",
            about="the policy knows the answers, and does not call the right tools",
            stages=("call", "answer"),
            sure={"answer": (0.9, True)},
        ),
        ToolGame(
            name="comments",
            about="the policy is sure of wrong answers, and unsure of comments that change nothing",
            stages=("call", "comment", "answer"),
            sure={"call": (0.9, True), "answer": (0.8, False)},
        ),
    )
}
