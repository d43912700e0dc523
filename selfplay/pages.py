"""HTML pages from our templates.

A page refers to nothing outside itself. What a model wrote is hostile markup: it is escaped,
characters that hide or reorder text are made visible, and the page's own Content-Security-Policy
would stop whatever got past that.
"""

import base64
import hashlib
import json
import os
import unicodedata
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from selfplay.errors import RunError
from selfplay.figures import duration, number, words


def render(name: str, /, **fields: Any) -> str:
    """One of our templates, filled in, as a whole page."""
    style = template_text("report.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    template = _environment().get_template(name)
    return template.render(style=Markup(style), style_hash=Markup(digest), **fields)


def template_text(name: str) -> str:
    """A file that lies beside the templates."""
    text = (resources.files("selfplay") / "templates" / name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")


def write_page(target: Path, page: str) -> Path:
    """Write a page so that it is either whole or as it was; RunError if that cannot be."""
    draft = target.with_name(f"{target.name}.part")
    try:
        # A lone surrogate, which JSON can smuggle in, must not cost the whole page.
        draft.write_text(page, encoding="utf-8", errors="replace", newline="\n")
        os.replace(draft, target)
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror})") from error
    return target


def visible(value: Any) -> Any:
    """Text with every character shown that would hide or reorder others; else the value itself."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    if value.isascii() and value.isprintable():
        return value
    return "".join(_shown(character) for character in value)


def _shown(character: str) -> str:
    code = ord(character)
    if character in "\n\t":
        return character
    # Cf holds the bidirectional overrides; the two joiners in it are needed to write words.
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return f"\u27e8U+{code:04X}\u27e9" if hidden and code not in (0x200C, 0x200D) else character


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("selfplay"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible,
    )
    environment.filters.update(duration=duration, number=number, words=words, fact=_fact)
    return environment


def _fact(value: Any) -> str:
    """A value of the totals or the versions, as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
