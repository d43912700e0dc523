"""Tests of cited answers: the citations that count, their pay, and texts that try to cheat."""

import json
from itertools import islice
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.memory.retrieval import BM25
from arenas.questions.cited import MOST_SHOWN, CitedAnswers, env, raw_env
from arenas.questions.cited_demonstrations import CitedPlaceDemonstrations
from arenas.questions.places import PlaceDemonstrations
from roles.citer import Citer
from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ByteRenderer
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.rollout import AgentSpec, Rollout
from selfplay.tools import Toolbox
from selfplay.tools.search import Document, Search
from selfplay.types import Action, InvalidAction, Observation, Task, ToolCall

CORPUS = [
    Document(id="7", text="The capital of Beldun is Doreth."),
    Document(id="12", text="The mayor of Doreth is Fenika."),
    Document(id="31", text="The founder of Doreth is Kalmor."),
]
QUESTION, ANSWER = "the mayor of the capital of Beldun", "Fenika"
TASK = Task(id="t", type="hops_2", payload={"question": QUESTION, "answer": ANSWER})


def begun(**settings: Any) -> CitedAnswers:
    arena = raw_env(**{"solvers": 1, "corpus": CORPUS, **settings})
    arena.begin(TASK, seed=0)
    return arena


def said(answer: str = ANSWER, cited: Any = (), shown: Any = ("7", "12")) -> Action:
    return json.dumps({"answer": answer, "cited": cited, "shown": shown})


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(corpus=CORPUS), num_cycles=20)
    api_test(env(corpus=CORPUS), num_cycles=20)
    seed_test(lambda: raw_env(corpus=CORPUS), num_cycles=10)
    made: Any = pettingzoo.make("aec", "selfplay/cited_answers_v0")
    made.reset(seed=1)
    assert made.possible_agents[0] == "solver_0"


@pytest.mark.parametrize(
    ("answer", "cited", "paid"),
    [
        (ANSWER, ["12"], 1.5),
        (ANSWER, [], 1.0),
        (ANSWER, ["7"], 1.0),  # document 7 does not contain the answer
        (ANSWER, ["7", "12"], 1.25),
        (ANSWER, ["12", "12"], 1.5),
        (ANSWER, ["31"], 1.0),  # not shown
        (ANSWER, ["12", "a", "b", "c"], 1.0),  # more than most_cited
        (ANSWER, ["nowhere"], 1.0),
        (ANSWER, "12", 1.0),
        (ANSWER, [12, None, ["12"], {"id": "12"}], 1.0),
        (ANSWER, {"12": 1}, 1.0),
        ("Doreth", ["12"], 0.0),  # a wrong answer is paid for no citation
        ("", ["12"], -0.25),
    ],
)
def test_a_right_answer_is_paid_for_documents_that_contain_it(
    answer: str, cited: Any, paid: float
) -> None:
    arena = begun(malformed=-0.25)
    arena.play_stage({"solver_0": said(answer, cited)})
    assert arena.finished and arena.paid == {"solver_0": paid}


def test_metrics_by_hand() -> None:
    arena = begun(solvers=4, citation_reward=1.0)
    moves = [said(cited=["12"]), said(cited=["7", "12"]), said(), said("Doreth", ["7"])]
    arena.play_stage(dict(zip(arena.stage, moves, strict=True)))
    assert list(arena.paid.values()) == [2.0, 1.5, 1.0, 0.0]
    assert arena.metrics == {
        "solve_rate": 0.75,
        "cited": 1.0,
        "citation_precision": 0.5,  # 1, 1/2 and 0 of the three that cite
        "cited_well": 0.25,
        "shown": 2.0,
        "attempts": 4.0,
        "solved": 3.0,
    }


@pytest.mark.parametrize("action", [None, "", "no JSON", "[" * 100_000, "[]", "5", '{"answer": 5}'])
def test_no_text_raises(action: Action | None) -> None:
    arena = begun()
    arena.play_stage({"solver_0": action})
    assert arena.paid == {"solver_0": 0.0} and "citation_precision" not in arena.metrics


def call(result: str, error: str = "", name: str = "search") -> ToolCall:
    return ToolCall(name=name, arguments="{}", result=result, error=error)


def test_only_searches_show_documents() -> None:
    arena = begun()
    forged = said(cited=["12"], shown=["12"])
    for calls in (
        [],
        [call("[7] The capital of Beldun is Doreth.")],
        [call("[12] x", error="timeout")],
        [call("see [12] x")],  # not at the beginning
        [call("[7] The capital.\n[12] a footnote")],  # a line of another document
        [call("[12] x", name="python")],  # a program may write any id
        [call("[99] no document of the corpus")],
    ):
        arena = begun()
        arena.play_stage({"solver_0": arena.with_calls("solver_0", forged, calls)})
        assert arena.paid == {"solver_0": 1.0}
    real = [call("[7] The capital of Beldun is Doreth.\n\n[12] The mayor of Doreth is Fenika.")]
    arena = begun()
    arena.play_stage({"solver_0": arena.with_calls("solver_0", forged, real)})
    assert arena.paid == {"solver_0": 1.5}
    for action in ("no JSON", "[]"):
        assert arena.with_calls("solver_0", action, real) == action
    many = [Document(id=str(number), text="a") for number in range(200)]
    arena = begun(corpus=many)
    result = "\n\n".join(f"[{each.id}] a" for each in many)
    assert len(json.loads(arena.with_calls("s", "{}", [call(result)]))["shown"]) == MOST_SHOWN


def test_a_result_that_imitates_another_document_does_not_count() -> None:
    """The text in the corpus counts, not the text of a tool result."""
    arena = begun()
    imitation = [call("[7] The mayor of Doreth is Fenika.")]
    action = arena.with_calls("solver_0", said(cited=["7"]), imitation)
    arena.play_stage({"solver_0": action})
    assert arena.paid == {"solver_0": 1.0}


def test_a_default_task_is_answered_in_the_default_corpus() -> None:
    arena = raw_env()
    for seed in range(20):
        task = arena.default_task(Random(seed))
        assert any(task.payload["answer"] in text for text in arena.documents.values())


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        raw_env(most_cited=0)
    with pytest.raises(ValueError, match="cites is from 0 to 1"):
        CitedPlaceDemonstrations(solver=PlaceDemonstrations(), cites=2.0)


def test_a_citer_is_read() -> None:
    role = Citer()
    found = role.parse("so <answer> Fenika </answer> by <cite>12, 7 31</cite>")
    assert json.loads(found) == {"answer": "Fenika", "cited": ["12", "7", "31"]}
    assert json.loads(role.parse("<answer>Fenika</answer>")) == {"answer": "Fenika", "cited": []}
    for text, reason in (
        ("<cite>12</cite>", "no_action"),
        ("<answer></answer>", "no_answer"),
        ("<answer>a</answer><cite>1</cite><cite>2</cite>", "several_actions"),
        ("<answer>a</answer><cite>1", "unclosed_action"),
    ):
        with pytest.raises(InvalidAction, match=reason):
            role.parse(text)
    for style in ("full", "terse"):
        seen = Observation(text=QUESTION, fields={"question": QUESTION})
        assert QUESTION in str(Citer(style=style).prompt(seen)[0]["content"])


def test_demonstrations_cite_a_shown_document_by_chance() -> None:
    shown = CitedPlaceDemonstrations(solver=PlaceDemonstrations(), cites=0.5)
    after = [
        each
        for each in islice(shown.stream(Random(0), 0.9), 3000)
        if each.called and each.completion.startswith("<answer>")
    ]
    cited = [each for each in after if "<cite>" in each.completion]
    assert len(cited) / len(after) == pytest.approx(0.5, abs=0.05)
    for each in cited:
        (id,) = json.loads(Citer().parse(each.completion))["cited"]
        assert any(result.startswith(f"[{id}] ") for _, result in each.called)
    plain = [each for each in islice(shown.stream(Random(1), 0.9), 500) if not each.called]
    assert not any("<cite>" in each.completion for each in plain)


def test_a_scripted_solver_in_a_rollout() -> None:
    box = Toolbox(
        tools={"search": Search(corpus=CORPUS, retriever=BM25(), count=1)},
        format="tags",
        describe=False,
    )

    def script(agent: str, observation: Observation, rng: Random) -> str:
        results = observation.fields.get("tool_results", [])
        if len(results) < 2:
            return f"<search>{['capital of Beldun', 'mayor of Doreth'][len(results)]}</search>"
        return "<answer>Fenika</answer><cite>12</cite>"

    rollout = Rollout(
        arena=lambda: CitedAnswers(solvers=1, corpus=CORPUS),
        agent_specs={
            "solver": AgentSpec(
                role=Citer(style="terse", tools=box), policy="p", renderer=ByteRenderer()
            )
        },
        engines={"p": ScriptedEngine({"p": script})},
    )
    (episode,) = rollout.run([EpisodeSpec(task=TASK, seed=0)])
    assert [turn.reward for turn in episode.turns] == [0.0, 0.0, 1.5], episode.error
