"""Tests of the comparison of DAPO's parts: rewards, dropped samples and tables."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfplay.config import compose
from selfplay.config.instantiate import build
from selfplay.credit.grpo import GRPO
from selfplay.credit.shaping import Shaping
from selfplay.types import Episode, Group, Status, StopReason, Task, Turn
from tests.helpers import builders
from tests.helpers.scripts import script

script("bakeoff_learning")
script("bakeoff_table")
words: Any = script("word_game")
bakeoff: Any = script("dapo_bakeoff")
GAME = words.WordGame(letters=2, longest=bakeoff.LIMIT, targets=bakeoff.TARGETS["short"])
LEAVES = words.Leaves(GAME)
RUN = {"lag": 0, "budget": 192, "rate": 0.3}


def turn(count: int, reward: float, reason: StopReason) -> Turn:
    """Return a turn with a word of `count` tokens."""
    return builders.turn(
        "player_0", reward, prompt_ids=(0,), completion_ids=(0,) * count, stop_reason=reason
    )


@pytest.mark.parametrize(
    ("name", "pay"),
    [
        ("as paid", [1.0, 1.0, 1.0, 0.25]),
        ("paid 0", [1.0, 1.0, 1.0, 0.0]),
        ("left out", [1.0, 1.0, 1.0, 0.25]),
        ("buffer 1", [1.0, 1.0, 0.0, -0.75]),
        ("buffer 2", [1.0, 0.5, 0.0, -0.75]),
        ("buffer 2, half", [1.0, 0.75, 0.5, -0.25]),
        ("paid 0, buffer 2", [1.0, 0.5, 0.0, -1.0]),
    ],
)
def test_pay_of_words_near_the_limit(name: str, pay: list[float]) -> None:
    """The words have 6, 7 and 8 tokens and ended, and a fourth one was cut off."""
    turns = [turn(count, 1.0, StopReason.STOP) for count in (6, 7, 8)]
    turns.append(turn(8, 0.25, StopReason.LENGTH))
    episode = Episode(
        arena="words", task=Task(id="0"), seed=0, turns=tuple(turns), status=Status.FINISHED
    )
    shaping = Shaping(bakeoff.PENALTY[name].shaping)
    (shaped,) = shaping.apply([Group(id="g", episodes=(episode,))])
    assert [each.reward for each in shaped[0].episodes[0].turns] == pay


def test_targets_below_the_buffer_and_in_it() -> None:
    """The penalty starts at 7 tokens, so it lowers the rewards of two long targets only."""
    lengths = {
        name: [len(target) + 1 for target in targets] for name, targets in bakeoff.TARGETS.items()
    }
    assert lengths == {"short": [2, 4, 5, 6], "long": [2, 4, 7, 8]}


def test_parts_are_those_of_the_config() -> None:
    """`all four` has DAPO's objective, and `grpo` that of GRPO."""
    parts = bakeoff.PARTS
    dapo, grpo = parts["all four (dapo)"], parts["grpo"]
    for name, method in (("dapo", dapo), ("grpo", grpo)):
        config = compose.load(["+experiment=tiny/long_road", f"objective={name}"])["objective"]
        wanted, found = build(config, where="objective"), method.objective()
        for part in ("ratio", "clip", "low", "high", "aggregate"):
            assert getattr(found, part) == getattr(wanted, part), (name, part)
    assert dapo.dynamic and dapo.shaping == {"overlong": bakeoff.SOFT["overlong"]}
    single = [parts[name] for name in ("clip higher", "dynamic", "token mean", "overlong")]
    changed = [(each.higher, each.dynamic, each.token_mean, bool(each.shaping)) for each in single]
    assert changed == [tuple(place == part for place in range(4)) for part in range(4)]


def test_the_first_values_are_those_of_the_first_policy() -> None:
    """The exact fraction of cut-off words agrees with sampled words."""
    logits = np.random.default_rng([5, 4]).normal(size=GAME.shape)
    logits[:, GAME.letters] -= bakeoff.RARE
    (words_played, found), *_ = bakeoff.learn(LEAVES, bakeoff.PENALTY["as paid"], 5, **RUN)
    drawn = GAME.sampled(torch.from_numpy(logits), [0, 1, 2, 3] * 1000, np.random.default_rng(0))
    cut = np.mean([each.stop_reason is StopReason.LENGTH for each in drawn])
    assert words_played == 0
    assert found[0] == pytest.approx(np.mean([each.reward for each in drawn]), abs=0.02)
    assert found[1] == pytest.approx(cut, abs=0.03)
    assert found[2] == pytest.approx(np.mean([each.reward == 1.0 for each in drawn]), abs=0.02)
    assert found[3] == pytest.approx(np.mean([len(e.completion_ids) for e in drawn]), abs=0.1)


def test_left_out_words_have_no_gradient() -> None:
    """With a policy that never ends a word all samples are dropped, and nothing is learned."""
    leaves = words.Leaves(GAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bakeoff, "RARE", 1000.0)
        still = bakeoff.learn(leaves, bakeoff.PENALTY["left out"], 0, **RUN)
        moved = bakeoff.learn(leaves, bakeoff.PENALTY["as paid"], 0, **RUN)
    assert {facts[0] for _, facts in still} == {still[0][1][0]}
    assert moved[-1][1][0] != moved[0][1][0]


def test_runs_differ_by_method_and_are_repeated_exactly() -> None:
    def run(method: Any, lag: int) -> Any:
        return bakeoff.learn(LEAVES, method, 0, **{**RUN, "lag": lag})

    first = run(bakeoff.PENALTY["as paid"], 0)
    assert first == run(bakeoff.PENALTY["as paid"], 0) != run(bakeoff.PENALTY["buffer 2"], 0)
    assert [count for count, _ in first] == [0, 48, 96, 144, 192]
    grpo = run(bakeoff.PARTS["grpo"], 2)
    assert all(run(bakeoff.PARTS[name], 2) != grpo for name in ("token mean", "overlong"))


def test_words_are_sampled_by_the_policy_of_earlier_steps() -> None:
    first, second = torch.zeros(*GAME.shape), torch.zeros(*GAME.shape)
    second[:, GAME.letters] += 1000
    writer = bakeoff.Writer(GAME, first, np.random.default_rng(0), 1)
    spec = bakeoff.EpisodeSpec(task=Task(id="2"), seed=0)
    lengths = []
    for _ in range(2):
        writer.weights.append(second)
        played = writer([spec] * 50)
        lengths.append(np.mean([len(each.turns[0].completion_ids) for each in played]))
    assert lengths[0] > 2 and lengths[1] == 1.0
    assert writer.words == 100 and played[0].turns[0].prompt_ids == (2,)


def test_credit_compares_the_words_of_one_task() -> None:
    """The advantages of each group sum to 0."""
    writer = bakeoff.Writer(
        GAME, torch.zeros(*GAME.shape, dtype=torch.float64), np.random.default_rng(0), 0
    )
    curriculum = bakeoff.FixedTasks(tasks=[Task(id=str(n)) for n in range(4)], batch=4)
    sampler = bakeoff.PARTS["grpo"].sampler()
    samples = GRPO().assign(sampler.sample(curriculum, writer, step=1, seed=0))
    sums = dict.fromkeys(range(4), 0.0)
    for each in samples:
        sums[each.turn.prompt_ids[0]] += np.asarray(each.advantage).item()
    assert list(sums.values()) == pytest.approx([0.0] * 4, abs=1e-9)


def test_a_table_and_its_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept.json"
    small = ["--seeds", "2", "--budget", "96", "--rates", "0.3", "--targets", "long"]
    names = ["--methods", "as paid", "buffer 2"]
    bakeoff.main(["penalty", *small, *names, "--json", str(kept)])
    printed = capsys.readouterr().out.splitlines()
    table = [line for line in printed if line.startswith("| `")]
    assert [line.split(" | ")[0] for line in table] == ["| `as paid`", "| `buffer 2`"]
    assert "| 0.000 (0.000 to 0.000) |" in table[0]
    rows = json.loads(kept.read_text())
    cut = np.mean([row["run"][0][1][1] for row in rows])
    assert printed[-1].startswith("at the start: return 0.") and f"cut off {cut:.3f}" in printed[-1]
    bakeoff.main(["table", "--json", str(kept)])
    assert [row for row in capsys.readouterr().out.splitlines() if row.startswith("| `")] == table
    bakeoff.main(["draw", "--json", str(kept), "--folder", str(tmp_path)])
    assert len(rows) == 4 and {path.name for path in tmp_path.glob("*.svg")} == {
        "bakeoff_dapo_penalty_long.svg",
        "bakeoff_dapo_cut_long.svg",
    }


def test_a_table_needs_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bakeoff.main(["table"])
    assert "table needs --json FILE" in capsys.readouterr().err


def test_an_unknown_method_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bakeoff.main(["parts", "--methods", "buffer 2"])
    assert "parts has no methods ['buffer 2']" in capsys.readouterr().err
