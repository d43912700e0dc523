"""Facts that the fact extractor of the memory arena takes from a turn of a dialogue."""

from collections.abc import Sequence
from dataclasses import replace

from arenas.memory.bank import Fact
from arenas.memory.json_list import read_list
from arenas.quotes import in_one_line
from selfplay.types import Observation


class ExtractionError(ValueError):
    """Invalid action of a fact extractor or a summarizer; the argument is the name of the
    reason."""


def read_facts(action: str | None, *, most: int, longest: int) -> list[str]:
    """Return the facts of an extractor's JSON, {"facts": ["...", ...]}, without duplicates.

    White space of a fact becomes one space, so that a fact is one line and cannot imitate the lines
    of a prompt. Raises ExtractionError: malformed (no action), not_json, bad_form (other keys, or
    facts that are no strings or empty), several_facts (more than `most`), too_long (a fact of more
    than `longest` characters).
    """
    found = read_list(action, "facts", ExtractionError)
    if not all(isinstance(text, str) for text in found):
        raise ExtractionError("bad_form")
    # JSON escapes can contain invalid text, such as lone surrogates.
    facts = list(dict.fromkeys(in_one_line(text) for text in found))
    if not all(facts):
        raise ExtractionError("bad_form")
    if len(facts) > most:
        raise ExtractionError("several_facts")
    if any(len(text) > longest for text in facts):
        raise ExtractionError("too_long")
    return facts


class FactExtraction:
    """The turns of a dialogue that an extractor reads, and the origin of each fact."""

    def __init__(self, turns: Sequence[Fact], *, earlier: int, most: int, longest: int) -> None:
        """Args:
        turns: Turns to read; none if there is no extractor.
        earlier: Number of facts before them, each of which is a turn of its own.
        most: Maximum number of facts of a turn.
        longest: Maximum characters of a fact.
        """
        self.unread = list(turns)
        self.turns_of = [(number,) for number in range(earlier)]
        """Index of the turn of each fact, as a tuple of length 1, by the number of the fact."""
        self.most, self.longest = most, longest
        self.turns, self.earlier = len(turns), earlier
        self.not_said = self.malformed = 0

    def view(self) -> Observation:
        """Return the extractor's view of the next turn."""
        turn = self.unread[0]
        spoken = {"turn": turn.text, "speaker": turn.speaker, "time": turn.time}
        return Observation(text=turn.text, fields={**spoken, "most_facts": self.most})

    def take(self, action: str | None) -> list[Fact]:
        """Return the facts that an action takes from the next turn, with the turn's speaker and
        time. Raises ExtractionError for an invalid action, and the turn then has no facts."""
        turn = self.unread.pop(0)
        try:
            found = read_facts(action, most=self.most, longest=self.longest)
        except ExtractionError:
            self.malformed += 1
            raise
        said = " ".join(turn.text.split())
        self.not_said += sum(text not in said for text in found)
        first = len(self.turns_of)
        self.turns_of += [(turn.number,)] * len(found)
        return [replace(turn, number=number, text=text) for number, text in enumerate(found, first)]

    def metrics(self) -> dict[str, float]:
        """Return the mean number of facts per turn, the fraction of facts that their turn does not
        contain word for word, and the fraction of turns with an invalid action."""
        taken = len(self.turns_of) - self.earlier
        return {
            "facts_per_turn": taken / self.turns,
            "facts_not_said": self.not_said / max(taken, 1),
            "malformed_extractions": self.malformed / self.turns,
        }
