"""What plays, as it is built in one process and in every worker."""

from pathlib import Path
from typing import Any

from selfplay.engines.transformers import TransformersEngine
from selfplay.rollout.setup import RolloutSetup
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
