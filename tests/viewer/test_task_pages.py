"""Tests of the pages of tasks: of a ladder, of a task buffer, and of the parts of a mixture."""

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from selfplay.curriculum.mixture import MixtureCurriculum
from selfplay.curriculum.task_buffer import TaskBuffer
from selfplay.errors import RunError
from selfplay.types import Task
from selfplay.viewer.catalog import RunCatalogue, newest_state
from selfplay.viewer.run_tabs import tabs_of
from selfplay.viewer.server import application
from selfplay.viewer.task_pages import tasks_of
from tests.helpers.recorded_run import HOSTILE
from tests.helpers.saved_tasks import ladder, saved
from tests.helpers.viewer_run import five_episodes


def test_a_ladder_is_shown_with_its_depths_states_and_lineage(tmp_path: Path) -> None:
    run = saved(five_episodes(tmp_path / "made"), ladder().state_dict())
    rows = ({"step": 1, "curriculum/open": 1}, {"step": 2, "curriculum/open": 3})
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = tasks_of(run)[""]
    depths = {"roots": "1 waiting", "1 below": "1 solved, 1 waiting", "2 below": "1 solved"}
    assert dict(tasks.facts) == depths
    assert [entry.key for entry in tasks.ancestors("easiest")] == ["easiest", "middling", "root"]
    assert [entry.key for entry in tasks.children("root")] == ["middling", "easy"]
    assert tasks.children("easy") == [] and tasks.ancestors("nobody") == []
    with TestClient(
        application(RunCatalogue([run]), cache=tmp_path), base_url="http://127.0.0.1"
    ) as client:
        page = client.get("/run/made/tasks?task=middling").text
        assert "Its children" in page and "<svg" not in page
        assert client.get("/run/made/tasks").text.count("<svg") == 1  # the chart of its metrics
        solved = client.get("/run/made/tasks?group=solved").text
        assert "2 tasks in the newest" in solved and "task=root" in solved
        assert "task=middling&" not in solved and ">middling</a></th>" not in solved


def rung(**fields: Any) -> dict[str, Any]:
    """Return a rung in the form in which a ladder saves it."""
    task = {"id": f"t{fields.get('depth', 0)}", "type": "sum"}
    made = {"depth": 0, "state": "open", "task": task, "parent": None, "tries": 0, "climbed": []}
    return made | fields


def test_a_ladder_of_a_hostile_depth_shows_the_depths_that_occur(tmp_path: Path) -> None:
    deep = [rung(depth=10**12), rung(), rung(depth=10**12, state="solved")]
    run = saved(five_episodes(tmp_path / "made"), {"rungs": deep})
    assert tasks_of(run)[""].facts == [
        ("roots", "1 open"),
        (f"{10**12} below", "1 open, 1 solved"),
    ]
    saved(run, {"rungs": [rung(depth=depth) for depth in range(1000)]})
    assert len(tasks_of(run)[""].facts) == 100


@pytest.mark.parametrize("field", ["tries", "depth"])
def test_a_number_of_a_hostile_state_hides_no_page(field: str, tmp_path: Path) -> None:
    run = saved(five_episodes(tmp_path / "made"), {"rungs": [rung(**{field: 10**400})]})
    with TestClient(
        application(RunCatalogue([run]), cache=tmp_path), base_url="http://127.0.0.1"
    ) as client:
        assert client.get("/run/made").status_code == 200
        page = client.get("/run/made/tasks")
        assert page.status_code == 404 and "is damaged" in page.text


def test_only_tasks_of_the_author_seed_are_listed_as_seeds(tmp_path: Path) -> None:
    tasks = [Task(id=name) for name in ("given", "gathered", "learned")]
    buffer = TaskBuffer()
    buffer.add(tasks[0], step=-1)
    buffer.add(tasks[1], step=-1, author="p@0")  # a proposal of the first gathering round
    buffer.add(tasks[2], step=3, author="p@2")
    run = saved(five_episodes(tmp_path / "made"), {"buffer": buffer.state_dict()})
    found = {entry.id: entry.columns[:2] for entry in tasks_of(run)[""].listed()}
    assert found == {"given": ("seed", "seed"), "gathered": ("-1", "p@0"), "learned": ("3", "p@2")}


def test_the_newest_checkpoint_is_that_of_the_largest_step(tmp_path: Path) -> None:
    names = ("999999", "1000000", "01000001", "\u00b2", "2000000\u0663", ".3000000.old")
    for name in names:
        place = tmp_path / "checkpoints" / name
        place.mkdir(parents=True)
        (place / "state.json").write_text(json.dumps({"of": name}))
    (tmp_path / "checkpoints/4000000").touch()
    assert newest_state(tmp_path) == {"of": "1000000"}


def test_the_tabs_are_those_of_the_newest_checkpoint(tmp_path: Path) -> None:
    run = saved(five_episodes(tmp_path / "made"), ladder().state_dict())
    (run / "checkpoints/000004").rename(run / "checkpoints/1000000")
    (run / "checkpoints/999999").mkdir()
    assert "tasks" in tabs_of(RunCatalogue([run]).run("made"))


def listed(client: TestClient, query: str) -> list[str]:
    answer = client.get(f"/run/made/tasks.json?{query}")
    assert answer.status_code == 200, answer.text
    return [row["key"] for row in answer.json()["rows"]]


def test_tasks_are_sorted_and_searched_with_marks(tmp_path: Path) -> None:
    tried = (("def add", 4, 1), ("def SUB", 4, 3), (HOSTILE, 0, 0), ("long " + "a" * 300_000, 4, 2))
    entries = [
        {
            **{"number": number, "step": 9 - number, "author": "base", "parents": []},
            **{"attempts": attempts, "solved": solved},
            "task": {"id": f"t{number}", "type": "sum", "payload": {"code": code}},
        }
        for number, (code, attempts, solved) in enumerate(tried)
    ]
    state = {"buffer": {"entries": {"sum": entries}}}
    run = saved(five_episodes(tmp_path / "made"), state)
    with TestClient(
        application(RunCatalogue([run]), cache=tmp_path), base_url="http://127.0.0.1"
    ) as client:
        assert listed(client, "") == ["3", "2", "1", "0"]
        assert listed(client, "sort=solved&down=1") == ["1", "3", "0", "2"]
        assert listed(client, "sort=step") == ["3", "2", "1", "0"]
        assert listed(client, "words=SUB+def") == ["1"]
        assert listed(client, "words=.*") == []
        page = client.get("/run/made/tasks?words=sub").text
        assert "def <mark>SUB</mark>" in page and "def add" not in page
        assert client.get("/run/made/tasks?sort=sloved").status_code == 404
        for query in ("", "?words=onerror", "?words=a", "?words=%00"):
            page = client.get(f"/run/made/tasks{query}").text
            assert page.count("<script") == 1 and "<img" not in page and "<svg onload" not in page
            assert len(page) < 120_000 and "\u202e" not in page


def test_the_parts_of_a_mixture_have_a_list_each(tmp_path: Path) -> None:
    parts = {"climb": ladder(), "other": ladder()}
    mixed = MixtureCurriculum(parts=parts, shares={"climb": 1, "other": 1}, batch=2)
    state = mixed.state_dict()
    state["parts"]["other"] = {"drawn": 3}  # the state of fixed tasks, which stores none
    task = {"id": "t", "type": "sum", "payload": {}}
    entry = {"number": 4, "task": task, "step": 2, "author": "base", "parents": [9]}
    state["parts"]["asked"] = {
        "buffer": {"entries": {"sum": [{**entry, "attempts": 4, "solved": 1}]}}
    }
    run = saved(five_episodes(tmp_path / "made"), state)
    assert set(tasks_of(run)) == {"climb", "asked"}
    with TestClient(
        application(RunCatalogue([run]), cache=tmp_path), base_url="http://127.0.0.1"
    ) as client:
        assert "part=asked" in client.get("/run/made/tasks").text
        page = client.get("/run/made/tasks?part=asked&task=4").text
        assert "1 of 4" in page and "part=asked&amp;task=9" in page
        assert "easiest" in client.get("/run/made/tasks?part=nobody").text


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"drawn": 3}, "stores no tasks of its own"),
        (7, "stores no tasks of its own"),
        ({"parts": {}}, "stores no tasks of its own"),
        ({"rungs": [{}]}, "is damaged"),
        ({"rungs": 7}, "is damaged"),
        ({"buffer": {"entries": {"sum": [{"number": "x"}]}}}, "is damaged"),
        ({"parts": 7}, "is damaged"),
    ],
)
def test_a_state_without_tasks_is_a_clear_error(state: Any, words: str, tmp_path: Path) -> None:
    run = saved(five_episodes(tmp_path / "made"), state)
    with pytest.raises(RunError, match=words):
        tasks_of(run)
