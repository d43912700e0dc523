"""A taskset for the library `verifiers` (0.4): put words in alphabetical order.

It is an example for `services=taskset`; `configs/experiment/smollm2/taskset.yaml` trains on it.
Each set of words occurs once, in a random order, so a held-out question is about another set of
words. The settings `pay` and `unseen` are for controls: other rewards, and words that are not in
training.
"""

import random
from collections.abc import Iterator
from itertools import combinations
from typing import Literal

import verifiers.v1 as vf

__all__ = ["WordOrder"]

WORDS = (
    "apple bread candle dance eagle field garden house island jungle kettle lemon mountain "
    "needle ocean paper queen river stone table uncle village window yellow"
)
UNSEEN = (
    "anchor basket castle doctor engine forest guitar hammer insect jacket kitchen ladder mirror "
    "number orange pencil quarter rocket silver ticket valley winter yard zebra"
)
Pay = Literal["order", "words", "chance"]


class WordOrderConfig(vf.TasksetConfig):
    """Settings of the taskset."""

    words: int = 3
    """Words of a question."""
    count: int = 1000
    seed: int = 0
    unseen: bool = False
    """Take the words from a second list."""
    pay: Pay = "order"
    """"order" pays for the order, "words" for the words in any order, "chance" at random."""


class WordOrderData(vf.TaskData):
    """Data that the rewards need."""

    answer: str
    """The words in alphabetical order."""
    example: str
    """The words in a random order, as an example of the form."""
    pay: Pay
    """The rewarded property of a reply, see `WordOrderConfig.pay`."""


class WordOrderTask(vf.Task[WordOrderData]):
    """A task with the words of a set."""

    @vf.reward(weight=0.5)
    async def exact(self, trace: vf.Trace) -> float:
        """Return 1 for the right order."""
        if self.data.pay != "order":
            return self.control(trace)
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.reward(weight=0.5)
    async def pairs(self, trace: vf.Trace) -> float:
        """Return the fraction of pairs of words that are in the right order; 0 for other words."""
        if self.data.pay != "order":
            return self.control(trace)
        if not self.same_words(trace):
            return 0.0
        pairs = list(combinations(trace.last_reply.strip().split(", "), 2))
        return sum(first < second for first, second in pairs) / len(pairs)

    def control(self, trace: vf.Trace) -> float:
        """Return the reward of a control: a random one, or 1 for the right words in any order."""
        return random.random() if self.data.pay == "chance" else float(self.same_words(trace))

    def same_words(self, trace: vf.Trace) -> bool:
        """Return True if the reply consists of the words of the question."""
        return sorted(trace.last_reply.strip().split(", ")) == self.data.answer.split(", ")


class WordOrder(vf.Taskset[WordOrderTask, WordOrderConfig]):
    """Different sets of words."""

    def load(self) -> Iterator[WordOrderTask]:
        """Yield the tasks."""
        rng = random.Random(self.config.seed)
        nouns = (UNSEEN if self.config.unseen else WORDS).split()
        seen: set[str] = set()
        while len(seen) < self.config.count:
            words = rng.sample(nouns, self.config.words)
            answer = ", ".join(sorted(words))
            if answer in seen:
                continue
            seen.add(answer)
            prompt = f"Put these words in alphabetical order: {', '.join(words)}"
            example = ", ".join(rng.sample(words, len(words)))
            data = WordOrderData(prompt=prompt, answer=answer, example=example, pay=self.config.pay)
            yield WordOrderTask(data, self.config.task)
