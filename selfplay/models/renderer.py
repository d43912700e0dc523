"""Renderers: chat messages to prompt ids, and sampled ids to text.

This is the only place where text and token ids are converted. Ids that a policy sampled are kept as
sampled. The next turn of a conversation appends only the tokens of its new messages, so that prompt
t+1 begins with prompt t + completion t. In text that the policy did not write, control tokens are
encoded as ordinary characters: the special tokens of the tokenizer, and the other added tokens that
the chat template writes, such as those that begin a turn.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from cachetools import LRUCache, cached

from selfplay.errors import ConfigError
from selfplay.models.chat_template import ChatTemplate, Tags, check_settings
from selfplay.role import THINKING
from selfplay.run.hashing_file import HashingFile
from selfplay.tools.call_format import defused
from selfplay.types import Message, well_formed

_MARK = "\ue000"
"""Encloses the index of a placeholder in a rendered template; a private character that templates
lack."""

_TAGS = frozenset(chain.from_iterable(THINKING))
"""Tags of thinking."""

_ANSWER_TAGS = ("<answer>", "</answer>")
"""Tags that belong in answers, and that some chat templates read."""

_REMEMBERED = 2**21
"""Number of tokens of which a renderer remembers the texts, for new conversations and for next
turns: at most about 100 MB each, whatever the length of a prompt."""

_Frozen: TypeAlias = tuple[tuple[str, str], ...]
"""Role and content of each message."""


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
        self, so_far: Sequence[int], completion: Sequence[int], messages: Sequence[Message]
    ) -> tuple[int, ...] | None:
        """Return prompt ids of the next turn: `so_far + completion + new`.

        None if the chat template cannot be extended, so that the caller must start a new sequence.
        """
        ...

    def text(self, completion: Sequence[int]) -> str:
        """Return the completion's text, without the token that ends it.

        The text of no tokens is the beginning that the generation prompt gives every completion.
        """
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
        self, so_far: Sequence[int], completion: Sequence[int], messages: Sequence[Message]
    ) -> tuple[int, ...] | None:
        """Return `so_far + completion + new`; it never fails."""
        return (*so_far, *completion, *self.start(messages))

    def text(self, completion: Sequence[int]) -> str:
        """Return the bytes as text."""
        return bytes(completion).decode("utf-8", "replace")


class ChatRenderer:
    """A renderer over a Hugging Face tokenizer with a chat template.

    `load_policy` makes it. If the generation prompt opens a block of thinking, the text of a
    completion begins with that opening tag.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        where: str = "policy",
        end_ids: Sequence[int] = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
        keep_thinking: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Args:
            tokenizer: Hugging Face tokenizer.
            where: Name of the policy in errors.
            end_ids: Further tokens that end a completion, such as those of the model's
                generation_config.json.
            chat_template_kwargs: Values by the name of a variable of the chat template.
            keep_thinking: True to continue a conversation with the thinking of earlier turns, also
                if the chat template drops it.
            tools: Descriptions of tools, for the chat template.

        Raises ConfigError without a chat template or an end-of-sequence token, and for a setting
        that the template does not read.
        """
        self.tokenizer, self.where = tokenizer, where
        self.keep_thinking, self._further_ends = keep_thinking, tuple(end_ids)
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        added = tokenizer.added_tokens_decoder.items()
        special = {number: token.content for number, token in added if token.special}
        others = {token.content for _, token in added} - {*special.values()}
        markers = set(filter(_can_be_marker, others))
        known = sorted(markers.union(special.values()), key=len, reverse=True)
        # The mark has a placeholder too, so that a content with marks cannot forge a placeholder.
        self._stand_ins = [*known, _MARK]
        self._places = {text: place for place, text in enumerate(self._stand_ins)}
        # In settings and tools all added tokens are masked: those of the template are known later.
        self._smuggled = _pattern(self._stand_ins)
        if tokenizer.eos_token_id is None:
            raise ConfigError(f"{where}: its tokenizer has no end-of-sequence token")
        check_settings(self.chat_template_kwargs, where=f"{where}: chat_template_kwargs")
        self._template = ChatTemplate(
            tokenizer,
            where=where,
            settings={k: self._masked(v) for k, v in self.chat_template_kwargs.items()},
            tools=self._masked(list(tools)),
        )
        written = self._template.written()
        markers = {text for text in markers if text in written}
        self._control = [text for text in known if text not in others or text in markers]
        self._smuggled = _pattern([*self._control, _MARK])
        # A cut after the first character does not split a token of one character.
        divisible = [text for text in self._control if len(text) > 1]
        self._divisible = re.compile(f"(?={_pattern(divisible).pattern})")
        own = int(tokenizer.eos_token_id)
        turn = self._end_of_turn({*special, own, *self._further_ends})
        self.end_ids: tuple[int, ...] = tuple(dict.fromkeys([*turn, own, *self._further_ends]))
        control = set(self._control)
        self._control_ids = {number for number, token in added if token.content in control}
        if tokenizer.unk_token_id not in self.end_ids:  # every unknown character gives this token
            self._control_ids.discard(tokenizer.unk_token_id)
        # Siblings of a group and references have the same prompts.
        self._cached_start = _remembering(self._start)
        self._cached_next = _remembering(self._next)

    @cached_property
    def tokenizer_files(self) -> Mapping[str, bytes]:
        """Content of the tokenizer's files, which never change, by name.

        Other threads may tokenize, which a tokenizer does not allow while it saves itself.
        """
        with TemporaryDirectory() as place:
            self.tokenizer.save_pretrained(place)
            found = [path for path in sorted(Path(place).rglob("*")) if path.is_file()]
            return {str(path.relative_to(place)): path.read_bytes() for path in found}

    def save_tokenizer(self, folder: Path) -> dict[str, str]:
        """Write the tokenizer in Hugging Face layout; return the SHA-256 of its files by name."""
        hashes = {}
        for name, content in self.tokenizer_files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with HashingFile(folder / name) as file:
                file.write(content)
            hashes[name] = file.sha256()
        return hashes

    def configured(
        self, *, where: str, chat_template_kwargs: Mapping[str, Any] | None, keep_thinking: bool
    ) -> "ChatRenderer":
        """Return a renderer of the same tokenizer with these settings: this one if it has them."""
        settings = dict(chat_template_kwargs or {})
        if settings == self.chat_template_kwargs and keep_thinking == self.keep_thinking:
            return self
        return ChatRenderer(
            self.tokenizer,
            where=where,
            end_ids=self._further_ends,
            chat_template_kwargs=settings,
            keep_thinking=keep_thinking,
        )

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> "ChatRenderer":
        """Return a renderer whose chat template describes these tools in every conversation."""
        return ChatRenderer(
            self.tokenizer,
            where=self.where,
            end_ids=self._further_ends,
            chat_template_kwargs=self.chat_template_kwargs,
            keep_thinking=self.keep_thinking,
            tools=tools,
        )

    @property
    def template(self) -> ChatTemplate:
        """Chat template with its settings."""
        return self._template

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return prompt ids of the messages, with the generation prompt."""
        return self._cached_start(self._frozen(messages))

    def _start(self, messages: _Frozen) -> tuple[int, ...]:
        return self._ids(self._template.render(self._shown(messages), generate=True))

    def conversation(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the ids of messages that end with an answer, without a generation prompt.

        No content has a control token, also not a tag of thinking in an answer.
        """
        shown = [
            {"role": role, "content": self._mask(content)}
            for role, content in self._frozen(messages)
        ]
        return self._ids(self._template.render(shown, generate=False))

    def extend(
        self, so_far: Sequence[int], completion: Sequence[int], messages: Sequence[Message]
    ) -> tuple[int, ...] | None:
        """Return the earlier ids followed by the new messages' tokens, which the template gives.

        None if the template does not keep the earlier text as a prefix: some drop the thinking of
        earlier turns, unless `keep_thinking` is true.
        """
        said = self._decoded(completion)
        tags = next((pair for pair in THINKING if pair[1] in said), None)
        following = self._cached_next(self._frozen(messages), tags)
        if following is None or not (following.kept or self.keep_thinking):
            return None
        ended = bool(completion) and completion[-1] in self.end_ids
        return (*so_far, *completion, *(following.ended if ended else following.cut))

    def _next(self, messages: _Frozen, tags: Tags | None) -> "_Next | None":
        """Return the tokens after an answer with or without thinking, and the new messages."""
        found = self._template.continuation(self._shown(messages), tags)
        if found is None:
            return None
        ids = self._ids(found.text)
        end = next((place for place, token in enumerate(ids) if token in self.end_ids), None)
        if end is None or self.tokenizer.decode(ids[:end]).strip():
            return None  # the template does not end a turn with a token
        return _Next(cut=ids, ended=ids[end + 1 :], kept=found.kept)

    def text(self, completion: Sequence[int]) -> str:
        """Return the decoded text without the end token; other control tokens stay visible.

        The text begins with the tag of thinking that the generation prompt opened, if it did.
        """
        return self._template.opening + self._decoded(completion)

    def completion_ids(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a completion with this text, without an end token.

        A tag of thinking that the generation prompt opens is part of the prompt, and left out.
        Control tokens in the text are encoded as ordinary characters.
        """
        opening = self._template.opening
        if opening and text.startswith(opening):
            text = text.removeprefix(opening)
        elif opening:
            text = text.removeprefix(opening.rstrip())
        return tuple(self._plain(well_formed(text)))

    def _decoded(self, completion: Sequence[int]) -> str:
        ids = list(completion)
        if ids and ids[-1] in self.end_ids:
            ids.pop()
        return str(
            self.tokenizer.decode(
                ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def _end_of_turn(self, ends: set[int]) -> list[int]:
        """Return the token that the template writes after an assistant's message, if any.

        A chat model ends its turn with this token, which is not always the tokenizer's end of
        sequence.
        """
        ids = self._encode(self._template.after_answer(), plain=False)
        return [token for token in ids if token in ends][:1]

    def _ids(self, text: str) -> tuple[int, ...]:
        """Return the ids of a rendered text.

        Its placeholders are replaced by the ids of control tokens as ordinary characters.
        """
        ids: list[int] = []
        spelled: dict[str, list[int]] = {}
        for position, piece in enumerate(re.split(f"{_MARK}([0-9]{{1,9}}){_MARK}", text)):
            if position % 2 == 0:
                ids += self._encode(piece, plain=False)
                continue
            if int(piece) >= len(self._stand_ins):
                raise ConfigError(
                    f"{self.where}: its chat template writes the private character U+E000, which "
                    "marks control tokens in contents; remove it from the template"
                )
            if piece not in spelled:
                spelled[piece] = self._plain(self._stand_ins[int(piece)])
            ids += spelled[piece]
        return tuple(ids)

    def _shown(self, messages: _Frozen) -> list[Message]:
        """Return messages in which the text of each control token is a placeholder.

        Tags of thinking stay in an agent's own answers, so that the template can find them.
        """
        return [
            {"role": role, "content": self._mask(content, keep=_TAGS if own else ())}
            for role, content in messages
            for own in [role == "assistant"]
        ]

    def _frozen(self, messages: Sequence[Message]) -> _Frozen:
        return tuple((m["role"], self._text(m["content"])) for m in messages)

    def _encode(self, text: str, *, plain: bool) -> list[int]:
        if not text:
            return []
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=plain)
        return [int(token) for token in encoded["input_ids"]]

    def _plain(self, text: str) -> list[int]:
        """Return the ids of a text, with its control tokens as ordinary characters.

        A tokenizer splits only special tokens, and a Unigram one finds even these in its
        vocabulary. Such a text is cut after the first character of each control token.
        """
        ids = self._encode(text, plain=True)
        if self._control_ids.isdisjoint(ids):
            return ids
        cuts = [found.start() + 1 for found in self._divisible.finditer(text)]
        pieces = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
        return [token for piece in pieces for token in self._encode(piece, plain=True)]

    def _mask(self, content: str, *, keep: Collection[str] = ()) -> str:
        return self._smuggled.sub(
            lambda found: (
                found[0] if found[0] in keep else f"{_MARK}{self._places[found[0]]}{_MARK}"
            ),
            content,
        )

    def _masked(self, value: Any) -> Any:
        """Return plain data in which no text, of a key or a value, has a control token."""
        if isinstance(value, str):
            return self._mask(well_formed(value))
        if isinstance(value, Mapping):
            return {self._masked(key): self._masked(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._masked(inner) for inner in value]
        return value

    def _text(self, content: Any) -> str:
        if isinstance(content, str):
            return well_formed(content)
        raise ConfigError(
            f"{self.where}: reads text only, and a message of the role has other content parts; "
            "give it text alone"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines for the user about messages that the chat template cannot take as they are."""
        return self._template.notes


class _Next(NamedTuple):
    """The tokens of a conversation after an answer, up to the next generation prompt."""

    cut: tuple[int, ...]
    """Tokens after an answer without an end token."""
    ended: tuple[int, ...]
    """Tokens after an answer with its end token."""
    kept: bool
    """True if the template keeps the text before them as it was."""


def _can_be_marker(text: str) -> bool:
    """Return True if an added token can be a marker, which templates write between messages only.

    White space and single characters occur in every text. Tags of thinking, of answers and of tool
    calls belong in answers.
    """
    visible = text.replace("\u2581", " ").strip()  # sentencepiece writes a space as U+2581
    return len(visible) > 1 and text not in _ANSWER_TAGS and defused(text) == text


def _pattern(texts: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern that finds any of the texts, the first one that fits."""
    return re.compile("|".join(map(re.escape, texts)) or "(?!)")


_Found = TypeVar("_Found", tuple[int, ...], "_Next | None")


def _remembering(function: Callable[..., _Found]) -> Callable[..., _Found]:
    """Return the function, with its latest results remembered: at most `_REMEMBERED` tokens."""
    return cached(LRUCache(maxsize=_REMEMBERED, getsizeof=_size), lock=Lock())(function)


def _size(found: tuple[int, ...] | _Next | None) -> int:
    """Return the number of tokens of a result, plus one for the result itself."""
    parts = (found.cut, found.ended) if isinstance(found, _Next) else (found or (),)
    return 1 + sum(map(len, parts))
