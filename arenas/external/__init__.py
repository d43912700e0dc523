"""Arenas for games of PettingZoo, OpenSpiel and TextArena."""
