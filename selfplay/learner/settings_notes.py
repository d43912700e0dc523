"""Notes for the user about settings of the learner that seldom suit its objective or its model."""

from transformers import PreTrainedModel

from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import Objective, PolicyLoss

PRETRAINED_FROM = 50_000_000
"""Number of weights from which a model counts as pretrained; models that a run makes are
smaller."""
HIGH_RATE = 1e-4
"""Learning rate from which a note is shown for a pretrained model whose weights all learn."""


def ratio_note(objective: Objective, settings: LearnerSettings) -> str | None:
    """Return a line if later optimizer steps of a batch learn without the ratio that they need."""
    biased = isinstance(objective, PolicyLoss) and objective.needs_present_weights
    if settings.updates == 1 or not biased:
        return None
    return (
        f"learner.mini_batches and learner.epochs: a batch has {settings.updates} optimizer steps, "
        "and this objective has no ratio, so that all but the first learn from samples of other "
        "weights; set objective.ratio=token, or both keys to 1"
    )


def rate_note(model: PreTrainedModel, lr: float) -> str | None:
    """Return a line if the learning rate is that of a tiny model, and the model is pretrained.

    Adapters are left out: they are trained with up to 1e-3.
    """
    weights = sum(p.numel() for p in model.parameters())
    adapter = not all(p.requires_grad for p in model.parameters())
    if adapter or weights < PRETRAINED_FROM or lr < HIGH_RATE:
        return None
    return (
        f"learner.lr={lr:g} trains {weights:,} weights; a rate this high suits tiny models, and "
        "pretrained ones usually learn with 1e-6 to 1e-5: set learner.lr=1e-6, or train an adapter "
        "(policy.lora={rank: 16}), whose rates are 1e-5 to 1e-3"
    )
