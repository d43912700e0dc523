"""Classes that need trust are refused under every key that names code, not only as targets."""

from typing import Any

import pytest

from arenas.external.imports import make_env
from selfplay.config import trust
from selfplay.config.instantiate import import_target
from selfplay.errors import ConfigError

NAME = "arenas.questions.taskset.VerifiersTaskset"
PROCESS = "arenas.questions.taskset.TasksetProcess"
ADVICE = r"no function for settings; .* --trust arenas\.questions\.taskset"


@pytest.mark.parametrize("name", [NAME, PROCESS])
@pytest.mark.parametrize("key", ["function", "script"])
def test_a_guarded_class_is_no_function_of_an_untrusted_config(name: str, key: str) -> None:
    assert isinstance(import_target(name, "tool", key=key), type)
    with trust.limited(trust.TrustLimit()), pytest.raises(ConfigError, match=ADVICE):
        import_target(name, "tool", key=key)
    with trust.limited(trust.TrustLimit(packages=("arenas.questions",))):
        assert isinstance(import_target(name, "tool", key=key), type)


def test_a_guarded_class_is_no_env_of_an_untrusted_config() -> None:
    given: dict[str, Any] = {"id": "x", "python": "/bin/false"}
    with trust.limited(trust.TrustLimit()), pytest.raises(ConfigError, match=ADVICE):
        make_env(NAME, given)
    with trust.limited(trust.TrustLimit()), pytest.raises(ConfigError, match=ADVICE):
        make_env(PROCESS, {"python": "/bin/false", "settings": {}, "load_seconds": 1.0})
