"""Tests of questions from a corpus: the views, valid proposals and rewards."""

import json
import pickle
from itertools import islice
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.memory.retrieval import BM25
from arenas.questions.arena import names_of, question_task
from arenas.questions.corpus_questions import (
    MOST_RESULTS,
    READER,
    REFUSED,
    CorpusQuestions,
    env,
    holds,
    raw_env,
)
from arenas.questions.place_proposal_demonstrations import PlaceProposalDemonstrations
from arenas.questions.place_proposals import PlaceOracle, answer_tasks, passage_tasks
from arenas.questions.places import PlaceDemonstrations, corpus, place_questions, regions
from roles.debater import Debater
from roles.questioner import Questioner
from selfplay.credit.rewards import success_variance
from selfplay.curriculum.task_buffer import TaskBuffer
from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ByteRenderer
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.rollout import AgentSpec, Rollout
from selfplay.tools import Toolbox
from selfplay.tools.search import Document, Search
from selfplay.types import Action, Observation, Status, Task, ToolCall

PASSAGE = "The capital of Beldun is Doreth. The mayor of Doreth is Fenika."
QUESTION, ANSWER = "the mayor of the capital of Beldun", "Fenika"


def begun(answer: str = "", passage: str = PASSAGE, **settings: Any) -> CorpusQuestions:
    arena = raw_env(**{"solvers": 4, **settings})
    payload = {"mode": "propose", "passage": passage, "answer": answer}
    arena.begin(Task(id="t", type="passage", payload=payload), seed=0)
    return arena


def proposed(**said: Any) -> Action:
    return json.dumps({"question": QUESTION, "answer": ANSWER, **said})


def answers(arena: CorpusQuestions, *words: str | None) -> CorpusQuestions:
    """Let the agents in turn give these answers."""
    said = [None if word is None else json.dumps({"answer": word}) for word in words]
    arena.play_stage(dict(zip(arena.stage, said, strict=True)))
    return arena


def searched(*results: str) -> list[ToolCall]:
    return [
        ToolCall(name="search", arguments=json.dumps({"query": f"q{number}"}), result=result)
        for number, result in enumerate(results)
    ]


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=40)
    api_test(env(readers=1, min_searches=1), num_cycles=40)
    api_test(raw_env(proposers=0), num_cycles=40)
    seed_test(raw_env, num_cycles=10)
    made: Any = pettingzoo.make("aec", "selfplay/corpus_questions_v0")
    made.reset(seed=1)
    assert made.possible_agents[:2] == ["proposer_0", "solver_0"]


@pytest.mark.parametrize(
    ("right", "paid"),
    # Variances 0, 3/16, 1/4 of right answers: exp(-3.125), exp(-0.1953125), 1.
    [(0, 0.0439369), (1, 0.8225775), (2, 1.0), (3, 0.8225775), (4, 0.0439369)],
)
def test_the_proposer_is_paid_the_variance_of_the_solvers_success(right: int, paid: float) -> None:
    arena = begun()
    arena.play_stage({"proposer_0": proposed()})
    answers(arena, *["Fenika"] * right, *["Doreth"] * (4 - right))
    assert arena.finished
    assert arena.paid["proposer_0"] == pytest.approx(paid, abs=1e-7)
    assert [arena.paid[agent] for agent in arena.solvers] == [1.0] * right + [0.0] * (4 - right)
    assert arena.metrics["solve_rate"] == right / 4
    assert arena.created == [question_task("passage", QUESTION, ANSWER)]


@pytest.mark.parametrize(
    ("pay", "right", "paid"),
    [
        ("failures", 0, 1.0),
        ("failures", 1, 0.75),
        ("failures", 4, 0.0),
        ("learnability", 0, 0.0),
        ("learnability", 1, 0.75),
        ("none", 1, 0.0),
    ],
)
def test_the_other_rewards_of_a_proposer(pay: Any, right: int, paid: float) -> None:
    arena = begun(proposer_pay=pay)
    arena.play_stage({"proposer_0": proposed()})
    answers(arena, *["Fenika"] * right, *["Doreth"] * (4 - right))
    assert arena.paid["proposer_0"] == paid


def test_the_variance_reward_refuses_a_wrong_rate() -> None:
    with pytest.raises(ValueError, match="solve rate"):
        success_variance(1.5)
    with pytest.raises(ValueError, match="width"):
        success_variance(0.5, width=0.0)


def test_solvers_see_only_the_question() -> None:
    arena = begun(readers=1)
    assert PASSAGE in arena.view("proposer_0").text
    arena.play_stage({"proposer_0": proposed()})
    assert arena.view(READER).fields == {"question": QUESTION, "documents": [PASSAGE]}
    answers(arena, ANSWER)
    seen = arena.view("solver_0")
    assert seen == Observation(text=QUESTION, fields={"question": QUESTION})


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (None, "malformed"),
        ("no JSON", "malformed"),
        ("[" * 100_000, "malformed"),
        ('["question", "answer"]', "malformed"),
        ("{}", "malformed"),
        (proposed(question=""), "malformed"),
        (proposed(question=None), "malformed"),
        (proposed(answer=""), "no_answer"),
        (proposed(answer=None), "no_answer"),
        (proposed(question="w" * 1001), "too_long"),
        (proposed(answer="Fenika " * 20), "too_long"),
        (proposed(question="the city that FENIKA! governs"), "leaks"),
        (proposed(answer="Doreth", question="what is Do-reth"), "leaks"),
        (proposed(answer="Kalmor"), "ungrounded"),
        (proposed(answer="Fen"), "ungrounded"),
        (proposed(question="the  port of\nGalika"), "held_out"),
    ],
)
def test_an_invalid_question_costs_the_penalty_and_ends_the_episode(
    action: Action | None, reason: str
) -> None:
    assert reason in REFUSED
    forbidden = names_of([question_task("hops_1", "the port of Galika", "Doreth")])
    arena = begun(forbidden=forbidden)
    arena.play_stage({"proposer_0": action})
    assert arena.finished and arena.notes["proposer_0"]["verdict"] == reason
    assert arena.paid["proposer_0"] == -0.1 and arena.metrics["valid_proposal"] == 0
    assert not arena.created and not any(arena.paid[agent] for agent in arena.solvers)


def test_a_copied_question_is_refused() -> None:
    arena = raw_env(solvers=1)
    payload = {"mode": "propose", "passage": PASSAGE, "references": [{"question": QUESTION}]}
    arena.begin(Task(id="t", type="passage", payload=payload), seed=0)
    arena.play_stage({"proposer_0": proposed()})
    assert arena.finished and arena.notes["proposer_0"]["verdict"] == "copied"
    assert arena.measures["verdict/copied"].unit == "fraction"


@pytest.mark.parametrize(
    "said", [{"question": 5, "answer": ["a"]}, {"question": {"a": "b"}}, {"question": "\ud800"}]
)
def test_no_value_of_a_proposal_raises(said: dict[str, Any]) -> None:
    arena = begun()
    arena.play_stage({"proposer_0": proposed(**said)})
    while not arena.finished:
        answers(arena, None, "\ud800", "[", "Fenika")
    assert pickle.loads(pickle.dumps(arena.created)) == arena.created


def test_a_wrong_answer_in_the_passage_is_refused_only_by_a_reader() -> None:
    oracle = lambda answer, payload: float(answer == ANSWER)  # noqa: E731
    arena = begun(oracle=oracle)
    arena.play_stage({"proposer_0": proposed(answer="Doreth")})
    assert arena.metrics["label_accuracy"] == 0
    answers(arena, "Fenika", "Fenika", "Fenika", "Fenika")
    assert arena.paid["proposer_0"] == pytest.approx(0.0439369) and arena.paid["solver_0"] == 0
    arena = begun(oracle=oracle, readers=1)
    arena.play_stage({"proposer_0": proposed(answer="Doreth")})
    assert arena.stage == (READER,)
    answers(arena, "Fenika")
    assert arena.finished and arena.paid["proposer_0"] == -0.1
    assert arena.notes["proposer_0"]["verdict"] == "unanswerable"
    assert "label_accuracy" not in arena.metrics


def test_the_reader_is_left_out_for_any_answer() -> None:
    for said in (ANSWER, "Doreth", None):
        arena = begun(readers=1)
        arena.play_stage({"proposer_0": proposed()})
        answers(arena, said)
        assert arena.left_out == {READER} and arena.paid[READER] == 0
        assert arena.finished == (said != ANSWER)


def test_duplicates_are_the_same_task_and_a_buffer_keeps_one() -> None:
    buffer, tasks = TaskBuffer(capacity=8), []
    for space in (" ", "  ", "\n"):
        arena = begun()
        arena.play_stage({"proposer_0": proposed(question=QUESTION.replace(" ", space))})
        tasks += answers(arena, *["Fenika"] * 4).created
    assert len({task.id for task in tasks}) == 1
    assert [buffer.add(task, step=1) for task in tasks] == [True, False, False]


def search_self_play(**settings: Any) -> CorpusQuestions:
    return begun(
        answer=ANSWER,
        passage="",
        **{"readers": 1, "min_searches": 2, "proposer_pay": "failures", "invalid": 0.0, **settings},
    )


DOCUMENTS = ("The mayor of Doreth is Fenika.", "The capital of Beldun is Doreth.")


def test_search_self_play_by_hand() -> None:
    arena = search_self_play()
    assert arena.view("proposer_0").fields == {"passage": "", "answer": ANSWER}
    said = json.dumps({"question": QUESTION})
    arena.play_stage({"proposer_0": arena.with_calls("proposer_0", said, searched(*DOCUMENTS))})
    assert sorted(arena.view(READER).fields["documents"]) == sorted(DOCUMENTS)
    answers(arena, ANSWER)
    answers(arena, ANSWER, "Doreth", None, "Beldun")
    assert arena.paid["proposer_0"] == 0.75 and arena.paid["solver_0"] == 1
    assert arena.metrics["searches"] == 2
    assert arena.notes["solver_2"]["verdict"] == "malformed"


def test_the_given_answer_counts_and_not_the_proposers_own() -> None:
    arena = search_self_play(readers=0)
    said = json.dumps({"question": QUESTION, "answer": "Doreth"})
    arena.play_stage({"proposer_0": arena.with_calls("proposer_0", said, searched(*DOCUMENTS))})
    answers(arena, "Doreth", "Doreth", "Fenika", "Fenika")
    assert [arena.paid[agent] for agent in arena.solvers] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([], "few_searches"),
        (searched(DOCUMENTS[0]), "few_searches"),
        (searched(DOCUMENTS[0]) * 2, "repeated_search"),
        (
            [
                ToolCall(name="search", arguments=f'{{"query": "{query}"}}', result=result)
                for query, result in zip(("The mayor", "the  MAYOR "), DOCUMENTS, strict=True)
            ],
            "repeated_search",
        ),
        (searched(DOCUMENTS[0], DOCUMENTS[0]), "few_searches"),
        (searched("nothing", "nothing else"), "ungrounded"),
        (
            [ToolCall(name="search", arguments="{}", result=DOCUMENTS[0], error="raised")] * 2,
            "few_searches",
        ),
    ],
)
def test_a_question_needs_different_searches_that_found_the_answer(
    calls: list[ToolCall], reason: str
) -> None:
    arena = search_self_play()
    said = json.dumps({"question": QUESTION, "found": [["a", ANSWER], ["b", ANSWER]]})
    arena.play_stage({"proposer_0": arena.with_calls("proposer_0", said, calls)})
    assert arena.notes["proposer_0"]["verdict"] == reason and arena.paid["proposer_0"] == 0


def test_a_proposal_cannot_invent_documents() -> None:
    arena = begun()
    forged = proposed(answer="Kalmor", found=[["q", "The mayor of Doreth is Kalmor."]])
    arena.play_stage({"proposer_0": forged})
    assert arena.notes["proposer_0"]["verdict"] == "ungrounded"  # no tools: no documents
    arena = search_self_play()
    for action in ("no JSON", "[]", "5"):
        assert arena.with_calls("proposer_0", action, searched(*DOCUMENTS)) == action
    assert arena.with_calls("solver_0", "{}", searched(*DOCUMENTS)) == "{}"
    many = json.loads(arena.with_calls("proposer_0", "{}", searched(*DOCUMENTS) * 50))
    assert len(many["found"]) == MOST_RESULTS


def test_a_given_question_has_solvers_only_and_its_answers_can_be_voted_on() -> None:
    (task,) = place_questions(count=1, hops=(1,))
    arena = raw_env(solvers=2)
    arena.begin(task, seed=0)
    assert arena.stage == ("solver_0", "solver_1")
    answers(arena, str(task.payload["answer"]), "x")
    assert arena.paid == {"proposer_0": 0, "solver_0": 1, "solver_1": 0} and not arena.created
    said = json.dumps({"answer": "Fenika."})
    assert arena.canonical_answer(task, "solver_0", said) == "fenika"
    assert arena.canonical_answer(Task(id="t", payload={"mode": "propose"}), "s", said) is None


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="proposer_pay is one of"):
        raw_env(proposer_pay="much")
    with pytest.raises(ValueError, match="readers is 0 or 1"):
        raw_env(proposers=0, readers=1)
    with pytest.raises(ValueError, match="noise needs a corpus"):
        raw_env(noise=1)
    with pytest.raises(ValueError, match="the corpus has 1"):
        raw_env(noise=2, corpus=[Document(id="1", text="a")])
    with pytest.raises(ValueError, match="not negative"):
        raw_env(min_searches=-1)
    with pytest.raises(ValueError, match="needs proposers"):
        raw_env(proposers=0).begin(Task(id="t", payload={"mode": "propose"}), seed=0)
    with pytest.raises(ValueError, match="the split has"):
        passage_tasks(count=100_000)
    with pytest.raises(ValueError, match="not all of them 0"):
        PlaceProposalDemonstrations(kinds={"solver": 0.0}, solver=PlaceDemonstrations())
    with pytest.raises(ValueError, match="from 0 to 1"):
        PlaceProposalDemonstrations(
            kinds={"solver": 1.0}, solver=PlaceDemonstrations(), two_hops=2.0
        )


def test_an_answer_is_found_as_whole_words() -> None:
    assert holds("The mayor is Fenika.", "fenika") and holds("in 1980, he", "1980")
    assert not holds("The mayor is Fenikal.", "Fenika") and not holds("in 19801", "1980")
    assert holds("what is the", "the") and not holds("nothing", "!")


def test_passages_and_answers_are_of_their_split_and_the_oracle_follows_questions() -> None:
    kept = {name for region in regions()["held_out"] for name in region.kinds}
    for split in ("train", "held_out"):
        passages = passage_tasks(count=100, split=split)
        assert len({task.id for task in passages}) == 100
        for task in passages:
            names = {word.strip(".") for word in str(task.payload["passage"]).split()} & {
                name for part in regions().values() for region in part for name in region.kinds
            }
            assert names and (names <= kept) == (split == "held_out")
        for task in answer_tasks(count=80, split=split):
            assert (task.payload["answer"] in kept) == (split == "held_out")
    oracle = PlaceOracle()
    for task in place_questions(count=30, hops=(1, 2, 3)):
        assert oracle(str(task.payload["answer"]), task.payload) == 1
        assert oracle("Nobody", task.payload) == 0
    for question in ("", "Fenika", "the mayor of", " of ", "who is it?"):
        assert oracle("", {"question": question}) == 0


def shown_of(kind: str, count: int, progress: float, **settings: Any) -> list[Any]:
    made = PlaceProposalDemonstrations(
        kinds={kind: 1.0}, solver=PlaceDemonstrations(), **{"wrong": 0.0, "leaks": 0.0, **settings}
    )
    return list(islice(made.stream(Random(0), progress), count))


def test_demonstrated_proposals_are_valid_unless_they_slip() -> None:
    questioner = Questioner(style="terse")
    hops = 0
    for each in shown_of("passage_proposer", 300, 0.9):
        arena = begun(passage=str(each.observation.fields["passage"]))
        arena.play_stage({"proposer_0": questioner.parse(each.completion)})
        assert not arena.finished
        hops += arena.question.count(" of ") == 2
    assert hops / 300 == pytest.approx(0.4, abs=0.09)  # three standard errors
    slipped = shown_of("passage_proposer", 300, 0.9, leaks=1.0)
    for each in slipped:
        arena = begun(passage=str(each.observation.fields["passage"]))
        arena.play_stage({"proposer_0": questioner.parse(each.completion)})
        assert arena.notes["proposer_0"]["verdict"] == "leaks"
    clean = shown_of("passage_proposer", 50, 0.1, leaks=1.0)
    assert clean == shown_of("passage_proposer", 50, 0.1)


def test_a_demonstrated_search_finds_in_the_corpus_what_it_shows() -> None:
    search = Search(corpus=corpus(), retriever=BM25(), count=2)
    for region in regions()["train"][:4]:
        for (_, relation), end in region.facts.items():
            found = {document.text for document in search.find(f"{relation} of {end}")}
            assert region.text(end) in found
            assert len(found) == 2 and any(f" is {end}." in text for text in found)
    for each in shown_of("answer_proposer", 200, 0.9):
        if each.completion.startswith("<question>"):
            answer = str(each.observation.fields["answer"])
            assert any(f" is {answer}." in result for _, result in each.called)
            assert not holds(each.completion, answer)


def test_a_scripted_search_self_play_in_a_rollout() -> None:
    documents = corpus()
    search = Search(corpus=documents, retriever=BM25(), count=2)
    region = regions()["train"][0]
    chain = region.chains(2)[0]
    box = Toolbox(tools={"search": search}, format="tags", describe=False)

    def script(agent: str, observation: Observation, rng: Random) -> str:
        results = observation.fields.get("tool_results", [])
        if agent == "proposer_0":
            asked = [f"{r} of {n}" for r, n in zip(chain.relations, chain.names[1:], strict=True)]
            if len(results) < 2:
                return f"<search>{asked[::-1][len(results)]}</search>"
            return f"<question>{chain.question}</question>"
        if agent == READER:
            facts = " ".join(observation.fields["documents"])
            assert all(f" is {name}." in facts for name in chain.names[1:])
            return f"<answer>{chain.names[-1]}</answer>"
        if agent == "solver_0" and not results:
            return f"<search>{chain.queries[0]}</search>"
        return f"<answer>{chain.names[-1] if agent == 'solver_0' else chain.names[0]}</answer>"

    arena: dict[str, Any] = {"readers": 1, "solvers": 2, "min_searches": 2}
    arena["proposer_pay"] = "failures"
    renderer = ByteRenderer()
    roles = {
        "proposer": Questioner(game="answer_questioner", answers=False, style="terse", tools=box),
        "reader": Debater(game="reader", style="terse"),
        "solver": Debater(game="generator", style="terse", tools=box),
    }
    rollout = Rollout(
        arena=lambda: CorpusQuestions(**arena),
        agent_specs={
            name: AgentSpec(role=role, policy="p", renderer=renderer)
            for name, role in roles.items()
        },
        engines={"p": ScriptedEngine({"p": script})},
    )
    task = Task(id="t", type="answer", payload={"mode": "propose", "answer": chain.names[-1]})
    (episode,) = rollout.run([EpisodeSpec(task=task, seed=0)])
    assert episode.status is Status.FINISHED, episode.error
    assert [turn.agent for turn in episode.turns][:4] == ["proposer_0"] * 3 + [READER]
    paid = {turn.agent: turn.reward for turn in episode.turns if turn.final}
    assert paid == {"proposer_0": 0.5, READER: 0.0, "solver_0": 1.0, "solver_1": 0.0}
    assert [turn.trainable for turn in episode.turns if turn.agent == READER] == [False]
