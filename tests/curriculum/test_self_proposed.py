"""Tests of the self-proposed curriculum: requests, the buffer, and the tasks of the solvers."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from selfplay.curriculum.mixture import MixtureCurriculum, routed, unrouted
from selfplay.curriculum.self_proposed import ProposalCurriculum
from selfplay.curriculum.task_buffer import TaskBuffer
from selfplay.errors import ConfigError, NothingToLearn
from selfplay.types import Group, Status, Task
from tests.helpers.builders import episode, group, turn

SEEDS = [Task(id=f"{kind}-seed", type=kind, payload={"program": kind}) for kind in ("d", "a")]


def made(**changes: Any) -> ProposalCurriculum:
    settings: dict[str, Any] = {
        "buffer": TaskBuffer(),
        "seeds": SEEDS,
        "types": ["d", "a", "i"],
        "given": {"i": ["d", "a"]},
        "proposals": 3,
        "solver_batch": 4,
        "references": 2,
    }
    return ProposalCurriculum(**{**settings, **changes})


def proposal(name: str, kind: str = "d", *, valid: bool = True, **fields: Any) -> Group:
    """Return a group whose episode has 3 of 8 solved attempts, and creates a task if valid."""
    asked = Task(id=f"ask-{name}", type=kind, payload={"mode": "propose", "parents": [0]})
    return group(
        episode(
            turn("proposer_0", version=5),
            task=asked,
            created=(Task(id=name, type=kind),) if valid else (),
            metrics={"attempts": 8, "solved": 3},
            **fields,
        )
    )


def solved(tasks: Sequence[Task], kind: str) -> int:
    return sum(task.type == kind and task.payload.get("mode") != "propose" for task in tasks)


def test_each_type_asks_for_proposals_and_shows_references() -> None:
    curriculum = made()
    asked = [t for t in curriculum.tasks(1) if t.payload.get("mode") == "propose"]
    assert [task.type for task in asked] == ["d"] * 3 + ["a"] * 3 + ["i"] * 3
    assert len({task.id for task in asked}) == 9
    assert asked[0].payload["references"] == [{"program": "d"}]
    assert asked[0].payload["given"] is None
    assert asked[0].payload["known"] == 2 and asked[0].payload["parents"] == [0]
    assert asked[6].payload["references"] == []
    assert asked[6].payload["given"] in [{"program": "d"}, {"program": "a"}]


def test_valid_proposals_are_kept_with_their_origin() -> None:
    curriculum = made()
    failed = proposal("broken", status=Status.FAILED)
    curriculum.observe([proposal("x"), proposal("y", "a"), proposal("x"), failed], 1)
    entry = curriculum.buffer.entries["d"][-1]
    assert (entry.task.id, entry.step, entry.author, entry.parents) == ("x", 1, "base@5", (0,))
    assert (entry.attempts, entry.solved) == (16, 6)
    assert "broken" not in curriculum.buffer.first_seen
    assert curriculum.metrics() == {
        "buffer/d": 2,
        "buffer/a": 2,
        "buffer/i": 0,
        "added": 2,
        "same_step_duplicates": 1,
    }


def test_attempts_at_old_tasks_are_recorded() -> None:
    curriculum = made()
    again = episode(turn("solver_0"), task=SEEDS[0], metrics={"attempts": 8, "solved": 8})
    curriculum.observe([group(again)], 1)
    assert curriculum.buffer.entries["d"][0].solved == 8


def test_the_solvers_batch_is_filled_from_the_buffer() -> None:
    curriculum = made()
    curriculum.observe([proposal(f"old-{n}") for n in range(6)], 1)
    curriculum.observe([proposal(f"{n}", valid=n == 0) for n in range(3)], 2)
    assert solved(curriculum.tasks(3), "d") == 4 - 1
    assert solved(curriculum.tasks(3), "a") == 1  # all that the buffer has
    curriculum.observe([proposal(f"new-{n}") for n in range(3)], 3)
    assert solved(curriculum.tasks(4), "d") == 4 - 3
    assert solved(made(replay=False).tasks(1), "d") == 0


@pytest.mark.parametrize("size", [1, 4])
def test_the_fraction_of_valid_proposals_does_not_depend_on_the_group_size(size: int) -> None:
    curriculum = made()
    curriculum.observe([proposal(f"old-{n}") for n in range(6)], 1)
    asked = []
    for number, valid in enumerate((True, False, False)):
        siblings = [proposal(f"{number}-{n}", valid=valid).episodes[0] for n in range(size)]
        asked.append(group(*siblings))
    curriculum.observe(asked, 2)
    assert solved(curriculum.tasks(3), "d") == 4 - 1


def test_the_fraction_of_valid_proposals_is_of_each_type() -> None:
    curriculum = made()
    curriculum.observe([proposal(f"{kind}-{n}", kind) for kind in "da" for n in range(6)], 1)
    played = [proposal(f"d-new-{n}", valid=n == 0) for n in range(3)]
    curriculum.observe([*played, *(proposal(f"a-new-{n}", "a") for n in range(3))], 2)
    tasks = curriculum.tasks(3)
    assert (solved(tasks, "d"), solved(tasks, "a")) == (4 - 1, 4 - 3)


def test_all_rounds_of_a_step_are_counted_together() -> None:
    """Check that metrics and the fraction of valid proposals cover all rounds of a step."""
    curriculum = made(solver_batch=8, proposals=4)
    curriculum.observe([proposal(f"old-{n}") for n in range(20)], 1)
    curriculum.observe([proposal(f"first-{n}", valid=n < 2) for n in range(4)], 2)
    assert (
        solved(curriculum.tasks(2, 1), "d") == 8 - 4
    )  # the fraction is that of step 1, as in attempt 0
    curriculum.observe([proposal(f"second-{n}") for n in range(4)], 2)
    assert curriculum.metrics()["added"] == 6
    assert solved(curriculum.tasks(3), "d") == 8 - 3
    curriculum.observe([], 3)  # no proposal was played: the fraction is still that of step 2
    assert curriculum.metrics()["added"] == 0
    assert solved(curriculum.tasks(4), "d") == 8 - 3


def test_a_mixture_fills_the_solvers_batch_like_the_part_alone() -> None:
    """Check a mixture, which divides a batch among several steps; the whole batch is counted."""

    def played(task: Task, *, part: str = "") -> Group:
        asks = task.payload.get("mode") == "propose"
        made_of = (Task(id=f"by-{task.id}", type="d"),) if asks and task.id[-1] != "0" else ()
        groups = group(episode(turn("proposer_0"), task=task, created=made_of))
        if not part:
            return groups
        (own,) = groups.episodes
        created = tuple(routed(part, each) for each in own.created)
        return group(replace(own, task=routed(part, task), created=created))

    def counts(tasks: Sequence[Task]) -> tuple[int, int]:
        return len(tasks) - solved(tasks, "d"), solved(tasks, "d")

    settings: dict[str, Any] = {"types": ["d"], "given": {}, "proposals": 4, "solver_batch": 8}
    alone, old = made(**settings), [proposal(f"old-{n}") for n in range(20)]
    alone.observe(old, 0)
    batches = []
    for step in range(1, 5):
        tasks = alone.tasks(step)
        batches.append(counts(tasks))
        alone.observe([played(task) for task in tasks], step)
    assert batches == [(4, 4), (4, 5), (4, 5), (4, 5)]  # one proposal of four is invalid
    inside, drawn = made(**settings), []
    inside.observe(old, 0)
    mixture = MixtureCurriculum(parts={"p": inside}, batch=3, shares={"p": 1})
    for step in range(1, 13):
        tasks = [unrouted(task)[1] for task in mixture.tasks(step)]
        drawn += tasks
        mixture.observe([played(task, part="p") for task in tasks], step)
    assert counts(drawn[:8]) == (4, 4)
    assert [counts(drawn[start : start + 9]) for start in (8, 17, 26)] == [(4, 5)] * 3


def test_draws_depend_on_seed_step_and_attempt() -> None:
    def tasks(step: int, attempt: int = 0, seed: int = 0) -> list[Task]:
        curriculum = made(seed=seed, types=["d"])
        curriculum.observe([proposal(f"x{n}") for n in range(40)], 0)
        curriculum.observe([], 0 + 1)
        return [t for t in curriculum.tasks(step, attempt) if t.payload.get("mode") != "propose"]

    assert tasks(2) == tasks(2)
    assert all(tasks(2) != other for other in (tasks(3), tasks(2, 1), tasks(2, seed=1)))


def test_seeding_plays_proposals_only_until_every_type_has_enough() -> None:
    curriculum = made(seed_size=2, seeding_steps=3)
    assert not curriculum.ready()
    assert solved(curriculum.tasks(-1), "d") == 0
    curriculum.observe([proposal("x"), proposal("y", "a"), proposal("z", "i")], -1)
    assert not curriculum.ready()
    curriculum.observe([proposal("w", "i")], -2)
    assert curriculum.ready()
    curriculum.observe([], -3)


def test_seeding_without_enough_tasks_is_an_error() -> None:
    curriculum = made(seed_size=2, seeding_steps=3)
    curriculum.observe([], -2)
    with pytest.raises(NothingToLearn, match=r"after 3 rounds .*'d': 1, 'a': 1, 'i': 0.*not 2"):
        curriculum.observe([], -3)


def test_without_references_nothing_is_shown() -> None:
    first = made(references=0).tasks(1)[0]
    assert first.payload["references"] == [] and first.payload["parents"] == []


def test_the_state_survives_json_and_continues_identically() -> None:
    curriculum = made()
    curriculum.observe([proposal(f"old-{n}") for n in range(6)], 1)
    curriculum.observe([proposal("x")], 2)
    curriculum.observe([proposal("y"), proposal("z")], 2)
    text = json.dumps(curriculum.state_dict())
    twin = made()
    held = twin.buffer
    twin.load_state_dict(json.loads(text))
    assert twin.buffer is held
    assert json.dumps(twin.state_dict()) == text
    for step in (3, 4):
        assert twin.tasks(step) == curriculum.tasks(step)
        assert twin.tasks(step, 1) == curriculum.tasks(step, 1)
        for one in (twin, curriculum):
            one.observe([proposal(f"step-{step}")], step)


def test_phases_propose_only_and_then_solve_tasks_in_the_band_only() -> None:
    curriculum = made(
        types=["d"],
        seeds=[],
        given={},
        references=0,
        propose_steps=2,
        solve_steps=1,
        band=(0.3, 0.4),
    )
    phases = [curriculum.phase(step) for step in range(1, 7)]
    assert phases == ["propose", "propose", "solve"] * 2
    assert [task.payload["mode"] for task in curriculum.tasks(1)] == ["propose"] * 3
    curriculum.observe([proposal("x"), proposal("y")], 1)  # 3 of 8 attempts each
    again = episode(
        turn("solver_0"), task=Task(id="y", type="d"), metrics={"attempts": 8, "solved": 8}
    )
    curriculum.observe([group(again)], 2)  # y: 11 of 16 is out of the band
    assert solved(curriculum.tasks(2), "d") == 0
    # The solvers' batch of 4 is the one task in the band, filled up with proposals.
    asked, given = curriculum.tasks(3)[:-1], curriculum.tasks(3)[-1]
    assert given.id == "x" and [task.payload["mode"] for task in asked] == ["propose"] * 3


def test_references_are_entries_whose_solve_rate_lies_in_the_band() -> None:
    curriculum = made(types=["d"], given={}, references=1, reference_band=(0.1, 0.9))
    # The seed was never attempted. No entry lies in the band, so any entry may be drawn.
    assert curriculum.tasks(1)[0].payload["references"] == [{"program": "d"}]
    curriculum.observe([proposal("x")], 1)  # 3 of 8 attempts: entry 2, after two seeds
    assert all(
        task.payload["parents"] == [2]
        for task in curriculum.tasks(1)
        if task.payload.get("mode") == "propose"
    )
    again = episode(
        turn("solver_0"), task=Task(id="x", type="d"), metrics={"attempts": 80, "solved": 80}
    )
    curriculum.observe([group(again)], 2)  # 83 of 88: now too easy
    asked = [task for step in range(9) for task in curriculum.tasks(step)]
    assert [0] in [task.payload["parents"] for task in asked if task.payload.get("parents")]


def test_too_few_entries_in_the_band_give_references_from_all_entries() -> None:
    curriculum = made(types=["d"], seeds=SEEDS[:1], given={}, reference_band=(0.1, 0.9))
    curriculum.observe([proposal("x")], 1)  # 3 of 8 attempts; the seed was never attempted
    assert sorted(curriculum.tasks(2)[0].payload["parents"]) == [0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"types": []}, "no task types"),
        ({"seeds": []}, "no seed tasks"),
        ({"proposals": -1}, "not negative"),
        ({"band": (0.8, 0.2)}, "is not within"),
        ({"reference_band": (0, 2)}, r"reference_band: \(0, 2\) is not within"),
        ({"propose_steps": 3}, "both at least 1, or both 0"),
        ({"propose_steps": 1, "solve_steps": 1, "replay": False}, "replay: true"),
        ({"seed_size": 9, "buffer": TaskBuffer(capacity=8)}, "capacity of 8"),
        ({"given": {"i": ["x"]}}, r"given\.i: there is no seed task"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(**changes)
