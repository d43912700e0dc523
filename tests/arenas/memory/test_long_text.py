"""Tests of long text: the memory by hand, hostile memories, and texts with known answers."""

import json
import pickle
import re
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pettingzoo
import pytest
from pettingzoo.test import api_test, seed_test

from arenas.memory.colours import (
    COLOURS,
    NOTHING,
    ColourDemonstrations,
    colour_texts,
    is_held_out,
)
from arenas.memory.long_text import READER, LongText, env, raw_env
from arenas.memory.text_files import parts_of, read
from roles.player import Player
from selfplay.errors import ConfigError
from selfplay.types import Demonstration, Task

TEXT = Task(
    id="t",
    payload={
        "question": "Ada?",
        "parts": ["Ada's house is red.", "Ben's house is blue.", "Ada's house is gold."],
        "answer": "gold",
    },
)
NOISE = "".join(map(chr, Random(0).choices(range(0x110000), k=5_000)))
STATEMENT = re.compile(r"(\w+)'s house is (\w+)\.")


def begun(task: Task = TEXT, **settings: Any) -> LongText:
    arena = raw_env(**settings)
    arena.begin(task, seed=0)
    return arena


def play(arena: LongText, *moves: str | None) -> None:
    for move in moves:
        arena.play_stage({READER: move})


def test_pettingzoo_conformance() -> None:
    api_test(raw_env(), num_cycles=40)
    api_test(env(), num_cycles=40)
    seed_test(raw_env, num_cycles=10)
    made: Any = pettingzoo.make("aec", "selfplay/long_text_v0")
    made.reset(seed=1)
    assert made.agents == [READER]


def test_only_the_memory_is_left_of_a_part() -> None:
    arena = begun()
    assert arena.view(READER).text == "Ada? |  | Ada's house is red."
    play(arena, "red")
    assert arena.view(READER).text == "Ada? | red | Ben's house is blue."
    play(arena, "red so far")
    assert arena.view(READER).fields["memory"] == "red so far"
    play(arena, None)  # after an invalid action the memory stays
    assert (
        arena.view(READER).text == "Ada? | red so far" and arena.view(READER).fields["part"] == ""
    )
    play(arena, "Gold")
    assert arena.finished and arena.paid[READER] == 1.0
    assert arena.metrics == {"accuracy": 1.0, "memory": (3 + 10 + 10) / 3, "full": 0.0}


@pytest.mark.parametrize("answer", ["red", "", None, "gold or red", NOISE])
def test_a_wrong_answer_is_paid_nothing(answer: str | None) -> None:
    arena = begun()
    play(arena, "red", "red", "gold", answer)
    assert arena.finished and arena.paid[READER] == 0.0


def test_a_long_memory_is_cut() -> None:
    arena = begun(memory_length=5)
    play(arena, "red " * 1000, NOISE, "gold")
    assert arena.memory == "gold"
    play(arena, "gold")
    assert arena.metrics["full"] == 2 / 3 and arena.metrics["memory"] <= 5
    assert begun(memory_length=0).view(READER).fields["memory_length"] == 0


def test_forks_pickles_and_replays() -> None:
    arena = begun()
    play(arena, NOISE)
    twin, loaded = arena.fork(), pickle.loads(pickle.dumps(arena))
    loaded.verifier = arena.verifier
    for each in (arena, twin, loaded):
        assert isinstance(each, LongText)
        play(each, "x", "gold", "gold")
    assert arena.paid == twin.paid == loaded.paid == {READER: 1.0}
    arena.replay(list(arena.history))
    assert arena.finished and arena.paid == {READER: 1.0}


def test_wrong_settings_and_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="memory_length is at least 0"):
        raw_env(memory_length=-1)
    wrong: tuple[Any, ...] = (None, [], "text")
    for parts in wrong:
        with pytest.raises(ValueError, match="a list of one or more `parts`"):
            begun(Task(id="t", payload={"question": "?", "parts": parts}))


@pytest.mark.parametrize("style", ["full", "terse"])
def test_the_prompts_show_what_the_reader_may_see(style: str) -> None:
    role = Player(game="long_text", style=style)
    arena = begun()
    play(arena, "RED")
    words = str(role.prompt(arena.view(READER))[-1]["content"])
    assert "RED" in words and "Ben's house is blue." in words and "Ada?" in words
    assert "Ada's house" not in words
    play(arena, "RED", "GOLD")
    words = str(role.prompt(arena.view(READER))[-1]["content"])
    assert "GOLD" in words and "house" not in words


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_the_last_statement_is_the_answer(split: str) -> None:
    changed = 0
    for parts in (1, 4, 32):
        for task in colour_texts(count=100, parts=parts, split=split, seed=3):
            name = task.payload["question"].partition("'s")[0]
            found = [STATEMENT.findall(part) for part in task.payload["parts"]]
            assert len(found) == parts and all(len(part) == 3 for part in found)
            colours = [colour for part in found for who, colour in part if who == name]
            assert colours[-1] == task.payload["answer"] and len(colours) in (1, 2)
            assert is_held_out(name, colours[-1]) == (split == "held_out")
            changed += len(colours) == 2
    # At most about half of the texts with an earlier part change: 50 * (3/4 + 31/32) = 86.
    assert 60 < changed < 110


def test_texts_are_determined_by_the_seed() -> None:
    assert {each.id for each in colour_texts(count=5, seed=1)}.isdisjoint(
        each.id for each in colour_texts(count=5, seed=2)
    )
    assert colour_texts(count=5, seed=1) == colour_texts(count=5, seed=1)
    assert colour_texts(count=5, seed=1) != colour_texts(count=5, seed=2)
    for settings in ({"count": 0}, {"parts": 0}, {"statements": 0}, {"split": "test"}):
        with pytest.raises(ValueError, match="at least 1"):
            colour_texts(**{"count": 1, **settings})  # type: ignore[arg-type]


def shown(progress: float, **settings: Any) -> list[Demonstration]:
    return list(islice(ColourDemonstrations(**settings).stream(Random(0), progress), 2000))


def right(each: Demonstration) -> str | None:
    """Return what a careful reader says; None for a colour that nothing determines."""
    question, memory, *part = each.observation.text.split(" | ")
    if not part:
        return memory if memory in COLOURS else None
    return dict(STATEMENT.findall(part[0])).get(question.partition("'s")[0], memory or NOTHING)


def test_demonstrations_are_careful_at_first_and_careless_at_the_end() -> None:
    assert all(right(each) in (each.completion, None) for each in shown(0.0))
    late = shown(1.0, careful=0.5, answers=0.0)
    fraction = sum(right(each) == each.completion for each in late) / len(late)
    # A careless turn says one of four texts, of which one may be right.
    assert 0.5 < fraction < 0.75
    for each in shown(0.0):
        name = each.observation.text.partition("'s")[0]
        about = [pair for pair in STATEMENT.findall(each.observation.text) if pair[0] == name]
        _, memory, *_ = each.observation.text.split(" | ")
        pairs = [*about, (name, memory), (name, each.completion)]
        assert not any(is_held_out(*pair) for pair in pairs if pair[1] in COLOURS)
    pieces = ColourDemonstrations().pieces()
    assert len(set(pieces)) == len(pieces) and {*COLOURS} <= set(pieces)


def test_wrong_settings_of_demonstrations_are_refused() -> None:
    with pytest.raises(ValueError, match="are from 0 to 1"):
        ColourDemonstrations(careful=2.0)
    with pytest.raises(ValueError, match="statements is at least 1"):
        ColourDemonstrations(statements=0)


def test_a_text_is_cut_at_white_space() -> None:
    assert parts_of("one two three", 7) == ["one two", "three"]
    assert parts_of("  one\ntwo  ", 100) == ["one\ntwo"]
    assert parts_of("abcdefgh ij", 3) == ["abc", "def", "gh", "ij"]
    words = [str(number) for number in range(3000)]
    cut = parts_of(" ".join(words), 50)
    assert " ".join(cut).split() == words and max(map(len, cut)) <= 50


def test_texts_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    line = {"question": "Who?", "text": "Ada came. Ben went.", "answer": 7, "source": "x"}
    file.write_text(json.dumps(line) + "\n\n")
    (task,) = read(path=str(file), characters=10)
    assert task.payload == {"question": "Who?", "parts": ["Ada came.", "Ben went."], "answer": "7"}
    arena = begun(task)
    play(arena, "Ada", "Ada", "7")
    assert arena.paid[READER] == 1.0
    for text, said in (
        ("", "texts: .* is empty"),
        ("{", "line 1: not JSON"),
        ("[" * 100_000, "line 1: not JSON"),
        ("[]", "needs a JSON object"),
        ('{"question": "Who?", "text": " ", "answer": "x"}', "under 'text'"),
        ('{"question": "Who?", "text": "x"}', "'answer' must be"),
        ('{"question": "Who?", "text": "x", "answer": true}', "'answer' must be"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=said):
            read(path=str(file))
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read(path=str(file))
    with pytest.raises(ConfigError, match="cannot read"):
        read(path=str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="characters is at least 1"):
        read(path=str(file), characters=0)
