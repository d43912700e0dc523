"""The learning rate of warm starts: a linear rise, and a linear fall to a last value."""


def check_final_lr(final_lr: float) -> None:
    """Raise ValueError if the last learning rate is no fraction of the full one."""
    if not 0 <= final_lr <= 1:
        raise ValueError(f"final_lr: {final_lr:g} does not fit: a fraction from 0 to 1 is needed")


def rate_factors(
    step: int, *, steps: int, warmup_steps: int, final_lr: float
) -> tuple[float, float]:
    """Return the two factors of the full learning rate at a step, numbered from 0.

    The first one rises to 1 in `warmup_steps`, the second one falls from 1 to `final_lr` in
    `steps`. They are separate, because the order of a product decides its last bit.
    """
    rise = min(1.0, (step + 1) / max(warmup_steps, 1))
    return rise, max(final_lr, 1 - step / steps)
