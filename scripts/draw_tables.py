"""Draw the pictures of docs/results.md and docs/bakeoff.md from the tables of these pages.

    python scripts/draw_tables.py                # write the pictures to docs/figures/
    python scripts/draw_tables.py --only NAME    # one picture
    python scripts/draw_tables.py --check        # exit code 1 if pictures differ from the tables

The last line of a picture is a digest of the numbers that were drawn and of the drawing. So a check
needs no second drawing, and does not depend on the version of matplotlib.
"""

import argparse
import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bakeoff_pictures import BAKEOFF
from cooperation_pictures import COOPERATION_PICTURES
from game_pictures import GAME_PICTURES
from language_pictures import LANGUAGE_PICTURES
from page_tables import TableError
from table_pictures import TablePicture

from selfplay.study.figure_files import printed
from selfplay.study.plots import Drawing

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES: dict[str, Sequence[TablePicture]] = {
    "results.md": [*GAME_PICTURES, *COOPERATION_PICTURES, *LANGUAGE_PICTURES],
    "bakeoff.md": BAKEOFF,
}
"""Pages, each with its pictures."""
MARK = b"<!-- scripts/draw_tables.py "


def drawings(docs: Path) -> Iterator[tuple[str, Drawing]]:
    """Yield (name, drawing) of each picture, from the pages in a folder."""
    for page, pictures in PAGES.items():
        text = (docs / page).read_text(encoding="utf-8")
        for picture in pictures:
            yield picture.name, picture.drawing(text, page)


def svg(drawing: Drawing) -> bytes:
    """Return the content of the file of a picture: SVG, and the digest in a comment."""
    kind, drawn = next(printed(drawing))
    assert kind == "svg"
    return drawn + _last_line(drawing, drawn)


def differs(drawing: Drawing, path: Path) -> bool:
    """Return True if a file is missing, was edited, or was drawn from other numbers or names."""
    drawn, mark, rest = (path.read_bytes() if path.exists() else b"").rpartition(MARK)
    return mark + rest != _last_line(drawing, drawn)


def _last_line(drawing: Drawing, drawn: bytes) -> bytes:
    digest = hashlib.sha256(repr(drawing).encode() + drawn).hexdigest()
    return MARK + digest.encode() + b" -->\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write or check the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", metavar="NAME", help="only the picture of this name")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the pages")
    options = parser.parse_args(arguments)
    try:
        found = dict(drawings(options.docs))
    except TableError as error:
        sys.exit(str(error))
    if options.only is not None:
        if options.only not in found:
            parser.error(f"no picture {options.only}: {', '.join(found)}")
        found = {options.only: found[options.only]}
    paths = {name: options.docs / f"figures/{name}.svg" for name in found}
    if options.check:
        changed = [name for name in found if differs(found[name], paths[name])]
        if changed:
            sys.exit(f"pictures that differ from the tables: {', '.join(changed)}")
        return
    for name, drawing in found.items():
        paths[name].write_bytes(svg(drawing))
        print(paths[name])


if __name__ == "__main__":
    main()
