"""Absolute Zero (2505.03335): a proposer makes programming tasks, solvers attempt them."""
