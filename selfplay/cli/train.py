"""Commands that make and evaluate runs; each imports heavy modules itself."""

import argparse
import glob
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfplay.cli.arguments import load, no_flags, note, nothing_more, print_notes
from selfplay.cli.stage import Stage, go, load_models, without_repeats
from selfplay.config import compose, plain_data
from selfplay.config.instantiate import TARGET
from selfplay.config.threads import ProcessorTime, count_on_busy_machine
from selfplay.config.trust import needed
from selfplay.errors import ConfigError, RunError, printable
from selfplay.run.formatting import format_value
from selfplay.run.run_folder import CHECKPOINTS

if TYPE_CHECKING:
    from selfplay.run.directory import Run


def train(options: argparse.Namespace, overrides: list[str]) -> None:
    """Train, continue a run, or run a sweep."""
    since = ProcessorTime.now()
    runs = [o.partition("=")[2] for o in overrides if o.startswith("resume=")]
    overrides = [o for o in overrides if not o.startswith("resume=")]
    if "--resume" in overrides:
        raise ConfigError("cannot read '--resume': write resume=RUN, without dashes")
    no_flags(overrides)
    if options.jobs != 1 and not options.multirun:
        raise ConfigError("--jobs: only -m has several runs; add -m, or drop it")
    if runs:
        known = ("config_path", "config_dir", "cfg", "multirun")
        given = [flag for flag in known if getattr(options, flag)]
        more = [f"--{flag.replace('_', '-')}" for flag in given]
        if more or len(runs) > 1:
            raise ConfigError(
                f"resume={runs[0]} goes on with the run's own config; drop "
                f"{' '.join(more) or 'the other resume='}, or begin a new run: selfplay train "
                f"--config-path {runs[0]} run.name=NEW ..."
            )
        resume(Path(runs[0]), overrides)
        return
    if options.multirun:
        if options.cfg:
            raise ConfigError("--cfg prints one config; drop -m, and choose one value for each key")
        _sweep(options, overrides)
        return
    settings = load(options, overrides)
    if not options.cfg:
        begin(settings, since)
        return
    from selfplay.config.run_config import run_folder
    from selfplay.experiment.experiment import check

    notes = check(settings)
    run_folder(settings["run"])
    print_notes(notes)
    print(json.dumps(settings, indent=2))


def begin(settings: Mapping[str, Any], since: ProcessorTime | None) -> Path:
    """Train a new run to its end, and return its folder.

    Args:
        settings: Composed config of the run.
        since: Processor time at the start of the command, by which a busy machine is noticed; None
            if it is unknown.
    Raises:
        SelfplayError: For a fault of the config or of the training.
        KeyboardInterrupt: After a signal; its text says how to continue.
    """
    from selfplay.config.run_config import run_folder
    from selfplay.experiment.experiment import Experiment
    from selfplay.run.directory import Run

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
    with Stage(lambda: Run.create(folder, settings), settings) as stage:
        try:
            experiment = Experiment(settings)
            print_notes(experiment.notes)
            load_models(experiment, stage)
        except Exception:
            stage.discard()
            raise
        if threads:
            note(f"run.threads={threads}, because other processes keep cores of this machine busy")
        go(experiment, stage)
    return folder


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


def resume(folder: Path, overrides: Sequence[str]) -> None:
    """Continue a run to its end, possibly with another engine or runtime, and changed settings."""
    from selfplay.run.directory import Run

    older, at, step_named = str(folder).rpartition("@")
    if at and not folder.is_dir() and Path(older).is_dir():
        raise RunError(
            f"resume={folder}: a run continues after its newest checkpoint; to continue from step "
            f"{step_named}, copy the folder {older}, and delete the newer folders of checkpoints/ "
            "in the copy"
        )
    run = Run.open(folder)
    run.lock()
    try:
        _continue(run, overrides)
    finally:
        run.unlock()


def _continue(run: "Run", overrides: Sequence[str]) -> None:
    from selfplay.experiment.experiment import Experiment
    from selfplay.experiment.setting_changes import changes, check_changes
    from selfplay.learner import checkpoint
    from selfplay.learner.checkpoint_writer import CheckpointWriter
    from selfplay.run.directory import spans
    from selfplay.run.run_folder import step_of

    folder, own = run.folder, run.config()
    settings = compose.load_changed(folder, overrides) if overrides else own
    changed = changes(own, settings)
    checkpoint.recover(folder / CHECKPOINTS)
    place, faults = checkpoint.latest(folder / CHECKPOINTS)
    checkpoint.report_faults(faults, place)
    if place is None:
        run.check_complete()
        print(f"{folder}: stopped before its first checkpoint; beginning again", file=sys.stderr)
    step = None if place is None else step_of(place)
    check_changes(changed, settings, run=folder, step=step, overrides=overrides)

    with Stage(lambda: run, settings, step=step or 0, changed=changed) as stage:
        experiment = Experiment(settings)
        load_models(experiment, stage, place)
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
        go(experiment, stage, rewind=-1 if place is None else experiment.step)


def _place(override: str) -> str:
    """Return the top-level config key of an override, such as `engine` for `++engine.rank=8`."""
    return override.lstrip("+~").partition("=")[0].partition(".")[0]


def evaluate(options: argparse.Namespace, rest: list[str]) -> None:
    """Evaluate a run's newest checkpoint, that of a step, or its policies before training.

    By default everything runs in this process.
    """
    known = (*plain_data.LOCAL_DEFAULTS, "evaluations", "services")
    others = [each for each in rest if _place(each) not in known]
    if others and "=" in others[0] and not others[0].startswith("-"):
        raise ConfigError(
            f"{others[0]}: evaluate changes evaluations, services, engine and runtime only; all "
            "else is that of the run. For other roles or players begin a run of 0 steps with its "
            'policies, see "Begin a new run from a checkpoint" in docs/quickstart.md'
        )
    nothing_more(others, options)
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
        for metric, value in without_repeats(values).items():
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
