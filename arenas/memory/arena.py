"""Memory-R1: a manager maintains a memory bank, and answer agents answer from it (2508.19828).

For every fact, the manager sees the nearest entries of the bank and chooses ADD, UPDATE, DELETE or
NOOP. After the dialogue, the questions are asked: each answer agent sees the memories nearest to
its question, names those that it uses, and answers. The manager's reward is the mean outcome over
all questions.

An answer agent sees one question and no dialogue, so that its reward is a sample of the bank's
value. If only the manager learns, a `reader` can replace the answer agents: a function of the
question and the memories. Its answers change with the bank when a counterfactual operation is
replayed; recorded answers do not. Without a manager every fact is an entry as it was said, which is
the baseline to beat: retrieval alone.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.memory.bank import (
    EVENTS,
    Fact,
    MemoryBank,
    MemoryEntry,
    OperationError,
    entry_fields,
    read_answer,
    read_operations,
)
from arenas.memory.dialogues import dialogue_task
from arenas.memory.retrieval import BM25, Retriever
from selfplay.arena import Arena
from selfplay.rewards import exact_match, mean, token_f1
from selfplay.types import Action, Metric, Observation, Task

MANAGER = "memory_manager_0"
Outcome = Literal["exact_match", "f1"]


@runtime_checkable
class Reader(Protocol):
    """Protocol of a scripted answer agent."""

    def __call__(self, question: str, memories: Sequence[str]) -> str:
        """Return the answer from the memories, which are rendered, the nearest one first."""
        ...


class Memory(Arena):
    """One memory manager and n answer agents, with one question per agent and stage."""

    name = "memory_v0"
    services: ClassVar[tuple[str, ...]] = ("retriever", "reader")
    measures = {
        "exact_match": Metric(unit="fraction", better="higher"),
        "f1": Metric(unit="fraction", better="higher"),
        "evidence_shown": Metric(unit="fraction", better="higher"),
        "malformed_operations": Metric(unit="fraction", better="lower"),
        "share_*": Metric(unit="fraction"),
        "bank_size": Metric(unit="count"),
        "memories_selected": Metric(unit="count"),
        "memories_unknown": Metric(unit="count", better="lower"),
    }
    chief = ("exact_match", "f1")

    def __init__(
        self,
        *,
        retriever: Retriever,
        answer_agents: int = 4,
        retrieved: int = 10,
        memories: int = 60,
        outcome: Outcome = "exact_match",
        reader: Reader | None = None,
        most_operations: int = 1,
        capacity: int = 0,
        longest_memory: int = 1000,
        malformed_operation: float = 0.0,
        malformed_answer: float = 0.0,
        manager: bool = True,
    ) -> None:
        """Args:
        retriever: Retriever of the memories nearest to a fact or a question.
        answer_agents: Number of questions per stage. If there are more, an agent answers several,
            and credit treats its answers together unless the method works turn by turn.
        retrieved: Number of entries of the fact's speaker that the manager sees.
        memories: Entries that an answer agent sees, equally many per speaker (60 in the paper).
        outcome: Reward of an answer: exact match or word F1, both after SQuAD's normalisation. The
            manager gets the mean.
        reader: Scripted reader that replaces the answer agents.
        most_operations: Maximum number of operations per fact, without NOOP.
        capacity: Maximum number of entries in the bank; further ADDs are refused. 0 is no limit.
        longest_memory: Maximum characters of an entry's text.
        malformed_operation: Added to the manager's reward for each invalid action, which leaves the
            bank unchanged. The paper has no such penalty.
        malformed_answer: Reward of an answer agent for an invalid answer; the manager gets 0.
        manager: False: there is no manager, and every fact becomes an entry.
        """
        if not manager and reader:
            raise ValueError("manager is false and there is a reader: no agent is left")
        if not manager and capacity:
            raise ValueError(f"without a manager capacity is 0 (no limit), not {capacity}")
        managing = {"memory_manager": 1} if manager else {}
        answering = {} if reader else {"answer_agent": answer_agents}
        super().__init__({**managing, **answering})
        for name, value in (
            ("answer_agents", answer_agents),
            ("retrieved", retrieved),
            ("memories", memories),
            ("most_operations", most_operations),
            ("longest_memory", longest_memory),
        ):
            if value < 1:
                raise ValueError(f"{name} is at least 1, not {value}")
        if capacity < 0:
            raise ValueError(f"capacity is 0 (no limit) or more, not {capacity}")
        if outcome not in get_args(Outcome):
            raise ValueError(f"outcome is one of {', '.join(get_args(Outcome))}, not {outcome!r}")
        self.retriever, self.reader, self.outcome = retriever, reader, outcome
        self.retrieved, self.memories, self.most_operations = retrieved, memories, most_operations
        self.capacity, self.longest_memory = capacity, longest_memory
        self.malformed_operation, self.malformed_answer = malformed_operation, malformed_answer
        self.manager = manager
        self.answer_agents = [agent for agent in self.possible_agents if agent != MANAGER]

    def default_task(self, rng: Random) -> Task:
        """Return a small dialogue with known facts."""
        return dialogue_task(rng, number=0, split="train")

    def setup(self, task: Task, rng: Random) -> None:
        """Fill the bank with the task's earlier facts, and show the first new fact.

        Without a manager the bank gets all facts.
        """
        earlier, facts = task.payload.get("earlier", []), task.payload["facts"]
        self.facts = [
            Fact(
                number=number,
                **{key: str(fact.get(key, "")) for key in ("text", "speaker", "time")},
            )
            for number, fact in enumerate([*earlier, *facts])
        ]
        self.questions = [dict(question) for question in task.payload["questions"]]
        if not facts or not self.questions:
            missing = "questions" if facts else "facts"
            raise ValueError(f"task {task.id}: the dialogue has no {missing}")
        self.bank = MemoryBank(capacity=self.capacity, longest=self.longest_memory)
        self.at, self.asked = len(earlier) if self.manager else len(self.facts), 0
        for fact in self.facts[: self.at]:
            self.bank.apply(read_operations('{"event": "ADD"}'), fact)
        self.events = dict.fromkeys(EVENTS, 0)
        self.malformed_operations = 0
        self.outcomes: list[dict[str, float]] = []
        self._show()

    def acting(self) -> Sequence[str]:
        """Return the manager for every fact, then the answer agents for the questions."""
        if self.at < len(self.facts):
            return [MANAGER]
        return self.answer_agents[: len(self.questions) - self.asked]

    def view(self, agent: str) -> Observation:
        """Return the fact or the agent's question, with the retrieved memories."""
        shown = [entry_fields(entry) for entry in self.shown.get(agent, [])]
        if agent not in self.shown:
            return Observation(text="wait")
        if agent == MANAGER:
            fact = self.facts[self.at]
            fields: dict[str, Any] = {
                "fact": fact.text,
                "speaker": fact.speaker,
                "time": fact.time,
                "most_operations": self.most_operations,
            }
            words = fact.text
        else:
            words = str(self._question(agent)["question"])
            fields = {"question": words}
        lines = [*(f"[{entry['id']}] {entry['rendered']}" for entry in shown), words]
        return Observation(text="\n".join(lines), fields={**fields, "memories": shown})

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Apply the operation or score the answers."""
        if MANAGER in actions:
            self._operate(actions[MANAGER])
            self.at += 1
        else:
            for agent, action in actions.items():
                self._score(agent, action)
            self.asked += len(actions)
        if self.at == len(self.facts) and self.reader:
            self._read()
        self._show()
        if self.asked == len(self.questions):
            self._end()

    # The bank ----------------------------------------------------------------------------------

    def _operate(self, action: Action | None) -> None:
        """Apply the manager's operations; an invalid action changes nothing."""
        try:
            if action is None:
                raise OperationError("malformed")
            operations = read_operations(action)
            if len(operations) > self.most_operations:
                raise OperationError("several_operations")
            known = [entry.id for entry in self.shown[MANAGER]]
            self.bank.apply(operations, self.facts[self.at], known=known)
        except OperationError as reason:
            self.malformed_operations += 1
            self.pay(MANAGER, self.malformed_operation)
            self.note(MANAGER, verdict=str(reason))
            return
        events = [operation.event for operation in operations] or ["NOOP"]
        for event in events:
            self.events[event] += 1
        self.note(MANAGER, verdict=events[0].lower() if len(events) == 1 else "several")

    def _show(self) -> None:
        """Retrieve the memories for the agents that move next."""
        self.shown: dict[str, list[MemoryEntry]] = {}
        if self.at < len(self.facts):
            fact = self.facts[self.at]
            entries = self.bank.of(fact.speaker)
            self.shown[MANAGER] = self._nearest(fact.text, entries, self.retrieved)
            return
        left = len(self.questions) - self.asked
        for agent in self.answer_agents[:left]:
            self.shown[agent] = self._found(self._question(agent))

    def _found(self, question: Mapping[str, Any]) -> list[MemoryEntry]:
        """Return the memories for a question, equally many of each speaker."""
        speakers = self.bank.speakers()
        share, extra = divmod(self.memories, max(len(speakers), 1))
        return [
            entry
            for place, speaker in enumerate(speakers)
            for entry in self._nearest(
                str(question["question"]), self.bank.of(speaker), share + (place < extra)
            )
        ]

    def _nearest(self, query: str, entries: Sequence[MemoryEntry], count: int) -> list[MemoryEntry]:
        places = self.retriever.top(query, [entry.text for entry in entries], count)
        return [entries[place] for place in places]

    # The answers -------------------------------------------------------------------------------

    def _question(self, agent: str) -> Mapping[str, Any]:
        return self.questions[self.asked + self.answer_agents.index(agent)]

    def _score(self, agent: str, action: Action | None) -> None:
        question, shown = self._question(agent), self.shown[agent]
        answer, named = read_answer(action)
        known = {entry.id for entry in shown}
        if answer is None:
            self.pay(agent, self.malformed_answer)
            self.note(agent, verdict="malformed")
        scores = self._book(question, shown, answer)
        if answer is not None:
            self.pay(agent, scores[self.outcome])
            self.note(
                agent,
                verdict="correct" if scores["exact_match"] else "wrong",
                memories_selected=len(known.intersection(named)),
                memories_unknown=len(set(named) - known),
            )

    def _read(self) -> None:
        """Answer all questions with the reader."""
        assert self.reader is not None
        for question in self.questions:
            shown = self._found(question)
            rendered = [entry.rendered() for entry in shown]
            self._book(question, shown, self.reader(str(question["question"]), rendered))
        self.asked = len(self.questions)

    def _book(
        self, question: Mapping[str, Any], shown: Sequence[MemoryEntry], answer: str | None
    ) -> dict[str, float]:
        """Record and return the scores of one answer."""
        gold = str(question["answer"])
        scores = {
            "exact_match": 0.0 if answer is None else exact_match(answer, gold),
            "f1": 0.0 if answer is None else token_f1(answer, gold),
        }
        if evidence := set(question.get("evidence", ())):
            sources = {source for entry in shown for source in entry.sources}
            scores["evidence_shown"] = float(evidence <= sources)
        self.outcomes.append(scores)
        return scores

    def _end(self) -> None:
        for name in ("exact_match", "f1", "evidence_shown"):
            if values := [scores[name] for scores in self.outcomes if name in scores]:
                self.measure(**{name: mean(values)})
        self.measure(bank_size=len(self.bank.entries))
        if self.manager:
            self.pay(MANAGER, mean([scores[self.outcome] for scores in self.outcomes]))
            decided = len(self.facts) - len(self.task.payload.get("earlier", []))
            # Relative to all facts: with one operation per fact, shares and malformed add up to 1.
            self.measure(
                malformed_operations=self.malformed_operations / decided,
                **{f"share_{name.lower()}": count / decided for name, count in self.events.items()},
            )
        self.finish()


def raw_env(**settings: Any) -> Memory:
    """Return the arena without a wrapper; the default retriever is BM25."""
    settings.setdefault("retriever", BM25())
    return Memory(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
