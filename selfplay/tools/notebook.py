"""The notebook as a tool: entries that an agent writes, and searches in later turns."""

import json
from collections.abc import Iterable, Sequence
from typing import Literal

from selfplay.tools.search import LONGEST_QUERY, CorpusRetriever
from selfplay.tools.tool import Tool, ToolError
from selfplay.types import ToolCall

Action = Literal["add", "update", "delete", "search"]


class Notebook(Tool):
    """Keeps entries of one agent during an episode: adds, changes, deletes and searches them.

    The entries follow from the agent's earlier calls in the episode, so that branches and replays
    have their own. An agent sees only its own entries. Ids count the added entries from 1, and the
    id of a deleted entry is not used again.
    """

    description = (
        "Your notebook. add: keep a text. update: replace the text of an id. delete: forget an id. "
        "search: find the entries nearest to a text."
    )
    session = True

    def __init__(
        self,
        *,
        retriever: CorpusRetriever,
        count: int = 5,
        entries: int = 200,
        characters: int = 500,
        seconds: float = 10.0,
    ) -> None:
        """Args:
        retriever: Ranks the entries: a service of the config.
        count: Number of entries in the result of a search.
        entries: Largest number of entries at a time.
        characters: Maximum number of characters of an entry.
        seconds: Time limit of a call.
        """
        if min(count, entries, characters) < 1:
            raise ValueError("count, entries and characters are at least 1")
        self.retriever, self.count = retriever, count
        self.entries, self.characters, self.seconds = entries, characters, seconds

    def call(  # type: ignore[override]
        self, action: Action, text: str = "", id: str = "", earlier: Sequence[ToolCall] = ()
    ) -> str:
        """Return a line about the change, or the found entries.

        Raises ToolError with `full`, `no_entry` or `bad_arguments`.
        """
        texts, added = entries_after(earlier)
        if action in ("update", "delete") and id not in texts:
            raise ToolError("no_entry", f"no entry has the id {id[:20]!r}")
        if action == "delete":
            return f"deleted {id}"
        longest = LONGEST_QUERY if action == "search" else self.characters
        if not 0 < len(text.strip()) <= longest:
            raise ToolError("bad_arguments", f"the text needs 1 to {longest} characters")
        if action == "search":
            return self._found(text, texts)
        if action == "add" and len(texts) >= self.entries:
            raise ToolError("full", f"{self.entries} entries are the maximum; delete one first")
        return f"updated {id}" if action == "update" else f"added {added + 1}"

    def _found(self, query: str, texts: dict[str, str]) -> str:
        if not texts:
            return "(no entries)"
        ids, known = list(texts), list(texts.values())
        places = self.retriever.top(query, known, min(self.count, len(known)))
        return "\n".join(f"[{ids[place]}] {known[place]}" for place in places)


def entries_after(calls: Iterable[ToolCall]) -> tuple[dict[str, str], int]:
    """Return the texts by id after an agent's calls, and the number of entries ever added.

    Calls that failed changed nothing. The texts are in the order in which they were added.
    """
    texts: dict[str, str] = {}
    added = 0
    for each in calls:
        if each.error:
            continue
        given = json.loads(each.arguments)
        action, text = given["action"], str(given.get("text", "")).strip()
        if action == "add":
            added += 1
            texts[str(added)] = text
        elif action == "update":
            texts[given["id"]] = text
        elif action == "delete":
            del texts[given["id"]]
    return texts, added
