"""Meta-games whose equilibria, transitive parts and cycles are worked out by hand."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from random import Random

import numpy as np
import pytest

from arenas.games.matrix import Matrix, raw_env
from selfplay.arena import Arena
from selfplay.engines.scripted import choice, constant
from selfplay.errors import ConfigError, RunError
from selfplay.league.empirical_game import (
    NoEquilibriumError,
    alpha_rank,
    cycles,
    effective_diversity,
    nash,
    sizes,
)
from selfplay.study.measures import payoffs
from selfplay.study.measures.matchups import Matchups
from selfplay.study.measures.payoffs import settled, study
from selfplay.study.players import StudyPlayer
from selfplay.study.result import Result, Table
from selfplay.study.stats.bootstrap import Draws, Estimate
from selfplay.types import Action, Observation, Task
from tests.helpers.scripted_games import games, levers, player

pytest.importorskip("scipy")

RPS = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
ORDER = np.array([[0.0, 1, 2], [-1, 0, 1], [-2, -1, 0]])


def part(payoffs: np.ndarray) -> float:
    ordered, every = sizes(payoffs)
    return float(ordered / every)


def antisymmetric(rng: np.random.Generator, count: int) -> np.ndarray:
    upper = np.triu(rng.standard_normal((count, count)), 1)
    return np.asarray(upper - upper.T)


def test_the_nash_mixture_of_most_entropy() -> None:
    np.testing.assert_allclose(nash(RPS), 1 / 3, atol=1e-9)
    np.testing.assert_allclose(nash(ORDER), [1, 0, 0], atol=1e-9)
    np.testing.assert_allclose(ORDER @ nash(ORDER), [0, -1, -2], atol=1e-9)
    np.testing.assert_allclose(nash(np.zeros((4, 4))), 1 / 4)
    # Two players that beat the third one have equal weights if they are even, else one has all.
    even = np.array([[0.0, 0, 1], [0, 0, 2], [-1, -2, 0]])
    np.testing.assert_allclose(nash(even), [0.5, 0.5, 0], atol=1e-6)
    np.testing.assert_allclose(nash(np.array([[0, 1e-3], [-1e-3, 0]])), [1, 0], atol=1e-9)


def test_copies_of_a_player_share_its_weight() -> None:
    places = [0, 0, 1, 2]
    copied = RPS[np.ix_(places, places)]
    np.testing.assert_allclose(nash(copied), [1 / 6, 1 / 6, 1 / 3, 1 / 3], atol=1e-6)
    np.testing.assert_allclose(copied @ nash(copied), 0, atol=1e-9)


def test_a_mixture_is_an_equilibrium_whatever_the_order_of_the_players() -> None:
    rng = np.random.default_rng(0)
    for count in range(2, 9):
        payoffs = antisymmetric(rng, count)
        mixture, places = nash(payoffs), rng.permutation(count)
        assert mixture.sum() == pytest.approx(1) and (payoffs @ mixture).max() < 1e-6
        moved = nash(3.0 * payoffs[np.ix_(places, places)])
        np.testing.assert_allclose(moved, mixture[places], atol=1e-6)


def test_alpha_rank_in_closed_form() -> None:
    found = alpha_rank(np.array([[0.0, 1], [-1, 0]]), alpha=0.1, size=20)
    np.testing.assert_allclose(found, [0.8807970780, 0.1192029220], atol=1e-9)
    local = alpha_rank(np.array([[0.0, 1], [-1, 0]]), alpha=0.1 * 2 * 19 / 20, size=20)
    assert local[0] == pytest.approx(0.978119, abs=1e-6)
    for alpha in (1e-3, 1.0, 1e3):
        assert alpha_rank(RPS, alpha=alpha) == pytest.approx(1 / 3)
    np.testing.assert_allclose(alpha_rank(ORDER, alpha=1e3), [1, 0, 0], atol=1e-9)
    both = alpha_rank(np.stack([RPS, ORDER]), alpha=1e3)
    assert both[0] == pytest.approx(1 / 3) and both[1] == pytest.approx([1, 0, 0])


def test_alpha_rank_is_equal_to_that_of_openspiel() -> None:
    theirs = pytest.importorskip("open_spiel.python.egt.alpharank")
    rng = np.random.default_rng(0)
    for count in range(2, 7):
        payoffs = antisymmetric(rng, count)
        for alpha in (0.01, 0.3, 3.0):
            known = theirs.compute([payoffs], m=20, alpha=alpha, use_local_selection_model=False)
            np.testing.assert_allclose(
                alpha_rank(payoffs, alpha=alpha, size=20), known[2], atol=1e-9
            )


def test_the_transitive_part_and_diversity() -> None:
    assert [part(x) for x in (RPS, ORDER, RPS + ORDER)] == pytest.approx([0, 1, 2 / 3])
    mixed = np.array([[0.0, 0, 3], [0, 0, 0], [-3, 0, 0]])
    np.testing.assert_allclose(RPS + ORDER, mixed)
    assert effective_diversity(RPS, nash(RPS)) == pytest.approx(1 / 3)
    assert effective_diversity(ORDER, nash(ORDER)) == pytest.approx(0)


def test_cycles_are_counted_and_named_in_their_direction() -> None:
    assert list(cycles(RPS > 0)) == [(0, 2, 1)] and not list(cycles(ORDER > 0))
    beats = antisymmetric(np.random.default_rng(3), 7) > 0
    wins = beats.sum(axis=1)
    assert len(list(cycles(beats))) == 35 - sum(w * (w - 1) // 2 for w in wins) > 0
    assert all(beats[a, b] and beats[b, c] and beats[c, a] for a, b, c in cycles(beats))


def test_when_the_order_is_settled() -> None:
    turns = np.array([[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.3, 0.7, 0.0], [0.2, 0.8, 0.0]])
    said = settled(np.concatenate([turns, np.repeat(turns[-1:], 12, axis=0)]))
    assert said.endswith("is the same from alpha x largest payoff = 0.008 on")  # the second alpha
    assert settled(np.eye(16)[:, :3] + 0.1).endswith(
        "is the same from alpha x largest payoff = 0.031 on"
    )
    last = np.tile([0.6, 0.4], (16, 1))
    last[-1] = [0.4, 0.6]
    assert settled(last).endswith("still changes at the largest alpha x largest payoff")


def zero_sum(payoffs: np.ndarray, names: Sequence[str], bonus: float = 0.0) -> Callable[[], Matrix]:
    """Return the zero-sum game of a matrix, with a bonus for the first player."""
    table = [[[float(x) + bonus, -float(x) - bonus] for x in row] for row in payoffs]
    return lambda: raw_env(actions=list(names), payoffs=table)


def by_name(result: Result) -> dict[str, Estimate]:
    return {each.name: each for each in result.estimates}


def table(result: Result, title: str) -> Table:
    (found,) = [each for each in result.tables if each.title.startswith(title)]
    return found


def test_rock_paper_scissors_is_a_cycle() -> None:
    names = ["rock", "paper", "scissors"]
    arena = zero_sum(RPS, names, bonus=0.5)  # the first seat is paid more, but players change seats
    made = games(arena, {name: constant(name) for name in names})
    result = study(made, [player(name, arena) for name in names])
    found = by_name(result)
    assert [row[1:] for row in table(result, "Gain of the rows").rows] == RPS.tolist()
    for row in table(result, "Ranking").rows:
        gain, mixture, inside, score, rank = map(float, row[1:6])  # type: ignore[arg-type]
        assert (gain, inside, score) == (0, 1, pytest.approx(0))
        assert mixture == pytest.approx(1 / 3) and rank == pytest.approx(1 / 3)
    assert found["transitive share as measured"].value == pytest.approx(0)
    assert found["transitive share, noise taken off"].value == pytest.approx(0)
    assert found["3-cycles"].value == found["3-cycles beyond noise"].value == 1
    assert found["effective diversity"].value == pytest.approx(1 / 3)
    assert table(result, "3-cycles").rows[0][0] == "rock > scissors > paper > rock"
    assert "is the same from alpha x largest payoff = 0.004 on" in result.notes[-1]
    assert not [note for note in result.notes if "sum of both players' pay" in note]


def test_the_mixture_of_an_order_with_luck_has_one_player() -> None:
    names = ["a", "b", "c"]
    arena = zero_sum(ORDER, names)
    scripts = {"strong": constant("a"), "middle": choice(["a", "c"]), "weak": constant("c")}
    made = games(arena, scripts, episodes=60, seed=1)
    result = study(made, [player(name, arena) for name in ("weak", "middle", "strong")])
    found = by_name(result)
    assert found["strong gains on the others"].value > 1
    assert found["strong gains on the others"].low > 0 > found["weak gains on the others"].high
    rows = table(result, "Ranking").rows
    assert [row[0] for row in rows] == ["strong", "middle", "weak"]
    assert [row[2:4] for row in rows] == [[1, 1], [0, 0], [0, 0]]
    assert [row[5] for row in rows] == [pytest.approx(x, abs=1e-6) for x in (1, 0, 0)]
    transitive = found["transitive share, noise taken off"]
    assert transitive.low <= 1 and transitive.value == pytest.approx(1, abs=0.02)
    assert not [each for each in result.tables if each.title.startswith("3-cycles")]
    assert [type(each).__name__ for each in result.drawings] == [
        "MatrixPlot",
        "IntervalPlot",
        "IntervalPlot",
        "CurvePlot",
    ]


def test_the_mixture_of_two_even_players_has_both() -> None:
    arena = zero_sum(np.zeros((2, 2)), ["a", "b"])
    made = games(arena, {"a": constant("a"), "b": constant("b")})
    result = study(made, [player("a", arena), player("b", arena)])
    assert [row[2:6] for row in table(result, "Ranking").rows] == [[0.5, 1, 0, 0.5]] * 2
    assert list(by_name(result)) == [
        "a gains on the others",
        "b gains on the others",
        "effective diversity",
    ]


def test_pay_without_a_constant_sum_is_in_a_note() -> None:
    def arena() -> Matrix:
        return raw_env()  # the prisoner's dilemma

    made = games(arena, {"c": constant("cooperate"), "d": constant("defect")})
    result = study(made, [player("c", arena), player("d", arena), player("again", arena, "c")])
    rows = table(result, "Gain of the rows").rows
    assert rows[1] == ["d", 2.5, 0, 2.5]
    assert any(note.startswith("in 33.3 % of the games") for note in result.notes)


def test_games_without_a_winner_are_refused_with_advice() -> None:
    arena = levers([1, 1])
    made = games(arena, {"a": constant("lever0"), "b": choice(["lever0", "lever1"])})
    players = [player("a", arena), player("b", arena)]
    with pytest.raises(ConfigError, match=r"always paid the same.*measure crossplay"):
        study(made, players)
    with pytest.raises(ConfigError, match="has no opponent; name several"):
        study(made, players[:1])
    with pytest.raises(ConfigError, match="a is named twice"):
        study(made, [*players, players[0]])
    with pytest.raises(ConfigError, match="at least 2 are needed"):
        study(games(arena, {"a": constant("lever0")}, episodes=1), players)
    with pytest.raises(RunError, match="every game of a with b failed"):
        Matchups.of({(0, 1): np.array([np.nan])}, Draws(tasks=["game"]), ["a", "b"])


class Idle(Arena):
    """A game in which only the last agent moves, once."""

    name = "idle_v0"

    def setup(self, task: Task, rng: Random) -> None:
        pass

    def acting(self) -> Sequence[str]:
        return self.possible_agents[-1:]

    def view(self, agent: str) -> Observation:
        return Observation(text="?")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        self.finish()


def test_games_without_two_sides_are_refused_with_advice() -> None:
    def study_of(**roles: int) -> None:
        def arena() -> Arena:
            return Idle(roles)

        made = games(arena, {"a": constant("x"), "b": constant("x")})
        study(made, [player("a", arena), player("b", arena)])

    with pytest.raises(ConfigError, match="idle_v0 has 3 sides: player_0, player_1, player_2;"):
        study_of(player=3)
    with pytest.raises(ConfigError) as caught:
        study_of(seer=1, villager=2, wolf=1)
    assert str(caught.value) == (
        "payoffs: idle_v0 has 3 sides: seer, villager, wolf; payoffs needs two (a side is a role, "
        "whose agents play together, or one agent if all have the same role); measure roleswap, or "
        "crossplay for a team, or name a run of a game of two sides"
    )
    one = r"idle_v0 has 1 side: solver_0; payoffs needs two .*; name a run of a game of two sides$"
    with pytest.raises(ConfigError, match=one):
        study_of(solver=1)
    with pytest.raises(ConfigError, match="proposer never moves in these games"):
        study_of(proposer=1, solver=1)


class Duel(Idle):
    """All move once. The move "good" gains 1 against another if the judge's move is "fair"."""

    def acting(self) -> Sequence[str]:
        return self.possible_agents

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        *moves, verdict = actions.values()
        gain = float(verdict == "fair") * ((moves[0] == "good") - (moves[1] == "good"))
        for agent, pay in zip(self.possible_agents[:2], (gain, -gain), strict=True):
            self.pay(agent, pay)
        self.finish()


@pytest.mark.parametrize("roles", [{"black": 1, "white": 1}, {"player": 2}])
def test_a_role_with_the_same_opponent_for_all_players_is_not_a_seat(
    roles: dict[str, int],
) -> None:
    def arena() -> Arena:
        return Duel({**roles, "judge": 1})

    def seated(label: str, judge: str) -> StudyPlayer:
        policies = {**dict.fromkeys(roles, label), "judge": judge}
        return StudyPlayer(label=label, policies=policies, fixed={"judge": judge})

    scripts = {"a": constant("good"), "b": constant("bad"), "fair": constant("fair")}
    result = study(games(arena, scripts), [seated("a", "fair"), seated("b", "fair")])
    assert [row[1:] for row in result.tables[0].rows] == [[0, 1], [-1, 0]]


def test_without_scipy_nothing_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = levers([1, 1])
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(
        ConfigError, match=r"needs the package 'scipy'; pip install 'selfplay\[studies\]'"
    ):
        study(games(arena, {"a": constant("x")}), [player(n, arena, "a") for n in "ab"])


NEARLY_TIED = (
    # Upper triangles for 4 or 5 players. Rounding to 9 digits leaves them close to a tie.
    (-4.8e-08, -0.499999936, 0.249999886, 0.499999978, -0.249999965, -1.5e-08),
    (
        *(-0.499999999, 0.500000002, -0.166666644, -8.5e-08),
        *(-0.749999996, 0.250000001, 0.166666773, -5.1e-08, 1.25e-07, 0.083333301),
    ),
    (
        *(0.749999815, -0.250000033, 0.499999955, -0.499999958),
        *(-2e-09, 0.249999962, 0.499999905, -5.9e-08, 1.3e-08, -0.499999947),
    ),
)


@pytest.mark.parametrize("entries", NEARLY_TIED)
def test_payoffs_that_are_nearly_tied_have_an_equilibrium(entries: Sequence[float]) -> None:
    count = 4 if len(entries) == 6 else 5
    matrix = np.zeros((count, count))
    matrix[np.triu_indices(count, 1)] = entries
    matrix -= matrix.T
    mixture = nash(matrix)
    assert mixture.sum() == pytest.approx(1) and (mixture >= 0).all()
    assert (matrix @ mixture).max() <= 1e-6 * np.abs(matrix).max()


def test_matrices_that_no_solver_solves_are_left_out_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All games are played before the solver runs, so its failure must not lose them."""

    def fails_below(limit: float) -> Callable[[np.ndarray], np.ndarray]:
        def solve(matrix: np.ndarray) -> np.ndarray:
            if matrix[0, 1] < limit:
                raise NoEquilibriumError("no equilibrium was found")
            return nash(matrix)

        return solve

    def arena() -> Matrix:
        return raw_env(actions=["u", "v"], payoffs=[[[1, -1], [-1, 1]], [[-1, 1], [1, -1]]])

    scripts = {"a": choice(["u", "v"]), "b": constant("u")}

    def measured() -> Result:
        made = games(arena, scripts, episodes=40)
        return study(made, [player(name, arena) for name in "ab"])

    whole = measured()
    gain = next(e.value for e in whole.estimates if e.name == "a gains on the others")
    monkeypatch.setattr(payoffs, "nash", fails_below(gain))
    some = measured()
    (note,) = [note for note in some.notes if "no solver" in note]
    assert re.search(r"of [0-9]+ resamples: left out", note)
    monkeypatch.setattr(payoffs, "nash", fails_below(np.inf))
    none = measured()
    assert [row[2] for row in none.tables[1].rows] == [pytest.approx(np.nan, nan_ok=True)] * 2
    assert any("no solver found the Nash mixture of the matrix" in note for note in none.notes)
    assert none.to_text()
