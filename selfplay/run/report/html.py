"""HTML pages from the package's templates.

A page loads nothing from outside. The text of a model is untrusted: it is escaped, characters that
hide or reorder text are made visible, and the page's Content-Security-Policy is a second barrier.
"""

import base64
import hashlib
import json
import unicodedata
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from selfplay.errors import RunError
from selfplay.run.formatting import duration, number, percent, words
from selfplay.run.untrusted import write_text_confined


def render(name: str, /, *, styles: Sequence[str] = (), **fields: Any) -> str:
    """Render a template of the package as a whole page; `styles` are further style sheets."""
    style = "".join(template_text(sheet) for sheet in (*styles, "report.css"))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    template = _environment().get_template(name)
    return template.render(style=Markup(style), style_hash=Markup(digest), **fields)


def template_text(name: str) -> str:
    """Read a file from the folder of the templates."""
    text = (resources.files("selfplay.run.report") / "templates" / name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")


def write_page(target: Path, page: str, *, root: Path | None = None) -> Path:
    """Write a page completely or leave the file unchanged; return `target`.

    Nothing is written outside `root`, whatever links it holds: `root` is the run folder or, if
    None, the folder of `target`. Raises RunError, in one line, if the page cannot be written.
    """
    try:
        # A lone surrogate, which JSON can contain, must not prevent the whole page.
        return write_text_confined(root or target.parent, target, page)
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror})") from error


def visible(value: Any) -> Any:
    """Return text in which characters that hide or reorder other characters are made visible.

    Numbers and markup of the package are returned unchanged. Any other value, such as a path, is
    converted to text.
    """
    if isinstance(value, Markup | int | float) or value is None:
        return value
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    code = ord(character)
    if character in "\n\t":
        return character
    # Cf holds the bidirectional overrides; its two joiners are needed to write words.
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return f"\u27e8U+{code:04X}\u27e9" if hidden and code not in (0x200C, 0x200D) else character


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("selfplay.run.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible,
    )
    environment.filters.update(
        duration=duration, number=number, percent=percent, words=words, fact=_fact, dotted=_dotted
    )
    return environment


def _dotted(name: str) -> Markup:
    """Return a dotted name that a browser may break after each dot."""
    return Markup(".<wbr>").join(escape(visible(part)) for part in name.split("."))


def _fact(value: Any) -> str:
    """Format a value of the totals or the versions."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value)
    try:
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    except RecursionError:
        return "nested too deeply"
