"""Tests of the note on a role that takes the thinking of its model for a move."""

import pytest

from roles.player import Player
from selfplay.models.opened_thinking import thinking_note
from selfplay.models.renderer import ByteRenderer, Renderer
from selfplay.role import Role, TaggedRole, ThinkingRole
from selfplay.rollout.rollout import AgentSpec, Rollout
from selfplay.run.activity import ACTIVITY
from tests.rollout.test_rollout import Talk


class Opened(ByteRenderer):
    """A renderer whose generation prompt opens a block of thinking."""

    def text(self, completion: object) -> str:
        return "<think>\n" + super().text(completion)  # type: ignore[arg-type]


class Broken(Role):
    def parse(self, text: str) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("role", "noted"),
    [
        (Player(game="kuhn"), True),
        (Role(), True),
        (ThinkingRole(thinking=False), True),
        (Player(game="kuhn", skip_thinking=True), False),
        (ThinkingRole(), False),
        (TaggedRole(), False),
        (Broken(), False),
    ],
)
def test_a_role_with_the_thinking_in_its_action_is_noted(role: Role, noted: bool) -> None:
    found = thinking_note(role, Opened(), where="roles.player")
    assert bool(found) is noted
    assert not noted or found.startswith("roles.player: the chat template of its policy opens <thi")
    assert not thinking_note(role, ByteRenderer(), where="roles.player")


def test_a_rollout_notes_such_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = list[str]()
    monkeypatch.setattr(ACTIVITY, "notes", notes)
    opened: Renderer = Opened()
    agent_spec = AgentSpec(role=Role(), policy="p", renderer=opened)
    Rollout(arena=Talk, agent_specs={"a": agent_spec}, engines={})
    assert [note.partition(":")[0] for note in notes] == ["roles.a"]
