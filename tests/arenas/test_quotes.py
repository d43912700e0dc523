"""Words of one agent cannot imitate the lines of another agent's prompt."""

import json

import pytest

from arenas.collaboration.delegation import Delegation
from arenas.collaboration.sum_parts import sum_parts
from arenas.debate.arena import Debate
from arenas.games.matrix import raw_env as matrix
from arenas.memory.arena import Memory
from arenas.memory.retrieval import BM25
from arenas.questions.attacked import AttackedAnswers
from arenas.questions.judged import JudgedQuestions
from arenas.quotes import in_one_line, quoted
from roles.answer_agent import AnswerAgent
from roles.debater import Debater
from roles.judge import Judge
from roles.planner import Planner
from roles.tagged import Tagged
from selfplay import Arena, Role, Task

FORGED = "forged line"
TASK = Task(id="q", payload={"question": "3 + 4", "answer": "7", "wrong": "8"})
SAID = json.dumps({"answer": f"8\n{FORGED}", "argument": f"so\u2028{FORGED}\n\n{FORGED}"})


def lines(arena: Arena, agent: str, role: Role) -> list[str]:
    """Return the lines of an agent's prompt."""
    return [
        line
        for message in role.prompt(arena.view(agent))
        for line in str(message["content"]).splitlines()
    ]


def test_a_quote_keeps_one_line_and_marks_further_ones() -> None:
    assert quoted("") == "" and quoted("one line") == "one line"
    assert quoted("a\nb\r\n\nc\u2028d") == "a\n> b\n> \n> c\n> d"
    assert in_one_line(" a\n\n b\tc\ud800 ") == "a b c\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("judged", [False, True])
def test_a_debater_cannot_invent_another_debater(judged: bool) -> None:
    arena = Debate(debaters=2, rounds=1 if judged else 2, aggregate="judge")
    arena.begin(TASK, 0)
    arena.play_stage({"debater_0": json.dumps({"answer": "7"}), "debater_1": SAID})
    seen = (
        lines(arena, "judge_0", Judge(game="judge"))
        if judged
        else lines(arena, "debater_0", Debater(game="debater"))
    )
    assert FORGED not in seen and seen.count(f"> {FORGED}") == 3


def test_a_solver_cannot_write_what_a_judge_reads_after_its_answer() -> None:
    arena = JudgedQuestions(proposers=0, solvers=1)
    arena.begin(TASK, 0)
    arena.play_stage({"solver_0": SAID})
    seen = lines(arena, "judge_1", Tagged(game="grader"))
    assert FORGED not in seen and seen.count(f"> {FORGED}") == 3


def test_a_challenge_is_one_line() -> None:
    arena = AttackedAnswers(challenge_length=30)
    arena.begin(TASK, 0)
    arena.play_stage({"solver_0": json.dumps({"answer": "7"})})
    arena.play_stage({"adversary_0": f" no\n\n{FORGED}{'!' * 40}"})
    seen = lines(arena, "solver_0", Debater(game="attacked"))
    assert any(line.endswith(f"no {FORGED}{'!' * 16}") for line in seen)


def test_a_worker_cannot_invent_another_answer() -> None:
    arena = Delegation()
    arena.begin(sum_parts(count=1)[0], 0)
    arena.play_stage({"planner_0": json.dumps({"calls": ["a", "b"]})})
    arena.play_stage({"worker_0": f"1\n{FORGED}", "worker_1": "2"})
    seen = lines(arena, "planner_0", Planner())
    assert FORGED not in seen and f"> {FORGED}" in seen


def test_a_memory_is_one_line() -> None:
    arena = Memory(retriever=BM25(), answer_agents=1)
    facts = [{"text": "Ann moved to Rome.", "speaker": "Ann"}]
    questions = [{"question": "Where does Ann live?", "answer": "Rome"}]
    arena.begin(Task(id="m", payload={"facts": facts, "questions": questions}), 0)
    text = f"Ann moved.\n[7] {FORGED}\n\n{FORGED}"
    arena.play_stage({"memory_manager_0": json.dumps({"event": "ADD", "text": text})})
    (entry,) = arena.bank.entries.values()
    assert entry.text == f"Ann moved. [7] {FORGED} {FORGED}"
    seen = lines(arena, "answer_agent_0", AnswerAgent())
    assert FORGED not in seen and f"[7] {FORGED}" not in seen


def test_different_messages_give_different_observations() -> None:
    seen = set()
    for talks in (("ok cooperate/cooperate heard ok",), ("ok", "ok"), ('ok" "ok',)):
        arena = matrix(rounds=3, speakers=[0])
        arena.begin(Task(id="g"), 0)
        moves = ["cooperate", "defect"][-len(talks) :]
        for message, move in zip(talks, moves, strict=True):
            arena.play_stage({"player_0": message})
            arena.play_stage({"player_0": move, "player_1": "cooperate"})
        seen.add(arena.view("player_1").text)
        assert all('"' not in entry["heard"] for entry in arena.view("player_1").fields["history"])
    assert len(seen) == 3
