"""Tests of the comparison of places to branch: the game with a tool, and counts by hand."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfplay.curriculum.fixed import FixedTasks
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.types import Episode, Group, Task
from tests.helpers.scripts import script

for module in ("bakeoff_learning", "bakeoff_table", "enumerated_games"):
    script(module)
games: Any = script("tool_game")
bakeoff: Any = script("branch_bakeoff")
GAMES = games.GAMES


def solver(game: Any, logits: np.ndarray, *, entropies: bool = False) -> Any:
    """Return a player with its own random generator."""
    return games.Solver(game, logits, np.random.default_rng(0), entropies=entropies)


def expert(game: Any, *, tool: bool = True) -> np.ndarray:
    """Return the logits of a policy with right answers, and with right tools if `tool` is True."""
    found: np.ndarray = np.zeros_like(game.logits(0))
    for question, value in product(range(3), range(3)):
        call = game.right(question, "call", value)
        found[games.state("call", question, 0), call] = 1000.0 if tool else -1000.0
        answer = game.right(question, "answer", value)
        found[games.state("answer", question, value), answer] = 1000.0
    return found


@pytest.mark.parametrize("name", list(GAMES))
def test_values_by_hand(name: str) -> None:
    """The value is 1 with right tools and answers; a guess is right in a third of the tasks."""
    game = GAMES[name]
    assert game.value(expert(game)) == pytest.approx(1.0)
    assert game.value(expert(game, tool=False)) == pytest.approx(1 / 3)
    assert game.value(np.zeros_like(expert(game))) == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", list(GAMES))
def test_sampled_episodes_earn_the_exact_value(name: str) -> None:
    game = GAMES[name]
    logits = game.logits(3)
    player = solver(game, logits)
    episodes = player([EpisodeSpec(task=task, seed=0) for task in games.TASKS * 80])
    paid = np.mean([sum(turn.reward for turn in each.turns) for each in episodes])
    assert paid == pytest.approx(game.value(logits), abs=0.02)
    assert player.completions == len(episodes) * game.length


def test_the_agent_sees_the_result_in_the_next_stage() -> None:
    """The state of an answer has the hidden value after the right tool, and no value otherwise."""
    game = GAMES["answers"]
    (found,) = solver(game, expert(game))([EpisodeSpec(task=Task(id="210"), seed=0)])
    rows = [turn.prompt_ids[0] for turn in found.turns]
    assert rows[1::2] == [games.state("answer", question, 2 - question) for question in range(3)]
    (found,) = solver(game, expert(game, tool=False))([EpisodeSpec(task=Task(id="210"), seed=0)])
    rows = [turn.prompt_ids[0] for turn in found.turns]
    assert rows[1::2] == [games.state("answer", question, games.NOTHING) for question in range(3)]


def test_probabilities_of_the_first_policy() -> None:
    """The right tool has probability 0.9, a wrong answer 0.8, and comments are equally likely."""
    game = GAMES["comments"]
    policy = games.softmax(game.logits(0, noise=0.0))
    assert policy[games.state("call", 1, 0)] == pytest.approx([0.05, 0.9, 0.05])
    assert policy[games.state("answer", 1, 2)] == pytest.approx([0.1, 0.8, 0.1])  # right: 0
    assert policy[games.state("comment", 1, 2)] == pytest.approx([1 / 3] * 3)


def test_a_branch_replays_its_prefix_and_costs_the_rest() -> None:
    game = GAMES["answers"]
    player = solver(game, game.logits(0))
    (whole,) = player([EpisodeSpec(task=Task(id="012"), seed=0)])
    spec = EpisodeSpec(task=Task(id="012"), seed=0, prefix_turns=whole.turns[:4], branch_of=0)
    branches = player([spec] * 40)
    assert player.completions == 6 + 40 * 2
    for each in branches:
        assert each.turns[:4] == whole.turns[:4] and each.shared_turns == 4
    assert len({each.turns[5].completion_ids[0] for each in branches}) > 1


def counts(name: str, method: str) -> tuple[Sequence[int], int]:
    """Return the stages at which the branches of 20 steps begin, and the number of whole episodes.

    The policy is the first one, without noise.
    """
    game, chosen = GAMES[name], bakeoff.METHODS[method]
    player = solver(game, game.logits(0, noise=0.0), entropies=chosen.entropies)
    sampler, starts, whole = chosen.sampler(), list[int](), 0
    curriculum = FixedTasks(tasks=games.TASKS, batch=1)
    for step in range(20):
        for each in sampler.sample(curriculum, player, step=step, seed=0)[0].episodes:
            whole += each.branch_of is None
            starts += [each.shared_turns] if each.branch_of is not None else []
    return starts, whole


def test_branches_begin_before_uncertain_stages() -> None:
    """In `answers` only answers are uncertain: all branches by the exact entropy begin with one,
    and most branches by the surprisal of one choice."""
    fractions = {}
    for where in ("uniform", "surprisal", "entropy"):
        starts, whole = counts("answers", f"arpo, {where}")
        assert len(starts) == 160 and whole == 160
        fractions[where] = np.mean([start % 2 == 1 for start in starts])
    assert 0.5 < fractions["uniform"] < 0.7 < fractions["surprisal"] < fractions["entropy"] == 1.0


def test_an_uncertain_first_stage_leaves_places_unused() -> None:
    """In `calls` no stage is less certain than the first one, so the group has no branches. The
    surprisal of one choice makes some answers seem less certain."""
    assert counts("calls", "arpo, entropy") == ([], 320)
    starts, whole = counts("calls", "arpo, surprisal")
    assert len(starts) + whole == 320 and 0 < len(starts) < 160


def test_forks_after_a_result_by_hand() -> None:
    game = GAMES["comments"]
    (play,) = solver(game, game.logits(0))([EpisodeSpec(task=Task(id="000"), seed=0)])

    def branch(shared: int) -> Episode:
        spec = EpisodeSpec(task=play.task, seed=0, prefix_turns=play.turns[:shared], branch_of=0)
        found: Episode = solver(game, game.logits(0))([spec])[0]
        return found

    group = Group(id="g", episodes=(play, *(branch(shared) for shared in (1, 2, 3, 4))))
    assert bakeoff.forks([group], game) == (4, 2)  # before the comments of the questions 0 and 1


def test_the_mean_estimate_of_whole_episodes_follows_the_exact_gradient() -> None:
    game = GAMES["answers"]
    logits = game.logits(1)
    exact, step = np.zeros_like(logits), 1e-5
    for place in np.ndindex(*logits.shape):
        moved = logits.copy()
        moved[place] += step
        exact[place] = (game.value(moved) - game.value(logits)) / step
    method, player = bakeoff.METHODS["rloo"], solver(game, logits)
    curriculum, found = FixedTasks(tasks=games.TASKS, batch=27), np.zeros_like(logits)
    for number in range(20):
        batch = method.sampler().sample(curriculum, player, step=number, seed=0)
        found += bakeoff.estimate(method.credit().assign(batch), logits)
    cosine = (found * exact).sum() / np.linalg.norm(found) / np.linalg.norm(exact)
    assert cosine > 0.95


def test_a_table_and_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept.json"
    names = ["--methods", "rloo", "arpo, uniform", "arpo, surprisal"]
    small = ["--games", "answers", "--seeds", "2", "--budget", "144", "--rates", "0.3"]
    bakeoff.main(["learn", *small, *names, "--json", str(kept)])
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    cells = [line.strip("| ").split(" | ") for line in table]
    assert [row[0] for row in cells] == ["`rloo`", "`arpo, uniform`", "`arpo, surprisal`"]
    assert cells[0][4] == "0.000 (0.000 to 0.000)" and cells[1][5] == ""
    rows = json.loads(kept.read_text())
    by = {(row["method"], row["seed"]): row["curve"] for row in rows}
    area = bakeoff.area_by_cost
    differences = [
        area(by["arpo, surprisal", seed], 144) - area(by["arpo, uniform", seed], 144)
        for seed in (0, 1)
    ]
    assert cells[2][5] == bakeoff.mean(differences, digits=3)
    bakeoff.main(["table", "--json", str(kept)])
    assert [row for row in capsys.readouterr().out.splitlines() if row.startswith("| `")] == table
    bakeoff.main(["draw", "--json", str(kept), "--folder", str(tmp_path)])
    assert (tmp_path / "bakeoff_branch_answers.svg").exists()
