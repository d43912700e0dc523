"""Tests of teachers: frozen models, one for each role, whose distributions a policy learns."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributions import Categorical
from transformers import GPT2Config, GPT2LMHeadModel

from selfplay.config.schedule import Schedule
from selfplay.errors import ConfigError
from selfplay.learner.learner import Learner
from selfplay.learner.learner_settings import LearnerSettings
from selfplay.learner.logprobs import read_logits
from selfplay.learner.objective import PolicyLoss
from selfplay.types import Sample
from tests.helpers.builders import llama, same, weights
from tests.helpers.divergences import generalised_jsd
from tests.helpers.gradients import close, gradient, logprobs, samples

DISTILLATION = PolicyLoss(
    ratio="none", clip="none", advantage="none", kl=1.0, reference="teacher", estimator="exact"
)


def of_two_roles() -> list[Sample]:
    """Return samples; the second and the fourth are a proposer's, the others a solver's."""
    given = samples()
    for n in (1, 3):
        given[n] = replace(given[n], turn=replace(given[n].turn, role="proposer"))
    return given


def teachers() -> dict[str, Any]:
    return {"solver": llama(1).requires_grad_(False), "proposer": llama(2).requires_grad_(False)}


def distribution(model: Any, one: Sample) -> torch.Tensor:
    """Return [C, V] log-probabilities at the tokens of a completion, without learner code."""
    turn = one.turn
    ids = torch.tensor([[*turn.prompt_ids, *turn.completion_ids]])
    logits = model(input_ids=ids).logits[0, len(turn.prompt_ids) - 1 : -1] / turn.temperature
    return logits.log_softmax(-1)


@pytest.mark.parametrize("most", [10_000, 1])
@pytest.mark.parametrize("direction", ["exact", "forward", "jsd"])
def test_each_role_learns_from_its_own_teacher_for_any_micro_batches(
    direction: Any, most: int
) -> None:
    model, known, total, tokens = llama(), teachers(), torch.zeros(()), 0
    for one in of_two_roles():
        own = distribution(model, one)
        theirs = distribution(known[one.turn.role], one)
        beta = {"exact": 1.0, "forward": 0.0, "jsd": 0.3}[direction]
        nats = generalised_jsd(Categorical(logits=own), Categorical(logits=theirs), beta)
        mask = torch.tensor(one.turn.loss_mask)
        total = total + (nats * mask).sum()
        tokens += int(mask.sum())
    (total / tokens).backward()
    wanted = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    objective = replace(DISTILLATION, estimator=direction, jsd_beta=0.3)
    found = gradient(objective, of_two_roles(), reference=known, max_tokens=most)
    assert close(found, wanted)
    exchanged = {"solver": known["proposer"], "proposer": known["solver"]}
    assert not close(gradient(objective, of_two_roles(), reference=exchanged), wanted, 0.1)


def test_rewards_are_not_read_unless_they_are_asked_for() -> None:
    paid = [replace(one, advantage=7.0) for one in of_two_roles()]
    one, known = llama(1).requires_grad_(False), teachers()
    for reference in (one, known):
        plain = gradient(DISTILLATION, of_two_roles(), reference=reference)
        assert close(gradient(DISTILLATION, paid, reference=reference), plain, 1e-6)
        both = replace(DISTILLATION, advantage="credit")
        assert not close(gradient(both, paid, reference=reference), plain, 0.1)


def test_the_policy_approaches_its_teachers_and_they_do_not_change() -> None:
    model, known = llama(), teachers()
    kept = [weights(each) for each in known.values()]
    settings = LearnerSettings(lr=0.01)
    learner = Learner(model, objective=DISTILLATION, reference=known, settings=settings)
    first = learner.update(of_two_roles(), step=1)["reference_kl"]
    for step in range(2, 60):
        last = learner.update(of_two_roles(), step=step)["reference_kl"]
    assert last < first / 10
    assert all(same(now, weights(each)) for now, each in zip(kept, known.values(), strict=True))
    assert "ema" not in learner.state_dict()


def test_log_probabilities_of_the_reference_are_those_of_each_teacher() -> None:
    known, given = teachers(), of_two_roles()
    learner = Learner(llama(), objective=DISTILLATION, reference=known)
    for found, one in zip(learner.logprobs(given, reference=True), given, strict=True):
        wanted = logprobs(known[one.turn.role], one).tolist()
        own = [t for t, chosen in enumerate(one.turn.loss_mask) if chosen]
        assert [found[t] for t in own] == pytest.approx([wanted[t] for t in own], abs=1e-5)


def test_roles_with_one_teacher_share_its_passes() -> None:
    one = llama(1).requires_grad_(False)
    learner = Learner(llama(), objective=DISTILLATION, reference={"solver": one, "proposer": one})
    assert learner.references.models == [one] and len(learner.references.scorers) == 1
    settings: Any = {"packing": "rows", "max_tokens": 10_000}
    shared = gradient(
        DISTILLATION, of_two_roles(), reference={"solver": one, "proposer": one}, **settings
    )
    assert torch.equal(shared, gradient(DISTILLATION, of_two_roles(), reference=one, **settings))


def test_a_step_at_which_the_weight_of_the_kl_is_0_changes_nothing() -> None:
    model = llama()
    before = weights(model)
    objective = replace(DISTILLATION, kl=Schedule(steps=(1, 2), values=(0.0, 1.0)))
    learner = Learner(model, objective=objective, reference=teachers())
    learner.update(of_two_roles(), step=1)
    assert same(before, weights(model))
    learner.update(of_two_roles(), step=2)
    assert not same(before, weights(model))


def test_dropout_of_a_teacher_is_off() -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 24, "n_positions": 64, "n_embd": 16, "n_layer": 1}
    teacher = GPT2LMHeadModel(GPT2Config(**sizes, n_head=2, resid_pdrop=0.5)).requires_grad_(False)
    found = []
    for mode in (True, False):
        learner = Learner(llama(), objective=DISTILLATION, reference=teacher.train(mode))
        found.append(learner.update(of_two_roles(), step=1)["reference_kl"])
    assert found[0] == found[1]


def test_a_sample_too_long_for_a_teacher_is_a_one_line_error() -> None:
    known = {**teachers(), "proposer": llama(2, max_position_embeddings=5)}
    learner = Learner(llama(), objective=DISTILLATION, reference=known)
    with pytest.raises(
        ConfigError, match=r"tokens, and its model is correct for at most 5, .*refe"
    ):
        learner.update(of_two_roles(), step=1)


@pytest.mark.parametrize("estimator", ["exact", "forward", "jsd", "k2", "k3"])
def test_only_a_kl_over_the_vocabulary_may_read_older_samples(estimator: Any) -> None:
    """Check that estimates from sampled tokens are allowed for the present weights only."""
    objective = replace(DISTILLATION, estimator=estimator)
    whole = estimator in ("exact", "forward", "jsd")
    assert objective.off_policy is whole and objective.needs_present_weights is not whole


def test_an_estimate_without_a_gradient_is_refused() -> None:
    with pytest.raises(ValueError, match="estimator=k1 has no gradient in expectation"):
        replace(DISTILLATION, estimator="k1")


def test_a_role_without_a_teacher_is_an_error() -> None:
    known = {"proposer": teachers()["proposer"]}
    learner = Learner(llama(), objective=DISTILLATION, reference=known)
    with pytest.raises(ConfigError, match=r"'solver' has no teacher; the policy has some for pro"):
        learner.update(of_two_roles(), step=1)


@pytest.mark.parametrize("divergence", [1.0, 0.0, 0.3])
@pytest.mark.parametrize(("own", "others"), [(5, 8), (8, 5), (6, 6)])
def test_models_whose_vocabularies_are_padded_differently(
    divergence: float, own: int, others: int
) -> None:
    """Check that the KL is over the tokens that both have, and the other values over all tokens."""
    torch.manual_seed(0)
    logits, reference = torch.randn(3, own), torch.randn(3, others)
    targets, temperature = torch.tensor([0, 4, 2]), torch.tensor([1.0, 0.5, 2.0])
    found = read_logits(
        logits, targets, temperature, entropy=True, reference=reference, divergence=divergence
    )
    least = min(own, others)
    p = Categorical(logits=logits[:, :least] / temperature[:, None])
    q = Categorical(logits=reference[:, :least] / temperature[:, None])
    assert found.kl is not None and found.entropy is not None
    assert torch.allclose(found.kl, generalised_jsd(p, q, divergence), atol=1e-6)
    whole = Categorical(logits=logits / temperature[:, None])
    assert torch.allclose(found.logprobs, whole.log_prob(targets), atol=1e-6)
    assert torch.allclose(found.entropy, whole.entropy(), atol=1e-6)
