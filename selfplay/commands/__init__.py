"""What each command of the command line does."""

from selfplay.commands.checking import check
from selfplay.commands.completion import completion
from selfplay.commands.looking import list_choices, play, replay, report, study, watch
from selfplay.commands.running import evaluate, train, warmstart

__all__ = [
    "check",
    "completion",
    "evaluate",
    "list_choices",
    "play",
    "replay",
    "report",
    "study",
    "train",
    "warmstart",
    "watch",
]
