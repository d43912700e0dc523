"""Divergences of distributions, by torch's own KL."""

import torch
from torch.distributions import Categorical, kl_divergence


def generalised_jsd(policy: Categorical, reference: Categorical, beta: float) -> torch.Tensor:
    """Return [...] nats of the generalised Jensen-Shannon divergence (2306.13649) of [..., V]
    distributions; KL(policy, reference) for 1 and KL(reference, policy) for 0."""
    if beta == 1:
        return kl_divergence(policy, reference)
    if beta == 0:
        return kl_divergence(reference, policy)
    first, second = (Categorical(logits=each.logits.double()) for each in (reference, policy))
    mixture = Categorical(probs=beta * first.probs + (1 - beta) * second.probs)
    nats = beta * kl_divergence(first, mixture) + (1 - beta) * kl_divergence(second, mixture)
    return nats.to(policy.logits.dtype)
