"""Tests of exact results at tic-tac-toe, with policies whose results are known."""

from pathlib import Path
from typing import Any

import pytest

from arenas.games.tic_tac_toe import TicTacToe, free, optimal
from tests.helpers.scripts import script


@pytest.fixture(scope="module")
def exact() -> Any:
    return script("tic_tac_toe_exact")


def uniform(exact: Any, squares: Any, legal: float = 1.0) -> dict[str, dict[int, float]]:
    """Return the policy that plays one of `squares(board)`, and with 1 - `legal` no legal move."""
    return {
        board: {at: legal / len(squares(board)) for at in squares(board)}
        for board in exact.boards()
    }


def test_each_board_with_a_player_to_move_is_an_information_set_of_that_player(exact: Any) -> None:
    found = exact.information_sets(TicTacToe())
    assert len({each.key for each in found}) == len(found) == 4520
    for each in found:
        first = each.key.count("X") == each.key.count("O")
        assert each.agent == ("player_0" if first else "player_1")
        assert each.observation.text == each.key
        assert list(each.actions) == [str(at + 1) for at in free(each.key)]


def test_random_play_has_the_known_chances_and_loses_to_a_best_response(exact: Any) -> None:
    found = exact.measured(uniform(exact, free))
    x_wins, o_wins, draws = 737 / 1260, 121 / 420, 8 / 63  # of two random players
    assert found.outcomes["random", "X"] == pytest.approx((x_wins, draws, o_wins))
    assert found.outcomes["random", "O"] == pytest.approx((o_wins, draws, x_wins))
    assert found.exploitability > 0.9
    assert found.illegal == pytest.approx(0.0)


def test_perfect_play_always_draws_against_minimax_and_cannot_be_exploited(exact: Any) -> None:
    found = exact.measured(uniform(exact, optimal))
    for mark in "XO":
        assert found.outcomes["minimax", mark] == pytest.approx((0.0, 1.0, 0.0))
        assert found.outcomes["random", mark][2] == pytest.approx(0.0)
    assert found.exploitability == pytest.approx(0.0)


def test_one_wrong_reply_against_minimax_and_against_a_best_response(
    exact: Any,
) -> None:
    policy = uniform(exact, optimal)
    assert policy["X........"] == {4: 1.0}  # only the centre holds against a corner
    policy["X........"] = {1: 1.0}
    found = exact.measured(policy)
    assert found.outcomes["minimax", "O"] == pytest.approx((0.0, 8 / 9, 1 / 9))
    assert found.outcomes["minimax", "X"] == pytest.approx((0.0, 1.0, 0.0))
    assert found.exploitability == pytest.approx(0.5)  # 1 as O, 0 as X


def test_an_illegal_move_loses(exact: Any) -> None:
    found = exact.measured(uniform(exact, optimal, legal=0.0))
    assert found.illegal == pytest.approx(1.0)
    assert found.exploitability == pytest.approx(1.0)
    assert found.outcomes["minimax", "X"] == pytest.approx((0.0, 0.0, 1.0))


def test_sets_have_means_and_differences_paired_by_seed(
    exact: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Probability that a move is legal, by run.
    legal = {"a-0": 1.0, "a-1": 0.5, "b-1": 0.0, "b-0": 0.5}
    for name in legal:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(
            f"seed: {name[-1]}\npopulation: {{}}\nroles: {{}}\nwarmstart: null\n"
        )

    def played(folder: Path, **_: Any) -> tuple[int, list[Any]]:
        return 5, [uniform(exact, optimal, legal[folder.name])]

    monkeypatch.setattr(exact, "policies_of", played)
    exact.main([f"a={tmp_path}/a-*", f"b={tmp_path}/b-*"])
    printed = capsys.readouterr().out
    rows = [line.split("  ") for line in printed.splitlines()]
    cells = {row[0]: [cell for cell in row[1:] if cell] for row in rows}
    # As X it has five moves, so that the chance to draw is 1, 1/32, 0 and 1/32.
    assert cells["X against minimax, drawn: a"][0].strip() == "0.516"
    assert cells["X against minimax, drawn: b"][0].strip() == "0.016"
    # The differences are -31/32 in seed 0 and -1/32 in seed 1; 12.706 * 15/32 is 5.956.
    difference = cells["X against minimax, drawn: b less a"]
    assert [each.strip() for each in difference[:2]] == ["-0.500", "-6.46 to 5.46"]
    assert f"{tmp_path}/a-1 step 5: exploitability" in printed


def test_a_checkpoint_in_the_name_of_a_run_precedes_the_option(
    exact: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 0\npopulation: {}\nroles: {}\nwarmstart: null\n")
    measured: list[int | None] = []

    def played(folder: Path, *, step: int | None, **_: Any) -> tuple[int, list[Any]]:
        assert folder == run
        measured.append(step)
        return step or 0, [uniform(exact, optimal)]

    monkeypatch.setattr(exact, "policies_of", played)
    exact.main([f"start={run}@start", f"early={run}@40", f"late={run}", "--step", "90"])
    assert measured == [0, 40, 90]
    measured.clear()
    exact.main([f"early={tmp_path}/r*@40", f"late={run}"])
    exact.main([f"{run}@40", str(run)])
    assert measured == [40, None, 40, None]


@pytest.mark.parametrize("illegal", ["retry", "random_legal"])
def test_a_run_in_which_an_illegal_move_does_not_lose_is_refused(exact: Any, illegal: Any) -> None:
    lost = TicTacToe()
    assert exact.measurable(lost, Path("run")) is lost
    with pytest.raises(SystemExit, match=f"^run: arena.illegal is {illegal}, .*=lose$"):
        exact.measurable(TicTacToe(illegal=illegal), Path("run"))


def test_a_run_without_a_set_is_printed_alone(
    exact: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exact, "policies_of", lambda *_, **__: (3, [uniform(exact, optimal)]))
    exact.main(["run"])
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "run step 3: exploitability 0.000, illegal 0.0000 of a move"
    assert len(rest) == 4
