"""Tags of runs: short words of a person, such as "baseline", in the file `tags.json` of a run."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from selfplay.errors import ConfigError, RunError
from selfplay.run.directory import Run, reporting_disk
from selfplay.run.untrusted import read_limited, write_text_confined

FILE = "tags.json"
"""File of the run folder with the tags, a sorted JSON list of texts."""
MOST_TAGS = 20
"""Largest number of tags of a run."""
LONGEST_FILE = 10_000
"""Largest number of bytes of the file."""
TAG = re.compile(r"[\w.+-]{1,40}")
"""Form of a tag: letters, digits, `_`, `.`, `+` and `-`, so that a filter of words can name it."""


def read_tags(run: Path) -> tuple[str, ...]:
    """Return the tags of a run, sorted; none without the file.

    Raises RunError, in one line, for a file that is not a list of at most `MOST_TAGS` tags.
    """
    path = run / FILE
    try:
        found = json.loads(read_limited(path, root=run, most=LONGEST_FILE))
    except FileNotFoundError:
        return ()
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read as a list of tags ({str(error)[:100]})") from error
    if not isinstance(found, list) or len(found) > MOST_TAGS:
        raise RunError(f"{path}: is damaged (expected a list of at most {MOST_TAGS} tags)")
    for tag in found:
        if not isinstance(tag, str) or not TAG.fullmatch(tag):
            raise RunError(f"{path}: is damaged (it has an entry that is not a tag)")
    return tuple(sorted(set(found)))


def change_tags(run: Path, *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[str]:
    """Add tags to a run and remove others; return all tags of the run, sorted.

    It is no error if the run already has a tag of `add` or lacks one of `remove`. A damaged file is
    not replaced.

    Raises:
        ConfigError: If a text is not a tag.
        RunError: If `run` is not a run folder, has too many tags, or its file is damaged.
    """
    for tag in (*add, *remove):
        if not TAG.fullmatch(tag):
            raise ConfigError(
                f"{tag[:60]!r} is not a tag; write 1 to 40 letters, digits, or any of _ . + -"
            )
    Run.open(run)
    known = read_tags(run)
    tags = sorted({*known, *add} - set(remove))
    if len(tags) > MOST_TAGS:
        raise RunError(f"{run}: {len(tags)} tags; a run has at most {MOST_TAGS}")
    if tags != list(known):
        with reporting_disk(run):
            write_text_confined(run, run / FILE, json.dumps(tags) + "\n")
    return tags
