"""Arenas in which agents write one program or one answer together."""
