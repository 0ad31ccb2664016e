"""What an accepted result costs: the decisions that the goodput article ends with.

Of the two models the article gives pass rates, prices and tokens per second relative to each other, three times the
repairs, and what comes of it; lengths of answers, repairs and the price of a review are chosen to fit. Of the GPUs it
does not say how much more a cold request takes, and that production has smaller batches: if both together make it
between 1.5 and 2.5 times the work, its "6 to 8" follow.
"""

import math

import numpy as np

import openloop as ol
from openloop.score import blended, capacity_needed

SLO = "ttft<=800ms, quality"
TOKEN_PRICE = 50.736  # of a million tokens of Model Y


def model(requests: int, tokens: int, passing: float, repaired: float, price: float, review: float) -> ol.Run:
    """A model under test: so many answers of this length, of which some are made twice and some are still no good."""
    again = np.arange(requests) < repaired * requests
    kinds = ["first"] * requests + ["repair"] * int(again.sum())
    number = np.concatenate([np.arange(requests), np.flatnonzero(again)])
    due = number * 100_000_000
    good = np.where(np.arange(len(number)) < requests, ~again[number], True)
    good &= number % 100 < 100 * passing  # the same share of all of them, whether repaired or not
    second = np.array(kinds) == "repair"
    columns = {
        "request_id": number,
        "attempt": second.astype(np.int32),
        "kind": kinds,
        "scheduled_ns": due,
        "sent_ns": due + second * 300_000_000,
        "ended_ns": due + 500_000_000,
        "event_ns": [[int(each) + 400_000_000] for each in due],
        "output_tokens": np.full(len(number), tokens),
        "quality": good,
    }
    prices = ol.Prices(per_million_output_tokens=price, per_human_review=review)
    manifest = ol.Manifest(source="example", prices=prices, window_ns=(0, requests * 100_000_000))
    return ol.Run.of(manifest, [ol.make_batch(columns)])


def show_blend() -> None:
    print("0.012 per accepted result, 0.035 in the 20 minutes after each deployment:")
    for name, every_s in (("twice a day", 43_200), ("once a week", 604_800)):
        found = blended(0.012, 0.035, 20 * 60, every_s)
        print(
            f"  {name}: {found.cost_per_accepted:.6f}, {found.extra:.1%} more ({found.disrupted_share:.1%} of the time)"
        )


def models() -> dict[str, ol.Run]:
    return {
        "X": model(1000, tokens=840, passing=0.78, repaired=0.12, price=0.7 * TOKEN_PRICE, review=0.0325),
        "Y": model(1000, tokens=600, passing=0.91, repaired=0.04, price=TOKEN_PRICE, review=0.0325),
    }


def show_models() -> None:
    scores = {name: ol.score(run, SLO) for name, run in models().items()}
    more = scores["X"].output_tokens_per_s / scores["Y"].output_tokens_per_s - 1
    print(f"Model X, 30% cheaper per token and {more:.0%} more tokens per second, against Model Y:")
    for name, score in scores.items():
        assert score.cost is not None
        print(
            f"  {name}: {score.cost.serving / 1000:.3f} to serve a request and {score.cost.human_review / 1000:.4f} "
            f"to review it, {score.attainment:.0%} accepted: {score.cost_per_accepted:.3f} per accepted result"
        )


def show_capacity() -> None:
    print("4 GPUs by a benchmark; 40% of requests find a cold cache, 12% fail their gate, 6% are retried:")
    for factor in (1.5, 2.5):
        needed = capacity_needed(4, retries=0.06, quality_failures=0.12, cold=0.4, cold_factor=factor)
        print(f"  if a cold request takes {factor} times the work: {needed:.2f}, so {math.ceil(needed)}")


if __name__ == "__main__":
    show_blend()
    show_models()
    show_capacity()
