"""Tests that the pictures of the results agree with the tables, and that no section lacks one."""

import math
import re
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.repository import ROOT
from tests.helpers.scripts import script

tables: Any = script("page_tables")
pictures: Any = script("table_pictures")
for module in (
    "bakeoff_pictures",
    "cooperation_pictures",
    "game_pictures",
    "language_pictures",
):
    script(module)
drawer: Any = script("draw_tables")
DOCS = ROOT / "docs"
WITHOUT_PICTURE = {
    "Results": "the table lists the sections",
    "Not shown to help": "the table repeats results of other sections, which have pictures",
}
"""Sections of the results with numbers in a table and no picture, each with the reason."""


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """Return a copy of the pages and pictures."""
    for page in drawer.PAGES:
        shutil.copy(DOCS / page, tmp_path)
    shutil.copytree(DOCS / "figures", tmp_path / "figures")
    return tmp_path


def change(docs: Path, old: str, new: str) -> None:
    """Replace a text that occurs once in the page of results."""
    page = docs / "results.md"
    text = page.read_text(encoding="utf-8")
    assert text.count(old) == 1
    page.write_text(text.replace(old, new), encoding="utf-8")


def failure(docs: Path) -> str:
    """Return the line with which the check of a folder fails."""
    with pytest.raises(SystemExit) as stopped:
        drawer.main(["--check", "--docs", str(docs)])
    assert isinstance(stopped.value.code, str) and "\n" not in stopped.value.code
    return stopped.value.code


def test_the_pictures_agree_with_the_tables() -> None:
    drawer.main(["--check"])


def test_every_section_with_numbers_has_a_picture() -> None:
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    found = {
        heading: any(re.match(r"!\[.+\]\(figures/\w+\.svg\)", line) for line in lines)
        for heading, lines in tables.sections(text)
        for table in [tables.section_tables(lines, heading)]
        if re.search(r"\d", str([each.cells for each in table]))
    }
    assert len(found) > 30
    assert {heading for heading, pictured in found.items() if not pictured} == set(WITHOUT_PICTURE)


def test_every_picture_is_in_its_page_once() -> None:
    names = [picture.name for picture in chain.from_iterable(drawer.PAGES.values())]
    assert len(names) == len(set(names)) > 50
    for page, listed in drawer.PAGES.items():
        text = (DOCS / page).read_text(encoding="utf-8")
        for picture in listed:
            assert text.count(f"(figures/{picture.name}.svg)") == 1, picture.name


def test_a_changed_number_makes_the_check_fail(docs: Path) -> None:
    change(docs, "| with the EMA | 0.332 |", "| with the EMA | 0.333 |")
    assert failure(docs) == "pictures that differ from the tables: leduc"


@pytest.mark.parametrize("edit", [b"<!-- edited -->", b""])
def test_an_edited_or_missing_picture_makes_the_check_fail(docs: Path, edit: bytes) -> None:
    path = docs / "figures/desk.svg"
    path.write_bytes(path.read_bytes().replace(b"</svg>", b"</svg>" + edit) if edit else edit)
    assert failure(docs) == "pictures that differ from the tables: desk"
    path.unlink()
    assert failure(docs) == "pictures that differ from the tables: desk"


def test_one_picture_is_drawn_again(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(docs, "| with the EMA | 0.332 |", "| with the EMA | 0.333 |")
    path = docs / "figures/leduc.svg"
    before = path.read_bytes()
    drawer.main(["--only", "leduc", "--docs", str(docs)])
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_bytes() != before
    drawer.main(["--check", "--docs", str(docs)])
    change(docs, "| with the EMA | 0.333 |", "| with the EMA | 0.332 |")
    drawn = dict(drawer.drawings(docs))["leduc"]
    assert drawer.svg(drawn) == drawer.svg(drawn)


def test_an_unreadable_cell_is_an_error_of_one_line(docs: Path) -> None:
    change(docs, "| with the EMA | 0.332 |", "| with the EMA | about 0.3 |")
    assert failure(docs) == (
        "results.md, 'Leduc poker: the last iterate, and leagues (tiny/leduc)', row 'with the EMA',"
        " column 'seed 0': 'about 0.3' is no number, 'a → b', 'x (low to high)' or dash"
    )


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (
            "| with the EMA | 0.332",
            "| with an average | 0.332",
            "no row starts with 'with the EMA'",
        ),
        (
            "| with the EMA | 0.332",
            "| with the EMA | 1 | 0.332",
            "row 'with the EMA': 6 cells of 5",
        ),
        ("## Connect Four: tree", "## Four: tree", "0 sections start with 'Connect Four'"),
        (
            "| warm start | 55 / 15 / 31 |",
            "| warm start | 55 / 15 |",
            "row 'warm start': a cell has not 3 numbers",
        ),
    ],
)
def test_a_table_of_another_form_is_an_error(docs: Path, old: str, new: str, error: str) -> None:
    change(docs, old, new)
    assert error in failure(docs)


@pytest.mark.parametrize(
    ("text", "before", "after", "value", "low", "high"),
    [
        ("0.5", (), (0.5,), 0.5, math.nan, math.nan),
        ("\u22121.5 %", (), (-1.5,), -1.5, math.nan, math.nan),
        ("2e-9", (), (2e-9,), 2e-9, math.nan, math.nan),
        ("10, 20, 30 %", (), (10, 20, 30), 20, math.nan, math.nan),
        ("1, 2 → 3, 4 %", (1, 2), (3, 4), 3.5, math.nan, math.nan),
        ("1,350 (1,285 to 1,415)", (), (1350,), 1350, 1285, 1415),
        ("+19.9 points (11.1 to 28.7)", (), (19.9,), 19.9, 11.1, 28.7),
        ("+20.8, \u221216.7: +9.0 (\u221246.4 to 64.4)", (), (20.8, -16.7), 9, -46.4, 64.4),
        ("0.5 ± 0.25", (), (0.5,), 0.5, 0.25, 0.75),
        *[(text, (), (), *[math.nan] * 3) for text in ("", "-", "\u2013", "(its own)")],
    ],
)
def test_a_cell_is_read(
    text: str,
    before: tuple[float, ...],
    after: tuple[float, ...],
    value: float,
    low: float,
    high: float,
) -> None:
    cell = tables.read_cell(text)
    assert (cell.before, cell.after) == (before, after)
    assert [cell.value, cell.low, cell.high] == pytest.approx([value, low, high], nan_ok=True)


@pytest.mark.parametrize("text", ["the same → 3", "1.2 (best)", "1 → 2 → 3", "n/a", "1 2"])
def test_a_cell_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(tables.TableError, match="is no number"):
        tables.read_cell(text)


PAGE = """# Page

## Section

| won / drawn in % | as X | as O |
|---|---|---|
| **first**, `seed` 0 | 1 / 2 | 3 / 4 |
| \u2013 child | 5 / 6 | 7 / - |

```bash
# no heading
```

| again | 1 |
|---|---|
| [link](to) | 2 |
"""


def test_a_table_is_found_in_its_section() -> None:
    table = tables.find_table(PAGE, "page.md", "Sec", 0)
    assert table.rows == ["first, seed 0", "first, seed 0: child"]
    assert table.columns == ["as X: won", "as X: drawn", "as O: won", "as O: drawn"]
    assert [table.cell(1, column).after for column in range(4)] == [(5,), (6,), (7,), ()]
    assert table.row(["first"]) == [0]
    assert table.transposed().cell(1, 0).after == (2,)
    assert tables.find_table(PAGE, "page.md", "Sec", 1).rows == ["link"]
    with pytest.raises(tables.TableError, match=r"^page.md, 'Section': has 2 tables, and not 3$"):
        tables.find_table(PAGE, "page.md", "Sec", 2)


def test_a_mean_by_step_needs_every_seed() -> None:
    page = (
        "# P\n\n| seed | step 0 | 10 | 20 |\n|---|---|---|---|\n| 0 | 1 | 2 | 3 |\n| 1 | 3 | | 5 |"
    )
    picture = pictures.StepCurves(
        name="p",
        title="p",
        label="p",
        sources=[pictures.TableSource(section="P")],
        series={"a": "01"},
    )
    drawn = picture.drawing(page, "p.md")
    assert list(drawn.x) == [0, 10, 20]
    assert drawn.series["a"] == pytest.approx([2, math.nan, 4], nan_ok=True)
    assert drawn.bands["a"][1] == pytest.approx([3, math.nan, 5], nan_ok=True)


def test_changes_are_computed_for_each_seed() -> None:
    page = "# P\n\n| | a |\n|---|---|\n| x | 1, 2 → 4, 3 |\n| y | 1 → 2, 3 |\n| z | 4 |"
    values = pictures.SeedValues(columns=["a"], side="change")
    made = [
        pictures.SeedDots(
            name="p",
            title="p",
            label="p",
            sources=[pictures.TableSource(section="P")],
            rows=[row],
            sets={"changes": values},
        )
        for row in "xyz"
    ]
    assert made[0].drawing(page, "p.md").sets == {"changes": [[3, 1]]}
    for picture, count in zip(made[1:], ("1 numbers before 2", "0 numbers before 1"), strict=True):
        with pytest.raises(tables.TableError, match=count):
            picture.drawing(page, "p.md")
