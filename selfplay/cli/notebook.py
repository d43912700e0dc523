"""Runs that are begun and continued from Python, such as in a script or a notebook."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from selfplay.cli.arguments import load, no_flags
from selfplay.cli.limits import search_current_folder
from selfplay.cli.process import prepare
from selfplay.cli.train import begin, resume
from selfplay.config.threads import ProcessorTime
from selfplay.config.trust import TrustLimit, limited
from selfplay.run import signals


def start_run(overrides: Sequence[str], *, config_dirs: Sequence[str | Path] = ()) -> Path:
    """Train a new run to its end, as `selfplay train OVERRIDES` does, and return its folder.

    `selfplay.start_run(["+experiment=tiny/kuhn", "run.steps=20"])` returns, for example,
    `Path("runs/tiny-kuhn-seed0-20260101-120000")`. The progress is printed to stderr. Another
    thread or process may read the files of the folder meanwhile.

    Args:
        overrides: Arguments of `selfplay train` without flags: +experiment=NAME, key=value, ~key.
        config_dirs: Further folders of config groups, as for `--config-dir`.
    Raises:
        SelfplayError: For a fault of the config or of the training; its text is one line.
        KeyboardInterrupt: After SIGINT or SIGTERM (in a notebook: "interrupt"); its text says how
            to continue the run.
    """
    since = ProcessorTime.now()
    words = [str(word) for word in overrides]
    no_flags(words)
    options = argparse.Namespace(config_path=None, config_dir=[str(each) for each in config_dirs])
    with _command(None):
        return begin(load(options, words), since)


def resume_run(
    folder: str | Path, overrides: Sequence[str] = (), *, trust: Sequence[str] = ()
) -> Path:
    """Continue a run to its end, as `selfplay train resume=FOLDER` does, and return its folder.

    The run continues after its newest checkpoint, and later lines of its record are removed first.

    Args:
        folder: Folder of the run.
        overrides: Changed settings, such as `["run.steps=400"]`.
        trust: Packages outside this library whose code the run's config may name, as for
            `--trust`.
    Raises:
        SelfplayError: If the folder is no run, a setting cannot change, or the training fails.
        KeyboardInterrupt: As in `start_run`.
    """
    words = [str(word) for word in overrides]
    no_flags(words)
    command = ("selfplay", "train", f"resume={folder}", *words)
    with _command(TrustLimit(packages=tuple(trust), command=command, trains=True)):
        resume(Path(folder), words)
    return Path(folder)


@contextmanager
def _command(limit: TrustLimit | None) -> Iterator[None]:
    """Prepare the process as the command line does, and handle signals meanwhile."""
    prepare()
    search_current_folder(limit)
    with signals.handled(), limited(limit):
        yield
