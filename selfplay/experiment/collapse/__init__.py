"""Collapse detection: rules over the metrics of a run, and a response when a rule fires.

Self-play can improve against itself and get worse at everything else. Its own reward does not show
that, so the rules watch metrics that do: the reward against fixed opponents, surprisal, completion
length, invalid moves, duplicates.
"""

from selfplay.experiment.collapse.monitor import CollapseMonitor

__all__ = ["CollapseMonitor"]
