"""The folder of the repository, and the variable that names the folder of the test session."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = "SELFPLAY_TESTS"
"""Environment variable with a folder of the test session, which all workers of pytest share."""
