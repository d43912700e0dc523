"""Times training steps with and without the filling of new tensors by torch.

With deterministic algorithms, torch writes NaN to every new tensor before an operation writes its
result. `set_up_process` turns this off. Two equal models make the steps of bench_batch.py in turns,
one of them with the filling; the weights of both must be equal at the end. --wide takes random
models with the layers of SmolLM2-135M, and 4 instead of 32 prompts.

Usage: python scripts/bench_fill.py [--rounds 7] [--wide] [--json FILE]
"""

from collections.abc import Callable
from typing import Any

import torch
from bench_batch import Step, new_step
from bench_timing import Line, arguments, compared, interleaved, show

SMOLLM2 = {"hidden": 576, "layers": 30, "heads": 9, "intermediate": 1536}
"""Shape of SmolLM2-135M, without its vocabulary."""


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--wide", action="store_true")
    options = parser.parse_args()
    show([measure(options.rounds, wide=options.wide)], options.json)


def measure(rounds: int, *, wide: bool) -> Line:
    """Compare the step without the filling with the same step with it."""
    torch.use_deterministic_algorithms(True)
    settings: dict[str, Any] = {"prompts": 4, "shape": SMOLLM2} if wide else {}
    (step, model), (other, filled) = new_step(**settings), new_step(**settings)
    works = {"ours": training_step(step, fill=False), "filled": training_step(other, fill=True)}
    seconds = interleaved(works, rounds)
    pairs = zip(model.parameters(), filled.parameters(), strict=True)
    if not all(torch.equal(ours, theirs) for ours, theirs in pairs):
        raise SystemExit("the weights differ with and without the filling of new tensors")
    return compared("step, new tensors not filled", seconds["ours"], seconds["filled"])


def training_step(step: Step, *, fill: bool) -> Callable[[], object]:
    """Return a function that makes one training step, with or without the filling."""

    def work() -> object:
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        return step()

    return work


if __name__ == "__main__":
    main()
