"""Tests of invented places: facts, multi-hop questions, demonstrations, and search."""

import re
from itertools import islice
from random import Random
from typing import Literal

import pytest

from arenas.memory.retrieval import BM25
from arenas.questions.arena import Questions
from arenas.questions.places import (
    NAMES,
    SIZES,
    Chain,
    PlaceDemonstrations,
    Region,
    corpus,
    place_questions,
    regions,
)
from roles.debater import Debater
from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_tokenizer
from selfplay.models.warmstart import WarmStart
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.tools import Toolbox
from selfplay.tools.search import Document, Read, Search
from selfplay.types import Observation

FACT = re.compile(r"The (\w+) of (\w+) is (\w+)\.")


def facts(documents: list[Document]) -> dict[tuple[str, str], str]:
    """Return the facts that the texts state."""
    return {(n, r): end for d in documents for r, n, end in FACT.findall(d.text)}


def solved(question: str, known: dict[tuple[str, str], str]) -> str:
    """Return the answer to a question, which is followed from its end to its beginning."""
    *relations, name = question.removeprefix("the ").replace(" of the ", " of ").split(" of ")
    for relation in reversed(relations):
        name = known[name, relation]
    return name


def test_answers_follow_from_the_documents() -> None:
    known = facts(corpus(regions_count=20, seed=3))
    assert len(known) == 20 * 2 * sum(SIZES.values())
    for split in ("train", "held_out"):
        tasks = place_questions(count=60, hops=(1, 2, 3), split=split, regions_count=20, seed=3)
        assert [task.type for task in tasks[:3]] == ["hops_1", "hops_2", "hops_3"]
        for task in tasks:
            question = str(task.payload["question"])
            assert question.count(" of ") == int(task.type[-1])
            assert solved(question, known) == task.payload["answer"]


def test_a_chain_by_hand() -> None:
    chain = Chain(relations=("capital", "mayor"), names=("Beldun", "Doreth", "Fenika"))
    assert chain.question == "the mayor of the capital of Beldun"
    assert chain.queries == ["capital of Beldun", "mayor of Doreth"]


def test_splits_share_no_name_and_a_seed_gives_the_same_corpus() -> None:
    parts = regions()
    names = {s: {name for region in part for name in region.kinds} for s, part in parts.items()}
    assert not names["train"] & names["held_out"]
    assert len(names["train"] | names["held_out"]) == len(NAMES) == 576
    assert corpus(seed=1) == corpus(seed=1) != corpus(seed=2)


def test_the_id_of_a_document_says_nothing_about_its_split() -> None:
    kept = {name for region in regions()["held_out"] for name in region.kinds}
    first = [FACT.findall(document.text)[0][1] in kept for document in corpus()[:288]]
    # Of 576 documents 112 are held out: 56 are expected in a half, with standard deviation 4.8.
    assert sum(first) == pytest.approx(56, abs=15)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="2 to 72"):
        corpus(regions_count=73)
    with pytest.raises(ValueError, match="the split has"):
        place_questions(count=100_000, hops=(1,))
    for hops in ((), (4,), (1, 1)):
        with pytest.raises(ValueError, match=r"some of \(1, 2, 3\), each once"):
            place_questions(count=2, hops=hops)
    with pytest.raises(ValueError, match="the split has 343 questions of 3 hops"):
        place_questions(count=344, hops=(3,), split="held_out", shortcuts=False)
    with pytest.raises(ValueError, match="from 0 to 1"):
        PlaceDemonstrations(searches=2)
    with pytest.raises(ValueError, match="some of"):
        PlaceDemonstrations(hops=(4,))
    with pytest.raises(ValueError, match="same id"):
        Read(corpus=[Document(id="1", text="a"), Document(id="1", text="b")])
    with pytest.raises(ValueError, match="list of documents"):
        Read(corpus=[])


def test_a_count_is_shared_among_the_numbers_of_hops() -> None:
    kinds = [task.type for task in place_questions(count=8, hops=(3, 1, 2))]
    assert kinds == [*("hops_3", "hops_1", "hops_2") * 2, "hops_3", "hops_1"]


def chains(hops: int, split: Literal["train", "held_out"]) -> dict[str, list[tuple[Region, Chain]]]:
    """Return all chains of a number of hops by their question."""
    found: dict[str, list[tuple[Region, Chain]]] = {}
    for region in regions()[split]:
        for chain in region.chains(hops):
            found.setdefault(chain.question, []).append((region, chain))
    return found


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_a_question_has_one_chain_and_names_only_its_beginning(
    hops: int, split: Literal["train", "held_out"]
) -> None:
    for question, each in chains(hops, split).items():
        ((_, chain),) = each
        assert len(chain.relations) == hops and len(set(chain.names)) == hops + 1
        assert [name for name in NAMES if name in question] == [chain.names[0]]


def test_a_question_of_three_hops_needs_each_document_of_its_chain() -> None:
    known = facts(corpus())
    found = chains(3, "held_out")
    tasks = place_questions(count=60, hops=(3,), split="held_out", shortcuts=False)
    for task in tasks:
        question = str(task.payload["question"])
        ((region, chain),) = found[question]
        assert solved(question, known) == task.payload["answer"] == chain.names[-1]
        for name in chain.names[:3]:
            rest = {key: end for key, end in known.items() if key[0] != name}
            with pytest.raises(KeyError):
                solved(question, rest)
        read = [region.text(name) for name in chain.names[:3]]
        assert ["The" in text and chain.names[3] in text for text in read] == [False, False, True]


def test_shortcuts_are_as_frequent_as_documented() -> None:
    fractions = {}
    for hops in (1, 2, 3):
        every = [each for found in chains(hops, "train").values() for each in found]
        fractions[hops] = sum(region.shows_early(chain) for region, chain in every) / len(every)
    assert fractions == {1: 0, 2: pytest.approx(0.22, abs=0.005), 3: pytest.approx(0.39, abs=0.005)}
    region = Region(
        kinds={"Beldun": "country", "Doreth": "city", "Fenika": "city", "Galbor": "person"},
        facts={
            ("Beldun", "capital"): "Doreth",
            ("Beldun", "port"): "Fenika",
            ("Doreth", "mayor"): "Galbor",
            ("Doreth", "founder"): "Galbor",
            ("Galbor", "birthplace"): "Fenika",
            ("Galbor", "teacher"): "Galbor",
        },
    )
    names, way = ("Beldun", "Doreth", "Galbor"), ("capital", "mayor")
    birthplace = Chain(relations=(*way, "birthplace"), names=(*names, "Fenika"))
    assert region.shows_early(birthplace), "the document of Beldun names its port"
    assert not region.shows_early(Chain(relations=way, names=names))


def test_every_query_of_a_question_finds_its_document() -> None:
    search = Search(corpus=corpus(), retriever=BM25(), count=1)
    for part in regions().values():
        for region in part[:5]:
            for chain in (*region.chains(2), *region.chains(3)):
                for query, name in zip(chain.queries, chain.names, strict=False):
                    assert search.call(query).endswith(f"] {region.text(name)}")


def test_a_query_finds_its_fact_among_documents_of_one_fact() -> None:
    documents = corpus(one_fact=True)
    assert len(documents) == 2 * len(corpus()) and facts(documents) == facts(corpus())
    search = Search(corpus=documents, retriever=BM25(), count=1)
    for region in regions()["held_out"][:5]:
        for (name, relation), end in region.facts.items():
            (found,) = search.find(f"{relation} of {name}")
            if relation == "teacher" and name in found.text.split(" is ")[1]:
                continue  # "The teacher of Doreth is Fenika." has the words of "teacher of Fenika"
            assert found.text == f"The {relation} of {name} is {end}."


def test_demonstrations_search_as_often_as_set() -> None:
    shown = PlaceDemonstrations(searches=0.2, persistence=0.5, practice_until=0.5)
    direct: list[bool] = []
    early: list[bool] = []
    ended = 0
    for each in islice(shown.stream(Random(0), 0.9), 4000):
        question = each.observation.text
        read = facts([Document(id="", text=result) for _, result in each.called])
        hops, done = question.count(" of "), len(each.called)
        searched = each.completion.startswith("<search>")
        if done == hops:
            ended += 1
            assert each.completion == f"<answer>{solved(question, read)}</answer>"
        else:
            (early if done else direct).append(searched)
    assert ended > 1000
    # Three standard errors of about 2000 and of 670 samples.
    assert sum(direct) / len(direct) == pytest.approx(0.2, abs=0.03)
    assert sum(early) / len(early) == pytest.approx(0.5, abs=0.06)


def test_a_demonstrated_search_equals_that_of_a_rollout() -> None:
    documents = corpus()
    box = Toolbox(
        tools={"search": Search(corpus=documents, retriever=BM25(), count=1)},
        format="tags",
        describe=False,
    )
    role = Debater(game="generator", style="terse", tools=box)
    shown = PlaceDemonstrations()
    tokenizer = build_tokenizer(shown.pieces())
    renderer = ChatRenderer(tokenizer)
    (task,) = place_questions(count=1, hops=(2,), split="held_out")
    chain = next(
        chain
        for region in regions()["held_out"]
        for chain in region.chains(2)
        if chain.question == task.payload["question"]
    )

    class Speaking(ScriptedEngine):
        def step(self) -> list:
            return [
                type(each)(
                    id=each.id,
                    completion_ids=(*renderer.completion_ids(each.text or ""), renderer.end_ids[0]),
                    logprobs=(0.0,) * (len(renderer.completion_ids(each.text or "")) + 1),
                    stop_reason=each.stop_reason,
                )
                for each in super().step()
            ]

    def script(agent: str, observation: Observation, rng: Random) -> str:
        results = observation.fields.get("tool_results", [])
        if len(results) < 2:
            return f"<search>{chain.queries[len(results)]}</search>"
        return f"<answer>{solved(str(task.payload['question']), facts_of(results))}</answer>"

    def facts_of(results: list[str]) -> dict[tuple[str, str], str]:
        return facts([Document(id="", text=result) for result in results])

    rollout = Rollout(
        arena=lambda: Questions(proposers=0, solvers=1, label="verifier"),
        agent_specs={"solver": AgentSpec(role=role, policy="p", renderer=renderer)},
        engines={"p": Speaking({"p": script})},
    )
    (episode,) = rollout.run([EpisodeSpec(task=task, seed=0)])
    assert [turn.final for turn in episode.turns] == [False, False, True]
    assert episode.turns[-1].reward == 1.0
    warm = WarmStart(demonstrations=shown, roles={"solver": role})
    called = [(turn.text, turn.tool_calls[0].result) for turn in episode.turns[:2]]
    demonstration = next(shown.stream(Random(0), 0.0))
    same = type(demonstration)(
        role="solver",
        observation=Observation(text=chain.question, fields={"question": chain.question}),
        completion=episode.turns[-1].text,
        called=tuple(called),
    )
    last = episode.turns[-1]
    assert warm.encode(same, renderer) == (last.prompt_ids, list(last.completion_ids))
    for region in regions()["held_out"]:
        if chain.names[0] in region.kinds:
            assert called[0][1].endswith(f"] {region.text(chain.names[0])}")


def test_a_region_has_facts_of_its_own_names_only() -> None:
    region = Region.drawn(Random(5), NAMES[:8])
    assert set(region.facts.values()) <= set(NAMES[:8])
    assert all(name != end for (name, _), end in region.facts.items())
