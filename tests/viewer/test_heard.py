"""Tests of the listeners of messages: messages in prompts of other agents, and their links."""

from dataclasses import replace
from pathlib import Path

from starlette.testclient import TestClient

from selfplay.types import Episode, Status, Task, Turn
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.heard import heard, heard_by
from selfplay.viewer.server import application
from tests.helpers.recorded_run import HOSTILE, turn
from tests.helpers.viewer_run import write


def said(agent: str, text: str, shown: str, *, stage: int, spoken: bool = True) -> Turn:
    made = turn(agent, text, 0.0, action=text)
    messages = ({"role": "user", "content": shown},)
    return replace(made, messages=messages, stage=stage, spoken=spoken)


TALK = (
    said("scout_0", "b", "You see north.", stage=0),
    said("partner_0", "hunt", "Message: b", stage=1, spoken=False),
    said("scout_0", "go (home)", "Partner: hunt, about nothing", stage=2),
    said("partner_0", "home", "Message: go (home)", stage=3),
    said("judge_0", "right", "b\ngo (home)\nhome", stage=4, spoken=False),
)


def test_messages_are_found_as_whole_words_since_the_previous_turn() -> None:
    found = heard(TALK)
    assert found == [[], [0], [], [2], [0, 2, 3]]
    assert heard_by(found) == [[1, 4], [], [3, 4], [4], []]


def test_text_that_is_empty_or_not_spoken_is_not_heard() -> None:
    quiet = [replace(each, spoken=False) for each in TALK]
    assert heard(quiet) == [[]] * 5
    empty = [said("a_0", " ", "", stage=0), said("b_0", "x", "anything", stage=1)]
    assert heard(empty) == [[], []]


def test_the_page_has_rounds_and_links(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 0\n")
    wild = said("scout_0", HOSTILE, "x", stage=0), said("other_0", "y", HOSTILE, stage=1)
    talks = [
        Episode(arena="a", task=Task(id="t"), seed=0, turns=turns, status=Status.FINISHED)
        for turns in (TALK, wild)
    ]
    write(run, 1, talks)
    app = application(RunCatalogue([run]), cache=tmp_path / "cache")
    with TestClient(app, base_url="http://127.0.0.1") as client:
        page, hostile = (client.get(f"/run/run/episodes/1/{n}").text for n in (1, 2))
    assert page.count('class="stage"') == 5 and "round 5" in page
    assert '<a href="#turn-0">\u2190 hears scout_0</a>' in page
    assert '<a href="#turn-1">\u2192 heard by partner_0</a>' in page
    assert "hears scout_0" in hostile and "<img" not in hostile and "\u202e" not in hostile
