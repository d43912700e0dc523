"""Tests of conversations through arena, role, renderer, embedded engine and back."""

from itertools import pairwise
from typing import Any

import pytest
from transformers import PreTrainedModel

from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import END, START, build_model, build_tokenizer
from selfplay.role import Memory, Role
from selfplay.rollout.rollout import AgentSpec, Rollout
from selfplay.types import Episode, StopReason
from tests.helpers.chat_templates import QWEN3_THINKING
from tests.helpers.engine_requests import serving
from tests.helpers.talk import Talk, spec

DROPS_EARLIER_ANSWERS = (
    "{% for m in messages %}{% if m['role'] != 'assistant' or loop.last %}"
    + START
    + "{{ m['role'] }}\n{{ m['content'] }}"
    + END
    + "{% endif %}{% endfor %}{% if add_generation_prompt %}"
    + START
    + "assistant\n{% endif %}"
)


def talk(
    model: PreTrainedModel, renderer: ChatRenderer, memory: Memory, **settings: Any
) -> Episode:
    role = Role(template="round {{ text }}", system="be brief", memory=memory)
    agent_spec = AgentSpec(role=role, policy="p", renderer=renderer, **settings)
    playing = Rollout(
        arena=Talk,
        agent_specs={"a": agent_spec, "b": agent_spec},
        engines={"p": serving({"p": model}, {"p": renderer.end_ids})},
    )
    (episode,) = playing.run([spec(seed=5, rounds=4)])
    (again,) = playing.run([spec(seed=5, rounds=4)])
    assert episode == again
    return episode


@pytest.mark.parametrize("max_tokens", [2, 20])
def test_a_prompt_continues_the_prompt_and_completion_before_it(
    model: PreTrainedModel, renderer: ChatRenderer, max_tokens: int
) -> None:
    reasons = set()
    played = talk(model, renderer, "conversation", max_tokens=max_tokens).turns
    for agent in ("a_0", "b_0", "b_1"):
        turns = [turn for turn in played if turn.agent == agent]
        assert len(turns) == 4
        for turn, following in pairwise(turns):
            kept = (*turn.prompt_ids, *turn.completion_ids)
            assert following.prompt_ids[: len(kept)] == kept
            new = renderer.tokenizer.decode(following.prompt_ids[len(kept) :])
            cut = turn.stop_reason is StopReason.LENGTH
            assert new == (END if cut else "") + "\n" + (
                f"{START}user\nround {following.messages[0]['content'][6:]}{END}\n"
                f"{START}assistant\n"
            )
            reasons.add(turn.stop_reason)
        assert [m["role"] for m in turns[0].messages] == ["system", "user"]
        assert [m["role"] for m in turns[1].messages] == ["user"]
    assert StopReason.LENGTH in reasons or max_tokens > 2


def test_both_stop_reasons_occur(model: PreTrainedModel, renderer: ChatRenderer) -> None:
    turns = talk(model, renderer, "conversation", max_tokens=20).turns
    assert {turn.stop_reason for turn in turns} == set(StopReason)


def test_without_memory_every_prompt_is_fresh(
    model: PreTrainedModel, renderer: ChatRenderer
) -> None:
    for turn in talk(model, renderer, "none", max_tokens=4).turns:
        assert turn.prompt_ids == renderer.start(turn.messages)
        assert [m["role"] for m in turn.messages] == ["system", "user"]


@pytest.mark.parametrize("keeps", [False, True])
def test_thinking_that_the_prompt_opens_is_in_the_text_of_a_turn(keeps: bool) -> None:
    tokenizer = QWEN3_THINKING.tokenizer()
    renderer = ChatRenderer(tokenizer, keep_thinking=keeps)
    model = build_model(
        len(tokenizer), seed=0, hidden=16, layers=1, heads=2, intermediate=16, positions=2048
    )
    closing = tokenizer.convert_tokens_to_ids("</think>")
    turns = talk(model.eval(), renderer, "conversation", max_tokens=120).turns
    continued = set()
    for agent in ("a_0", "b_0", "b_1"):
        mine = [turn for turn in turns if turn.agent == agent]
        for turn in mine:
            assert turn.text == renderer.text(turn.completion_ids)
            assert turn.text.startswith("<think>\n")
        for turn, following in pairwise(mine):
            kept = (*turn.prompt_ids, *turn.completion_ids)
            goes_on = following.prompt_ids[: len(kept)] == kept
            assert goes_on == (keeps or closing not in turn.completion_ids)
            continued.add(goes_on)
    assert continued == ({True} if keeps else {True, False})


def test_a_template_that_drops_answers_begins_a_new_sequence(
    model: PreTrainedModel,
) -> None:
    tokenizer = build_tokenizer(["<think>", "</think>", "<answer>", "</answer>"])
    tokenizer.chat_template = DROPS_EARLIER_ANSWERS
    renderer = ChatRenderer(tokenizer)
    turns = [
        t for t in talk(model, renderer, "conversation", max_tokens=4).turns if t.agent == "a_0"
    ]
    asked = [f"{START}user\nround {2 * n}{END}" for n in range(4)]
    for number, turn in enumerate(turns):
        expected = f"{START}system\nbe brief{END}" + "".join(asked[: number + 1])
        assert tokenizer.decode(list(turn.prompt_ids)) == expected + f"{START}assistant\n"
