"""Composition of configs with Hydra, checks, and construction of objects from config nodes."""
