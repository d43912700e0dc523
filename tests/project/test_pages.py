"""Tests of the pages of the documentation: links, generated text, length and tables."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.helpers.repository import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
README_LINES = 150


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_links_of_a_page_have_targets(page: Path) -> None:
    broken = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue  # a web address
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        known = anchors(target.read_text(encoding="utf-8")) if target.suffix == ".md" else set()
        if not target.exists() or (anchor and anchor not in known):
            broken.append(link)
    assert not broken


def test_the_generated_page_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts/make_docs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


def test_the_table_of_algorithms_has_each_with_its_parts() -> None:
    text = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    rows = {
        row[1].strip(" `"): [cell.strip(" `") for cell in row[2:]]
        for row in (line.split("|") for line in text.splitlines() if line.startswith("| `"))
    }
    for path in sorted((ROOT / "configs/algorithm").glob("*.yaml")):
        source = path.read_text(encoding="utf-8")
        chosen: dict[str, str] = {}
        for entry in yaml.safe_load(source)["defaults"]:
            chosen |= {key.removeprefix("override /"): value for key, value in entry.items()}
        _, credit, objective, sampler, *_ = rows[path.stem]
        assert (credit, objective, sampler) == (
            chosen["credit"],
            chosen["objective"],
            chosen["sampler"],
        )
        (paper, *_) = re.findall(r"\d{4}\.\d{5}", source)
        assert paper in rows[path.stem][0]
    assert set(rows) == {path.stem for path in (ROOT / "configs/algorithm").glob("*.yaml")}
