"""Seeds derived from names, so that a random draw depends on its purpose and not on its time."""

from hashlib import blake2b


def derive(*parts: object) -> int:
    """Return a 63-bit seed from its parts, e.g. `derive(run_seed, task.id, member, agent, turn)`.

    The same parts give the same seed on every machine and in every process.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return (
        int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()) >> 1
    )


LEAST, MOST = -(2**63), 2**64 - 1
"""Least and largest seed of torch's random numbers."""


def check_seed(seed: int) -> None:
    """Raise ValueError for a number that torch does not accept as a seed."""
    if not LEAST <= seed <= MOST:
        raise ValueError(
            f"{str(seed)[:24]} does not fit: a seed has at most 64 bits; choose 0 to 2**64 - 1"
        )
