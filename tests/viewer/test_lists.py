"""Tests of the lists of episodes and groups: last words, order, text search and answers."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from selfplay.types import Episode, Status, Task, Turn
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.excerpts import GAP, HEAD, TAIL, last_words, line_of, marked
from selfplay.viewer.server import application
from tests.helpers.recorded_run import HOSTILE, turn
from tests.helpers.viewer_run import episode, write

LOCAL = "http://127.0.0.1"


def says(agent: str, shown: str, said: str | None, reward: float = 0.0, **fields: Any) -> Turn:
    text = fields.pop("text", f"I say {said}")
    messages = ({"role": "system", "content": "Rules."}, {"role": "user", "content": shown})
    return turn(agent, text, reward, action=said, messages=messages, **fields)


def signal(number: int) -> Episode:
    """Return one of ten episodes; the sender answers south with hunt in all but episode 0."""
    word = "rest" if number == 0 else "hunt"
    turns = (
        says("sender_0", "south", word, float(number)),
        says("receiver_0", word, "south", info={"verdict": "correct" if number % 2 else "wrong"}),
    )
    task = Task(id="t", type="signal")
    metrics = {"accuracy": number / 10, "bad": float("nan"), "": 1.0}
    return Episode(
        arena="signal", task=task, seed=0, turns=turns, status=Status.FINISHED, metrics=metrics
    )


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    run = tmp_path / "made"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 0\n")
    write(run, 1, [signal(number) for number in range(10)])
    with TestClient(application(RunCatalogue([run]), cache=tmp_path / "c"), base_url=LOCAL) as made:
        yield made


def data(client: TestClient, address: str) -> dict[str, Any]:
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_list_shows_the_words_and_the_most_frequent_answers(client: TestClient) -> None:
    found = data(client, "/run/made/episodes.json")
    assert found["total"] == 10 and found["left"] == 0
    assert found["rows"][0]["words"] == [
        {"role": "sender", "shown": "south", "said": "rest", "valid": True},
        {"role": "receiver", "shown": "rest", "said": "south", "valid": True},
    ]
    answers = [(a["role"], a["shown"], a["said"], a["times"], a["among"]) for a in found["answers"]]
    # "rest" was shown only once, so the receiver's answers to all prompts are counted together.
    assert answers == [("receiver", None, "south", 10, 10), ("sender", "south", "hunt", 9, 10)]
    page = client.get("/run/made/episodes").text
    assert "south" in page and re.search(r"hunt</span> <b>90&nbsp;%</b>", page)


@pytest.mark.parametrize(
    ("order", "lines", "values"),
    [
        ("reward&down=1", [10, 9, 8], [9.0, 8.0, 7.0]),
        ("reward", [1, 2, 3], [0.0, 1.0, 2.0]),
        ("reward/sender&down=1", [10, 9, 8], [9.0, 8.0, 7.0]),
        ("metric/accuracy&down=1", [10, 9, 8], [0.9, 0.8, 0.7]),
        ("verdict/correct&down=1", [2, 4, 6], [1.0, 1.0, 1.0]),
    ],
)
def test_a_list_is_sorted_by_any_value(
    client: TestClient, order: str, lines: list[int], values: list[float]
) -> None:
    rows = data(client, f"/run/made/episodes.json?sort={order}")["rows"]
    assert [row["line"] for row in rows[:3]] == lines
    assert [row["value"] for row in rows[:3]] == values


def test_a_sorted_list_can_be_filtered_and_has_only_episodes_with_the_value(
    client: TestClient,
) -> None:
    found = data(client, "/run/made/episodes.json?sort=verdict/wrong&said=hunt")
    assert found["total"] == 4 == len(found["rows"])  # 2, 4, 6 and 8; 0 said "rest"
    assert "metric/bad" not in found["orders"] and "metric/accuracy" in found["orders"]
    answer = client.get("/run/made/episodes?sort=verdict/corect")
    assert answer.status_code == 404 and "verdict/correct" in answer.text


def test_the_search_in_what_was_said_leaves_out_prompts_and_marks_the_words(
    client: TestClient,
) -> None:
    assert data(client, "/run/made/episodes.json?text=rules")["total"] == 10
    assert data(client, "/run/made/episodes.json?said=rules")["total"] == 0
    found = data(client, "/run/made/episodes.json?said=REST")
    assert found["total"] == 1
    hits = [piece["text"] for piece in found["rows"][0]["excerpt"] if piece["found"]]
    assert hits == ["rest"]
    assert "<mark>rest</mark>" in client.get("/run/made/episodes?said=REST").text
    assert data(client, "/run/made/episodes.json?said=%22+OR+rest")["total"] == 0


def test_groups_are_listed_with_their_answers_and_sorted(tmp_path: Path) -> None:
    run = tmp_path / "made"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 0\n")
    for step, rewards in ((1, (0.0, 1.0)), (2, (3.0, 3.0))):
        write(run, step, [])
        lines = []
        for member, reward in enumerate(rewards):
            write(run, step, [episode(f"word {reward:.0f}", reward, action=f"{reward:.0f}")])
            record = json.loads((run / f"episodes/{step:06d}.jsonl").read_text())
            lines.append(json.dumps({**record, "group": "g", "member": member}) + "\n")
        (run / f"episodes/{step:06d}.jsonl").write_text("".join(lines))
    with TestClient(application(RunCatalogue([run]), cache=tmp_path / "c"), base_url=LOCAL) as made:
        rows = data(made, "/run/made/groups.json?sort=spread&down=1")["rows"]
        assert [(row["step"], row["members"], row["mean"], row["spread"]) for row in rows] == [
            (1, 2, 0.5, 1.0),
            (2, 2, 3.0, 0.0),
        ]
        assert [(a["said"], a["times"]) for a in rows[1]["answers"]] == [("3", 2)]
        found = data(made, "/run/made/groups.json?said=1")
        assert [row["step"] for row in found["rows"]] == [1]
        assert {"text": "1", "found": True} in found["rows"][0]["excerpt"]
        assert "/run/made/groups/2/g" in made.get("/run/made/groups").text
        assert made.get("/run/made/groups?sort=tokens").status_code == 404


def test_hostile_words_stay_words_in_lists(tmp_path: Path) -> None:
    run = tmp_path / "made"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 0\n")
    wild = replace(
        episode(HOSTILE, 1.0, role=HOSTILE, action=HOSTILE),
        metrics={HOSTILE: 1.0, "a" * 5_000: 2.0, **{f"m{n}": float(n) for n in range(2_000)}},
    )
    long = episode("word " + "a" * 1_000_000, 1.0, action="b" * 1_000_000)
    marks = episode("word \ue000word\ue001 \ue001", 1.0)
    loud = replace(wild.turns[0], info={"verdict": ["<b>", {}]})
    write(run, 1, [wild, long, marks, replace(wild, turns=(loud,))], group=HOSTILE)
    with TestClient(application(RunCatalogue([run]), cache=tmp_path / "c"), base_url=LOCAL) as made:
        orders = data(made, "/run/made/episodes.json")["orders"]
        assert len(orders) < 200 and all(len(name) <= 100 for name in orders)
        for page in (
            *("episodes", "groups", "episodes?said=script", "groups?said=script"),
            *("episodes?said=word", f"episodes?sort={orders[4]}"),
        ):
            answer = made.get(f"/run/made/{page}")
            assert answer.status_code == 200, page
            assert len(re.findall(r"<script\b", answer.text)) == 1, page
            assert not re.search(r"<(img|svg|b>\"|/pre)", answer.text), page
            assert "\u202e" not in answer.text and "\x1b" not in answer.text, page
            assert len(answer.text) < 200_000, page
        rows = data(made, "/run/made/episodes.json?said=word")["rows"]
        assert [sum(piece["found"] for piece in row["excerpt"]) for row in rows] == [1, 2]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        (" a\n\n b\tc ", "a b c"),
        ("x" * (HEAD + len(GAP) + TAIL), "x" * (HEAD + len(GAP) + TAIL)),
        ("x" * 5_000_000 + "y" * TAIL, "x" * HEAD + GAP + "y" * TAIL),
    ],
)
def test_a_line_keeps_the_start_and_the_end(text: str, line: str) -> None:
    assert line_of(text) == line


def test_last_words_show_the_prompt_before_the_results_of_tools() -> None:
    call = says("solver_0", "What is 2 + 2?", None, final=False)
    answer = says("solver_0", "result: 4", "4")
    other = says("judge_0", "4", None, text="no idea")
    asked = replace(episode("", 0.0), turns=(call, answer, other))
    assert last_words(asked) == {
        "solver": ("What is 2 + 2?", "4", True),
        "judge": ("4", "no idea", False),
    }


def test_marks_follow_the_rules_of_the_search() -> None:
    found = marked(["Hunting a caf\u00e9", "none"], "CAFE hunting")
    assert found == [(("Hunting", True), (" a ", False), ("caf\u00e9", True)), ()]
    assert marked(["anything"], "  ") == [()]
