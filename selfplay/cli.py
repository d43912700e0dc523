"""The command line: train, evaluate, warmstart, report, list."""

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from selfplay import __version__, config
from selfplay.build import TARGET, build
from selfplay.errors import (
    CollapsedError,
    ConfigError,
    DivergedError,
    RunError,
    SelfplayError,
    nearest,
)
from selfplay.figures import change, duration, figure, is_share

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 2 for what a user can mend, 130 for Ctrl-C."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # Without it, deterministic kernels refuse matrix products on a GPU.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # As `python -m selfplay` does: a user's own arenas and roles may lie in the current folder.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        options, rest = _parser().parse_known_args(arguments)
        command: Callable[[argparse.Namespace, list[str]], None] = options.command
        command(options, rest)
    except SelfplayError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        _complain("interrupted; what was recorded is kept, and train resume=RUN goes on with a run")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(f"{error.filename or 'the system'}: {error.strerror or error}")
    return 0


def _complain(problem: str) -> int:
    print(f"selfplay: {' '.join(problem.split())}", file=sys.stderr)
    return 2


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong:
            commands = re.findall(r"[a-z]+", wrong.group(2))
            message = f"no command {wrong.group(1)!r}; {nearest(wrong.group(1), commands)}"
        raise ConfigError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="selfplay",
        description="Multi-agent self-play reinforcement learning of language models",
    )
    parser.add_argument("--version", action="version", version=f"selfplay {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, command: Callable[..., None], **text: Any) -> argparse.ArgumentParser:
        made = commands.add_parser(name, allow_abbrev=False, **text)
        made.set_defaults(command=command)
        return made

    def takes_folders(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--config-dir",
            action="append",
            default=[],
            metavar="FOLDER",
            help="one more folder of config groups; may be repeated",
        )

    train = add(
        "train",
        _train,
        help="train: selfplay train +experiment=NAME [key=value ...], or resume=RUN",
        description="Train: selfplay train +experiment=NAME [key=value ...]. Go on with a run: "
        "selfplay train resume=RUN. Other arguments are Hydra overrides, such as seed=1.",
    )
    train.add_argument(
        "--config-path",
        type=Path,
        metavar="FOLDER",
        help="a run to do again (with run.name=NEW), or a folder with a train.yaml",
    )
    takes_folders(train)
    train.add_argument("--cfg", action="store_true", help="print the composed config and stop")
    evaluate = add("evaluate", _evaluate, help="evaluate the newest checkpoint of a run")
    evaluate.add_argument("run", type=Path)
    evaluate.add_argument("--json", action="store_true", help="print the figures as JSON")
    takes_folders(add("warmstart", _warmstart, help="make or find a config's warm-started model"))
    report = add("report", _report, help="write report.html of a run")
    report.add_argument("run", type=Path)
    names = add("list", _list, help="list arenas, roles, credits, objectives, experiments ...")
    names.add_argument("group", nargs="?", help="such as arena; all of them without it")
    takes_folders(names)
    return parser


def _train(options: argparse.Namespace, overrides: list[str]) -> None:
    resume = [o.partition("=")[2] for o in overrides if o.startswith("resume=")]
    overrides = [o for o in overrides if not o.startswith("resume=")]
    _no_flags(overrides)
    if resume:
        flags = [flag for flag in ("config_path", "config_dir", "cfg") if getattr(options, flag)]
        more = [*overrides, *(f"--{flag.replace('_', '-')}" for flag in flags)]
        if more or len(resume) > 1:
            raise ConfigError(
                f"resume={resume[0]} goes on with the run's own config; drop "
                f"{' '.join(more) or 'the other resume='}"
            )
        _resume(Path(resume[0]))
        return
    settings = _load(options, overrides)
    if options.cfg:
        print(json.dumps(settings, indent=2))
        return
    from selfplay.experiment import Experiment, validate
    from selfplay.runs import Run

    validate(settings)
    run = {"folder": "runs", "experiment": "train", **settings["run"]}
    run["name"] = str(run.get("name") or _new_name(run, settings["seed"]))
    folder = Path(run["folder"]) / run["name"]
    Run.refuse_existing(folder)
    settings = {**settings, "run": run}
    experiment = Experiment(settings)
    _go(experiment, lambda: Run.create(folder, settings))


def _resume(folder: Path) -> None:
    from selfplay import checkpoint
    from selfplay.experiment import Experiment
    from selfplay.runs import Run

    run = Run.open(folder)
    run.lock()
    settings = run.config()
    place, faults = checkpoint.latest(folder / "checkpoints")
    _tell_faults(faults, place)
    if place is None:
        print(f"{folder}: stopped before its first checkpoint; beginning again", file=sys.stderr)
        experiment = Experiment(settings)
    else:
        experiment = Experiment.resume(settings, place)

    def rewound() -> Run:
        run.rewind(-1 if place is None else experiment.step)
        return run

    _go(experiment, rewound)


def _tell_faults(faults: Sequence[str], place: Path | None) -> None:
    for fault in faults:
        print(f"checkpoint {fault}; using {place}", file=sys.stderr)


def _go(experiment: Any, make_run: Callable[[], Any]) -> None:
    """Train, summarise, report."""
    from selfplay.progress import Progress
    from selfplay.report import write_report
    from selfplay.train import train

    try:
        run = make_run()
        try:
            with Progress(experiment.settings.steps, run.folder.name) as progress:
                train(experiment, run, progress)
        except (CollapsedError, DivergedError):
            write_report(run.folder)  # what went wrong is there to be looked at
            raise
        summary = experiment.summary(run.folder)
        run.write_summary(summary)
        page = write_report(run.folder)
    finally:
        experiment.close()
    _print_summary(summary)
    print(f"run      {run.folder}\nreport   {page}")


def _evaluate(options: argparse.Namespace, rest: list[str]) -> None:
    _nothing_more(rest)
    from selfplay import checkpoint
    from selfplay.experiment import Experiment
    from selfplay.runs import Run

    run = Run.open(options.run)
    place, faults = checkpoint.latest(options.run / "checkpoints")
    _tell_faults(faults, place)
    if place is None:
        raise RunError(f"run {options.run} has no checkpoint yet; go on with it: train resume=...")
    experiment = Experiment.resume(run.config(), place)
    try:
        figures = {
            name: evaluation.run(name, rollout.play, seed=experiment.seed)[0]
            for name, (evaluation, rollout) in experiment.evaluations.items()
        }
    finally:
        experiment.close()
    if options.json:
        print(json.dumps({"step": experiment.step, "evaluations": figures}, indent=2))
        return
    for name, found in figures.items():
        for metric, value in found.items():
            print(f"{f'{name}/{metric}':<40} {figure(metric, value)}")


def _warmstart(options: argparse.Namespace, overrides: list[str]) -> None:
    _no_flags(overrides)
    settings = _load(options, overrides)
    if TARGET not in settings.get("warmstart", {}):
        raise ConfigError("this config has no warmstart; choose warmstart=tiny")
    from selfplay.experiment import set_up_torch, validate
    from selfplay.warmstart import make

    validate(settings)
    set_up_torch(build(settings["run"], where="run"), int(settings["seed"]))
    print(make(settings["warmstart"], lambda text: print(text, file=sys.stderr)))


def _report(options: argparse.Namespace, rest: list[str]) -> None:
    _nothing_more(rest)
    from selfplay.report import write_report

    print(write_report(options.run))


def _list(options: argparse.Namespace, rest: list[str]) -> None:
    _nothing_more(rest)
    groups = config.groups(options.config_dir)
    if options.group and options.group not in groups:
        raise ConfigError(f"no group {options.group!r}; {nearest(options.group, groups)}")
    for group in [options.group] if options.group else groups:
        print(f"{group:<12} {'  '.join(config.choices(group, options.config_dir))}")


def _load(options: argparse.Namespace, overrides: Sequence[str]) -> dict[str, Any]:
    path: Path | None = getattr(options, "config_path", None)
    name = "config" if path is not None and (path / "config.yaml").is_file() else "train"
    return config.load(overrides, name=name, folder=path, search=options.config_dir)


def _new_name(run: Mapping[str, Any], seed: int) -> str:
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = f"{run['experiment']}-seed{seed}-{now}"
    taken = sum(1 for _ in Path(run["folder"]).glob(f"{name}*"))
    return f"{name}-{taken + 1}" if taken else name


def _no_flags(overrides: Sequence[str]) -> None:
    for override in overrides:
        if override.startswith("-") or ("=" not in override and not override.startswith("~")):
            raise ConfigError(
                f"cannot read {override!r}: arguments are key=value, such as seed=1, or "
                "+experiment=NAME (see selfplay train --help)"
            )


def _nothing_more(rest: Sequence[str]) -> None:
    if rest:
        raise ConfigError(f"unexpected argument {rest[0]!r} (see selfplay --help)")


def _print_summary(summary: Mapping[str, Any]) -> None:
    print(f"\n{summary['experiment']}: {summary['steps']} steps in {duration(summary['seconds'])}")
    for name, figures in summary["evaluations"].items():
        for metric, after in figures["after"].items():
            before = figures["before"].get(metric)
            if before is None or metric == "failed_episodes":
                continue
            shown = f"{figure(metric, before):>7} -> {figure(metric, after):>7}"
            unit = " points" if is_share(metric) else ""
            print(f"  {f'{name}/{metric}':<40} {shown}   {change(metric, before, after)}{unit}")
