"""Multi-agent self-play reinforcement learning of language models.

The names below are the public vocabulary. They load on first use, so that `import selfplay` costs
nothing: no torch, no transformers, no pettingzoo.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "Arena": "selfplay.arena",
    "Completion": "selfplay.types",
    "Episode": "selfplay.types",
    "Group": "selfplay.types",
    "InvalidAction": "selfplay.types",
    "Message": "selfplay.types",
    "Observation": "selfplay.types",
    "Request": "selfplay.types",
    "Role": "selfplay.role",
    "Sample": "selfplay.types",
    "SelfplayError": "selfplay.errors",
    "Task": "selfplay.types",
    "Turn": "selfplay.types",
}

__version__ = "0.1.0"
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'selfplay' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
