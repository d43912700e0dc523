"""Scripts of the repository as modules."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from tests.helpers.repository import ROOT


def script(name: str) -> Any:
    """Load `scripts/NAME.py` as the module NAME, under which other code can then import it."""
    spec = spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
