"""The teachers of a policy: frozen models from whose distributions it learns."""

from collections.abc import Mapping, MutableMapping
from typing import TypeAlias

from transformers import PreTrainedModel

from selfplay.errors import ConfigError
from selfplay.models.policy import Policy, load_with_renderer
from selfplay.models.policy_settings import ChatSettings

Teachers: TypeAlias = MutableMapping[
    tuple[str, str, str], tuple[PreTrainedModel, Mapping[str, int]]
]
"""(model, type of the weights, device) to a teacher and its vocabulary; policies with one teacher
share it."""


def load_teachers(
    policy: Policy, *, dtype: str, known: Teachers
) -> PreTrainedModel | dict[str, PreTrainedModel]:
    """Return the teacher of a policy, or its teachers by role.

    `make_learners` calls it for `objective.reference=teacher`; the learner computes the KL.

    Args:
        policy: Policy with a teacher, on whose device the teachers are.
        dtype: Type of the teachers' weights.
        known: Teachers that are loaded; new ones are added.

    Raises ConfigError, in one line, without a teacher, for a model that cannot be loaded, and for
    one with another tokenizer.
    """
    given = policy.teacher
    if not given:
        raise ConfigError(
            f"policy {policy.name!r}: objective.reference=teacher needs a teacher; set "
            "policy.teacher to a name or a folder, such as RUN/checkpoints/STEP/policies/NAME"
        )
    if isinstance(given, str):
        return _load(given, policy, dtype=dtype, known=known)
    return {role: _load(each, policy, dtype=dtype, known=known) for role, each in given.items()}


def _load(model: str, policy: Policy, *, dtype: str, known: Teachers) -> PreTrainedModel:
    where, device = f"policy {policy.name!r}: teacher", str(policy.model.device)
    key = (model, dtype, device)
    if key not in known:
        template = policy.renderer.tokenizer.chat_template
        chat: ChatSettings = {"chat_template": template} if isinstance(template, str) else {}
        loaded, renderer = load_with_renderer(
            model, where=where, dtype=dtype, device=device, **chat
        )
        known[key] = loaded.requires_grad_(False), renderer.tokenizer.get_vocab()
    teacher, theirs = known[key]
    ours = policy.renderer.tokenizer.get_vocab()
    if ours != theirs:
        both = {**theirs, **ours}
        unlike = next(token for token in both if ours.get(token) != theirs.get(token))
        raise ConfigError(
            f"{where}: the tokenizer of {model!r} is another one than the policy's (token "
            f"{unlike!r} is {theirs.get(unlike)} there and {ours.get(unlike)} here); a teacher "
            "reads the policy's own tokens"
        )
    return teacher
