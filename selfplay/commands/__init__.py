"""What each command of the command line does."""

from selfplay.commands.looking import list_choices, play, replay, report, study, watch
from selfplay.commands.running import evaluate, train, warmstart

__all__ = [
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
