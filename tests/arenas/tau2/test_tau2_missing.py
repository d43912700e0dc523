"""Test of tau2-bench without its package: the error says what to install."""

import sys

import pytest

from arenas.tau2.package import _package
from selfplay.errors import ConfigError


def test_a_missing_package_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tau2", *(each for each in sys.modules if each.startswith("tau2."))):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install 'selfplay\[tau2\]'") as caught:
        _package("environment.environment")
    assert "\n" not in str(caught.value)
