"""Trackers: a run's metrics are also sent to TensorBoard, Weights & Biases or MLflow.

The names are those of metrics.jsonl. A resumed run continues its record at the tracker: it computes
the steps after its checkpoint again and sends the same values again. After a rollback it sends new
values for the discarded steps.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol
from uuid import uuid4

from selfplay.errors import one_line, require_package
from selfplay.run.directory import write_atomic

PLACE = "trackers"
"""Folder of the run for the trackers' files and the ids of their records."""


class Tracker(Protocol):
    """A service that receives the metrics of a run."""

    def begin(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        """Open a new record for the run at `folder` if `step` is -1; else continue after `step`."""
        ...

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a step."""
        ...

    def end(self, *, failed: bool) -> None:
        """Close the record."""
        ...


class TensorBoard:
    """Event files in `RUN/trackers/tensorboard`: `tensorboard --logdir runs` shows all runs."""

    def __init__(self) -> None:
        require_package("tensorboard", "tensorboard", "tracker tensorboard")

    def begin(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        """Open an event file that invalidates all values after `step`."""
        from torch.utils.tensorboard import SummaryWriter

        place = folder / PLACE / "tensorboard"
        self._writer = SummaryWriter(str(place), purge_step=step + 1 if step >= 0 else None)

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write each metric as a scalar."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self, *, failed: bool) -> None:
        """Close the event file."""
        self._writer.close()


class WandB:
    """Weights & Biases. `wandb sync RUN/trackers/wandb/offline-run-*` uploads an offline run."""

    def __init__(
        self,
        *,
        project: str = "selfplay",
        entity: str | None = None,
        mode: Literal["online", "offline"] = "online",
    ) -> None:
        """Args:
        project: The W&B project of the run.
        entity: User or team; None: the account's default. The API key is read from WANDB_API_KEY.
        mode: "offline" keeps everything in the run folder until it is synced.
        """
        require_package("wandb", "wandb", "tracker wandb")
        self.project, self.entity, self.mode = project, entity, mode

    def begin(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        """Start a W&B run, or continue the earlier one."""
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
        # W&B refuses a step of its own that decreases, as after a resume; so "step" is a metric.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line to the history of the W&B run."""
        self._run.log({"step": step, **metrics})

    def end(self, *, failed: bool) -> None:
        """Finish the W&B run; `failed` marks it as failed."""
        self._run.finish(exit_code=int(failed))


class MLflow:
    """MLflow. The default is a database in `RUN/trackers` (`mlflow ui --backend-store-uri`)."""

    def __init__(self, *, uri: str | None = None, experiment: str | None = None) -> None:
        """Args:
        uri: A tracking server or database; None: `RUN/trackers/mlflow.db`.
        experiment: The MLflow experiment; None: the run's experiment.
        """
        remote = uri is not None and uri.startswith("http")
        for package in ("mlflow",) if remote else ("mlflow", "sqlalchemy", "alembic"):
            require_package(package, "mlflow", "tracker mlflow")
        self.uri, self.experiment = uri, experiment

    def begin(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        """Start an MLflow run, or continue the earlier one."""
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
            params = [Param(key, value[:6000]) for key, value in _settings(config)]
            for first in range(0, len(params), 100):  # MLflow's limit per call
                self._client.log_batch(made.info.run_id, params=params[first : first + 100])
            return str(made.info.run_id)

        self._name = _remembered(folder, "mlflow", step, make)
        self._client.update_run(self._name, status="RUNNING")

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send each metric; characters that MLflow refuses in names become `_`."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        sent = [Metric(_named(name), value, now, step) for name, value in metrics.items()]
        for first in range(0, len(sent), 1000):  # MLflow's limit per call
            self._client.log_batch(self._name, metrics=sent[first : first + 1000])

    def end(self, *, failed: bool) -> None:
        """Mark the MLflow run as finished or failed."""
        self._client.set_terminated(self._name, "FAILED" if failed else "FINISHED")


class Tracking:
    """The trackers of a run, as a context.

    A tracker that fails must not end a training, so one line reports it, and it is not called
    again. metrics.jsonl has all values in any case.
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
        trackers: Name in the config to tracker.
        folder: The run folder.
        config: The run's resolved config.
        step: The checkpoint's step of a resumed run; -1 for a new run.
        note: Receives the line about a tracker that failed.
        """
        self._trackers, self._folder = dict(trackers), folder
        self._config, self._step, self._note = config, step, note

    def __enter__(self) -> "Tracking":
        """Open the records of all trackers."""
        self._each(lambda tracker: tracker.begin(self._folder, self._config, self._step))
        return self

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a step to all trackers."""
        self._each(lambda tracker: tracker.record(step, metrics))

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Close the records of all trackers."""
        self._each(lambda tracker: tracker.end(failed=error is not None))

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:  # a network or another library can raise any error
                del self._trackers[name]
                self._note(
                    f"tracker {name} stopped: {one_line(error)}; metrics.jsonl has every value"
                )


def _remembered(folder: Path, name: str, step: int, make: Callable[[], str]) -> str:
    """Return the id of the run's record at a tracker: the stored id of a resumed run, else a new
    id from `make`, which is then stored."""
    path = folder / PLACE / f"{name}.json"
    if step >= 0 and path.is_file():
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    path.parent.mkdir(exist_ok=True)
    made = make()
    write_atomic(path, json.dumps({"id": made}))
    return made


def _settings(node: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key path, value as text) of every value of a config."""
    children = node.items() if isinstance(node, Mapping) else enumerate(node)
    for key, value in children:
        path = f"{where}.{key}" if where else str(key)
        if isinstance(value, Mapping | list) and value:
            yield from _settings(value, path)
        else:
            yield _named(path), str(value)


def _named(name: str) -> str:
    """Replace the characters that MLflow refuses in names."""
    return re.sub(r"[^\w\-. :/]", "_", name)
