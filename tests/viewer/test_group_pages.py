"""Tests of group pages: word differences of siblings, links to turns, next and previous links."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from selfplay.types import Episode
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.server import application
from selfplay.viewer.word_diff import MOST_WORDS, turn_diffs, word_diff
from tests.helpers.recorded_run import HOSTILE, turn
from tests.helpers.viewer_run import episode, write

LOCAL = "http://127.0.0.1"


def write_group(run: Path, step: int, name: str, members: list[Episode]) -> None:
    lines = []
    for member, each in enumerate(members):
        write(run, step, [each])
        record = json.loads((run / f"episodes/{step:06d}.jsonl").read_text())
        lines.append(json.dumps({**record, "group": name, "member": member}) + "\n")
    (run / f"episodes/{step:06d}.jsonl").write_text("".join(lines))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    made.mkdir()
    (made / "config.yaml").write_text("seed: 0\n")
    return made


@pytest.fixture
def client(run: Path, tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(application(RunCatalogue([run]), cache=tmp_path / "c"), base_url=LOCAL) as made:
        yield made


def data(client: TestClient, address: str) -> dict[str, Any]:
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize(
    ("before", "after", "pieces"),
    [
        ("", "", ()),
        ("a b", "a b", (("a b", "same"),)),
        ("a b", "a c", (("a ", "same"), ("b", "removed"), ("c", "added"))),
        ("", "x", (("x", "added"),)),
        ("x y", "x", (("x", "same"), (" y", "removed"))),
    ],
)
def test_a_difference_is_by_words(before: str, after: str, pieces: Any) -> None:
    assert word_diff(before, after) == pieces


def test_long_texts_are_not_compared_and_no_text_takes_long() -> None:
    assert word_diff("a " * MOST_WORDS, "a") is None
    begun = time.process_time()
    words = MOST_WORDS // 2
    assert word_diff("a b " * (words // 2), "b a " * (words // 2)) is not None
    assert word_diff("x" * 10_000_000, "y" * 10_000_000) is not None
    assert time.process_time() - begun < 5
    one = turn("a_0", "one two", 0.0)
    assert turn_diffs([one], [one, one], 100) == [(("one two", "same"),), None]
    assert turn_diffs([one], [one], 5) == [None]  # the two texts have six words and spaces
    assert turn_diffs([one], [turn("b_0", "one two", 0.0)], 100) == [None]


def test_a_group_is_compared_with_any_member(run: Path, client: TestClient) -> None:
    write_group(run, 1, "g 1", [episode(f"go {way}", 1.0) for way in ("north", "south", "west")])
    page = client.get("/run/made/groups/1/g%201").text
    assert page.count("<del>north</del><ins>south</ins>") == 1 and "?base=2" in page
    assert 'href="/run/made/episodes/1/2#turn-0"' in page
    page = client.get("/run/made/groups/1/g%201?base=2").text
    assert page.count("<del>west</del><ins>south</ins>") == 1 and "?base=2" not in page
    found = data(client, "/run/made/group.json?step=1&group=g+1&base=1")
    assert found["base"] == 1 and found["agents"][0]["rewards"] == ["1 (0.500)"] * 3
    diffs = [sibling["turns"][0]["diff"] for sibling in found["siblings"]]
    assert diffs[1] is None and {"text": "west", "change": "added"} in diffs[2]
    assert client.get("/run/made/groups/1/g%201?base=7").status_code == 404
    assert client.get("/run/made/group.json?step=1&group=none").status_code == 404


def test_the_pay_of_an_agent_without_a_turn_is_shown(run: Path, client: TestClient) -> None:
    early = replace(episode("resign", 1.0), other_pay={"late_0": ((0, 2.0),)})
    write_group(run, 1, "g", [early, episode("go", 1.0)])
    agents = data(client, "/run/made/group.json?step=1&group=g")["agents"]
    assert [each["rewards"] for each in agents if each["agent"] == "late_0"] == [["2", "-"]]
    listed = data(client, "/run/made/episodes.json?step=1")["rows"]
    assert [sum(each["rewards"].values()) for each in listed] == [3.0, 1.0]


def test_the_next_and_previous_follow_the_list(run: Path, client: TestClient) -> None:
    write(run, 1, [episode("a", 0.0), episode("b", 0.0)])
    write(run, 5, [episode("c", 0.0), episode("d", 0.0)])
    seen, address = [], "/run/made/episodes/5/1"
    while address:
        page = client.get(address).text
        assert 'id="turn-0"' in page and 'href="#turn-0"' in page
        seen.append(address[len("/run/made/episodes/") :])
        following = re.search(r'rel="next" href="([^"]+)"', page)
        back = re.search(r'rel="prev" href="([^"]+)"', page)
        assert (back and back[1][len("/run/made/episodes/") :]) == (seen[-2] if seen[1:] else None)
        address = following[1] if following else ""
    assert seen == ["5/1", "5/2", "1/1", "1/2"]
    groups = [data(client, f"/run/made/group.json?step=5&group=5.0.{n}") for n in (0, 1)]
    assert [each["previous"] for each in groups] == ["", "/run/made/groups/5/5.0.0"]
    assert [each["next"] for each in groups] == [
        "/run/made/groups/5/5.0.1",
        "/run/made/groups/1/1.0.0",
    ]


def test_hostile_words_stay_words_in_a_group(run: Path, client: TestClient) -> None:
    other = replace(episode("<b> " + "a" * 300_000, 0.0, role=HOSTILE))
    members = [episode("plain", 0.0), episode(HOSTILE, 0.0), episode("<ins> </pre>", 1.0), other]
    write_group(run, 1, HOSTILE, members)
    (address,) = re.findall(r'"(/run/made/groups/1/[^"]+)"', client.get("/run/made/groups").text)
    page = client.get(address)
    assert page.status_code == 200
    texts = [
        page.text,
        *(client.get(f"/run/made/episodes/1/{line}").text for line in (1, 2, 3, 4)),
    ]
    for text in texts:
        assert text.count("<script") == 1 and "<img" not in text and "<svg onload" not in text
        assert "\u202e" not in text and "\x1b" not in text and len(text) < 400_000
