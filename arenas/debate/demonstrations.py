"""Demonstrations of debate about passages, for the warm start.

In the first round, a debater guesses a door, or follows one passage and writes it down. Later
rounds show three habits: keep the own answer, copy the next debater's, and (rarely at the end)
weigh all arguments: name a passage that leads to the goal according to an argument, or else follow
an untried passage. Training has to discover which habit has the highest reward.
"""

from collections.abc import Iterator, Sequence
from random import Random

from arenas.debate.arena import debater_view
from arenas.debate.passages import GOAL, NO, YES, Passages, all_steps, shown
from selfplay.types import Demonstration, Observation

Entry = dict[str, str]
ALL = "All of "


class DebateDemonstrations:
    """Stream of answers in first and later rounds, without held-out questions."""

    def __init__(
        self,
        *,
        debaters: int = 3,
        rounds: int = 2,
        doors: int = 4,
        followed_share: float = 0.5,
        weighed_share: float = 0.1,
        practice_share: float = 0.9,
        practice_until: float = 0.85,
        first_share: float = 0.3,
        map_share: float = 0.8,
    ) -> None:
        """Args:
        debaters, rounds: Numbers of debaters and rounds.
        doors: Number of doors per question.
        followed_share: Fraction of first answers that follow a passage, in the last part of the
            warm start, which the policy imitates when training begins.
        weighed_share: Fraction of later answers that weigh all arguments, in the last part.
        practice_share: Both fractions before that part, while the method itself is learned.
        practice_until: Start of the last part, as a fraction of the warm start.
        first_share: Fraction of demonstrations of first rounds; unused with one round.
        map_share: Initial fraction of demonstrations that write down all passages of a question,
            for more practice in following one. It falls to 0 by the middle of the practice.
        """
        if debaters < 2 or rounds < 1:
            raise ValueError("debaters is at least 2, rounds at least 1")
        self.debaters, self.rounds, self.doors = debaters, rounds, doors
        self.followed_share, self.weighed_share = followed_share, weighed_share
        self.practice_share, self.practice_until = practice_share, practice_until
        self.first_share, self.map_share = first_share, map_share

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations of first and later rounds without end."""
        practice = progress < self.practice_until
        followed, weighed = (
            self.practice_share if practice else share
            for share in (self.followed_share, self.weighed_share)
        )
        while True:
            question = shown(rng, doors=self.doors)
            maps = 1 - 2 * progress / self.practice_until if practice else 0.0
            if rng.random() < self.map_share * maps:
                yield self._map(question)
                continue
            if self.rounds == 1 or rng.random() < self.first_share:
                seen = self._view(question.question, 1, None, [])
                entry = first(question, rng, followed=rng.random() < followed)
            else:
                seen, entry = self._later(question, rng, weighed=rng.random() < weighed)
            yield Demonstration(role="debater", observation=seen, completion=completion(entry))

    def _later(
        self, question: Passages, rng: Random, *, weighed: bool
    ) -> tuple[Observation, Entry]:
        """Return the view and answer of a later round, after answers that differ."""
        while True:
            own, *others = (
                first(question, rng, followed=rng.random() < 0.9) for _ in range(self.debaters)
            )
            found = any(entry["argument"].endswith(YES) for entry in (own, *others))
            agreed = len({entry["answer"] for entry in (own, *others)}) == 1
            if not agreed and (found or rng.random() < 0.5):
                break
        seen = self._view(question.question, rng.randint(2, self.rounds), own, others)
        if weighed:
            return seen, weigh(question, rng, [own, *others])
        kept = own if rng.random() < 0.5 else others[0]
        return seen, {"answer": kept["answer"], "argument": ""}

    def _map(self, question: Passages) -> Demonstration:
        return Demonstration(
            role="debater",
            observation=self._view(ALL + question.question, 1, None, []),
            completion="".join(question.followed(door) for door in question.paths),
        )

    def _view(
        self, question: str, round_number: int, own: Entry | None, others: Sequence[Entry]
    ) -> Observation:
        return debater_view(question, round_number, self.rounds, own=own, others=others)

    def pieces(self) -> list[str]:
        """Return the fixed strings of prompts and completions, one token each."""
        steps = all_steps(doors=self.doors)
        return [*steps, ALL, GOAL, YES, NO, "<answer>", "</answer>", "\n> ", ": "]


def first(question: Passages, rng: Random, *, followed: bool) -> Entry:
    """Return a first answer: a guess, or the result of following one passage."""
    if not followed:
        return {"answer": rng.choice(list(question.paths)), "argument": ""}
    return follow(question, rng, list(question.paths))


def follow(question: Passages, rng: Random, untried: Sequence[str]) -> Entry:
    """Return an answer that follows a random untried passage.

    The answer is the door of this passage if it leads to the goal or if no other is untried, and
    otherwise another untried door.
    """
    door = rng.choice(untried)
    rest = [other for other in untried if other != door]
    answer = door if door == question.answer or not rest else rng.choice(rest)
    return {"answer": answer, "argument": question.followed(door)}


def weigh(question: Passages, rng: Random, entries: Sequence[Entry]) -> Entry:
    """Return an answer that weighs all arguments: the door of a passage that leads to the goal
    according to one of them, or else the result of following an untried passage."""
    found = [entry["argument"] for entry in entries if entry["argument"]]
    for argument in found:
        if argument.endswith(YES):
            return {"answer": argument[:2], "argument": argument}
    tried = {argument[:2] for argument in found}
    return follow(question, rng, [door for door in question.paths if door not in tried])


def completion(entry: Entry) -> str:
    """Return the completion in the format of the debater's prompt."""
    return f"{entry['argument']}<answer>{entry['answer']}</answer>"
