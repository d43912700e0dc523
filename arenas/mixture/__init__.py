"""Mixture arena: one run on several arenas."""
