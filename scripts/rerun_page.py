"""Runs the commands of a page with results again, such as docs/bakeoff.md, section by section.

Each section (a heading with ##) has a folder of its own, which its subsections share: sections may
use the same names of runs, and subsections may use runs of their section. A block of
commands that has ended well is not run again: the same command continues where it stopped. The
output of block N is in `block_N.log` of the section's folder. Lines with ./scripts/setup are left
out: call them first.

Usage: python scripts/rerun_page.py PAGE [--section WORDS] [--folder FOLDER] [--list]
Example: python scripts/rerun_page.py docs/bakeoff.md --folder runs/bakeoff_page
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from page_tables import HEADING

ROOT = Path(__file__).resolve().parent.parent
SETUP = re.compile(r"^\./scripts/setup.*\n", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of commands of a page."""

    section: str
    """Last heading with ## above the block."""
    title: str
    """Last heading above the block: `section` or that of a subsection."""
    number: int
    """Number of the block in its section, from 1."""
    commands: str
    """Text for bash, without calls of ./scripts/setup."""

    @property
    def folder(self) -> str:
        """Name of the folder of the section."""
        return re.sub(r"[^a-z0-9]+", "_", self.section.lower()).strip("_")


def blocks(text: str) -> list[Block]:
    """Return the blocks of bash commands of a page, in their order."""
    found: list[Block] = []
    section, title, language, lines = "", "", None, list[str]()
    for line in text.splitlines(keepends=True):
        if language is None:
            if heading := HEADING.match(line):
                title = heading[2].strip()
                section = section if len(heading[1]) > 2 else title
            elif line.startswith("```"):
                language, lines = line[3:].strip(), []
        elif line.startswith("```"):
            commands = SETUP.sub("", "".join(lines))
            if language == "bash" and commands.strip():
                number = 1 + sum(each.section == section for each in found)
                found.append(Block(section=section, title=title, number=number, commands=commands))
            language = None
        else:
            lines.append(line)
    return found


def run(block: Block, folder: Path) -> bool:
    """Run a block in the folder of its section; return False if a command of it fails."""
    place = folder / block.folder
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "scripts").exists():
        (place / "scripts").symlink_to(ROOT / "scripts")
    done, log = (place / f"block_{block.number}.{end}" for end in ("done", "log"))
    title = f"{block.title}, block {block.number} of its section"
    if done.exists():
        print(f"{title}: done before", flush=True)
        return True
    print(f"{title}: running, see {log}", flush=True)
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    named = {**os.environ, "PATH": os.pathsep.join(paths)}
    with log.open("a", encoding="utf-8") as output:
        ended = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", block.commands],
            cwd=place,
            env=named,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if ended.returncode:
        print(
            f"{title}: exit code {ended.returncode}, see the end of {log}; correct the cause, and "
            "type the same command; sweeps continue, and a single run that exists must be moved "
            "away",
            file=sys.stderr,
        )
        return False
    done.touch()
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or list the blocks of the sections; return 0, or 1 if a block failed or none matches."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--section", default="", help="words of the headings of the sections")
    parser.add_argument("--folder", type=Path, default=Path("runs/rerun"))
    parser.add_argument("--list", action="store_true", help="print the commands, and run nothing")
    options = parser.parse_args(arguments)
    chosen = [
        each
        for each in blocks(options.page.read_text(encoding="utf-8"))
        if any(options.section.lower() in words.lower() for words in (each.section, each.title))
    ]
    if not chosen:
        print(f"{options.page}: no section {options.section!r} with commands", file=sys.stderr)
        return 1
    if options.list:
        for each in chosen:
            print(f"# {each.title}\n{each.commands}")
        return 0
    return 0 if all(run(each, options.folder.resolve()) for each in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
