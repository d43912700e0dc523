"""The study of behaviour: planted strategies and known equilibria."""

import json
from pathlib import Path

import pytest

from arenas.games.kuhn import Kuhn
from arenas.games.matrix import raw_env
from roles.player import Player
from selfplay.errors import ConfigError
from selfplay.study.equilibrium import solve
from selfplay.study.measures import behaviour
from selfplay.study.measures.behaviour import Solved, _add_equilibrium
from selfplay.study.measures.exploitability import known_game
from selfplay.study.plots import CurvePlot
from selfplay.types import Status
from tests.helpers.planted_usage import code, episode, repeated, turn, write_step

TIT_FOR_TAT = {"": 0.9, "CC": 0.95, "CD": 0.1, "DC": 0.85, "DD": 0.2}
STAYS = {"": 0.5, "CC": 0.7, "CD": 0.4, "DC": 0.3, "DD": 0.6}


@pytest.fixture
def unsolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solve no game, because a made-up run has no arena to build."""
    monkeypatch.setattr(behaviour, "_solve", lambda run, solved: None)


def test_planted_memory_one_vectors_are_within_their_intervals(
    tmp_path: Path, unsolved: None
) -> None:
    planted = {"first_0": TIT_FOR_TAT, "second_0": STAYS}
    names = {"C": "cooperate", "D": "defect"}
    inside = []
    for step in range(1, 6):
        repeated(tmp_path, step, planted, games=150, rounds=12)
        found = behaviour.study(tmp_path, step=step)
        seats = {(each["agent"], each["kind"]): each for each in found.more["seats"]}
        for agent, vector in planted.items():
            table = seats[agent, "answer"]["tables"][0]["cells"]
            cells = {(cell["view"], cell["action"]): cell for cell in table}
            for state, chance in vector.items():
                cell = cells[" / ".join(names[each] for each in state), "cooperate"]
                inside.append(cell["ci_low"] <= chance <= cell["ci_high"])
                assert cell["ci_high"] - cell["ci_low"] < 0.3
                assert abs(cell["value"] - chance) < 0.2
    # 50 intervals at 95 %: with a probability of 1 %, 43 or fewer contain the true value.
    assert len(inside) == 50 and sum(inside) >= 44
    titles = [table.title for table in found.tables]
    assert any("after the last moves" in title for title in titles)
    json.dumps(found.to_json(), allow_nan=False)


def test_a_planted_strategy_is_within_its_intervals(tmp_path: Path, unsolved: None) -> None:
    planted = {"J": {"x": 0.25, "y": 0.75}, "K": {"x": 1.0, "y": 0.0}}
    code(tmp_path, 1, planted, kind="move")
    found = behaviour.study(tmp_path, step=1)
    (seat,) = found.more["seats"]
    cells = {(c["view"], c["action"]): c for c in seat["tables"][0]["cells"]}
    assert cells["J", "y"]["ci_low"] <= 0.75 <= cells["J", "y"]["ci_high"]
    assert cells["K", "x"]["value"] == 1.0 and ("K", "y") not in cells
    (situation, _) = found.more["situations"]
    assert situation["legal"] == ["x", "y"] and situation["equilibrium"] is None


def test_records_without_legal_moves_are_refused(tmp_path: Path) -> None:
    code(tmp_path, 1, {"n": {"x": 1.0}})
    with pytest.raises(ConfigError, match="lists legal moves"):
        behaviour.study(tmp_path)


def test_the_equilibrium_of_kuhn_poker_is_the_known_one() -> None:
    pytest.importorskip("pyspiel")
    solved = Solved()
    _add_equilibrium(Kuhn(), {"player": Player(game="kuhn", style="terse")}, solved)
    bets = {place: chances["bet"] for place, chances in solved.equilibrium.items()}
    assert len(bets) == 12
    # player_1 has one equilibrium strategy (Kuhn 1950); player_0 has one for each alpha.
    second = {"J pass": 1 / 3, "Q pass": 0, "K pass": 1, "J bet": 0, "Q bet": 1 / 3, "K bet": 1}
    for view, chance in second.items():
        assert bets["player_1", view] == pytest.approx(chance, abs=0.03)
    alpha = bets["player_0", "J"]
    assert 0 <= alpha <= 1 / 3 + 0.03
    assert bets["player_0", "K"] == pytest.approx(3 * alpha, abs=0.06)
    assert bets["player_0", "Q"] == pytest.approx(0, abs=0.03)
    assert bets["player_0", "Q pass bet"] == pytest.approx(alpha + 1 / 3, abs=0.06)


def test_a_game_without_a_constant_sum_is_not_solved() -> None:
    pytest.importorskip("pyspiel")
    with pytest.raises(ConfigError, match="constant sum"):
        solve(*known_game(raw_env()))
    solved = Solved()
    _add_equilibrium(raw_env(rounds=3), {}, solved)
    assert not solved.equilibrium and solved.notes[0].startswith("no equilibrium: ")


def test_the_last_stage_of_a_truncated_episode_is_not_played_again(tmp_path: Path) -> None:
    """The record has both moves of the first round and one move of the second."""
    legal = ("cooperate", "defect")
    turns = [
        turn(agent, "", "defect", stage, legal=legal)
        for stage, agent in ((0, "player_0"), (0, "player_1"), (1, "player_0"))
    ]
    arena = raw_env(rounds=3)
    write_step(tmp_path, 1, [episode(turns, 0, status=Status.TRUNCATED)])
    found = behaviour._reached(tmp_path, arena, {"player": Player(game="matrix", style="terse")})
    assert [each.agent for each in found.values()] == ["player_0", "player_1"]
    write_step(tmp_path, 2, [episode(turns[:2], 0, status=Status.TRUNCATED)])
    assert len(behaviour._reached(tmp_path, arena, {"player": Player(game="matrix")})) == 2


def test_a_situation_seen_rarely_has_no_row_and_no_picture(tmp_path: Path, unsolved: None) -> None:
    """One view has 30 uses, and 90 views have one use each, as in games with many facts."""
    seen = ["Round 1."] * 30 + [f"Round 2, you gave {number}." for number in range(90)]
    for step in (1, 2):
        turns = [
            episode([turn("a_0", saw, "xy"[n % 2], 0, legal=("x", "y", "z"))], n)
            for n, saw in enumerate(seen)
        ]
        write_step(tmp_path, step, turns)
    found = behaviour.study(tmp_path)
    first, second, counts = found.tables
    assert [row[:2] for row in first.rows] == [row[:2] for row in second.rows] == [["Round 1.", 30]]
    assert list(first.columns) == ["view", "uses", "x", "y"]
    assert [row[3:5] for row in counts.rows] == [[90, 90], [90, 90]]
    assert any("180 situations with 180 uses, seen fewer than 20 times" in n for n in found.notes)
    curves = [each for each in found.drawings if "by view" in each.title]
    assert isinstance(curves[0], CurvePlot) and list(curves[0].series) == ["Round 1."]
    assert len(found.more["seats"][0]["tables"][0]["cells"]) == 92, "the JSON has all situations"
    assert len(behaviour.study(tmp_path, least=1).tables[0].rows) == 40
    none = behaviour.study(tmp_path, least=31)
    assert any(n.startswith("no situation was seen at least 31 times") for n in none.notes)
    assert not any("by view" in each.title for each in none.drawings)


def test_games_of_many_seats_have_at_most_twelve_pictures(tmp_path: Path, unsolved: None) -> None:
    legal = ("x", "y", "z")
    turns = [
        turn(f"seat_{seat}", "Go:", legal[(n + seat) % 3], seat, legal=legal)
        for n in range(20)
        for seat in range(5)
    ]
    write_step(tmp_path, 1, [episode(turns, 0)])
    found = behaviour.study(tmp_path)
    assert len(found.drawings) == 12
    titles = [each.title for each in found.drawings]
    assert sum("entropy" in title for title in titles) == 5, "each seat keeps its first pictures"
    assert any("pictures left out: 8" in note for note in found.notes)
