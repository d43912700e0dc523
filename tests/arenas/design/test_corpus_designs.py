"""Tests of designs of paths through the corpus: allowed designs, and plays with known answers."""

import json
from random import Random
from typing import Any

import pytest
from pettingzoo.test import api_test

from arenas.design.arena import DesignedGames
from arenas.design.corpus_designs import CorpusDesigns
from arenas.design.space import RefusedDesign, play_task, read_design
from arenas.questions.places import corpus, place_questions, sentence
from selfplay.types import Task

SPACE = CorpusDesigns(regions_count=10)
PATH = {"path": ["capital", "mayor"]}


def test_a_written_design_is_read_back_unchanged() -> None:
    drawn = [SPACE.draw(Random(seed)) for seed in range(300)]
    for each in drawn:
        assert read_design(SPACE, SPACE.written(each), longest=200) == each
    # Each kind has two relations: 6, 12 and 24 paths of one, two and three relations.
    assert len({tuple(each["path"]) for each in drawn}) == 42
    assert '"mayor" to a person' in SPACE.describe() and "1 to 3 relations" in SPACE.describe()


@pytest.mark.parametrize(
    ("design", "reason"),
    [
        ({"path": []}, "wrong_shape"),
        ({"path": "mayor"}, "wrong_shape"),
        ({"path": ["mayor"] * 4}, "wrong_shape"),
        ({"path": ["os.system"]}, "unknown_relation"),
        ({"path": [["mayor"]]}, "unknown_relation"),
        ({"path": ["mayor", "capital"]}, "no_way"),
        ({"path": ["mayor"], "seed": 1}, "unknown_key"),
        ({}, "missing_key"),
    ],
)
def test_a_wrong_design_is_refused_with_its_reason(design: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusedDesign, match=reason):
        SPACE.read(design)


def test_questions_follow_the_path_in_the_corpus_and_are_not_held_out() -> None:
    texts = " ".join(document.text for document in corpus(regions_count=10))
    held_out = place_questions(count=20, hops=[2], split="held_out", regions_count=10)
    asked = {SPACE.game_task(PATH, Random(seed)).payload["question"] for seed in range(60)}
    assert len(asked) == 8, "one capital with its mayor in each region of the train split"
    assert not asked & {task.payload["question"] for task in held_out}
    task = SPACE.game_task(PATH, Random(0))
    question, answer = task.payload["question"], task.payload["answer"]
    country = question.removeprefix("the mayor of the capital of ")
    names = texts.replace(".", "").split()
    (city,) = {name for name in names if sentence(f"capital of {country}", name) in texts}
    assert sentence(f"mayor of {city}", answer) in texts and task.type == "hops_2"


def test_solvers_answer_questions_of_their_own() -> None:
    arena = DesignedGames(space=SPACE, plays=4)
    arena.begin(Task(id="d", type="corpus", payload={"mode": "propose"}), 0)
    arena.play_stage({"designer_0": json.dumps(PATH)})
    assert arena.possible_agents[1:] == [f"solver_{number}" for number in range(4)]
    right = [str(game.task.payload["answer"]) for game in arena.games]
    answers = [right[0], right[1], "nowhere", "nowhere"]
    moves = [json.dumps({"answer": answer, "argument": ""}) for answer in answers]
    arena.play_stage({f"solver_{place}": move for place, move in enumerate(moves)})
    assert [arena.paid[f"solver_{place}"] for place in range(4)] == [1, 1, 0, 0]
    assert arena.metrics["score"] == 0.5 and arena.paid["designer_0"] == 1.0
    assert arena.created == [play_task(SPACE, PATH)] and arena.created[0].type == "corpus"


def test_pettingzoo_conformance() -> None:
    api_test(DesignedGames(space=SPACE, plays=2), num_cycles=20)
    api_test(DesignedGames(space=SPACE, plays=2, designers=0), num_cycles=40)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="longest"):
        CorpusDesigns(longest=4)
