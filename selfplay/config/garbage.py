"""Python's search for unreachable cycles of objects."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 100_000
"""Number of new objects after which the youngest ones are searched; Python's own number is 700."""


def collect_rarely() -> None:
    """Search for unreachable cycles less often.

    A step makes millions of objects for its episodes, which live until it ends. The search through
    them took a quarter of the processor time of a tiny model's games (docs/performance.md).
    """
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])


@contextmanager
def present_objects_kept() -> Iterator[None]:
    """A context in which the search leaves out all objects that exist when it begins.

    Libraries, models and a run's configuration are half a million objects, which live as long as
    the run. If most objects are left out already, as in a context around this one, the context
    changes nothing.
    """
    if gc.get_freeze_count() > len(gc.get_objects()):  # Python 3.12 itself leaves out a few
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
