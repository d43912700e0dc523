"""Times the learner's step on packed samples, compared with the same step on padded rows.

With --wide, a random model with the layers of SmolLM2-135M learns in bfloat16 from 8 answers to
each of 16 questions that begin with one instruction: the rows of `auto`, which are cut where a mask
costs too much, compared with those of `trie`, which compute every token once. This takes some
minutes.

Usage: python scripts/bench_packing.py [--wide] [--rounds 7] [--json FILE]
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random

from bench_fill import SMOLLM2
from bench_timing import Line, arguments, compared, interleaved, show

from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
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
    parser.add_argument("--wide", action="store_true")
    options = parser.parse_args()
    if options.wide:
        show([measure_cuts(options.rounds)], options.json)
        return
    lines = [
        measure(what, list(samples(*sizes)), rounds=options.rounds, target=target)
        for what, *sizes, target in CASES
    ]
    show(lines, options.json)


def measure(what: str, given: list[Sample], *, rounds: int, target: float | None) -> Line:
    """Compare the default (`auto`) with `rows`."""
    model = build_model(VOCABULARY, seed=0)
    learners = {
        packing: Learner(
            copy.deepcopy(model),
            objective=PolicyLoss(),
            settings=LearnerSettings(lr=1e-6, packing=packing),
        )
        for packing in ("auto", "rows")
    }
    seconds = updates(learners, given, rounds)
    return compared(what, seconds["auto"], seconds["rows"], target=target)


def measure_cuts(rounds: int) -> Line:
    """Compare the default (`auto`) with `trie`."""
    given = list(questions(16, instruction=30, question=30, answers=8))
    model = build_model(VOCABULARY, seed=0, **SMOLLM2)
    settings = LearnerSettings(lr=1e-6, precision="bfloat16")
    learners = {
        packing: Learner(
            copy.deepcopy(model),
            objective=PolicyLoss(),
            settings=replace(settings, packing=packing),
        )
        for packing in ("auto", "trie")
    }
    seconds = updates(learners, given, rounds)
    return compared("packing, 16 x 8 answers, layers of 135M", seconds["auto"], seconds["trie"])


def updates(
    learners: Mapping[str, Learner], given: list[Sample], rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of each learner's updates."""
    works = {
        name: lambda learner=learner: learner.update(given, step=1)
        for name, learner in learners.items()
    }
    return interleaved(works, rounds)


def samples(prompts: int, length: int, completions: int, turns: int) -> Iterable[Sample]:
    """Yield samples of random tokens; a turn of a conversation begins with all that came before
    it."""
    rng = Random(0)

    def words(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, VOCABULARY) for _ in range(count))

    for _ in range(prompts):
        opening = words(length)
        for _ in range(completions):
            prompt = opening
            for _ in range(turns):
                completion = words(32)
                yield answer(prompt, completion, rng)
                prompt = (*prompt, *completion, *words(length))


def questions(count: int, *, instruction: int, question: int, answers: int) -> Iterable[Sample]:
    """Yield answers of 12 tokens; all questions begin with the same instruction."""
    rng = Random(0)

    def words(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, VOCABULARY) for _ in range(count))

    opening = words(instruction)
    for _ in range(count):
        prompt = (*opening, *words(question))
        for _ in range(answers):
            yield answer(prompt, words(12), rng)


def answer(prompt: tuple[int, ...], completion: tuple[int, ...], rng: Random) -> Sample:
    """Return a completion of a prompt, with an advantage of 1 or -1."""
    turn = Turn(
        agent="solver_0",
        role="solver",
        policy="base",
        version=0,
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=(-5.0,) * len(completion),
        loss_mask=(1,) * len(completion),
    )
    return Sample(turn=turn, advantage=rng.choice((-1.0, 1.0)))


if __name__ == "__main__":
    main()
