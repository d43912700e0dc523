"""Command line of selfplay, one module per group of commands."""
