"""Tests of the number of copies of the learners' state and of the ranks of each copy."""

import pytest

from selfplay.learner.state_copies import Replicas, choose_copies

GB = 1e9
TWO = "2 copies of the learners' state, each sharded over 2 ranks"


@pytest.mark.parametrize(
    ("nodes", "replicas", "count", "note"),
    [
        ("aaaa", "auto", 1, ""),
        ("a", "auto", 1, ""),
        ("aabb", "auto", 2, f"{TWO} of one node"),
        ("abc", "auto", 3, "3 copies of the learners' state, each on one rank"),
        (
            "aaab",
            "auto",
            1,
            "1 copy of the learners' state, sharded over 4 ranks, because the nodes have unequal "
            "numbers of ranks (3, 1)",
        ),
        ("aabb", 1, 1, "1 copy of the learners' state, sharded over 4 ranks"),
        ("aaaa", 2, 2, TWO),
        ("aaab", 2, 2, f"{TWO}, not all of one node"),
    ],
)
def test_ranks_of_a_node_share_a_copy(
    nodes: str, replicas: Replicas, count: int, note: str
) -> None:
    found = choose_copies(list(nodes), replicas)
    assert found.count == count and found.order == list(range(len(nodes)))
    assert found.note == (f"runtime: {note}" if note else "")


@pytest.mark.parametrize("replicas", ["auto", 1, 2])
def test_ranks_of_a_node_follow_each_other(replicas: Replicas) -> None:
    assert choose_copies(list("babbaa"), replicas).order == [0, 2, 3, 1, 4, 5]


@pytest.mark.parametrize(
    ("state", "memory", "count"),
    [
        (16 * 7.6 * GB, 80 * GB, 2),  # 7B, all weights: 15 GB on each of 8 ranks
        (2 * 16 * 7.6 * GB, 80 * GB, 2),
        (16 * 32.8 * GB, 80 * GB, 1),  # 66 GB on each of 8 ranks, 33 GB on each of 16
        (16 * 32.8 * GB, None, 2),  # on CPUs the ranks of a node share its memory
    ],
)
def test_a_copy_per_node_must_leave_half_of_each_gpu(
    state: float, memory: float | None, count: int
) -> None:
    nodes = ["a"] * 8 + ["b"] * 8
    found = choose_copies(nodes, "auto", state=state, memory=memory)
    assert found.count == count
    if count == 1:
        assert found.note == (
            "runtime: 1 copy of the learners' state, sharded over 16 ranks: with one copy per "
            "node, a rank's part would have 65.6 GB, more than 50% of its GPU's 80.0 GB"
        )
    assert choose_copies(nodes, 2, state=state, memory=memory).count == 2
    alone = choose_copies(nodes[:8], "auto", state=state, memory=memory)
    assert (alone.count, alone.note) == (1, "")
