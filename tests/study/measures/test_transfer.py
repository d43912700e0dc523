"""Transfer between two games of levers, with players whose gains are known."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from selfplay.engines.scripted import constant
from selfplay.errors import ConfigError
from selfplay.study.matches import StudyMatches
from selfplay.study.measures import transfer
from selfplay.study.players import Reference, StudyPlayer
from tests.helpers.scripted_games import games, levers, player

PAYS = {"one": (1.0, 0.25), "two": (0.5, 2.0)}
"""Run to the pay of the two levers in its game."""
LEVERS = {
    **{"one@9": "lever0", "one@start": "lever1"},
    **{"two@9": "lever1", "two@start": "lever0"},
}
"""Player to the lever that it pulls."""


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the games of runs by two games of levers, with trained and untrained players."""

    @contextmanager
    def games_of(run: Path, *, episodes: int | None, **_: Any) -> Iterator[StudyMatches]:
        arena = levers(PAYS[run.name])
        made = games(arena, {name: constant(lever) for name, lever in LEVERS.items()})

        def admit(references: Sequence[Reference], *, any_role: bool) -> list[StudyPlayer]:
            assert any_role
            names = [f"{each.run.name}@{'start' if each.start else 9}" for each in references]
            return [player(name, arena) for name in names]

        monkeypatch.setattr(made, "admit", admit)
        yield made

    monkeypatch.setattr(transfer, "games_of", games_of)
    monkeypatch.setattr(Reference, "missing", lambda self, roles: [])


def test_the_gain_is_that_of_each_trained_player_over_its_own_start(played: None) -> None:
    result = transfer.study([Reference(run=Path(name)) for name in PAYS])
    (table,) = result.tables
    assert table.columns == ["", "one@9: return", "two@9: return"]
    assert [list(row) for row in table.rows] == [["one@9", 0.75, -1.5], ["two@9", -0.75, 1.5]]
    assert [(each.name, each.value, each.null) for each in result.estimates] == [
        ("one@9 in one@9: return", 0.75, 0.0),
        ("two@9 in one@9: return", -0.75, 0.0),
        ("one@9 in two@9: return", -1.5, 0.0),
        ("two@9 in two@9: return", 1.5, 0.0),
    ]


def test_a_single_run_has_no_other_game() -> None:
    with pytest.raises(ConfigError, match="a single run has no other game"):
        transfer.study([Reference(run=Path("one"))])
