"""Tests of the memory bank, of retrieval, and of the roles that use memories."""

import json
import pickle
import sys
from random import Random

import pytest

from arenas.memory.arena import raw_env
from arenas.memory.bank import (
    Fact,
    MemoryBank,
    MemoryOperation,
    OperationError,
    read_answer,
    read_operations,
)
from arenas.memory.retrieval import BM25, Embeddings
from roles.answer_agent import AnswerAgent
from roles.memory_manager import MemoryManager
from selfplay.errors import ConfigError
from selfplay.types import InvalidAction, Task


def fact(number: int, text: str = "", **more: str) -> Fact:
    return Fact(number=number, text=text or f"fact {number}", **more)


def test_the_papers_form_and_single_operations_are_read() -> None:
    text = """{"memory": [
        {"id": "0", "text": "same", "event": "NONE"},
        {"id": "1", "text": " new ", "event": "UPDATE", "old_memory": "old"}]}"""
    assert read_operations(text) == [MemoryOperation(event="UPDATE", id="1", text="new")]
    assert read_operations('{"event": "ADD"}') == [MemoryOperation(event="ADD")]
    assert read_operations('[{"event": "NOOP"}]') == read_operations('{"memory": []}') == []


def test_operations_are_applied_together_or_not_at_all() -> None:
    rng, bank = Random(3), MemoryBank(capacity=6)
    applied, refused = list[str](), set[str]()
    for number in range(60):
        names = [*bank.entries, "77"]
        operations = [
            MemoryOperation(event="ADD")
            if rng.random() < 0.5
            else MemoryOperation(event=rng.choice(["UPDATE", "DELETE"]), id=rng.choice(names))
            for _ in range(rng.randrange(3))
        ]
        before = list(bank.entries.values())
        try:
            bank.apply(operations, fact(number, speaker=rng.choice("AB")))
        except OperationError as error:
            refused.add(str(error))
            assert list(bank.entries.values()) == before
            continue
        events = [operation.event for operation in operations]
        assert len(bank.entries) == len(before) + events.count("ADD") - events.count("DELETE")
        assert bool(events) == (list(bank.entries.values()) != before)
        applied += events
    assert len(applied) > 10 and set(applied) == {"ADD", "UPDATE", "DELETE"}
    assert refused == {"full", "unknown_id"}


def test_an_entry_keeps_its_id_its_old_texts_and_its_sources() -> None:
    bank = MemoryBank()
    bank.apply([MemoryOperation(event="ADD")], fact(4, "Rome", time="May"))
    bank.apply([MemoryOperation(event="UPDATE", id="4", text="Oslo")], fact(7, time="June"))
    assert bank.entries["4"].sources == (4, 7), "a text of its own may keep the old content"
    bank.apply([MemoryOperation(event="UPDATE", id="4")], fact(9, "Lima"))
    (entry,) = bank.entries.values()
    assert (entry.id, entry.text, entry.time) == ("4", "Lima", "June")
    assert entry.old == ("Rome", "Oslo") and entry.sources == (9,), (
        "an update without a text replaces the content"
    )
    assert entry.rendered() == "June: Lima"


def test_ids_do_not_depend_on_other_entries() -> None:
    full, less = MemoryBank(), MemoryBank()
    full.apply([MemoryOperation(event="ADD"), MemoryOperation(event="ADD", text="b")], fact(0))
    for bank in (full, less):
        bank.apply([MemoryOperation(event="ADD")], fact(1))
    assert list(full.entries) == ["0", "0.1", "1"] and list(less.entries) == ["1"]


def test_bm25_finds_words_and_breaks_ties_by_age() -> None:
    texts = ["Ann likes tea", "Bob likes tea", "It rains", "Ann has a cat", "Ann likes tea"]
    assert BM25().top("what tea does Ann like?", texts, 3) == [4, 0, 1]
    assert BM25().top("nothing of this", texts, 2) == [4, 3]
    assert BM25().top("", texts, 1) == [4] and BM25().top("tea", [], 3) == []
    assert BM25().top("tea", ["!", "..."], 5) == [1, 0]
    assert pickle.loads(pickle.dumps(BM25(k1=1.2))).top("rains", texts, 1) == [2]
    with pytest.raises(ValueError, match="k1 must be positive"):
        BM25(k1=0)


@pytest.mark.parametrize(
    ("package", "extra"), [("bm25s", "memory"), ("sentence_transformers", "embeddings")]
)
def test_a_missing_package_is_a_one_line_error(
    package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"pip install 'selfplay\[{extra}\]'") as error:
        BM25() if package == "bm25s" else Embeddings(model="any")
    assert "\n" not in str(error.value)


class Letters:
    """A fake model of sentence-transformers, whose embeddings are counts of three letters."""

    def __init__(self, name: str, device: str | None, *, trust_remote_code: bool) -> None:
        assert not trust_remote_code
        if name == "missing":
            raise OSError("no such model\nanywhere")
        self.asked: list[str] = []

    def encode(self, texts: list[str], **settings: bool) -> list[list[float]]:
        assert settings == {"normalize_embeddings": True, "show_progress_bar": False}
        self.asked += texts
        rows = [[float(text.count(letter)) for letter in "abc"] for text in texts]
        return [[value / sum(v * v for v in row) ** 0.5 for value in row] for row in rows]


def test_embeddings_are_compared_by_cosine_and_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    library = type("library", (), {"SentenceTransformer": staticmethod(Letters)})
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    retriever = Embeddings(model="letters", remembered=4)
    assert retriever.top("aab", ["c", "aaaab", "b"], 2) == [1, 2]
    assert retriever.top("b", ["c", "aaaab", "b"], 1) == [2]
    assert retriever._model.asked == ["aab", "c", "aaaab", "b"]
    retriever.top("ccc", ["c"], 1)  # the cache is full, so all other vectors are dropped
    assert list(retriever._vectors) == ["ccc"]
    with pytest.raises(ConfigError, match="cannot load 'missing': no such model anywhere"):
        Embeddings(model="missing")


@pytest.mark.parametrize("style", ["full", "terse"])
def test_the_roles_show_only_their_data(style: str) -> None:
    arena = raw_env(answer_agents=1)
    facts = [{"text": "FACT ONE", "speaker": "ANN", "time": "MAY"}, {"text": "FACT TWO"}]
    questions = [{"question": "QUESTION", "answer": "GOLD"}]
    arena.begin(Task(id="t", payload={"facts": facts, "questions": questions}), seed=0)
    manager, agent = MemoryManager(style=style), AnswerAgent(style=style)
    (message,) = manager.prompt(arena.view("memory_manager_0"))
    assert "FACT ONE" in message["content"] and "FACT TWO" not in message["content"]
    assert "QUESTION" not in message["content"] and "GOLD" not in message["content"]
    arena.play_stage({"memory_manager_0": manager.parse(' {"event": "ADD"} ')})
    arena.play_stage({"memory_manager_0": manager.parse('{"memory": []}')})
    (message,) = agent.prompt(arena.view("answer_agent_0"))
    assert "[0]" in message["content"] and "FACT ONE" in message["content"]
    assert "QUESTION" in message["content"] and "FACT TWO" not in message["content"]
    assert "GOLD" not in message["content"]
    arena.play_stage({"answer_agent_0": agent.parse("**Memories:** [0] [5]\n**Answer:** gold")})
    assert arena.paid == {"memory_manager_0": 1.0, "answer_agent_0": 1.0}
    assert arena.notes["answer_agent_0"]["memories_unknown"] == 1


def test_an_answer_names_memories_before_its_marker() -> None:
    role = AnswerAgent(marker="=>")
    assert read_answer(role.parse("[3], [1.2], [3] => Rome [7] ")) == ("Rome [7]", ["3", "1.2"])
    assert read_answer(role.parse("=> Rome")) == ("Rome", [])
    for text, reason in (
        ("Rome", "no_answer"),
        ("[1] =>  ", "no_answer"),
        ("=> a => b", "several"),
    ):
        with pytest.raises(InvalidAction, match=reason):
            role.parse(text)


@pytest.mark.parametrize("text", ["", "ADD", '{"event": "ADD"} so', "[" * 1_000_000, "9" * 5000])
def test_a_manager_reads_only_json(text: str) -> None:
    with pytest.raises(InvalidAction, match="not_json"):
        MemoryManager().parse(text)


def test_a_manager_reads_one_operation_in_words() -> None:
    role = MemoryManager(style="sentence", form="words")
    for text, operation in (
        ("ADD", {"event": "ADD"}),
        (" NOOP\n", {"event": "NOOP"}),
        ("UPDATE 3", {"event": "UPDATE", "id": "3"}),
        ("DELETE 1.2", {"event": "DELETE", "id": "1.2"}),
    ):
        assert json.loads(str(role.parse(text))) == operation
    with pytest.raises(ConfigError, match="form is one of json, words, not 'prose'"):
        MemoryManager(form="prose")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        *("", "add", "ADD 3", "UPDATE", "UPDATE x", 'DELETE 3", "text": "x', "ADD\nADD"),
        *("UPDATE 9" * 99, "DELETE " + "9" * 1_000_000, '{"event": "ADD"}'),
    ],
)
def test_other_words_are_no_operation(text: str) -> None:
    with pytest.raises(InvalidAction, match="no_operation"):
        MemoryManager(form="words").parse(text)


def test_a_long_fact_may_delete_an_entry_and_change_nothing() -> None:
    bank = MemoryBank(longest=20)
    bank.apply([MemoryOperation(event="ADD")], fact(0, "Ann has a dog."))
    long = fact(1, "Ann gave the dog away. " * 9)
    for operation in (MemoryOperation(event="ADD"), MemoryOperation(event="UPDATE", id="0")):
        with pytest.raises(OperationError, match="too_long"):
            bank.apply([operation], long)
    bank.apply([MemoryOperation(event="DELETE", id="0")], long)
    assert not bank.entries
