"""Tests of the script that runs the commands of a page again."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.repository import ROOT
from tests.helpers.scripts import script

script("page_tables")
rerun: Any = script("rerun_page")

PAGE = """# Results
## Kuhn poker (`tiny/kuhn`)
```bash
./scripts/setup smollm2
echo one > runs.txt
```
```python
print("no command")
```
### A student
```bash
echo two >> runs.txt
ls scripts/rerun_page.py
```
## Broken
```bash
false | true
echo never > never.txt
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path / "page.md"


def test_blocks_have_their_section_and_no_setup() -> None:
    found = rerun.blocks(PAGE)
    assert [(each.folder, each.number) for each in found] == [
        ("kuhn_poker_tiny_kuhn", 1),
        ("kuhn_poker_tiny_kuhn", 2),
        ("broken", 1),
    ]
    assert found[0].commands == "echo one > runs.txt\n"


def test_a_section_runs_in_its_folder_and_once(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(page), "--folder", str(tmp_path / "again"), "--section", "kuhn"]
    assert rerun.main(words) == 0 and rerun.main(words) == 0
    assert (tmp_path / "again/kuhn_poker_tiny_kuhn/runs.txt").read_text() == "one\ntwo\n"
    assert "A student, block 2 of its section: done before" in capsys.readouterr().out


def test_a_failure_ends_the_script_with_a_line(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rerun.main([str(page), "--folder", str(tmp_path / "again")]) == 1
    assert (tmp_path / "again/kuhn_poker_tiny_kuhn/block_1.done").exists()
    assert not (tmp_path / "again/broken/never.txt").exists()
    error = capsys.readouterr().err
    assert (
        "Broken, block 1 of its section: exit code 1, see the end of" in error
        and error.count("\n") == 1
    )


def test_an_unknown_section_is_one_line(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rerun.main([str(page), "--section", "chess"]) == 1
    assert capsys.readouterr().err.endswith("no section 'chess' with commands\n")


@pytest.mark.parametrize("name", ["bakeoff", "results"])
def test_the_blocks_of_the_pages_are_commands_for_bash(name: str) -> None:
    found = rerun.blocks((ROOT / f"docs/{name}.md").read_text(encoding="utf-8"))
    assert len({each.section for each in found}) > 8
    for each in found:
        read = subprocess.run(
            ["bash", "-n", "-c", each.commands], check=False, capture_output=True, text=True
        )
        assert not read.returncode, (each.title, read.stderr)
