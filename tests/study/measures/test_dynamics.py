"""Cycles, trends and metrics of language, compared with closed forms."""

import json
import math
from dataclasses import replace
from math import atan, exp, isnan, log, pi, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch

from selfplay.errors import ConfigError, RunError
from selfplay.study import page
from selfplay.study.measures.dynamics import CHIEF, by_role, chief, study
from selfplay.study.recorded_episodes import recorded_episodes
from selfplay.study.stats.text import (
    ARCHIVE,
    corrections,
    distinct,
    drift,
    effective_number,
    likeness,
    logprobs,
    novelty,
    self_bleu,
    shingles,
    similarities,
    vendi,
)
from selfplay.study.stats.time_series import autocorrelation, oscillation, trend
from selfplay.types import Episode, StopReason, to_json
from tests.helpers.builders import episode, llama, turn


def spiral(steps: int, rate: float = 0.1) -> list[float]:
    """Return gradient play on xy with its norm kept at 1; its period is 2 pi / atan(rate)."""
    x, y, points = 1.0, 0.0, []
    for _ in range(steps):
        points.append(x)
        x, y = x - rate * y, y + rate * x
        size = sqrt(x * x + y * y)
        x, y = x / size, y / size
    return points


def test_a_cycle_is_found_with_its_period() -> None:
    found = oscillation("x", spiral(400))
    assert found.p is not None and found.p < 0.01
    assert found.notes == f"period {round(2 * pi / atan(0.1))} steps on record"


def test_a_curve_that_turns_once_has_no_peak() -> None:
    """The autocorrelation of a parabola around its line stays below 0 after its trough."""
    found = oscillation("x", [step**2 for step in range(40)])
    assert (found.value, found.notes) == (0.0, "no peak after a trough")


def test_noise_is_no_cycle() -> None:
    """Training curves look like autocorrelated noise, of which few series are flagged at 5 %."""
    flagged = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        series = [0.0]
        for _ in range(99):
            series.append(0.8 * series[-1] + rng.normal())
        p = oscillation("x", series, seed=seed).p
        assert p is not None
        flagged += p < 0.05
    assert flagged <= 4


def test_short_or_constant_series_have_no_value() -> None:
    assert isnan(oscillation("x", [1.0, 2.0]).value) and "too few" in trend("x", [1], [1]).notes
    assert oscillation("x", [0.5] * 30).notes == "it does not vary"


def test_a_trend() -> None:
    rng = np.random.default_rng(0)
    steps = list(range(100))
    exact = trend("x", steps, [0.02 * step + 1 for step in steps])
    assert (exact.value, exact.low, exact.high) == pytest.approx((2, 2, 2))
    noisy = trend("x", steps, [0.02 * step + rng.normal() for step in steps])
    assert noisy.low < 2 < noisy.high and noisy.low > 0
    assert autocorrelation(np.arange(10.0))[0] != autocorrelation(np.arange(10.0))[0]  # NaN


def test_diversity() -> None:
    assert distinct([["a", "b", "a", "b"]], 1) == 0.5
    assert distinct([["a", "b", "a", "b"]]) == pytest.approx(2 / 3)
    # No pair goes across two texts.
    assert distinct([["yes", "sir"]] * 3 + [["no", "sir"]] * 3) == pytest.approx(2 / 6)
    assert isnan(distinct([["red"], ["blue"]] * 4))
    assert effective_number("aaab") == pytest.approx(1.754765, abs=1e-6)
    assert effective_number("abcd") == pytest.approx(4) and isnan(effective_number([]))


def test_the_vendi_score() -> None:
    clusters = np.array([[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 1.0]])
    assert vendi(np.eye(4)) == pytest.approx(4) and vendi(np.ones((4, 4))) == pytest.approx(1)
    assert vendi(clusters) == pytest.approx(1.754765, abs=1e-6)  # 3 equal items and 1 other
    assert vendi(np.array([[1, 0.5], [0.5, 1]])) == pytest.approx(1.754765, abs=1e-6)
    assert isnan(vendi(np.zeros((0, 0))))


def test_texts_that_share_words_in_order_are_similar() -> None:
    assert similarities([set("abc")], [set("bcd"), set("xyz")]).tolist() == [[0.5, 0]]
    assert shingles("return a+1\\nend") == {
        *(("return",), ("a",), ("+",), ("1",), ("end",)),
        *(("return", "a"), ("a", "+"), ("+", "1"), ("1", "end")),
    }
    assert similarities([shingles("a b")], [shingles("b a")])[0, 0] == 0.5
    assert similarities([shingles("...")], [shingles(""), shingles("a")]).tolist() == [[1, 0]]
    rng = np.random.default_rng(0)
    texts = [shingles(" ".join(rng.choice(list("abc"), size=n % 6))) for n in range(40)]
    kernel = similarities(texts, texts)
    assert np.linalg.eigvalsh(kernel).min() > -1e-9 and (np.diag(kernel) == 1).all()


def test_self_bleu() -> None:
    """The last two values are from nltk 3.10.4 (sentence_bleu, equal weights, no smoothing)."""
    assert self_bleu([list("abcd"), list("abcd"), list("efgh")]) == pytest.approx(2 / 3)
    assert self_bleu([["a"], ["a"], []]) == pytest.approx(2 / 3) and isnan(self_bleu([["a"]]))
    assert self_bleu([["a"], [], []]) == pytest.approx(2 / 3)
    assert self_bleu([list("abcde"), list("abcd"), list("xabcd")]) == pytest.approx(
        0.705427131008083, abs=1e-12
    )
    assert self_bleu([list("aaaab"), list("aaaa")]) == pytest.approx(0.7237705440239135, abs=1e-12)


def test_novelty() -> None:
    assert novelty([set("abc")], [set("bcd"), set("xyz")]) == 0.5
    assert novelty([set("a"), set("b")], [set("a")]) == 0.5 and isnan(novelty([set("a")], []))


def test_likeness_uses_equally_many_actions_at_each_step() -> None:
    """Steps 1 and 2 have new proposals, step 3 four equal ones, and step 4 those of step 1."""
    first = [f"f{n} g{n} h{n} i{n}" for n in range(4)]
    made = {1: first, 2: [f"u{n} v{n} w{n} x{n}" for n in range(4)], 3: ["t u v w"] * 4, 4: first}
    found = likeness(made, most=4, proposals=True)
    assert [round(row["Vendi score"], 9) for row in found.values()] == [4, 4, 1, 4]
    assert [row["self-BLEU"] for row in found.values()] == [0, 0, 1, 0]
    assert isnan(found[1]["novelty"]) and isnan(found[2]["novelty"])  # too few earlier proposals
    assert found[3]["novelty"] == 1  # compared with 8 earlier ones
    assert likeness(made, most=2)[3]["Vendi score"] == pytest.approx(1)
    assert all(isnan(row["novelty"]) for row in likeness(made, most=4).values())
    moves = likeness({1: ["bet", "pass"], 2: ["bet", "bet"]}, most=4, proposals=True)
    assert all(isnan(value) for row in moves.values() for value in row.values())
    again = likeness(dict.fromkeys(range(40), first), most=4, proposals=True)
    assert isnan(again[15]["novelty"]) and again[16]["novelty"] == 0  # after ARCHIVE = 64
    assert ARCHIVE == 64


def test_empty_proposals_are_neither_new_nor_diverse() -> None:
    first = [f"f{n} g{n} h{n} i{n}" for n in range(4)]
    found = likeness({1: first, 2: first, 3: [*first[:2], "", ""]}, most=4, proposals=True)
    assert found[3]["novelty"] == 0
    assert found[3]["self-BLEU"] == 0.5 > found[2]["self-BLEU"]
    assert found[3]["Vendi score"] < found[2]["Vendi score"]


def test_only_proposals_have_novelty() -> None:
    def played(step: int) -> list[Episode]:
        texts = [f"task {step} {n}" for n in range(4)]
        return [
            episode(
                turn("proposer_0", action=text, text=text),
                turn("solver_0", stage=1, action=f"answer {text}", text="x"),
                metrics={"valid_proposal": 1.0},
            )
            for text in texts
        ]

    found = by_role([(step, played(step)) for step in range(4)], {})
    assert 0 < found["proposer"][3]["novelty"] < 1 and isnan(found["solver"][3]["novelty"])
    assert found["solver"][3]["Vendi score"] > 1


def test_phrases_of_self_correction() -> None:
    fraction, rate = corrections(["Wait, recheck. Rechecked.", "so it is seven"])
    assert fraction == 0.5 and rate == pytest.approx(1000 * 2 / 7)


def test_drift_is_zero_for_the_base_itself_and_exact_for_given_chances() -> None:
    model = llama()
    said = turn("solver_0", prompt_ids=(1, 2), completion_ids=(3, 4, 5))
    mine = turn(
        "solver_0",
        prompt_ids=(1, 2),
        completion_ids=(3, 4, 5),
        logprobs=tuple(logprobs(model, said)),
    )
    k1, k3, surprisal = drift([mine], {"base": model})
    assert (k1, k3) == pytest.approx((0, 0), abs=1e-9)
    with torch.no_grad():
        rows = model(input_ids=torch.tensor([[1, 2, 3, 4, 5]])).logits[0].log_softmax(-1)
    wanted = -float(sum(rows[place, token] for place, token in ((1, 3), (2, 4), (3, 5)))) / 3
    assert surprisal == pytest.approx(wanted, rel=1e-4)
    surer = turn(
        "solver_0",
        prompt_ids=(1, 2),
        completion_ids=(3,),
        logprobs=(logprobs(model, said)[0] + log(2),),
    )
    k1, k3, _ = drift([surer], {"base": model})
    assert (k1, k3) == pytest.approx((log(2), 0.5 - 1 + log(2)))
    assert isnan(drift([mine], {})[0]) and exp(0) == 1


def test_turns_that_do_not_fit_the_base_are_left_out_with_a_note(tmp_path: Path) -> None:
    """Records of another program may have other tokens, no log-probabilities or no prompt."""
    good = turn("solver_0", completion_ids=(3, 4))
    odd = [
        replace(good, completion_ids=(3, 99)),
        replace(good, completion_ids=(3, -1)),
        replace(good, logprobs=(-1.0,)),
        replace(good, prompt_ids=()),
    ]
    base = {"base": llama()}
    assert drift([good, *odd], base) == drift([good], base)
    assert all(isnan(drift([each], base)[0]) for each in odd)
    notes = study(folder(tmp_path / "run"), [(1, [episode(good, *odd)])], base).notes
    assert [note for note in notes if note.startswith("4 turns without a prompt, with tokens")]


def test_metrics_by_role_use_equally_much_text_at_each_step() -> None:
    many = [episode(turn("solver_0", action="x", text="a b a b")) for _ in range(8)]
    few = [
        episode(turn("solver_0", action=c, text="a b", stop_reason=StopReason.LENGTH)) for c in "xy"
    ]
    found = by_role([(1, many), (2, few)], {})["solver"]
    assert (found[1]["kinds of action"], found[2]["kinds of action"]) == (1, 2)
    # Both steps use four words, as many as step 2 has: "a b a b" once, or "a b" twice.
    assert (found[1]["distinct-2"], found[2]["distinct-2"]) == pytest.approx((2 / 3, 1 / 2))
    assert (found[1]["cut off"], found[2]["cut off"]) == (0, 1) and found[1]["tokens"] == 1


def test_frozen_opponents_are_left_out_where_a_policy_learns() -> None:
    """In step 2 no policy that learns plays player_1, so the frozen turns of player_1 count."""
    learner, frozen = turn("player_0", action="a"), turn("player_1", action="b", trainable=False)
    match = [
        episode(learner, frozen),
        episode(replace(frozen, agent="player_0"), replace(learner, agent="player_1")),
    ]
    found = by_role([(1, match), (2, match[:1])], {})["player"]
    assert (found[1]["kinds of action"], found[2]["kinds of action"]) == (1, 2)


def folder(place: Path, rows: int = 40, episodes: bool = True) -> Path:
    (place / "episodes").mkdir(parents=True)
    (place / "config.yaml").write_text("{}")
    lines = [{"step": n, "arena/solve_rate": 0.5 + 0.4 * (-1) ** (n // 4)} for n in range(rows)]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if episodes:
        for step in (1, 2):
            line = json.dumps({"episode": to_json(episode(turn("solver_0", text="recheck it")))})
            (place / "episodes" / f"{step:06d}.jsonl").write_text(line + "\n")
    return place


def test_a_run_folder_is_read(tmp_path: Path) -> None:
    result = study(folder(tmp_path / "run"), recorded_episodes(tmp_path / "run"), {})
    found = {each.name: each for each in result.estimates}
    assert found["cycle of arena/solve_rate"].notes == "period 8 steps on record"
    assert found["cycle of arena/solve_rate"].p is not None
    assert found["cycle of arena/solve_rate"].p < 0.05
    assert {row[0]: row[1] for row in result.tables[0].rows}["self-correction"] == 1


def test_numbers_that_are_too_large_are_left_out_with_a_note(tmp_path: Path) -> None:
    """The number 1e400 and the square of 1e308 are infinite as floats."""
    place = folder(tmp_path / "run")
    lines = (place / "metrics.jsonl").read_text().splitlines()
    for row, text in ((3, "1e400"), (7, "1e308"), (11, "-1e308"), (13, "NaN")):
        lines[row] = f'{{"step": {row}, "arena/solve_rate": {text}}}'
    (place / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    result = study(place, recorded_episodes(place), {})
    found = {each.name: each for each in result.estimates}
    assert abs(found["trend of arena/solve_rate"].value) < 1
    assert found["trend of arena/solve_rate"].count == 36
    note = "arena/solve_rate: 4 of 40 values are not finite or too large: left out"
    assert note in result.notes
    assert result.to_json() and page.write(result, tmp_path / "out", command="study").exists()


@pytest.mark.parametrize("value", [1e308, -1e308, math.inf, math.nan, 10**400, 1e200])
def test_series_of_huge_numbers_have_no_value(value: float) -> None:
    for many in ([value] * 20, [value, 1.0] * 10, [10**5000] * 20):
        for found in (trend("x", range(20), many), oscillation("x", many)):
            assert math.isnan(found.value) and "are too few" in found.notes
    assert math.isnan(trend("x", [value] * 20, [1.0] * 20).value)


def test_a_missing_metric_or_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name a metric with --metric"):
        chief({1: {"policy/base/loss": 1.0}}, None)
    with pytest.raises(ConfigError, match="did you mean 'arena/solve_rate'"):
        chief({1: {"arena/solve_rate": 1.0}}, "solve_rate")
    assert chief({1: {"arena/right": 1.0}}, None, ("right",)) == "arena/right"
    assert chief({1: {"arena/accuracy": 0.5, "arena/right": 1.0}}, None, ("right",)) == CHIEF[2]
    with pytest.raises(RunError, match="recorded no episodes; train one with"):
        recorded_episodes(folder(tmp_path / "run", episodes=False))


def test_the_trend_interval_of_autocorrelated_series_covers_zero() -> None:
    """The series are AR(1) with 0.8 and no trend; a bootstrap of blocks would cover 83 %."""
    hits = 0
    for seed in range(200):
        rng, series = np.random.default_rng(seed), [0.0]
        for _ in range(149):
            series.append(0.8 * series[-1] + rng.normal())
        found = trend("x", range(100), series[50:], seed=seed)
        hits += found.low <= 0 <= found.high
    assert 0.9 <= hits / 200 <= 0.98


def test_the_trend_of_a_random_walk_notes_that_its_interval_is_too_narrow() -> None:
    walk = np.random.default_rng(0).normal(size=40).cumsum()
    assert "too narrow" in trend("x", range(40), walk.tolist()).notes
    rng = np.random.default_rng(0)
    assert trend("x", range(100), rng.normal(size=100).tolist()).notes == "per 100 steps"


def test_metrics_of_texts_without_a_value_are_in_notes(tmp_path: Path) -> None:
    said = turn("player_0", action="bet", text="bet")
    asked = turn("proposer_0", action="two words", text="two words")
    proposal = episode(asked, metrics={"valid_proposal": 1.0})
    place = folder(tmp_path / "run")
    steps = [(1, [episode(said)] * 4), (2, [proposal, proposal, episode(said)])]
    notes = study(place, steps, {}).notes
    assert [note for note in notes if note.startswith("no ")] == [
        "no distinct-2 of player: no turn has two words among those that count, which are equally "
        "many at every step",
        "no Vendi score and self-BLEU of player: no action has two words",
        "no novelty of player: no proposals on record; a proposal is the first turn of an episode "
        "with the metric valid_proposal, which an arena measures where an agent proposes a task",
        "no novelty of proposer: too few earlier proposals, or no proposal has two words",
    ]


def test_an_outcome_is_tested_for_cycles_from_the_first_step_of_its_role(tmp_path: Path) -> None:
    place = folder(tmp_path / "run")
    valid, raised = {"role/injector/valid": 1.0}, {"role/injector/verdict/raised": 0.5}
    lines = [{"step": n, **valid, **(raised if n > 29 else {})} for n in range(40)]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = study(place, recorded_episodes(place), {}, metric="role/injector/verdict/raised")
    (found,) = [each for each in result.estimates if each.name.startswith("trend of role")]
    assert found.count == 40 and found.value > 0
