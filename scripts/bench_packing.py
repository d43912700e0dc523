"""Times the learner's step on packed samples beside the same step on padded rows.

Usage: python scripts/bench_packing.py [--rounds 7] [--json FILE]
"""

import copy
from collections.abc import Iterable
from random import Random

from bench_timing import Line, arguments, compared, interleaved, show

from selfplay.learner.learner import Learner
from selfplay.learner.objective import PolicyLoss
from selfplay.models.tiny import build_model
from selfplay.types import Sample, Turn

VOCABULARY = 300
CASES = (
    # what, prompts, prompt tokens, completions of each, turns of a conversation, target
    ("packing, 1 prompt of 512 x 8 completions of 32", 1, 512, 8, 1, 4.0),
    ("packing, 4 prompts of 512 x 8 completions of 32", 4, 512, 8, 1, None),
    ("packing, 32 prompts of 8 x 8 completions of 32", 32, 8, 8, 1, 0.95),
    ("packing, 1 prompt of 8 x 256 completions of 32", 1, 8, 256, 1, 0.95),
    ("packing, 32 prompts of 32 x 8 completions of 32", 32, 32, 8, 1, None),
    ("packing, 4 x 4 conversations of 4 turns of 32 + 32", 4, 32, 4, 4, None),
)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    lines = [
        measure(what, list(samples(*sizes)), rounds=options.rounds, target=target)
        for what, *sizes, target in CASES
    ]
    show(lines, options.json)


def measure(what: str, given: list[Sample], *, rounds: int, target: float | None) -> Line:
    """The default (`auto`) beside `rows`."""
    model = build_model(VOCABULARY, seed=0)
    learners = {
        packing: Learner(copy.deepcopy(model), objective=PolicyLoss(), lr=1e-6, packing=packing)
        for packing in ("auto", "rows")
    }
    works = {
        name: lambda learner=learner: learner.update(given, step=1)
        for name, learner in learners.items()
    }
    seconds = interleaved(works, rounds)
    return compared(what, seconds["auto"], seconds["rows"], target=target)


def samples(prompts: int, length: int, completions: int, turns: int) -> Iterable[Sample]:
    """Random tokens; every turn of a conversation begins with all that came before it."""
    rng = Random(0)

    def words(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, VOCABULARY) for _ in range(count))

    for _ in range(prompts):
        opening = words(length)
        for _ in range(completions):
            prompt = opening
            for _ in range(turns):
                said = words(32)
                turn = Turn(
                    agent="solver_0",
                    role="solver",
                    policy="base",
                    version=0,
                    prompt_ids=prompt,
                    completion_ids=said,
                    logprobs=(-5.0,) * 32,
                    loss_mask=(1,) * 32,
                )
                yield Sample(turn=turn, advantage=rng.choice((-1.0, 1.0)))
                prompt = (*prompt, *said, *words(length))


if __name__ == "__main__":
    main()
