"""Tests of chat files: the examples in them, and one-line errors for invalid files."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from selfplay.errors import ConfigError
from selfplay.learner.chat_file import ChatFile
from selfplay.learner.fine_tune_example import ChatExample
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_tokenizer

ASKED = {"role": "user", "content": "a?"}
SAID = {"role": "assistant", "content": "b"}


def chat_file(path: Path, *lines: Any) -> ChatFile:
    file = path / "chats.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("\n".join(texts))
    return ChatFile(path=str(file))


def test_every_message_of_the_assistant_is_learned_after_those_before_it(tmp_path: Path) -> None:
    system = {"role": "system", "content": "s"}
    chat = [system, ASKED, SAID, {**ASKED, "content": "c?"}, {**SAID, "content": "d"}]
    last = [ASKED, {**SAID, "weight": 0}, ASKED, {**SAID, "weight": 1, "name": "x"}]
    source = chat_file(tmp_path, {"messages": chat, "step": 3}, "", {"messages": last})
    found = [([m["content"] for m in e.messages], e.completion) for e in source.examples()]
    assert found == [(["s", "a?"], "b"), (["s", "a?", "b", "c?"], "d"), (["a?", "b", "a?"], "b")]
    assert source.summary() == f"3 examples in {tmp_path}/chats.jsonl"
    assert source.examples()[2].where.endswith("chats.jsonl, line 3")


def test_the_fingerprint_is_that_of_the_contents(tmp_path: Path) -> None:
    first = chat_file(tmp_path, {"messages": [ASKED, SAID]}).fingerprint()
    assert chat_file(tmp_path, {"messages": [ASKED, SAID]}).fingerprint() == first
    assert chat_file(tmp_path, {"messages": [SAID, ASKED]}).fingerprint() != first


def test_control_tokens_of_a_file_are_ordinary_characters() -> None:
    renderer = ChatRenderer(build_tokenizer([]))
    text = "x<|im_end|>\ud800"
    example = ChatExample(messages=(ASKED,), completion=text, where="here")
    prompt, completion = example.ids(renderer)
    assert prompt == renderer.start([ASKED]) and completion[-1] == renderer.end_ids[0]
    assert not {*completion[:-1]} & {*renderer.end_ids}
    assert renderer.text(completion) == "x<|im_end|>\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2: not valid JSON"),
        ("[" * 100_000, "line 2: not valid JSON"),
        ("\x00", "line 2: not valid JSON"),
        ("7", "line 2: no chat"),
        ({"prompt": "a", "completion": "b"}, "line 2: no chat"),
        ({"messages": []}, "line 2: no chat"),
        ({"messages": ["a"]}, "line 2, message 1: no message"),
        ({"messages": [{"role": "users", "content": "a"}]}, "unknown role 'users'; did you mean"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "unknown role"),
        ({"messages": [{"role": "user"}]}, "line 2, message 1: content is NoneType; only text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "content is list"),
        ({"messages": [ASKED, {**SAID, "weight": 0.5}]}, "message 2: weight 0.5 does not fit"),
        ({"messages": [ASKED, {**SAID, "weight": True}]}, "message 2: weight True does not fit"),
        ({"messages": [SAID]}, "line 2: the assistant speaks first"),
    ],
)
def test_a_line_that_is_no_chat_is_named(line: Any, complaint: str, tmp_path: Path) -> None:
    source = chat_file(tmp_path, {"messages": [ASKED, SAID]}, line)
    with pytest.raises(ConfigError, match=complaint) as caught:
        source.examples()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert str(caught.value).startswith(f"{tmp_path}/chats.jsonl, line 2")


def test_unreadable_files_and_files_without_examples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no message of an assistant to learn"):
        chat_file(tmp_path, {"messages": [ASKED]}).examples()
    with pytest.raises(ConfigError, match=r"nowhere: cannot be read \(No such file"):
        ChatFile(path=str(tmp_path / "nowhere")).fingerprint()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe: is a pipe, not a regular file"):
        ChatFile(path=str(tmp_path / "pipe")).fingerprint()


def test_a_chat_that_the_template_refuses_is_named() -> None:
    tokenizer = build_tokenizer([])
    plain = str(tokenizer.chat_template)
    refusal = "{% if messages[0].content == 's' %}{{ raise_exception('no s') }}{% endif %}"
    tokenizer.chat_template = refusal + plain
    example = ChatExample(
        messages=({"role": "user", "content": "s"},), completion="b", where="f, line 7"
    )
    with pytest.raises(ConfigError, match=r"f, line 7: policy: its chat template refuses .*no s"):
        example.ids(ChatRenderer(tokenizer))
