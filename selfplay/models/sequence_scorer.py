"""A classifier with one output, whose logit scores an answer to a question: a reward model."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from selfplay.errors import ConfigError
from selfplay.models import lora
from selfplay.models.float32_head import SHORT, Float32Head
from selfplay.models.model_outline import outputs
from selfplay.models.out_of_memory import explained
from selfplay.models.policy import (
    check_folder,
    check_tokenizer,
    device_of,
    load_model,
    loadable,
    read_tokenizer,
)
from selfplay.models.position_limits import reach
from selfplay.models.renderer import ChatRenderer
from selfplay.types import well_formed

CHARACTERS = 64
"""Characters per token of the limit, above which a text counts as too long before it is tokenized:
no text has so many characters per token on average."""
UNLIMITED = 10**9
"""Largest `model_max_length` of a tokenizer that is a limit; tokenizers without one have 1e30."""


@dataclass(frozen=True, kw_only=True)
class ScoredText:
    """A question with an answer as tokens. `SequenceScorer.text` makes it."""

    ids: Sequence[int]
    """Tokens; at least one."""
    types: Sequence[int]
    """Token types: 0 of the question and 1 of the answer, for models that read them; else empty."""


def check_scorer(model: str, *, where: str) -> None:
    """Raise ConfigError for a model that cannot be a `SequenceScorer`; reads no weights.

    A model that is not on this machine is checked when it is loaded.
    """
    try:
        check_folder(model, where=where)
    except ConfigError as error:  # its advice is for policies
        problem = str(error).partition("; name ")[0]
        raise ConfigError(
            f"{problem}; name a sequence classifier of one output: a model of Hugging Face, or a "
            "folder that save_pretrained wrote"
        ) from error
    if lora.is_adapter(Path(model).expanduser()):
        raise ConfigError(
            f"{where}: {model!r} is an adapter; merge it into its base (peft's merge_and_unload), "
            "and name the folder of the whole model"
        )
    if (count := outputs(model)) not in (None, 1):
        raise ConfigError(
            f"{where}: {model!r} has {count} outputs by its config.json, and a reward model has "
            "one (num_labels=1)"
        )


class SequenceScorer:
    """A model of `AutoModelForSequenceClassification` with one output, and its tokenizer.

    `arenas.questions.reward_model.RewardModel` makes it. With a chat template, the question is the
    message of a user and the answer that of the assistant; without one they are a pair of texts.
    Control tokens in them are ordinary characters. The model is in evaluation mode and has no
    gradients.
    """

    def __init__(
        self,
        model: str,
        *,
        where: str,
        dtype: str = "float32",
        device: str = "auto",
        max_length: int | None = None,
    ) -> None:
        """Load a model; raises ConfigError, in one line that begins with `where`.

        Args:
            model: Hugging Face name or folder.
            where: Config key of the model, for errors.
            dtype: Type of the weights.
            device: Device of the model; auto is the GPU if there is one.
            max_length: Largest number of tokens of a text; None: the limit of the model.
        """
        self.where = where
        check_scorer(model, where=where)
        self.device = device_of(device, where)
        loaded = load_model(
            model, where=where, dtype=dtype, loader=AutoModelForSequenceClassification
        )
        check_scorer(model, where=where)  # its config.json is on this machine now
        self.tokenizer, problem = read_tokenizer(loadable(model, where=where))
        if self.tokenizer is None:
            raise ConfigError(f"{where}: no tokenizer in {model!r}{problem}")
        self._rows = int(loaded.get_input_embeddings().weight.shape[0])  # type: ignore[index]
        check_tokenizer(self.tokenizer, self._rows, model=model, where=where)
        self._renderer: ChatRenderer | None = None
        if self.tokenizer.chat_template:
            self._renderer = ChatRenderer(self.tokenizer, where=where)
        head = getattr(loaded, "score", None)
        if loaded.dtype in SHORT and type(head) is torch.nn.Linear:
            head.__class__ = Float32Head
        with explained(f"{where}: loading {model!r}", "choose device=cpu, or dtype=bfloat16"):
            torch.nn.Module.to(loaded, self.device)
        self.model: PreTrainedModel = loaded.eval().requires_grad_(False)
        self._reach = reach(loaded)
        self.limit = self._limit(max_length)
        """Largest number of tokens of a text; None: no limit."""
        self._text_config: Any = loaded.config.get_text_config()
        self._text_config.use_cache = False
        padding = getattr(self._text_config, "pad_token_id", None)
        known = padding is not None and 0 <= padding < self._rows
        self._padding: int | None = padding if known else None
        """Token that the model's config names for padding; None without one."""
        special = [token for token in self.tokenizer.all_special_tokens if len(token) > 1]
        self._control = re.compile("|".join(map(re.escape, special)) or "(?!)")

    def _limit(self, max_length: int | None) -> int | None:
        longest = self._reach.longest
        known = (
            max_length,
            getattr(self.model.config.get_text_config(), "max_position_embeddings", None),
            getattr(self.tokenizer, "model_max_length", None),
            None if longest is None else longest.tokens,
            *_positions_after_padding(self.model),
        )
        return min((each for each in known if each and 0 < each < UNLIMITED), default=None)

    def text(self, question: str, answer: str) -> ScoredText | None:
        """Return a question with an answer as tokens; None if they are too long for the model.

        The tokenizer is not safe in several threads at once.
        """
        if self.limit is not None and len(question) + len(answer) > CHARACTERS * self.limit:
            return None
        ids: Sequence[int]
        types: Sequence[int] = ()
        if self._renderer is not None:
            ids = self._renderer.conversation(
                [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            )
        else:
            found = self.tokenizer(
                self._plain(question), self._plain(answer), split_special_tokens=True
            )
            ids, types = found["input_ids"], found.get("token_type_ids", ())
        if self.limit is not None and len(ids) > self.limit:
            return None
        return ScoredText(ids=ids or (0,), types=types)

    def _plain(self, text: str) -> str:
        """Return a text in which a space after its first character breaks each control token.

        Some tokenizers find control tokens even if they are set to split them.
        """
        return self._control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", well_formed(text))

    def scores(self, texts: Sequence[ScoredText]) -> list[float]:
        """Return the logit of each text, in as few forward passes as possible.

        Usually this is one pass. Texts with the rotary frequencies of long rows (longrope) have a
        pass of their own. If the model's config names no padding token, a token that no text has is
        the padding, so that the logit is that of a text alone, at its last token; if there is no
        such token, each text has its own pass.
        """
        found = dict[int, float]()
        for places in self._passes(texts):
            read = self._read([texts[place] for place in places])
            found |= zip(places, read.tolist(), strict=True)
        return [found[place] for place in range(len(texts))]

    def _passes(self, texts: Sequence[ScoredText]) -> Iterator[list[int]]:
        """Yield the places of the texts that one pass reads together."""
        for far in (False, True):
            places = [p for p, each in enumerate(texts) if self._reach.far(len(each.ids)) == far]
            if self._padding_of([texts[place] for place in places]) is None:
                yield from ([place] for place in places)
            elif places:
                yield places

    def _padding_of(self, texts: Sequence[ScoredText]) -> int | None:
        """Return the padding token; without one in the config, a token that no text has."""
        if self._padding is not None:
            return self._padding
        used = {token for each in texts for token in each.ids}
        return next((token for token in range(self._rows) if token not in used), None)

    def _read(self, texts: Sequence[ScoredText]) -> Tensor:
        """Return [B] logits of rows that are padded on the right."""
        longest = max(len(each.ids) for each in texts)
        padding = self._padding_of(texts)
        if self._padding is None:  # the model takes the rightmost token that is not padding
            self._text_config.pad_token_id = padding if len(texts) > 1 else None
        rows = [[*each.ids, *[padding or 0] * (longest - len(each.ids))] for each in texts]
        given = {
            "input_ids": torch.tensor(rows, device=self.device),
            "attention_mask": torch.tensor(
                [[1] * len(each.ids) + [0] * (longest - len(each.ids)) for each in texts],
                device=self.device,
            ),
        }
        if any(each.types for each in texts):
            types = [[*each.types, *[0] * (longest - len(each.types))] for each in texts]
            given["token_type_ids"] = torch.tensor(types, device=self.device)
        with torch.inference_mode(), explained(f"{self.where}: a pass", "lower its batch"):
            logits: Tensor = self.model(**given).logits
        return logits[:, 0].float().cpu()


def _positions_after_padding(model: PreTrainedModel) -> Iterator[int]:
    """Yield the number of positions of each table of positions that has a row for padding.

    RoBERTa and models like it number the tokens of a text from the row after it.
    """
    for name, module in model.named_modules():
        table = isinstance(module, torch.nn.Embedding) and "position" in name.rpartition(".")[2]
        if table and module.padding_idx is not None:
            yield module.num_embeddings - module.padding_idx - 1
