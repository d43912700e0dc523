"""An experiment: every object of a run, built from its config."""
