"""Tests of the objects that play games, as one process and every worker build them."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from selfplay.arena import Arena
from selfplay.engines.scripted import ScriptedEngine
from selfplay.engines.transformers import TransformersEngine
from selfplay.errors import ConfigError
from selfplay.models.policy import Policy, load_policy
from selfplay.models.population import Population
from selfplay.rollout.rollout import EpisodeSpec
from selfplay.rollout.setup import RolloutSetup
from tests.helpers.builders import episode, save_tiny, turn
from tests.helpers.fault_injection import settings


class Counting(TransformersEngine):
    """An engine that counts the policies that it serves."""

    loads = 0.0

    def serve(self, *given: Any, **named: Any) -> None:
        super().serve(*given, **named)
        self.loads += 1

    def drain_metrics(self) -> dict[str, float]:
        found, self.loads = {"loads": self.loads}, 0.0
        return found


def test_counts_during_loading_are_dropped(tmp_path: Path) -> None:
    players = RolloutSetup(settings(save_tiny(tmp_path / "model"), tmp_path / "mark"))
    engine = Counting()
    players.load(engine)
    assert loads(players) == 0
    engine.loads = 2
    assert loads(players) == 2
    players.close()


def test_all_models_are_loaded_before_an_engine_takes_the_memory_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    class OrderedEngine(TransformersEngine):
        """An engine that records when it serves; vLLM then takes the memory of the GPU."""

        def serve(self, policy: str, *given: Any) -> None:
            order.append(f"serves {policy}")
            super().serve(policy, *given)

    def loaded(name: str, **settings: Any) -> Policy:
        order.append(f"loads {name}")
        return load_policy(name, **settings)

    for module in ("setup", "policies"):
        monkeypatch.setattr(f"selfplay.rollout.{module}.load_policy", loaded)
    model = str(save_tiny(tmp_path / "model"))
    config = settings(Path(model), tmp_path / "mark")
    config["population"]["opponents"] |= {
        "old": {"model": model, "device": "cpu"},
        "script": {"_target_": f"{__name__}.Script"},
    }
    players = RolloutSetup(config)
    names = [*Population.of(config).policies, "old"]
    players.load(OrderedEngine())
    assert order == [f"{verb} {name}" for verb in ("loads", "serves") for name in names]
    assert set(players.policy_pool.engines) == {*names, "script"}
    assert isinstance(players.policy_pool.engines["old"], OrderedEngine)
    players.close()


def test_a_checkpoint_is_known_by_a_path_that_other_processes_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_tiny(tmp_path / "model")
    config = settings(model, tmp_path / "mark")
    for name in Population.of(config).policies:
        shutil.copytree(model, tmp_path / "run/000001/policies" / name)
    monkeypatch.chdir(tmp_path)
    players = RolloutSetup(config)
    players.load(Counting(), saved=Path("run/000001"))
    assert players.saved == tmp_path / "run/000001"
    players.close()


def loads(players: RolloutSetup) -> float:
    return sum(value for name, value in players.drain_counts().items() if name.endswith("/loads"))


class Opened:
    """A base of services and engines that counts its calls of `close`."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


class Stuck(Opened):
    """A service that cannot close."""

    def close(self) -> None:
        super().close()
        raise OSError("stuck")


class Script(Opened, ScriptedEngine):
    """A scripted opponent."""

    def __init__(self) -> None:
        super().__init__({})


class Full(Opened, TransformersEngine):
    """An engine without room for a policy."""

    def serve(self, *given: Any, **named: Any) -> None:
        raise ConfigError("no room")


def test_an_engine_without_room_for_a_policy_is_closed(tmp_path: Path) -> None:
    config = settings(save_tiny(tmp_path / "model"), tmp_path / "mark")
    config["services"]["opened"] = {"_target_": f"{__name__}.Opened"}
    config["population"]["opponents"]["script"] = {"_target_": f"{__name__}.Script"}
    players, engine = RolloutSetup(config), Full()
    with pytest.raises(ConfigError, match="no room"):
        players.load(engine)
    for _ in range(2):
        players.close()
        opponent = players.population.opponents["script"]
        assert [engine.closed, opponent.closed, players.services["opened"].closed] == [1, 1, 1]


def test_a_service_that_cannot_close_keeps_nothing_else_open(tmp_path: Path) -> None:
    config = settings(save_tiny(tmp_path / "model"), tmp_path / "mark")
    kinds = {"first": "Stuck", "second": "Opened", "third": "Stuck"}
    config["services"] |= {name: {"_target_": f"{__name__}.{k}"} for name, k in kinds.items()}
    config["population"]["opponents"]["script"] = {"_target_": f"{__name__}.Script"}
    players = RolloutSetup(config)
    with pytest.raises(OSError, match="stuck"):
        players.close()
    assert [players.services[name].closed for name in kinds] == [1, 1, 1]
    assert players.population.opponents["script"].closed == 1


class Judged(Arena):
    """A game of thinkers and a speaker, which a script always plays."""

    def __init__(self, *, thinkers: int) -> None:
        super().__init__({"thinker": thinkers, "speaker": 1})


def judged(tmp_path: Path, *, thinkers: int = 2, **evaluation: Any) -> RolloutSetup:
    config = settings(tmp_path / "model", tmp_path / "mark")
    config["population"]["opponents"]["other"] = {"_target_": f"{__name__}.Script"}
    config["evaluations"]["x"] = {
        "arena": {"_target_": f"{__name__}.Judged", "thinkers": thinkers},
        "tasks": [{"_target_": "selfplay.types.Task", "id": "t"}],
        "metrics": {},
        **evaluation,
    }
    return RolloutSetup(config)


def test_an_agent_that_an_opponent_always_plays_is_no_seat(tmp_path: Path) -> None:
    asked: list[EpisodeSpec] = []
    players = judged(tmp_path, opponents=["other"])
    agents = ("thinker_0", "thinker_1")
    played = [episode(turn(agent, 1.0), turn("speaker_0", 9.0)) for agent in agents]
    found, _ = players.evaluations["x"].run("x", lambda s: asked.extend(s) or played, seed=0)  # type: ignore[func-returns-value]
    assert [spec.policy_map for spec in asked] == [{"thinker_1": "other"}, {"thinker_0": "other"}]
    assert found["versus/other/won"] == 1, "the speaker is paid more but is not a rival"
    assert "versus/other/thinker_1/won" in found and "versus/other/speaker_0/won" not in found


def test_a_named_seat_that_an_opponent_always_plays_is_refused(tmp_path: Path) -> None:
    line = (
        r"^evaluations\.x\.seats: 'speaker_0' cannot change seats, because population\.roles gives "
        r"role 'speaker' to opponent 'script', which always plays it; drop it here$"
    )
    seats = ["thinker_0", "thinker_1", "speaker_0"]
    with pytest.raises(ConfigError, match=line):
        judged(tmp_path, opponents=["other"], seats=seats)
    assert judged(tmp_path, opponents=[], seats=seats), "without opponents, no agent changes seats"
    assert judged(tmp_path, opponents=["other"], seats=seats[:2])


def test_opponents_without_two_seats_are_refused(tmp_path: Path) -> None:
    line = (
        r"^evaluations\.x\.opponents: a match needs two seats, and there is thinker_0, "
        r"because population\.roles gives role 'speaker' to opponent 'script'; drop population"
        r"\.roles\.speaker, or the opponents here$"
    )
    with pytest.raises(ConfigError, match=line):
        judged(tmp_path, thinkers=1, opponents=["other"])
