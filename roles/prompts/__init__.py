"""Prompt templates (Jinja), by role and style."""

from importlib.resources import files
from pathlib import Path

from selfplay.errors import ConfigError, nearest


def load(role: str, style: str) -> str:
    """The template `<role>_<style>.jinja` of this folder, or the file that `style` is a path of."""
    if style.endswith(".jinja"):
        if not Path(style).is_file():
            raise ConfigError(f"role {role}: no template file {style!r}")
        return Path(style).read_text(encoding="utf-8")
    found = files(__package__) / f"{role}_{style}.jinja"
    if not found.is_file():
        names = [entry.name for entry in files(__package__).iterdir()]
        styles = [n.removeprefix(f"{role}_")[:-6] for n in names if n.startswith(f"{role}_")]
        raise ConfigError(f"role {role}: no prompt style {style!r}; {nearest(style, styles)}")
    return found.read_text(encoding="utf-8")
