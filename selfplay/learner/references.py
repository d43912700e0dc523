"""The reference policies of a KL term: one for all samples, or a teacher for each role."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from torch.nn import Module
from transformers import PreTrainedModel

from selfplay.errors import ConfigError
from selfplay.learner.batch import Batch
from selfplay.learner.logprobs import REVERSE, Divergence, NextTokens, Scorer, TokenScores
from selfplay.learner.objective import Objective
from selfplay.models.position_limits import ContextBound
from selfplay.types import Sample

GivenReferences: TypeAlias = PreTrainedModel | Mapping[str, PreTrainedModel] | None
"""One frozen policy for all samples, frozen policies by role, or none."""


def reads_teacher(objective: Objective) -> bool:
    """Return True if the objective compares policies with teachers."""
    return objective.reads_reference and objective.reference == "teacher"


class Scoring(Protocol):
    """Scorer of a model, local (`logprobs.Scorer`) or sharded (`fsdp.ShardedScorer`)."""

    def __call__(
        self,
        batch: Batch,
        *,
        entropy: bool = False,
        reference: NextTokens | None = None,
        divergence: Divergence = REVERSE,
    ) -> TokenScores:
        """Return [S, C] scores of the samples' tokens."""
        ...

    def next_tokens(self, batch: Batch) -> NextTokens:
        """Return the distributions of the next token at `batch.places`."""
        ...


class References:
    """The frozen policies of a learner's KL term, each with its scorer.

    `Learner` makes it. A micro-batch has samples of one reference only, so that each reference
    computes the samples of its own roles.
    """

    def __init__(self, given: GivenReferences, *, bfloat16: bool) -> None:
        """Args:
        given: The references. A model that several roles have is scored once for all of them.
        bfloat16: True if the passes compute in bfloat16.
        """
        by_role = given if isinstance(given, Mapping) else {}
        single = [] if given is None or isinstance(given, Mapping) else [given]
        self.models: list[PreTrainedModel] = list(dict.fromkeys([*single, *by_role.values()]))
        """The models, each once."""
        self.scorers: list[Scoring] = [Scorer(each, bfloat16=bfloat16) for each in self.models]
        """Scorers of `models`, in the same order."""
        self._of_role = {role: self.models.index(model) for role, model in by_role.items()}

    @property
    def average(self) -> PreTrainedModel:
        """The only reference, which an objective with an EMA moves."""
        (model,) = self.models
        return model

    @property
    def longest(self) -> ContextBound | None:
        """Bound of the reference with the fewest positions; None if none has a limit."""
        limits = [
            getattr(each.config.get_text_config(), "max_position_embeddings", None)
            for each in self.models
        ]
        least = min((limit for limit in limits if limit), default=None)
        return least and ContextBound(tokens=least, reason="a reference with as many positions")

    def pair(self, number: int) -> tuple[PreTrainedModel, Scoring]:
        """Return a reference and its scorer, by its index in `models`."""
        return self.models[number], self.scorers[number]

    def modules(self) -> list[Module]:
        """Return the modules with the tensors: the models, or the sharded scorers that contain
        them."""
        pairs = zip(self.models, self.scorers, strict=True)
        return [scorer if isinstance(scorer, Module) else model for model, scorer in pairs]

    def shard(self, cut: Callable[[PreTrainedModel, Scoring], Scoring]) -> None:
        """Replace each scorer by the sharded one that `cut` makes of a model and its scorer."""
        pairs = zip(self.models, self.scorers, strict=True)
        self.scorers = [cut(model, scorer) for model, scorer in pairs]

    def divided(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        """Return the samples of each reference, in the order of `models`.

        All samples are one part if there is no reference, or one for all roles. Raises ConfigError
        for a sample whose role has no teacher.
        """
        if not self._of_role:
            return [list(samples)]
        parts: list[list[Sample]] = [[] for _ in self.models]
        for sample in samples:
            role = sample.turn.role
            if role not in self._of_role:
                raise ConfigError(
                    f"policy.teacher: role {role!r} has no teacher; the policy has some for "
                    f"{', '.join(self._of_role)}"
                )
            parts[self._of_role[role]].append(sample)
        return parts
