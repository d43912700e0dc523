"""The folders in which processes that this library starts look for modules."""

import os
from pathlib import Path


def module_path() -> str:
    """Return the value of PYTHONPATH: the folder of this package, and the value that was given.

    A process that starts with `python -P` and this value finds this package, and no file of the
    current folder hides a module of Python from it.
    """
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([str(Path(__file__).parents[2]), *([given] if given else [])])
