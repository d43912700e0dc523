"""Times a training step here, in TRL and in CoMLRL, with the same models, prompts and batch.

TRL: one agent, GRPO, 32 prompts x 8 completions of 32 tokens, one update. CoMLRL: two agents with
a model each, MAGRPO on aligned joint actions, the same batch for either. There is
no KL term, evaluation or tracker; other parts of a trainer are its own. An environment for it:

    python -m venv peers
    peers/bin/pip install torch==2.13.0 trl==1.16.0 wandb openai -e .
    peers/bin/pip install --no-deps comlrl==1.4.3
    OMP_NUM_THREADS=2 peers/bin/python scripts/bench_peers.py

Usage: python scripts/bench_peers.py [trl] [comlrl] [--rounds 5] [--json FILE]
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from bench_batch import NEW, PROMPTS, RATE, SIBLINGS, OneTurn, Step, earned, questions
from bench_timing import Line, arguments, compared, interleaved, show
from datasets import Dataset
from transformers import PreTrainedModel, TrainerCallback

from selfplay.credit.magrpo import MAGRPO
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.types import Action

PEERS = ("trl", "comlrl")
TOKENIZER = build_tokenizer([])
RENDERER = ChatRenderer(TOKENIZER, where="bench")


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("peers", nargs="*", help=f"some of {', '.join(PEERS)}; default: all")
    options = parser.parse_args()
    known = {"trl": compare_trl, "comlrl": compare_comlrl}
    for name in options.peers:
        if name not in known:
            parser.error(f"no peer {name!r}; choose from {', '.join(PEERS)}")
    show([known[name](options.rounds) for name in options.peers or PEERS], options.json)


class Pair(OneTurn):
    """Two agents answer the same question in one stage, and both are paid for both answers."""

    name = "pair_v0"
    roles = {"first": 1, "second": 1}

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        for agent in actions:
            self.pay(agent, sum(earned(text or "") for text in actions.values()))
        self.finish()


def compare_trl(rounds: int) -> Line:
    """Compare a GRPO step of one agent."""
    from trl import GRPOConfig, GRPOTrainer

    ours = Step({"solver": new_model(0)}, RENDERER)
    ours()
    seconds: dict[str, list[float]] = {"ours": [], "other": []}

    class InTurns(TrainerCallback):
        """Make a step of ours after each step of the trainer."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            ended = time.perf_counter()
            ours()
            seconds["other"].append(ended - self.began)
            seconds["ours"].append(time.perf_counter() - ended)

    def reward(completions: Sequence[str], **_: Any) -> list[float]:
        return [earned(text) for text in completions]

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=new_model(0),
            processing_class=TOKENIZER,
            reward_funcs=reward,
            train_dataset=Dataset.from_list([{"prompt": text} for text in prompts()]),
            callbacks=[InTurns()],
            args=GRPOConfig(
                output_dir=folder,
                max_steps=rounds + 1,
                per_device_train_batch_size=PROMPTS * SIBLINGS,
                gradient_accumulation_steps=1,
                num_generations=SIBLINGS,
                max_completion_length=NEW,
                generation_kwargs={"min_new_tokens": NEW},
                beta=0.0,
                loss_type="grpo",
                learning_rate=RATE,
                lr_scheduler_type="constant",
                bf16=False,
                use_cpu=True,
                gradient_checkpointing=False,
                logging_steps=rounds + 1,
                disable_tqdm=True,
                report_to="none",
                save_strategy="no",
            ),
        )
        trainer.train()
    what = f"GRPO step, {batch()}, compared with TRL {version('trl')}"
    return compared(what, seconds["ours"][1:], seconds["other"][1:])


def compare_comlrl(rounds: int) -> Line:
    """Compare a MAGRPO step of two agents, each with a model of its own."""
    from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer

    ours = Step(
        {"first": new_model(0), "second": new_model(1)}, RENDERER, arena=Pair, credit=MAGRPO()
    )

    def reward(first: Sequence[str], second: Sequence[str]) -> list[float]:
        return [earned(a) + earned(b) for a, b in zip(first, second, strict=True)]

    trainer = MAGRPOTrainer(
        agents=[new_model(0), new_model(1)],
        num_agents=2,
        tokenizer=TOKENIZER,
        reward_func=reward,
        formatters=[lambda item: str(item["prompt"])] * 2,
        train_dataset=Dataset.from_list([{"prompt": text} for text in prompts()]),
        args=MAGRPOConfig(
            num_train_epochs=1,  # one step, because an epoch is the whole batch
            num_turns=1,
            num_generations=SIBLINGS,
            max_new_tokens=NEW,
            temperature=1.0,
            top_p=1.0,
            rollout_buffer_size=PROMPTS,
            train_batch_size=PROMPTS,
            eval_interval=0,
            agent_learning_rate=RATE,
        ),
    )
    trainer.verbose = False

    def other() -> None:
        trainer.train(min_new_tokens=NEW, top_k=0)  # by default, the 50 likeliest tokens only

    seconds = interleaved({"ours": ours, "other": other}, rounds)
    what = f"MAGRPO step, 2 agents, {batch()} each, compared with CoMLRL {version('comlrl')}"
    return compared(what, seconds["ours"], seconds["other"])


def new_model(seed: int) -> PreTrainedModel:
    """Return the model of every side."""
    return build_model(len(TOKENIZER), seed=seed, intermediate=352)


def prompts() -> list[str]:
    """Return the texts that our agents read, with the chat template."""
    return [
        str(
            TOKENIZER.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
        )
        for text in questions()
    ]


def batch() -> str:
    """Return the size of a step in words."""
    return f"{PROMPTS} x {SIBLINGS} x {NEW} tokens"


if __name__ == "__main__":
    main()
