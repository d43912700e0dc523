"""Tests of the context that keeps present objects out of garbage collection."""

import gc
import subprocess
import sys

import pytest

from tests.helpers.repository import ROOT

CODE = """
import gc, weakref
from selfplay.config.garbage import present_objects_kept


class Node:
    pass


def cycle():
    node = Node()
    node.itself = node
    return node, weakref.ref(node)


own = gc.get_freeze_count()  # Python 3.12 leaves out a few objects itself
before, seen_before = cycle()
dead_before = cycle()[1]
try:
    with present_objects_kept():
        assert dead_before() is None, "what was unreachable before is freed"
        frozen = gc.get_freeze_count()
        assert frozen > own + 1000
        with present_objects_kept():
            assert gc.get_freeze_count() <= frozen
        assert gc.get_freeze_count() > own + 1000, "the inner context does not end the outer one"
        del before
        dead_within = cycle()[1]
        gc.collect()
        assert dead_within() is None, "new cycles are found"
        assert seen_before() is not None, "present objects are left out"
        raise KeyError
except KeyError:
    pass
assert gc.get_freeze_count() < own + 1000
gc.collect()
assert seen_before() is None, "present objects are collected again after the context"
"""


def test_present_objects_are_left_out_and_new_cycles_are_found() -> None:
    # This needs a new process: in this one the objects of the tests are already left out.
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_context_keeps_what_was_left_out_before() -> None:
    """The context calls neither `freeze` nor `unfreeze`.

    The test does not count the left-out objects, because some may be freed in the meantime.
    """
    from selfplay.config.garbage import present_objects_kept

    gc.freeze()
    try:
        with pytest.MonkeyPatch.context() as patch:
            calls: list[str] = []
            for name in ("freeze", "unfreeze"):
                patch.setattr(gc, name, lambda name=name: calls.append(name))
            with present_objects_kept():
                pass
        assert not calls and gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()
