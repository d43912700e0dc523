"""Trackers: a run's figures sent to TensorBoard, Weights & Biases or MLflow as well.

The names are those of metrics.jsonl. A run that is resumed goes on in the same record there: it
computes the steps after its checkpoint again and sends them again, with the same figures. One that
was rolled back sends others for them.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol
from uuid import uuid4

from selfplay.errors import ConfigError, one_line

PLACE = "trackers"
"""Folder of the run in which trackers keep their files and the names of their records."""


class Tracker(Protocol):
    """One place that figures are sent to."""

    def begin(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        """Open the record of the run at `folder`, or go on with it behind `step`; -1: anew."""
        ...

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send a step's figures."""
        ...

    def end(self, *, failed: bool) -> None:
        """Close the record."""
        ...


class TensorBoard:
    """Event files in `RUN/trackers/tensorboard`: `tensorboard --logdir runs` shows all runs."""

    def __init__(self) -> None:
        _require("tensorboard", "tensorboard")

    def begin(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        """A new event file, in which what came after `step` counts no longer."""
        from torch.utils.tensorboard import SummaryWriter

        place = folder / PLACE / "tensorboard"
        self._writer = SummaryWriter(str(place), purge_step=step + 1 if step >= 0 else None)

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """A scalar per figure."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self, *, failed: bool) -> None:
        """Close the file."""
        self._writer.close()


class WandB:
    """Weights & Biases. Offline, `wandb sync RUN/trackers/wandb/offline-run-*` sends it later."""

    def __init__(
        self,
        *,
        project: str = "selfplay",
        entity: str | None = None,
        mode: Literal["online", "offline"] = "online",
    ) -> None:
        """Args:
        project: Where the run appears.
        entity: The user or team; the account's own where None. The key is in WANDB_API_KEY.
        mode: offline keeps everything in the run folder until it is synced.
        """
        _require("wandb", "wandb")
        self.project, self.entity, self.mode = project, entity, mode

    def begin(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        """A new W&B run, or the one that this run had."""
        import wandb

        name = _remembered(folder, "wandb", step, lambda: uuid4().hex[:12])
        self._run = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            dir=str(folder / PLACE),
            id=name,
            resume="allow",
            name=folder.name,
            config=dict(config),
            settings=wandb.Settings(silent=True),
        )
        # Steps that come again after a resume would be refused as W&B's own, which only rise.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line of the run's history."""
        self._run.log({"step": step, **metrics})

    def end(self, *, failed: bool) -> None:
        """Finish, as failed where it did."""
        self._run.finish(exit_code=int(failed))


class MLflow:
    """MLflow, by default a database in `RUN/trackers`: `mlflow ui --backend-store-uri` shows it."""

    def __init__(self, *, uri: str | None = None, experiment: str | None = None) -> None:
        """Args:
        uri: A tracking server or database; `RUN/trackers/mlflow.db` where None.
        experiment: Its MLflow experiment; the run's own where None.
        """
        _require("mlflow", "mlflow")
        if uri is None or not uri.startswith("http"):
            _require("sqlalchemy", "mlflow")
            _require("alembic", "mlflow")
        self.uri, self.experiment = uri, experiment

    def begin(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        """A new MLflow run, or the one that this run had."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        (folder / PLACE).mkdir(exist_ok=True)
        uri = self.uri or f"sqlite:///{(folder / PLACE / 'mlflow.db').absolute()}"
        self._client = MlflowClient(tracking_uri=uri)
        title = self.experiment or str(config["run"]["experiment"])

        def make() -> str:
            found = self._client.get_experiment_by_name(title)
            number = found.experiment_id if found else self._client.create_experiment(title)
            made = self._client.create_run(number, run_name=folder.name)
            said = [Param(key, value[:6000]) for key, value in _settings(config)]
            for first in range(0, len(said), 100):  # the most that one call takes, as below
                self._client.log_batch(made.info.run_id, params=said[first : first + 100])
            return str(made.info.run_id)

        self._name = _remembered(folder, "mlflow", step, make)
        self._client.update_run(self._name, status="RUNNING")

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """A metric per figure; characters that MLflow refuses in names become `_`."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        sent = [Metric(_named(name), value, now, step) for name, value in metrics.items()]
        for first in range(0, len(sent), 1000):
            self._client.log_batch(self._name, metrics=sent[first : first + 1000])

    def end(self, *, failed: bool) -> None:
        """Mark it as ended."""
        self._client.set_terminated(self._name, "FAILED" if failed else "FINISHED")


class Tracking:
    """The trackers of a run, as a context.

    metrics.jsonl is the record; a tracker that breaks is told of in one line and left out from
    then on, because a training that has run for a night is worth more than a curve elsewhere.
    """

    def __init__(
        self,
        trackers: Mapping[str, Tracker],
        folder: Path,
        config: Mapping[str, Any],
        *,
        step: int = -1,
        note: Callable[[str], None],
    ) -> None:
        """Args:
        trackers: By their names in the config.
        folder: The run folder.
        config: The run's resolved config.
        step: The last step that stays of a run that is resumed; -1 for a new one.
        note: Takes the line about a tracker that broke.
        """
        self._trackers, self._folder = dict(trackers), folder
        self._config, self._step, self._note = config, step, note

    def __enter__(self) -> "Tracking":
        """Open all records."""
        self._each(lambda tracker: tracker.begin(self._folder, self._config, self._step))
        return self

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send a step's figures to all."""
        self._each(lambda tracker: tracker.record(step, metrics))

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Close all records."""
        self._each(lambda tracker: tracker.end(failed=error is not None))

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:  # whatever a network or another library does
                del self._trackers[name]
                self._note(
                    f"tracker {name} stopped: {one_line(error)}; metrics.jsonl has every figure"
                )


def _remembered(folder: Path, name: str, step: int, make: Callable[[], str]) -> str:
    """The name of the run's record at a tracker: that of before if it goes on, else a new one."""
    path = folder / PLACE / f"{name}.json"
    if step >= 0 and path.is_file():
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    path.parent.mkdir(exist_ok=True)
    made = make()
    path.write_text(json.dumps({"id": made}), encoding="utf-8")
    return made


def _settings(node: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Every value of a config as text, by its key path."""
    children = node.items() if isinstance(node, Mapping) else enumerate(node)
    for key, value in children:
        path = f"{where}.{key}" if where else str(key)
        if isinstance(value, Mapping | list) and value:
            yield from _settings(value, path)
        else:
            yield _named(path), str(value)


def _named(name: str) -> str:
    """A name that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def _require(package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(
            f"tracker {extra} needs the package {package!r}; pip install 'selfplay[{extra}]'"
        )
