"""Cited answers: a solver searches, answers, and names the documents that show its answer.

A right answer is paid more if the documents that it cites contain the answer. The check is a rule,
not a judge: a citation counts if the solver's own searches showed a document with this id, and if
the document in the corpus contains the right answer. So neither an invented id nor an id from
memory is paid. To pay for citations is an idea of RMM (2503.08026), which pays +1 for a memory that
is cited and -1 for a memory that is not, without reading the text of the memory.

Version history: v0, first version.
"""

import json
import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.questions.corpus_questions import holds
from arenas.questions.places import corpus as places
from arenas.questions.places import place_questions
from arenas.questions.verifiers import (
    Matches,
    Verifier,
    json_object,
    read_argued,
    score_of,
    vote,
    waits,
)
from selfplay.arena import Arena
from selfplay.credit.rewards import mean
from selfplay.tools.search import Document, documents_of
from selfplay.types import Action, Metric, Observation, Task, ToolCall

SHOWN = re.compile(r"(?:\A|\n\n)\[([^\[\]\n]{1,100})\] ")
"""Id of a document in a result of `selfplay.tools.search.Search`, after a blank line."""
MOST_SHOWN = 100
"""Largest number of shown documents that the arena reads."""
CHOICE = 20
"""Number of default tasks."""


class CitedAnswers(Arena):
    """Solvers of a given question, which cite documents of a corpus."""

    name = "cited_answers_v0"
    services: ClassVar[tuple[str, ...]] = ("verifier", "documents")
    measures = {
        "solve_rate": Metric(unit="fraction", better="higher"),
        "cited": Metric(unit="count"),
        "citation_precision": Metric(unit="fraction", better="higher"),
        "cited_well": Metric(unit="fraction", better="higher"),
        "shown": Metric(unit="count"),
        "attempts": Metric(unit="count"),
        "solved": Metric(unit="count", better="higher"),
    }
    chief = ("solve_rate", "cited_well")

    def __init__(
        self,
        *,
        solvers: int = 8,
        citation_reward: float = 0.5,
        most_cited: int = 3,
        corpus: Sequence[Document] | str | None = None,
        verifier: Verifier | None = None,
        wrong: float = 0.0,
        malformed: float = 0.0,
        answer_length: int = 100,
        searches: Sequence[str] = ("search",),
    ) -> None:
        """Args:
        solvers: Number of answers per question.
        citation_reward: Reward for the citations of a right answer, added to 1 for the answer: this
            number times the fraction of its citations that are right.
        most_cited: Largest number of citations; an answer with more is paid as one without any.
        corpus: Documents that can be cited: a list, or the path of a JSON Lines file. None: the
            invented places.
        verifier: Scores answers, which are right above 0.5; None: 1 if the answer has the meaning
            of the task's `answer`, else 0.
        wrong: Reward of a well-formed wrong answer, whatever it cites; a right one gets 1.
        malformed: Reward of a text without an answer.
        answer_length: Maximum characters; a longer answer is malformed.
        searches: Names of the tools whose results show documents. The results of other tools do
            not, because a program could write any id.
        """
        if solvers < 1 or most_cited < 1 or answer_length < 1:
            raise ValueError("solvers, most_cited and answer_length are at least 1")
        super().__init__({"solver": solvers})
        self.citation_reward, self.most_cited = citation_reward, most_cited
        self.documents = {
            each.id: each.text
            for each in documents_of(corpus if corpus is not None else places(seed=0))
        }
        self.verifier: Verifier = verifier or Matches()
        self.blocking = waits(self.verifier)
        self.wrong, self.malformed, self.answer_length = wrong, malformed, answer_length
        self.searches = frozenset(searches)

    def default_task(self, rng: Random) -> Task:
        """Return a question about a place of the default corpus."""
        return rng.choice(place_questions(count=CHOICE, hops=(1,), seed=0))

    def setup(self, task: Task, rng: Random) -> None:
        """Read the question and its answer."""
        self.question, self.answer = str(task.payload["question"]), str(task.payload["answer"])

    def acting(self) -> Sequence[str]:
        """Return all solvers."""
        return self.possible_agents

    def with_calls(self, agent: str, action: Action, calls: Sequence[ToolCall]) -> Action:
        """Return the answer with the ids that the calls showed under "shown".

        A "shown" that the model itself wrote is replaced, so that no model can invent a search.
        """
        said = json_object(action)
        if said is None:
            return action
        results = [each.result for each in calls if each.name in self.searches and not each.error]
        found = [id for result in results for id in SHOWN.findall(result)]
        known = [id for id in dict.fromkeys(found) if id in self.documents]
        return json.dumps({**said, "shown": known[:MOST_SHOWN]})

    def canonical_answer(self, task: Task, agent: str, action: Action | None) -> str | None:
        """Return the meaning of the answer."""
        return vote(self._read(action), self.verifier)

    def view(self, agent: str) -> Observation:
        """Return the question."""
        return Observation(text=self.question, fields={"question": self.question})

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Score answers and citations."""
        right: list[bool] = []
        precisions: list[float] = []
        cited: list[int] = []
        shown: list[int] = []
        for agent, action in actions.items():
            answer, said = self._read(action), json_object(action) or {}
            named, seen = _ids(said.get("cited")), _ids(said.get("shown"))
            right.append(
                answer is not None and score_of(self.verifier, answer, self.task.payload) > 0.5
            )
            supported = sum(id in seen and self._shows(id) for id in named)
            fits = 0 < len(named) <= self.most_cited
            precisions.append(supported / len(named) if fits else 0.0)
            cited.append(len(named))
            shown.append(len(seen))
            verdict = "correct" if right[-1] else "wrong"
            self.note(
                agent,
                verdict="malformed" if answer is None else verdict,
                cited=len(named),
                supported=supported,
                shown=len(seen),
            )
            missed = self.malformed if answer is None else self.wrong
            self.pay(agent, 1.0 + self.citation_reward * precisions[-1] if right[-1] else missed)
        self.measure(
            solve_rate=mean(right),
            cited=mean(cited),
            cited_well=mean([r and p == 1 for r, p in zip(right, precisions, strict=True)]),
            shown=mean(shown),
            attempts=len(right),
            solved=sum(right),
        )
        citing = [p for p, count in zip(precisions, cited, strict=True) if count]
        if citing:
            self.measure(citation_precision=mean(citing))
        self.finish()

    def _shows(self, id: str) -> bool:
        """Return True if a document contains the right answer."""
        return holds(self.documents.get(id, ""), self.answer)

    def _read(self, action: Action | None) -> str | None:
        said = read_argued(action, answer=self.answer_length, argument=0)
        return said["answer"] if said else None


def _ids(given: Any) -> list[str]:
    """Return the different texts of a list; none for anything else."""
    texts = given if isinstance(given, list) else []
    return list(dict.fromkeys(each for each in texts if isinstance(each, str)))


def raw_env(**settings: Any) -> CitedAnswers:
    """Return the arena without a wrapper."""
    return CitedAnswers(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
