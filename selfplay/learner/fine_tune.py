"""The warm start of any model: supervised fine-tuning on demonstrations or chats.

The run, and the reference of its KL term, then begin with the fine-tuned model. The learner of the
training loop makes the steps: prompts that share a prefix are computed once, and equal examples of
a batch are one row with a weight.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from random import Random
from typing import Any, ClassVar, Protocol, Unpack, runtime_checkable

import torch
from transformers import PreTrainedModel

from selfplay.arena.demonstrations import DemonstrationStream, optional_members
from selfplay.author_code import naming
from selfplay.errors import ConfigError, DivergedError
from selfplay.learner.base_learner import check_sample
from selfplay.learner.batch import computed_count
from selfplay.learner.fine_tune_example import ChatExample, Example, RoleExample
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import BatchCounts, PolicyLoss
from selfplay.learner.precision import Precision
from selfplay.models.demonstration_prompt import identified, role_of
from selfplay.models.legal_answers import legal_answers
from selfplay.models.lora import adapted, merge, require_peft
from selfplay.models.partial_training import PartialTraining
from selfplay.models.policy import load_with_renderer
from selfplay.models.policy_settings import ChatSettings, Lora
from selfplay.models.renderer import ChatRenderer
from selfplay.models.training_progress import Report, TrainingProgress
from selfplay.models.warmstart_rate import check_final_lr, rate_factors
from selfplay.rng import check_seed, derive
from selfplay.role import Role
from selfplay.types import Demonstration, Sample, Turn

WHERE = "warm start"
"""Name of the model in errors."""
QUESTIONS = 32
"""Largest number of questions of the test after the last step."""


@runtime_checkable
class ChatExamples(Protocol):
    """A finite source of examples, such as `selfplay.learner.chat_file.ChatFile`."""

    def examples(self) -> Sequence[ChatExample]:
        """Return all examples."""
        ...

    def fingerprint(self) -> str:
        """Return a text that identifies the examples."""
        ...


class FineTune:
    """Fine-tunes the model that a policy names. The config group `warmstart` makes it.

    The loss is the mean negative log-likelihood per token of the completions, with the token that
    ends each of them.
    """

    needs_base: ClassVar[bool] = True

    def __init__(
        self,
        *,
        examples: object,
        roles: Mapping[str, Role] | None = None,
        seed: int = 0,
        steps: int = 50,
        batch: int = 64,
        lr: float = 2e-5,
        warmup_steps: int = 5,
        final_lr: float = 0.1,
        weight_decay: float = 0.0,
        clip_norm: float = 1.0,
        lora: Lora | None = None,
        max_tokens: int = 2048,
        until: float | None = None,
        precision: Precision = "auto",
        device: str = "auto",
    ) -> None:
        """Args:
        examples: Source of examples: demonstrations of an arena (an object with the method
            `stream`), or chats (`ChatExamples`).
        roles: Name to role, for the prompts of demonstrations.
        seed: Seed of the order of the examples, and of a new adapter.
        steps: Number of optimizer steps.
        batch: Number of examples per step.
        lr: AdamW's learning rate; an adapter needs about ten times that of all weights.
        warmup_steps: Number of steps until the full learning rate.
        final_lr: Last learning rate, after a linear decay, as a fraction of `lr`.
        weight_decay: AdamW's weight decay.
        clip_norm: Largest gradient norm.
        lora: Settings of an adapter, such as {rank: 16}, that is trained in place of all weights
            and then merged into them. None trains all weights.
        max_tokens: Largest number of tokens of one forward pass, with padding; a longer example
            has its own pass.
        until: Loss of a step's batch below which the warm start ends, in nats per token; None
            makes all steps.
        precision: Type in which forward and backward passes compute: float32, bfloat16, or auto,
            which is bfloat16 on a GPU. Weights and optimizer stay in float32.
        device: Device of the training; auto is the GPU if there is one.
        """
        if min(steps, batch) < 1 or warmup_steps < 0:
            raise ValueError("steps and batch must be at least 1, warmup_steps at least 0")
        check_final_lr(final_lr)
        if not isinstance(examples, DemonstrationStream | ChatExamples):
            raise ValueError(
                f"examples: {str(examples)[:60]!r} is no source of examples; name a class with "
                "_target_, such as selfplay.learner.chat_file.ChatFile"
            )
        if until is not None and not until > 0:
            raise ValueError(f"until: {until} does not fit: a loss above 0, or null, is needed")
        self.settings = LearnerSettings(
            lr=lr,
            weight_decay=weight_decay,
            clip_norm=clip_norm,
            max_tokens=max_tokens,
            precision=precision,
            max_skipped=0,
        )
        check_seed(seed)
        if lora is not None:
            require_peft("warmstart.lora")
        self._optional = optional_members(examples)
        self.source, self.roles, self.seed = examples, dict(roles or {}), seed
        self.steps, self.batch, self.lora = steps, batch, lora
        self.warmup_steps, self.final_lr = warmup_steps, final_lr
        self.until, self.device = until, device

    def prepare(self, report: Report) -> None:
        """Let the source find its examples before the training (`ExampleSource.prepare`)."""
        self._optional.prepare(report)

    def train(
        self,
        report: Report = lambda text: None,
        base: str | None = None,
        unfinished: PartialTraining | None = None,
        **chat: Unpack[ChatSettings],
    ) -> tuple[PreTrainedModel, Any]:
        """Fine-tune the model `base`, a name or a folder. Returns (model, tokenizer).

        `chat` has the settings of its prompts in a run.

        The training continues from the state in `unfinished`, if there is one, and writes its own
        state there. Raises ConfigError for a model or an example that cannot be used, and
        DivergedError if a loss or a gradient is not finite.
        """
        if base is None:
            raise ConfigError(f"{WHERE}: fine-tuning needs a model; set policy.model")
        model, renderer = load_with_renderer(
            base,
            where=WHERE,
            dtype="float32",
            device=self.device,
            **chat,
        )
        trained = model
        if self.lora is not None:
            model.eval().requires_grad_(False)
            seed = derive(self.seed, "adapter")
            trained = adapted(model, self.lora, seed=seed, where="warmstart.lora")
        learner = self._learner(trained)
        if summary := self._optional.summary():
            report(f"{WHERE}: {summary}")
        weights = sum(parameter.numel() for parameter in learner.parameters)
        report(
            f"{WHERE}: fine-tuning {weights:,} weights of {base} for {self.steps} steps of "
            f"{self.batch} examples; the result is made once and then kept"
        )
        unfinished, first = unfinished or PartialTraining(), 0
        if state := unfinished.load():
            first = _restore(state, learner)
            report(f"{WHERE}: continuing an interrupted one after step {first}/{self.steps}")
        batches = islice(self._batches(), first, self.steps)  # makes the earlier examples again
        with TrainingProgress(report, self.steps, first=first) as progress:
            for step, shown in enumerate(batches, first):
                samples, totals = self.samples(shown, renderer, learner)
                rise, fall = rate_factors(
                    step, steps=self.steps, warmup_steps=self.warmup_steps, final_lr=self.final_lr
                )
                learner.lr = self.settings.lr * rise * fall
                try:
                    loss = learner.optimize(samples, totals, step=step + 1)["loss"]
                except DivergedError as error:
                    raise DivergedError(f"{WHERE}: {error} (warmstart.lr)") from error
                done = self.until is not None and loss < self.until
                progress.show(step, loss, last=done)
                if done:
                    break
                unfinished.keep(partial(_state, step + 1, learner))
        if self.lora is not None:
            merge(trained)
        model.eval()
        if questions := list(self._optional.questions()):
            chosen = Random(0).sample(questions, min(len(questions), QUESTIONS))
            result = legal_answers(
                model, renderer, self.roles, chosen, batch=8, seed=derive(self.seed, "answers")
            )
            report(f"{WHERE}: {result}")
        return model, renderer.tokenizer

    def _learner(self, model: PreTrainedModel) -> Learner:
        return Learner(
            model,
            objective=PolicyLoss(ratio="none", clip="none", aggregate="token_mean"),
            settings=self.settings,
        )

    def _batches(self) -> Iterator[list[Example]]:
        """Yield the examples of each step. A finite source is shuffled anew in every pass."""
        if isinstance(self.source, ChatExamples):
            known = self.source.examples()
            if not known:
                raise ConfigError(f"{WHERE}: {type(self.source).__name__} has no examples to learn")
            rng = Random(derive(self.seed, "examples"))
            passes = iter(lambda: rng.sample(known, len(known)), None)
            order = (example for each in passes for example in each)
            while True:
                yield list(islice(order, self.batch))
        rng = Random(derive(self.seed, "demonstrations"))
        for step in range(self.steps):
            shown = self._shown(rng, step / self.steps, self.batch)
            yield [self._example(each) for each in shown]

    def _shown(self, rng: Random, progress: float, count: int) -> list[Demonstration]:
        """Return up to `count` demonstrations; raise ConfigError for an error of their author."""
        assert isinstance(self.source, DemonstrationStream)
        with naming(f"warmstart.examples: {type(self.source).__name__}.stream", self.source):
            return list(islice(self.source.stream(rng, progress), count))

    def _example(self, shown: Demonstration) -> RoleExample:
        return RoleExample(
            role=role_of(shown, self.roles),
            observation=shown.observation,
            called=shown.called,
            completion=shown.completion,
            where=f"a demonstration of {shown.role}",
        )

    def samples(
        self, shown: Sequence[Example], renderer: ChatRenderer, learner: Learner
    ) -> tuple[list[Sample], BatchCounts]:
        """Return the examples as samples, and the counts of all examples.

        Equal examples are one sample, whose advantage is their number.
        """
        places: dict[tuple[tuple[int, ...], tuple[int, ...]], str] = {}
        counted: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
        for example in shown:
            ids = example.ids(renderer)
            places.setdefault(ids, example.where)
            counted[ids] += 1
        samples = []
        for (prompt, completion), count in counted.items():
            turn = Turn(
                agent="",
                role="",
                policy="",
                version=0,
                prompt_ids=prompt,
                completion_ids=completion,
                logprobs=(0.0,) * len(completion),
                loss_mask=(1,) * len(completion),
            )
            sample = Sample(turn=turn, advantage=float(count), group=places[prompt, completion])
            check_sample(sample, learner.longest)
            self._check_length(sample, learner.model)
            samples.append(sample)
        tokens = sum(count * len(completion) for (_, completion), count in counted.items())
        return samples, BatchCounts(tokens=tokens, sequences=len(shown))

    def _check_length(self, sample: Sample, model: PreTrainedModel) -> None:
        """Raise ConfigError for a sample that is longer than the context of the model."""
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        tokens = computed_count(sample)
        if limit is not None and tokens > limit:
            raise ConfigError(
                f"{WHERE}: {sample.group}: {tokens} tokens, and the model reads {limit}; shorten "
                "it or leave it out"
            )

    def fingerprint(self) -> str:
        """Return a text that identifies the examples: a hash, or examples from start and end."""
        if isinstance(self.source, ChatExamples):
            return self.source.fingerprint()
        shown = []
        for progress in (0.0, 1.0):
            rng = Random(derive(self.seed, "demonstrations"))
            for each in self._shown(rng, progress, 64):
                shown.append(identified(each, self.roles))
        return json.dumps(shown)


def _state(step: int, learner: Learner) -> dict[str, Any]:
    """Return the state after `step` completed steps, as `PartialTraining` keeps it."""
    weights = [parameter.detach() for parameter in learner.parameters]
    return {"step": step, "weights": weights, "learner": learner.state_dict()}


def _restore(state: Mapping[str, Any], learner: Learner) -> int:
    """Restore what `_state` returned; return the number of completed steps."""
    with torch.no_grad():
        for parameter, saved in zip(learner.parameters, state["weights"], strict=True):
            parameter.copy_(saved)
    learner.load_state_dict(state["learner"])
    return int(state["step"])
