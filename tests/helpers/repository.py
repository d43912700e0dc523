"""The folder of the repository, for the tests that read its files."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
