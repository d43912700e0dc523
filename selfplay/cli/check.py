"""Command `selfplay check`, which tries a config without its policies."""

import argparse
import sys

from selfplay.cli.arguments import load, no_flags, print_notes
from selfplay.errors import printable

FAULTY = 2


def check(options: argparse.Namespace, overrides: list[str]) -> int:
    """Validate a config and play one game of its arena; return exit code 2 if it has faults."""
    no_flags(overrides)
    settings = load(options, overrides)
    from selfplay.config.run_config import run_folder
    from selfplay.experiment import experiment
    from selfplay.experiment.trial_game import games
    from selfplay.run.report.html import visible

    notes = experiment.check(settings)
    run_folder(settings["run"])
    print_notes(notes)
    faults = 0
    for played in games(settings, seed=options.seed):
        print(visible("\n".join(played.shown)))
        print_notes(played.notes)
        for fault in played.faults:
            faults += 1
            print(printable(f"fault: {fault}"), file=sys.stderr)
    if not faults:
        print("no faults; no policy was loaded, so memory and learning are not checked")
    return FAULTY if faults else 0
