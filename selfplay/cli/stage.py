"""One training of the command line: its run folder, the display of its progress, its summary."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from selfplay.cli.arguments import note
from selfplay.config.trust import flags, needed
from selfplay.errors import DivergedError, RunEnded, printable
from selfplay.run import signals
from selfplay.run.declarations import TROUBLES
from selfplay.run.formatting import change, counted, duration, format_value
from selfplay.run.metrics import describe_troubles

if TYPE_CHECKING:
    from selfplay.experiment.setting_changes import SettingChange


class Stage:
    """Context of a training: its run folder and the display of its progress.

    It begins before the models are loaded, and ends after the last step.
    """

    def __init__(
        self,
        make_run: Callable[[], Any],
        settings: Mapping[str, Any],
        *,
        step: int = 0,
        changed: "Sequence[SettingChange]" = (),
    ) -> None:
        """Args:
        make_run: Function that creates or returns the run folder.
        settings: Config of the run; `open` reads it, after the experiment has validated it.
        step: Step from which training goes on.
        changed: Settings that change there.
        """
        self._make_run, self._settings = make_run, settings
        settings_changed = {each.key: (each.before, each.after) for each in changed}
        self._session: dict[str, Any] = {"step": step, "settings": settings_changed}
        self._shown = ExitStack()
        self.run: Any = None
        """The run folder; None before `open`."""

    def open(self) -> None:
        """Make the run folder, and begin to show the progress."""
        from selfplay.run.activity import ActivityFile
        from selfplay.run.progress import Progress
        from selfplay.run.sessions import begin_session

        self.run = self._make_run()
        begin_session(self.run.folder, **self._session)
        steps = int(self._settings["run"]["steps"])
        self.progress = self._shown.enter_context(
            Progress(steps, self.run.folder.name, done=self._session["step"])
        )
        self._shown.enter_context(ActivityFile(self.run.folder, self.progress.state))

    def discard(self) -> None:
        """Remove a new run folder after an error, so that its name is free.

        After an interrupt the folder stays, because the run and its warm start can be continued.
        """
        if self.run is not None and not signals.raised():
            self._shown.__exit__(*sys.exc_info())
            self.run.discard()

    def __enter__(self) -> "Stage":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shown.__exit__(kind, error, trace)
        if self.run is None:
            return
        try:
            if error is not None:
                self._end(error)
        finally:
            self.run.unlock()

    def _end(self, error: BaseException) -> None:
        """Record the error that ended the training; raise KeyboardInterrupt after a signal."""
        from selfplay.run.report.run_report import write_report
        from selfplay.run.sessions import end_session

        if signals.raised():
            end_session(self.run.folder, KeyboardInterrupt(signals.reason()))
            raise KeyboardInterrupt(self._how_to_continue()) from error
        if isinstance(error, Exception):
            end_session(self.run.folder, error)
        if isinstance(error, RunEnded | DivergedError):
            write_report(self.run.folder)  # it shows the cause

    def close(self) -> None:
        """End the display of the progress."""
        self._shown.close()

    def _how_to_continue(self) -> str:
        """Return the command that continues the interrupted run, and where it begins."""
        step, trusted = self.run.newest_checkpoint(), flags(needed(self._settings))
        command = shlex.join(["selfplay", "train", f"resume={self.run.folder}", *trusted])
        if step is None:
            return f"there is no checkpoint yet, so {command} begins the run again"
        if step >= int(self._settings["run"]["steps"]):
            return f"all steps are done; {command} makes what is left, such as the report"
        return f"{command} continues after the checkpoint of step {step}"


def load_models(experiment: Any, stage: Stage, saved: Path | None = None) -> None:
    """Open the stage, then load the models or a checkpoint, which may take minutes."""
    from selfplay.cli.plan import memory_note

    try:
        if short := memory_note(experiment.config):
            note(short)
        stage.open()
    except BaseException:
        experiment.close()
        raise
    experiment.runtime.report_to(stage.progress.note)
    experiment.load(saved)


def go(experiment: Any, stage: Stage, *, rewind: int | None = None) -> None:
    """Train, write the summary and the report, and print both.

    `rewind` is the step after which the record of a resumed run is removed; None for a new run.
    """
    from selfplay.run.report.run_report import write_report
    from selfplay.run.trackers import Tracking
    from selfplay.train import Trainer

    try:
        run, progress = stage.run, stage.progress
        for line in () if rewind is None else run.rewind(rewind):
            print(line, file=sys.stderr)
        fresh = experiment.evaluations_before is None
        with Tracking(
            experiment.trackers,
            run.folder,
            experiment.config,
            step=-1 if fresh else experiment.step,
            note=progress.note,
        ) as tracking:
            run.listeners.append(tracking.record)
            Trainer(experiment, run, progress).run()
        stage.close()
        summary = experiment.summary(run.folder)
        if lost := run.missing(experiment.step):
            summary["missing_steps"] = lost
        run.write_summary(summary)
        page = write_report(run.folder)
    finally:
        experiment.close()
    print_summary(summary, experiment.declared)
    print(f"run      {run.folder}\nreport   {page}")


def without_repeats(values: Mapping[str, float]) -> dict[str, float]:
    """Return an evaluation's metrics without those of its only type of task, which repeat the
    metrics of all tasks."""
    from selfplay.run.report.repeated_metrics import repeated

    repeats = repeated({f"evaluation/_/{name}": value for name, value in values.items()})
    return {name: value for name, value in values.items() if f"evaluation/_/{name}" not in repeats}


def print_summary(summary: Mapping[str, Any], declared: Any) -> None:
    """Print the evaluations of a summary before and after training, and the troubles of the run.

    Args:
        summary: Content of summary.json, see `Experiment.summary`.
        declared: Units and directions of the metrics, see `RunMetrics`.
    """
    steps, took = counted(summary["steps"], "step"), duration(summary["seconds"])
    print(f"\n{printable(summary['experiment'])}: {steps} in {took}")
    for name, results in summary["evaluations"].items():
        left_out = 0
        for metric, after in without_repeats(results["after"]).items():
            before = results["before"].get(metric)
            if before is None or metric in TROUBLES:
                continue
            if "/" in metric and not declared.is_chief(name, metric):
                left_out += 1
                continue
            read = declared.of(f"evaluation/{name}/{metric}")
            shown = f"{format_value(read, before):>7} -> {format_value(read, after):>7}"
            unit = " points" if read.unit == "fraction" else ""
            named = printable(f"{name}/{metric}")
            print(f"  {named:<40} {shown}   {change(read, before, after)}{unit}")
        if left_out:
            print(f"  {printable(name)}: the report has {counted(left_out, 'further metric')}")
    if troubles := describe_troubles(summary["troubles"]):
        print(troubles)
