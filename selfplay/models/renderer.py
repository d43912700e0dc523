"""The one seam between text and token ids.

Ids that a policy sampled are kept as sampled. The next turn of a conversation appends only the
tokens of its new messages, so that prompt t+1 begins with prompt t + completion t. What anybody but
the policy wrote is encoded with the control tokens taken apart into ordinary characters.
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
"""Encloses a stand-in's index in a rendered template; a private character, so templates lack it."""


class Renderer(Protocol):
    """Chat messages to prompt ids and sampled ids to text."""

    end_ids: tuple[int, ...]
    """Tokens that end a completion; first what the chat template itself ends a turn with."""

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Prompt ids of a new conversation, up to where the policy begins to write."""
        ...

    def extend(
        self, so_far: tuple[int, ...], completion: tuple[int, ...], messages: Sequence[Message]
    ) -> tuple[int, ...] | None:
        """Prompt ids of the next turn: `so_far + completion + new`; None if the chat template
        cannot be extended, so that the caller must start a new sequence."""
        ...

    def text(self, completion: Sequence[int]) -> str:
        """The completion's text, without the token that ends it."""
        ...


class ByteRenderer:
    """A renderer for policies without a tokenizer (scripted ones): one id per UTF-8 byte."""

    end_ids: tuple[int, ...] = ()

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The messages' bytes."""
        return tuple(
            "".join(f"{m['role']}: {m['content']}\n" for m in messages).encode("utf-8", "replace")
        )

    def extend(
        self, so_far: tuple[int, ...], completion: tuple[int, ...], messages: Sequence[Message]
    ) -> tuple[int, ...] | None:
        """Always extends."""
        return so_far + completion + self.start(messages)

    def text(self, completion: Sequence[int]) -> str:
        """The bytes as text."""
        return bytes(completion).decode("utf-8", "replace")


class ChatRenderer:
    """A renderer over a Hugging Face tokenizer with a chat template."""

    def __init__(self, tokenizer: Any, *, where: str = "policy") -> None:
        """`where` names the policy in errors. Raises ConfigError without a chat template."""
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
        # The mark stands for itself too: a content that holds it cannot forge a stand-in.
        self._stand_ins = [*self._control, _MARK]
        self._smuggled = re.compile("|".join(map(re.escape, self._stand_ins)))
        self.end_ids: tuple[int, ...] = tuple(
            dict.fromkeys([*self._end_of_turn(set(special)), int(tokenizer.eos_token_id)])
        )
        # The same prompts come back for every sibling of a group and for every reference.
        self._cached_start = lru_cache(maxsize=4096)(self._start)
        self._cached_behind = lru_cache(maxsize=4096)(self._behind)

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Prompt ids of the messages, the generation prompt included."""
        return self._cached_start(tuple((m["role"], self._text(m["content"])) for m in messages))

    def _start(self, messages: tuple[tuple[str, str], ...]) -> tuple[int, ...]:
        return self._render([{"role": r, "content": c} for r, c in messages], generate=True)

    def extend(
        self, so_far: tuple[int, ...], completion: tuple[int, ...], messages: Sequence[Message]
    ) -> tuple[int, ...] | None:
        """The new messages' tokens after what was sampled, found from the template itself.

        None where the template does not keep the earlier text as a prefix (some drop old thinking).
        """
        behind = self._cached_behind(tuple((m["role"], self._text(m["content"])) for m in messages))
        if behind is None:
            return None
        ended = bool(completion) and completion[-1] in self.end_ids
        return so_far + completion + behind[ended]

    def _behind(
        self, messages: tuple[tuple[str, str], ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """What stands behind a completion that did not end its turn, and behind one that did.

        Found by rendering a probe conversation with and without the new messages.
        """
        probe = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
        added = [{"role": r, "content": c} for r, c in messages]
        before = self._render(probe, generate=False)
        after = self._render([*probe, *added], generate=True)
        # `before` ends in end-of-turn and whatever the template writes behind it (often a newline).
        last = max((i for i, token in enumerate(before) if token in self.end_ids), default=None)
        if last is None or after[: len(before)] != before:
            return None
        return after[last:], after[last + 1 :]

    def text(self, completion: Sequence[int]) -> str:
        """Decoded text without the end token; other control tokens stay visible."""
        ids = list(completion)
        if ids and ids[-1] in self.end_ids:
            ids.pop()
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def _end_of_turn(self, special: set[int]) -> list[int]:
        """The control token that the template writes behind what an assistant said, if any.

        It is what a chat model ends its turn with, and not always the tokenizer's end of sequence.
        """
        said = "selfplay-probe"
        probe = [{"role": "user", "content": "x"}, {"role": "assistant", "content": said}]
        ids = self._encode(self._apply(probe, generate=False).rpartition(said)[2], plain=False)
        return [token for token in ids if token in special][:1]

    def _render(self, messages: Sequence[Message], *, generate: bool) -> tuple[int, ...]:
        """Ids of the chat template, with control tokens inside contents spelled out.

        A content that holds a control token's text is rendered with a stand-in for it; the stand-in
        is then replaced by the ids of that text as ordinary characters.
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
        """The strings that no message may smuggle in."""
        return tuple(self._control)
