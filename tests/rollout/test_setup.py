"""What plays, as it is built in one process and in every worker."""

from pathlib import Path
from typing import Any

import pytest

from selfplay.engines.transformers import TransformersEngine
from selfplay.rollout.setup import Components, RolloutSetup
from tests.helpers.builders import save_tiny
from tests.helpers.fault_injection import settings


class Counting(TransformersEngine):
    """Counts the policies that it takes, as an engine counts its loads of weights."""

    loads = 0.0

    def serve(self, *given: Any, **named: Any) -> None:
        super().serve(*given, **named)
        self.loads += 1

    def drain_metrics(self) -> dict[str, float]:
        found, self.loads = {"loads": self.loads}, 0.0
        return found


def test_what_loading_counted_is_nobodys(tmp_path: Path) -> None:
    players = RolloutSetup(settings(save_tiny(tmp_path / "model"), tmp_path / "mark"))
    engine = Counting()
    players.load(engine)
    assert loads(players) == 0
    engine.loads = 2
    assert loads(players) == 2
    players.close()


def loads(players: RolloutSetup) -> float:
    return sum(value for name, value in players.counts().items() if name.endswith("/loads"))


class Held:
    """A service that notes its end in a list, and may fail at it."""

    def __init__(self, ended: list[str], name: str, *, fails: bool = False) -> None:
        self.ended, self.name, self.fails = ended, name, fails

    def close(self) -> None:
        self.ended.append(self.name)
        if self.fails:
            raise OSError("no process")


def test_a_service_that_cannot_close_leaves_no_other_open() -> None:
    ended: list[str] = []
    components = Components.__new__(Components)
    components.services = {
        "seed": 0,
        "first": Held(ended, "first", fails=True),
        "second": Held(ended, "second"),
    }
    with pytest.raises(OSError, match="no process"):
        components.close()
    assert ended == ["first", "second"]
