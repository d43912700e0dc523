"""Tests of error messages: hints, one-line texts and code locations."""

from collections.abc import Callable
from pathlib import Path

import pytest

from selfplay.errors import (
    HERE,
    ConfigError,
    import_package,
    nearest,
    one_line,
    printable,
    with_place,
)


def test_a_key_that_is_a_number_has_a_hint_too() -> None:
    assert nearest(7, ["seed", "steps"]) == "choose from: seed, steps"
    assert nearest(10, ["100", "200"]) == "did you mean '100'?"


def test_an_error_is_printed_without_control_characters() -> None:
    assert printable("a\x1b[2J\nb\u202ec") == "a?[2J b?c"
    assert one_line(ValueError("x\ny\x07")) == "ValueError: x y?"


def test_a_sentence_in_a_key_error_has_no_quotes() -> None:
    assert one_line(KeyError("game_v0: no agent 'x'")) == "KeyError: game_v0: no agent 'x'"
    assert one_line(KeyError("side")) == "KeyError: 'side'"


def test_a_package_that_cannot_be_imported_is_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half_there.py").write_text("import of_another_package")
    with pytest.raises(ConfigError, match=r"^game: needs the package 'of_another_package'; pip"):
        import_package("half_there", "games", "game")
    (tmp_path / "too_old.py").write_text("from json import of_another_version")
    with pytest.raises(ConfigError, match=r"^game: too_old cannot be imported: ImportError: "):
        import_package("too_old", "games", "game")


def raised(folder: Path, *, inside: str) -> Exception:
    """Return an error that the file `inside` raises when `own.py` in `folder` calls it."""

    def function(file: str, body: str, **known: object) -> Callable[[], object]:
        names = dict(known)
        exec(compile(f"def run():\n    {body}", file, "exec"), names)
        made: Callable[[], object] = names["run"]  # type: ignore[assignment]
        return made

    own = function(str(folder / "own.py"), "inner()", inner=function(inside, "return 1 / 0"))
    with pytest.raises(ZeroDivisionError) as caught:
        own()
    error = caught.value
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)  # without the call in this test


def test_the_place_of_an_error_is_in_code_of_the_author(tmp_path: Path) -> None:
    for inside in ("arenas/games/kuhn.py", "roles/player/__init__.py", "selfplay/rng.py"):
        error = raised(tmp_path, inside=str(HERE.parent / inside))
        assert with_place(error).endswith(f"({tmp_path}/own.py, line 2)"), inside


def test_a_shipped_arena_is_named_if_no_code_of_an_author_ran(tmp_path: Path) -> None:
    inside = str(HERE.parent / "arenas/games/kuhn.py")
    error = raised(tmp_path, inside=inside)
    assert error.__traceback__ is not None
    alone = error.with_traceback(error.__traceback__.tb_next)
    assert with_place(alone).endswith("arenas/games/kuhn.py, line 2)")
