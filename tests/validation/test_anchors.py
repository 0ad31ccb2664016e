"""Published capacity ratios: one of them, and what lengths are made of."""

import numpy as np

from openloop.distributions import LENGTHS
from validation.anchors import LIMITS, apart, capacity, lengths, others_in_time, replica


def test_lengths_have_the_quantiles_that_were_asked_for() -> None:
    drawn = LENGTHS.read(lengths(415, 834, 1e9)).draw(20_000, np.random.default_rng(1))
    assert abs(np.median(drawn) / 415 - 1) < 0.05
    assert abs(np.quantile(drawn, 0.9) / 834 - 1) < 0.05
    cut = LENGTHS.read(lengths(1730, 5696, 7500)).draw(20_000, np.random.default_rng(1))
    assert cut.max() <= 7500


def test_chunks_raise_capacity_under_a_strict_limit_about_as_much_as_published() -> None:
    limit = LIMITS[0]
    before, after = limit.whole(), limit.chunked()
    assert 2.0 < after / before < 4.0


def test_decoding_alone_is_not_disturbed_by_prompts() -> None:
    short = "synthetic:prompt=512,output=64"
    together = capacity(replica((1.0, 1.0)), short, others_in_time)
    alone = capacity(apart((1.0, 1.0), 8, 1), short, others_in_time)
    assert alone > 2 * together
