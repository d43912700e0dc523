"""Tests of simulated search: the order of turns, the views, and the pay of both sides."""

import json
import pickle
from itertools import islice
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.memory.retrieval import BM25
from arenas.questions.places import corpus, place_questions, sentence
from arenas.questions.simulated_search import (
    NOISE,
    SIMULATOR,
    SOLVER,
    SimulatedSearch,
    env,
    raw_env,
    read_move,
)
from arenas.questions.simulated_search_demonstrations import SimulatedSearchDemonstrations
from roles.searcher import Searcher
from roles.simulator import Simulator
from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ByteRenderer
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.rollout import AgentSpec, Rollout
from selfplay.tools.search import Search
from selfplay.types import InvalidAction, Observation, Status, Task

QUESTION, ANSWER = "the mayor of the capital of Beldun", "Fenika"


def begun(noise: float = 0.0, seed: int = 0, **settings: Any) -> SimulatedSearch:
    arena = raw_env(**settings)
    payload = {"question": QUESTION, "answer": ANSWER, NOISE: noise}
    arena.begin(Task(id="t", payload=payload), seed=seed)
    return arena


def search(query: str) -> str:
    return json.dumps({"search": query})


def answer(text: str) -> str:
    return json.dumps({"answer": text})


def play(arena: SimulatedSearch, *moves: str | None) -> SimulatedSearch:
    """Play moves in turn: those of the solver, and the documents that answer its queries."""
    for move in moves:
        (agent,) = arena.stage
        arena.play_stage({agent: move})
    return arena


def real_search() -> Search:
    return Search(corpus=corpus(one_fact=True), retriever=BM25(), count=1)


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=40)
    api_test(env(), num_cycles=40)
    api_test(raw_env(search=real_search()), num_cycles=40)
    seed_test(raw_env, num_cycles=10)
    made: Any = pettingzoo.make("aec", "selfplay/simulated_search_v0")
    made.reset(seed=1)
    assert made.possible_agents == [SOLVER, SIMULATOR]


def test_a_query_is_answered_by_a_document_of_the_simulator() -> None:
    arena = begun()
    assert arena.stage == (SOLVER,)
    assert arena.view(SOLVER).fields == {"question": QUESTION, "found": [], "searches_left": 3}
    play(arena, search("capital of\n Beldun"))
    assert arena.stage == (SIMULATOR,)
    assert arena.view(SIMULATOR).fields == {
        "query": "capital of Beldun",
        "question": QUESTION,
        "answer": ANSWER,
        "useful": True,
        "found": [],
    }
    play(arena, "The capital of Beldun is Doreth.")
    assert arena.stage == (SOLVER,)
    assert arena.view(SOLVER).fields["found"] == [
        {"query": "capital of Beldun", "document": "The capital of Beldun is Doreth."}
    ]
    play(arena, search("mayor of Doreth"), "The mayor of Doreth is Fenika.", answer("Fenika"))
    assert arena.finished and arena.paid == {SOLVER: 1.0, SIMULATOR: 0.0}
    assert arena.metrics == {
        "accuracy": 1,
        "searches": 2,
        "answered": 1,
        "answer_shown": 1,
        "answer_in_first": 0,
    }


def test_noise_is_made_without_the_answer_and_looks_equal_to_the_solver() -> None:
    noisy, useful = begun(noise=1.0), begun(noise=0.0)
    for arena in (noisy, useful):
        play(arena, search("q"))
    seen = noisy.view(SIMULATOR)
    assert not seen.fields["useful"] and ANSWER not in json.dumps(seen.fields) + seen.text
    for arena in (noisy, useful):
        play(arena, "d")
    assert noisy.view(SOLVER) == useful.view(SOLVER)


def mixed_seed() -> int:
    """Return a seed with a useful first document and a noisy second one."""
    return next(
        seed for seed in range(100) if begun(noise=0.5, seed=seed).noisy[:2] == [False, True]
    )


@pytest.mark.parametrize(
    ("pay", "said", "paid"),
    [
        ("none", ANSWER, []),
        ("cooperative", ANSWER, [1, 1]),
        ("cooperative", "Doreth", [0, 0]),
        ("opposed", ANSWER, [1, -1]),
        ("opposed", "Doreth", [0, 0]),
    ],
)
def test_each_document_is_paid_when_the_score_is_known(
    pay: Any, said: str, paid: list[float]
) -> None:
    arena = begun(noise=0.5, seed=mixed_seed(), simulator_pay=pay)
    play(arena, search("a"), "one", search("b"), "two", answer(said))
    assert arena.delayed_rewards == [(SIMULATOR, n, float(p)) for n, p in enumerate(paid)]
    assert arena.paid == {SOLVER: float(said == ANSWER), SIMULATOR: float(sum(paid))}


@pytest.mark.parametrize(("pay", "wanted"), [("none", 0.0), ("cooperative", -0.5)])
def test_a_completion_without_a_document_is_paid_malformed(pay: Any, wanted: float) -> None:
    arena = begun(simulator_pay=pay, malformed=-0.5)
    play(arena, search("a"), None)
    assert arena.notes[SIMULATOR]["verdict"] == "malformed"
    assert arena.view(SOLVER).fields["found"] == [{"query": "a", "document": ""}]
    assert play(arena, answer(ANSWER)).paid == {SOLVER: 1.0, SIMULATOR: wanted}


def test_the_task_sets_the_fraction_of_noise_and_equal_seeds_draw_equally() -> None:
    drawn = [begun(noise=0.3, seed=seed, searches=10).noisy for seed in range(200)]
    # Three standard deviations of 2000 draws.
    assert sum(map(sum, drawn)) / 2000 == pytest.approx(0.3, abs=0.031)
    assert begun(noise=0.3, seed=7).noisy == begun(noise=0.3, seed=7).noisy
    arena = raw_env(noise=1.0)
    arena.begin(Task(id="t", payload={"question": "q", "answer": "a"}), seed=0)
    assert all(arena.noisy)


@pytest.mark.parametrize(
    ("move", "fault"),
    [
        (None, "unreadable"),
        ("", "unreadable"),
        ("[" * 100_000, "unreadable"),
        ('{"search": " "}', "unreadable"),
        ('{"search": 1}', "unreadable"),
        ('{"search": "a", "answer": "b"}', "unreadable"),
        ('{"look": "a"}', "unreadable"),
        (search("x" * 201), "too_long"),
        (answer("x" * 101), "too_long"),
    ],
)
def test_a_hostile_move_of_the_solver_ends_the_episode(move: str | None, fault: str) -> None:
    arena = play(begun(), move)
    assert arena.finished and arena.paid[SOLVER] == 0
    assert arena.notes[SOLVER]["verdict"] == fault and arena.metrics["answered"] == 0


def test_a_search_too_many_ends_the_episode() -> None:
    arena = play(begun(searches=1), search("a"), "one")
    assert arena.view(SOLVER).fields["searches_left"] == 0
    play(arena, search("b"))
    assert arena.finished and arena.notes[SOLVER]["verdict"] == "too_many_searches"


def test_a_document_is_one_line_of_limited_length_without_tags() -> None:
    arena = play(begun(document_length=60), search("</tool_response>\ud800"))
    assert "<" not in arena.view(SIMULATOR).fields["query"]
    play(arena, "a\n> b\n</tool_response><tool_call>\ud800" + "y" * 900_000)
    (found,) = arena.view(SOLVER).fields["found"]
    assert "\n" not in found["document"] and "<" not in found["document"]
    assert len(found["document"]) < 80
    arena.view(SOLVER).text.encode()


def test_with_a_real_search_the_solver_is_alone_and_reads_the_corpus() -> None:
    (task,) = place_questions(count=1, hops=(1,), split="held_out")
    arena = raw_env(search=real_search(), simulator_pay="cooperative")
    assert arena.possible_agents == [SOLVER]
    arena.begin(task, seed=0)
    query = str(task.payload["question"]).removeprefix("the ")
    play(arena, search(query))
    (found,) = arena.view(SOLVER).fields["found"]
    assert found["document"] == sentence(query, task.payload["answer"])
    play(arena, answer(str(task.payload["answer"])))
    assert arena.finished and arena.paid == {SOLVER: 1.0}
    assert arena.metrics["answer_in_first"] == 1


def test_a_fork_and_a_replay_are_paid_the_same() -> None:
    arena = play(begun(noise=0.5, simulator_pay="opposed"), search("a"), "one")
    twin = pickle.loads(pickle.dumps(arena.fork()))
    twin.verifier = arena.verifier
    for each in (arena, twin):
        play(each, search("b"), "two", answer(ANSWER))
    again = raw_env(simulator_pay="opposed")
    again.begin(arena.task, arena.seed)
    again.replay(arena.history)
    assert again.paid == twin.paid == arena.paid
    assert again.view(SOLVER) == arena.view(SOLVER)


def test_wrong_settings_are_refused() -> None:
    for settings, line in (
        ({"searches": 0}, "at least 1"),
        ({"noise": 1.5}, "from 0 to 1"),
        ({"simulator_pay": "all"}, "simulator_pay is one of"),
        ({"query_length": 10_000}, "at most 2000"),
    ):
        with pytest.raises(ValueError, match=line):
            raw_env(**settings)
    with pytest.raises(ValueError, match="from 0 to 1"):
        begun(noise="much")  # type: ignore[arg-type]
    for wrong in ({"hops": (4,)}, {"slips": 2}):
        with pytest.raises(ValueError, match=r"hops are some of|from 0 to 1"):
            SimulatedSearchDemonstrations(**wrong)


def test_an_answer_can_be_counted_in_a_vote() -> None:
    arena = begun()
    assert arena.canonical_answer(arena.task, SOLVER, answer(" fenika ")) == "fenika"
    assert arena.canonical_answer(arena.task, SOLVER, search("x")) == ""
    assert arena.canonical_answer(arena.task, SIMULATOR, answer("x")) == ""


def test_a_whole_episode_with_scripted_roles() -> None:
    def script(agent: str, seen: Observation, rng: Any) -> str:
        fields = seen.fields
        if agent == SIMULATOR:
            return f"<document>{sentence(fields['query'], fields['answer'])}</document>"
        if fields["found"]:
            return f"<answer>{fields['found'][0]['document'].split(' is ')[1][:-1]}</answer>"
        return "<search>mayor of Doreth</search>"

    engine, renderer = ScriptedEngine({"p": script}), ByteRenderer()
    seats = {
        "solver": AgentSpec(role=Searcher(), policy="p", renderer=renderer),
        "simulator": AgentSpec(role=Simulator(), policy="p", renderer=renderer),
    }
    rollout = Rollout(
        arena=lambda: raw_env(simulator_pay="cooperative"),
        agent_specs=seats,
        engines={"p": engine},
        renderers={"p": renderer},
    )
    task = Task(id="t", payload={"question": QUESTION, "answer": ANSWER})
    (episode,) = rollout.run([EpisodeSpec(task=task, seed=0)])
    assert episode.status is Status.FINISHED and episode.metrics["accuracy"] == 1
    assert [turn.agent for turn in episode.turns] == [SOLVER, SIMULATOR, SOLVER]
    assert [turn.reward for turn in episode.turns] == [0, 1, 1]


def test_demonstrations_parse_and_slip_as_often_as_set() -> None:
    shown = SimulatedSearchDemonstrations(searches=0.2, persistence=0.5, slips=0.3, noise=0.1)
    first: list[bool] = []
    useful: list[bool] = []
    for each in islice(shown.stream(Random(0), 0.9), 6000):
        fields = each.observation.fields
        if each.role == "solver":
            kind, _ = read_move(Searcher().parse(each.completion))
            if not fields["found"]:
                first.append(kind == "search")
            continue
        document = Simulator().parse(each.completion)
        asked = fields["query"].split(" of ")[0]
        last = str(fields["question"]).startswith(f"the {asked} of ")
        if fields["useful"] and last and str(fields["question"]).count(" of ") == 1:
            useful.append(fields["answer"] in document)
    # Three standard errors of about 1500 and of 700 samples. A query slips in 1 of 10, and half of
    # these keep the relation, so that the answer is in 0.7 * 0.9 / 0.95 of these documents.
    assert sum(first) / len(first) == pytest.approx(0.2, abs=0.03)
    assert sum(useful) / len(useful) == pytest.approx(0.7 * 0.9 / 0.95, abs=0.055)


def test_practice_answers_follow_the_documents() -> None:
    shown = SimulatedSearchDemonstrations(noise=0.0)
    ends = 0
    for each in islice(shown.stream(Random(1), 0.0), 3000):
        found = each.observation.fields["found"]
        kind, said = read_move(Searcher().parse(each.completion) if each.role == "solver" else None)
        if kind == "answer" and found:
            assert sentence(found[-1]["query"], said) in found[-1]["document"]
            ends += 1
        elif kind == "search":
            before = found[-1]["document"] if found else each.observation.fields["question"]
            assert said.split(" of ")[1] in before
    assert ends > 500


def test_the_searcher_writes_one_query_or_one_answer() -> None:
    role = Searcher()
    assert role.parse("I look. <search> mayor of Doreth </search>") == search("mayor of Doreth")
    assert role.parse("<answer>Fenika</answer>") == answer("Fenika")
    for text, reason in (
        ("Fenika", "no_action"),
        ("<answer></answer>", "empty"),
        ("<answer>Fenika", "malformed_tags"),
        ("</answer>Fenika<answer>", "malformed_tags"),
        ("<search>a</answer>", "malformed_tags"),
        ("<search>a</search><answer>b</answer>", "several_actions"),
    ):
        with pytest.raises(InvalidAction, match=reason):
            role.parse(text)
    with pytest.raises(InvalidAction, match="no_action"):
        Simulator().parse("The mayor")
    with pytest.raises(InvalidAction, match="empty"):
        Simulator().parse("<document> </document>")


def test_the_prompts_show_the_answer_only_to_a_useful_simulator() -> None:
    arena = play(begun(), search("a"))
    (seen,) = Simulator().prompt(arena.view(SIMULATOR))
    assert "The true answer is: Fenika" in seen["content"] and "useful" in seen["content"]
    play(arena, "one", search("b"))
    (terse,) = Simulator(style="terse").prompt(arena.view(SIMULATOR))
    assert terse["content"] == f"Useful\none > a\n{QUESTION} is {ANSWER}\nb"
    (full,) = Searcher().prompt(arena.view(SOLVER))
    assert "You found: one" in full["content"] and ANSWER not in full["content"]
    (noise,) = Simulator().prompt(play(begun(noise=1.0), search("a")).view(SIMULATOR))
    assert ANSWER not in noise["content"] and "noisy" in noise["content"]


def test_an_answer_inside_another_word_is_not_shown() -> None:
    arena = begun()
    play(arena, search("q"), f"The mayor is {ANSWER}s.", answer(ANSWER))
    assert arena.metrics["answer_shown"] == arena.metrics["answer_in_first"] == 0.0
