"""Tests of the pages of language and behaviour: planted usage is shown, hostile text is inert."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.heat_map import cut, labels_of, shade_of
from selfplay.viewer.index import EpisodeIndex
from selfplay.viewer.server import application
from selfplay.viewer.usage_index import digest_of
from tests.helpers.browser import browser
from tests.helpers.planted_usage import code, episode, repeated, turn, write_step
from tests.helpers.recorded_run import HOSTILE
from tests.helpers.viewer_run import served

LOCAL = "http://127.0.0.1"
PLANTED = {"north": {"x": 0.75, "y": 0.25}, "south": {"y": 1.0}}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    run = tmp_path / "made"
    code(run, 2, {"north": {"old": 1.0}, "south": {"old": 1.0}}, count=40)
    code(run, 4, PLANTED, count=40)
    return run


@pytest.fixture
def client(made: Path, tmp_path: Path) -> Iterator[TestClient]:
    catalogue = RunCatalogue([made])
    with TestClient(application(catalogue, cache=tmp_path / "cache"), base_url=LOCAL) as opened:
        yield opened


def shown(client: TestClient, address: str, status: int = 200) -> str:
    answer = client.get(address)
    assert answer.status_code == status, answer.text
    return answer.text


def counts(page: str) -> list[list[str]]:
    """Return the numbers of each row of the heat map."""
    rows = re.findall(r'<tr><th scope="row" title=(.*?)</tr>', page, re.DOTALL)
    return [re.findall(r"<a [^>]*>(\d*)</a>", row) for row in rows]


def test_a_planted_code_is_shown_and_its_cells_lead_to_its_episodes(client: TestClient) -> None:
    data = client.get("/run/made/language.json").json()
    assert data["steps"] == [2, 4] and data["kind"] == "message"
    words = [each["text"] for each in data["actions"]]
    views = [each["text"] for each in data["views"]]
    assert views == ["north", "south"] and set(words) == {"old", "x", "y"}
    north = dict(zip(words, data["times"][1][0], strict=True))
    assert north["x"] + north["y"] == 20 and north["old"] == 0 and data["uses"][1] == [20, 20]
    assert [word["text"] for word in data["dying"]] == ["old"]
    assert {word["text"] for word in data["newest"]} == {"x", "y"}
    assert data["summaries"][0]["entropy"] == 0 < data["summaries"][1]["information"]

    page = shown(client, "/run/made/language?step=4")
    assert counts(page)[1][-1] == "20" and "100" in counts(page)[1]
    links = re.findall(r'href="(/run/made/episodes\?[^"]*action=[^"]*)"[^>]*>(\d+)<', page)
    assert len(links) == 3
    for address, _ in links:
        times = north["x"] if digest_of("x") in address else None
        cell = shown(client, address.replace("&amp;", "&"))
        total = int(re.findall(r"(\d+) episodes", cell)[0])
        assert times in (None, total) and 0 < total <= 20
        assert "scout_0 saw <code>" in cell and "step=4" in cell
    assert "0 episodes" in shown(client, "/run/made/episodes?view=none&step=4&agent=a&kind=b")


def test_the_legend_of_an_older_value_names_its_step(made: Path, client: TestClient) -> None:
    code(made, 6, {"north": {"x": 1.0}}, count=10)
    page = shown(client, "/run/made/language?step=6")
    legends = re.findall(r"Fraction of x by view</b>\s*(.*?)</ul>", page, re.DOTALL)
    curves = [re.sub("<.*?>", "", line) for line in re.findall("<li>(.*)</li>", legends[0])]
    assert curves == ["north 100.0%", "south 0.0% (step 4)"]
    assert re.search(r"\d% at step", page) and not re.search(r"\d %", page)


def test_the_slider_works_without_a_script(client: TestClient) -> None:
    first, last = (shown(client, f"/run/made/language?at={at}") for at in (0, 1))
    assert "<output>2</output>" in first and "<output>4</output>" in last
    assert 'min="0" max="1" value="0"' in first and counts(first) != counts(last)
    assert shown(client, "/run/made/language?at=99") == last
    assert shown(client, "/run/made/language?agent=none&kind=none&step=3") == first


def test_a_changed_step_is_counted_again(made: Path, tmp_path: Path) -> None:
    index = EpisodeIndex(made, tmp_path / "index")
    assert index.update(60) == 0
    assert {w.text for w in index.usage.vocabulary("scout_0", "message")} == {"old", "x", "y"}
    code(made, 2, {"north": {"new": 1.0}}, count=41)
    (made / "episodes/000004.jsonl").unlink()
    assert index.update(60) == 0
    (word,) = index.usage.vocabulary("scout_0", "message")
    assert (word.text, word.first, word.last, word.times, word.peak) == ("new", 2, 2, 41, 1.0)
    assert list(index.usage.summaries("scout_0", "message")) == [2]
    index.close()


def test_moves_are_shown_with_equilibrium_and_exact_probabilities(
    made: Path, client: TestClient
) -> None:
    code(made, 6, {"J": {"x": 0.5, "y": 0.5}}, kind="move", count=40)
    address = "/run/made/behaviour?agent=scout_0&kind=move"
    assert "eq." not in shown(client, address)
    situation = {
        "agent": "scout_0",
        "view": "J",
        "equilibrium": {"x": 0.33, "y": 0.67},
        "exact": [{"step": 6, "chances": {"x": 0.41, "y": 0.59}, "elsewhere": 0.1}],
    }
    (made / "studies").mkdir()
    file = made / "studies/behaviour.json"
    file.write_text(json.dumps({"measure": "behaviour", "situations": [situation]}))
    page = shown(client, address)
    assert "eq. 33" in page and "eq. 67" in page and "exact 41" in page and "exact 59" in page
    data = client.get("/run/made/behaviour.json").json()
    assert data["equilibrium"] == [[0.33, 0.67]] and data["exact"] == [[[0.41, 0.59]]]
    for bad in ('{"situations": [{"agent": 1}]}', "[", '{"situations": [{"agent": "a"}]}'):
        file.write_text(bad)
        assert "cannot be read" in shown(client, address)
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert "root:" not in shown(client, address) and "cannot be read" in shown(client, address)


def test_a_repeated_game_has_its_memory_one_table(tmp_path: Path) -> None:
    vector = {"": 1.0, "CC": 1.0, "CD": 0.0, "DC": 1.0, "DD": 0.0}
    repeated(tmp_path / "tit", 1, {"first_0": vector, "second_0": vector}, games=4, rounds=3)
    catalogue = RunCatalogue([tmp_path / "tit"])
    with TestClient(application(catalogue, cache=tmp_path / "c"), base_url=LOCAL) as client:
        page = shown(client, "/run/tit/behaviour?agent=first_0&kind=answer")
    assert "cooperate / cooperate" in page and ">first round<" in page
    assert "last moves: own / other" in page


def test_hostile_words_and_views_stay_words(tmp_path: Path) -> None:
    run = tmp_path / "evil"
    turns = [
        turn(HOSTILE, HOSTILE, HOSTILE, 0, spoken=True),
        turn(HOSTILE, HOSTILE, "<b>y", 1, legal=("<b>y", HOSTILE)),
    ]
    write_step(run, 1, [episode(turns, 0)] * 4)
    catalogue = RunCatalogue([run])
    with TestClient(application(catalogue, cache=tmp_path / "c"), base_url=LOCAL) as client:
        for name in ("language", "behaviour"):
            answer = client.get(f"/run/evil/{name}")
            page = answer.text
            assert answer.status_code == 200 and "owned" in page
            assert "<img" not in page and "<svg onload" not in page and "<b>y" not in page
            assert "{{" in page and "49" not in re.findall(r"\{\{.{8}", page)
            assert page.count("<script") == 1 and "\u202e" not in page and "\x1b" not in page
            assert "script-src 'self'" in page and "unsafe" not in page
            data = client.get(f"/run/evil/{name}.json")
            assert data.headers["content-type"] == "application/json"
            assert data.headers["x-content-type-options"] == "nosniff"
            assert data.json()["views"][0]["text"].startswith("<script>")
            for link in re.findall(r'href="(/run/evil/episodes[^"]*)"', page):
                cell = shown(client, link.replace("&amp;", "&"))
                assert "4 episodes" in cell and "<img" not in cell
        assert client.get("/run/evil/nothing.json").status_code == 404
        assert client.get("/run/none/language.json").status_code == 404


def test_a_run_without_messages_or_moves_has_a_note(tmp_path: Path) -> None:
    run = tmp_path / "moves"
    code(run, 1, {"J": {"x": 1.0}}, kind="move", count=3)
    catalogue = RunCatalogue([run])
    with TestClient(application(catalogue, cache=tmp_path / "c"), base_url=LOCAL) as client:
        assert "No turn with words is on record" in shown(client, "/run/moves/language")
        assert "player" not in shown(client, "/run/moves/behaviour")
        assert 'href="/run/moves/language"' in shown(client, "/run/moves")
        code(run, 1, {"n": {"x": 1.0}}, count=3)
        assert "No recorded turn lists legal moves" in shown(client, "/run/moves/behaviour")


def test_labels_show_where_views_differ() -> None:
    rules = "These are the long rules of a game of cards that all views have in common. "
    texts = [f"{rules}You hold J. Move.", f"{rules}You hold K. Move."]
    assert labels_of(texts) == ["J.", "K."]
    assert labels_of(["J", "J bet"]) == ["J", "J bet"]
    assert labels_of([f"{rules}", f"{rules} bet"]) == ["(nothing)", "bet"]
    assert labels_of([rules]) == [cut(rules)] and len(cut("word " * 99)) <= 60
    assert [shade_of(fraction) for fraction in (0, 0.001, 0.5, 1)] == [0, 1, 5, 8]


def test_pages_of_many_steps_cost_little(tmp_path: Path) -> None:
    """A page of a run of 400 steps reads 60 steps in full, and one summary for each step."""
    run = tmp_path / "long"
    code(run, 1, PLANTED, count=8)
    text = (run / "episodes/000001.jsonl").read_text()
    for step in range(2, 401):
        (run / f"episodes/{step:06d}.jsonl").write_text(text)
    catalogue = RunCatalogue([run])
    index = EpisodeIndex(run, tmp_path / "c")
    index.update(600)
    index.close()
    with TestClient(application(catalogue, cache=tmp_path / "c"), base_url=LOCAL) as client:
        begun = time.process_time()
        data = client.get("/run/long/language.json").json()
        assert time.process_time() - begun < 1.0
    assert len(data["steps"]) == 60 and len(data["summaries"]) == 400


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs the browser chromium")
def test_a_real_browser_drags_the_slider_and_runs_no_words(tmp_path: Path) -> None:
    run = tmp_path / "made"
    for step, words in ((1, ("x", "x", HOSTILE)), (2, ("x", HOSTILE, HOSTILE, HOSTILE))):
        turns = [turn("scout_0", HOSTILE, word, 0, spoken=True) for word in words]
        write_step(run, step, [episode([each], n) for n, each in enumerate(turns)])
    row = "[...document.querySelector('.heat tbody tr').cells].slice(1).map(c => c.innerText)"
    drag = "(s => {s.value = 0; s.dispatchEvent(new Event('input', {bubbles: true}))})"
    with served(run) as address, browser(tmp_path / "profile") as opened:
        tab = opened.open(f"{address}run/made/language")
        assert tab.run(f"{row}.join()") in ("25,75,,4", "75,25,,4")
        tab.run(f"{drag}(document.querySelector('.slider input[type=range]'))")
        tab.wait("document.querySelector('.slider output').textContent === '1'")
        assert tab.run(f"{row}.join()") in ("67,33,,3", "33,67,,3")
        link = tab.run("document.querySelector('.heat td a[href]').href")
        assert "step=1" in link and tab.run("document.title") == "Language of made \u2013 selfplay"
        tab.go(link)
        assert "chose" in tab.text() and tab.run("document.images.length") == 0
        tab.resize(390)
        tab.go(f"{address}run/made/language")
        assert tab.run("document.documentElement.scrollWidth <= innerWidth")
