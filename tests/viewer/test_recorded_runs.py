"""Tests of all pages of short recorded runs in a browser: width, phone, dark mode, keyboard.

The tests write a picture of each page to the folder in SELFPLAY_SCREENSHOTS, if it is set.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import run as call

import pytest

from tests.helpers.browser import Browser, Tab, browser
from tests.helpers.viewer_run import served

pytestmark = [pytest.mark.slow]

PHONE = 360
SHORT = ("run.steps=2", "run.threads=1", "run.episodes_every=1")
RUNS = {
    "quickstart": 400,  # with fewer steps, the model proposes too few valid tasks to begin
    "signal": 3,
    "dilemma": 3,
    "tic_tac_toe_league": 3,
    "memory": 3,
    "debate": 3,
}
"""Number of warm-start steps of each experiment in `tiny`."""
WATCH = (
    "window.problems = [];"
    "addEventListener('error', (e) => problems.push(e.message));"
    "addEventListener('unhandledrejection', (e) => problems.push(String(e.reason)));"
    "addEventListener('securitypolicyviolation', (e) => problems.push(e.violatedDirective));"
)
LOADED = "performance.getEntriesByType('resource').map((each) => each.name)"
"""JavaScript for the addresses that a page has loaded."""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not shutil.which("chromium"):
        pytest.skip("needs the browser chromium")
    with browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


def train(folder: Path, name: str) -> Path:
    """Train an experiment for two steps, and measure studies of its records."""
    wanted = [f"+experiment=tiny/{name}", f"run.folder={folder}", f"run.name={name}", *SHORT]
    made = call(
        [sys.executable, "-m", "selfplay", "train", *wanted, f"warmstart.steps={RUNS[name]}"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert made.returncode == 0, made.stderr[-2000:]
    for measure in ("language", "behaviour"):  # a game has messages, legal moves, or both
        call([sys.executable, "-m", "selfplay", "study", measure, str(folder / name)])
    assert [*(folder / name / "studies").glob("*.json")]
    return folder / name


def pages(tab: Tab, address: str, run: str) -> list[str]:
    """Return the addresses of all pages in the run's navigation, and of one entry of each list."""
    tab.go(f"{address}run/{run}")
    hrefs = tab.run("[...document.querySelectorAll('main nav a')].map((a) => a.href)")
    found = [address, f"{address}tags?run={run}", f"{address}run/{run}", *hrefs]
    for listing in ("episodes", "groups", "studies"):
        tab.go(f"{address}run/{run}/{listing}")
        links = tab.run("[...document.querySelectorAll('main a')].map((a) => a.href)")
        one = re.compile(rf"/run/{run}/{listing}/[^?#]+$")
        found += [link for link in links if one.search(link)][:1]
    return list(dict.fromkeys(found))


def check(tab: Tab, page: str, address: str, *, width: int) -> None:
    """Check that a page fits, has text, has no problem and loads nothing from elsewhere."""
    tab.wait("document.querySelector('main').innerText.length > 10")
    assert tab.run("document.documentElement.scrollWidth") <= width, page
    assert tab.run("problems") == [], page
    assert all(name.startswith(address) for name in tab.run(LOADED)), page
    assert "Traceback" not in tab.text(), page


@pytest.mark.parametrize("name", RUNS)
def test_every_page_fits_and_has_no_problem(shown: Browser, tmp_path: Path, name: str) -> None:
    run = train(tmp_path / "runs", name)
    pictures = os.environ.get("SELFPLAY_SCREENSHOTS")
    with served(run) as address:
        tab = shown.open(address)
        tab.before(WATCH)
        found = pages(tab, address, name)
        assert len(found) > 10
        for width, dark in ((1000, False), (PHONE, True)):
            tab.resize(width)
            tab.dark(dark)
            for number, page in enumerate(found):
                tab.go(page)
                check(tab, page, address, width=width)
                paper = tab.run("getComputedStyle(document.body).backgroundColor")
                assert (int(re.findall(r"\d+", paper)[0]) < 128) == dark, page
                if pictures:
                    tab.picture(Path(pictures) / f"{name}-{width}-{number:02}.png")


def test_pages_are_used_by_the_keyboard(shown: Browser, tmp_path: Path) -> None:
    run = train(tmp_path / "runs", "signal")
    with served(run) as address:
        tab = shown.open(f"{address}run/signal")
        tab.press("Tab")
        tab.press("Tab")
        assert tab.run("document.activeElement.tagName") == "A"
        tab.press("Enter")
        tab.wait("location.pathname !== '/run/signal' && document.readyState === 'complete'")
        tab.go(f"{address}run/signal/language")
        tab.run("document.querySelector('.slider input[type=range]').focus()")
        before = tab.run("document.querySelector('.slider output').textContent")
        tab.press("ArrowLeft")
        tab.wait(f"document.querySelector('.slider output').textContent !== '{before}'")
        tab.go(f"{address}run/signal/episodes/1/1")
        tab.press("j")
        tab.wait("location.pathname !== '/run/signal/episodes/1/1'")
        tab.wait("document.readyState === 'complete' && !!document.querySelector('main')")
        tab.press("k")
        tab.wait("location.pathname === '/run/signal/episodes/1/1'")
        tab.go(f"{address}tags?run=signal")
        tab.run("document.querySelector('input[name=tags]').focus()")
        tab.run("document.querySelector('input[name=tags]').value = 'good paper'")
        tab.press("Tab")
        tab.press("Enter")  # the button that adds
        tab.wait("document.querySelectorAll('a.tag').length === 2")
        assert (run / "tags.json").read_text() == '["good", "paper"]\n'
        tab.run("document.querySelector('a.tag').click()")
        tab.wait("location.search === '?words=tag%3Agood' && !!document.querySelector('a.tag')")
