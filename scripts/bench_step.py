"""Times the quickstart's training step against its floor, side by side in one run.

The floor is the work that cannot be left out: plain `generate` for the same prompts and one plain
forward-backward of the same tokens, with the same model.

Usage: python scripts/bench_step.py [--steps 7] [--json FILE] [key=value ...]
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_timing import arguments, compared, show
from transformers import PreTrainedModel

from selfplay.config import compose
from selfplay.experiment.experiment import Experiment
from selfplay.run.directory import Run
from selfplay.run.progress import Progress
from selfplay.train import Trainer
from selfplay.types import Group, Turn

MICRO_BATCH_TOKENS = 16_384


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--steps", type=int, default=7)
    options, overrides = parser.parse_known_args()
    settings = compose.load(["+experiment=tiny/quickstart", *overrides])
    experiment = Experiment(settings).load()
    rows = []
    with tempfile.TemporaryDirectory() as folder, Progress(0, "bench", live=False) as progress:
        run = Run.create(Path(folder) / "run", settings)
        Trainer(experiment, run, progress).fill_curriculum()
        for step in range(1, options.steps + 2):
            seconds, groups = one_step(experiment, run, step)
            turns = [t for g in groups for e in g.episodes for t in e.turns]
            (model,) = {id(p.model): p.model for p in experiment.policies.values()}.values()
            plain = {
                "generate": timed(partial(plain_generate, model, turns)),
                "forward_backward": timed(partial(plain_learning, model, turns)),
            }
            tokens = sum(len(turn.completion_ids) for turn in turns)
            if step > 1:  # the first step warms up caches
                rows.append({**seconds, **plain, "tokens": tokens, "turns": len(turns)})
    experiment.close()
    median = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    print(
        f"a step of {median['turns']:.0f} turns and {median['tokens']:.0f} completion tokens: "
        f"rollout {median['rollout']:.2f} s (generate {median['generate']:.2f}), learning "
        f"{median['learn']:.2f} (forward-backward {median['forward_backward']:.2f}), credit and "
        f"records {median['record']:.2f}"
    )
    floor = [row["generate"] + row["forward_backward"] for row in rows]
    ours = [row["step"] for row in rows]
    show([compared("quickstart step by its floor", ours, floor, target=0.9)], options.json)


def one_step(experiment: Experiment, run: Run, step: int) -> tuple[dict[str, float], list[Group]]:
    """Do a step of the training loop, timed by phase."""
    begin = time.perf_counter()
    groups = experiment.sampler.sample(
        experiment.curriculum, experiment.rollout_fn, step=step, seed=experiment.seed
    )
    played = time.perf_counter()
    samples = experiment.credit.assign(groups)
    credited = time.perf_counter()
    for name, learner in experiment.learners.items():
        learner.update([s for s in samples if s.turn.policy == name], step=step)
        experiment.publish(name)
    learned = time.perf_counter()
    run.record(step, {}, groups, samples)
    end = time.perf_counter()
    seconds = {
        "step": end - begin,
        "rollout": played - begin,
        "learn": learned - credited,
        "record": end - learned + credited - played,
    }
    return seconds, groups


def plain_generate(model: Any, turns: Sequence[Turn]) -> None:
    """Call `generate` for the proposers' prompts and then for the solvers', each as one padded
    batch."""
    model.eval()
    for role in dict.fromkeys(turn.role for turn in turns):
        mine = [turn for turn in turns if turn.role == role]
        width = max(len(turn.prompt_ids) for turn in mine)
        ids = torch.zeros(len(mine), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, turn in enumerate(mine):
            ids[row, width - len(turn.prompt_ids) :] = torch.tensor(turn.prompt_ids)
            mask[row, width - len(turn.prompt_ids) :] = 1
        with torch.inference_mode():
            model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                top_k=0,
                temperature=1.0,
                max_new_tokens=max(len(turn.completion_ids) for turn in mine),
            )


def plain_learning(model: PreTrainedModel, turns: Sequence[Turn]) -> None:
    """Do one forward-backward of the same tokens, as padded rows sorted by length."""
    model.train()
    rows = sorted(([*turn.prompt_ids, *turn.completion_ids] for turn in turns), key=len)
    start = 0
    while start < len(rows):
        end = start + 1
        while end < len(rows) and (end + 1 - start) * len(rows[end]) <= MICRO_BATCH_TOKENS:
            end += 1
        part = rows[start:end]
        width = len(part[-1])
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in part])
        labels = torch.tensor([[*row, *[-100] * (width - len(row))] for row in part])
        mask = (labels != -100).long()
        model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss.backward()
        start = end
    model.zero_grad(set_to_none=True)


def timed(work: Callable[[], None]) -> float:
    """Return the seconds that `work()` takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
