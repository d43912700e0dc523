"""Predictions of a run's memory, seconds per step and bottleneck, before it starts."""
