"""Renderers: chat messages to prompt ids, and sampled ids to text.

This is the only place where text and token ids are converted. Ids that a policy sampled are kept as
sampled. The next turn of a conversation appends only the tokens of its new messages, so that prompt
t+1 begins with prompt t + completion t. In text that the policy did not write, control tokens are
encoded as ordinary characters.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from jinja2 import TemplateError

from selfplay.errors import ConfigError
from selfplay.sandbox.templates import bounded, check_template
from selfplay.types import Message, well_formed

_MARK = "\ue000"
"""Encloses the index of a placeholder in a rendered template; a private character that templates
lack."""


class Renderer(Protocol):
    """Chat messages to prompt ids, and sampled ids to text.

    Every policy has one; the rollout calls it before and after each request.
    """

    end_ids: tuple[int, ...]
    """Tokens that end a completion; the first one is the chat template's own end of a turn."""

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return prompt ids of a new conversation, with the generation prompt."""
        ...

    def extend(
        self, so_far: tuple[int, ...], completion: tuple[int, ...], messages: Sequence[Message]
    ) -> tuple[int, ...] | None:
        """Return prompt ids of the next turn: `so_far + completion + new`.

        None if the chat template cannot be extended, so that the caller must start a new sequence.
        """
        ...

    def text(self, completion: Sequence[int]) -> str:
        """Return the completion's text, without the token that ends it."""
        ...


class ByteRenderer:
    """A renderer for policies without a tokenizer (scripted ones): one id per UTF-8 byte."""

    end_ids: tuple[int, ...] = ()

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the bytes of the messages."""
        return tuple(
            "".join(f"{m['role']}: {m['content']}\n" for m in messages).encode("utf-8", "replace")
        )

    def extend(
        self, so_far: tuple[int, ...], completion: tuple[int, ...], messages: Sequence[Message]
    ) -> tuple[int, ...] | None:
        """Return `so_far + completion + new`; it never fails."""
        return so_far + completion + self.start(messages)

    def text(self, completion: Sequence[int]) -> str:
        """Return the bytes as text."""
        return bytes(completion).decode("utf-8", "replace")


class ChatRenderer:
    """A renderer over a Hugging Face tokenizer with a chat template."""

    def __init__(self, tokenizer: Any, *, where: str = "policy") -> None:
        """Args:
            tokenizer: Hugging Face tokenizer.
            where: Name of the policy in errors.

        Raises ConfigError without a chat template.
        """
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"{where}: its tokenizer has no chat template; set tokenizer.chat_template in the "
                "model folder (chat_template.jinja) or choose an instruct model"
            )
        templates = tokenizer.chat_template
        for source in templates.values() if isinstance(templates, Mapping) else [templates]:
            check_template(str(source), where=where)
        self.tokenizer, self.where = tokenizer, where
        if tokenizer.eos_token_id is None:
            raise ConfigError(f"{where}: its tokenizer has no end-of-sequence token")
        special = {i: t.content for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        self._control = sorted(special.values(), key=len, reverse=True)
        # The mark has a placeholder too, so that a content with marks cannot forge a placeholder.
        self._stand_ins = [*self._control, _MARK]
        self._smuggled = re.compile("|".join(map(re.escape, self._stand_ins)))
        self.end_ids: tuple[int, ...] = tuple(
            dict.fromkeys([*self._end_of_turn(set(special)), int(tokenizer.eos_token_id)])
        )
        # Siblings of a group and references have the same prompts.
        self._cached_start = lru_cache(maxsize=4096)(self._start)
        self._cached_suffixes = lru_cache(maxsize=4096)(self._suffixes)

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return prompt ids of the messages, with the generation prompt."""
        return self._cached_start(tuple((m["role"], self._text(m["content"])) for m in messages))

    def _start(self, messages: tuple[tuple[str, str], ...]) -> tuple[int, ...]:
        return self._render([{"role": r, "content": c} for r, c in messages], generate=True)

    def extend(
        self, so_far: tuple[int, ...], completion: tuple[int, ...], messages: Sequence[Message]
    ) -> tuple[int, ...] | None:
        """Return the earlier ids followed by the new messages' tokens, which the template gives.

        None if the template does not keep the earlier text as a prefix (some drop old thinking).
        """
        suffixes = self._cached_suffixes(
            tuple((m["role"], self._text(m["content"])) for m in messages)
        )
        if suffixes is None:
            return None
        ended = bool(completion) and completion[-1] in self.end_ids
        return so_far + completion + suffixes[ended]

    def _suffixes(
        self, messages: tuple[tuple[str, str], ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return the ids after a completion that did not end its turn, and after one that did.

        They are found by rendering a probe conversation with and without the new messages.
        """
        probe = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
        added = [{"role": r, "content": c} for r, c in messages]
        before = self._render(probe, generate=False)
        after = self._render([*probe, *added], generate=True)
        # `before` ends in end-of-turn and the template's text after it (often a newline).
        last = max((i for i, token in enumerate(before) if token in self.end_ids), default=None)
        if last is None or after[: len(before)] != before:
            return None
        return after[last:], after[last + 1 :]

    def text(self, completion: Sequence[int]) -> str:
        """Return the decoded text without the end token; other control tokens stay visible."""
        ids = list(completion)
        if ids and ids[-1] in self.end_ids:
            ids.pop()
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def completion(self, text: str) -> tuple[int, ...]:
        """Return the ids of a completion that says `text`, with the end of a turn.

        Control tokens in the text are encoded as ordinary characters.
        """
        return (*self._encode(well_formed(text), plain=True), self.end_ids[0])

    def _end_of_turn(self, special: set[int]) -> list[int]:
        """Return the control token that the template writes after an assistant's message, if any.

        A chat model ends its turn with this token, which is not always the tokenizer's end of
        sequence.
        """
        answer = "selfplay-probe"
        probe = [{"role": "user", "content": "x"}, {"role": "assistant", "content": answer}]
        ids = self._encode(self._apply(probe, generate=False).rpartition(answer)[2], plain=False)
        return [token for token in ids if token in special][:1]

    def _render(self, messages: Sequence[Message], *, generate: bool) -> tuple[int, ...]:
        """Return ids of the chat template, with control tokens inside contents encoded as ordinary
        characters.

        In a content, the text of a control token is rendered as a placeholder; the placeholder is
        then replaced by the ids of that text as ordinary characters.
        """
        shown = [{**m, "content": self._mask(self._text(m["content"]))} for m in messages]
        text = self._apply(shown, generate=generate)
        ids: list[int] = []
        spelled: dict[str, list[int]] = {}
        for position, piece in enumerate(re.split(f"{_MARK}([0-9]+){_MARK}", text)):
            if position % 2 == 0:
                ids += self._encode(piece, plain=False)
                continue
            if piece not in spelled:
                spelled[piece] = self._encode(self._stand_ins[int(piece)], plain=True)
            ids += spelled[piece]
        return tuple(ids)

    def _apply(self, messages: Sequence[Message], *, generate: bool) -> str:
        try:
            return bounded(
                lambda: str(
                    self.tokenizer.apply_chat_template(
                        messages, add_generation_prompt=generate, tokenize=False
                    )
                )
            )
        except (TemplateError, RecursionError, MemoryError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ConfigError(
                f"{self.where}: its chat template refuses messages of {roles}: {error}"
            ) from error

    def _encode(self, text: str, *, plain: bool) -> list[int]:
        if not text:
            return []
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=plain)
        return [int(token) for token in encoded["input_ids"]]

    def _mask(self, content: str) -> str:
        return self._smuggled.sub(
            lambda found: f"{_MARK}{self._stand_ins.index(found[0])}{_MARK}", content
        )

    def _text(self, content: Any) -> str:
        if isinstance(content, str):
            return well_formed(content)
        raise ConfigError(
            f"{self.where}: reads text only, and the observation has other content parts"
        )

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """Texts of control tokens, which messages cannot inject."""
        return tuple(self._control)
