"""Retrieval of the texts nearest to a query."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np

from arenas.memory.bank import MemoryBank, MemoryEntry
from selfplay.errors import ConfigError, import_package


@runtime_checkable
class Retriever(Protocol):
    """Protocol of the memory arena's retriever."""

    def top(self, query: str, texts: Sequence[str], count: int) -> list[int]:
        """Return the indices of the `count` nearest texts, best first; in ties, later first."""
        ...


class BM25:
    """Lexical retrieval by bm25s (2407.03618), in Lucene's variant. Its weights are never negative,
    so that a word in most entries of a small bank does not lower an entry's score."""

    def __init__(self, *, k1: float = 1.5, b: float = 0.75) -> None:
        """Args:
        k1: Saturation of repeated words.
        b: Weight of a text's length.
        """
        if k1 <= 0 or not 0 <= b <= 1:
            raise ValueError(f"k1 must be positive and b in [0, 1], not {k1} and {b}")
        self.k1, self.b = k1, b
        _bm25s()  # reports a missing package before the run begins

    def top(self, query: str, texts: Sequence[str], count: int) -> list[int]:
        asked = _words(query)
        index = _index(tuple(texts), self.k1, self.b) if asked else None
        # Without words to match, later texts come first.
        return _best(np.zeros(len(texts)) if index is None else index.get_scores(asked), count)


@lru_cache(maxsize=1024)  # a bank gets many questions, and siblings have equal banks
def _index(texts: tuple[str, ...], k1: float, b: float) -> Any:
    """Return the index of some texts; None if they contain no words."""
    words = [_words(text) for text in texts]
    if not any(words):
        return None
    index = _bm25s().BM25(method="lucene", k1=k1, b=b)
    index.index(words, show_progress=False)
    return index


def _bm25s() -> Any:
    return import_package("bm25s", "memory", "BM25 retrieval")


class Embeddings:
    """Retrieval by the cosine of sentence embeddings (sentence-transformers).

    Vectors of up to `remembered` texts are cached.
    """

    def __init__(self, *, model: str, device: str | None = None, remembered: int = 65_536) -> None:
        """Args:
        model: Name or path for sentence-transformers.
        device: Device of the model; None: the choice of sentence-transformers.
        remembered: Largest number of texts whose vectors are cached.
        """
        library = import_package("sentence_transformers", "embeddings", "retrieval by embeddings")
        try:
            self._model = library.SentenceTransformer(model, device=device, trust_remote_code=False)
        except (OSError, ValueError) as error:
            line = " ".join(str(error).split())[:200]
            raise ConfigError(f"retriever: cannot load {model!r}: {line}") from error
        self.remembered = remembered
        self._vectors: dict[str, Any] = {}

    def top(self, query: str, texts: Sequence[str], count: int) -> list[int]:
        vectors = self._encoded([query, *texts])
        return _best(vectors[1:] @ vectors[0], count)

    def _encoded(self, texts: Sequence[str]) -> Any:
        """Return unit vectors [len(texts), width]."""
        found = {text: self._vectors[text] for text in texts if text in self._vectors}
        new = [text for text in dict.fromkeys(texts) if text not in found]
        if new:
            encoded = self._model.encode(new, normalize_embeddings=True, show_progress_bar=False)
            found |= dict(zip(new, np.asarray(encoded), strict=True))
        if len(self._vectors) + len(new) > self.remembered:
            self._vectors = {}
        self._vectors |= {text: found[text] for text in new}
        return np.stack([found[text] for text in texts])


def nearest(
    retriever: Retriever, query: str, entries: Sequence[MemoryEntry], count: int
) -> list[MemoryEntry]:
    """Return the `count` entries nearest to a query, best first."""
    return [entries[place] for place in retriever.top(query, [e.text for e in entries], count)]


def nearest_of_each(
    retriever: Retriever, query: str, bank: MemoryBank, count: int
) -> list[MemoryEntry]:
    """Return up to `count` entries: those nearest to a query, equally many of each speaker.

    If the number of speakers does not divide `count`, the first speakers get one more. A speaker
    with fewer entries than this part leaves the rest unused.
    """
    speakers = bank.speakers()
    part, extra = divmod(count, max(len(speakers), 1))
    return [
        entry
        for place, speaker in enumerate(speakers)
        for entry in nearest(retriever, query, bank.of(speaker), part + (place < extra))
    ]


def _best(scores: Any, count: int) -> list[int]:
    order = sorted(range(len(scores)), key=lambda place: (-float(scores[place]), -place))
    return order[:count]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
