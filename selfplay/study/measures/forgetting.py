"""Forgetting: the loss of a run's policies on English text that the run did not train on.

**Definition.** L is the mean of ln p(token | earlier tokens of its window) in nats per token, over
windows of a text. The change is L after training minus L before it; a negative change is what
training cost. exp(-L) is the perplexity.

**Source.** Our own choice of text; the quantity is the usual one of language modelling.

**Estimator.** Exact for the text: all tokens are scored and nothing is sampled. The windows lie at
equal distances in the text and do not overlap. The interval is a bootstrap over windows of the
paired difference, so it is about more text of the same kind. Unbiased.

**Limits.** The text is one kind of English. A pretrained model may have seen it, so that L is no
measure of the model's quality, but the change remains one of what training cost. The first token of
a window is not scored. A tokenizer defines the tokens, so L cannot be compared between models with
different tokenizers. A model that never learned English, such as the tiny one, has none to forget.
"""

import argparse
import hashlib
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from selfplay.errors import ConfigError
from selfplay.study.measure import ALL, Measure, Option
from selfplay.study.players import places, policies_of
from selfplay.study.plots import CurvePlot
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.bootstrap import Draws, Estimate

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from selfplay.models.policy import Policy

TOKENS, WINDOW = 8192, 256
"""Default number of tokens of the text, and of each window."""
LOGITS = 2**25
"""Largest number of logits in one forward pass."""

Scores = Mapping[str, Mapping[int, np.ndarray]]
"""Policy to step (0 is before training) to the [windows] mean log-likelihoods, nats per token."""


@dataclass(frozen=True, kw_only=True)
class HeldOutText:
    """Text to score, which no run trains on. `read_text` makes it."""

    source: str
    """Origin of the text."""
    text: str = ""
    """The text."""

    @property
    def sha256(self) -> str:
        """SHA-256 of the text in UTF-8, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_text(file: Path | None = None) -> HeldOutText:
    """Return a text file; None: the language reference in Python's module `pydoc_data.topics`."""
    if file is None:
        try:
            from pydoc_data.topics import topics
        except ImportError as error:
            raise ConfigError(
                "forgetting: this Python has no pydoc_data.topics; name a text with --text FILE"
            ) from error
        text = "\n\n".join(topics[name] for name in sorted(topics))
        return HeldOutText(
            source=f"pydoc_data.topics, Python {platform.python_version()}", text=text
        )
    try:
        return HeldOutText(source=str(file), text=file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"--text {file}: cannot be read ({reason}); name a text file") from error


def windows_of(text: HeldOutText, tokenizer: Any, *, tokens: int, window: int) -> list[list[int]]:
    """Return windows of `window` tokens at equal distances in the text, `tokens` in total.

    A short text gives as many windows as fit. Raises ConfigError if it has fewer than two.
    """
    if window < 2 or tokens < 2 * window:
        raise ConfigError(
            f"forgetting: --tokens {tokens} --window {window}: a window has 2 tokens or more, and "
            "two windows are needed for an interval"
        )
    ids: list[int] = tokenizer(text.text, add_special_tokens=False, verbose=False)["input_ids"]
    count = min(tokens, len(ids)) // window
    if count < 2:
        raise ConfigError(
            f"forgetting: {text.source} has {len(ids)} tokens; {2 * window} or more are needed, "
            "or a smaller --window"
        )
    starts = [number * len(ids) // count for number in range(count)]
    return [ids[start : start + window] for start in starts]


def likelihoods(model: "PreTrainedModel", windows: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the [windows] mean ln p of the tokens after the first one, in nats per token."""
    import torch

    rows = torch.tensor([list(window) for window in windows])
    at_once = max(1, LOGITS // (rows.shape[1] * int(model.config.get_text_config().vocab_size)))
    found = []
    for part in rows.split(at_once):
        ids = part.to(model.device)
        with torch.inference_mode():
            logits = model.eval()(input_ids=ids, use_cache=False).logits[:, :-1].float()
            chosen = logits.gather(-1, ids[:, 1:, None])[..., 0] - logits.logsumexp(-1)
        found.append(chosen.double().mean(-1).cpu().numpy())
    return np.concatenate(found)


def study(
    run: Path,
    text: HeldOutText,
    *,
    step: int | None = None,
    every: bool = False,
    tokens: int = TOKENS,
    window: int = WINDOW,
) -> Result:
    """Score the text with the policies that learn, before training and at checkpoints of a run.

    Args:
        run: Run folder.
        text: Text to score.
        step: Step of the checkpoint; None: the newest.
        every: True: all checkpoints that the run kept.
        tokens: Number of tokens of the text that are scored.
        window: Number of tokens in a window.
    Raises:
        ConfigError: If no policy learns, no checkpoint is of a trained policy, or the windows do
            not fit the text or a model.
    """
    checkpoints = [place for place in places(run, step=step, every=every) if int(place.name)]
    if not checkpoints:
        raise ConfigError(
            f"forgetting: {run} has no checkpoint of a trained policy; train it first"
        )
    scores: dict[str, dict[int, np.ndarray]] = {}
    for number, place in [(0, checkpoints[-1]), *((int(each.name), each) for each in checkpoints)]:
        for name, policy in policies_of(run, place, untrained=not number).items():
            if policy.learn:
                _check_window(policy, name, window)
                parts = windows_of(text, policy.renderer.tokenizer, tokens=tokens, window=window)
                scores.setdefault(name, {})[number] = likelihoods(policy.model, parts)
    if not scores:
        raise ConfigError(f"forgetting: no policy of {run} learns, so none can forget")
    params = {
        "run": str(run),
        "text": text.source,
        "text_sha256": text.sha256,
        "window": window,
        "windows": {name: len(found[0]) for name, found in scores.items()},
    }
    return result(run, scores, params)


def _check_window(policy: "Policy", name: str, window: int) -> None:
    config = policy.model.config.get_text_config()
    most = getattr(config, "max_position_embeddings", None)
    if most is not None and window > most:
        raise ConfigError(
            f"forgetting: --window {window} is more than the {most} tokens that policy {name!r} "
            "reads; lower it"
        )


def result(run: Path, scores: Scores, params: Mapping[str, Any]) -> Result:
    """Return the result: the change by training, and the log-likelihood at each step."""
    title = f"Forgetting in {run.resolve().name}"
    steps = sorted({step for found in scores.values() for step in found})
    last = steps[-1]
    rows: list[list[Cell]] = []
    estimates: list[Estimate] = []
    curves: dict[str, list[Estimate]] = {}
    for name, found in scores.items():
        draws = Draws(tasks=[str(number) for number in range(len(found[0]))])
        level = _over(draws, f"log-likelihood, {name}")
        change = _over(draws, f"change of the log-likelihood, {name}")
        curves[name] = [level(found[step]) for step in steps]
        changes = [change(found[step] - found[0], null=0.0) for step in steps]
        for step, one, moved in zip(steps, curves[name], changes, strict=True):
            ends = [one.value, one.low, one.high, float(np.exp(-one.value))]
            moves = [None] * 3 if step == 0 else [moved.value, moved.low, moved.high]
            rows.append([name, step, *ends, *moves])
        estimates += [
            replace(curves[name][0], name=f"log-likelihood before training, {name}"),
            replace(curves[name][-1], name=f"log-likelihood after training, {name}"),
            changes[-1],
        ]
    columns = ["policy", "step", "log-likelihood", "low", "high", "perplexity"]
    return Result(
        measure="forgetting",
        title=title,
        definition="The mean log-likelihood per token, in nats, of text that the run did not train "
        f"on, before training and at step {last}. A negative change is what training cost.",
        estimates=estimates,
        tables=[
            Table(title="By step", columns=[*columns, "change", "low ", "high "], rows=rows),
        ],
        drawings=[
            CurvePlot(
                title="Log-likelihood of held-out text, nats per token",
                x=[float(step) for step in steps],
                series={name: [each.value for each in found] for name, found in curves.items()},
                bands={
                    name: ([each.low for each in found], [each.high for each in found])
                    for name, found in curves.items()
                },
                label="log-likelihood, nats per token",
            )
        ],
        params=params,
        notes=[f"The text is {params['text']}; L depends on the tokenizer."],
    )


def _over(draws: Draws, name: str) -> Callable[..., Estimate]:
    """Return a function that estimates a mean over windows under this name."""

    def estimate(values: np.ndarray, **more: Any) -> Estimate:
        found = draws.mean(name, values, **more)
        return replace(found, unit="window", notes=found.notes.replace(draws.unit, "window"))

    return estimate


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    if options.all and options.step is not None:
        raise ConfigError(
            "--all measures every checkpoint, --step one of them; give one of the two"
        )
    return study(
        options.run,
        read_text(options.text),
        step=options.step,
        every=options.all,
        tokens=options.tokens,
        window=options.window,
    )


MEASURE = Measure(
    name="forgetting",
    help="what training cost: the likelihood of text that the run did not see",
    target="run",
    run=from_options,
    options=(
        Option(name="step", type=int, metavar="N", help="checkpoint of step N (default: newest)"),
        ALL,
        Option(
            name="text",
            type=Path,
            metavar="FILE",
            help="text to score (default: Python's language reference, pydoc_data.topics)",
        ),
        Option(
            name="tokens", type=int, default=TOKENS, metavar="N", help="tokens of the text in all"
        ),
        Option(name="window", type=int, default=WINDOW, metavar="N", help="tokens in each window"),
    ),
)
"""The measure `forgetting` of the command line."""
