"""Tests of the optional members of example sources for warm starts."""

from collections.abc import Iterator
from random import Random

import pytest

from arenas.mixture.demonstrations import MixtureDemonstrations
from selfplay.arena.demonstrations import ExampleSource, optional_members
from selfplay.learner.fine_tune import FineTune
from selfplay.models.warmstart import WarmStart
from selfplay.types import Demonstration


class Plain:
    """A source without a base class and without optional members."""

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        raise NotImplementedError

    def pieces(self) -> list[str]:
        return []


class Asking(Plain):
    """A source with an optional member, but without the base class that the member needs."""

    def questions(self) -> list[str]:
        return []


class Prepared(Plain, ExampleSource):
    """A source that reports its preparation."""

    def prepare(self, report: object) -> None:
        assert callable(report)
        report("prepared")


def test_a_plain_source_has_the_defaults() -> None:
    found, reported = optional_members(Plain()), list[str]()
    found.prepare(reported.append)
    assert (found.turns, found.summary(), list(found.questions()), reported) == (1, "", [], [])


def test_a_source_with_the_base_class_is_used_itself() -> None:
    source, reported = Prepared(), list[str]()
    assert optional_members(source) is source
    WarmStart(demonstrations=source, roles={}).prepare(reported.append)
    FineTune(examples=source).prepare(reported.append)
    MixtureDemonstrations(parts={"a": source, "b": Plain()}, shares={"a": 1.0, "b": 1.0}).prepare(
        reported.append
    )
    assert reported == ["prepared"] * 3


def test_a_member_without_the_base_class_is_refused_in_one_line() -> None:
    words = r"^Asking\.questions has no effect; derive the class from \S+\.ExampleSource$"
    with pytest.raises(ValueError, match=words):
        WarmStart(demonstrations=Asking(), roles={})
    with pytest.raises(ValueError, match=words):
        FineTune(examples=Asking())
    with pytest.raises(ValueError, match=words):
        MixtureDemonstrations(parts={"a": Asking()}, shares={"a": 1.0})
