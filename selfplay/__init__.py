"""Multi-agent self-play reinforcement learning of language models.

The names below are the public vocabulary. They load on first use, so that `import selfplay` costs
nothing: no torch, no transformers, no pettingzoo.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "AgentSpec": "selfplay.rollout.rollout",
    "Arena": "selfplay.arena",
    "Completion": "selfplay.types",
    "Credit": "selfplay.credit",
    "Curriculum": "selfplay.curriculum",
    "Engine": "selfplay.engines",
    "Episode": "selfplay.types",
    "EpisodeSpec": "selfplay.rollout.episode_runner",
    "Experiment": "selfplay.experiment.experiment",
    "Group": "selfplay.types",
    "InvalidAction": "selfplay.types",
    "Learner": "selfplay.learner.learner",
    "LearnerSettings": "selfplay.learner.learner_settings",
    "Message": "selfplay.types",
    "Metric": "selfplay.types",
    "Objective": "selfplay.learner.objective",
    "Observation": "selfplay.types",
    "PolicyLoss": "selfplay.learner.objective",
    "Request": "selfplay.types",
    "Role": "selfplay.role",
    "Rollout": "selfplay.rollout.rollout",
    "RolloutSettings": "selfplay.rollout.rollout_settings",
    "Sample": "selfplay.types",
    "Sampler": "selfplay.sampler",
    "SelfplayError": "selfplay.errors",
    "TaggedRole": "selfplay.role",
    "Task": "selfplay.types",
    "ThinkingRole": "selfplay.role",
    "Turn": "selfplay.types",
    "resume_run": "selfplay.cli.notebook",
    "start_run": "selfplay.cli.notebook",
}

__version__ = "0.2.0"
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'selfplay' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
