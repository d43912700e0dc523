"""Prompt templates (Jinja), each in the folder of its role."""

from importlib.resources import files
from pathlib import Path

from selfplay.errors import ConfigError, nearest


def load(name: str, style: str) -> str:
    """Return the template `roles/*/<name>_<style>.jinja`, or the file at the path `style`.

    `name` is the name of the role or of its game. Raises ConfigError if there is no template.
    """
    if style.endswith(".jinja"):
        if not Path(style).is_file():
            raise ConfigError(f"role {name}: no template file {style!r}")
        return Path(style).read_text(encoding="utf-8")
    folders = [folder for folder in files("roles").iterdir() if folder.is_dir()]
    templates = {file.name: file for folder in folders for file in folder.iterdir()}
    if template := templates.get(f"{name}_{style}.jinja"):
        return template.read_text(encoding="utf-8")
    prefix = f"{name}_"
    names = [file for file in templates if file.startswith(prefix) and file.endswith(".jinja")]
    styles = [file.removeprefix(prefix).removesuffix(".jinja") for file in names]
    raise ConfigError(f"role {name}: no prompt style {style!r}; {nearest(style, styles)}")
