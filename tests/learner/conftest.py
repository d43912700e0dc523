"""Fixtures: ranks that the tests of a module share."""

from collections.abc import Iterator

import pytest

from tests.helpers.learner_processes import Forks, forked


@pytest.fixture(scope="module")
def two() -> Iterator[Forks]:
    with forked(2) as forks:
        yield forks


@pytest.fixture(scope="module")
def four() -> Iterator[Forks]:
    with forked(4) as forks:
        yield forks


@pytest.fixture(scope="module")
def three() -> Iterator[Forks]:
    with forked(3) as forks:
        yield forks
