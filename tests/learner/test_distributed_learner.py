"""Tests that ranks which learn together have the same results as one learner."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import pytest
import torch

from selfplay.errors import ConfigError, DivergedError
from selfplay.learner import sharded_checkpoint
from selfplay.learner.learner import Learner
from selfplay.learner.logprobs import Scorer
from selfplay.types import Sample
from tests.helpers.builders import llama, sample
from tests.helpers.failing_objective import FailingLoss
from tests.helpers.learner_processes import Forks, batch, fetched, ranked
from tests.helpers.rank_learners import CASES, EMA, EMA_LOSS, ONE, Make, assert_close, state


class Blind(Learner):
    """A learner that is given no reference."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **{**settings, "reference": None})


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_learn_what_one_learner_learns(case: str, two: Forks) -> None:
    assert_learned_alike(two, *CASES[case])


@pytest.mark.parametrize("case", ["ema", "fewer samples than ranks", "one embedding"])
def test_three_ranks_with_tensors_that_cannot_be_cut_evenly(case: str, three: Forks) -> None:
    assert_learned_alike(three, *CASES[case])


@pytest.mark.parametrize("model", ["llama", "adapter"])
def test_a_unit_that_is_cut_leaves_no_whole_tensor(model: Any, two: Forks) -> None:
    """Check the whole tensors left while units are cut; a model may be too large for one GPU."""
    found, _ = two.ask("unsharded_while_sharding", Make(model=model))
    assert len(found) == 3 and found == sorted(found, reverse=True)
    assert found[0] > found[1] > found[2] == 0


ALIKE = ("float32", "ema", "reference", "teachers", "adapter", "adapter's EMA", "one embedding")


@pytest.mark.parametrize("case", [*ALIKE, "stems, computed again"])
def test_a_model_loaded_by_one_rank_equals_one_loaded_by_all(case: str, two: Forks) -> None:
    make, _ = CASES[case]
    wanted = two.ask("begin_with_equal_state", make, on_every_rank=True)
    found = two.ask("begin_with_equal_state", make, on_every_rank=False)
    assert found == wanted and found[0] != found[1]


def test_a_learner_that_cannot_be_made_is_an_error_on_every_rank(two: Forks) -> None:
    with pytest.raises(ConfigError, match="needs a reference policy"):
        two.ask(
            "begin_with_equal_state",
            replace(CASES["reference"][0], kind=Blind),
            on_every_rank=False,
        )
    assert two.ask("begin_with_equal_state", CASES["float32"][0], on_every_rank=False)


COPIES = ("reinforce", "float32", "ema", "adapter", "one embedding", "fewer samples than ranks")


@pytest.mark.parametrize("case", COPIES)
def test_two_copies_of_two_ranks_each_learn_what_one_learner_learns(case: str, four: Forks) -> None:
    make, given = CASES[case]
    assert_learned_alike(four, make, given, replicas=2)
    size = sum(parameter.numel() for parameter in make().parameters)
    first, second, *others = four.ask("held")
    assert first + second == size and others == [first, second]


@pytest.mark.parametrize("case", COPIES)
def test_two_copies_on_one_rank_each_learn_what_one_learner_learns(case: str, two: Forks) -> None:
    """Check the copies that two nodes with one rank each have."""
    make, given = CASES[case]
    assert_learned_alike(two, make, given, replicas=2)
    size = sum(parameter.numel() for parameter in make().parameters)
    assert two.ask("held") == [size, size]


@pytest.mark.parametrize("model", ["llama", "adapter"])
def test_copies_add_their_gradients_once_in_an_optimizer_step(model: Any, four: Forks) -> None:
    make = Make(model=model, dtype=torch.float32, settings={"lr": 0.01, "packing": "rows"})
    counts = []
    for tokens in (8, 10_000):
        ranked(four, make, replicas=2)
        counts.append(four.ask("count_sums", tokens)[0])
    (several, first), (one, second) = counts
    assert several > 2 and one == 1
    assert first == second > 0


def assert_learned_alike(forks: Forks, make: Make, given: list[Sample], replicas: int = 1) -> None:
    alone, together = make(), ranked(forks, make, replicas)
    for step in (1, 2):
        wanted, found = alone.update(given, step=step), together.update(given, step=step)
        exact = {name: found[name] for name in ("samples", "tokens", "idle_samples", "lr")}
        assert exact == {name: wanted[name] for name in exact}
        assert set(found) == set(wanted)
        for name in set(wanted) - {*exact, "computed_tokens"}:
            assert found[name] == pytest.approx(wanted[name], rel=1e-5, abs=1e-6), name
    # All of GPT-2 is computed in float64.
    tolerance = 1e-8 if make.model == "gpt2" else 1e-4
    assert_close(fetched(together), alone.model, make, tolerance)


def test_shared_prompts_are_computed_once_on_ranks_too(two: Forks) -> None:
    """Check that a shared prompt is computed once and not in every sample."""
    make, given = CASES["stems"]
    found = ranked(two, make).update(given, step=1)["computed_tokens"]
    plain = replace(make, settings={**make.settings, "packing": "rows"})
    assert found < ranked(two, plain).update(given, step=1)["computed_tokens"] / 3


def test_bfloat16_is_used_in_computation_and_not_for_kept_weights(two: Forks) -> None:
    make = Make(dtype=torch.float32, settings={"max_tokens": 1000})
    alone, together = make(), ranked(two, in_bfloat16(make))
    wanted, found = alone.update(batch(), step=1), together.update(batch(), step=1)
    assert found["surprisal"] == pytest.approx(wanted["surprisal"], rel=0.02)
    assert found["surprisal"] != pytest.approx(wanted["surprisal"], rel=1e-6)
    kept = state(fetched(together))
    assert {tensor.dtype for tensor in kept.values()} == {torch.float32}
    assert any(not torch.equal(t, t.bfloat16().float()) for t in kept.values())


class Moving(Learner):
    """A learner that copies its tensors instead of moving them between devices."""

    def offload(self) -> Callable[[], None]:
        with mock.patch.object(torch.nn.Module, "to", copied):
            restore = super().offload()

        def back() -> None:
            with mock.patch.object(torch.nn.Module, "to", copied):
                restore()

        return back


def copied(module: torch.nn.Module, device: object) -> torch.nn.Module:
    made: torch.nn.Module = module._apply(torch.clone)
    return made


@pytest.mark.parametrize("case", ["ema", "adapter", "one embedding"])
def test_ranks_continue_identically_after_a_rest(case: str, two: Forks) -> None:
    make, given = CASES[case]
    alone, together = make(), ranked(two, replace(make, kind=Moving))
    two.ask("rest")  # before the first pass
    for step in (1, 2):
        wanted, found = alone.update(given, step=step), together.update(given, step=step)
        assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-5, abs=1e-6)
        two.ask("rest")
        two.ask("rest")
    assert_close(fetched(together), alone.model, make)


def test_temperatures_are_not_rounded_on_ranks(two: Forks) -> None:
    """Check 0.7, which is 0.69921875 in bfloat16; large logits make the difference visible."""
    make = Make(model="peaked", dtype=torch.float32, settings={"max_tokens": 1000})
    given = [sample([1, 2, 3], [4, 5, 6], 1.0, temperature=0.7)]
    (found,) = ranked(two, in_bfloat16(make)).logprobs(given)
    short: Any = make().model
    short.to(torch.bfloat16)
    _, micro = next(make()._micro_batches(given))
    with torch.no_grad():
        (wanted,) = Scorer(short)(micro).logprobs.tolist()
        rounding = replace(micro, temperature=micro.temperature.bfloat16())
        (rounded,) = Scorer(short)(rounding).logprobs
    assert found == pytest.approx(wanted, abs=1e-3)
    assert found != pytest.approx(rounded.tolist(), abs=1e-3)


def in_bfloat16(make: Make) -> Make:
    return replace(make, settings={**make.settings, "precision": "bfloat16"})


def test_divergence_on_one_rank_is_an_error_and_the_next_batch_works(two: Forks) -> None:
    make = Make(settings={"max_tokens": 1, "max_skipped": 0})
    alone, together = make(), ranked(two, make)
    wrong = replace(batch()[4], advantage=float("nan"), episode=7)
    with pytest.raises(
        DivergedError, match=r"the loss is nan at step 1 on sample 1\.0\.0/7/solver_0;"
    ):
        together.update([*batch(), wrong], step=1)
    alone.update(batch(), step=2)
    together.update(batch(), step=2)
    assert_close(fetched(together), alone.model, make)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_step_that_is_not_finite_is_skipped_by_all_ranks(
    where: Literal["loss", "gradient"], two: Forks, tmp_path: Path
) -> None:
    """Check a loss that fails on one rank, and the count of skipped steps in a checkpoint."""
    make = Make(objective=EMA_LOSS, settings={"max_skipped": 1})
    wrong = [*batch(), replace(batch()[4], advantage=float("nan"))]
    if where == "gradient":
        failing = FailingLoss(fails=frozenset({1, 2}), where=where, **EMA)
        make, wrong = replace(make, objective=failing, settings={"max_skipped": 1, **ONE}), batch()
    alone, together = make(), ranked(two, make)
    for step, given in ((1, batch()), (2, wrong), (3, batch())):
        if where == "gradient" and step == 3:
            break
        wanted, found = alone.update(given, step=step), together.update(given, step=step)
        assert found.get("skipped") == wanted.get("skipped") == (1.0 if step == 2 else None)
        assert set(found) == set(wanted)
        assert_close(fetched(together), alone.model, make)
    if where == "loss":
        together.update(wrong, step=4)
    together.save_shards(tmp_path)
    together.load_shards(tmp_path)
    with pytest.raises(DivergedError, match="; 2 steps in a row had such a fault"):
        together.update(wrong, step=5)
    one = make()
    sharded_checkpoint.load(one, tmp_path)
    assert one.skipped == 1


def test_ranks_begin_again_with_the_weights_of_this_process(two: Forks) -> None:
    make = Make(objective=EMA_LOSS)
    alone, together = make(), ranked(two, make)
    together.update(batch(), step=1)
    for learner, model in ((alone, alone.model), (together, fetched(together))):
        model.load_state_dict(llama(seed=5, max_position_embeddings=256).double().state_dict())
        learner.begin_again()
        learner.update(batch(), step=2)
    assert_close(fetched(together), alone.model, make)
