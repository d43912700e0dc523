"""Tests of the documents of a reader that checks a question: found documents and noise."""

import json

import pytest

from arenas.questions.corpus_questions import READER, raw_env
from selfplay.tools.search import Document, listed
from selfplay.types import Task
from tests.arenas.questions.test_corpus_questions import (
    ANSWER,
    PASSAGE,
    QUESTION,
    proposed,
    searched,
)


def test_documents_and_noise_are_shown_in_random_order() -> None:
    documents = [Document(id=str(number), text=f"noise {number}") for number in range(9)]
    orders = set()
    for seed in range(20):
        arena = raw_env(readers=1, noise=2, corpus=documents)
        arena.begin(Task(id="t", payload={"mode": "propose", "passage": PASSAGE}), seed=seed)
        arena.play_stage({"proposer_0": proposed()})
        shown = arena.view(READER).fields["documents"]
        assert arena.view(READER).fields["documents"] == shown
        assert PASSAGE in shown and len(shown) == 3
        orders.add(shown.index(PASSAGE))
    assert orders == {0, 1, 2}


def test_noise_has_the_form_of_found_documents_and_repeats_none() -> None:
    """The form and the order of documents must not reveal the proposer's documents."""
    corpus = [Document(id=f"d{n}", text=f"Fact {n}: {ANSWER}.\n\n[1] Note.") for n in range(6)]
    results = [
        "\n\n".join(listed(corpus[n]) for n in (0, 1)),
        "\n\n".join(listed(corpus[n]) for n in (1, 2)),
    ]
    orders = set()
    for seed in range(20):
        arena = raw_env(readers=1, noise=3, corpus=corpus, min_searches=2)
        arena.begin(Task(id="t", payload={"mode": "propose", "answer": ANSWER}), seed=seed)
        said = json.dumps({"question": QUESTION})
        arena.play_stage({"proposer_0": arena.with_calls("proposer_0", said, searched(*results))})
        shown = arena.view(READER).fields["documents"]
        assert sorted(shown) == [listed(each) for each in corpus]
        orders.add(tuple(shown))
    assert len(orders) > 10


@pytest.mark.parametrize("most", [20, 900])
def test_a_document_that_a_search_cut_is_not_shown_again(most: int) -> None:
    corpus = [Document(id=f"d{n}", text=f"{ANSWER} {n} " * 100) for n in range(4)]
    for seed in range(10):
        arena = raw_env(readers=1, noise=2, corpus=corpus, min_searches=1)
        arena.begin(Task(id="t", payload={"mode": "propose", "answer": ANSWER}), seed=seed)
        said = json.dumps({"question": QUESTION})
        result = "\n\n".join(listed(each, most) for each in corpus[:2])[:-5]
        arena.play_stage({"proposer_0": arena.with_calls("proposer_0", said, searched(result))})
        shown = arena.view(READER).fields["documents"]
        assert sorted(each[1:3] for each in shown) == ["d0", "d1", "d2", "d3"]
