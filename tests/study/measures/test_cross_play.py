"""Cross-play of teams whose conventions are known."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from random import Random
from typing import TypeAlias

import numpy as np
import pytest

from arenas.mixture.arena import Mixture
from selfplay.arena import Arena
from selfplay.curriculum.mixture import routed
from selfplay.engines.scripted import choice, constant
from selfplay.errors import ConfigError
from selfplay.study.matches import StudyMatches
from selfplay.study.measures import reward_hacking, role_swap
from selfplay.study.measures.cross_play import by_pair, estimate, run_pairs, study
from selfplay.study.players import StudyPlayer
from selfplay.study.stats.bootstrap import Draws, Estimate
from selfplay.study.stats.pairs import between, over_pairs, span_of, unseen, variance
from selfplay.types import Action, Better, Metric, Observation, Task
from tests.helpers.scripted_games import code, games, levers, lewis, lewis_tasks, player

Score: TypeAlias = Callable[..., float | None]


def test_two_of_three_players_pull_the_same_lever() -> None:
    arena = levers([1, 1])
    made = games(arena, {"x": constant("lever0"), "y": constant("lever0"), "z": constant("lever1")})
    result = study(made, [player(name, arena) for name in "xyz"])
    found = {each.name: each for each in result.estimates}
    assert [row[1:] for row in result.tables[0].rows] == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert found["self-play"].value == 1 and found["cross-play"].value == pytest.approx(1 / 3)
    assert found["gap"].value == pytest.approx(2 / 3)
    assert found["gap"].low == pytest.approx(found["gap"].high) == pytest.approx(2 / 3)
    over = found["gap, over runs"]
    assert over.value == pytest.approx(2 / 3) and over.low < 0 < over.high and over.count == 3


def test_the_gap_of_each_pair_is_half_of_what_both_lose() -> None:
    arena = levers([1, 1])
    made = games(arena, {"x": constant("lever0"), "y": constant("lever0"), "z": constant("lever1")})
    table = study(made, [player(name, arena) for name in "xyz"]).tables[1]
    assert table.title.startswith("Gap of each pair")
    rows = {row[0]: row[1:] for row in table.rows}
    assert {name: gap for name, (gap, *_) in rows.items()} == {
        "x and y": 0,
        "x and z": 1,
        "y and z": 1,
    }
    for cells in rows.values():
        gap, low, high = (float(cell) for cell in cells if cell is not None)
        assert low <= gap <= high


def test_the_interval_of_a_pair_is_that_of_its_four_cells() -> None:
    """The four cells share their tasks, so an effect of a task on all of them cancels."""
    rng = np.random.default_rng(0)
    draws = Draws(tasks=[str(number) for number in range(40)])
    difficulty = rng.random(40)
    offsets = {(0, 0): 1.0, (0, 1): 0.2, (1, 0): 0.6, (1, 1): 0.8}
    cells = {pair: difficulty + offset for pair, offset in offsets.items()}
    ((name, gap, low, high),) = by_pair(cells, draws, ["a", "b"], title="t").rows
    assert name == "a and b"
    assert [gap, low, high] == pytest.approx([0.5] * 3)

    noise = rng.normal(0, 0.1, size=40)
    cells[0, 1] = cells[0, 1] + noise
    ((_, gap, low, high),) = by_pair(cells, draws, ["a", "b"], title="t").rows
    error = 1.96 * noise.std(ddof=1) / 2 / np.sqrt(40)
    assert gap == pytest.approx(0.5 - noise.mean() / 2)
    assert [low, high] == pytest.approx([gap - error, gap + error], abs=0.15 * error)


def test_two_teams_with_opposite_conventions() -> None:
    """Each team has its own words for the states: right with itself, wrong with the other."""
    arena, states = lewis(("a", "b")), ("a", "b")
    straight = code({"a": "x", "b": "y"}, otherwise="a")
    crossed = code({"a": "y", "b": "x"}, otherwise="a")
    made = games(arena, {"one": straight, "two": crossed}, tasks=lewis_tasks(states))
    result = study(made, [player("one", arena), player("two", arena)])
    found = {each.name: each for each in result.estimates}
    assert (found["self-play"].value, found["cross-play"].value, found["gap"].value) == (1, 0, 1)
    assert "gap, over runs" not in found  # two runs are too few for an interval over runs


def test_other_play_pulls_the_lever_that_all_agree_on() -> None:
    """Nine levers pay 1 and one pays 0.9. Runs that each choose one of the nine seldom agree."""
    arena = levers([*[1.0] * 9, 0.9])
    agreed = games(arena, {"a": constant("lever9"), "b": constant("lever9")})
    found = study(agreed, [player("a", arena), player("b", arena)]).estimates
    assert [each.value for each in found[:2]] == pytest.approx([0.9, 0.9])
    assert found[2].value == 0
    seeds = np.random.default_rng(0).integers(9, size=400)
    means = (seeds[:, None] == seeds[None]).astype(float)
    assert between(means) == pytest.approx(1 / 9, abs=0.01)


def test_an_interval_for_these_policies_covers_their_truth() -> None:
    """Both pull one of two levers at random, so every cell has the mean 1/2."""
    arena = levers([1, 1])
    noise = choice(["lever0", "lever1"])
    made = games(arena, {"a": noise, "b": noise}, episodes=200, seed=1)
    for each in study(made, [player("a", arena), player("b", arena)]).estimates:
        truth = 0 if each.name == "gap" else 0.5
        assert each.low <= truth <= each.high and each.high - each.low < 0.2


def two_codes(codes: Sequence[int]) -> np.ndarray:
    """Return cell means of runs that understand only runs with the same code."""
    return (np.array(codes)[:, None] == np.array(codes)[None]).astype(float)


def over_runs(codes: Sequence[int]) -> dict[str, Estimate]:
    return {each.name: each for each in over_pairs(two_codes(codes), (0.0, 1.0))}


def test_intervals_over_runs_of_the_toy_matrix() -> None:
    found = over_runs([0, 0, 1]).values()
    assert [each.value for each in found] == pytest.approx([1, 1 / 3, 2 / 3])
    assert all(0 <= each.low <= each.high <= 1 for each in found if "gap" not in each.name)


def test_two_runs_of_each_code_have_a_spread() -> None:
    """Each run agrees with one of three others, so the jackknife variance over runs is 0.

    The whole variance is that of pairs, 2 s^2 / (N (N - 1)).
    """
    found = over_runs([0, 0, 1, 1])["gap, over runs"]
    assert variance(1 - two_codes([0, 0, 1, 1])) == pytest.approx(2 * (4 / 15) / 12)
    assert found.value == pytest.approx(2 / 3) and found.low < 0.5 and found.high == 1
    assert "both orders" in found.method and not found.notes


def test_the_variance_over_runs_is_that_of_a_mean_of_effects() -> None:
    """If every run has an additive effect, the mean over pairs is twice the mean over runs."""
    effects = np.array([1.0, 2.0, 4.0, 7.0])
    kernel = effects[:, None] + effects[None]
    first = 4 * effects.var(ddof=1) / 4
    pairs = kernel[np.triu_indices(4, 1)]
    assert variance(kernel) == pytest.approx(first + 2 * pairs.var(ddof=1) / 12)


def test_runs_that_are_all_alike_may_have_missed_a_code() -> None:
    found = over_runs([0] * 5)
    gap, cross = found["gap, over runs"], found["cross-play, over runs"]
    assert gap.value == 0 and gap.high == pytest.approx(1 - 0.025 ** (2 / 5)) == unseen(5)
    assert cross.low == pytest.approx(1 - unseen(5)) and cross.high == 1
    assert "codes that so few runs can miss" in gap.notes
    assert over_runs([0] * 20)["gap, over runs"].high < 0.31


def test_the_range_of_a_metric_comes_from_the_games() -> None:
    assert span_of([np.array([0.2, 0.9]), np.array([np.nan])]) == (0.0, 1.0)
    assert span_of([np.array([-2.0, 4.0]), np.array([1.0])]) == (-2.0, 4.0)
    assert np.isnan(span_of([np.array([np.nan])])).all()


def test_one_player_is_refused_with_advice() -> None:
    arena = levers([1, 1])
    with pytest.raises(ConfigError, match="has no partner; name runs of several seeds"):
        study(games(arena, {"a": constant("lever0")}), [player("a", arena)])


class Scored(Arena):
    """The agents `movers` move once. `score(a number, *moves)` is the metric; None: no metric."""

    name = "scored_v0"

    def __init__(self, roles: Mapping[str, int], movers: Sequence[str], score: Score) -> None:
        super().__init__(roles)
        self.movers, self.score = movers, score

    def setup(self, task: Task, rng: Random) -> None:
        self.number = int(rng.random() * 1000)

    def acting(self) -> Sequence[str]:
        return self.movers

    def view(self, agent: str) -> Observation:
        return Observation(text="?")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        score = self.score(self.number, *actions.values())
        if score is not None:
            self.measure(score=score)
        self.finish()


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_the_table_names_both_sides_and_the_text_says_which_sign_is_a_loss(better: Better) -> None:
    class Declared(Scored):
        measures = {"score": Metric(better=better)}

    def arena() -> Arena:
        def lies(number: int, liar: str, judge: str) -> float:
            return 2.0 * (liar == "a") + (judge == "a")

        return Declared({"liar": 1, "judge": 1}, ["liar_0", "judge_0"], lies)

    made = games(arena, {"x": constant("a"), "y": constant("b")}, metrics=["score"])
    result = study(made, [player("x", arena), player("y", arena)], independent=False)
    assert result.tables[0].title == "score: rows play liar, columns judge"
    assert [row[1:] for row in result.tables[0].rows] == [[3, 2], [1, 0]]
    assert ("a negative gap is a loss" in result.definition) == (better == "lower")
    assert "another player" in result.definition


def test_a_side_that_never_moves_is_refused() -> None:
    """A proposer that never moves has no effect, so the gap would be 0 without any spread."""

    def arena() -> Arena:
        return Scored({"proposer": 1, "solver": 1}, ["solver_0"], lambda number, move: 1.0)

    scripts = {"x": constant("a"), "y": constant("b")}
    players = [player("x", arena), player("y", arena)]
    with pytest.raises(ConfigError, match=r"^proposer never moves .* with --evaluation$"):
        study(games(arena, scripts), players)
    with pytest.raises(ConfigError, match=r"^proposer never moves"):
        reward_hacking.study(games(arena, scripts), players, [], independent=True)
    swapped = role_swap.study(games(arena, scripts), players)
    assert [note for note in swapped.notes if note.startswith("proposer never moves")]


def test_a_gap_that_is_rounding_is_zero() -> None:
    """The mean of three self-play cells of 0.1 and that of six others differ by rounding."""
    scores = {(i, j): np.full(4, 0.1) for i, j in product(range(3), repeat=2)}
    means = np.full((3, 3), 0.1)
    assert np.mean(np.diagonal(means)) != np.mean([0.1] * 6), "the case shows no rounding"
    draws = Draws(tasks=list("abcd"))
    found = {each.name: each for each in estimate(scores, means, draws)}
    assert [found["gap"].value, found["gap"].low, found["gap"].high] == [0, 0, 0]
    assert found["gap, over runs"].value == 0


def test_an_evaluation_of_one_part_of_a_mixture_has_the_sides_of_the_part() -> None:
    def arena() -> Mixture:
        return Mixture(parts={"levers": levers([1, 1])(), "lewis": lewis()()})

    scripts = {"x": constant("lever0"), "y": constant("lever1")}
    tasks = [routed("levers", Task(id="t"))]
    made = games(arena, scripts, tasks=tasks, metrics=["return"])
    assert list(made.sides()) == ["levers_player_0", "levers_player_1"]
    result = study(made, [player("x", arena), player("y", arena)])
    rows = [row[1:] for row in result.tables[0].rows]
    assert rows[0][1] == rows[1][0] == 0 and rows[0][0] == rows[1][1] > 0  # type: ignore[operator]


def test_with_three_seats_the_partner_takes_each_in_turn() -> None:
    """Three players a score 7. A seat in which b plays loses the weight of the seat."""

    def score(number: int, *moves: str) -> float:
        return float(sum(w for w, move in zip((1, 2, 4), moves, strict=True) if move == "a"))

    def arena() -> Arena:
        roles = {"first": 1, "second": 1, "third": 1}
        return Scored(roles, ["first_0", "second_0", "third_0"], score)

    made = games(arena, {"x": constant("a"), "y": constant("b")}, metrics=["score"])
    result = study(made, [player("x", arena), player("y", arena)])
    rows = np.array([row[1:] for row in result.tables[0].rows], dtype=float)
    assert rows == pytest.approx(np.array([[7, 7 - 7 / 3], [7 / 3, 0]]))
    assert result.notes == ["with more than two sides, the partner takes each of them in turn"]


def mixed(score: Score, metric: str = "score") -> tuple[np.ndarray, dict[str, Estimate]]:
    """Return cell means and estimates of two players: one always plays a, and the other b."""

    def arena() -> Arena:
        return Scored({"first": 1, "second": 1}, ["first_0", "second_0"], score)

    made = games(arena, {"x": constant("a"), "y": constant("b")}, metrics=[metric])
    result = study(made, [player("x", arena), player("y", arena)])
    rows = np.array([row[1:] for row in result.tables[0].rows], dtype=float)
    return rows, {each.name: each for each in result.estimates}


def often_scored(number: int, first: str, second: str) -> float | None:
    """Return None in even games of different moves; odd games of equal moves score higher."""
    if first == second:
        return 1.0 if number % 2 else 0.5
    return 0.0 if number % 2 else None


def never_mixed(number: int, first: str, second: str) -> float | None:
    return 1.0 if first == second else None


def test_the_gap_is_that_of_the_table_where_episodes_lack_the_metric() -> None:
    """Episodes that one cell lacks stay in the other cells."""
    cells, found = mixed(often_scored)
    assert cells[0, 1] == cells[1, 0] == 0 and 0.5 < cells[0, 0] == cells[1, 1] < 1
    assert found["gap"].value == found["self-play"].value == pytest.approx(cells[0, 0])
    assert found["gap"].low < cells[0, 0] < found["gap"].high


def test_a_cell_without_the_metric_is_nan_and_a_study_without_it_fails() -> None:
    cells, found = mixed(never_mixed)
    assert cells[0, 0] == 1 and np.isnan(cells[0, 1])
    assert found["self-play"].value == 1 and np.isnan(found["gap"].value)
    assert "in 2 of 4 cells no episode has the metric" in found["gap"].notes
    with pytest.raises(ConfigError, match="--metric scor: no episode has it; did you mean 'score'"):
        mixed(never_mixed, "scor")


def test_a_few_games_are_spread_over_the_whole_list_of_tasks() -> None:
    tasks = [Task(id=str(number)) for number in range(100)]
    made = games(levers([1, 1]), {"a": constant("lever0")}, tasks=tasks, episodes=20)
    numbers = [int(spec.task.id) for spec in made.episode_specs({})]
    assert len(set(numbers)) == 20 and min(numbers) < 30 and max(numbers) > 70
    assert numbers == [int(spec.task.id) for spec in made.episode_specs({"player_0": "a"})]
    assert len({spec.task.id for spec in made.episode_specs({}, count=130)[:100]}) == 100


class Agreeing(Scored):
    """The agents at the task's places move once. The score is 1 if all make the same move."""

    def __init__(self) -> None:
        roles = dict.fromkeys(["first", "second", "third", "fourth"], 1)
        super().__init__(roles, (), lambda number, *moves: float(len(set(moves)) == 1))

    def agents_of(self, task: Task) -> list[str]:
        return [self.possible_agents[place] for place in task.payload["places"]]

    def acting(self) -> Sequence[str]:
        return self.agents


def agreeing(*places: Sequence[int]) -> tuple[StudyMatches, list[StudyPlayer]]:
    """Return games and two players that never agree, with a task for each list of places."""
    tasks = [Task(id=str(each), payload={"places": list(each)}) for each in places]
    scripts = {"x": constant("a"), "y": constant("b")}
    made = games(Agreeing, scripts, tasks=tasks, metrics=["score"])
    return made, [player("x", Agreeing), player("y", Agreeing)]


def test_a_game_without_the_partner_does_not_count_as_cross_play() -> None:
    """In a task for the first two seats, a partner in the third or fourth has no effect."""
    sizes = [range(2), range(3), range(4)]
    result = study(*agreeing(*sizes))
    found = {each.name: each.value for each in result.estimates}
    assert found == {"self-play": 1, "cross-play": 0, "gap": 1}
    assert result.notes == ["with more than two sides, the partner takes each of them in turn"]
    hacked = reward_hacking.study(*agreeing(*sizes), [], independent=True)
    assert [each.value for each in hacked.estimates if each.name.startswith("collusion")] == [1]


def test_a_task_without_a_partner_counts_in_no_cell() -> None:
    """Self-play and cross-play are compared on the same tasks."""
    made, players = agreeing([0], [0, 1], [0, 1, 2])
    cells, draws = run_pairs(made, players)
    for (i, j), scores in cells.items():
        np.testing.assert_array_equal(scores, np.full(16, float(i == j)))
    # A task without a partner is not a unit.
    assert len(draws.groups) == 2 and len(draws.tasks) == 16
    assert [note for note in made.notes if note.startswith("8 of 24 episodes have tasks with a")]


def test_games_without_any_partner_are_refused() -> None:
    made, players = agreeing([0], [1])
    with pytest.raises(ConfigError, match=r"^no task of these games in scored_v0 has two sides"):
        study(made, players)


@pytest.mark.parametrize("places", [([0],), ([0], [1])])
def test_hacking_leaves_collusion_out_where_no_two_roles_meet(places: list[list[int]]) -> None:
    made, players = agreeing(*places)
    with pytest.raises(ConfigError, match=r"^hacking: scored_v0 has no proposals"):
        reward_hacking.study(made, players, [], independent=True)


def judged(
    judges: Sequence[str] = ("guard", "guard"), *, debaters: int = 1
) -> tuple[StudyMatches, list[StudyPlayer]]:
    """Return games and two players, with a frozen judge. The score is 1 if all others agree."""
    first = {"first": 2} if debaters == 2 else {"first": 1, "second": 1}
    movers = [*(f"first_{number}" for number in range(debaters)), "second_0", "judge_0"]

    def score(number: int, *moves: str) -> float:
        return float(len(set(moves[:-1])) == 1)

    def arena() -> Arena:
        moving = [agent for agent in movers if agent[:-2] in {**first, "judge": 1}]
        return Scored({**first, "judge": 1}, moving, score)

    names = {"x": judges[0], "y": judges[1]}
    seated = [
        StudyPlayer(
            label=label,
            policies={**dict.fromkeys(first, label), "judge": f"{label}:{judge}"},
            fixed={"judge": {"script": judge}},
        )
        for label, judge in names.items()
    ]
    scripts = {"x": constant("a"), "y": constant("b")}
    scripts |= {f"{label}:{judge}": constant(judge) for label, judge in names.items()}
    return games(arena, scripts, metrics=["score"]), seated


@pytest.mark.parametrize("debaters", [1, 2])
def test_the_seat_of_an_opponent_that_all_players_share_is_not_a_side(debaters: int) -> None:
    """A partner in the judge's seat would be the same judge, so the game would be self-play."""
    made, players = judged(debaters=debaters)
    result = study(made, players)
    assert [row[1:] for row in result.tables[0].rows] == [[1, 0], [0, 1]]
    assert {each.name: each.value for each in result.estimates}["gap"] == 1
    assert made.cells == 4
    note = "the same opponent plays judge for all players, so it is no side"
    assert result.notes == [note]


def test_collusion_is_between_the_roles_that_players_can_take() -> None:
    hacked = reward_hacking.study(*judged(), [], independent=True)
    found = {each.name: each.value for each in hacked.estimates}
    assert found["collusion: own minus others' tasks"] == 1
    with pytest.raises(ConfigError, match=r"^hacking: scored_v0 has no proposals"):
        reward_hacking.study(*judged(debaters=2), [], independent=True)


def test_the_seat_of_opponents_that_differ_is_a_side() -> None:
    made, players = judged(("guard", "other"))
    result = study(made, players)
    found = {each.name: each.value for each in result.estimates}
    assert found["gap"] == pytest.approx(2 / 3)
    assert result.notes == ["with more than two sides, the partner takes each of them in turn"]
