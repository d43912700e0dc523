"""Tests of roles: prompts, parsers and hostile texts."""

import random
import time
from typing import Any

import pytest

from roles.advised import Advised
from roles.player import Player
from roles.proposer import Proposer
from roles.solver import Solver
from selfplay.errors import ConfigError, SettingError
from selfplay.role import Role, TaggedRole, ThinkingRole, fenced, without_thinking
from selfplay.tools import Toolbox
from selfplay.tools.calculator import Calculator
from selfplay.types import LONGEST_TEXT, InvalidAction, Observation

ROLES = [Role(), TaggedRole(), ThinkingRole(), Solver(style="terse"), Proposer(style="full")]


def test_an_advised_role_keeps_its_tools() -> None:
    tools = Toolbox(tools={"calculator": Calculator()})
    assert Advised(role=Player(game="kuhn", tools=tools)).tools is tools


def test_a_template_sees_text_and_fields() -> None:
    role = Role(template="{{ text }} {{ price }} {{ fields.price }}", system="be brief")
    messages = role.prompt(Observation(text="buy", fields={"price": 3}))
    assert messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "buy 3 3"},
    ]


@pytest.mark.parametrize(
    "template",
    ["{{ nothing }}", "{% if %}", "{{ text.__class__.__mro__ }}", "{{ text + 1 }}", "{{ 1 / 0 }}"],
)
def test_a_template_that_cannot_render_is_a_config_error(template: str) -> None:
    with pytest.raises(ConfigError, match="template"):
        Role(template=template).prompt(Observation(text="x"))


def test_an_error_of_a_template_names_the_role_and_the_nearest_field() -> None:
    role, seen = Role(template="{{ secrett }}"), Observation(fields={"secret": "red"})
    with pytest.raises(ConfigError, match=r"^Role: template cannot render: .secrett. is undefined"):
        role.prompt(seen)
    role.where = "roles.critic"
    words = r"^roles\.critic \(Role\): template cannot render: .* did you mean 'secret'\?$"
    with pytest.raises(ConfigError, match=words):
        role.prompt(seen)
    role = Role(template="{% if %}")
    role.where = "roles.critic"
    with pytest.raises(ConfigError, match=r"^roles\.critic \(Role\): template does not parse"):
        role.prompt(seen)


@pytest.mark.parametrize(
    ("text", "action", "rest"),
    [
        (
            "I think. <action_start>raise 2<action_end> Good luck!",
            "raise 2",
            "I think.  Good luck!",
        ),
        ("<action_start>\n fold \n<action_end>", "fold", ""),
        ("<action_start><action_end>", "", ""),
    ],
)
def test_the_text_between_the_tags_is_the_action(text: str, action: str, rest: str) -> None:
    assert TaggedRole().split(text) == (action, rest)
    assert TaggedRole().parse(text) == action


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fold", "no_action"),
        ("<action_start>fold", "unclosed_action"),
        ("fold<action_end>", "unclosed_action"),
        ("<action_end>fold<action_start>", "unclosed_action"),
        ("<action_start>a<action_end><action_start>b<action_end>", "several_actions"),
    ],
)
def test_missing_or_wrong_tags_are_an_invalid_action(text: str, reason: str) -> None:
    with pytest.raises(InvalidAction, match=reason):
        TaggedRole().parse(text)


def test_the_tags_are_configurable() -> None:
    assert TaggedRole(opening="[[", closing="]]").parse("hm [[go]]") == "go"
    for opening, closing in [("|", "|"), ("", "]"), ("[", ""), ("<a", "<a>")]:
        with pytest.raises(ConfigError):
            TaggedRole(opening=opening, closing=closing)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think>a</think><answer>'b'</answer>", "'b'"),
        (" <think></think>\n <answer>\n```output\n'b'\n```\n</answer>\n", "'b'"),
        ("<think>a</think><answer>```python\ndef f(a):\n    return a\n```</answer>", None),
    ],
)
def test_a_solver_answers_bare_or_in_one_fence(text: str, action: str | None) -> None:
    assert Solver(style="terse").parse(text) == (action or "def f(a):\n    return a")


@pytest.mark.parametrize(
    "text",
    [
        "'b'",
        "<answer>'b'</answer>",
        "<think>a</think><answer>'b'</answer> and more",
        "<think>a</think><answer></answer>",
        "<think>a</think><answer>x</answer><answer>y</answer>",
        "<think>a</think><answer>x</answer><think>b</think><answer>y</answer>",
        "<think>a</think><answer>x</think><answer>y</answer>",
        "<think>a</think>b</think><answer>y</answer>",
        "<think><think>a</think><answer>y</answer>",
        "<think></answer><answer>",
        "<think><answer>y</answer>",
        "<think>a</think><answer>y",
        "<answer>y</answer></think>",
        "<think>a</think><answer>```input\n1\n```\n```input\n2\n```</answer>",
        "<think>a</think><answer>```input\n1</answer>",
    ],
)
def test_an_answer_in_another_format_is_an_invalid_action(text: str) -> None:
    with pytest.raises(InvalidAction):
        Solver(style="terse").parse(text)


def test_fences_are_returned_in_order() -> None:
    assert fenced("```input\n1\n```\nx\n```input\n2\n```", "input") == ["1", "2"]


@pytest.mark.parametrize("role", ROLES, ids=lambda role: type(role).__name__)
def test_a_million_hostile_characters_raise_nothing_but_invalid_action(role: Role) -> None:
    rng = random.Random(0)
    noise = "".join(chr(rng.randrange(0x110000)) for _ in range(1_000_000))
    hostile = [
        noise,
        "<think>" * 140_000,
        "<think>" + "<answer>" * 120_000 + "</answer>",
        "<think>" + "</think><answer>" * 60_000,
        "<think>" + "</think> <answer>" * 60_000 + "</answer>",
        "<think></think>" + " \n" * 400_000 + "<answer>" + "</answer> " * 10_000,
        "\ud800\x00\u202e" * 300_000,
        "<think>x</think><answer>" + "```input\n" * 100_000,
        "<action_start>" * 70_000,
        "<think></think><answer>" + " " * 900_000,
        "<|im_end|><|im_start|>system\n" * 30_000,
        "<think></think><answer>```python\n" + "`" * 900_000 + "</answer>",
    ]
    began = time.monotonic()
    for text in hostile:
        try:
            assert isinstance(role.parse(text), str)
        except InvalidAction as reason:
            assert str(reason)
        role.metrics(text)
    # The bound is wide: a parser that reads the text once per tag would take hours.
    assert time.monotonic() - began < 60


def test_an_action_is_read_as_an_arena_plays_it() -> None:
    assert Role().parse_completion("x" * LONGEST_TEXT)[0] == "x" * LONGEST_TEXT
    assert Role().parse_completion("x" * (LONGEST_TEXT + 1)) == (None, {"invalid": "too_long"})
    assert Role().parse_completion("a\ud800")[0] == "a\ufffd"


def test_a_prompt_has_no_lone_surrogates() -> None:
    (message,) = Role().prompt(Observation(text="a\ud800b"))
    assert message["content"] == "a\ufffdb"


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think>\nI pass?\n</think>\n\npass", "pass"),
        ("pass", "pass"),
        ("no tag opens</think>bet", "bet"),
        ("[THINK]x[/THINK] bet", "bet"),
        ("<think>a</think><think>b</think> bet", "bet"),
        ("<think>I have not finished", None),
        ("<think>a</think><think>b", None),
    ],
)
def test_a_role_can_skip_the_thinking(text: str, action: str | None) -> None:
    role = Player(game="kuhn", skip_thinking=True)
    invalid = {} if action else {"invalid": "unfinished_thinking"}
    assert role.parse_completion(text) == (action, invalid)
    assert Player(game="kuhn").parse_completion(text)[0] == text.strip()


def test_tags_that_the_thinking_quotes_are_not_the_action() -> None:
    quoted = "<action_start>raise<action_end>"
    text = f"<think>Shall I say {quoted}?</think>{quoted}"
    assert TaggedRole().parse_completion(text) == (None, {"invalid": "several_actions"})
    assert TaggedRole(skip_thinking=True).parse_completion(text) == ("raise", {})
    assert Advised(role=TaggedRole(skip_thinking=True)).parse_completion(text) == ("raise", {})


def test_an_argument_replaces_a_setting_of_the_class() -> None:
    box = Toolbox(tools={"calculator": Calculator()})

    class Mine(Role):
        skip_thinking = True
        tools = box

    own = Mine()
    assert own.parse_completion("<think>a</think> bet") == (" bet", {}) and own.tools is box
    other = Toolbox(tools={"calculator": Calculator()})
    replaced = Mine(skip_thinking=False, tools=other)
    assert not replaced.skip_thinking and replaced.tools is other
    assert not Role().skip_thinking and Role().tools is None
    assert Advised(role=own).skip_thinking and Advised(role=own).tools is box


def test_tools_of_a_class_that_are_no_toolbox_are_refused() -> None:
    class Mine(Role):
        tools: Any = [Calculator()]

    with pytest.raises(ConfigError, match="Mine: tools is a toolbox"):
        Mine()


def test_a_role_that_reads_the_thinking_cannot_skip_it() -> None:
    with pytest.raises(ConfigError, match="Solver: it reads the thinking"):
        Solver(style="terse", skip_thinking=True)


def test_many_tags_of_thinking_are_skipped_quickly() -> None:
    began = time.monotonic()
    assert without_thinking("<think></think>" * 300_000 + "x") == "x"
    assert time.monotonic() - began < 10


def counted(role: Role, monkeypatch: pytest.MonkeyPatch) -> list[Observation]:
    """Return a list that grows by each observation that the role renders from now on."""
    rendered, render = list[Observation](), role._render

    def count(observation: Observation) -> str:
        rendered.append(observation)
        return render(observation)

    monkeypatch.setattr(role, "_render", count)
    return rendered


def test_an_equal_observation_is_not_rendered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    role = Role(template="{{ text }} {{ legal | join(' ') }}", system="s")
    rendered = counted(role, monkeypatch)
    first, again = (
        role.prompt(Observation(text="a", fields={"legal": ["b", "c"], "n": None}))
        for _ in range(2)
    )
    assert first == again and first[1]["content"] == "a b c" and len(rendered) == 1
    first[1]["content"] = "changed"
    assert role.prompt(rendered[0])[1]["content"] == "a b c"
    role.prompt(Observation(text="a", fields={"legal": ["b", "c"], "n": 0}))
    assert len(rendered) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), ("1", 1), ([1], (1,)), ([True], [1]), (0.0, -0.0), ([[1], []], [[], [1]])],
)
def test_values_that_are_equal_or_look_alike_are_not_confused(one: Any, other: Any) -> None:
    role = Role(template="{{ x }}{{ x is string }}")
    for value in (one, other, one):
        (message,) = role.prompt(Observation(text="", fields={"x": value}))
        assert message["content"] == f"{value}{isinstance(value, str)}"


def test_the_order_of_fields_counts() -> None:
    role = Role(template="{{ fields.keys() | join }}")
    texts = [
        role.prompt(Observation(text="", fields=dict.fromkeys(each)))[0] for each in ("ab", "ba")
    ]
    assert [text["content"] for text in texts] == ["ab", "ba"]


@pytest.mark.parametrize(
    ("template", "fields"),
    [
        ("{{ text }}{{ [1, 2] | random }}", {}),
        ("{{ text }}", {"x": {}}),
        ("{{ text }}", {"x": [1] * 65}),
        ("{{ text }}", {"x": "y" * 8193}),
        ("{{ text * 9000 }}", {}),
    ],
)
def test_messages_that_are_not_kept_are_rendered_each_time(
    template: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role keeps no message of a random template, a field of another type, or a long value."""
    role = Role(template=template)
    rendered = counted(role, monkeypatch)
    for _ in range(2):
        role.prompt(Observation(text="a", fields=fields))
    assert len(rendered) == 2


def test_a_role_keeps_a_limited_number_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfplay.role.MOST_KEPT", 3)
    role = Role(template="{{ text }}")
    for number in range(20):
        assert role.prompt(Observation(text=str(number)))[0]["content"] == str(number)
        assert len(role._rendered) <= 3


@pytest.mark.parametrize("name", ["template", "system"])
def test_a_class_whose_template_is_no_text_is_refused(name: str) -> None:
    kind = type("Wordless", (Role,), {name: None})
    with pytest.raises(SettingError, match=f"^{name} of Wordless is None, not a text$"):
        kind()


def test_an_invalid_action_without_a_reason_has_a_name() -> None:
    def refuse(self: Role, text: str) -> str:
        raise InvalidAction

    kind = type("Mute", (Role,), {"parse": refuse})
    assert kind().parse_completion("x") == (None, {"invalid": "unnamed"})
