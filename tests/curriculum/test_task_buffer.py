"""Tests of the task buffer: tasks are unique, ids are kept, and draws are uniform."""

import json
from collections import Counter
from random import Random

import pytest

from selfplay.curriculum.task_buffer import TaskBuffer
from selfplay.types import Task


def task(number: int, kind: str = "deduction") -> Task:
    return Task(id=f"{kind}-{number}", type=kind, payload={"program": f"lambda: {number}"})


def filled(count: int, capacity: int = 16_384) -> TaskBuffer:
    buffer = TaskBuffer(capacity=capacity)
    for number in range(count):
        assert buffer.add(task(number), step=number)
    return buffer


def test_a_task_enters_once() -> None:
    buffer = filled(2)
    assert not buffer.add(task(1), step=9, author="else@1")
    assert (buffer.size, buffer.count("deduction"), buffer.count("abduction")) == (2, 2, 0)
    assert buffer.entries["deduction"][1].author == "seed"


def test_known_does_not_depend_on_later_tasks() -> None:
    buffer = filled(3, capacity=2)

    def answers() -> list[bool]:
        return [buffer.known(f"deduction-{n}", before) for n in range(3) for before in range(4)]

    wanted = [n < before for n in range(3) for before in range(4)]
    assert answers() == wanted
    for number in range(3, 20):
        buffer.add(task(number), step=number)
        buffer.add(task(0), step=number)
    assert answers() == wanted
    assert not buffer.known("nothing", 1000)


def test_the_oldest_of_a_type_are_removed_and_their_ids_kept() -> None:
    buffer = filled(5, capacity=3)
    buffer.add(task(0, "abduction"), step=5)
    assert [entry.number for entry in buffer.entries["deduction"]] == [2, 3, 4]
    assert buffer.count("abduction") == 1
    assert not buffer.add(task(0), step=6)
    with pytest.raises(ValueError, match="capacity"):
        TaskBuffer(capacity=0)


def test_draws_are_uniform_over_the_types_asked_for() -> None:
    buffer = filled(12)
    for number in range(8):
        buffer.add(task(number, "abduction"), step=0)
    buffer.add(task(0, "induction"), step=0)
    rng, draws, size = Random(0), 4000, 3
    counts: Counter[str] = Counter()
    for _ in range(draws):
        drawn = buffer.sample(["deduction", "abduction"], size, rng)
        assert len({entry.number for entry in drawn}) == size
        counts.update(entry.task.id for entry in drawn)
    expected = draws * size / 20
    statistic = sum((counts[name] - expected) ** 2 / expected for name in counts)
    assert len(counts) == 20 and "induction-0" not in counts
    # The limit is the 99.9 % quantile of chi-square with 19 degrees of freedom. Draws without
    # replacement vary less.
    assert statistic < 43.8


def test_at_most_the_existing_entries_are_drawn() -> None:
    buffer = filled(2)
    assert len(buffer.sample(["deduction"], 5, Random(0))) == 2
    assert buffer.sample(["abduction"], 5, Random(0)) == []
    assert buffer.sample(["deduction"], 0, Random(0)) == []


@pytest.mark.parametrize(
    ("band", "drawn"), [((0.0, 0.5), 1), ((0.5, 1.0), 1), ((0.0, 0.4), 0), ((0.6, 1.0), 0)]
)
def test_both_ends_of_a_band_belong_to_it(band: tuple[float, float], drawn: int) -> None:
    buffer = filled(1)
    buffer.record(task(0), attempts=2, solved=1)
    assert len(buffer.sample(["deduction"], 1, Random(0), band=band)) == drawn


def test_attempts_are_recorded_with_the_task() -> None:
    buffer = filled(4, capacity=2)
    buffer.record(task(2), attempts=8, solved=3)
    buffer.record(task(2), attempts=8, solved=8)
    for gone in (task(0), task(99)):
        buffer.record(gone, attempts=8, solved=8)
    found = {entry.task.id: (entry.attempts, entry.solved) for entry in buffer.entries["deduction"]}
    assert found == {"deduction-2": (16, 11), "deduction-3": (0, 0)}


def test_the_origin_of_a_task_is_kept() -> None:
    buffer = filled(2)
    buffer.add(task(2), step=7, author="base@3", parents=[0, 1])
    entry = buffer.entries["deduction"][-1]
    assert (entry.number, entry.step, entry.author, entry.parents) == (2, 7, "base@3", (0, 1))


def test_the_state_survives_json_and_continues_identically() -> None:
    buffer = filled(6, capacity=4)
    buffer.add(
        Task(id="odd", type="deduction", payload={"text": "\ud800 \x00 é", "n": 10**30}), step=1
    )
    buffer.record(task(4), attempts=8, solved=1)
    state = buffer.state_dict()
    text = json.dumps(state)
    twin = TaskBuffer(capacity=4)
    held = twin.entries
    twin.load_state_dict(json.loads(text))
    assert (twin.size, twin.first_seen, twin.entries) == (
        buffer.size,
        buffer.first_seen,
        buffer.entries,
    )
    assert held == {} and json.dumps(twin.state_dict()) == text
    for one in (buffer, twin):
        one.add(task(50), step=8)
    draws = [one.sample(["deduction"], 3, Random(4)) for one in (buffer, twin)]
    assert draws[0] == draws[1]
    assert json.dumps(state) == text, "the state is a copy, not the buffer's own tables"
