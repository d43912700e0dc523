"""Agents that write one program or one answer together."""
