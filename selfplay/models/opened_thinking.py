"""The note about a role that takes the thinking of its model as a part of the action."""

from selfplay.models.renderer import Renderer
from selfplay.role import THINKING, BrokenRole, Role


def thinking_note(role: Role, renderer: Renderer, *, where: str) -> str:
    """Return a line for the user if the chat template opens a block of thinking, and the role takes
    this block as a part of its action; else "".

    A role that skips thinking or reads it, or that finds its action between tags, gets no line.

    Args:
        role: The role.
        renderer: Renderer of the policy that plays it.
        where: Config key of the role.
    """
    opening = renderer.text(())
    tags = next((pair for pair in THINKING if pair[0] == opening.strip()), None)
    if tags is None:
        return ""
    try:
        action, _ = role.parse_completion(f"{opening}x\n{tags[1]}\n\ny")
    except BrokenRole:  # the failed episodes of the run name the fault
        return ""
    if action is None or tags[0] not in action:
        return ""
    return (
        f"{where}: the chat template of its policy opens {tags[0]}, and this role takes the "
        f"thinking as a part of the action; set {where}.skip_thinking=true to leave it out"
    )
