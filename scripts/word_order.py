"""A taskset for the library `verifiers` (0.4): put words in alphabetical order.

An example for `services=taskset`; `configs/experiment/smollm2/taskset.yaml` trains on it. A set of
words occurs once, in an order by chance, so that a held-out question is about a set of its own.
"""

import random
from collections.abc import Iterator
from itertools import combinations

import verifiers.v1 as vf

__all__ = ["WordOrder"]

WORDS = (
    "apple bread candle dance eagle field garden house island jungle kettle lemon mountain "
    "needle ocean paper queen river stone table uncle village window yellow"
)


class WordOrderConfig(vf.TasksetConfig):
    """Settings of the taskset."""

    words: int = 3
    count: int = 1000
    seed: int = 0


class WordOrderData(vf.TaskData):
    """What the rewards need."""

    answer: str
    """The words in alphabetical order."""
    example: str
    """The words in an order by chance, as an example of the form."""


class WordOrderTask(vf.Task[WordOrderData]):
    """The words of a set."""

    @vf.reward(weight=0.5)
    async def exact(self, trace: vf.Trace) -> float:
        """1 for the right order."""
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.reward(weight=0.5)
    async def pairs(self, trace: vf.Trace) -> float:
        """The part of the pairs of words that are in the right order; 0 for other words."""
        said, right = trace.last_reply.strip().split(", "), self.data.answer.split(", ")
        if sorted(said) != right:
            return 0.0
        pairs = list(combinations(said, 2))
        return sum(first < second for first, second in pairs) / len(pairs)


class WordOrder(vf.Taskset[WordOrderTask, WordOrderConfig]):
    """Different sets of words."""

    def load(self) -> Iterator[WordOrderTask]:
        """Yield the tasks."""
        rng = random.Random(self.config.seed)
        nouns = WORDS.split()
        seen: set[str] = set()
        while len(seen) < self.config.count:
            words = rng.sample(nouns, self.config.words)
            answer = ", ".join(sorted(words))
            if answer in seen:
                continue
            seen.add(answer)
            prompt = f"Put these words in alphabetical order: {', '.join(words)}"
            example = ", ".join(rng.sample(words, len(words)))
            data = WordOrderData(prompt=prompt, answer=answer, example=example)
            yield WordOrderTask(data, self.config.task)
