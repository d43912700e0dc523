"""The scripted user of tau2-bench: tells everything at once, and does what the agent asks for.

The package's user is a language model that reveals its scenario little by little, and may refuse.
This user needs no model: it tells the agent its whole scenario at once, agrees to every proposal,
and calls each of its own tools that the agent's words name. Rewards with it therefore cannot be
compared with published ones.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

AGREES = "Yes, please do what you propose."
"""Words of the user after an answer that names none of the user's tools."""
STOP, TRANSFER = "###STOP###", "###TRANSFER###"
ENDS = (STOP, TRANSFER, "###OUT-OF-SCOPE###")
"""The package's words with which a user leaves."""
TRANSFERS = "transfer_to_human_agents"
"""Name of the agent's tool after whose call the user leaves."""


def opening(task: Any) -> str:
    """Return the first words of the user: the whole scenario of the package's task."""
    return str(task.user_scenario.instructions)


def wanted(
    task: Any, words: str, tools: Sequence[str], made: Sequence[tuple[str, Mapping[str, Any]]]
) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the calls of the user's own tools that the agent's words name, in the words' order.

    The arguments are those of the first call of this tool in the task's solution that has not been
    made. If all have been made, the call has no arguments.

    Args:
        task: The package's task.
        words: The agent's words.
        tools: Names of the user's tools.
        made: The user's calls before.
    """
    solution = [
        (action.name, dict(action.arguments))
        for action in task.evaluation_criteria.actions or ()
        if action.requestor == "user"
    ]
    done, found = list(made), list[tuple[str, Mapping[str, Any]]]()
    for name in dict.fromkeys(re.findall(r"\w+", words)):
        if name not in tools:
            continue
        left = [call for call in solution if call[0] == name and call not in done]
        call = left[0] if left else (name, {})
        found.append(call)
        done.append(call)
    return found


def leaving(*, answers: int, called: Sequence[str], acted: bool) -> str | None:
    """Return the words with which the user leaves; None if the user stays.

    The user leaves after a call of `TRANSFERS`, and after a second or later answer if neither the
    agent has called a tool nor the user calls one now.

    Args:
        answers: Number of the agent's answers.
        called: Names of the agent's calls since the user's last words.
        acted: True if the user calls a tool now.
    """
    if TRANSFERS in called:
        return TRANSFER
    return STOP if answers > 1 and not called and not acted else None
