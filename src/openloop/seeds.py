"""Every random choice of a run comes from its seed, and each purpose has a stream of its own.

So a change in how many service times are drawn does not move the arrivals.
"""

import zlib

import numpy as np


def stream(seed: int, purpose: str) -> np.random.Generator:
    """The generator for one purpose: the same for the same seed and purpose, whoever asks and in whatever order."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])
