"""Simulated search: a solver searches, and a simulator writes the documents that it finds.

This is ZeroSearch (2505.04588), in which a language model takes the place of a search engine while
a solver learns to search. A random draw decides whether a document is to be useful or noisy. The
simulator reads the query, the question and the documents so far, and the true answer too if the
document is to be useful. The solver does not see which documents are noisy. With a real search in
place of the simulator, the same arena measures what the solver has learned.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Literal, get_args

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.questions.corpus_questions import holds
from arenas.questions.places import place_questions
from arenas.questions.verifiers import Matches, Verifier, json_object, score_of, vote, waits
from arenas.quotes import in_one_line
from selfplay.arena import Arena
from selfplay.errors import check_choice
from selfplay.tools.call_format import defused
from selfplay.tools.search import LONGEST_QUERY, Search
from selfplay.types import Action, Metric, Observation, Task, well_formed

SOLVER, SIMULATOR = "solver_0", "simulator_0"
NOISE = "noise"
"""Key of a task's payload with the probability that a document is to be noisy."""
SimulatorPay = Literal["none", "cooperative", "opposed"]
UNREADABLE, TOO_LONG, TOO_MANY = "unreadable", "too_long", "too_many_searches"
FAULTS = (UNREADABLE, TOO_LONG, TOO_MANY)
"""Reasons for which a move of the solver ends the episode with a pay of 0."""


class SimulatedSearch(Arena):
    """A solver, and a simulator of its search engine; with a real search, the solver alone.

    The solver is paid the score of its answer. The simulator's pay for each document, when the
    score is known:

    - none: 0. The simulator is fixed, as in the paper.
    - cooperative: the score. Solver and simulator are a team, whatever the document was to be.
    - opposed: the score for a document that was to be useful, and minus the score for one that
      was to be noisy: the simulator helps where it is to help, and misleads where it is to mislead.

    The simulator is not paid for the difficulty of a question, as a proposer is: it does not choose
    the question, and one episode does not show the solve rate.
    """

    name = "simulated_search_v0"
    optional_roles = ("simulator",)
    services: ClassVar[tuple[str, ...]] = ("verifier", "search")
    measures = {
        "accuracy": Metric(unit="fraction", better="higher"),
        "searches": Metric(unit="count"),
        "answered": Metric(unit="fraction", better="higher"),
        "answer_shown": Metric(unit="fraction"),
        "answer_in_first": Metric(unit="fraction"),
        "verdict/searched": Metric(unit="fraction"),
        "verdict/useful": Metric(unit="fraction"),
        "verdict/noisy": Metric(unit="fraction"),
        "verdict/malformed": Metric(unit="fraction", better="lower"),
        **{f"verdict/{fault}": Metric(unit="fraction", better="lower") for fault in FAULTS},
    }
    chief = ("accuracy", "searches")

    def __init__(
        self,
        *,
        searches: int = 3,
        noise: float = 0.0,
        simulator_pay: SimulatorPay = "none",
        malformed: float = -1.0,
        search: Search | None = None,
        verifier: Verifier | None = None,
        query_length: int = 200,
        document_length: int = 500,
        answer_length: int = 100,
    ) -> None:
        """Args:
        searches: Largest number of searches in an episode.
        noise: Probability that a document is to be noisy, for tasks without their own `noise`.
        simulator_pay: none, cooperative or opposed.
        malformed: Simulator's pay for a completion without a document; 0 if `simulator_pay` is
            none.
        search: Search tool over a corpus, in place of the simulator; None: the simulator writes.
        verifier: Scores the solver's answer; None: 1 if it has the meaning of the task's `answer`,
            else 0.
        query_length, answer_length: Maximum characters; a longer text ends the episode.
        document_length: Maximum characters of a document that the solver is shown; the rest is cut
            off.
        """
        super().__init__({"solver": 1, **({} if search else {"simulator": 1})})
        check_choice("simulator_pay", simulator_pay, get_args(SimulatorPay))
        if min(searches, query_length, document_length, answer_length) < 1:
            raise ValueError("searches and the lengths are at least 1")
        if query_length > LONGEST_QUERY:
            raise ValueError(f"query_length is at most {LONGEST_QUERY}, not {query_length}")
        self.searches, self.noise = searches, _probability(noise)
        self.simulator_pay, self.malformed = simulator_pay, malformed
        self.search = search
        self.verifier: Verifier = verifier or Matches()
        self.blocking = waits(self.verifier)
        self.query_length, self.answer_length = query_length, answer_length
        self.document_length = document_length

    def default_task(self, rng: Random) -> Task:
        """Return a question about an invented place."""
        return place_questions(count=1, hops=(1,), regions_count=2, seed=rng.randrange(2**32))[0]

    def setup(self, task: Task, rng: Random) -> None:
        """Read the question, and draw for each search if its document is to be noisy."""
        self.question = str(task.payload["question"])
        self.answer = str(task.payload["answer"])
        noise = _probability(task.payload.get(NOISE, self.noise))
        self.noisy = [rng.random() < noise for _ in range(self.searches)]
        self.query = ""
        """Query that waits for the simulator's document; "" if it is the solver's turn."""
        self.found: list[tuple[str, str]] = []
        """Queries and their documents; "" for no document."""

    def acting(self) -> Sequence[str]:
        """Return the simulator if a query waits for its document, otherwise the solver."""
        return [SIMULATOR if self.query else SOLVER]

    def canonical_answer(self, task: Task, agent: str, action: Action | None) -> str | None:
        """Return the meaning of the solver's answer, "" for other moves."""
        kind, said = read_move(action if agent == SOLVER else None)
        return vote(said if kind == "answer" else None, self.verifier)

    def view(self, agent: str) -> Observation:
        """Return the question and the documents so far. The simulator also sees the query and, if
        its document is to be useful, the true answer."""
        if agent == SOLVER:
            return solver_view(self.question, self.found, left=self.searches - len(self.found))
        noisy = self.noisy[min(len(self.found), self.searches - 1)]
        return simulator_view(
            self.query, self.question, self.found, answer="" if noisy else self.answer
        )

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Keep the simulator's document, or carry out the solver's decision."""
        if SIMULATOR in actions:
            document = self._shown(actions[SIMULATOR] or "")
            kind = "noisy" if self.noisy[len(self.found)] else "useful"
            self.note(SIMULATOR, verdict=kind if document else "malformed")
            self.found.append((self.query, document))
            self.query = ""
            return
        kind, said = read_move(actions[SOLVER])
        if fault := self._fault(kind, said):
            self.note(SOLVER, verdict=fault)
            self._end(0.0, answered=False)
        elif kind == "answer":
            score = score_of(self.verifier, said, self.task.payload)
            self.note(SOLVER, verdict="correct" if score > 0.5 else "wrong")
            self._end(score, answered=True)
        else:
            self.note(SOLVER, verdict="searched")
            self._search(said)

    def _fault(self, kind: str, said: str) -> str:
        """Return the reason why a move ends the episode, "" if there is none."""
        if not kind:
            return UNREADABLE
        if len(said) > (self.answer_length if kind == "answer" else self.query_length):
            return TOO_LONG
        return TOO_MANY if kind == "search" and len(self.found) == self.searches else ""

    def _search(self, query: str) -> None:
        """Find documents in the corpus, or let the simulator write one."""
        self.query = defused(query)
        if self.search is not None:
            texts = [document.text for document in self.search.find(query)]
            self.found.append((self.query, self._shown(" ".join(texts))))
            self.query = ""

    def _shown(self, document: str) -> str:
        """Return a document as the solver sees it: one line without tags."""
        return defused(in_one_line(document)[: self.document_length])

    def _end(self, score: float, *, answered: bool) -> None:
        self.pay(SOLVER, score)
        if self.search is None and self.simulator_pay != "none":
            for number, (_, document) in enumerate(self.found):
                against = self.simulator_pay == "opposed" and self.noisy[number]
                pay = (-score if against else score) if document else self.malformed
                self.pay(SIMULATOR, pay, move=number)
        self.measure(accuracy=score, searches=len(self.found), answered=answered)
        if self.found:
            shown = [holds(document, self.answer) for _, document in self.found]
            self.measure(answer_shown=any(shown), answer_in_first=shown[0])
        self.finish()


def read_move(action: Action | None) -> tuple[str, str]:
    """Return ("search", query) or ("answer", text) from a JSON action; ("", "") if it is neither.

    A query is one line.
    """
    said = json_object(action)
    if said is None or len(said) != 1:
        return "", ""
    ((kind, text),) = said.items()
    if kind not in ("search", "answer") or not isinstance(text, str) or not text.strip():
        return "", ""
    return kind, in_one_line(text) if kind == "search" else well_formed(text.strip())


def solver_view(question: str, found: Sequence[tuple[str, str]], *, left: int) -> Observation:
    """Return the view of a solver; `left` is the number of searches that it can still make."""
    shown = [{"query": query, "document": document} for query, document in found]
    return Observation(
        text="\n".join([question, *(f"{query}: {text or 'nothing'}" for query, text in found)]),
        fields={"question": question, "found": shown, "searches_left": left},
    )


def simulator_view(
    query: str, question: str, found: Sequence[tuple[str, str]], *, answer: str
) -> Observation:
    """Return the view of a simulator; an `answer` of "" asks for a noisy document."""
    shown = [{"query": asked, "document": document} for asked, document in found]
    wanted = f"useful: {question}: {answer}" if answer else f"noisy: {question}"
    return Observation(
        text="\n".join(
            [wanted, *(f"{asked}: {text or 'nothing'}" for asked, text in found), query]
        ),
        fields={
            "query": query,
            "question": question,
            "answer": answer,
            "useful": bool(answer),
            "found": shown,
        },
    )


def _probability(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"noise is a probability from 0 to 1, not {value!r}")
    return float(value)


def raw_env(**settings: Any) -> SimulatedSearch:
    """Return the arena without a wrapper."""
    return SimulatedSearch(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
