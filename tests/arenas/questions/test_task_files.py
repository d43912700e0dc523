"""Files of tasks and documents that a config names are regular files."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arenas.memory import locomo, text_files
from arenas.questions import files
from selfplay.errors import ConfigError
from selfplay.tools.search import read_corpus

READERS: dict[str, Callable[..., Any]] = {
    "questions": files.read,
    "texts": text_files.read,
    "conversations": locomo.tasks,
    "corpus": read_corpus,
}


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
def test_a_pipe_or_a_device_is_not_read(reader: Callable[..., Any], tmp_path: Path) -> None:
    """Reading a pipe without a writer waits for ever, and a device may have no end."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((ConfigError, ValueError), match="is a pipe, not a regular file"):
        reader(path=str(tmp_path / "pipe"))
    with pytest.raises((ConfigError, ValueError), match="is a device, not a regular file"):
        reader(path="/dev/null")


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
def test_a_missing_file_and_wrong_text_are_a_one_line_error(
    reader: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "latin").write_bytes(b"\xff\n")
    for name in ("missing", "latin"):
        with pytest.raises((ConfigError, ValueError), match=name) as caught:
            reader(path=str(tmp_path / name))
        assert len(str(caught.value).splitlines()) == 1
