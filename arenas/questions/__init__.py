"""Arenas in which questions are asked, answered, voted on or judged, and their verifiers."""
