"""Collapse detection: rules over the metrics of a run, and a response when a rule fires.

In self-play, a policy can improve against itself and get worse at everything else. Its training
reward does not show that. So the rules watch other metrics: the return against fixed opponents,
surprisal, completion length, invalid moves, duplicates.
"""

from selfplay.experiment.collapse.monitor import CollapseMonitor

__all__ = ["CollapseMonitor"]
