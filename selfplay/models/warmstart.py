"""The warm start: supervised learning on demonstrations that an arena generates.

It makes the embedded default policy in a minute or two of CPU time. The result is cached by
everything that it depends on, and the same seed gives the same weights on one machine.
"""

import gc
import json
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import islice
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Protocol, Unpack

import torch
from torch.nn import functional

from selfplay import __version__
from selfplay.arena.demonstrations import Demonstrations, optional_members
from selfplay.author_code import naming
from selfplay.config.instantiate import build, call
from selfplay.errors import ConfigError, DivergedError
from selfplay.models.bfloat16 import fast_products
from selfplay.models.demonstration_prompt import identified, prompt_ids, role_of
from selfplay.models.legal_answers import legal_answers
from selfplay.models.model_cache import alone, identity, is_complete, made_once
from selfplay.models.offload import free_cache
from selfplay.models.partial_training import PartialTraining
from selfplay.models.policy_settings import ChatSettings, chat_key
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.models.training_progress import Report, TrainingProgress
from selfplay.models.warmstart_rate import check_final_lr, rate_factors
from selfplay.models.weights_file import save_model
from selfplay.rng import check_seed, derive
from selfplay.role import Role
from selfplay.run.activity import ACTIVITY
from selfplay.run.directory import cache_folder
from selfplay.types import Demonstration


class ModelMaker(Protocol):
    """A warm start, as this module and `WarmStartSettings` see it: `WarmStart`, or
    `selfplay.learner.fine_tune.FineTune`."""

    needs_base: bool
    """True if it trains the model that a policy names, False if it makes a new one."""

    def prepare(self, report: Report) -> None:
        """Find the examples, and report the progress if it takes long."""
        ...

    def fingerprint(self) -> str:
        """Return a text that identifies the examples."""
        ...

    def train(
        self,
        report: Report,
        base: str | None,
        unfinished: PartialTraining,
        **chat: Unpack[ChatSettings],
    ) -> tuple[Any, Any]:
        """Return (model, tokenizer); `base` is the model to begin with if one is needed, and
        `chat` has the settings of its prompts in a run.

        The training continues from the state that `unfinished` holds, if there is one, and writes
        its own state there.
        """
        ...


class WarmStart:
    """Trains a new tiny model on demonstrations. The config group `warmstart` makes it."""

    needs_base: ClassVar[bool] = False

    def __init__(
        self,
        *,
        demonstrations: Demonstrations,
        roles: Mapping[str, Role],
        seed: int = 0,
        steps: int = 200,
        batch: int = 128,
        matrix_lr: float = 0.02,
        lr: float = 3e-3,
        weight_decay: float = 0.01,
        warmup_steps: int = 30,
        final_lr: float = 0.05,
        micro_batch: int = 64,
        model: Mapping[str, int] | None = None,
    ) -> None:
        """Args:
        demonstrations: Demonstrations to imitate.
        roles: Name to role, for the prompts.
        seed: Seed of the weights and the demonstrations.
        steps: Optimizer steps.
        batch: Demonstrations per step.
        matrix_lr: Muon's learning rate, for the hidden matrices.
        lr: AdamW's learning rate, for all other weights.
        weight_decay: Weight decay of both optimizers.
        warmup_steps: Steps until the full learning rates.
        final_lr: Last learning rates, after a linear decay, as a fraction of the full ones.
        micro_batch: Demonstrations per forward pass.
        model: Sizes for `selfplay.models.tiny.build_model`. The default of `positions` is
            1024, or more if the demonstrations are longer.
        """
        if min(steps, batch, micro_batch) < 1 or min(matrix_lr, lr, weight_decay, warmup_steps) < 0:
            raise ValueError(
                "steps, batch and micro_batch are at least 1, rates, decay and warmup_steps at "
                "least 0"
            )
        check_final_lr(final_lr)
        for name, rate in {"matrix_lr": matrix_lr, "lr": lr, "weight_decay": weight_decay}.items():
            if not isfinite(rate):
                raise ValueError(f"{name}: {rate} does not fit: a finite number is needed")
        check_seed(seed)
        self._source = optional_members(demonstrations)
        self.demonstrations, self.roles, self.seed = demonstrations, roles, seed
        self.steps, self.batch, self.micro_batch = steps, batch, micro_batch
        self.matrix_lr, self.lr, self.weight_decay = matrix_lr, lr, weight_decay
        self.warmup_steps, self.final_lr = warmup_steps, final_lr
        self.model_sizes = dict(model or {})

    def prepare(self, report: Report) -> None:
        """Let the source find its examples before the training (`ExampleSource.prepare`)."""
        self._source.prepare(report)

    def train(
        self,
        report: Report = lambda text: None,
        base: str | None = None,
        unfinished: PartialTraining | None = None,
        **chat: Unpack[ChatSettings],
    ) -> tuple[Any, Any]:
        """Train the model. Returns (model, tokenizer). The model is new: `base` and `chat` are not
        read.

        The training continues from the state that `unfinished` holds, if there is one, and writes
        its own state there. Raises ConfigError for demonstrations that cannot be read, and
        DivergedError if the loss is not finite.
        """
        tokenizer = build_tokenizer(self.demonstrations.pieces())
        renderer = ChatRenderer(tokenizer, where="warm start")
        sizes = {"vocabulary": len(tokenizer), "seed": self.seed, **self.model_sizes}
        if "positions" not in sizes:
            sizes["positions"] = self.positions(renderer)
        if summary := self._source.summary():
            report(f"warm start: {summary}")
        model = call(build_model, sizes, where="warmstart.model")
        optimizers = self._optimizers(model)
        rng = Random(derive(self.seed, "demonstrations"))
        report(
            f"warm start: training a model of {model.num_parameters():,} parameters for "
            f"{self.steps} steps of {self.batch} demonstrations; it is made once and then kept"
        )
        unfinished, first = unfinished or PartialTraining(), 0
        if state := unfinished.load():
            first = _restore(state, model, optimizers, rng)
            report(f"warm start: continuing an interrupted one after step {first}/{self.steps}")
        model.train()
        with TrainingProgress(report, self.steps, first=first) as shown:
            for step in range(first, self.steps):
                loss = self._step(model, optimizers, renderer, rng, step)
                shown.show(step, loss)
                unfinished.keep(partial(_state, step + 1, model, optimizers, rng))
        if result := self.try_out(model.eval(), renderer):
            report(f"warm start: {result}")
        return model.eval(), tokenizer

    def _step(
        self,
        model: Any,
        optimizers: Sequence[tuple[torch.optim.Optimizer, float]],
        renderer: ChatRenderer,
        rng: Random,
        step: int,
    ) -> float:
        """Make an optimizer step, numbered from 0; return the loss in nats per token."""
        progress = step / self.steps
        rows = sorted(
            (self.encode(each, renderer) for each in self._shown(rng, progress, self.batch)),
            key=lambda row: len(row[0]) + len(row[1]),
        )
        loss = self._backward(model, rows)
        if not isfinite(loss):
            raise DivergedError(f"warm start: the loss is not finite at step {step + 1}; lower lr")
        rise, fall = rate_factors(
            step, steps=self.steps, warmup_steps=self.warmup_steps, final_lr=self.final_lr
        )
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * (rise * fall)
            with fast_products():
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss

    def positions(self, renderer: ChatRenderer) -> int:
        """Return the context length of the model in tokens.

        It is 1.5 times the length of the longest of 512 demonstrations, plus 256 for the run's own
        answers, rounded up to a multiple of 64, and at least 1024. If a role remembers the
        conversation, the length of a demonstration is multiplied by the largest number of turns of
        an agent.
        """
        rows: list[int] = []
        turns = self._source.turns
        for progress in (0.0, 1.0):
            rng = Random(derive(self.seed, "lengths"))
            for shown in self._shown(rng, progress, 256):
                length = sum(map(len, self.encode(shown, renderer)))
                remembers = self.roles[shown.role].memory == "conversation"
                rows.append(length * turns if remembers else length)
        return max(1024, -(-(3 * max(rows) // 2 + 256) // 64) * 64)

    def _shown(self, rng: Random, progress: float, count: int) -> list[Demonstration]:
        """Return up to `count` demonstrations; raise ConfigError if there are none."""
        where = f"warmstart.demonstrations: {type(self.demonstrations).__name__}.stream"
        with naming(where, self.demonstrations):
            found = list(islice(self.demonstrations.stream(rng, progress), count))
        if not found:
            raise ConfigError(f"{where} yields no demonstration")
        return found

    def try_out(self, model: Any, renderer: ChatRenderer) -> str:
        """Return one line with the fraction of the model's answers that are legal moves.

        Returns "" if the demonstrations do not list legal moves.
        """
        questions = self._source.questions()
        if not questions:
            return ""
        return legal_answers(
            model, renderer, self.roles, questions, batch=self.micro_batch, seed=self.seed
        )

    def encode(
        self, demonstration: Demonstration, renderer: ChatRenderer
    ) -> tuple[tuple[int, ...], list[int]]:
        """Return (prompt ids, completion ids with the end token)."""
        role = role_of(demonstration, self.roles)
        prompt = prompt_ids(role, demonstration.observation, renderer, demonstration.called)
        return prompt, [*renderer.completion_ids(demonstration.completion), renderer.end_ids[0]]

    def _optimizers(self, model: Any) -> list[tuple[torch.optim.Optimizer, float]]:
        """Return Muon for the hidden matrices and AdamW for the rest, with their learning rates.

        With AdamW for all weights, 90 steps reached an accuracy of 1 %, with Muon at least 59 %
        (docs/performance.md).
        """
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named if not (p.ndim == 2 and "embed" not in name)]
        decay = self.weight_decay
        muon = torch.optim.Muon(matrices, lr=self.matrix_lr, weight_decay=decay, momentum=0.95)
        adam = torch.optim.AdamW(others, lr=self.lr, betas=(0.9, 0.98), weight_decay=decay)
        return [(muon, self.matrix_lr), (adam, self.lr)]

    def _backward(self, model: Any, rows: Sequence[tuple[tuple[int, ...], list[int]]]) -> float:
        """Compute the gradient of the mean negative log-likelihood per completion token. Returns
        the mean."""
        tokens = sum(len(completion) for _, completion in rows)
        total = 0.0
        for first in range(0, len(rows), self.micro_batch):
            part = rows[first : first + self.micro_batch]
            width = max(len(prompt) + len(completion) for prompt, completion in part)
            ids = torch.zeros(len(part), width, dtype=torch.long)
            labels = torch.full_like(ids, -100)
            for row, (prompt, completion) in enumerate(part):
                end = len(prompt) + len(completion)
                ids[row, :end] = torch.tensor([*prompt, *completion])
                labels[row, len(prompt) : end] = torch.tensor(completion)
            # Padding is on the right, where causal attention does not see it.
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
            wanted = labels[:, 1:]
            labelled = wanted != -100
            loss = functional.cross_entropy(
                model.lm_head(hidden[labelled]).float(), wanted[labelled], reduction="sum"
            )
            (loss / tokens).backward()
            total += float(loss.detach())
        return total / tokens

    def fingerprint(self) -> str:
        """Return a text that identifies the demonstrations: their pieces, and 64 demonstrations
        each of the start and of the end of the training."""
        shown = []
        for progress in (0.0, 1.0):
            rng = Random(derive(self.seed, "demonstrations"))
            for each in self._shown(rng, progress, 64):
                shown.append(identified(each, self.roles))
        return json.dumps([list(self.demonstrations.pieces()), shown])


def _state(
    step: int, model: Any, optimizers: Sequence[tuple[torch.optim.Optimizer, float]], rng: Random
) -> dict[str, Any]:
    """Return the state after `step` completed steps, as `PartialTraining` keeps it."""
    return {
        "step": step,
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer, _ in optimizers],
        "random": rng.getstate(),
    }


def _restore(
    state: Mapping[str, Any],
    model: Any,
    optimizers: Sequence[tuple[torch.optim.Optimizer, float]],
    rng: Random,
) -> int:
    """Restore what `_state` returned; return the number of completed steps."""
    model.load_state_dict(state["model"])
    for (optimizer, _), saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    version, words, gauss = state["random"]
    rng.setstate((version, tuple(words), gauss))
    return int(state["step"])


def place_of(
    config: Mapping[str, Any], *, base: str | None = None, **chat: Unpack[ChatSettings]
) -> Path:
    """Return the folder of the warm start that `config` describes, which may not exist yet.

    `base` is the model that it begins with, if it begins with one, and `chat` has the settings of
    the model's prompts.
    """
    return _place(build(config, where="warmstart"), config, base, chat)


def _place(
    warm: ModelMaker, config: Mapping[str, Any], base: str | None, chat: ChatSettings
) -> Path:
    parts = [__version__, torch.__version__, config, warm.fingerprint()]
    if base is not None:  # a new model has prompts of its own
        parts += [identity(base), *chat_key(chat)]
    content = json.dumps(parts, sort_keys=True)
    return cache_folder() / "warmstart" / blake2b(content.encode(), digest_size=8).hexdigest()


def make(
    config: Mapping[str, Any],
    report: Report = lambda text: None,
    *,
    base: str | None = None,
    **chat: Unpack[ChatSettings],
) -> Path:
    """Return the folder of the warm start that `config` describes. It is trained now if it is not
    cached; while another process trains it, this one waits.

    Args:
        config: Config of the warm start.
        report: Function that shows lines of progress.
        base: Name or folder of the model that it begins with, if it begins with one.
        chat: Settings of the model's prompts in a run.

    Raises ConfigError, in one line, for an error of an author's arena, role or examples.
    """
    warm: ModelMaker = build(config, where="warmstart")
    with naming("warmstart: an arena, a role or the examples", warm):
        warm.prepare(report)
        place = _place(warm, config, base, chat)
        if is_complete(place):
            ACTIVITY.note(f"warm start: from the cache, {place}")
            return place
        with alone(place, what="warm start", report=report):
            if is_complete(place):
                report(f"warm start: another run has made it, {place}")
            else:
                _train(warm, place, report, base, chat)
    return place


def _train(
    warm: ModelMaker, place: Path, report: Report, base: str | None, chat: ChatSettings
) -> None:
    """Make the folder of a warm start; the training continues where a killed one was."""
    unfinished = PartialTraining(place.with_name(f".{place.name}.partial"))

    def write(folder: Path) -> None:
        model, tokenizer = warm.train(report, base, unfinished, **chat)
        save_model(model, folder)
        tokenizer.save_pretrained(folder)

    made_once(place, write)
    unfinished.drop()
    gc.collect()  # the model and its optimizer, which refer to each other
    free_cache()
