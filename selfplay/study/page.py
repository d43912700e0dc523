"""Page of a study: one HTML file with its pictures and its command. It needs no network."""

import json
from pathlib import Path

from markupsafe import Markup

from selfplay.run.directory import reporting_disk, write_atomic
from selfplay.run.report.html import render, write_page
from selfplay.study.figure_files import save
from selfplay.study.plots import ROWS_WIDTH, inline
from selfplay.study.result import Result, estimate_rows


def write(result: Result, folder: Path, *, command: str) -> Path:
    """Write `<measure>.html`, `.json` and the pictures into a folder; return the page's path.

    The pictures for print are written last, because they take the longest: an interrupt then loses
    neither the page nor the JSON.

    Raises RunError if the folder cannot be written to.
    """
    with reporting_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        content = {**result.to_json(), "command": command}
        write_atomic(folder / f"{result.measure}.json", json.dumps(content, indent=2) + "\n")
    differing, equal = result.by_equality()
    page = render(
        "study.html.jinja",
        result=result,
        lines=estimate_rows(differing),
        equal=estimate_rows(equal),
        drawings=[(each, Markup(inline(each))) for each in result.drawings],
        broad=ROWS_WIDTH,
        command=command,
    )
    written = write_page(folder / f"{result.measure}.html", page)
    save(result.drawings, folder, result.measure)
    return written
