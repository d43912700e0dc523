"""Tests of questions about passages and of the demonstrations of debates about them."""

import re
from collections import Counter
from itertools import islice
from random import Random

import pytest

from arenas.debate.demonstrations import ALL, DebateDemonstrations, weigh
from arenas.debate.judged_demonstrations import JudgedDemonstrations
from arenas.debate.passages import Passages, is_held_out, passages, questions
from roles.debater import Debater
from selfplay.models.tiny import build_tokenizer
from selfplay.types import Demonstration

KNOWN = Passages(
    question="1aaB2ccG3ddA4eeH -> G",
    paths={"1a": "aB", "2c": "cG", "3d": "dA", "4e": "eH"},
    goal="G",
)


def shown(progress: float, count: int, **settings: float) -> list[Demonstration]:
    source = DebateDemonstrations(**settings)  # type: ignore[arg-type]
    return list(islice(source.stream(Random(0), progress), count))


def test_a_question_has_one_answer_that_follows_from_its_steps() -> None:
    rng = Random(1)
    for _ in range(200):
        drawn = passages(rng, doors=5)
        steps, goal = drawn.question.split(" -> ")
        onward = {step[0]: step[1] for step in re.findall("..", steps)}
        doors = [door for door in "12345" if onward[onward[door]] == goal]
        assert doors == [drawn.answer[0]] and len(onward) == 10
        assert drawn.followed(drawn.answer).endswith(goal + " yes")
        assert all(
            drawn.followed(first).endswith("no") for first in set(drawn.paths) - {drawn.answer}
        )
    assert KNOWN.answer == "2c" and KNOWN.followed("3d") == "3ddA no"


def test_splits_share_no_question_and_wrong_answers_are_wrong() -> None:
    train, held_out = (questions(count=300, split=split, seed=3) for split in ("train", "held_out"))
    texts = [{task.payload["question"] for task in tasks} for tasks in (train, held_out)]
    assert [len(found) for found in texts] == [300, 300] and not texts[0] & texts[1]
    assert all(map(is_held_out, texts[1])) and not any(map(is_held_out, texts[0]))
    for task in train:
        wrong, answer = task.payload["wrong"], task.payload["answer"]
        assert wrong != answer and wrong in task.payload["question"]
    assert train == questions(count=300, seed=3) != questions(count=300, seed=4)
    places = Counter(task.payload["answer"][0] for task in train)
    assert min(places.values()) > 40, "every door is the answer to some question"
    for count, doors in ((0, 4), (1, 1), (1, 9)):
        with pytest.raises(ValueError, match=r"count|doors"):
            questions(count=count, doors=doors)


def test_no_demonstration_is_about_a_held_out_question() -> None:
    for progress in (0.0, 1.0):
        for demonstration in shown(progress, 500):
            assert not is_held_out(demonstration.observation.fields["question"].removeprefix(ALL))


def test_every_demonstration_is_read_by_the_role_and_fits_the_limit() -> None:
    role, source = Debater(style="terse"), DebateDemonstrations()
    tokenizer = build_tokenizer(source.pieces())
    for demonstration in islice(source.stream(Random(2), 1.0), 300):
        role.parse(demonstration.completion)
        (message,) = role.prompt(demonstration.observation)
        for entry in demonstration.observation.fields["others"]:
            assert entry["answer"] in message["content"]
        # The experiment's token limit assumes one passage and its end token.
        assert len(tokenizer(demonstration.completion)["input_ids"]) + 1 <= 7


def test_answers_are_weighed_by_their_arguments() -> None:
    rng = Random(0)
    untested = {"answer": "1a", "argument": ""}
    missed = {"answer": "4e", "argument": "1aaB no"}
    found = {"answer": "2c", "argument": "2ccG yes"}
    assert weigh(KNOWN, rng, [untested, missed, found]) == found
    new = [weigh(KNOWN, rng, [untested, missed, missed]) for _ in range(200)]
    assert {entry["argument"][:2] for entry in new} == {"2c", "3d", "4e"}, (
        "all doors except the one that was tried"
    )
    assert all(
        (entry["answer"] == "2c") == (entry["argument"] == "2ccG yes")
        or entry["argument"] != "2ccG yes"
        for entry in new
    )
    last = {"answer": "2c", "argument": "4eeH no"}
    others = [missed, {"answer": "3d", "argument": "3ddA no"}]
    assert weigh(KNOWN, rng, [last, *others]) == found, "with three doors excluded, one is left"


def test_practice_may_be_left_out() -> None:
    stream = DebateDemonstrations(practice_until=0.0).stream(Random(0), 0.0)
    assert len(list(islice(stream, 100))) == 100


def test_a_debate_of_one_round_has_no_demonstrations_of_later_rounds() -> None:
    demonstrations = shown(1.0, 100, rounds=1)
    assert {d.observation.fields["round"] for d in demonstrations} == {1}


def test_sides_lie_seldom_and_a_judge_that_checked_is_right() -> None:
    demonstrations = list(islice(JudgedDemonstrations().stream(Random(0), 1.0), 4000))
    lies, checks = Counter[bool](), Counter[bool]()
    for demonstration in demonstrations:
        fields, said = demonstration.observation.fields, demonstration.completion
        question = fields["question"]
        assert not is_held_out(question)
        steps, goal = question.split(" -> ")
        if demonstration.role == "debater":
            assert said.startswith(fields["answers"][fields["side"]])
            if said[2:4] not in re.findall("..", steps) or " yes" in said:
                lies[said[2:4] not in re.findall("..", steps)] += 1
                assert said.endswith(goal + " yes")
        else:
            checked = said != f"<think></think><answer>{said[-10]}</answer>"
            checks[checked] += 1
            if checked:
                assert said[7:9] == fields["answers"]["A"]
                assert (said[-10] == "A") == ("yes" in said)
    # Half of the arguments are for a wrong answer, and one in five of those is a lie.
    assert lies[True] / (lies[True] + lies[False]) == pytest.approx(0.1 / 0.6, abs=0.05)
    assert checks[True] / checks.total() == pytest.approx(0.2, abs=0.04)


def test_the_habits_of_the_last_part_are_weak_and_those_of_practice_are_not() -> None:
    for progress, followed, weighed in ((0.5, 0.9, 0.9), (1.0, 0.5, 0.1)):
        counts: Counter[str] = Counter()
        for demonstration in shown(progress, 4000):
            fields = demonstration.observation.fields
            worked = not demonstration.completion.startswith("<answer>")
            counts[f"{fields['round']} {worked}"] += 1
            if fields["round"] == 2 and not worked:
                habit = {fields["own"]["answer"], fields["others"][0]["answer"]}
                assert demonstration.completion in {f"<answer>{a}</answer>" for a in habit}
        for turn, fraction in ((1, followed), (2, weighed)):
            total = counts[f"{turn} True"] + counts[f"{turn} False"]
            error = 4 * (fraction * (1 - fraction) / total) ** 0.5
            assert counts[f"{turn} True"] / total == pytest.approx(fraction, abs=error)
