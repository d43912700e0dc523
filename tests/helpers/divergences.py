"""Divergences between distributions, computed with torch's KL divergence."""

import torch
from torch.distributions import Categorical, kl_divergence


def generalised_jsd(policy: Categorical, reference: Categorical, beta: float) -> torch.Tensor:
    """Return the generalised Jensen-Shannon divergence (2306.13649) of [..., V] distributions.

    The result has [...] values in nats. It is KL(policy, reference) if `beta` is 1 and
    KL(reference, policy) if it is 0.
    """
    if beta == 1:
        return kl_divergence(policy, reference)
    if beta == 0:
        return kl_divergence(reference, policy)
    first, second = (Categorical(logits=each.logits.double()) for each in (reference, policy))
    mixture = Categorical(probs=beta * first.probs + (1 - beta) * second.probs)
    nats = beta * kl_divergence(first, mixture) + (1 - beta) * kl_divergence(second, mixture)
    return nats.to(policy.logits.dtype)
