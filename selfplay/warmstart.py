"""The warm start: supervised learning on demonstrations that an arena generates.

Makes the embedded default policy in a minute or two of CPU. The result is cached by everything that
it depends on, and the same seed makes the same weights on one machine.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import torch
from torch.nn import functional

from selfplay import __version__
from selfplay.build import TARGET, build
from selfplay.errors import ConfigError, DivergedError, nearest
from selfplay.role import Role
from selfplay.runs import cache_folder, reporting_disk, sync
from selfplay.seeds import derive
from selfplay.tiny import build_model, build_tokenizer
from selfplay.tokens import ChatRenderer
from selfplay.types import Demonstration, Message

Report = Callable[[str], None]


class Demonstrations(Protocol):
    """Where demonstrations come from."""

    def pieces(self) -> Sequence[str]:
        """Frequent fixed strings, each worth a token of its own."""
        ...

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Endless demonstrations; `progress` in [0, 1] is how far the warm start has come."""
        ...


class WarmStart:
    """Trains a new tiny model on demonstrations."""

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
        warmup: int = 30,
        final: float = 0.05,
        micro_batch: int = 64,
        model: Mapping[str, int] | None = None,
    ) -> None:
        """Args:
        demonstrations: What to imitate.
        roles: Name to role, for the prompts.
        seed: Of the weights and the demonstrations.
        steps: Optimizer steps.
        batch: Demonstrations per step.
        matrix_lr: Muon's learning rate, for the hidden matrices.
        lr: AdamW's, for everything else.
        weight_decay: Of both.
        warmup: Steps until the full learning rates.
        final: Share of the learning rates that is left at the end of their linear decay.
        micro_batch: Demonstrations per forward pass.
        model: Sizes for `selfplay.tiny.build_model`.
        """
        if (
            min(steps, batch, micro_batch) < 1
            or min(matrix_lr, lr, weight_decay, warmup, final) < 0
        ):
            raise ValueError(
                "steps, batch and micro_batch are at least 1, rates, decay, warmup and final at "
                "least 0"
            )
        self.demonstrations, self.roles, self.seed = demonstrations, roles, seed
        self.steps, self.batch, self.micro_batch = steps, batch, micro_batch
        self.matrix_lr, self.lr, self.weight_decay = matrix_lr, lr, weight_decay
        self.warmup, self.final, self.model_sizes = warmup, final, dict(model or {})

    def train(self, report: Report = lambda text: None) -> tuple[Any, Any]:
        """(model, tokenizer) after the warm start."""
        tokenizer = build_tokenizer(self.demonstrations.pieces())
        renderer = ChatRenderer(tokenizer, where="warm start")
        model = build_model(len(tokenizer), seed=self.seed, **self.model_sizes)
        optimizers = self._optimizers(model)
        rng = Random(derive(self.seed, "demonstrations"))
        started = time.perf_counter()
        model.train()
        for step in range(self.steps):
            progress = step / self.steps
            shown = islice(self.demonstrations.stream(rng, progress), self.batch)
            rows = sorted(
                (self.encode(demonstration, renderer) for demonstration in shown),
                key=lambda row: len(row[0]) + len(row[1]),
            )
            loss = self._backward(model, rows)
            if loss != loss:
                raise DivergedError(f"warm start: the loss is not finite at step {step}; lower lr")
            scale = min(1.0, (step + 1) / max(self.warmup, 1)) * max(self.final, 1 - progress)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer, rate in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = rate * scale
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            if step % 20 == 19:
                seconds = time.perf_counter() - started
                report(
                    f"warm start: step {step + 1}/{self.steps}, loss {loss:.3f}, {seconds:.0f} s"
                )
        return model.eval(), tokenizer

    def encode(
        self, demonstration: Demonstration, renderer: ChatRenderer
    ) -> tuple[tuple[int, ...], list[int]]:
        """(prompt ids, completion ids with the end token)."""
        prompt = renderer.start(self._messages(demonstration))
        ids = renderer.tokenizer(demonstration.completion, add_special_tokens=False)["input_ids"]
        return prompt, [*ids, renderer.end_ids[0]]

    def _messages(self, demonstration: Demonstration) -> list[Message]:
        if demonstration.role not in self.roles:
            hint = nearest(demonstration.role, self.roles)
            raise ConfigError(f"warmstart.roles: no {demonstration.role!r} to demonstrate; {hint}")
        return self.roles[demonstration.role].prompt(demonstration.observation)

    def _optimizers(self, model: Any) -> list[tuple[torch.optim.Optimizer, float]]:
        """Muon for the hidden matrices, AdamW for the rest.

        Muon brought the step-by-step accuracy of 90 steps from 1 % to 59 %.
        """
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named if not (p.ndim == 2 and "embed" not in name)]
        decay = self.weight_decay
        muon = torch.optim.Muon(matrices, lr=self.matrix_lr, weight_decay=decay, momentum=0.95)
        adam = torch.optim.AdamW(others, lr=self.lr, betas=(0.9, 0.98), weight_decay=decay)
        return [(muon, self.matrix_lr), (adam, self.lr)]

    def _backward(self, model: Any, rows: Sequence[tuple[tuple[int, ...], list[int]]]) -> float:
        """Gradient of the mean negative log-likelihood per completion token."""
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
            # Padding stands on the right, where causal attention never looks back from.
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
            wanted = labels[:, 1:]
            kept = wanted != -100
            loss = functional.cross_entropy(
                model.lm_head(hidden[kept]).float(), wanted[kept], reduction="sum"
            )
            (loss / tokens).backward()
            total += float(loss.detach())
        return total / tokens

    def fingerprint(self) -> str:
        """Names the content of what is imitated: the tokens, and examples from start and end."""
        shown = []
        for progress in (0.0, 1.0):
            rng = Random(derive(self.seed, "demonstrations"))
            for d in islice(self.demonstrations.stream(rng, progress), 64):
                shown.append([self._messages(d), d.completion])
        return json.dumps([list(self.demonstrations.pieces()), shown])


def place_of(config: Mapping[str, Any]) -> Path:
    """The folder where the warm start that `config` describes is, or will be."""
    return _place(build(config, where="warmstart"), config)


def _place(warm: WarmStart, config: Mapping[str, Any]) -> Path:
    content = json.dumps(
        [__version__, torch.__version__, config, warm.fingerprint()], sort_keys=True
    )
    return cache_folder() / "warmstart" / blake2b(content.encode(), digest_size=8).hexdigest()


def make(config: Mapping[str, Any], report: Report = lambda text: None) -> Path:
    """The folder of the warm start that `config` describes; trained now if it is not cached."""
    warm: WarmStart = build(config, where="warmstart")
    place = _place(warm, config)
    if (place / "config.json").is_file():
        return place
    with reporting_disk(place.parent):
        place.parent.mkdir(parents=True, exist_ok=True)
        # Made beside its place and renamed into it: a kill leaves nothing half made. The folder is
        # this process's own, because two may make the same warm start at once.
        with TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as folder:
            partial = Path(folder) / "model"
            model, tokenizer = warm.train(report)
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
            for path in (*partial.rglob("*"), partial):
                sync(path)
            try:
                partial.rename(place)
            except OSError:
                if not (place / "config.json").is_file():
                    raise
    return place


def resolve_model(
    model: str | None, config: Mapping[str, Any] | None, *, where: str, report: Report = print
) -> str:
    """A policy's model: the one it names, or else the warm start's."""
    if model:
        return model
    if not config or TARGET not in config:
        raise ConfigError(f"{where}: set policy.model, or choose a warmstart config to make one")
    return str(make(config, report))
