"""Search over a corpus of documents, and reading one of them."""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

from selfplay.config.json_lines import json_lines
from selfplay.errors import SettingError
from selfplay.tools.tool import Tool, ToolError

LONGEST_QUERY = 2000
"""Largest number of characters of a query."""


@runtime_checkable
class CorpusRetriever(Protocol):
    """Protocol of retrievers, such as `arenas.memory.retrieval.BM25`."""

    def top(self, query: str, texts: Sequence[str], count: int) -> list[int]:
        """Return the indices of the `count` nearest texts, best first."""
        ...


@dataclass(frozen=True, kw_only=True)
class Document:
    """A document of a corpus."""

    id: str
    """Name by which `Read` finds it."""
    text: str
    """Whole text, the title first if there is one."""


@lru_cache(maxsize=8)
def read_corpus(path: str) -> tuple[Document, ...]:
    """Return the documents of a JSON Lines file; raises SettingError with the faulty line.

    A line is {"text": ...} with an optional "id" and "title". A document without an id has the
    number of its line, from 1.
    """
    documents: dict[str, Document] = {}
    for number, where, data in json_lines(path, of="corpus", error=SettingError):
        try:
            text, title = data["text"], data.get("title") or ""
            if not isinstance(text, str) or not isinstance(title, str):
                raise TypeError
            name = str(number if data.get("id") is None else data["id"])
        except (TypeError, KeyError, AttributeError) as error:
            raise SettingError(
                f'{where}: a JSON object with a text under "text" is needed'
            ) from error
        if name in documents:
            raise SettingError(f"{where}: the id {name[:60]!r} occurs twice")
        documents[name] = Document(id=name, text=f"{title}\n{text}" if title else text)
    return tuple(documents.values())


def documents_of(corpus: str | Sequence[Document]) -> tuple[Document, ...]:
    """Return the documents of a file or of a sequence; raises SettingError if there are none."""
    if isinstance(corpus, str):
        return read_corpus(corpus)
    if not corpus or not all(isinstance(each, Document) for each in corpus):
        raise SettingError(
            "corpus: the path of a JSON Lines file is needed, or a list of documents"
        )
    if len({document.id for document in corpus}) < len(corpus):
        raise SettingError("corpus: two documents have the same id")
    return tuple(corpus)


CHARACTERS = 500
"""Default maximum number of characters of a document in a result."""
BETWEEN = "\n\n"
"""Text between two documents of a result."""
_BEGIN = re.compile(BETWEEN + r"(?=\[([^\]\n]+)\] )")


def listed(document: Document, characters: int = CHARACTERS) -> str:
    """Return a document as a result lists it: its id, and its first `characters` characters."""
    return f"[{document.id}] {document.text[:characters]}"


def divided(result: str, ids: Container[str]) -> list[str]:
    """Return the documents of a result of `Search`, each as `listed` returns it.

    Only the ids in `ids` begin a document, so that a document may have a line such as "[1] Note".
    """
    cuts = [found for found in _BEGIN.finditer(result) if found[1] in ids]
    begins = [0, *(found.end() for found in cuts)]
    ends = [*(found.start() for found in cuts), len(result)]
    return [result[begin:end] for begin, end in zip(begins, ends, strict=True)]


class Search(Tool):
    """Returns the beginnings of the documents nearest to a query, each with its id."""

    description = "Searches the documents and returns the best matches."

    def __init__(
        self,
        *,
        corpus: str | Sequence[Document],
        retriever: CorpusRetriever,
        count: int = 3,
        characters: int = CHARACTERS,
        seconds: float = 10.0,
    ) -> None:
        """Args:
        corpus: Path of a JSON Lines file, see `read_corpus`, or the documents.
        retriever: Ranks the documents: a service of the config.
        count: Number of documents in a result.
        characters: Maximum number of characters of each document in a result; by default 500.
        seconds: Time limit of a call.
        """
        if count < 1 or characters < 1:
            raise ValueError("count and characters are at least 1")
        self.documents = documents_of(corpus)
        self.texts = tuple(document.text for document in self.documents)
        self.retriever, self.count = retriever, count
        self.characters, self.seconds = characters, seconds

    def call(self, query: str) -> str:  # type: ignore[override]
        """Return the matches; raises ToolError for a query that is empty or too long."""
        return BETWEEN.join(listed(each, self.characters) for each in self.find(query))

    def find(self, query: str) -> list[Document]:
        """Return the whole documents; raises ToolError for a query that is empty or too long."""
        if not query.strip() or len(query) > LONGEST_QUERY:
            raise ToolError("bad_arguments", f"the query needs 1 to {LONGEST_QUERY} characters")
        found = self.retriever.top(query, self.texts, self.count)
        return [self.documents[index] for index in found]


class Read(Tool):
    """Returns the text of one document by its id. It reads the loaded corpus and no file."""

    description = "Returns the whole text of a document by its id."

    def __init__(self, *, corpus: str | Sequence[Document], seconds: float = 10.0) -> None:
        """Args:
        corpus: Path of a JSON Lines file, see `read_corpus`, or the documents.
        seconds: Time limit of a call.
        """
        self.documents = {document.id: document.text for document in documents_of(corpus)}
        self.seconds = seconds

    def call(self, id: str) -> str:  # type: ignore[override]
        """Return the text; raises ToolError if the corpus has no such document."""
        if id not in self.documents:
            raise ToolError("no_document", f"the corpus has no document {id[:60]!r}")
        return self.documents[id]
