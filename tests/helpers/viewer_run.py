"""A run of five different episodes, and a viewer that shows it, for the tests."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selfplay.types import Episode, Status, Task, to_json
from tests.helpers.recorded_run import turn


def write(run: Path, step: int, episodes: list[Episode], **more: Any) -> None:
    """Record a step in which each episode is a group."""
    lines = [
        {
            "group": f"{step}.0.{place}",
            "member": 0,
            "episode": to_json(episode),
            "advantages": [0.5] * len(episode.turns),
            **more,
        }
        for place, episode in enumerate(episodes)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "episodes").mkdir(parents=True, exist_ok=True)
    (run / "episodes" / f"{step:06d}.jsonl").write_text(text)


def episode(text: str, reward: float, *, role: str = "solver", **fields: Any) -> Episode:
    action = fields.pop("action", "x")
    made = turn(f"{role}_0", text, reward, action=action)
    return Episode(
        arena="made",
        task=Task(id="t"),
        seed=0,
        turns=(made,),
        status=fields.pop("status", Status.FINISHED),
        **fields,
    )


def five_episodes(run: Path) -> Path:
    """Make a run of five episodes in the folder `run`."""
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("seed: 0\n")
    write(run, 1, [episode("alpha beta", 1.0), episode("gamma", -1.0)])
    write(
        run,
        2,
        [
            episode("alpha", 0.0, role="judge"),
            episode("delta", 0.5, action=None),
            episode("", 0.0, status=Status.FAILED, error="Broken: omega"),
        ],
    )
    return run


@contextmanager
def served(run: Path) -> Iterator[str]:
    """Show a run with `selfplay watch` until the context ends; yield the address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "selfplay", "watch", str(run), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SELFPLAY_CACHE": str(run.parent / "cache")},
    )
    try:
        assert process.stdout is not None
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        yield address
    finally:
        process.terminate()
        process.wait(120)
