"""The command line: every command of `selfplay` and its flags."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, NoReturn, TypeAlias

from selfplay import __version__
from selfplay.cli import average, commands, export, new, plan, show, study
from selfplay.cli.arguments import HOST, OVERRIDDEN, PLAY_PORT, Steps, takes_run
from selfplay.cli.limits import limit_of, search_current_folder, takes_trust
from selfplay.cli.process import prepare
from selfplay.config.trust import limited
from selfplay.errors import ConfigError, SelfplayError, closest, nearest, printable
from selfplay.run import signals

INTERRUPTED = signals.EXIT_CODE

Add: TypeAlias = Callable[..., argparse.ArgumentParser]
"""Function that adds a command and returns its parser, given the command's name, its function, and
texts for argparse."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    The code is 0 for success, 2 for an error of the user or a fault that `check` found, 3 for a
    plan that does not fit its cluster, and 130 after Ctrl-C. `arguments` are the words after
    `selfplay`; None: those of the command line. `--help` and `--version` raise SystemExit.
    """
    prepare()
    signals.install()
    try:
        return _run(arguments)
    except BaseException as error:
        # After an interrupt every error counts as one: pydantic's C code raises SchemaError then.
        interrupted = isinstance(error, KeyboardInterrupt) or signals.raised()
        if isinstance(error, SystemExit) or not interrupted:
            raise
        advice = str(error) if isinstance(error, KeyboardInterrupt) else ""
        _complain(f"interrupted; {advice}" if advice else "interrupted")
        return INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    try:
        words = sys.argv[1:] if arguments is None else arguments
        options, rest = _parser(words).parse_known_args(words)
        limit = limit_of(options, rest, words)
        search_current_folder(limit)
        command: Callable[[argparse.Namespace, list[str]], int | None] = options.command
        with limited(limit):
            return command(options, rest) or 0
    except (SelfplayError, OSError) as error:
        if signals.raised():
            raise
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        if isinstance(error, SelfplayError):
            return _complain(str(error))
        return _complain(f"{error.filename or 'the system'}: {error.strerror or error}")


def _complain(problem: str) -> int:
    print(f"selfplay: {printable(problem)}", file=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    """Argument parser with one-line errors."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong:
            word, known = wrong.group(1), re.findall(r"[a-z]+", wrong.group(2))
            kind = "measure" if " study" in self.prog else "command"
            close, whole = closest(word, known), f"choose from: {', '.join(sorted(known))}"
            hint = whole if close is None else f"did you mean {close!r}?"
            message = f"no {kind} {word!r}; {hint}"
            if " study compare" in self.prog and close is None:
                message = f"compare does not take the measure {word!r}; {whole}"
            if kind == "measure" and re.search("[=/@]", word):  # a run
                message = f"name a measure before {word!r}; {nearest('', known)}"
        raise ConfigError(f"{message} (see {self.prog} --help)")


def _parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of a command line; it has the measures only if `words` has `study`."""
    parser = _Parser(
        prog="selfplay",
        description="Multi-agent self-play reinforcement learning of language models",
    )
    parser.add_argument("--version", action="version", version=f"selfplay {__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, command: Callable[..., int | None], **text: Any) -> argparse.ArgumentParser:
        made = subparsers.add_parser(name, allow_abbrev=False, **text)
        made.set_defaults(command=command, name=name)
        return made

    _add_training(add)
    _add_pages(add)
    _add_records(add)
    _add_measurements(add, measures="study" in words)
    _add_files(add, parser)
    for name in OVERRIDDEN:
        made = subparsers.choices[name]
        made.usage = _usage_with_overrides(made)
    return parser


def _usage_with_overrides(command: argparse.ArgumentParser) -> str:
    """Return the wrapped usage of a command, with [key=value ...] at its end."""
    usage, more = command.format_usage().rstrip(), "[key=value ...]"
    last = usage.rpartition("\n")[2]
    full = len(f"{last} {more}") > get_terminal_size().columns - 2  # where argparse wraps
    between = "\n".ljust(1 + len(f"usage: {command.prog} ")) if full else " "
    return f"{usage}{between}{more}".removeprefix("usage: ")


def _takes_folders(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config-dir",
        action="append",
        default=[],
        metavar="FOLDER",
        help="one more folder of config groups; may be repeated",
    )


def _listens(command: argparse.ArgumentParser, *, port: int) -> None:
    command.add_argument("--host", default=HOST, help=f"address to listen on (default {HOST})")
    command.add_argument(
        "--port", type=int, default=port, help=f"port; 0 takes any free port (default {port})"
    )


def _add_training(add: Add) -> None:
    """Add the commands that check, train and evaluate."""
    train = add(
        "train",
        commands.train,
        help="begin a run: selfplay train +experiment=NAME [key=value ...], or continue one: "
        "selfplay train resume=RUN",
        description="Train: selfplay train +experiment=NAME [key=value ...]. Continue a run: "
        "selfplay train resume=RUN [key=value ...]. Other arguments are Hydra overrides (seed=1).",
    )
    train.add_argument(
        "--config-path",
        type=Path,
        metavar="FOLDER",
        help="a run to repeat (with run.name=NEW), or a folder with a base.yaml",
    )
    _takes_folders(train)
    train.add_argument(
        "-m",
        "--multirun",
        action="store_true",
        help="one run per combination of the listed values, such as seed=0,1,2",
    )
    train.add_argument("--jobs", type=int, default=1, help="concurrent runs of -m (default 1)")
    takes_trust(train)
    train.add_argument("--cfg", action="store_true", help="print the composed config and stop")
    check = add(
        "check",
        commands.check,
        help="try a config without its policies: selfplay check +experiment=NAME [key=value ...]",
        description="Validate a config, then play one game of its arena and one of each evaluation "
        "with random moves and without the policies. Prints observations and rewards, and a "
        "line for each fault; the exit code is 2 if there is a fault.",
    )
    check.add_argument(
        "--config-path", type=Path, metavar="FOLDER", help="a run, or a folder with a base.yaml"
    )
    check.add_argument("--seed", type=int, default=0, help="seed of the games (default 0)")
    _takes_folders(check)
    takes_trust(check)
    evaluate = add(
        "evaluate",
        commands.evaluate,
        help="evaluate a checkpoint of a run: selfplay evaluate RUN [evaluations.NAME.samples=400]",
        description="Play the evaluations of a run with the policies of one of its checkpoints, by "
        "default the newest, and print their metrics. key=value changes an evaluation, a service, "
        "or the engine.",
    )
    evaluate.add_argument("run", metavar="RUN", help=study.PLAYER)
    evaluate.add_argument("--json", action="store_true", help="print the metrics as JSON")
    takes_trust(evaluate)
    _takes_folders(
        add(
            "warmstart",
            commands.warmstart,
            help="make or find the model of a config's warm start",
            description="Make the warm-started models of a config, or find them in the cache, and "
            "print their folders, one a line: selfplay warmstart +experiment=NAME [key=value ...].",
        )
    )


def _add_pages(add: Add) -> None:
    """Add the commands that show a run, or let a person play."""
    report = add(
        "report",
        commands.report,
        help="write report.html of a run or of a sweep",
        description="Write report.html, one page that needs no network, into the folder of a run "
        "or of a sweep. For a sweep it is the table of its combinations, which is printed too.",
    )
    report.add_argument("run", type=Path, metavar="RUN or SWEEP", help="folder of the run or sweep")
    watch = add(
        "watch",
        commands.watch,
        help="show runs live in a browser: selfplay watch [RUN ...]",
        description="A local page over run folders: curves, episodes, groups, tokens, tasks. Needs "
        "selfplay[watch]. Only this machine can open it; with another --host it requires a token.",
    )
    watch.add_argument(
        "runs", type=Path, nargs="*", metavar="RUN", help="runs, or folders of them (default runs)"
    )
    _listens(watch, port=8765)
    play = add(
        "play",
        commands.play,
        help="play as one of the agents: selfplay play RUN --as player_1 [key=value ...]",
        description="Play against the newest policies of a run, or in an arena of `selfplay list "
        "arena` against a script, at the terminal or in a browser. Games are saved as episodes. "
        "key=value changes the run's or the arena's config, such as arena.rounds=2. "
        "\\n in a line of the terminal begins a new line.",
    )
    play.add_argument("target", metavar="RUN or ARENA", help="RUN@STEP uses another checkpoint")
    play.add_argument("--as", dest="agent", metavar="AGENT", help="your agent")
    play.add_argument(
        "--page", action="store_true", help="play in a browser; needs selfplay[watch]"
    )
    play.add_argument(
        "--against",
        default="",
        metavar="SCRIPT",
        help="script of the other agents in an arena without a run: dotted name of a function "
        "(agent, observation, rng) (default: random legal moves)",
    )
    _takes_folders(play)
    play.add_argument("--games", type=int, help="number of games at the terminal (default 1)")
    play.add_argument("--seed", type=int, default=0, help="seed of the games (default 0)")
    takes_trust(play)
    _listens(play, port=PLAY_PORT)
    play.set_defaults(host=None, port=None)  # refused without --page


def _add_records(add: Add) -> None:
    """Add the commands that work on the files of runs."""
    replay = add(
        "replay",
        commands.replay,
        help="recompute rewards and credit of a run: selfplay replay RUN [key=value ...]",
        description="Replay the recorded episodes of a run without any model. With the run's own "
        "config the results must equal the record; key=value shows the rewards and advantages of "
        "another config, such as credit=rloo or arena.incentives.corrected_alone=0.5.",
    )
    takes_run(replay)
    replay.add_argument(
        "--steps", action=Steps, nargs="+", default=[], metavar="N", help="replay only these steps"
    )
    replay.add_argument(
        "--draw",
        action="store_true",
        help="only write the arena's drawings of the episodes, for the pages of watch",
    )
    replay.set_defaults(later_overrides=[])
    replay.add_argument("--json", action="store_true", help="print all differences as JSON")
    _takes_folders(replay)
    takes_trust(replay)
    shown = add(
        "show",
        show.run,
        help="print recorded episodes of a run: selfplay show RUN --step 20 --best",
        description="Print recorded episodes: prompts, completions, actions, rewards and "
        "advantages. The command reads data and imports no code that the run names.",
    )
    show.add_arguments(shown)
    exported = add(
        "export",
        export.run,
        help="write recorded turns as chats for fine-tuning: selfplay export RUN",
        description="Write recorded turns of a run as JSON lines of chat messages, which "
        "warmstart=fine_tune and other trainers read. Only turns of policies that learned are "
        "written. The command reads data and imports no code that the run names.",
    )
    export.add_arguments(exported)
    averaged = add(
        "average",
        average.run,
        help="mean of the weights of a run's checkpoints: selfplay average RUN --steps A:B",
        description="Write a run whose only checkpoint has the mean of the weights of several "
        "checkpoints of RUN. It can be studied, evaluated and played, not continued. The command "
        "reads data and imports no code that the run names. It refuses a config that names a "
        "package outside this library, unless --trust PACKAGE allows it.",
    )
    average.add_arguments(averaged)
    takes_trust(averaged)
    tagged = add(
        "tag",
        commands.tag,
        help="tags of runs: selfplay tag RUN [RUN ...] --add baseline --remove old",
        description="Print the tags of runs, after adding some and removing others. The table of "
        "runs of selfplay watch shows them and finds them: tag:baseline.",
    )
    tagged.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    for flag in ("--add", "--remove"):
        tagged.add_argument(
            flag, action="append", default=[], metavar="TAG", help="a tag; may be repeated"
        )


def _add_measurements(add: Add, *, measures: bool) -> None:
    """Add the commands that measure or predict; `measures`: with the subcommands of `study`."""
    measuring = add(
        "study", commands.study, help="measure a run: selfplay study exploitability RUN"
    )
    if measures:  # importing the measures takes a second
        study.add_arguments(measuring)
    planned = add(
        "plan",
        plan.run,
        help="predict memory and seconds per step: selfplay plan +experiment=NAME cluster=NAME",
        description="Predict memory per device and seconds per step of a config before a run: "
        "selfplay plan +experiment=NAME cluster=gpus_8 cluster.device=h200. The arguments "
        "key=value are those of selfplay train, cluster=NAME (a preset or a .yaml file of yours; "
        "default: this machine), cluster.KEY=VALUE, and workload.KEY=VALUE for lengths that no "
        "config has, such as workload.prompt=512 (tokens). No weights are loaded; the config.json "
        "of a model is read. Exit code: 0 if the run fits, 3 if it does not fit, 2 for an error.",
    )
    plan.add_arguments(planned)
    takes_trust(planned)
    _takes_folders(planned)


def _add_files(add: Add, parser: argparse.ArgumentParser) -> None:
    """Add the commands that list configs and write new parts; `parser` is the whole parser."""
    names = add(
        "list",
        commands.list_choices,
        help="list and describe arenas, roles, credits, objectives, experiments ...",
    )
    names.add_argument("group", nargs="?", help="a group, such as arena (default: all groups)")
    _takes_folders(names)
    created = add(
        "new",
        new.new,
        help="write a new part: selfplay new "
        "arena|role|credit|objective|curriculum|sampler|measure NAME",
        description="Write the code, the config and the test of a new arena, role, credit method, "
        "objective, curriculum, sampler or study measure into the current folder, ready to run. It "
        "overwrites no file.",
    )
    created.add_argument("kind", metavar="KIND", help=", ".join(new.KINDS))
    created.add_argument("part", metavar="NAME", help="such as rock_paper_scissors")
    created.add_argument(
        "--package", default=new.PACKAGE, help=f"folder of the code (default {new.PACKAGE})"
    )
    created.add_argument(
        "--configs", default=new.CONFIGS, help=f"folder of the configs (default {new.CONFIGS})"
    )
    completion = add(
        "completion",
        commands.completion,
        help="print the tab completion of a shell: selfplay completion bash|zsh|fish",
        description="Print a script that completes commands, flags, config groups and keys. "
        "bash: source <(selfplay completion bash). fish: selfplay completion fish | source. zsh: "
        "write it to a file _selfplay in a folder of fpath.",
    )
    completion.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")
    completion.set_defaults(parser=parser)
    _takes_folders(completion)
