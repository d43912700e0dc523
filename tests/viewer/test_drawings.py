"""Tests of drawings of arenas: of games and of pixels, as SVG, and hostile ones on pages."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from arenas.external import pettingzoo
from arenas.external.pictures import MOST_SQUARES, grid, picture
from arenas.games import kuhn, leduc, matrix, tic_tac_toe
from selfplay.arena import Arena
from selfplay.drawing import MOST_SHAPES, Shape, StateDrawing
from selfplay.run.drawings import DrawnEpisode, match_of, read_drawings, write_drawings
from selfplay.run.record_reader import episodes_of
from selfplay.types import Task, from_json, to_json
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.drawing_svg import svg_of
from selfplay.viewer.server import application
from tests.helpers.recorded_run import HOSTILE
from tests.helpers.viewer_run import episode, write

TABLE = {"actions": ["go", "stay"], "payoffs": [[1, 0], [0, 2]]}


def words(drawing: StateDrawing | None) -> list[str]:
    assert drawing is not None
    return [shape.text for shape in drawing.shapes if shape.kind == "text"]


def begun(arena: Arena, **payload: Any) -> Arena:
    arena.begin(Task(id="t", payload=payload), 1)
    return arena


def test_every_game_draws_its_state() -> None:
    board = begun(tic_tac_toe.raw_env(), board="X.O......")
    assert words(board.draw()) == ["X", "O"]
    board.play_stage({"player_0": "5"})
    assert words(board.draw()) == ["X", "O", "X"]
    hand = begun(kuhn.raw_env(), cards=["K", "J"])
    assert words(hand.draw()) == ["player_0", "K", "player_1", "J", "no move yet"]
    assert words(hand.draw("player_1"))[:4] == ["player_0", "?", "player_1", "J"]
    hand = begun(leduc.raw_env(), cards=["K", "J", "Q"])
    assert words(hand.draw())[:6] == ["player_0", "K", "player_1", "J", "shared", "?"]
    assert "K" not in words(hand.draw("player_1"))
    hand.play_stage({"player_0": "call"})
    hand.play_stage({"player_1": "call"})
    assert words(hand.draw())[4:] == ["shared", "Q", "call, call", "chips 1 and 1"]


def test_a_matrix_marks_the_last_moves_and_hides_an_unknown_state() -> None:
    game = begun(matrix.raw_env(**TABLE, rounds=2))
    assert words(game.draw()) == ["go", "stay", "go", "stay", "1, 1", "0, 0", "0, 0", "2, 2"]
    assert not any(shape.kind == "rectangle" for shape in game.draw().shapes)  # type: ignore
    game.play_stage({"player_0": "stay", "player_1": "go"})
    (frame,) = [shape for shape in game.draw().shapes if shape.kind == "rectangle"]  # type: ignore
    cell = [shape for shape in game.draw().shapes if shape.text == "0, 0"][1]  # type: ignore
    assert frame.x < cell.x < frame.x + frame.width and frame.y < cell.y < frame.y + frame.height
    states = {"a": [[1, 0], [0, 2]], "b": [[3, 0], [0, 4]]}
    game = begun(matrix.raw_env(actions=["x", "y"], payoffs=states, informed=[0]), state="b")
    assert "3, 3" in words(game.draw()) and "3, 3" in words(game.draw("player_0"))
    assert words(game.draw("player_1"))[4:] == ["?"] * 4


def test_boards_of_pettingzoo_are_drawn() -> None:
    game = begun(pettingzoo.raw_env(env="classic/connect_four-v3"))
    legal = game.view("player_0").fields["legal"]
    game.play_stage({"player_0": legal[3]})
    drawing = game.draw()
    assert drawing is not None
    (disc,) = [shape for shape in drawing.shapes if shape.kind == "ellipse"]
    assert (disc.x // 40, disc.y // 40, disc.color) == (3, 5, "1")
    assert (drawing.width, drawing.height) == (7 * 40, 6 * 40)
    assert grid("no board", title="") is None and grid("1 2\n1", title="") is None


def test_an_array_of_pixels_becomes_few_squares() -> None:
    pixels = np.zeros((200, 100, 3), np.uint8)
    pixels[:100] = (255, 0, 0)
    drawing = picture(pixels, title="halves")
    assert drawing is not None and (drawing.width, drawing.height) == (160, 320)
    assert {shape.color for shape in drawing.shapes} == {"#ff0000", "#000000"}
    assert len(drawing.shapes) == 96  # one for each row of squares
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    coarse = picture(noise, title="noise")
    assert coarse is not None and len(coarse.shapes) <= MOST_SQUARES
    assert picture(np.zeros((3, 3)), title="") is None and picture(None, title="") is None


def test_svg_holds_no_markup_of_a_drawing() -> None:
    shapes = [Shape(kind="text", x=0, y=0, text=HOSTILE), Shape(kind="line", x=1, y=2, width=3)]
    svg = svg_of(StateDrawing(title=HOSTILE * 9, width=10, height=10, shapes=tuple(shapes)))
    assert re.findall(r"<(\w+)", svg) == ["svg", "title", "text", "line"]
    assert "\u202e" not in svg and "\x1b" not in svg and len(svg) < 4_000
    fields = {"title": "t", "width": 5, "height": 5}
    for wrong in (
        {"kind": "script", "x": 0, "y": 0},
        {"kind": "text", "x": 0, "y": 0, "color": '#fff"><script>'},
        {"kind": "text", "x": 0, "y": 0, "color": "ink\n"},
        {"kind": "text", "x": float("nan"), "y": 0},
        {"kind": "text", "x": 1e300, "y": 0},
    ):
        with pytest.raises(ValueError, match="validation error"):
            from_json(StateDrawing, {**fields, "shapes": [wrong]})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    made.mkdir()
    (made / "config.yaml").write_text("seed: 0\n")
    write(made, 1, [episode("one", 0.0), episode("two", 0.0)])
    return made


def test_pages_show_the_drawings_of_the_same_episode_only(run: Path, tmp_path: Path) -> None:
    first, second = (record.episode for record in episodes_of(run, 1))
    shapes = (Shape(kind="text", x=0, y=0, text="here</svg><script>"),)
    drawing = StateDrawing(title="a state", width=9, height=9, shapes=shapes)
    drawn = [
        DrawnEpisode(line=line, match=match_of(of), drawings=(drawing,), turns=(0,), end=0)
        for line, of in ((1, first), (2, replace(second, seed=7)))
    ]
    path = write_drawings(run, 1, drawn)
    with TestClient(
        application(RunCatalogue([run]), cache=tmp_path / "c"), base_url="http://127.0.0.1"
    ) as client:
        page = client.get("/run/made/episodes/1/1").text
        assert page.count('<svg class="drawing"') == 2 and "here&lt;/svg&gt;" in page
        assert page.count("<script") == 1
        assert "<svg" not in client.get("/run/made/episodes/1/2").text
        data = client.get("/run/made/episodes/1/1.json").json()
        assert data["drawings"]["drawings"] == [to_json(drawing)]
        assert data["episode"]["turns"][0]["text"] == "one"
        many = to_json(replace(drawing, shapes=shapes * (MOST_SHAPES + 1)))
        for damage, reason in (
            ({"turns": ["x"]}, "no drawings of line 1"),
            ({"drawings": [{**to_json(drawing), "width": -1}]}, "no drawings of line 1"),
            ({"drawings": [many]}, "a drawing of more than"),
        ):
            path.write_text(
                json.dumps({**to_json(drawn[0]), **damage}, separators=(",", ":")) + "\n"
            )
            answer = client.get("/run/made/episodes/1/1")
            assert answer.status_code == 404 and reason in answer.text
        path.write_text(json.dumps({**to_json(drawn[0]), "turns": [7]}, separators=(",", ":")))
        assert client.get("/run/made/episodes/1/1").text.count("<svg") == 1
        path.unlink()
        path.symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").write_text("secret\n")
        assert "leads out of" in client.get("/run/made/episodes/1/1").text
    assert read_drawings(run / "none", next(iter(episodes_of(run, 1)))) is None
