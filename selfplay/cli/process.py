"""Preparation of the process of a command, before torch and transformers are imported."""

import os

from selfplay.config.threads import limit_spinning


def prepare() -> None:
    """Set the environment that the libraries read; keep values that the user has set."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    limit_spinning()
