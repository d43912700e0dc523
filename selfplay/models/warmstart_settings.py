"""The warm start that a config chooses, and the initial models of policies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from selfplay.config.instantiate import TARGET, call, check_arguments, import_target
from selfplay.errors import ConfigError
from selfplay.models.policy_settings import ChatSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from selfplay.models.training_progress import Report


@dataclass(frozen=True, kw_only=True)
class WarmStartSettings:
    """The warm start of a run, or none.

    A population has one. The warm start itself is built when a model is made, because its
    examples may be on the machine of the driver alone.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    """Config node `warmstart`; empty: there is no warm start."""

    @cached_property
    def kind(self) -> Any:
        """Class of the warm start; None without one."""
        return import_target(self.config[TARGET], "warmstart") if TARGET in self.config else None

    @property
    def tunes(self) -> bool:
        """True if the warm start trains the models that policies name."""
        return bool(getattr(self.kind, "needs_base", False))

    def starts_with(self, model: str | None, *, learn: bool) -> bool:
        """Return True if a policy with this model begins with a model of the warm start."""
        return self.kind is not None and (learn and self.tunes if model else not self.tunes)

    def resolve(
        self,
        model: str | None,
        *,
        where: str,
        learn: bool = True,
        report: "Report" = print,
        **chat: Unpack[ChatSettings],
    ) -> str:
        """Return the model that a policy begins with: a name, or the folder of a warm start.

        A warm start that makes a new model serves the policies without a model. One that fine-tunes
        a model serves the policies that learn, each from its own model and with its own prompts
        (`chat`). Raises ConfigError if there is neither a model nor a warm start that makes one.
        """
        from selfplay.models.warmstart import make  # loads torch

        if self.starts_with(model, learn=learn):
            return str(make(self.config, report, base=model, **chat))
        if model:
            return model
        if self.kind is None:
            raise ConfigError(
                f"{where}: set policy.model, or choose a warmstart config to make one"
            )
        raise ConfigError(
            f"{where}: this warm start fine-tunes a model; choose policy=huggingface and set "
            "policy.model to a name or a folder"
        )

    def place(self, *, base: str | None, **chat: Unpack[ChatSettings]) -> Path:
        """Return the folder of the warm start from a base, which may not exist yet."""
        from selfplay.models.warmstart import place_of  # loads torch

        return place_of(self.config, base=base, **chat)

    @cached_property
    def outline(self) -> "PreTrainedModel | None":
        """Modules of the model that the warm start makes, without weights and with few tokens; None
        if they are unknown.

        Raises ConfigError for sizes that are no model.
        """
        import torch

        from selfplay.models.tiny import build_model
        from selfplay.models.warmstart import WarmStart

        if self.kind is not WarmStart:
            return None
        sizes = check_arguments(
            build_model,
            self.config.get("model") or {},
            where="warmstart.model",
            reserved=("vocabulary", "seed"),
        )
        with torch.device("meta"):
            made: PreTrainedModel = call(
                build_model, {"vocabulary": 8, "seed": 0, **sizes}, where="warmstart.model"
            )
        return made

    @property
    def context_length(self) -> int | None:
        """Longest input of the model that the warm start makes, in tokens; None if the
        demonstrations determine it."""
        made = self.outline  # refuses invalid sizes
        if made is None or "positions" not in (self.config.get("model") or {}):
            return None
        return int(made.config.max_position_embeddings)
