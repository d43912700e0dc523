"""Times how long a training step waits for a checkpoint, and a checkpoint with the steps after it.

A random model with the averages of Adam is saved in three ways, in turns: as this library did
until version 0.2 (the libraries' writers, the optimizer's state serialized in memory, every file
read again for its hash), at once with hashes that are computed while the files are written, and in
a thread after a copy (run.async_checkpoints). The last line has a save and the updates after it,
until all is on the disk. The weights that the three ways write must be equal.

Usage: python scripts/bench_checkpoint.py [--rounds 5] [--updates 4] [--wide] [--folder DIR]
       [--json FILE]

--wide takes the shape of SmolLM2-135M instead of a model of 33 million parameters.
"""

import io
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bench_timing import arguments, compared, load, show
from transformers.utils.logging import disable_progress_bar

from selfplay.learner.checkpoint import broken
from selfplay.learner.checkpoint_writer import CheckpointWriter
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from selfplay.models.policy import Policy
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.run.directory import sync
from selfplay.run.files import sha256
from selfplay.types import Sample, Turn

SMALL = {"hidden": 512, "layers": 8, "heads": 8, "intermediate": 1536}
SMOLLM2 = {"hidden": 576, "layers": 30, "heads": 9, "intermediate": 1536}
VOCABULARY = {False: 12_000, True: 49_152}
"""Rows of the embedding, small and wide."""
TOKENS = 64


def sample(tokens: int) -> Sample:
    """Return a sample with `tokens` tokens of completion."""
    turn = Turn(
        agent="player_0",
        role="player",
        policy="base",
        version=0,
        prompt_ids=(1, 2),
        completion_ids=tuple(range(3, 3 + tokens)),
        logprobs=(-1.0,) * tokens,
        loss_mask=(1,) * tokens,
    )
    return Sample(turn=turn, advantage=1.0, group="1.0.0")


class Training:
    """A policy that learns, and the three ways to save it."""

    def __init__(self, folder: Path, *, wide: bool) -> None:
        tokenizer = build_tokenizer(["def f("])
        self.model = build_model(VOCABULARY[wide], seed=0, **(SMOLLM2 if wide else SMALL))
        self.policy = Policy(name="base", model=self.model, renderer=ChatRenderer(tokenizer))
        self.learner = Learner(
            self.model, objective=PolicyLoss(), settings=LearnerSettings(lr=1e-6)
        )
        self.folder, self.step = folder, 0
        self.writers = {
            kind: CheckpointWriter(folder / kind, background=kind == "background")
            for kind in ("at once", "background")
        }

    def update(self, count: int = 1) -> None:
        """Make optimizer steps."""
        for _ in range(count):
            self.learner.update([sample(TOKENS)], step=1)

    def save(self, kind: str) -> Path:
        """Save in a new folder, and remove the older one."""
        self.step += 1
        if kind == "before":
            return self._save_as_before()
        return self.writers[kind].save(
            step=self.step,
            policies={"base": self.policy},
            learners={"base": self.learner},
            state={},
            keep=1,
        )

    def wait(self, kind: str) -> None:
        """Wait until the checkpoint is on the disk."""
        if kind != "before":
            self.writers[kind].wait()

    def _save_as_before(self) -> Path:
        """Save as this library did until version 0.2, the way that ours is compared with."""
        folder = self.folder / "before"
        place, partial = folder / f"{self.step:06d}", folder / ".partial"
        policy = partial / "policies/base"
        policy.mkdir(parents=True)
        self.model.save_pretrained(policy)
        self.policy.renderer.tokenizer.save_pretrained(policy)
        memory = io.BytesIO()
        torch.save({"base": self.learner.state_dict()}, memory)
        (partial / "learners.pt").write_bytes(memory.getbuffer())
        (partial / "state.json").write_text("{}")
        files = [path for path in sorted(partial.rglob("*")) if path.is_file()]
        hashes = {str(path.relative_to(partial)): sha256(path) for path in files}
        (partial / "manifest.json").write_text(json.dumps(hashes))
        for path in (*partial.rglob("*"), partial):
            sync(path)
        partial.rename(place)
        sync(folder)
        for old in folder.iterdir():
            if old != place:
                shutil.rmtree(old)
        return place


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measure(training: Training, *, rounds: int, updates: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of every way in every round: of the save, of the updates after it, and
    until all is written."""
    ways = ["before", "at once", "background"]
    seconds: dict[str, dict[str, list[float]]] = {
        way: {"save": [], "updates": [], "all": []} for way in ways
    }
    for number in range(rounds + 1):
        for way in ways if number % 2 else ways[::-1]:
            begun = time.perf_counter()
            saved = timed(lambda way=way: training.save(way))  # type: ignore[misc]
            updated = timed(lambda: training.update(updates))
            training.wait(way)
            if number:  # the first round warms up
                seconds[way]["save"].append(saved)
                seconds[way]["updates"].append(updated)
                seconds[way]["all"].append(time.perf_counter() - begun)
    return seconds


def check(training: Training) -> int:
    """Save in all ways without updates between; return the bytes of a checkpoint."""
    places: dict[str, Any] = {}
    for way in ("before", "at once", "background"):
        places[way] = training.save(way)
        training.wait(way)
        if fault := broken(places[way]):
            raise SystemExit(f"the checkpoint {way}: {fault}")
    for name in ("policies/base/model.safetensors", "learners.pt"):
        if len({sha256(place / name) for place in places.values()}) != 1:
            raise SystemExit(f"{name} differs between the three ways")
    return sum(path.stat().st_size for path in places["at once"].rglob("*") if path.is_file())


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=4, help="updates after each save")
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bar()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        training = Training(Path(folder), wide=options.wide)
        training.update()
        size = check(training)
        found = measure(training, rounds=options.rounds, updates=options.updates)
    print(load())
    for way, times in found.items():
        rows = (f"{name} {min(s):.2f} to {max(s):.2f} s" for name, s in times.items())
        print(f"{way}: {', '.join(rows)}")
    millions = training.model.num_parameters() / 1e6
    what = f"{millions:.0f} M parameters with Adam, {size / 1e6:.0f} MB"
    before, at_once, background = (found[way] for way in ("before", "at once", "background"))
    show(
        [
            compared(f"wait for a checkpoint of {what}: copy", background["save"], before["save"]),
            compared("the same, at once, hashed while written", at_once["save"], before["save"]),
            compared(
                f"{options.updates} updates after it, during the thread",
                background["updates"],
                at_once["updates"],
            ),
            compared("save, updates, until written: thread", background["all"], at_once["all"]),
        ],
        options.json,
    )


if __name__ == "__main__":
    main()
