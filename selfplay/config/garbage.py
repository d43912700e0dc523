"""Python's search for unreachable cycles of objects."""

import gc

NEW_OBJECTS = 20_000
"""Number of new objects after which the youngest ones are searched; Python's own number is 700."""


def collect_rarely() -> None:
    """Search for unreachable cycles less often.

    A step makes millions of objects for its episodes, which live until it ends. The search through
    them took a quarter of the processor time of a tiny model's games (docs/performance.md).
    """
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
