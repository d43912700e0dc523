"""Tests of trackers: TensorBoard, W&B and MLflow get the values of metrics.jsonl."""

import json
import struct
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from selfplay.errors import ConfigError
from selfplay.run import trackers
from selfplay.run.trackers import MLflow, TensorBoard, Tracker, Tracking, WandB
from tests.helpers.command_process import SMOKE, metrics, one_line, run

CONFIG = {"run": {"experiment": "made"}, "seed": 3}
FIRST = {"role/solver/reward": 0.5, "policy/base/loss": float("nan")}
SECOND = {"role/solver/reward": 0.75, "arena/odd name?/x": 1.0}


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the curves in TensorBoard's event files, as (step, value) pairs."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "trackers" / "tensorboard"))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def history(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the history of each metric in the run's MLflow database."""
    from mlflow.tracking import MlflowClient

    place = folder / "trackers"
    client = MlflowClient(f"sqlite:///{place / 'mlflow.db'}")
    name = json.loads((place / "mlflow.json").read_text())["id"]
    keys = client.get_run(name).data.metrics
    return {
        key: [(found.step, found.value) for found in client.get_metric_history(name, key)]
        for key in keys
    }


def chunks(data: bytes) -> Iterator[bytes]:
    """Yield the records of a W&B file: a header of 7 bytes, then LevelDB's log format."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:  # a rest too short for a header is padding
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a complete record, or its last part
            yield whole
            whole = b""


def sent(folder: Path) -> list[dict[str, Any]]:
    """Return the history lines in W&B's offline files, in the order in which they were sent.

    W&B writes the files in its own process, so this function first waits for its end. The lines
    are sorted by time, because runs that start in the same second have folders without an order.
    """
    import_module("wandb").teardown()
    record_type = import_module("wandb.proto.wandb_internal_pb2").Record
    files = (folder / "trackers" / "wandb").glob("offline-run-*/run-*.wandb")
    records = [record_type.FromString(data) for file in files for data in chunks(file.read_bytes())]
    lines = [
        {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    return sorted(lines, key=lambda line: float(line["_timestamp"]))


def recorded(tracker: Any, folder: Path) -> None:
    """Record two steps, resume after the first one, and record the second one again."""
    folder.mkdir()
    notes: list[str] = []
    with Tracking({"it": tracker}, folder, CONFIG, note=notes.append) as tracking:
        tracking.record(1, FIRST)
        tracking.record(2, {"role/solver/reward": 0.1})
    with Tracking({"it": tracker}, folder, CONFIG, step=1, note=notes.append) as tracking:
        tracking.record(2, SECOND)
    assert notes == []


def test_tensorboard_draws_each_step_once_after_a_resume(tmp_path: Path) -> None:
    recorded(TensorBoard(), tmp_path / "run")
    found = scalars(tmp_path / "run")
    assert found["role/solver/reward"] == [(1, 0.5), (2, 0.75)]
    assert found["arena/odd name?/x"] == [(2, 1.0)]


def test_mlflow_goes_on_with_the_same_run(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    folder = tmp_path / "run"
    recorded(MLflow(), folder)
    found = history(folder)
    assert found["role/solver/reward"][0] == (1, 0.5)
    assert found["role/solver/reward"][-1] == (2, 0.75)
    assert found["arena/odd name_/x"] == [(2, 1.0)]
    client = MlflowClient(f"sqlite:///{folder / 'trackers' / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "made"]
    (only,) = client.search_runs([experiment.experiment_id])
    assert only.info.run_name == "run" and only.info.status == "FINISHED"


def test_wandb_offline_goes_on_with_the_same_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    recorded(WandB(mode="offline"), folder)
    lines = sent(folder)
    assert [(line["step"], line["role/solver/reward"]) for line in lines] == [
        (1, 0.5),
        (2, 0.1),
        (2, 0.75),
    ]
    files = list((folder / "trackers" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len({file.name for file in files}) == 1


class Broken:
    """A tracker whose network is down from the second step on."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def begin(self, folder: Path, config: Any, step: int) -> None:
        pass

    def record(self, step: int, metrics: Any) -> None:
        if self.steps:
            raise OSError("no route\nto host")
        self.steps.append(step)

    def end(self, *, failed: bool) -> None:
        raise AssertionError("a tracker that failed must not be called again")


def test_a_failed_tracker_is_reported_once_and_the_others_continue(tmp_path: Path) -> None:
    folder, notes, broken = tmp_path / "run", list[str](), Broken()
    folder.mkdir()
    both: dict[str, Tracker] = {"down": broken, "up": TensorBoard()}
    with Tracking(both, folder, CONFIG, note=notes.append) as tracking:
        for step in (1, 2, 3):
            tracking.record(step, FIRST)
    assert broken.steps == [1]
    assert notes == [
        "tracker down stopped: OSError: no route to host; metrics.jsonl has every value"
    ]
    assert [step for step, _ in scalars(folder)["role/solver/reward"]] == [1, 2, 3]


def test_the_file_of_an_id_is_replaced_and_never_rewritten_in_place(tmp_path: Path) -> None:
    """A kill leaves the old file or the new one, so that a resumed run finds its record."""
    place = tmp_path / "trackers" / "wandb.json"
    assert trackers._remembered(tmp_path, "wandb", -1, lambda: "old") == "old"
    (tmp_path / "before").hardlink_to(place)
    assert trackers._remembered(tmp_path, "wandb", -1, lambda: "new") == "new"
    assert trackers._remembered(tmp_path, "wandb", 3, lambda: "other") == "new"
    assert json.loads((tmp_path / "before").read_text()) == {"id": "old"}


@pytest.mark.parametrize(
    ("tracker", "package"),
    [(TensorBoard, "tensorboard"), (WandB, "wandb"), (MLflow, "mlflow"), (MLflow, "sqlalchemy")],
)
def test_a_missing_package_is_one_line(
    tracker: Any, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "selfplay.errors.find_spec", lambda name: None if name == package else find_spec(name)
    )
    with pytest.raises(ConfigError, match=f"needs the package '{package}'; pip install 'selfplay"):
        tracker()


def test_a_run_sends_what_it_records(tmp_path: Path) -> None:
    settings = ("trackers=tensorboard", "run.steps=2", "run.name=sent")
    outcome = run("train", SMOKE, *settings, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    folder = tmp_path / "runs" / "sent"
    found = scalars(folder)
    lines = {int(line.pop("step")): line for line in metrics(folder)}
    assert sorted(lines) == [0, 1, 2]
    for step, line in lines.items():
        for name, value in line.items():
            assert dict(found[name])[step] == pytest.approx(value, rel=1e-6), name


def test_a_tracker_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    outcome = run("train", SMOKE, "trackers=tensorbord", cwd=tmp_path)
    assert outcome.code == 2 and "did you mean 'tensorboard'?" in one_line(outcome.err)
