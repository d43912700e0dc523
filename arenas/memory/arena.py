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

With an extractor, the first stage of the paper is an agent too: the fact extractor sees one
utterance of the dialogue, and neither bank nor questions, and writes the facts of the utterance, or
none. The manager then treats these facts one by one and does not see the utterance. The extractor's
reward is the mean outcome too: a fact that it leaves out cannot be remembered, and a useless one
takes the place of another if the manager keeps it. Manager and extractor are a team with one
reward. With group-relative credit all turns of an agent share this reward; only an invalid action
has a reward of its own.

With a summarizer, the first stage is the prospective reflection of RMM (2503.08026): after each
session and for each speaker in it, the summarizer sees the utterances of the session, and writes a
memory for each topic, with the utterances that the memory is taken from. The manager then decides
on these memories one by one: RMM's Add() is ADD, and its Merge(id, text) is UPDATE with the merged
text; `operations` can forbid the other two. The summarizer is paid as the extractor is. The paper
prompts a fixed model for both steps and trains none of them.

With reflectors, the retrospective reflection of RMM (2503.08026) is an agent too: one reflector for
each answer agent sees the same question with the retrieved entries, and chooses those that the
answer agent sees, in order. RMM's rule pays each chosen entry 1 if the answer cites it, and -1 if
not (`citations`). `right_citations` counts no citation of an answer that earns nothing, because an
answer agent that cites whatever it sees makes every choice useful, and `outcome` pays the reward of
the answer itself. The answer agent is not paid for citations.

Version history: v0, first version.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from arenas.memory.answers import AnswerScores, Outcome, Reader
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
from arenas.memory.decisions import ManagerDecisions
from arenas.memory.dialogues import dialogue_task
from arenas.memory.extraction import ExtractionError, FactExtraction
from arenas.memory.measures import MEASURES
from arenas.memory.reflection import MemoryReflection, ReflectionError, ReflectorPay
from arenas.memory.retrieval import BM25, Retriever, nearest, nearest_of_each
from arenas.memory.settings import check_settings
from arenas.memory.summaries import SessionSummaries
from selfplay.arena import Arena
from selfplay.credit.rewards import mean
from selfplay.types import Action, Observation, Task

EXTRACTOR = "fact_extractor_0"
SUMMARIZER = "summarizer_0"
MANAGER = "memory_manager_0"


class Memory(Arena):
    """A memory manager and n answer agents, with one question per agent and stage; on request a
    fact extractor or a summarizer, and a reflector for each answer agent."""

    name = "memory_v0"
    optional_roles = (
        "fact_extractor",
        "summarizer",
        "memory_manager",
        "reflector",
        "answer_agent",
    )
    services: ClassVar[tuple[str, ...]] = ("retriever", "reader")
    measures = MEASURES
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
        operations: Sequence[str] = EVENTS,
        capacity: int = 0,
        longest_memory: int = 1000,
        malformed_operation: float = 0.0,
        malformed_answer: float = 0.0,
        manager: bool = True,
        extractor: bool = False,
        summarizer: bool = False,
        most_facts: int = 4,
        malformed_extraction: float = 0.0,
        reflector: bool = False,
        kept: int = 5,
        reflector_pay: ReflectorPay = "citations",
        malformed_reflection: float = 0.0,
    ) -> None:
        """Args:
        retriever: Retriever of the memories nearest to a fact or a question.
        answer_agents: Number of questions per stage. If a dialogue has more, an agent answers
            several, and credit treats its answers together unless the method works turn by turn.
        retrieved: Number of entries of the fact's speaker that the manager sees.
        memories: Entries that an answer agent sees, equally many per speaker (60 in the paper).
        outcome: Reward of an answer: exact match or word F1, both after SQuAD's normalisation. The
            manager gets the mean.
        reader: Scripted reader that replaces the answer agents.
        most_operations: Maximum number of operations per fact, without NOOP.
        operations: Operations that the manager may use; another one is an invalid action. RMM has
            ADD and UPDATE alone.
        capacity: Maximum number of entries in the bank; further ADDs are refused. 0 is no limit.
        longest_memory: Maximum characters of an entry's text.
        malformed_operation: Added to the manager's reward for each invalid action, which leaves the
            bank unchanged. The paper has no such penalty.
        malformed_answer: Reward of an answer agent for an invalid answer, which counts as 0 in the
            mean that is the manager's reward.
        manager: False: there is no manager, and every fact becomes an entry.
        extractor: True: a fact extractor writes the facts of each turn. False: each turn is a fact.
        summarizer: True: a summarizer writes the facts of each session, which are memories of one
            topic each.
        most_facts: Maximum number of facts of a turn, or of summaries of a session and speaker.
        malformed_extraction: Added to the extractor's or the summarizer's reward for each invalid
            action, from which no fact is taken.
        reflector: True: a reflector per answer agent chooses the entries that the answer agent sees
            from those that are retrieved for its question.
        kept: Maximum number of entries that a reflector chooses (5 of 20 in the paper).
        reflector_pay: Pay of a reflector: citations and right_citations are the mean over the
            entries that it chose of 1 (cited) and -1 (not cited), and 0 if it chose none; in the
            paper the number of chosen entries is constant, so that mean and sum differ only by a
            constant factor. outcome: reward of the answer.
        malformed_reflection: Reward of a reflector for an invalid action. The answer agent then
            sees the first `kept` entries in the retriever's order.
        """
        extracting = {"fact_extractor": 1} if extractor else {}
        summarizing = {"summarizer": 1} if summarizer else {}
        managing = {"memory_manager": 1} if manager else {}
        answering = {} if reader else {"answer_agent": answer_agents}
        reflecting = {"reflector": answer_agents} if reflector else {}
        super().__init__({**extracting, **summarizing, **managing, **reflecting, **answering})
        check_settings(
            reader=reader,
            capacity=capacity,
            outcome=outcome,
            manager=manager,
            extractor=extractor,
            summarizer=summarizer,
            operations=operations,
            reflector=reflector,
            reflector_pay=reflector_pay,
            answer_agents=answer_agents,
            retrieved=retrieved,
            memories=memories,
            most_operations=most_operations,
            longest_memory=longest_memory,
            most_facts=most_facts,
            kept=kept,
        )
        self.retriever, self.reader, self.outcome = retriever, reader, outcome
        self.retrieved, self.memories, self.most_operations = retrieved, memories, most_operations
        self.capacity, self.longest_memory = capacity, longest_memory
        self.malformed_operation, self.malformed_answer = malformed_operation, malformed_answer
        self.operations = tuple(operations)
        self.manager, self.summarizer, self.most_facts = manager, summarizer, most_facts
        self.writer = SUMMARIZER if summarizer else EXTRACTOR if extractor else ""
        """Agent that writes the facts; empty if each turn is a fact."""
        self.malformed_extraction = malformed_extraction
        self.reflector, self.kept, self.reflector_pay = reflector, kept, reflector_pay
        self.malformed_reflection = malformed_reflection
        self.answer_agents = [
            agent for agent in self.possible_agents if agent.startswith("answer_agent_")
        ]

    def default_task(self, rng: Random) -> Task:
        """Return a small dialogue with known facts."""
        return dialogue_task(rng, number=0, split="train")

    def setup(self, task: Task, rng: Random) -> None:
        """Fill the bank with the task's earlier facts, and show the first new turn or fact.

        If no agent decides about the facts, the bank gets all of them.
        """
        earlier, said = task.payload.get("earlier", []), task.payload["facts"]
        turns = [
            Fact(
                number=number,
                **{key: str(turn.get(key, "")) for key in ("text", "speaker", "time")},
            )
            for number, turn in enumerate([*earlier, *said])
        ]
        self.questions = [dict(question) for question in task.payload["questions"]]
        if not said or not self.questions:
            missing = "questions" if said else "facts"
            raise ValueError(f"task {task.id}: the dialogue has no {missing}")
        self.bank = MemoryBank(capacity=self.capacity, longest=self.longest_memory)
        decided = bool(self.manager or self.writer)
        for fact in turns[: len(earlier)] if decided else turns:
            try:
                self._add(fact)
            except OperationError as reason:
                raise ValueError(
                    f"task {task.id}: fact {fact.number} does not fit into the bank ({reason}); "
                    "see arena.capacity and arena.longest_memory"
                ) from None
        self.extraction = (SessionSummaries if self.summarizer else FactExtraction)(
            turns[len(earlier) :] if self.writer else [],
            earlier=len(earlier) if self.writer else len(turns),
            most=self.most_facts,
            longest=self.longest_memory,
        )
        self.decisions = ManagerDecisions(
            self.bank, most=self.most_operations, allowed=self.operations
        )
        if self.manager and not self.writer:
            self._remember(turns[len(earlier) :])
        self.reflection = MemoryReflection(most=self.kept, pay=self.reflector_pay)
        self.asked = 0
        self.scores = AnswerScores()
        self._show()

    def acting(self) -> Sequence[str]:
        """Return the extractor for every turn or the summarizer for every session, and the manager
        for every fact, then reflectors and answer agents for the questions."""
        if self.decisions.waiting:
            return [MANAGER]
        if self.extraction.unread:
            return [self.writer]
        asking = self.answer_agents[: len(self.questions) - self.asked]
        if self.reflector and not self.reflection.chosen:
            return [_reflector_of(agent) for agent in asking]
        return asking

    def view(self, agent: str) -> Observation:
        """Return the turn or session, or the fact or question with the retrieved memories."""
        shown = [entry_fields(entry) for entry in self.shown.get(agent, [])]
        if agent not in self.shown:
            return Observation(text="wait")
        if agent == self.writer:
            return self.extraction.view()
        if agent == MANAGER:
            fact = self.decisions.waiting[0]
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
            if agent.startswith("reflector_"):
                fields["kept"] = self.kept
        lines = [*(f"[{entry['id']}] {entry['rendered']}" for entry in shown), words]
        return Observation(text="\n".join(lines), fields={**fields, "memories": shown})

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        """Take the facts, apply the operation or score the answers."""
        if self.writer in actions:
            self._extract(actions[self.writer])
        elif MANAGER in actions:
            self._operate(actions[MANAGER])
        elif self.reflector and not self.reflection.chosen:
            for agent, action in actions.items():
                self._reflect(agent, action)
        else:
            for agent, action in actions.items():
                self._score(agent, action)
            self.asked += len(actions)
        if self.reader and not self.decisions.waiting and not self.extraction.unread:
            self._read()
        self._show()
        if self.asked == len(self.questions):
            self._end()

    # The facts ---------------------------------------------------------------------------------

    def _extract(self, action: Action | None) -> None:
        """Take the facts of a turn or session; an invalid action has no facts."""
        try:
            facts = self.extraction.take(action)
        except ExtractionError as reason:
            self.pay(self.writer, self.malformed_extraction)
            self.note(self.writer, verdict=str(reason))
            return
        self.note(self.writer, verdict="facts" if facts else "no_facts")
        self._remember(facts)

    def _remember(self, facts: Sequence[Fact]) -> None:
        """Queue facts for the manager; without a manager each fact becomes an entry."""
        if self.manager:
            self.decisions.waiting += facts
            return
        for fact in facts:
            self._add(fact)

    def _add(self, fact: Fact) -> None:
        self.bank.apply(read_operations('{"event": "ADD"}'), fact)

    # The bank ----------------------------------------------------------------------------------

    def _operate(self, action: Action | None) -> None:
        """Apply the manager's operations; an invalid action changes nothing."""
        try:
            known = [entry.id for entry in self.shown[MANAGER]]
            verdict = self.decisions.take(action, known=known)
        except OperationError as reason:
            self.pay(MANAGER, self.malformed_operation)
            verdict = str(reason)
        self.note(MANAGER, verdict=verdict)

    def _show(self) -> None:
        """Retrieve the memories for the agents that move next."""
        self.shown: dict[str, list[MemoryEntry]] = {}
        if self.decisions.waiting:
            fact = self.decisions.waiting[0]
            entries = self.bank.of(fact.speaker)
            self.shown[MANAGER] = nearest(self.retriever, fact.text, entries, self.retrieved)
            return
        if self.extraction.unread:
            self.shown[self.writer] = []
            return
        chosen = self.reflection.chosen
        for agent in self.answer_agents[: len(self.questions) - self.asked]:
            if chosen:
                self.shown[agent] = chosen[_reflector_of(agent)]
            else:
                reader = _reflector_of(agent) if self.reflector else agent
                self.shown[reader] = self._found(self._question(agent))

    def _found(self, question: Mapping[str, Any]) -> list[MemoryEntry]:
        """Return the memories for a question, equally many of each speaker."""
        words = str(question["question"])
        return nearest_of_each(self.retriever, words, self.bank, self.memories)

    # The answers -------------------------------------------------------------------------------

    def _question(self, agent: str) -> Mapping[str, Any]:
        return self.questions[self.asked + int(agent.rpartition("_")[2])]

    def _reflect(self, agent: str, action: Action | None) -> None:
        """Store a reflector's choice or, after an invalid action, the retriever's first entries."""
        try:
            self.reflection.take(agent, action, self.shown[agent])
        except ReflectionError as reason:
            self.pay(agent, self.malformed_reflection)
            self.note(agent, verdict=str(reason))
        else:
            self.note(agent, verdict="chosen" if self.reflection.chosen[agent] else "none_chosen")

    def _score(self, agent: str, action: Action | None) -> None:
        question, shown = self._question(agent), self.shown[agent]
        answer, named = read_answer(action)
        known = {entry.id for entry in shown}
        if answer is None:
            self.pay(agent, self.malformed_answer)
            self.note(agent, verdict="malformed")
        scores = self._book(question, shown, answer)
        if self.reflector:
            reflector = _reflector_of(agent)
            self.pay(reflector, self.reflection.earned(reflector, named, scores[self.outcome]))
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
        origins = (self.extraction.turns_of[n] for entry in shown for n in entry.sources)
        return self.scores.add(question, answer, {turn for origin in origins for turn in origin})

    def _end(self) -> None:
        self.measure(**self.scores.means(), bank_size=len(self.bank.entries))
        earned = mean(self.scores.of(self.outcome))
        if self.manager:
            self.pay(MANAGER, earned)
            self.measure(**self.decisions.metrics())
        if self.writer:
            self.pay(self.writer, earned)
            self.measure(**self.extraction.metrics())
        if self.reflector:
            self.measure(**self.reflection.metrics())
        self.finish()


def _reflector_of(agent: str) -> str:
    return f"reflector_{agent.rpartition('_')[2]}"


def raw_env(**settings: Any) -> Memory:
    """Return the arena without a wrapper; the default retriever is BM25."""
    settings.setdefault("retriever", BM25())
    return Memory(**settings)


def env(**settings: Any) -> Any:
    """Return the arena in PettingZoo's order-enforcing wrapper."""
    return OrderEnforcingWrapper(raw_env(**settings))
