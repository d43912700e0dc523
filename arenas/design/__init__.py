"""Designed environments: a designer sets up a game, players learn on it (EnvGen, 2403.12014)."""
