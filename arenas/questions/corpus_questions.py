"""Questions from a corpus: a proposer asks about documents that the solvers do not see.

In SPICE (2510.24684) the proposer, there called the challenger, reads a passage, and writes a
question with its answer. Its reward grows with the variance of the solvers' success, and is
negative for an invalid question. In Search self-play (2510.18821) the proposer is given an answer.
It searches, and writes a question that has this answer. The question is valid only if a reader,
which sees the documents that the proposer found and cannot search, finds the answer in them. The
proposer is paid for the solvers' failures.

The solvers see the question alone. If their role has a search tool, they can find the documents
that the proposer read.

Version history: v0, first version.
"""

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Literal, get_args

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.absolute_zero.rewards import learnability
from arenas.questions.arena import PROPOSER, fault, question_task, seats
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
from arenas.quotes import in_one_line
from selfplay.arena import Arena
from selfplay.credit.rewards import mean, normalized_answer, success_variance
from selfplay.errors import check_choice
from selfplay.tools.search import Document, divided, documents_of, listed
from selfplay.types import Action, Metric, Observation, Task, ToolCall, well_formed

READER = "reader_0"
CorpusPay = Literal["variance", "failures", "learnability", "none"]
MOST_RESULTS = 20
"""Largest number of the proposer's tool results that the arena reads."""
RESULT_LENGTH = 4000
"""Maximum characters of a tool result that the reader sees; the rest is cut off."""
REFUSED = (
    "malformed", "no_answer", "too_long", "held_out", "leaks", "ungrounded", "few_searches",
    "repeated_search", "unanswerable", "copied",
)  # fmt: skip
"""Reasons for which a proposal is invalid."""


class CorpusQuestions(Arena):
    """A proposer that reads or searches, a reader that checks, and n solvers of the question."""

    name = "corpus_questions_v0"
    optional_roles = ("proposer", "reader")
    services: ClassVar[tuple[str, ...]] = ("verifier", "oracle", "corpus")
    measures = {
        "solve_rate": Metric(unit="fraction", better="higher"),
        "valid_proposal": Metric(unit="fraction", better="higher"),
        "label_accuracy": Metric(unit="fraction", better="higher"),
        "question_words": Metric(unit="count"),
        "searches": Metric(unit="count"),
        "attempts": Metric(unit="count"),
        "solved": Metric(unit="count", better="higher"),
        **{f"verdict/{reason}": Metric(unit="fraction", better="lower") for reason in REFUSED},
    }
    chief = ("solve_rate", "valid_proposal")

    def __init__(
        self,
        *,
        proposers: int = 1,
        readers: int = 0,
        solvers: int = 8,
        proposer_pay: CorpusPay = "variance",
        invalid: float = -0.1,
        min_searches: int = 0,
        noise: int = 0,
        corpus: Sequence[Document] | str | None = None,
        verifier: Verifier | None = None,
        oracle: Verifier | None = None,
        wrong: float = 0.0,
        malformed: float = 0.0,
        forbidden: frozenset[str] = frozenset(),
        question_length: int = 1000,
        answer_length: int = 100,
    ) -> None:
        """Args:
        proposers: 1, or 0 if all questions are given.
        readers: 1 if a question is valid only if the reader answers it from the proposer's
            documents, without a search; 0 for no such check.
        solvers: Number of answers per question.
        proposer_pay: Proposer's reward for a valid question. variance: SPICE's reward, largest if
            half of the solvers are right (`success_variance`). failures: 1 minus the solve rate, as
            in Search self-play. learnability: 1 minus the solve rate, and 0 if all or no solvers
            are right, as in Absolute Zero. none: 0.
        invalid: Proposer's reward for an invalid question.
        min_searches: Minimum number of the proposer's tool calls with different results; 0 if it
            has no tools. The results of the calls are its documents.
        noise: Number of further documents of `corpus` that the reader sees. Each has the form of a
            result of the tool `Search`: its id and its first 500 characters. If the task has a
            passage, it is the document's whole text.
        corpus: Documents for `noise`: a list, or the path of a JSON Lines file.
        verifier: Scores answers, which are right above 0.5; None: 1 if the answer has the same
            meaning as the known one, else 0.
        oracle: Checks the proposer's own answer for the metrics only, without effect on rewards.
        wrong: Solver's reward for a well-formed wrong answer; a right one gets 1.
        malformed: Solver's reward for a text without an answer.
        forbidden: Ids of questions (see `question_task`) that may not be proposed.
        question_length, answer_length: Maximum characters; longer texts are invalid.
        """
        super().__init__(
            {**seats(proposers, solver=solvers), **({"reader": readers} if readers else {})}
        )
        check_choice("proposer_pay", proposer_pay, get_args(CorpusPay))
        if readers not in (0, 1) or (readers and not proposers):
            raise ValueError("readers is 0 or 1, and 1 only with a proposer")
        if min(min_searches, noise) < 0 or min(question_length, answer_length) < 1:
            raise ValueError(
                "min_searches and noise are not negative, question_length and answer_length are "
                "at least 1"
            )
        if noise and corpus is None:
            raise ValueError(
                "noise needs a corpus: the documents that a reader sees in addition to others"
            )
        self.corpus = documents_of(corpus) if corpus is not None else ()
        if noise > len(self.corpus):
            raise ValueError(f"noise: the corpus has {len(self.corpus)} documents, not {noise}")
        self.proposer_pay, self.invalid = proposer_pay, invalid
        self.min_searches, self.noise = min_searches, noise
        self.verifier: Verifier = verifier or Matches()
        self.blocking = waits(self.verifier, oracle)
        self.oracle = oracle
        self.wrong, self.malformed = wrong, malformed
        self.forbidden = forbidden
        self.question_length, self.answer_length = question_length, answer_length
        self.solvers = [a for a in self.possible_agents if a.startswith("solver")]

    def default_task(self, rng: Random) -> Task:
        """Return a short passage to ask about, or a question about an invented place."""
        if PROPOSER in self.possible_agents:
            passage = "The mayor of Doreth is Fenika. The founder of Doreth is Kalmor."
            return Task(id="passage", payload={"mode": "propose", "passage": passage})
        return place_questions(count=1, hops=(1,), regions_count=2, seed=rng.randrange(2**32))[0]

    def setup(self, task: Task, rng: Random) -> None:
        """Begin with the proposal or, if the question is given, with the answers."""
        self.proposing = task.payload.get("mode") == "propose"
        if self.proposing and PROPOSER not in self.possible_agents:
            raise ValueError("a task to propose needs proposers: 1")
        self.passage = str(task.payload.get("passage") or "")
        self.answer = str(task.payload.get("answer") or "")
        self.question = "" if self.proposing else str(task.payload["question"])
        self.found: list[tuple[str, str]] = []
        """Queries of the proposer and their results."""
        self.checked = not (self.proposing and READER in self.possible_agents)
        self.order = rng.random()
        """Seed of the reader's noise, and of the order of its documents."""

    def acting(self) -> Sequence[str]:
        """Return the proposer, then the reader, then all solvers at once."""
        if not self.question:
            return [PROPOSER]
        return self.solvers if self.checked else [READER]

    def with_calls(self, agent: str, action: Action, calls: Sequence[ToolCall]) -> Action:
        """Return the proposal with the queries and results of its calls under "found".

        A "found" that the model itself wrote is replaced, so that no model can invent documents.
        """
        if agent != PROPOSER:
            return action
        said = json_object(action)
        if said is None:
            return action
        found = [[call.arguments, call.result] for call in calls if not call.error]
        return json.dumps({**said, "found": found[:MOST_RESULTS]})

    def canonical_answer(self, task: Task, agent: str, action: Action | None) -> str | None:
        """Return the canonical answer to a given question; None for proposed questions."""
        if task.payload.get("mode") == "propose":
            return None
        return vote(self._read(action), self.verifier)

    def view(self, agent: str) -> Observation:
        """Return, for the proposer, the passage and the given answer; for the reader, the documents
        and the question; for a solver, the question alone."""
        if agent == PROPOSER:
            given = str(self.task.payload.get("answer") or "")
            return proposer_view(self.passage, given)
        if agent == READER:
            return reader_view(self.question, self.documents())
        return Observation(text=self.question, fields={"question": self.question})

    def documents(self) -> list[str]:
        """Return passage, documents of searches and noise in the order in which a reader sees them.

        A document that occurs twice is shown once.
        """
        rng = Random(self.order)
        ids = {document.id for document in self.corpus}
        found = [each for _, result in self.found for each in divided(result, ids)]
        own = list(dict.fromkeys(text for text in [self.passage, *found] if text))
        every = [*own, *self._noise(own, rng)]
        rng.shuffle(every)
        return every

    def _noise(self, own: Sequence[str], rng: Random) -> list[str]:
        """Return `noise` documents that are not among the proposer's, or as many as there are."""
        if not self.proposing:
            return []
        made: list[str] = []
        tried = set[int]()
        while len(made) < self.noise and len(tried) < len(self.corpus):
            index = rng.randrange(len(self.corpus))
            if index not in tried:
                tried.add(index)
                document = self.corpus[index]
                if not any(_shows(text, document) for text in own):
                    made.append(document.text if self.passage else listed(document))
        return made

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Check the proposal, apply the reader's check, or score the answers."""
        if PROPOSER in actions:
            self._propose(actions[PROPOSER])
        elif READER in actions:
            self._check(actions[READER])
        else:
            self._solve(actions)

    def _propose(self, action: Action | None) -> None:
        said = json_object(action) or {}
        question = in_one_line(str(said.get("question") or ""))
        if not self.answer:
            self.answer = in_one_line(str(said.get("answer") or ""))
        if self.min_searches:
            self.found = _found(said.get("found"))
            self.measure(searches=len(self.found))
        reason = self._fault(question)
        if reason:
            self._refuse(reason)
            return
        self.question = question
        if self.checked:
            self._accept()

    def _fault(self, question: str) -> str | None:
        """Return the reason why a proposal is invalid before a reader sees it, or None."""
        if reason := fault(question, self.task.payload, self.question_length, self.forbidden):
            return reason
        if not self.answer:
            return "no_answer"
        if len(self.answer) > self.answer_length:
            return "too_long"
        if holds(question, self.answer):
            return "leaks"
        queries = {_asked(query) for query, _ in self.found}
        if len(queries) < len(self.found):
            return "repeated_search"
        if len({result for _, result in self.found}) < self.min_searches:
            return "few_searches"
        own = [self.passage, *(result for _, result in self.found)]
        return None if any(holds(text, self.answer) for text in own) else "ungrounded"

    def _check(self, action: Action | None) -> None:
        """Accept the question if the reader found its answer; no policy learns from this move."""
        said = self._read(action)
        right = said is not None and score_of(self.verifier, said, self._problem()) > 0.5
        self.note(READER, verdict="correct" if right else "wrong")
        self.leave_out(READER)
        self.checked = True
        if right:
            self._accept()
        else:
            self._refuse("unanswerable")

    def _accept(self) -> None:
        self.note(PROPOSER, verdict="valid")
        self.measure(valid_proposal=1.0, question_words=len(self.question.split()))
        if self.oracle:
            self.measure(label_accuracy=score_of(self.oracle, self.answer, self._problem()) > 0.5)

    def _refuse(self, reason: str) -> None:
        self.note(PROPOSER, verdict=reason)
        self.measure(valid_proposal=0.0)
        self.pay(PROPOSER, self.invalid)
        self.finish()

    def _problem(self) -> dict[str, Any]:
        return {**self.task.payload, "question": self.question, "answer": self.answer}

    def _solve(self, actions: Mapping[str, Action | None]) -> None:
        right = []
        for agent, action in actions.items():
            answer = self._read(action)
            right.append(
                answer is not None and score_of(self.verifier, answer, self._problem()) > 0.5
            )
            verdict = "correct" if right[-1] else "wrong"
            self.note(agent, verdict="malformed" if answer is None else verdict)
            missed = self.malformed if answer is None else self.wrong
            self.pay(agent, 1.0 if right[-1] else missed)
        rate = mean(right)
        self.measure(solve_rate=rate, attempts=len(right), solved=sum(right))
        if self.proposing:
            self.pay(PROPOSER, self._worth(rate))
            self.create(question_task(self.task.type, self.question, self.answer))
        self.finish()

    def _worth(self, rate: float) -> float:
        """Return the proposer's reward for a question with this solve rate."""
        if self.proposer_pay == "variance":
            return success_variance(rate)
        if self.proposer_pay == "failures":
            return 1.0 - rate
        return learnability(rate) if self.proposer_pay == "learnability" else 0.0

    def _read(self, action: Action | None) -> str | None:
        said = read_argued(action, answer=self.answer_length, argument=0)
        return said["answer"] if said else None


def proposer_view(passage: str, answer: str) -> Observation:
    """Return the view of a proposer: a passage, an answer to ask for, or both."""
    lines = [passage, f"answer: {answer}" if answer else ""]
    return Observation(
        text="\n".join(line for line in lines if line),
        fields={"passage": passage, "answer": answer},
    )


def _shows(text: str, document: Document) -> bool:
    """Return True if a text is a part of a document, or contains the document."""
    body = text.removeprefix(f"[{document.id}] ")
    return body != text or body in document.text or document.text in body


def reader_view(question: str, documents: Sequence[str]) -> Observation:
    """Return the view of a reader: documents and a question about them."""
    return Observation(
        text="\n".join([*documents, question]),
        fields={"question": question, "documents": list(documents)},
    )


def holds(text: str, answer: str) -> bool:
    """Return True if a text contains an answer, as whole words after SQuAD's normalization."""
    wanted = normalized_answer(answer)
    if not wanted:
        return answer.strip().lower() in text.lower()
    return f" {wanted} " in f" {normalized_answer(text)} "


def _found(given: Any) -> list[tuple[str, str]]:
    """Return queries and results that `with_calls` added to a proposal."""
    found = []
    for each in given[:MOST_RESULTS] if isinstance(given, list) else []:
        match each:
            case [str(query), str(result)]:
                found.append((well_formed(query), well_formed(result[:RESULT_LENGTH])))
    return found


def _asked(query: str) -> str:
    """Return the arguments of a call without differences of case and white space."""
    said = json_object(query)
    words = {"": query} if said is None else said
    return json.dumps(
        {key: " ".join(str(value).casefold().split()) for key, value in words.items()},
        sort_keys=True,
    )


def raw_env(**settings: Any) -> CorpusQuestions:
    """Return the arena without a wrapper."""
    return CorpusQuestions(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
