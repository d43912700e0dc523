"""Prints bias and noise of the gradient of each credit method, compared with the exact gradient.

The game: two agents move in turn, 0 or 1, and both are paid the same. Four tasks differ in the
values of moves, in scale and in offset. `--pay early` pays each move at once, by the move and the
one before it; `--pay late` pays the sum at the end. The policies are random tables over whole
histories, so that the exact gradient of the expected return follows from all plays.

A batch is the data of one update: the groups of a sampler, credited as in training. Its estimate is
the mean of advantage times score over all samples, as in the learner. For many batches:

    direction   cosine between the mean estimate and the exact gradient: 1 is unbiased up to scale
    noise       E|g - E g|^2 / |E g|^2 for 1,000 sampled completions: the smaller, the fewer
                completions a method needs for the same certainty
    right       mean cosine between the estimate of a single batch and the exact gradient

Both intervals are 1.96 jackknife errors over ten blocks of batches.

Usage: python scripts/gradient_noise.py [--pay early late] [--turns 4] [--batches 300] [--seed 0]
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import product
from random import Random
from typing import Any

import numpy as np

from selfplay.arena import Arena
from selfplay.credit import Credit
from selfplay.credit.arpo import ARPO
from selfplay.credit.at_grpo import ATGRPO
from selfplay.credit.counterfactual import Counterfactual
from selfplay.credit.dr_grpo import DrGRPO
from selfplay.credit.gigpo import GiGPO
from selfplay.credit.grpo import GRPO
from selfplay.credit.magrpo import MAGRPO
from selfplay.credit.mt_grpo import MTGRPO
from selfplay.credit.rae import RAE
from selfplay.credit.reinforce_pp import ReinforcePlusPlus
from selfplay.credit.rloo import RLOO
from selfplay.credit.team import TeamGRPO
from selfplay.credit.trr import TRR
from selfplay.curriculum.fixed import FixedTasks
from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, Rollout
from selfplay.sampler import Sampler
from selfplay.sampler.independent import Independent
from selfplay.sampler.tree import Branch, Tree
from selfplay.types import Action, Group, Observation, Sample, Task

AGENTS = ("left_0", "right_0")
BLOCKS = 10
"""Number of blocks of batches of the jackknife."""
State = tuple[str, tuple[int, ...]]
"""Task id, and the moves before the decision."""


class Relay(Arena):
    """A game in which two agents move in turn; both are paid `worth` of the moves."""

    name = "relay_v0"
    roles = {"left": 1, "right": 1}

    def __init__(self, *, turns: int, early: bool) -> None:
        """`early` pays after each move, otherwise all is paid at the end."""
        super().__init__(self.roles)
        self.turns, self.early = turns, early

    def setup(self, task: Task, rng: Random) -> None:
        self.played: tuple[int, ...] = ()

    def acting(self) -> Sequence[str]:
        return [AGENTS[len(self.played) % 2]]

    def view(self, agent: str) -> Observation:
        return Observation(text=text_of((self.task.id, self.played)))

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        (action,) = actions.values()
        self.played += (int(action == "1"),)
        over = len(self.played) == self.turns
        steps = [len(self.played)] if self.early else range(1, self.turns + 1) if over else []
        for step in steps:
            for agent in AGENTS:
                self.pay(agent, worth(self.task.payload, self.played[:step]))
        if over:
            self.finish()


def worth(payload: Mapping[str, Any], played: Sequence[int]) -> float:
    """Return the reward of the latest move; it depends on its place and on the move before it."""
    before = played[-2] if len(played) > 1 else 0
    value: float = payload["worths"][len(played) - 1][before][played[-1]]
    return payload["scale"] * value + payload["offset"]


def text_of(state: State) -> str:
    """Return the observation of an agent in a state."""
    return f"{state[0]} {''.join(map(str, state[1]))}"


def tasks(turns: int, seed: int) -> list[Task]:
    """Return four tasks of random worths, of scales from 0.5 to 2, offsets from -0.5 to 0.5."""
    draw = np.random.default_rng(seed)
    return [
        Task(
            id=f"task{number}",
            payload={
                "worths": draw.normal(size=(turns, 2, 2)).tolist(),
                "scale": 0.5 * 4 ** (number / 3),
                "offset": number / 3 - 0.5,
            },
        )
        for number in range(4)
    ]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A table of logits over all states of the tasks."""

    states: Mapping[str, int]
    """Index by the text of the state."""
    logits: np.ndarray[Any, Any]
    """[state] logit of the move 1, where the move 0 has 0."""

    def chance(self, text: str) -> float:
        """Return the probability of the move 1."""
        return float(1 / (1 + np.exp(-self.logits[self.states[text]])))

    def move(self, agent: str, observation: Observation, rng: Random) -> str:
        """Return a sampled move, as a `Script`."""
        return str(int(rng.random() < self.chance(observation.text)))


def random_policy(known: Sequence[Task], turns: int, seed: int) -> Policy:
    """Return a policy whose logits are drawn from a normal distribution."""
    states = [
        text_of((task.id, moves))
        for task in known
        for length in range(turns)
        for moves in product((0, 1), repeat=length)
    ]
    logits = np.random.default_rng(seed + 1).normal(size=len(states))
    return Policy(states={text: n for n, text in enumerate(states)}, logits=logits)


def exact(policy: Policy, known: Sequence[Task], turns: int) -> np.ndarray[Any, Any]:
    """Return [state] gradient of the expected return, the mean over the tasks, from all plays."""
    found = np.zeros_like(policy.logits)
    for task, moves in product(known, product((0, 1), repeat=turns)):
        texts = [text_of((task.id, moves[:n])) for n in range(turns)]
        ones = np.array([policy.chance(text) for text in texts])
        likely = float(np.prod(np.where(moves, ones, 1 - ones)))
        total = sum(worth(task.payload, moves[: n + 1]) for n in range(turns))
        for text, move, one in zip(texts, moves, ones, strict=True):
            found[policy.states[text]] += likely * total * (move - one) / len(known)
    return found


def estimate(policy: Policy, samples: Sequence[Sample]) -> np.ndarray[Any, Any]:
    """Return [state] mean of advantage times score over the samples."""
    found = np.zeros_like(policy.logits)
    for sample in samples:
        text = bytes(sample.turn.prompt_ids).decode().removeprefix("user: ").removesuffix("\n")
        assert isinstance(sample.advantage, float)
        move = int(sample.turn.action == "1")
        found[policy.states[text]] += sample.advantage * (move - policy.chance(text))
    return found / max(len(samples), 1)


Method = tuple[str, Credit, Sampler]


def methods(arena: Callable[[], Arena]) -> Iterator[Method]:
    """Yield name, credit method and sampler; independent groups have 8 episodes."""
    alone = partial(Independent, group_size=8)
    branches = partial(Branch, group_size=8, initial=4)
    trees = partial(Tree, candidates=3, depth=2)
    yield "grpo", GRPO(), alone()
    yield "dr_grpo", DrGRPO(), alone()
    yield "rloo", RLOO(), alone()
    yield "team", TeamGRPO(), alone()
    yield "magrpo", MAGRPO(), alone()
    yield "reinforce_pp", ReinforcePlusPlus(), alone()
    yield "trr", TRR(), alone()
    yield "rae", RAE(), alone()
    yield "turn", MTGRPO(), alone()
    yield "gigpo", GiGPO(), alone()
    yield "counterfactual", Counterfactual(arena=arena, default="0"), alone()
    yield "dr_grpo sampler=branch", DrGRPO(), branches()
    yield "arpo sampler=branch", ARPO(), branches()
    yield "agent_turn sampler=tree", ATGRPO(), trees()


def batches(
    policy: Policy,
    known: Sequence[Task],
    method: Method,
    arena: Callable[[], Arena],
    *,
    count: int,
    seed: int,
) -> tuple[np.ndarray[Any, Any], float]:
    """Return [batch, state] estimates and the mean number of completions sampled for a batch."""
    _, credit, sampler = method
    credit = deepcopy(credit)
    renderer = ByteRenderer()
    agent_spec = AgentSpec(role=Seen(), policy="table", renderer=renderer, max_tokens=1)
    rollout = Rollout(
        arena=arena,
        agent_specs={"left": agent_spec, "right": agent_spec},
        engines={"table": ScriptedEngine({"table": policy.move})},
    )
    curriculum = FixedTasks(tasks=list(known), batch=len(known))
    found, sampled = [], 0
    for step in range(1, count + 1):
        groups = sampler.sample(curriculum, rollout.run, step=step, seed=seed)
        sampled += sum(map(completions, groups))
        found.append(estimate(policy, credit.assign(groups)))
    return np.array(found), sampled / count


class Seen(Role):
    """A role whose prompt is the text of the view, and whose answer is the move."""

    template = "{{ text }}"


def completions(group: Group) -> int:
    """Return the number of completions that were sampled for a group."""
    return sum(len(episode.turns) - episode.shared_turns for episode in group.episodes)


def cosine(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    """Return the cosine of the angle between two vectors."""
    return float(left @ right / max(np.linalg.norm(left) * np.linalg.norm(right), 1e-300))


def statistics(
    found: np.ndarray[Any, Any], truth: np.ndarray[Any, Any], sampled: float
) -> tuple[float, float, float]:
    """Return direction, noise and right, as the module's text defines them."""
    mean = found.mean(0)
    spread = float(((found - mean) ** 2).sum(1).sum() / (len(found) - 1))
    # The square of a mean of n estimates is too large by spread / n.
    square = max(float(mean @ mean) - spread / len(found), 1e-300)
    right = float(np.mean([cosine(each, truth) for each in found]))
    return cosine(mean, truth), spread / square * sampled / 1000, right


def with_errors(
    found: np.ndarray[Any, Any], truth: np.ndarray[Any, Any], sampled: float
) -> list[tuple[float, float]]:
    """Return each of `statistics` with 1.96 jackknife errors over blocks of batches."""
    blocks = np.array_split(np.arange(len(found)), BLOCKS)
    left_out = np.array([statistics(np.delete(found, each, 0), truth, sampled) for each in blocks])
    variance = (BLOCKS - 1) * left_out.var(0)
    return list(zip(statistics(found, truth, sampled), 1.96 * np.sqrt(variance), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pay", nargs="+", choices=("early", "late"), default=["early", "late"])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.turns < 1 or options.batches < 2 * BLOCKS:
        parser.error(f"--turns is at least 1, and --batches at least {2 * BLOCKS}")
    known = tasks(options.turns, options.seed)
    policy = random_policy(known, options.turns, options.seed)
    truth = exact(policy, known, options.turns)
    for pay in options.pay:
        arena = partial(Relay, turns=options.turns, early=pay == "early")
        print(f"{options.turns} turns, pay {pay}; {options.batches} batches of 4 groups")
        print("credit | completions a batch | direction | noise | right")
        for method in methods(arena):
            found, sampled = batches(
                policy, known, method, arena, count=options.batches, seed=options.seed
            )
            shown = " | ".join(
                f"{value:.3f} ± {error:.3f}" for value, error in with_errors(found, truth, sampled)
            )
            print(f"{method[0]} | {sampled:.0f} | {shown}", flush=True)


if __name__ == "__main__":
    main()
