"""Tests of the order of the requests that wait for a place in a batch."""

from selfplay.engines.request_queue import RequestQueue
from selfplay.types import Request


def request(number: int, turns_taken: int = 0) -> Request:
    return Request(
        id=number, policy="p", prompt_ids=(1,), seed=0, max_tokens=1, turns_taken=turns_taken
    )


def test_most_turns_come_first_and_then_the_earlier_request() -> None:
    queue = RequestQueue()
    for number, turns in enumerate((0, 2, 0, 1, 2)):
        queue.add(request(number, turns))
    assert sorted(queue.ids()) == [*range(5)] and len(queue) == 5
    assert queue.first().id == 1
    assert [queue.pop().id for _ in range(5)] == [1, 4, 3, 0, 2]
    assert not queue


def test_a_request_that_is_added_again_gets_its_place_back() -> None:
    queue = RequestQueue()
    for number in range(3):
        queue.add(request(number))
    taken = queue.pop()
    queue.add(request(3))
    queue.add(taken)
    assert [queue.pop().id for _ in range(4)] == [0, 1, 2, 3]
