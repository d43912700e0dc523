"""Times a whole training step on single-turn episodes, compared with its floor.

32 prompts x 8 completions of exactly 32 tokens, by a new model of 0.8 million parameters. Ours is
rollout, credit, learner and optimizer; the floor is plain `generate` and one plain forward and
backward pass of the same tokens.

Usage: python scripts/bench_batch.py [--rounds 7] [--json FILE]
"""

import copy
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import torch
from bench_timing import Line, arguments, compared, interleaved, show
from transformers import PreTrainedModel

from selfplay.arena import Arena
from selfplay.credit import Credit
from selfplay.credit.grpo import GRPO
from selfplay.engines.transformers import TransformersEngine
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.types import Action, Group, Observation, Task

PROMPTS, SIBLINGS, NEW, RATE = 32, 8, 32, 1e-6
SHAPE = {"intermediate": 352}
"""Sizes of the model in addition to those of `build_model`."""


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
            self.pay(agent, earned(text or ""))
        self.finish()


def earned(text: str) -> float:
    """Return the reward of an answer; it differs between siblings."""
    return float(len(text) % 7)


class Step:
    """Training steps, one for each call."""

    def __init__(
        self,
        models: Mapping[str, PreTrainedModel],
        renderer: ChatRenderer,
        *,
        arena: type[Arena] = OneTurn,
        credit: Credit | None = None,
        asked: Sequence[str] | None = None,
        new: int = NEW,
    ) -> None:
        """`models` has a model for each role of `arena`. By default `credit` is GRPO, and `asked`
        are `questions()`. `new` is the number of tokens of a completion."""
        engine = TransformersEngine()
        agent_specs, self.learners = {}, {}
        for role, model in models.items():
            engine.serve(role, model, [])  # no token ends a completion
            agent_specs[role] = AgentSpec(
                role=Role(), policy=role, renderer=renderer, max_tokens=new
            )
            self.learners[role] = Learner(
                model, objective=PolicyLoss(), settings=LearnerSettings(lr=RATE)
            )
        self.rollout = Rollout(
            arena=arena, agent_specs=agent_specs, engines=dict.fromkeys(models, engine)
        )
        self.credit, self.step = credit or GRPO(), 0
        self.tasks = [
            Task(id=str(n), payload={"question": question})
            for n, question in enumerate(asked or questions())
        ]

    def __call__(self) -> list[Group]:
        groups = self.sample()
        self.learn(groups)
        return groups

    def sample(self) -> list[Group]:
        """Play the episodes of the next step."""
        self.step += 1
        specs = [
            EpisodeSpec(task=task, seed=self.step * len(self.tasks) + n, member=member)
            for n, task in enumerate(self.tasks)
            for member in range(SIBLINGS)
        ]
        episodes = self.rollout.run(specs)
        return [
            Group(id=str(n), episodes=tuple(episodes[n * SIBLINGS : (n + 1) * SIBLINGS]))
            for n in range(len(self.tasks))
        ]

    def learn(self, groups: Sequence[Group]) -> None:
        """Make one update of every policy."""
        samples = self.credit.assign(groups)
        for policy, learner in self.learners.items():
            learner.update([s for s in samples if s.turn.policy == policy], step=self.step)


def questions(count: int = PROMPTS) -> list[str]:
    """Return the first of the questions, which are all equally long."""
    rng = Random(0)
    return ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=24)) for _ in range(count)]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    show(measure(options.rounds), options.json)


def new_step(
    prompts: int = PROMPTS, shape: Mapping[str, int] = SHAPE
) -> tuple[Step, PreTrainedModel]:
    """Return a step of some prompts by one policy, and its new model."""
    tokenizer = build_tokenizer([])
    model = build_model(len(tokenizer), seed=0, **shape)
    renderer = ChatRenderer(tokenizer, where="bench")
    return Step({"solver": model}, renderer, asked=questions(prompts)), model


def measure(rounds: int) -> list[Line]:
    """Compare the step with its floor, as a whole and by parts."""
    step, model = new_step()
    turns = [t for group in step() for episode in group.episodes for t in episode.turns]
    assert all(len(turn.completion_ids) == NEW for turn in turns)
    prompts = torch.tensor([turn.prompt_ids for turn in turns])  # all of one length
    whole = torch.tensor([[*turn.prompt_ids, *turn.completion_ids] for turn in turns])
    plain: Any = copy.deepcopy(model)
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
