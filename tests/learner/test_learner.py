"""Tests of the learner: changes of the weights, and steps that must not change them."""

import copy
import io
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from selfplay.errors import ConfigError, DivergedError
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.objective import PolicyLoss
from tests.helpers.builders import llama, same, sample, weights
from tests.helpers.failing_objective import FailingLoss
from tests.helpers.gradients import REINFORCE, close, gradient, logprobs, on_policy, samples

SFT = replace(REINFORCE, advantage="one")


@pytest.mark.parametrize("aggregate", ["token_mean", "sequence_mean", "sequence_sum", "constant"])
def test_the_gradient_does_not_depend_on_the_micro_batches(aggregate: Any) -> None:
    objective = PolicyLoss(aggregate=aggregate, length=8)
    given = on_policy(llama(), samples())
    whole = gradient(objective, given, max_tokens=10_000)
    assert close(gradient(objective, given, max_tokens=1), whole, 1e-6)
    assert close(gradient(objective, given, max_tokens=20), whole, 1e-6)
    assert close(gradient(objective, given[::-1], max_tokens=20), whole, 1e-6)


def test_the_gradient_is_that_of_the_plain_formula() -> None:
    """Check samples with temperatures, masks, per-token advantages and advantages of 0."""
    model, total, tokens = llama(), torch.zeros(()), 0
    for one in samples():
        mask = torch.tensor(one.turn.loss_mask)
        total = total - (logprobs(model, one) * torch.tensor(one.advantage) * mask).sum()
        tokens += int(mask.sum())
    (total / tokens).backward()
    wanted = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert close(gradient(REINFORCE, samples()), wanted)
    assert close(gradient(PolicyLoss(aggregate="token_mean"), on_policy(model, samples())), wanted)


def test_skipped_rows_do_not_change_the_gradient() -> None:
    class Unskipped(PolicyLoss):
        linear_in_advantage = False

    assert close(gradient(PolicyLoss(), samples()), gradient(Unskipped(), samples()), 1e-6)


@pytest.mark.parametrize("aggregate", ["token_mean", "sequence_mean", "sequence_sum", "constant"])
def test_rows_without_advantage_count_in_the_denominators(aggregate: Any) -> None:
    one, idle = sample([1, 2], [5, 6], 1.0), sample([3], [4, 7], 0.0)
    objective = PolicyLoss(aggregate=aggregate, length=4)
    assert close(2 * gradient(objective, [one, idle]), gradient(objective, [one]), 1e-6)


def test_masked_tokens_are_not_learned() -> None:
    """Check that another token at a masked last place does not change the gradient."""
    first = sample([1, 2], [5, 6], 1.0, loss_mask=(1, 0))
    second = sample([1, 2], [5, 9], 1.0, loss_mask=(1, 0))
    assert close(gradient(SFT, [first]), gradient(SFT, [second]), 1e-6)
    nothing = sample([1, 2], [5, 6], 1.0, loss_mask=(0, 0))
    assert close(gradient(SFT, [first, nothing]), gradient(SFT, [first]), 1e-6)
    learner = Learner(llama(), objective=SFT)
    assert learner.update([first, nothing], step=1)["samples_without_tokens"] == 1


def test_on_policy_nothing_is_clipped_and_the_policy_kl_is_0() -> None:
    model = llama()
    found = Learner(model, objective=PolicyLoss()).update(on_policy(model, samples()), step=1)
    assert found["clipped"] == 0
    assert abs(found["policy_kl"]) < 1e-10


def test_updates_are_computed_without_dropout() -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 24,
        "n_positions": 32,
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
    }
    model = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.5, embd_pdrop=0.5)).eval()
    found = Learner(model, objective=PolicyLoss()).update(on_policy(model, samples()), step=1)
    assert abs(found["policy_kl"]) < 1e-10


def test_likelihood_rises_for_good_samples_and_falls_for_bad() -> None:
    for objective, advantage, sign in ((SFT, -3.0, 1), (REINFORCE, 1.0, 1), (REINFORCE, -1.0, -1)):
        model, one = llama(), sample([1, 2], [5, 6], advantage)
        before = float(logprobs(model, one).sum().detach())
        Learner(model, objective=objective, settings=LearnerSettings(lr=1e-3)).update([one], step=1)
        assert sign * (float(logprobs(model, one).sum().detach()) - before) > 0


@pytest.mark.parametrize("estimator", ["k2", "k3", "exact", "forward", "jsd"])
def test_the_kl_term_pulls_towards_the_reference(estimator: Any) -> None:
    model, reference, one = llama(0), llama(1).requires_grad_(False), sample([1, 2], [5], 0.0)
    objective = replace(REINFORCE, kl=1.0, estimator=estimator)
    kept = weights(reference)

    def gap() -> float:
        return (logprobs(model, one) - logprobs(reference, one)).abs().item()

    before = gap()
    Learner(
        model, objective=objective, reference=reference, settings=LearnerSettings(lr=1e-3)
    ).update([one], step=1)
    assert gap() < before
    assert same(kept, weights(reference))
    with pytest.raises(ConfigError, match="needs a reference"):
        Learner(model, objective=objective)


@pytest.mark.parametrize("estimator", ["k2", "exact", "forward"])
def test_only_the_forward_kl_pulls_at_a_token_that_is_hardly_ever_sampled(estimator: Any) -> None:
    """Check token 7, whose probability is 1e-7 in the policy and 1 / 24 in the reference."""
    model, reference = llama(0), llama(0).requires_grad_(False)
    head = torch.nn.Linear(16, 24)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    reference.set_output_embeddings(head.requires_grad_(False))
    own = copy.deepcopy(head).requires_grad_(True)
    with torch.no_grad():
        own.bias[7] = -13.0
    model.set_output_embeddings(own)
    objective = replace(REINFORCE, kl=1.0, estimator=estimator)
    learner = Learner(
        model, objective=objective, reference=reference, settings=LearnerSettings(clip_norm=1e9)
    )
    learner.update([sample([1, 2], [token], 0.0) for token in (3, 4)], step=1)
    assert own.bias.grad is not None
    pull = -float(own.bias.grad[7])
    assert pull == pytest.approx(1 / 24 if estimator == "forward" else 0, abs=1e-5)


def test_the_entropy_bonus_raises_entropy() -> None:
    def entropy() -> float:
        logits = model(input_ids=torch.tensor([[1, 2]])).logits[0, -1].detach()
        return float(torch.distributions.Categorical(logits=logits).entropy())

    model = llama()
    before = entropy()
    objective = replace(REINFORCE, entropy=1.0)
    Learner(model, objective=objective, settings=LearnerSettings(lr=1e-3)).update(
        [sample([1, 2], [5], 0.0)], step=1
    )
    assert entropy() > before


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_an_error_and_changes_no_weight(broken: float) -> None:
    model = llama()
    before = weights(model)
    learner = Learner(
        model, objective=REINFORCE, settings=LearnerSettings(lr=0.1, max_tokens=1, max_skipped=0)
    )
    with pytest.raises(DivergedError, match=r"loss is (nan|-?inf) at step 7 on sample 1.0.0/0/sol"):
        learner.update([*samples(), sample([1], [2], broken)], step=7)
    assert same(before, weights(model))
    learner.update(samples(), step=8)  # the broken gradient is not carried over
    assert not same(before, weights(model)) and all(w.isfinite().all() for w in weights(model))


def test_publishing_weights_frees_the_gradients() -> None:
    learner = Learner(llama(), objective=REINFORCE)
    learner.update(samples(), step=1)
    assert any(parameter.grad is not None for parameter in learner.parameters)
    learner.weights()
    assert all(parameter.grad is None for parameter in learner.parameters)


def test_a_nonfinite_gradient_is_an_error_and_changes_no_weight() -> None:
    model = llama()
    model.model.norm.weight.register_hook(lambda gradient: gradient * math.nan)
    before = weights(model)
    with pytest.raises(DivergedError, match=r"norm is nan at step 3 on sample 1.0.0/0/sol"):
        Learner(model, objective=REINFORCE, settings=LearnerSettings(lr=0.1, max_skipped=0)).update(
            samples(), step=3
        )
    assert same(before, weights(model))


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_no_state(where: Any) -> None:
    """Check that the weights, the moments, the warm-up and the EMA do not change."""
    ema: dict[str, Any] = {"kl": 0.1, "reference": "ema", "ema_rate": 0.5}
    settings: dict[str, Any] = {"lr": 0.01, "warmup_steps": 4, "packing": "rows"}
    learners = [
        Learner(
            llama(),
            objective=FailingLoss(fails=frozenset(fails), where=where, **ema),
            reference=llama(),
            settings=LearnerSettings(**settings),
        )
        for fails in ({1, 2}, ())
    ]
    learner, plain = learners
    wanted = [plain.update(samples(), step=step) for step in (1, 4)]
    found = [learner.update(samples(), step=step) for step in (1, 2, 3, 4)]
    assert [each.get("skipped") for each in found] == [None, 1.0, 1.0, None]
    assert [found[0], found[3]] == wanted
    assert all(math.isfinite(value) for each in found for value in each.values())
    assert not {"gradient_norm", "lr"} & set(found[1]) and found[1]["tokens"] == wanted[0]["tokens"]
    assert same(weights(learner.model), weights(plain.model))
    assert same(weights(learner.references.average), weights(plain.references.average))
    assert (learner.steps, learner.skipped) == (2, 0)


def test_other_mini_batches_of_a_step_are_learned_from() -> None:
    objective = FailingLoss(fails=frozenset({1}))
    learner = Learner(
        llama(),
        objective=objective,
        settings=LearnerSettings(lr=0.01, mini_batches=4, packing="rows"),
    )
    found = learner.update(samples(), step=1)
    assert found["skipped"] == 1 and learner.steps == len(objective.seen) - 1 > 1
    assert math.isfinite(found["loss"]) and math.isfinite(found["gradient_norm"])
    assert found["tokens"] == learner.update(samples(), step=2)["tokens"]


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_too_many_nonfinite_steps_in_a_row_end_the_run(where: Any) -> None:
    model, before = llama(), weights(llama())
    objective = FailingLoss(fails=frozenset({0, 1, 3, 4, 5}), where=where)
    learner = Learner(
        model, objective=objective, settings=LearnerSettings(lr=0.0, max_skipped=2, packing="rows")
    )
    for step in range(1, 6):
        learner.update(samples(), step=step)
    message = (
        r"is nan at step 6 on .*; 3 steps in a row had such a fault \(learner.max_skipped\); lower "
        r"the learning rate, or resume from the last checkpoint with other settings$"
    )
    with pytest.raises(DivergedError, match=message):
        learner.update(samples(), step=6)
    assert same(before, weights(model))


def test_a_resumed_run_continues_the_count_of_skipped_steps() -> None:
    objective = FailingLoss(fails=frozenset(range(9)))
    first, second = (
        Learner(llama(), objective=objective, settings=LearnerSettings(max_skipped=2))
        for _ in range(2)
    )
    for step in (1, 2):
        first.update(samples(), step=step)
    second.load_state_dict(first.state_dict())
    with pytest.raises(DivergedError, match="3 steps in a row"):
        second.update(samples(), step=3)
    old = {name: value for name, value in first.state_dict().items() if name != "skipped"}
    second.load_state_dict(old)  # of an earlier version
    assert second.skipped == 0
    first.begin_again()
    assert first.skipped == 0


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_ends_the_run_at_once(broken: float) -> None:
    model = llama()
    learner = Learner(model, objective=REINFORCE)
    with torch.no_grad():
        model.model.norm.weight[3] = broken
    with pytest.raises(DivergedError, match=r"^weight model.norm.weight is not finite, and the "):
        learner.update(samples(), step=1)


def test_without_signal_no_step_is_taken() -> None:
    model = llama()
    learner = Learner(
        model, objective=PolicyLoss(), settings=LearnerSettings(lr=0.1, weight_decay=0.1)
    )
    learner.update(samples(), step=1)  # so that Adam has momentum
    before, idle = weights(model), [sample([1], [2, 3], 0.0), sample([1], [2], (0.0,))]
    found = learner.update(idle, step=2)
    assert same(before, weights(model)) and learner.steps == 1
    assert found["idle_samples"] == 2 and found["loss"] == 0 and "lr" not in found
    assert all(math.isfinite(value) for value in found.values())
    assert learner.update([], step=3) == {"samples": 0, "samples_without_tokens": 0}


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        # the fifth of five steps, and all later ones, are made at the last rate
        ({"decay_steps": 5, "final_lr": 0.1}, [0.82e-2, 0.64e-2, 0.46e-2, 0.28e-2, 0.1e-2, 0.1e-2]),
        ({"decay_steps": 4, "final_lr": 0.0}, [0.75e-2, 0.5e-2, 0.25e-2, 0.0, 0.0, 0.0]),
        # the smaller of the two rates counts while the learner warms up
        (
            {"decay_steps": 5, "final_lr": 0.5, "warmup_steps": 3},
            [1e-2 / 3, 2e-2 / 3, 0.7e-2, 0.6e-2, 0.5e-2, 0.5e-2],
        ),
        ({"final_lr": 0.1, "warmup_steps": 2}, [0.5e-2, 1e-2, 1e-2, 1e-2, 1e-2, 1e-2]),
    ],
)
def test_the_learning_rate_falls_to_its_last_value(
    settings: dict[str, Any], rates: list[float]
) -> None:
    learner = Learner(llama(), objective=REINFORCE, settings=LearnerSettings(lr=1e-2, **settings))
    metrics = [learner.update(samples(), step=step) for step in range(1, 4)]
    twin = Learner(llama(), objective=REINFORCE, settings=LearnerSettings(lr=1e-2, **settings))
    twin.load_state_dict(learner.state_dict())  # the restored rate continues to fall
    metrics += [twin.update(samples(), step=step) for step in range(4, 7)]
    assert [each["lr"] for each in metrics] == pytest.approx(rates)


def test_a_restored_learner_continues_identically() -> None:
    model = llama()
    learner = Learner(
        model,
        objective=REINFORCE,
        settings=LearnerSettings(lr=1e-2, warmup_steps=5, mini_batches=2),
    )
    learner.update(samples(), step=1)
    file = io.BytesIO()
    torch.save([learner.state_dict(), model.state_dict()], file)
    learner.update(samples(), step=2)
    file.seek(0)
    state, tensors = torch.load(file, weights_only=True)
    twin_model = llama(seed=5)
    twin_model.load_state_dict(tensors)
    twin = Learner(
        twin_model,
        objective=REINFORCE,
        settings=LearnerSettings(lr=1e-2, warmup_steps=5, mini_batches=2),
    )
    twin.load_state_dict(state)
    twin.update(samples(), step=2)
    assert same(weights(model), weights(twin_model)) and twin.steps == 4


def test_one_policys_step_leaves_the_others_alone() -> None:
    first, second = llama(0), llama(0)
    learners = [
        Learner(model, objective=SFT, settings=LearnerSettings(lr=0.1)) for model in (first, second)
    ]
    before = weights(second)
    learners[0].update(samples(), step=1)
    assert same(before, weights(second)) and not same(before, weights(first))


def test_frozen_parameters_stay() -> None:
    model = llama()
    model.model.embed_tokens.weight.requires_grad_(False)
    before = model.model.embed_tokens.weight.clone()
    Learner(model, objective=SFT, settings=LearnerSettings(lr=0.1)).update(samples(), step=1)
    assert torch.equal(before, model.model.embed_tokens.weight)
    with pytest.raises(ConfigError, match="no parameter"):
        Learner(model.requires_grad_(False), objective=SFT)


def test_greedy_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="temperature above 0"):
        Learner(llama(), objective=SFT).update([sample([1], [2], 1.0, temperature=0.0)], step=1)


@pytest.mark.parametrize(
    "objective",
    [PolicyLoss(), REINFORCE, PolicyLoss(correction="truncated"), PolicyLoss(correction="masked")],
)
@pytest.mark.parametrize("broken", [math.nan, -math.inf, math.inf])
def test_a_trainable_token_without_a_probability_is_an_error(
    objective: PolicyLoss, broken: float
) -> None:
    model = llama()
    before = weights(model)
    given = [*samples(), sample([1], [5, 6], 1.0, logprobs=(-1.0, broken))]
    message = f"sample 1.0.0/0/solver_0: the sampler gave token 1 of .* log-probability {broken}"
    with pytest.raises(DivergedError, match=message):
        Learner(model, objective=objective, settings=LearnerSettings(lr=0.1)).update(given, step=1)
    assert same(before, weights(model))


@pytest.mark.parametrize(
    "objective",
    [
        PolicyLoss(),
        PolicyLoss(ratio="sequence", aggregate="sequence_mean"),
        REINFORCE,
        PolicyLoss(correction="truncated"),
        PolicyLoss(correction="masked", kl=0.1, entropy=0.1),
    ],
)
@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_nonfinite_values_of_a_masked_token_change_nothing(
    objective: PolicyLoss, broken: float
) -> None:
    def found(logprob: float, advantage: float) -> torch.Tensor:
        mixed = sample(
            [1, 2],
            [5, 6, 7],
            (1.0, advantage, -1.0),
            loss_mask=(1, 0, 1),
            logprobs=(-1.0, logprob, -1.0),
        )
        return gradient(objective, [*samples(), mixed], reference=llama(1))

    wanted = found(-1.0, 0.5)
    assert torch.equal(found(broken, 0.5), wanted)
    assert torch.equal(found(-1.0, broken), wanted)


def test_log_probabilities_are_computed_without_dropout() -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 24, "n_positions": 32, "n_embd": 16, "n_layer": 1}
    config = GPT2Config(**sizes, n_head=2, resid_pdrop=0.5, embd_pdrop=0.5)
    model = GPT2LMHeadModel(config).train()
    reference = GPT2LMHeadModel(config).train()
    learner = Learner(model, objective=PolicyLoss(kl=0.1), reference=reference)
    for kind in (False, True):
        found = learner.logprobs(samples(), reference=kind)
        assert found == learner.logprobs(samples(), reference=kind)
        assert (reference if kind else model).training
    model.eval()
    assert learner.logprobs(samples()) == learner.logprobs(samples()) and not model.training
