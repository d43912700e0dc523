"""The study of language: intervals contain the values of planted codes."""

import json
import math
from pathlib import Path

import pytest

from selfplay.errors import ConfigError, RunError
from selfplay.study.measures.language import study
from selfplay.study.plots import MatrixPlot
from tests.helpers.planted_usage import code, episode, turn, write_step

NOISE = {"north": {"x": 0.5, "y": 0.5}, "south": {"x": 0.5, "y": 0.5}}
CODE = {"north": {"x": 0.9, "y": 0.1}, "south": {"x": 0.2, "y": 0.8}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run with noise at steps 2 and 4, a word that ends at step 2, and a code at step 6."""
    made = tmp_path_factory.mktemp("runs") / "planted"
    code(made, 2, {view: {**words, "old": 1.0} for view, words in NOISE.items()})
    code(made, 4, NOISE)
    code(made, 6, CODE)
    return made


def truth(chances: dict[str, dict[str, float]]) -> float:
    """Return the mutual information of word and view in nats, with equally likely views."""
    total = 0.0
    for words in chances.values():
        for word, chance in words.items():
            mean = sum(each[word] for each in chances.values()) / len(chances)
            total += chance / len(chances) * math.log(chance / mean)
    return total


def test_a_planted_code_is_within_its_intervals(run: Path) -> None:
    found = study(run, step=6)
    (information,) = found.estimates
    assert information.low <= truth(CODE) <= information.high
    assert information.p is not None and information.p < 0.01
    (speaker,) = found.more["speakers"]
    cells = {(c["view"], c["action"]): c for c in speaker["tables"][0]["cells"]}
    for view, words in CODE.items():
        for word, chance in words.items():
            cell = cells[view, word]
            assert cell["ci_low"] <= chance <= cell["ci_high"]
            assert cell["ci_high"] - cell["ci_low"] < 0.15


def test_noise_carries_no_information_and_words_are_born_and_die(run: Path) -> None:
    found = study(run)
    before = found.estimates[1]
    assert before.low <= 0.003 and before.p is not None and before.p > 0.01
    (speaker,) = found.more["speakers"]
    numbers = {row["step"]: row for row in speaker["steps"]}
    assert abs(numbers[4]["information"]) < 0.01 < 0.2 < numbers[6]["information"]
    assert numbers[6]["information"] == pytest.approx(truth(CODE), abs=0.06)
    assert [word["text"] for word in speaker["dying"]] == ["old"]
    json.dumps(found.to_json(), allow_nan=False)


def test_words_of_texts_are_counted_where_no_turn_is_a_message(tmp_path: Path) -> None:
    said = ["the red fox", "the blue fox"] * 20
    turns = [episode([turn("talker_0", "go", text, 0)], n) for n, text in enumerate(said)]
    write_step(tmp_path, 1, turns)
    found = study(tmp_path, step=1)
    kinds = {each["kind"]: each for each in found.more["speakers"]}
    assert set(kinds) == {"text", "text words"} and "no turn on record" in found.notes[0]
    cells = {c["action"]: c["value"] for c in kinds["text words"]["tables"][0]["cells"]}
    assert cells == {"the": 1.0, "fox": 1.0, "red": 0.5, "blue": 0.5}


def test_illegal_messages_carry_their_information(tmp_path: Path) -> None:
    """One view has a legal word, and each of the other two has its own illegal word."""
    said = {"north": "x", "south": "y", "east": "z"}
    made = [
        episode(
            [
                turn(
                    "scout_0",
                    (saw := list(said)[number % 3]),
                    said[saw],
                    0,
                    spoken=True,
                    legal=("x",),
                    info={} if saw == "north" else {"verdict": "illegal"},
                )
            ],
            number,
        )
        for number in range(120)
    ]
    write_step(tmp_path, 1, made)
    found = study(tmp_path, step=1)
    assert found.estimates[0].value == pytest.approx(math.log(3), abs=0.03)
    (speaker,) = found.more["speakers"]
    cells = {
        (cell["view"], cell["action"]): cell["value"] for cell in speaker["tables"][0]["cells"]
    }
    assert cells == dict.fromkeys(said.items(), 1.0)


def test_a_table_has_the_messages_that_were_said_the_most_frequent_first(tmp_path: Path) -> None:
    """The order of the legal words is not used: a terminal shows only the first columns."""
    legal = ("a", "b", "c", "d", "e", "f", "g")
    said = ["g"] * 20 + ["d"] * 12
    made = [
        episode([turn("scout_0", "go", text, 0, spoken=True, legal=legal)], number)
        for number, text in enumerate(said)
    ]
    write_step(tmp_path, 1, made)
    (table,) = study(tmp_path, step=1).tables
    assert list(table.columns) == ["view", "uses", "g", "d"]


def test_words_are_left_out_if_most_texts_are_a_single_word(tmp_path: Path) -> None:
    said = [*["yes"] * 36, *["quite red"] * 4]
    turns = [episode([turn("talker_0", "go", text, 0)], n) for n, text in enumerate(said)]
    write_step(tmp_path, 1, turns)
    assert [each["kind"] for each in study(tmp_path, step=1).more["speakers"]] == ["text"]


def test_records_that_cannot_be_measured_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nearest recorded step is 2"):
        study(run, step=3)
    with pytest.raises(ConfigError, match="--agent scout"):
        study(run, agent="scout")
    code(tmp_path / "moves", 1, NOISE, kind="move")
    with pytest.raises(ConfigError, match="only moves"):
        study(tmp_path / "moves")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/config.yaml").write_text("seed: 0\n")
    with pytest.raises(RunError, match="recorded no episodes"):
        study(tmp_path / "empty")


def test_a_view_seen_rarely_has_no_row_and_no_picture(tmp_path: Path) -> None:
    seen = ["Say:"] * 24 + [f"You gave {number}. Say:" for number in range(60)]
    write_step(
        tmp_path,
        1,
        [
            episode([turn("scout_0", saw, "xy"[n % 2], 0, spoken=True)], n)
            for n, saw in enumerate(seen)
        ],
    )
    found = study(tmp_path)
    table, counts = found.tables
    assert [row[:2] for row in table.rows] == [["Say:", 24]]
    assert list(counts.rows) == [["scout_0, message, step 1", 1, 24, 60, 60, 0, 0]]
    assert any("60 situations with 60 uses, seen fewer than 20 times" in n for n in found.notes)
    (matrix,) = [each for each in found.drawings if isinstance(each, MatrixPlot)]
    assert list(matrix.rows) == ["Say:"]
    assert found.params["least"] == 20
    assert len(found.more["speakers"][0]["tables"][0]["cells"]) == 62, "the JSON has all views"
    assert len(study(tmp_path, least=1).tables[0].rows) == 40
    none = study(tmp_path, least=25)
    assert any("--least 24 or less" in note for note in none.notes)
    assert not any(isinstance(each, MatrixPlot) for each in none.drawings)


def test_agents_that_are_left_out_are_in_a_note(tmp_path: Path) -> None:
    def step(run: Path, *, spoken: bool) -> Path:
        made = [
            episode(
                [
                    turn("scout_0", "go", "x", 0, spoken=spoken),
                    turn("hunter_0", "go", "stay", 1, legal=("stay", "go")),
                    turn("writer_0", "go", "text", 2),
                ],
                number,
            )
            for number in range(24)
        ]
        write_step(run, 1, made)
        return run

    moves = "left out: hunter_0; turns whose view lists legal moves are measured by selfplay study"
    notes = study(step(tmp_path / "texts", spoken=False)).notes
    assert [note for note in notes if "left out" in note] == [f"{moves} behaviour"]
    said = study(step(tmp_path / "messages", spoken=True)).notes
    assert [note for note in said if "left out" in note] == [
        f"{moves} behaviour",
        "left out: writer_0; no turn of theirs is a message",
    ]
    alone = study(step(tmp_path / "alone", spoken=True), agent="scout_0").notes
    assert not [note for note in alone if "left out" in note]
