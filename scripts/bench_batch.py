"""Times a whole training step on single-turn episodes beside its floor.

32 prompts x 8 completions of exactly 32 tokens, by a new model of 0.8 million parameters. Ours is
rollout, credit, learner and optimizer; the floor is plain `generate` and one plain forward and
backward pass of the same tokens.

Usage: python scripts/bench_batch.py [--rounds 7] [--json FILE]
"""

import copy
from collections.abc import Mapping, Sequence
from random import Random

import torch
from bench_timing import Line, arguments, compared, interleaved, show
from transformers import PreTrainedModel

from selfplay.arena import Arena
from selfplay.credit.grpo import GRPO
from selfplay.engines.transformers import TransformersEngine
from selfplay.learner.learner import Learner
from selfplay.learner.objective import Objective
from selfplay.role import Role
from selfplay.rollout import Job, Rollout, Seat
from selfplay.tiny import build_model, build_tokenizer
from selfplay.tokens import ChatRenderer
from selfplay.types import Action, Group, Observation, Task

PROMPTS, SIBLINGS, NEW = 32, 8, 32


class OneTurn(Arena):
    """A question, an answer, and a reward for its length."""

    name = "one_turn_v0"
    roles = {"solver": 1}

    def setup(self, task: Task, rng: Random) -> None:
        self.question = str(task.payload["question"])

    def acting(self) -> Sequence[str]:
        return self.possible_agents

    def view(self, agent: str) -> Observation:
        return Observation(text=self.question)

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        for agent, text in actions.items():
            self.pay(agent, len(text or "") % 7)
        self.finish()


class Step:
    """One training step after another."""

    def __init__(self, model: PreTrainedModel, renderer: ChatRenderer) -> None:
        seat = Seat(role=Role(), policy="base", renderer=renderer, max_tokens=NEW)
        engine = TransformersEngine()
        engine.serve("base", model, [])  # nothing ends a completion
        self.rollout = Rollout(arena=OneTurn, seats={"solver": seat}, engines={"base": engine})
        self.learner = Learner(model, objective=Objective(), lr=1e-6)
        self.credit, self.step = GRPO(), 0
        rng = Random(0)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self.tasks = [
            Task(id=str(n), payload={"question": "".join(rng.choices(letters, k=24))})
            for n in range(PROMPTS)
        ]

    def __call__(self) -> list[Group]:
        self.step += 1
        jobs = [
            Job(task=task, seed=self.step * PROMPTS + n, member=member)
            for n, task in enumerate(self.tasks)
            for member in range(SIBLINGS)
        ]
        episodes = self.rollout.play(jobs)
        groups = [
            Group(id=str(n), episodes=tuple(episodes[n * SIBLINGS : (n + 1) * SIBLINGS]))
            for n in range(PROMPTS)
        ]
        self.learner.update(self.credit.assign(groups), step=self.step)
        return groups


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    show(measure(options.rounds), options.json)


def measure(rounds: int) -> list[Line]:
    """The step beside its floor, and by parts."""
    tokenizer = build_tokenizer([])
    model = build_model(len(tokenizer), seed=0, intermediate=352)
    step = Step(model, ChatRenderer(tokenizer, where="bench"))
    turns = [t for group in step() for episode in group.episodes for t in episode.turns]
    assert all(len(turn.completion_ids) == NEW for turn in turns)
    prompts = torch.tensor([turn.prompt_ids for turn in turns])  # all of one length
    whole = torch.tensor([turn.prompt_ids + turn.completion_ids for turn in turns])
    plain = copy.deepcopy(model)
    plain.generation_config.eos_token_id = None

    def floor() -> None:
        with torch.inference_mode():
            plain.generate(
                input_ids=prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                top_k=0,
                max_new_tokens=NEW,
            )
        plain(input_ids=whole, labels=whole, use_cache=False).loss.backward()
        plain.zero_grad(set_to_none=True)

    seconds = interleaved({"ours": step, "floor": floor}, rounds)
    size = sum(parameter.numel() for parameter in model.parameters())
    what = (
        f"step by its floor, {PROMPTS} x {SIBLINGS} x {NEW} tokens, {size / 1e6:.1f} M parameters"
    )
    return [compared(what, seconds["ours"], seconds["floor"], target=0.9)]


if __name__ == "__main__":
    main()
