"""Tests of the tools of the library: calculator, Python, search, reading, functions, notebook."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from arenas.memory.retrieval import BM25
from selfplay.config.instantiate import check
from selfplay.sandbox import Executor
from selfplay.tools import Tool, Toolbox, ToolError
from selfplay.tools.calculator import Calculator
from selfplay.tools.call_format import ParsedCall
from selfplay.tools.function import Function
from selfplay.tools.notebook import Notebook
from selfplay.tools.python import Python
from selfplay.tools.search import Read, Search
from selfplay.types import ToolCall
from tests.helpers.repository import ROOT


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12 * (3 + 4)", "84"),
        ("7 / 2", "3.5"),
        ("-2 ** 2", "-4"),
        ("2 ** -1", "0.5"),
        ("sqrt(16) + max(1, 2)", "6"),
        ("round(pi, 2)", "3.14"),
        ("round(1234, -2)", "1200"),
        ("round(2.5)", "2"),
        (" 1_000 % 7", "6"),
    ],
)
def test_the_calculator(expression: str, value: str) -> None:
    assert Calculator().answer({"expression": expression}) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("9 ** 9 ** 9", "raised"),
        ("2 ** 4000 * 2 ** 4000", "raised"),
        ("1e308 * 10 ** 400", "raised"),
        ("(-1) ** 0.5", "raised"),
        ("sqrt(-1)", "raised"),
        ("round(5, -10 ** 7)", "raised"),
        ("1 +", "syntax"),
        ("'a' * 9", "syntax"),
        ("True + 1", "syntax"),
        ("x", "syntax"),
        ("__import__('os')", "syntax"),
        ("(1).__class__", "syntax"),
        ("max(*[1], key=2)", "syntax"),
        ("(" * 400, "syntax"),
        ("-" * 400 + "1" + "+1" * 200, "bad_arguments"),
    ],
)
def test_the_calculator_refuses_the_rest(expression: str, reason: str) -> None:
    with pytest.raises(ToolError) as found:
        Calculator().answer({"expression": expression})
    assert found.value.reason == reason


def test_arguments_are_checked_against_the_signature() -> None:
    tool = Calculator()
    assert tool.parameters == {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
        "additionalProperties": False,
    }
    for wrong in ({}, {"expression": 3}, {"expression": "1", "more": 2}):
        with pytest.raises(ToolError) as found:
            tool.answer(wrong)
        assert found.value.reason == "bad_arguments"


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    made = Executor(workers=1)
    yield made
    made.close()


def test_python_prints_and_returns_the_last_value(executor: Executor) -> None:
    tool = Python(executor=executor)
    assert tool.answer({"code": "x = 6\nprint('six')\nx * 7"}) == "six\n42"
    assert tool.answer({"code": "x = 1"}) == "(no output)"


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        ("print('so far')\n1 / 0", "raised", "ZeroDivisionError: division by zero\nso far"),
        ("def f(:", "syntax", "SyntaxError"),
        ("while True: pass", None, ""),
        ("open('/etc/passwd')", "raised", ""),
        ("import os; os._exit(0)", "exited", ""),
    ],
)
def test_python_failures_have_reasons(
    executor: Executor, code: str, reason: str | None, words: str
) -> None:
    with pytest.raises(ToolError) as found:
        Python(executor=executor).answer({"code": code})
    # On a busy machine the wall clock may end a program before its processor time.
    assert found.value.reason in ((reason,) if reason else ("timeout", "stalled"))
    assert words in found.value.message


def test_python_keeps_only_the_beginning_of_a_long_output(executor: Executor) -> None:
    tool = Python(executor=executor, characters=100)
    assert tool.answer({"code": "for _ in range(10000): print('x' * 100)"}) == "x" * 100


def test_a_session_defines_the_names_of_earlier_programs(executor: Executor) -> None:
    tool = Python(executor=executor, session=True)
    first = "x = 6\nprint('once')"
    earlier = [ToolCall(name="python", arguments=json.dumps({"code": first}), result="once")]
    assert tool.answer({"code": "print(x * 7)"}, earlier) == "42"
    broken = [*earlier, ToolCall(name="python", arguments='{"code": "x = ("}', error="syntax")]
    assert tool.answer({"code": "x"}, broken) == "6"
    with pytest.raises(ToolError):
        Python(executor=executor).answer({"code": "print(x)"}, earlier)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    rows = [
        {"id": "paris", "title": "Paris", "text": "Paris is the capital of France."},
        {"id": "rome", "title": "Rome", "text": "Rome is the capital of Italy. " + "x" * 1000},
        {"text": "A cat sleeps."},
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return str(path)


def test_search_finds_the_nearest_documents(corpus: str) -> None:
    tool = Search(corpus=corpus, retriever=BM25(), count=2, characters=60)
    found = tool.answer({"query": "capital of Italy"}).split("\n\n")
    assert len(found) == 2 and found[0].startswith("[rome] Rome\nRome is the capital")
    assert all(len(each) <= 60 + len("[paris] ") for each in found)
    for query in ("  ", "x" * 3000):
        with pytest.raises(ToolError, match="bad_arguments"):
            tool.answer({"query": query})


def test_reading_stays_inside_the_corpus(corpus: str) -> None:
    tool = Read(corpus=corpus)
    assert tool.answer({"id": "paris"}) == "Paris\nParis is the capital of France."
    assert tool.answer({"id": "3"}) == "A cat sleeps."
    for name in ("../../etc/passwd", corpus, "/etc/passwd"):
        with pytest.raises(ToolError, match="no_document"):
            tool.answer({"id": name})


def test_a_corpus_may_have_any_characters_and_empty_keys(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    rows = [{"text": "one\u2028two\x85three"}, {"id": None, "title": None, "text": "four"}]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\r\n".join(lines), encoding="utf-8")
    assert Read(corpus=str(path)).documents == {"1": "one\u2028two\x85three", "2": "four"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "^corpus: .* is empty"),
        ('{"text": "a"}\n{', "line 2: not JSON"),
        ("[1]", "line 1"),
        ('{"text": null}', "line 1: .* a text under"),
        ('{"text": "x", "title": 3}', "line 1"),
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}', "occurs twice"),
    ],
)
def test_a_faulty_corpus_is_an_error_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "faulty.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=problem):
        Read(corpus=str(path))


def shifted(word: str, by: int = 1, upper: bool = False) -> str:
    """Shift the letters of a word.

    Not shown.
    """
    found = "".join(chr(ord(each) + by) for each in word)
    return found.upper() if upper else found


def listed(count: int) -> list[int]:
    return list(range(count))


def starred(*words: str) -> str:
    return "".join(words)


def test_a_function_of_the_users() -> None:
    tool = Function(function="tests.tools.test_tools.shifted")
    assert tool.description == "Shift the letters of a word."
    assert tool.parameters["required"] == ["word"] and tool.text_parameter is None
    assert tool.answer({"word": "ab", "by": 2}) == "cd"
    with pytest.raises(ToolError, match="bad_arguments"):
        tool.answer({"word": "ab", "by": "two"})
    assert Function(function="tests.tools.test_tools.listed").answer({"count": 2}) == "[0, 1]"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("tests.tools.test_tools.shiftet", "shifted"),
        ("no_such_package.f", "no module"),
        ("tests.tools.test_tools.starred", "tool 'starred': .* has no name in a call"),
    ],
)
def test_a_function_that_cannot_be_called(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Function(function=name)


def test_a_toolbox_refuses_what_it_cannot_use() -> None:
    class Bomb(Calculator):
        description = "x" * 30_000

    for name, tool, problem in (
        ("think", Calculator(), "usable name"),
        ("a b", Calculator(), "usable name"),
        ("c", Bomb(), "20000"),
        ("c", shifted, "is not a tool"),
        ("c", Calculator(seconds=0), "seconds"),
    ):
        with pytest.raises(ValueError, match=problem):
            Toolbox(tools={name: tool})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="at least one"):
        Toolbox(tools={})
    with pytest.raises(ValueError, match="at least 1"):
        Toolbox(tools={"c": Calculator()}, max_calls=0)


def test_an_unknown_tool_gets_the_nearest_name() -> None:
    box = Toolbox(tools={"calculator": Calculator()})
    refused = box.refused(ParsedCall(name="calculater"), used=0)
    assert refused is not None and refused.error == "unknown_tool"
    assert "did you mean 'calculator'?" in refused.result


def test_a_tool_sees_its_own_earlier_calls() -> None:
    class Counting(Tool):
        session = True

        def call(self, earlier: Sequence[ToolCall]) -> str:  # type: ignore[override]
            return str(len(earlier))

    tool = Counting()
    assert tool.parameters.get("properties", {}) == {}
    assert tool.answer({}, [ToolCall(name="counting")]) == "1"


def remembered(tool: Notebook, *calls: dict[str, str]) -> list[str]:
    """Return the answers to successive calls; that of a failed call is its reason."""
    earlier: list[ToolCall] = []
    for arguments in calls:
        try:
            result, error = tool.answer(arguments, earlier), ""
        except ToolError as failed:
            result, error = failed.reason, failed.reason
        made = json.dumps(arguments)
        earlier.append(ToolCall(name="notebook", arguments=made, result=result, error=error))
    return [each.result for each in earlier]


def test_a_notebook_follows_from_the_calls_of_its_agent() -> None:
    tool = Notebook(retriever=BM25(), count=1, entries=2, characters=20)
    assert remembered(
        tool,
        {"action": "search", "text": "cat"},
        {"action": "add", "text": "The cat is black. "},
        {"action": "add", "text": "The dog is old."},
        {"action": "add", "text": "A third entry."},
        {"action": "search", "text": "the cat"},
        {"action": "update", "id": "1", "text": "The cat is white."},
        {"action": "search", "text": "cat"},
        {"action": "delete", "id": "1"},
        {"action": "delete", "id": "1"},
        {"action": "search", "text": "cat"},
        {"action": "add", "text": "The cat is back."},
    ) == [
        "(no entries)",
        "added 1",
        "added 2",
        "full",
        "[1] The cat is black.",
        "updated 1",
        "[1] The cat is white.",
        "deleted 1",
        "no_entry",
        "[2] The dog is old.",
        "added 3",
    ]
    assert remembered(tool, {"action": "search", "text": "cat"}) == ["(no entries)"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"action": "add", "text": " "},
        {"action": "add", "text": "x" * 21},
        {"action": "search", "text": "x" * 2001},
        {"action": "forget", "text": "x"},
        {"action": "update", "text": "x", "id": 1},
        {"text": "x"},
    ],
)
def test_a_call_of_a_notebook_that_does_not_fit_is_refused(arguments: dict[str, object]) -> None:
    tool = Notebook(retriever=BM25(), characters=20)
    earlier = [
        ToolCall(name="notebook", arguments='{"action": "add", "text": "a"}', result="added 1")
    ]
    with pytest.raises(ToolError) as refused:
        tool.answer(arguments, earlier)
    assert refused.value.reason == "bad_arguments"


def test_the_tool_in_the_documentation_works() -> None:
    page = (ROOT / "docs/tools.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(compile(block, "tools.md", "exec"), {"__name__": "tools_page"})


def test_the_configs_in_the_documentation_are_valid() -> None:
    page = (ROOT / "docs/tools.md").read_text(encoding="utf-8")
    roles, server = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    tools = yaml.safe_load(roles)["roles"]["solver"]["tools"]
    own = {name: node for name, node in tools["tools"].items() if name != "weather"}
    check({**tools, "tools": own}, provided=("executor", "retriever"))
    check(yaml.safe_load(server)["tools"])
