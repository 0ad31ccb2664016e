"""Every random choice of a run comes from its seed, and each purpose has a stream of its own.

So a change in how many service times are drawn does not move the arrivals.
"""

import zlib

import numpy as np

from openloop.arrays import Floats, Ints


def stream(seed: int, purpose: str) -> np.random.Generator:
    """The generator for one purpose: the same for the same seed and purpose, whoever asks and in whatever order."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


def chances(seed: int, purpose: str, numbers: Ints) -> Floats:
    """Between 0 and 1 for each of these numbers: the same for the same number, in whatever order they come (as
    splitmix64 does)."""
    key = np.random.SeedSequence([seed, zlib.crc32(purpose.encode())]).generate_state(1, np.uint64)
    value = key + numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Floats = ((value ^ (value >> np.uint64(31))) >> np.uint64(11)) / 2.0**53
    return found
