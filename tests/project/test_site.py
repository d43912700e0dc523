"""Test that the documentation site builds without a warning."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.helpers.repository import ROOT


def test_the_site_builds(tmp_path: Path) -> None:
    # --quiet would leave out warnings, and --strict counts only those that are shown.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(
        [*command, "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    api = (tmp_path / "site/api/types/index.html").read_text(encoding="utf-8")
    assert "advantage" in api and "completion_ids" in api
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|link rel=.?style)[^>]*https?://[^>]*>", text)
        assert not loaded and 'class="mermaid"' not in text, (
            page
        )  # mermaid's script is at unpkg.com
