"""Functions of the commands in the modules check, completion, inspect and train, by name."""

from selfplay.cli.check import check
from selfplay.cli.completion import completion
from selfplay.cli.inspect import list_choices, play, replay, report, study, tag, watch
from selfplay.cli.train import evaluate, train, warmstart

__all__ = [
    "check",
    "completion",
    "evaluate",
    "list_choices",
    "play",
    "replay",
    "report",
    "study",
    "tag",
    "train",
    "warmstart",
    "watch",
]
