"""Tests of `NumberArray`: it equals tuples, is exact, and takes few bytes in memory and pickles."""

import json
import math
import pickle
import struct
from typing import Any

import numpy as np
import pytest

from selfplay.number_array import NumberArray
from selfplay.run.json_lines import JsonLines
from selfplay.types import Episode, Status, Task, Turn, from_json, to_json


def single(value: float) -> float:
    """Return the value rounded to 32 bits, like the log-probabilities of an engine."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


INTEGERS = [
    ((), 1),
    ((0, 1, 255), 1),
    ((256, 3), 2),
    ((65_535,), 2),
    ((65_536,), 4),
    ((-1, 2), 4),
    ((2**31,), 8),
    ((-(2**63), 2**63 - 1), 8),
]


@pytest.mark.parametrize(("values", "width"), INTEGERS)
def test_integers_are_exact_in_the_fewest_bytes(values: tuple[int, ...], width: int) -> None:
    made = NumberArray.of(values, "integers")
    assert made == values and values == made and hash(made) == hash(values)
    assert list(made) == made.tolist() == list(values) and repr(made) == repr(values)
    assert len(made.data[1]) == width * len(values)
    assert np.asarray(made).tolist() == list(values)
    assert np.asarray(made, dtype=np.float32).tolist() == [np.float32(v) for v in values]


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ((0.5, -2.0, -math.inf), 4),
        ((single(-0.1), single(-7.3)), 4),
        ((-0.1,), 8),
        ((1e300, 0.5), 8),
        ((0, -1), 4),
    ],
)
def test_floats_are_exact_too(values: tuple[float, ...], width: int) -> None:
    made = NumberArray.of(values, "floats")
    assert made == tuple(map(float, values)) and all(isinstance(v, float) for v in made)
    assert len(made.data[1]) == width * len(values)


def test_wrong_values_and_assignments_are_refused() -> None:
    with pytest.raises(TypeError):
        NumberArray.of((1.5,), "integers")
    with pytest.raises(TypeError):
        NumberArray.of(("1",), "integers")
    with pytest.raises(ValueError, match="64 bits"):
        NumberArray.of((2**64,), "integers")
    with pytest.raises((AttributeError, TypeError)):
        NumberArray.of((1,), "integers")[0] = 2  # type: ignore[index]


def test_slices_share_the_bytes_and_behave_like_slices_of_tuples() -> None:
    values = tuple(range(1000, 1020))
    made = NumberArray.of(values, "integers")
    for cut in (slice(3), slice(2, 9), slice(-4, None), slice(9, 2), slice(None, None, -2)):
        assert made[cut] == values[cut]
        assert np.asarray(made[cut]).tolist() == list(values[cut])
    assert made[3:][2:5][0] == values[5] and made[-1] == values[-1]
    assert made[2:9].data[1] is made.data[1]
    with pytest.raises(IndexError):
        made[20]
    seven = (7,)
    assert made[:2] + seven == (1000, 1001, 7) and seven + made[:1] == (7, 1000)
    part = NumberArray.of(values[2:6], "integers").within(made, 2)
    assert part == values[2:6] and part.data[1] is made.data[1]
    assert made.within(made[:4]) is None and made[:2].within(made, 1) is None
    assert NumberArray.of((7, 8), "integers").within(made) is None


def turn(prompt: Any, completion: Any, logprobs: Any) -> Turn:
    return Turn(
        agent="a_0",
        role="a",
        policy="p",
        version=0,
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=logprobs,
        loss_mask=(1,) * len(completion),
        text="\N{SNOWMAN} \U0001f600 \x7f",
    )


def episode(*turns: Turn, **info: Any) -> Episode:
    return Episode(
        arena="x", task=Task(id="t", payload=info), seed=0, turns=turns, status=Status.FINISHED
    )


@pytest.mark.parametrize("words", ["plain", "\ud800 half a pair", "\u2028 line"])
def test_a_line_has_the_data_of_to_json_in_ascii(words: str) -> None:
    made = episode(
        turn((1, 300), (5,), (float("-inf"),)), turn([2], [70_000, 1], [-0.1, 0]), w=words
    )
    line = JsonLines().line({"episode": made, "member": 3, "advantages": [None, [0.5, math.inf]]})
    assert line.isascii() and "\n" not in line
    found = json.loads(line)
    assert found == {
        "episode": to_json(made), "member": 3, "advantages": [None, [0.5, math.inf]],
    }  # fmt: skip
    assert from_json(Episode, found["episode"]) == made
    assert isinstance(from_json(Episode, found["episode"]).turns[1].prompt_ids, NumberArray)


def test_json_lines_of_turns_that_share_numbers_are_complete() -> None:
    ids = NumberArray.of(range(1000, 1010), "integers")
    written = JsonLines()
    for stops in ([3, 5, 5, 9], [9, 2, 4], [0, 10], [10]):
        turns = [turn(ids[:stop], ids[stop:], [0.5] * (10 - stop)) for stop in stops]
        assert json.loads(written.line([*turns])) == [to_json(each) for each in turns]
    turns = [
        turn(ids[2:4], (1,), (0.0,)),
        turn(ids[2:7], (), ()),
        turn((), (1,), (0.0,)),
        turn((1,), (), ()),
    ]
    assert json.loads(written.line([*turns])) == [to_json(each) for each in turns]


@pytest.mark.parametrize("ids", [[1.5], ["x"], [2**64], None, [None], "12"])
def test_a_record_with_wrong_token_ids_is_refused(ids: Any) -> None:
    data = to_json(episode(turn((1,), (2,), (0.0,))))
    data["turns"][0]["prompt_ids"] = ids
    with pytest.raises(ValueError, match=r"prompt_ids|integer|list"):
        from_json(Episode, data)


def test_prompts_that_are_shared_are_pickled_once() -> None:
    ids = NumberArray.of(range(1000, 5000), "integers")
    shared = pickle.dumps([turn(ids[: 200 * n], (1,), (0.0,)) for n in range(1, 20)], protocol=5)
    assert len(shared) < 2 * len(ids.data[1])
    back = pickle.loads(shared)
    assert back[5].prompt_ids == tuple(range(1000, 2200))
    assert len({id(each.prompt_ids.data[1]) for each in back}) == 1


def test_a_pickled_turn_takes_about_half_the_bytes_of_tuples() -> None:
    """Pickled tuples take 3 bytes for each of these token ids, 9 for a float and 2 for a mask 1."""
    count = 1000
    ids, logprobs = range(1000, 1000 + count), [single(-0.01 * n) for n in range(count)]
    made = turn(tuple(ids), tuple(ids), tuple(logprobs))
    size = len(pickle.dumps(made, protocol=5))
    assert size < (2 + 2 + 4 + 1) * count + 700
    assert size < len(pickle.dumps((tuple(ids), tuple(ids), tuple(logprobs), (1,) * count))) / 1.8


@pytest.mark.parametrize("count", [0, 1, 1000, 2**16, 2**16 + 1])
def test_ones_are_shared_and_pickled_as_their_count(count: int) -> None:
    """The loss mask of most turns is an array of ones; up to 2**16 ones share their bytes."""
    made = NumberArray.ones(count)
    back = pickle.loads(pickle.dumps(made, protocol=5))
    assert made == back == (1,) * count == made[:] and made.all_ones == back.all_ones == (count > 0)
    if count > 1:
        part = pickle.loads(pickle.dumps(made[1:], protocol=5))
        assert part == (1,) * (count - 1)
    if count <= 2**16:
        assert len(pickle.dumps(made, protocol=5)) < 100
        assert made.data[1] is back.data[1] is NumberArray.ones(5).data[1]


def test_ones_of_another_type_are_pickled_in_full() -> None:
    for values in ((1.0, 1.0), (1, 1, 2**40)):
        made = NumberArray.of(values, "floats" if isinstance(values[0], float) else "integers")
        back = pickle.loads(pickle.dumps(made, protocol=5))
        assert back == values and back.data == made.data
