"""The command `show`: recorded episodes of a run, as text."""

import argparse
from pathlib import Path

from selfplay.cli.arguments import nothing_more
from selfplay.errors import ConfigError, RunError, nearest


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Give the command its flags."""
    command.add_argument("run", type=Path)
    command.add_argument(
        "--step", type=int, metavar="N", help="step (default: the last one that was recorded)"
    )
    command.add_argument("--episode", type=int, metavar="N", help="number of one episode, from 1")
    order = command.add_mutually_exclusive_group()
    order.add_argument("--best", action="store_true", help="the episodes that paid most first")
    order.add_argument("--worst", action="store_true", help="the episodes that paid least first")
    command.add_argument("--role", metavar="ROLE", help="with --best or --worst: pay of this role")
    command.add_argument("--failed", action="store_true", help="only episodes that failed")
    command.add_argument(
        "--count", type=int, default=1, metavar="N", help="number of episodes (default 1)"
    )


def run(options: argparse.Namespace, rest: list[str]) -> None:
    """Print the chosen episodes."""
    nothing_more(rest)
    from selfplay.credit.base import pay_by_agent
    from selfplay.run.declarations import read_declared
    from selfplay.run.directory import Run
    from selfplay.run.record_reader import Recorded, episodes_of, recorded_steps
    from selfplay.run.report.episode_text import text_of
    from selfplay.types import Status

    if options.count < 1:
        raise ConfigError(f"--count {options.count}: 1 or more is needed")
    Run.open(options.run)
    steps = recorded_steps(options.run)
    if not steps:
        raise RunError(
            f"{options.run}: no episode was recorded; run.episodes_every sets how often they are"
        )
    step = steps[-1] if options.step is None else options.step
    if step not in steps:
        near = sorted(sorted(steps, key=lambda each: abs(each - step))[:5])
        raise RunError(
            f"{options.run}: no episodes of step {step}; near it are those of "
            f"{', '.join(map(str, near))}"
        )
    chosen = list(episodes_of(options.run, step))
    if options.episode is not None:
        if not 1 <= options.episode <= len(chosen):
            raise RunError(
                f"{options.run}: no episode {options.episode}; step {step} has {len(chosen)}"
            )
        chosen = [each for each in chosen if each.line == options.episode]
    if options.failed:
        chosen = [each for each in chosen if each.episode.status is Status.FAILED]

    role = options.role
    if role is not None and not (options.best or options.worst):
        raise ConfigError("--role names whose pay counts; give --best or --worst too")
    known = {turn.role for each in chosen for turn in each.episode.turns}
    if role is not None and role not in known:
        raise RunError(
            f"{options.run}: no turn of the role {role!r}; {nearest(role, sorted(known))}"
        )

    def paid(record: Recorded) -> float:
        agents = {turn.agent for turn in record.episode.turns if role in (None, turn.role)}
        pay = pay_by_agent(record.episode)
        return sum(pay[agent] for agent in (pay if role is None else agents))

    if options.best or options.worst:
        chosen.sort(key=paid, reverse=options.best)
    if not chosen:
        raise RunError(f"{options.run}: no episode of step {step} failed")
    declared = read_declared(options.run)
    print("\n\n".join(text_of(each, declared) for each in chosen[: options.count]))
