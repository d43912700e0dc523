"""What a run will need before it is started: memory, seconds per step, and what limits it."""
