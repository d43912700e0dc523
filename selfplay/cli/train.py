"""Commands that make and evaluate runs; each imports heavy modules itself."""

import argparse
import glob
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from selfplay.cli.arguments import load, no_flags, note, nothing_more, print_notes
from selfplay.config import compose, plain_data
from selfplay.config.instantiate import TARGET
from selfplay.config.threads import ProcessorTime, count_on_busy_machine
from selfplay.config.trust import flags, needed
from selfplay.errors import ConfigError, DivergedError, RunEnded, RunError, printable
from selfplay.run import signals
from selfplay.run.declarations import TROUBLES
from selfplay.run.formatting import change, counted, duration, format_value
from selfplay.run.metrics import describe_troubles
from selfplay.run.run_folder import CHECKPOINTS

if TYPE_CHECKING:
    from selfplay.experiment.setting_changes import SettingChange


def train(options: argparse.Namespace, overrides: list[str]) -> None:
    """Train, continue a run, or run a sweep."""
    since = ProcessorTime.now()
    resume = [o.partition("=")[2] for o in overrides if o.startswith("resume=")]
    overrides = [o for o in overrides if not o.startswith("resume=")]
    if "--resume" in overrides:
        raise ConfigError("cannot read '--resume': write resume=RUN, without dashes")
    no_flags(overrides)
    if options.jobs != 1 and not options.multirun:
        raise ConfigError("--jobs: only -m has several runs; add -m, or drop it")
    if resume:
        known = ("config_path", "config_dir", "cfg", "multirun")
        given = [flag for flag in known if getattr(options, flag)]
        more = [f"--{flag.replace('_', '-')}" for flag in given]
        if more or len(resume) > 1:
            raise ConfigError(
                f"resume={resume[0]} goes on with the run's own config; drop "
                f"{' '.join(more) or 'the other resume='}, or begin a new run: selfplay train "
                f"--config-path {resume[0]} run.name=NEW ..."
            )
        _resume(Path(resume[0]), overrides)
        return
    if options.multirun:
        if options.cfg:
            raise ConfigError("--cfg prints one config; drop -m, and choose one value for each key")
        _sweep(options, overrides)
        return
    settings = load(options, overrides)
    from selfplay.config.run_config import run_folder
    from selfplay.experiment.experiment import Experiment, check
    from selfplay.run.directory import Run

    if options.cfg:
        notes = check(settings)
        run_folder(settings["run"])
        print_notes(notes)
        print(json.dumps(settings, indent=2))
        return
    if not isinstance(settings.get("run"), Mapping) or "seed" not in settings:
        plain_data.check_config(settings)  # raises ConfigError; Experiment finds all other faults
    run = {"folder": "runs", "experiment": "train", **settings["run"]}
    run["name"] = _new_name(run, settings["seed"]) if run.get("name") is None else str(run["name"])
    folder = run_folder(run)
    Run.check_new(folder)
    threads = count_on_busy_machine(since) if run.get("threads", 0) == 0 else 0
    if threads:
        run["threads"] = threads  # a resumed run keeps it, and so its results
    settings = {**settings, "run": run}
    with _Stage(lambda: Run.create(folder, settings), settings) as stage:
        try:
            experiment = Experiment(settings)
            print_notes(experiment.notes)
            _load(experiment, stage)
        except Exception:
            stage.discard()
            raise
        if threads:
            note(f"run.threads={threads}, because other processes keep cores of this machine busy")
        _go(experiment, stage)


def _sweep(options: argparse.Namespace, overrides: Sequence[str]) -> None:
    from selfplay.config.run_config import run_folder
    from selfplay.experiment.experiment import check
    from selfplay.run import sweep
    from selfplay.run.report.sweep_report import lines, text, write_ablation

    words = [f"--config-dir={folder}" for folder in options.config_dir]
    if options.config_path:
        words.append(f"--config-path={options.config_path}")
    words += [f"--trust={package}" for package in options.trust]
    planned = sweep.plan(overrides)
    wanted = replace(planned, command=(*words, *planned.command))
    said: list[str] = []
    trusted: set[str] = set()
    for point in wanted.points:
        settings = load(options, point.overrides, report=said.append)
        notes = check(settings)
        run_folder(settings["run"])
        said += notes
        trusted.update(needed(settings))
    print_notes(dict.fromkeys(said))
    run = {"folder": "runs", "experiment": "train", **settings["run"]}
    named = run.get("name")
    if named is None:
        named = f"{_stem(run)}-sweep-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = run_folder(run, str(named))
    again = "the same command" + ("" if named == run.get("name") else f" with run.name={named}")
    try:
        failed = sweep.run(
            folder, wanted, arguments=words, trusted=sorted(trusted), jobs=options.jobs
        )
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"{again} continues the sweep {folder}") from error
    if len(failed) < len(wanted.points):
        print(f"\n{text(lines(folder))}\n\nreport   {write_ablation(folder)}")
    if failed:
        raise RunError(
            f"{len(failed)} of {len(wanted.points)} runs did not finish, such as {failed[0]}; "
            f"its log is {folder / failed[0]}.log, and {again} continues the sweep"
        )


def _resume(folder: Path, overrides: Sequence[str]) -> None:
    """Continue a run, possibly with another engine or runtime, and with changed settings."""
    from selfplay.experiment.experiment import Experiment
    from selfplay.experiment.setting_changes import changes, check_changes
    from selfplay.learner import checkpoint
    from selfplay.learner.checkpoint_writer import CheckpointWriter
    from selfplay.run.directory import Run, spans
    from selfplay.run.run_folder import step_of

    run = Run.open(folder)
    run.lock()
    own = run.config()
    settings = compose.load_changed(folder, overrides) if overrides else own
    changed = changes(own, settings)
    checkpoint.recover(folder / CHECKPOINTS)
    place, faults = checkpoint.latest(folder / CHECKPOINTS)
    checkpoint.report_faults(faults, place)
    if place is None:
        run.check_complete()
        print(f"{folder}: stopped before its first checkpoint; beginning again", file=sys.stderr)
    step = None if place is None else step_of(place)
    check_changes(changed, settings, run=folder, step=step)

    with _Stage(lambda: run, settings, step=step or 0, changed=changed) as stage:
        experiment = Experiment(settings)
        _load(experiment, stage, place)
        if changed:
            kept = {key: own[key] for key in plain_data.LOCAL_DEFAULTS if key in own}
            run.change_config({**settings, **kept})
            note(f"from step {(step or 0) + 1} on: {', '.join(map(str, changed))}")
        steps = experiment.settings.steps
        if experiment.step >= steps:
            # A kill may have come between the last checkpoint and the removal of an older one.
            CheckpointWriter(folder / CHECKPOINTS).remove_older(
                experiment.step, experiment.settings.keep_checkpoints, experiment.collapse.spare()
            )
            note(f"all {steps} steps of {folder} are done; to train longer, add run.steps=N")
        elif place is not None:
            again = run.repeated(experiment.step)
            also = f"; it repeats step{'s' * (len(again) > 1)} {spans(again)}" if again else ""
            done = f"continues after the checkpoint of step {experiment.step}"
            stage.progress.note(done + also)
        _go(experiment, stage, rewind=-1 if place is None else experiment.step)


def _place(override: str) -> str:
    """Return the top-level config key of an override, such as `engine` for `++engine.rank=8`."""
    return override.lstrip("+~").partition("=")[0].partition(".")[0]


class _Stage:
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

    def __enter__(self) -> "_Stage":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from selfplay.run.report.run_report import write_report
        from selfplay.run.sessions import end_session

        self._shown.__exit__(kind, error, trace)
        if error is None or self.run is None:
            return
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


def _load(experiment: Any, stage: _Stage, saved: Path | None = None) -> None:
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


def _go(experiment: Any, stage: _Stage, *, rewind: int | None = None) -> None:
    """Train, and write the summary and the report.

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
    _print_summary(summary, experiment.declared)
    print(f"run      {run.folder}\nreport   {page}")


def evaluate(options: argparse.Namespace, rest: list[str]) -> None:
    """Evaluate a run's newest checkpoint, that of a step, or its policies before training.

    By default everything runs in this process.
    """
    known = (*plain_data.LOCAL_DEFAULTS, "evaluations", "services")
    nothing_more([each for each in rest if _place(each) not in known], options)
    elsewhere = [each for each in rest if _place(each) in plain_data.LOCAL_DEFAULTS]
    from selfplay.experiment.experiment import Experiment
    from selfplay.run.directory import Run
    from selfplay.study.players import Reference

    reference = Reference.parse(options.run)
    run = Run.open(reference.run)
    place = reference.place()
    folder = reference.run
    settings = compose.load_changed(folder, rest) if rest else run.config()
    if not settings.get("evaluations"):
        raise RunError(
            f"run {folder} has no evaluations; train with some, such as evaluations=NAME (see "
            "selfplay list evaluations)"
        )
    chosen = {key: settings[key] for key in map(_place, elsewhere) if key in settings}
    with redirect_stdout(sys.stderr):  # a warm start that is made again prints its progress
        config = {**compose.with_local_runtime(settings), **chosen}
        experiment = Experiment(config, unplayed=("arena",))
        experiment.load(place, learning=False)
    results: dict[str, dict[str, float]] = {}
    try:
        for name, (evaluation, play) in experiment.evaluations.items():
            results[name], episodes = evaluation.run(name, play, seed=experiment.seed)
            print_notes(evaluation.notes(name, episodes))
    finally:
        experiment.close()
    if options.json:
        print(json.dumps({"step": experiment.step, "evaluations": results}, indent=2))
        return
    print(printable(f"{folder}, step {experiment.step}"))
    for name, values in results.items():
        for metric, value in _without_repeats(values).items():
            read = experiment.declared.of(f"evaluation/{name}/{metric}")
            print(f"{printable(f'{name}/{metric}'):<40} {format_value(read, value)}")


def warmstart(options: argparse.Namespace, overrides: list[str]) -> None:
    """Make or find the warm-started models of a config, and print their folders, one a line."""
    no_flags(overrides)
    settings = load(options, overrides)
    if TARGET not in settings.get("warmstart", {}):
        raise ConfigError("this config has no warmstart; choose warmstart=tiny")
    from selfplay.config.run_config import set_up_process
    from selfplay.experiment.experiment import Experiment
    from selfplay.models.policy_settings import PolicySettings
    from selfplay.models.warmstart import make

    experiment = Experiment(settings)
    experiment.close()
    set_up_process(experiment.settings, experiment.seed)
    node = settings["warmstart"]
    source = node.get("demonstrations") or node.get("examples") or {}
    shown = source.get(TARGET, node[TARGET])
    tunes = experiment.population.warmstart.tunes
    verb = "fine-tuning on examples of" if tunes else "making demonstrations with"
    print(f"warm start: {verb} {shown}", file=sys.stderr)
    report = partial(print, file=sys.stderr)
    if not tunes:
        print(make(node, report))
        return
    done: list[PolicySettings] = []
    for each in experiment.population.policies.values():
        start = PolicySettings(model=each.model, **each.chat)
        if each.learn and start not in done:
            done.append(start)
            print(make(node, report, base=each.model, **each.chat))


def _stem(run: Mapping[str, Any]) -> str:
    """Return the experiment's name, such as tiny/kuhn, as a part of a folder's name."""
    return str(run["experiment"]).replace("/", "-")


def _new_name(run: Mapping[str, Any], seed: int) -> str:
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = f"{_stem(run)}-seed{seed}-{now}"
    taken = sum(1 for _ in Path(str(run["folder"])).glob(f"{glob.escape(name)}*"))
    return f"{name}-{taken + 1}" if taken else name


def _without_repeats(values: Mapping[str, float]) -> dict[str, float]:
    """Return an evaluation's metrics without those of its only type of task, which repeat the
    metrics of all tasks."""
    from selfplay.run.report.repeated_metrics import repeated

    repeats = repeated({f"evaluation/_/{name}": value for name, value in values.items()})
    return {name: value for name, value in values.items() if f"evaluation/_/{name}" not in repeats}


def _print_summary(summary: Mapping[str, Any], declared: Any) -> None:
    steps, took = counted(summary["steps"], "step"), duration(summary["seconds"])
    print(f"\n{printable(summary['experiment'])}: {steps} in {took}")
    for name, results in summary["evaluations"].items():
        left_out = 0
        for metric, after in _without_repeats(results["after"]).items():
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
