"""Ranks that learn together come to what one learner comes to, and take up each other's state."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from selfplay.errors import ConfigError, DivergedError, RunError
from selfplay.learner import sharded_checkpoint
from selfplay.learner.dpo import DPO
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.logprobs import Scorer
from selfplay.learner.objective import Objective, PolicyLoss
from selfplay.models.lora import adapted, frozen_copy
from selfplay.models.policy_settings import Lora
from selfplay.types import Sample
from tests.helpers.builders import llama, sample
from tests.helpers.failing_objective import FailingLoss
from tests.helpers.learner_processes import Forks, batch, fetched, forked, ranked

REINFORCE = PolicyLoss(ratio="none", clip="none")
LONG = 160
"""A prompt that is long enough to be computed first, as the stem of a row."""


class Blind(Learner):
    """A learner that is given no reference."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **{**settings, "reference": None})


@dataclass(frozen=True, kw_only=True)
class Make:
    """Makes the same learner in every process that it is called in."""

    objective: Objective = REINFORCE
    model: Literal["llama", "peaked", "gpt2", "adapter"] = "llama"
    dtype: torch.dtype = torch.float64
    settings: dict[str, Any] = field(default_factory=dict)
    kind: type[Learner] = Learner

    def __call__(self) -> Learner:
        model, reference = self._models()
        settings = {"lr": 0.01, "clip_norm": 0.5, "max_tokens": 40, **self.settings}
        return self.kind(
            model,
            objective=self.objective,
            settings=LearnerSettings(**settings),
            reference=reference if self.objective.reads_reference else None,
        )

    def _llama(self, seed: int) -> Any:
        made: Any = llama(seed=seed, max_position_embeddings=256)
        return made.to(self.dtype)

    def _models(self) -> tuple[PreTrainedModel, PreTrainedModel]:
        model: Any
        if self.model == "gpt2":  # its output embedding is its input embedding
            torch.manual_seed(0)
            sizes: Any = {"vocab_size": 24, "n_positions": 64, "n_embd": 16}
            model = GPT2LMHeadModel(GPT2Config(**sizes, n_layer=2, n_head=4))
            model = model.to(self.dtype)
            return model, frozen_copy(model)
        model = self._llama(0)
        if self.model == "peaked":
            with torch.no_grad():
                model.get_output_embeddings().weight.mul_(100.0)
        if self.model in ("llama", "peaked"):
            return model, frozen_copy(self._llama(1))
        model.requires_grad_(False)
        made = adapted(model, Lora(rank=2), seed=0, where="policy")
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.data = torch.randn_like(parameter.data).to(self.dtype) / 4
        moves = self.objective.reference == "ema"
        return made, frozen_copy(made) if moves else model


PAIRS = [
    replace(sample(prompt, completion, sign), pair=name)
    for name, prompt, good, bad in (("a", [1, 2, 3], [5, 6, 7], [4]), ("b", [7], [8, 9], [2, 2]))
    for completion, sign in ((good, 1.0), (bad, -1.0))
]
EMA: dict[str, Any] = {"kl": 0.2, "reference": "ema", "ema_rate": 0.3}
MAGNET = PolicyLoss(**EMA)
ONE = {"max_tokens": 10_000, "packing": "rows"}
"""One micro-batch on every rank."""
SEQUENCES = PolicyLoss(ratio="sequence", aggregate="sequence_mean", entropy=0.05)

CASES: dict[str, tuple[Make, list[Sample]]] = {
    "reinforce": (Make(), batch()),
    "float32": (Make(dtype=torch.float32), batch()),
    "several steps": (Make(objective=PolicyLoss(), settings={"mini_batches": 3}), batch()),
    "sequences and entropy": (Make(objective=SEQUENCES), batch()),
    "one long micro-batch": (Make(settings={"max_tokens": 10_000}), batch()),
    "reference": (Make(objective=PolicyLoss(kl=0.2)), batch()),
    "ema": (Make(objective=MAGNET), batch()),
    "exact KL": (Make(objective=PolicyLoss(kl=0.2, estimator="exact")), batch()),
    "forward KL, EMA": (Make(objective=PolicyLoss(**EMA, estimator="forward")), batch()),
    "exact KL, one embedding": (
        Make(model="gpt2", objective=PolicyLoss(kl=0.2, estimator="exact", entropy=0.1)),
        batch(),
    ),
    "correction": (Make(objective=replace(REINFORCE, correction="truncated")), batch()),
    "pairs": (Make(objective=DPO()), PAIRS),
    "adapter": (Make(model="adapter", objective=PolicyLoss(kl=0.2)), batch()),
    "adapter's EMA": (Make(model="adapter", objective=MAGNET), batch()),
    "one embedding": (Make(model="gpt2", objective=PolicyLoss(kl=0.2)), batch()),
    "fewer samples than ranks": (Make(), batch(1)),
    "stems": (
        Make(settings={"packing": "trie", "max_tokens": 500}),
        batch(length=12, stem=LONG),
    ),
    "stems, computed again": (
        Make(settings={"packing": "trie", "max_tokens": 500, "activation_checkpointing": True}),
        batch(length=12, stem=LONG),
    ),
}


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


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def assert_close(
    found: torch.nn.Module, wanted: torch.nn.Module, make: Make, tolerance: float = 1e-4
) -> None:
    """Moved alike from where both began. Norms and rotations are float32 in a llama of any dtype,
    and AdamW makes as much of a gradient that is nothing but rounding as of any other."""
    start, now, other = state(make().model), state(wanted), state(found)
    moved = [name for name in start if not torch.equal(start[name], now[name])]
    assert moved, "nothing was learned"
    for name in start:
        apart, way = (other[name] - now[name]).norm(), (now[name] - start[name]).norm()
        assert apart <= tolerance * way, f"{name}: {apart:.1e} apart after {way:.1e}"


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_learn_what_one_learner_learns(case: str, two: Forks) -> None:
    assert_learned_alike(two, *CASES[case])


@pytest.mark.parametrize("case", ["ema", "fewer samples than ranks", "one embedding"])
def test_so_do_three_among_which_no_tensor_can_be_cut_evenly(case: str, three: Forks) -> None:
    assert_learned_alike(three, *CASES[case])


@pytest.mark.parametrize("model", ["llama", "adapter"])
def test_a_unit_that_is_cut_leaves_no_whole_tensor(model: Any, two: Forks) -> None:
    """A model may be more than one GPU holds, and each unit is moved there to be cut."""
    found, _ = two.ask("whole_while_cut", Make(model=model))
    assert len(found) == 3 and found == sorted(found, reverse=True)
    assert found[0] > found[1] > found[2] == 0


ALIKE = ("float32", "ema", "reference", "adapter", "adapter's EMA", "one embedding")


@pytest.mark.parametrize("case", [*ALIKE, "stems, computed again"])
def test_a_model_that_one_rank_loads_is_bit_for_bit_the_one_that_all_load(
    case: str, two: Forks
) -> None:
    make, _ = CASES[case]
    wanted = two.ask("begin_alike", make, everybody=True)
    found = two.ask("begin_alike", make, everybody=False)
    assert found == wanted and found[0] != found[1]


def test_a_learner_that_cannot_be_made_is_an_error_on_every_rank(two: Forks) -> None:
    with pytest.raises(ConfigError, match="needs a reference policy"):
        two.ask("begin_alike", replace(CASES["reference"][0], kind=Blind), everybody=False)
    assert two.ask("begin_alike", CASES["float32"][0], everybody=False)


COPIES = ("reinforce", "float32", "ema", "adapter", "one embedding", "fewer samples than ranks")


@pytest.mark.parametrize("case", COPIES)
def test_so_do_two_copies_of_two_ranks_each(case: str, four: Forks) -> None:
    make, given = CASES[case]
    assert_learned_alike(four, make, given, replicas=2)
    size = sum(parameter.numel() for parameter in make().parameters)
    first, second, *others = four.ask("held")
    assert first + second == size and others == [first, second]


def test_copies_save_what_any_number_of_ranks_reads(
    four: Forks, two: Forks, tmp_path: Path
) -> None:
    make, given = CASES["float32"]
    alone, together = make(), ranked(four, make, replicas=2)
    for step in (1, 2):
        alone.update(given, step=step)
        together.update(given, step=step)
    hashes = together.save_shards(tmp_path)
    assert set(hashes) == {path.name for path in tmp_path.iterdir()}
    other = ranked(two, make)
    other.policy.model.load_state_dict(fetched(together).state_dict())
    other.load_shards(tmp_path)
    for learner in (alone, together, other):
        learner.update(given, step=3)
    assert_close(fetched(together), alone.model, make)
    assert_close(fetched(other), alone.model, make)


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


def test_a_stem_is_a_stem_on_ranks_too(two: Forks) -> None:
    """The cases above compute their prompts once and not in every sample."""
    make, given = CASES["stems"]
    found = ranked(two, make).update(given, step=1)["computed_tokens"]
    plain = replace(make, settings={**make.settings, "packing": "rows"})
    assert found < ranked(two, plain).update(given, step=1)["computed_tokens"] / 3


def test_bfloat16_is_what_is_computed_in_and_not_what_is_kept(two: Forks) -> None:
    make = Make(dtype=torch.float32, settings={"max_tokens": 1000})
    alone, together = make(), ranked(two, in_bfloat16(make))
    wanted, found = alone.update(batch(), step=1), together.update(batch(), step=1)
    assert found["surprisal"] == pytest.approx(wanted["surprisal"], rel=0.02)
    assert found["surprisal"] != pytest.approx(wanted["surprisal"], rel=1e-6)
    kept = state(fetched(together))
    assert {tensor.dtype for tensor in kept.values()} == {torch.float32}
    assert any(not torch.equal(t, t.bfloat16().float()) for t in kept.values())


class Moving(Learner):
    """A learner that copies its tensors where another one would move them between devices."""

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
def test_ranks_that_rested_go_on_as_if_they_had_not(case: str, two: Forks) -> None:
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
    """0.7 is 0.69921875 in bfloat16, which large logits turn into visible differences."""
    make = Make(model="peaked", dtype=torch.float32, settings={"max_tokens": 1000})
    given = [sample([1, 2, 3], [4, 5, 6], 1.0, temperature=0.7)]
    (found,) = ranked(two, in_bfloat16(make)).logprobs(given)
    short: Any = make().model
    short.to(torch.bfloat16)
    micro = next(make()._micro_batches(given))
    with torch.no_grad():
        (wanted,) = Scorer(short)(micro).logprobs.tolist()
        rounding = replace(micro, temperature=micro.temperature.bfloat16())
        (rounded,) = Scorer(short)(rounding).logprobs
    assert found == pytest.approx(wanted, abs=1e-3)
    assert found != pytest.approx(rounded.tolist(), abs=1e-3)


def in_bfloat16(make: Make) -> Make:
    return replace(make, settings={**make.settings, "precision": "bfloat16"})


def test_what_diverges_on_one_rank_is_told_by_all_and_the_next_batch_goes_on(two: Forks) -> None:
    make = Make(settings={"max_tokens": 1, "max_skipped": 0})
    alone, together = make(), ranked(two, make)
    wrong = replace(batch()[4], advantage=float("nan"), episode=7)
    with pytest.raises(
        DivergedError, match=r"the loss is nan at step 1 on samples 1\.0\.0/7/solver_0;"
    ):
        together.update([*batch(), wrong], step=1)
    alone.update(batch(), step=2)
    together.update(batch(), step=2)
    assert_close(fetched(together), alone.model, make)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_step_that_is_not_finite_is_skipped_by_all_ranks(
    where: Literal["loss", "gradient"], two: Forks, tmp_path: Path
) -> None:
    """The loss fails on one rank only. The count goes on in a checkpoint of ranks."""
    make = Make(objective=MAGNET, settings={"max_skipped": 1})
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


def test_it_begins_again_with_the_weights_of_this_process(two: Forks) -> None:
    make = Make(objective=MAGNET)
    alone, together = make(), ranked(two, make)
    together.update(batch(), step=1)
    for learner, model in ((alone, alone.model), (together, fetched(together))):
        model.load_state_dict(llama(seed=5, max_position_embeddings=256).double().state_dict())
        learner.begin_again()
        learner.update(batch(), step=2)
    assert_close(fetched(together), alone.model, make)


@pytest.mark.parametrize("case", ["ema", "adapter's EMA", "one embedding"])
def test_a_checkpoint_of_ranks_goes_on_with_any_number_of_them(
    case: str, two: Forks, three: Forks, tmp_path: Path
) -> None:
    make, given = CASES[case]
    alone, together = make(), ranked(two, make)
    alone.update(given, step=1)
    together.update(given, step=1)
    hashes = together.save_shards(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert hashes == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert {name[:4] for name in files} == {"__0_", "__1_", ".met"}, "not every rank has written"
    wanted = alone.update(given, step=2)
    saved = fetched(together).state_dict()  # before other learners take its processes

    one, others = make(), [ranked(forks, make) for forks in (two, three)]
    one.model.load_state_dict(saved)
    sharded_checkpoint.load(one, tmp_path)
    assert one.update(given, step=2)["gradient_norm"] == pytest.approx(wanted["gradient_norm"])
    assert_close(one.model, alone.model, make)
    for other in others:
        other.policy.model.load_state_dict(saved)
        other.load_shards(tmp_path)
        other.update(given, step=2)
        assert_close(fetched(other), alone.model, make)


@pytest.mark.parametrize("case", ["ema", "adapter"])
def test_a_checkpoint_of_one_process_goes_on_with_ranks(case: str, two: Forks) -> None:
    make, given = CASES[case]
    alone, together = make(), ranked(two, make)
    alone.update(given, step=1)
    together.policy.model.load_state_dict(alone.model.state_dict())
    together.load_state_dict(alone.state_dict())
    alone.update(given, step=2)
    together.update(given, step=2)
    assert_close(fetched(together), alone.model, make)


def test_before_the_first_update_there_is_a_checkpoint_too(two: Forks, tmp_path: Path) -> None:
    make = Make()
    alone, together, one = make(), ranked(two, make), make()
    together.save_shards(tmp_path)
    together.load_shards(tmp_path)
    sharded_checkpoint.load(one, tmp_path)
    for learner in (alone, together, one):
        learner.update(batch(), step=1)
    assert_close(fetched(together), alone.model, make)
    assert_close(one.model, alone.model, make)


def test_shards_that_cannot_be_used_are_one_line(two: Forks, tmp_path: Path) -> None:
    make = Make()
    together = ranked(two, make)
    together.update(batch(), step=1)
    with pytest.raises(RunError, match=r"does not see .*absent; set run.folder to"):
        together.save_shards(tmp_path / "absent")
    with pytest.raises(RunError, match=r"cannot read .*absent"):
        sharded_checkpoint.load(make(), tmp_path / "absent")
    together.save_shards(tmp_path)
    with pytest.raises(RunError, match=r"it has an optimizer of .* which is not trained here"):
        sharded_checkpoint.load(Make(model="adapter")(), tmp_path)
    (tmp_path / "__1_0.distcp").unlink()
    with pytest.raises(RunError, match="cannot read"):
        sharded_checkpoint.load(make(), tmp_path)
