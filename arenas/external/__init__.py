"""Games of PettingZoo, OpenSpiel and TextArena as arenas."""
