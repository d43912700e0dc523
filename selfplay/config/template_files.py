"""The text of chat templates and the absolute paths of model folders, which a run keeps in place of
the names in its config.

The config of a run keeps a chat template as text. A run reads the file once, when its config is
composed. So the prompts stay the same if the file changes or vanishes, on every machine, and the
config of a run names no template file on the machine of the person who opens it.

The config keeps a model's folder as an absolute path, so that a run can be continued and evaluated
from every working directory.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfplay.errors import ConfigError, one_line

KEY = "chat_template"
"""Key whose value is a template, or the name of a file with one."""
ENDING = ".jinja"
"""Ending of the name of such a file."""
LONGEST = 1_000_000
"""Largest number of bytes of a template."""
MODEL, TEACHER = "model", "teacher"
"""Keys whose value may be a folder."""
REWARD_MODEL = "arenas.questions.reward_model.RewardModel"
"""Service whose model may be a folder."""
_POLICIES = re.compile(r"policy|population\.(policy|(overrides|opponents)\.[^.]+)")
"""Keys of the settings of policies and of saved models."""
_TEACHERS = re.compile(rf"({_POLICIES.pattern})\.{TEACHER}")
"""Keys of teachers by role."""


def names_file(value: Any) -> bool:
    """Return True if the value of a `chat_template` is the name of a file, and no template."""
    return isinstance(value, str) and value.endswith(ENDING) and not set("{\n") & set(value)


def with_texts(settings: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return the settings with the text of each file that a `chat_template` names, and with the
    absolute path of each existing folder that the `model` or `teacher` of a policy, an opponent
    or a reward model names.

    Args:
        settings: A config as plain data.
        where: Key of `settings` in the config.

    Raises ConfigError, in one line that begins with the key, for a file that cannot be read.
    """
    found = {}
    for key, value in settings.items():
        place = f"{where}.{key}" if where else str(key)
        if isinstance(value, Mapping):
            value = with_texts(value, place)
        elif key == KEY and names_file(value):
            value = _text(value, place)
        elif _names_model(key, settings, where):
            value = _absolute(value)
        found[key] = value
    return found


def _names_model(key: str, settings: Mapping[str, Any], where: str) -> bool:
    """Return True if the value of a key of `settings` is a model of a policy, an opponent, a
    teacher or a reward model."""
    target = settings.get("_target_")
    if target is not None:
        return key == MODEL and target == REWARD_MODEL
    named = key in (MODEL, TEACHER) and _POLICIES.fullmatch(where)
    return bool(named or _TEACHERS.fullmatch(where))


def _absolute(model: Any) -> Any:
    """Return the absolute path of an existing folder; a name of a hub, or `~/...`, as it is."""
    named = isinstance(model, str) and model and os.path.isdir(model)
    return os.path.abspath(model) if named else model


def _text(path: str, where: str) -> str:
    try:
        file = Path(path).expanduser()
        if not file.is_file():
            raise ValueError("there is no file of this name")
        with file.open("rb") as opened:
            data = opened.read(LONGEST + 1)
        if len(data) > LONGEST:
            raise ValueError(f"longer than {LONGEST:,} bytes")
        text = data.decode("utf-8")
        if "${" in text:
            raise ValueError("it contains ${, which a config would replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise ConfigError(f"{where}: {path} cannot be read as a template ({reason})") from error
    return text
