"""Tests of a game on a page: private views, moves that count once, and forged requests."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from selfplay.engines.human import HumanQuestion
from selfplay.experiment.human_play import YOU, table
from selfplay.run.record_reader import decode, record_of
from selfplay.types import Observation
from selfplay.viewer import play_pages
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.play_pages import PlayPages, PlaySession, application
from selfplay.viewer.server import application as viewer
from selfplay.viewer.web import LONGEST_FORM
from tests.helpers.command_process import one_line, run
from tests.helpers.recorded_run import HOSTILE

LOCAL = "http://127.0.0.1"
MINIMAX = "arenas.games.tic_tac_toe.minimax"


def question(messages: list[dict[str, str]]) -> HumanQuestion:
    return HumanQuestion(agent="player_0", messages=messages)


class Visitor:
    """A person who has the page open."""

    def __init__(self, client: TestClient, pages: PlayPages) -> None:
        self.client, self.pages, self.session = client, pages, pages.session

    def page(self) -> str:
        """Return the page that a reload shows."""
        return self.client.get("/").text

    def send(self, action: str, **fields: object) -> Any:
        """Send a form of the page with its secret; do not follow a redirect."""
        data = {"form": self.pages.secret, **{name: str(each) for name, each in fields.items()}}
        return self.client.post(f"/{action}", data=data, follow_redirects=False)

    def begin(self, agent: str = "player_0", game: int = 1) -> Any:
        """Take a seat, and wait for the first question."""
        answer = self.send("begin", agent=agent, game=game)
        self.session.settle(20)
        return answer

    def move(self, text: str, turn: int, game: int = 1) -> Any:
        """Send a text, and wait until the other agents have moved."""
        answer = self.send("move", game=game, turn=turn, text=text)
        self.session.settle(20)
        return answer


@contextmanager
def visiting(target: str, script: str = MINIMAX, **settings: str) -> Iterator[Visitor]:
    session = PlaySession(seed=0)
    with table(target, ask=session.ask, script=script) as place:
        pages = PlayPages(place, session, title="A game", agent="")
        with TestClient(application(pages, **settings), base_url=LOCAL) as client:
            try:
                yield Visitor(client, pages)
            finally:
                session.close()


@pytest.fixture
def visitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Visitor]:
    monkeypatch.chdir(tmp_path)
    with visiting("tic_tac_toe") as made:
        yield made


def free(page: str) -> str:
    """Return the first square that the latest prompt on the page lists as free."""
    return re.findall(r"nothing else: (\d)", page)[-1]


def saved() -> list[Path]:
    return sorted(Path("games").glob("*"))


def broken(agent: str, observation: Observation, rng: object) -> str:
    raise KeyError("no such square")


def test_a_game_is_played_from_the_page_saved_and_shown_by_the_viewer(
    visitor: Visitor, tmp_path: Path
) -> None:
    assert "Begin" in visitor.page() and "player_1" in visitor.page()
    assert visitor.begin().status_code == 303
    turn = 1
    while "<button>Send" in (page := visitor.page()):
        assert visitor.client.get("/record").status_code == 404
        assert visitor.move(free(page), turn).status_code == 303
        turn += 1
    (path,) = saved()
    assert f"saved as games/{path.name}" in page and "player_0, you" in page
    record = record_of(decode(path.read_bytes()), step=0, line=1, path=path)
    assert record.episode == visitor.session.seen.episode
    assert [t.policy for t in record.episode.turns if t.agent == "player_0"] == [YOU] * (turn - 1)
    assert visitor.client.get("/record").text.count('class="who"') == len(record.episode.turns)
    (tmp_path / "games/broken.jsonl").write_text("{}\n")
    catalogue = RunCatalogue([Path("games")])
    with TestClient(viewer(catalogue, cache=tmp_path / "cache"), base_url=LOCAL) as client:
        assert "games of a person <b>2</b>" in client.get("/").text
        listed = client.get("/run/games").text
        assert listed == client.get("/run/games/games").text and "not a recorded episode" in listed
        (link,) = re.findall(r'href="(/run/games/games/\d[^"]+)"', listed)
        assert "played by a person as player_0" in client.get(link).text
        assert client.get("/run/games/games/none").status_code == 404


def held(text: str) -> list[str]:
    """Return the cards that a text of Kuhn poker says a player holds."""
    return re.findall(r"You hold the (\w+)", text)


def test_a_seat_sees_only_its_own_card_until_the_game_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with visiting("kuhn", "arenas.games.opponents.random_legal") as visitor:
        visitor.begin("player_1")
        pages, turn = [], 1
        while "<button>Send" in (page := visitor.page()):
            pages.append(page)
            visitor.move("pass", turn)
            turn += 1
        episode = visitor.session.seen.episode
        assert episode is not None and pages
        cards = {t.agent: held(str(t.messages))[0] for t in episode.turns}
        for page in pages:
            assert set(held(page)) == {cards["player_1"]}
        whole = visitor.client.get("/record").text
        assert set(held(whole)) == set(cards.values())


def test_a_move_that_is_sent_again_or_from_another_tab_counts_once(visitor: Visitor) -> None:
    visitor.begin()
    visitor.begin()  # a second click
    assert visitor.session.seen.number == 1
    assert visitor.move("1", 1).status_code == 303
    seen = visitor.session.seen
    assert visitor.move("1", 1).status_code == 303 and visitor.session.seen == seen
    late = visitor.move("2", 1)  # another tab that still shows the first turn
    assert late.status_code == 409 and "game has continued" in late.text and ">2</pre>" in late.text
    for turn, game in ((3, 1), (2, 2), (0, 1), (2, 0)):
        assert visitor.move("9", turn, game).status_code == 409
    assert visitor.begin("player_1", 2).status_code == 409
    assert visitor.session.seen == seen and "<button>Send" in visitor.page()
    assert visitor.send("move", game=1, turn="x", text="9").status_code == 403


def test_an_open_page_is_sent_again_only_if_it_has_changed(visitor: Visitor) -> None:
    first = visitor.client.get("/")
    tag = {"If-None-Match": first.headers["ETag"]}
    assert visitor.client.get("/", headers=tag).status_code == 304
    visitor.begin()
    second = visitor.client.get("/", headers=tag)
    assert second.status_code == 200 and second.headers["X-Look-Again"] == str(play_pages.LATER)
    with visiting("tic_tac_toe") as other:  # a later server of the port, as far in its game
        other.begin()
        tag = {"If-None-Match": second.headers["ETag"]}
        assert visitor.client.get("/", headers=tag).status_code == 304
        assert other.client.get("/", headers=tag).status_code == 200


def test_a_forged_request_makes_no_move(visitor: Visitor) -> None:
    visitor.begin()
    fields = {"game": "1", "turn": "1", "text": "1"}
    secret = {**fields, "form": visitor.pages.secret}
    client = visitor.client
    for forged in ({}, fields, {**fields, "form": "x"}, {**fields, "form": "\ufffd"}):
        assert client.post("/move", data=forged).status_code == 403
    for origin in ("https://evil.example", "null", "http://127.0.0.1:9"):
        sent = client.post("/move", data=secret, headers={"Origin": origin})
        assert sent.status_code == 403 and "open the page again" in sent.text
    assert client.post("/move", data=secret, headers={"Host": "evil.example"}).status_code == 400
    for odd in (b"\xff\xfe", b"form=%ED%A0%80&game=%FF"):
        assert client.post("/move", content=odd).status_code == 403
    assert client.post("/move", content=b"&" * (LONGEST_FORM + 1)).status_code == 403
    assert client.get("/move").status_code == 405
    assert visitor.session.seen.exchanges[0].said is None
    sent = client.post("/move", data=secret, headers={"Origin": LOCAL}, follow_redirects=False)
    assert sent.status_code == 303


def test_a_server_with_a_token_refuses_requests_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with visiting("tic_tac_toe", token="secret") as visitor:
        assert visitor.client.get("/").status_code == 403
        assert visitor.begin().status_code == 403 and visitor.session.seen.number == 0
        visitor.client.get("/?token=secret")
        assert visitor.begin().status_code == 303


@pytest.mark.parametrize(
    "text", [HOSTILE.replace("\ud800", "\N{REPLACEMENT CHARACTER}"), "a" * 1_000_000]
)
def test_text_of_the_person_is_shown_and_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with visiting("signal", "arenas.games.opponents.random_legal") as visitor:
        visitor.begin("scout_0")
        visitor.move(text, 1)  # a message
        visitor.move(text, 2)  # an illegal move, which is requested again
        pages = [visitor.page()]
        assert "is not a legal move" in pages[0]
        visitor.move("home", 3)
        pages += [visitor.page(), visitor.client.get("/record").text]
        for page in pages:
            assert len(re.findall(r"<script\b", page)) == 1 and "<img" not in page
            assert "\u202e" not in page and "\x1b" not in page and len(page) < 400_000
        (path,) = saved()
        record = record_of(decode(path.read_bytes()), step=0, line=1, path=path)
        assert record.episode.turns[0].text == text


def test_an_illegal_move_is_requested_again_with_the_legal_moves(visitor: Visitor) -> None:
    assert "Three marks in a row win" in visitor.page()  # the rules
    visitor.begin()
    page = visitor.page()
    buttons = re.findall(r'<button name="text" value="(\d)" formnovalidate>', page)
    assert buttons == [str(square) for square in range(1, 10)]
    visitor.move("12", 1)
    page = visitor.page()
    assert "&#39;12&#39; is not a legal move" in page and "<button>Send" in page
    assert page.count("legal move</b>") == 1
    visitor.move("5", 2)
    assert "is not a legal move" in visitor.page() and "<button>Send" in visitor.page()
    visitor.send("leave", game=1)
    visitor.session.settle(20)
    assert "Not saved" in visitor.page()


def test_text_of_other_agents_is_shown_and_never_run(visitor: Visitor) -> None:
    said = [
        {"role": "system", "content": "Rules."},
        {"role": "user", "content": HOSTILE + "b" * 1_000_000},
    ]
    asked = threading.Thread(target=visitor.session.ask, args=(question(said),), daemon=True)
    asked.start()
    while visitor.session.seen.phase != "yours":
        time.sleep(0.01)
    page = visitor.page()
    assert len(re.findall(r"<script\b", page)) == 1 and "<img" not in page
    assert "\u202e" not in page and "\x1b" not in page and len(page) < 300_000
    assert "Rules." in page and "more characters" in page
    visitor.send("move", game=0, turn=1, text="x")  # no game is in progress to wait for
    asked.join(20)
    assert not asked.is_alive()
    again = [
        *said,
        {"role": "assistant", "content": "x"},
        said[0],
        {"role": "user", "content": "?"},
    ]
    asked = threading.Thread(target=visitor.session.ask, args=(question(again),), daemon=True)
    asked.start()
    visitor.session.settle(20)
    assert visitor.page().count("Rules.") == 1  # earlier messages are not repeated
    visitor.send("move", game=0, turn=2, text="y")
    asked.join(20)


def test_a_person_who_leaves_saves_nothing_and_can_begin_again(visitor: Visitor) -> None:
    visitor.begin()
    visitor.send("leave", game=1)
    visitor.session.settle(20)
    assert "Not saved" in visitor.page() and saved() == []
    assert visitor.begin("player_1", 2).status_code == 303
    assert "Your move, as player_1" in visitor.page()
    visitor.session.close()  # the server ends
    thread = visitor.session._game
    assert thread is not None and not thread.is_alive() and saved() == []


def test_an_error_of_the_game_is_shown_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with visiting("tic_tac_toe", f"{__name__}.broken") as visitor:
        visitor.begin("player_1")
        page = visitor.page()
        assert "failed: KeyError" in page and "Begin" not in page
        assert visitor.begin("player_1", 2).status_code == 409
        assert visitor.send("begin", agent="player_7", game=2).status_code == 403


def test_two_games_of_one_second_are_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "same")
    with table("tic_tac_toe", ask=lambda asked: asked.legal[0], script=MINIMAX) as place:
        episode = place.game("player_0", seed=0, number=0)
        assert place.save(episode) != place.save(episode) and len(saved()) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tic_tac_toe", "--as", "player_7"), "--as player_7: no such seat"),
        (("tic_tac_toe", "--games", "2"), "--games is for the terminal"),
        (("tic_tac_toe", "--port", "99999"), "choose another with --port"),
        (("tic_tac_toe", "--host", "203.0.113.9"), "cannot listen on 203.0.113.9"),
        ((".",), "not a run folder (config.yaml is missing)"),
        (("nothing",), "no run folder and no arena 'nothing'"),
    ],
)
def test_wrong_arguments_of_the_command_give_an_error_of_one_line(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    outcome = run("play", *arguments, "--page", cwd=tmp_path)
    assert outcome.code == 2 and words in one_line(outcome.err)
