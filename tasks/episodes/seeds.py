"""Seeds by hashing: the same for any number of workers and any batch; uniform numbers without a generator's state."""

import hashlib

import numpy as np
from numpy.typing import NDArray


def derive(seed: int, *parts: str | int) -> int:
    """Return a seed in [0, 2**63) that depends on every part and on their order."""
    text = "\x1f".join(str(p) for p in (seed, *parts))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") >> 1


def world_seed(seed: int) -> int:
    """Return the seed of the world of an episode whose own seed this is: with it the same world can be opened again."""
    return derive(seed, "world")


def uniforms(seeds: list[int], count: int) -> NDArray[np.float64]:
    """Return `count` numbers in (0, 1) for each seed (splitmix64, 32 bits each): shape (seeds, count)."""
    with np.errstate(over="ignore"):
        z = np.array(seeds, dtype=np.uint64)[:, None]
        z = z + np.arange(1, count + 1, dtype=np.uint64)[None] * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32
