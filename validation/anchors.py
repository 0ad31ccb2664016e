"""Capacity ratios that others measured on GPUs, by the simulator: Sarathi-Serve and DistServe.

    python -m validation.anchors -o OUT

Capacity is the highest rate at which the objective of each paper holds, found by bisection to one percent, with 2,048
requests and two seeds at each rate. Takes about a minute.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import NormalDist
from typing import Any

import openloop as ol
from openloop.arrivals import Poisson
from openloop.report.chart import Chart
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.sim.steps import preset
from openloop.workload import Workload, read_source
from validation.engines import Checks, arguments, save, table

Holds = Callable[[ol.Score], bool]

REQUESTS, SEEDS = 2048, (1, 2)


def lengths(median: float, p90: float, most: float, points: int = 40) -> str:
    """A lognormal with these quantiles, cut off at `most`, as a histogram of points of equal weight."""
    normal, sigma = NormalDist(), log(p90 / median) / NormalDist().inv_cdf(0.9)
    top = normal.cdf(log(most / median) / sigma)
    places = [top * (point + 0.5) / points for point in range(points)]
    return f"histogram({','.join(f'{median * exp(sigma * normal.inv_cdf(each)):.0f}@1' for each in places)})"


def capacity(fleet: dict[str, Any], source: str, holds: Holds, low: float = 0.05, high: float = 60.0) -> float:
    """The highest rate at which it holds; 0: not even at the lowest."""
    chosen, workload = read_fleet(fleet), Workload.of(read_source(source))

    def at(rate: float) -> bool:
        runs = (simulate_fleet(chosen, workload, Poisson(rate), REQUESTS / rate, seed) for seed in SEEDS)
        return all(holds(ol.score(run, "ttft<=250ms, tpot<=100ms")) for run in runs)

    if not at(low):
        return 0.0
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if at(middle) else (low, middle)
    return low


# Sarathi-Serve: the p99 of all gaps between tokens, and the median of waiting at most 2 s. Medians and p90 of lengths
# are those of its table of datasets; speeds are by parameters, 7.2 and 34.4 billion, against the preset's.
MISTRAL = {"model": "8b", "gpu": "a100", "speed": 1.11}
YI = {"model": "32b", "gpu": "a100", "tp": 2, "speed": 0.95}
CHAT = (1730, f"synthetic:prompt={lengths(1730, 5696, 7500)},output={lengths(415, 834, 2000)}")
ARXIV = (7059, f"synthetic:prompt={lengths(7059, 12985, 15000)},output={lengths(208, 371, 1300)}")


@dataclass(frozen=True)
class Limit:
    model: dict[str, Any]
    name: str
    data: tuple[int, str]
    longest: int  # of a sequence, and so of what vLLM prefills at once
    gap_s: float
    chunk: int
    published: str

    def holds(self, score: ol.Score) -> bool:
        assert score.itl_s
        assert score.ttft_s
        prefill = read_fleet(self.model).step_time().prefill(self.data[0])
        return score.itl_s.p99 <= self.gap_s and score.ttft_s.p50 <= 2.0 + prefill

    def whole(self) -> float:
        """vLLM's, with the best of its batch sizes."""
        fleet = {**self.model, "batching": "prefill-first", "max_tokens": self.longest}
        return max(capacity({**fleet, "max_sequences": size}, self.data[1], self.holds) for size in (32, 64, 128))

    def chunked(self) -> float:
        fleet = {**self.model, "batching": "chunked", "max_tokens": self.chunk, "max_sequences": 128}
        return capacity(fleet, self.data[1], self.holds)


LIMITS = [
    Limit(MISTRAL, "Mistral-7B, chat, 0.1 s", CHAT, 8192, 0.1, 512, "2.6"),
    Limit(MISTRAL, "Mistral-7B, chat, 0.5 s", CHAT, 8192, 0.5, 2048, ""),
    Limit(MISTRAL, "Mistral-7B, papers, 0.1 s", ARXIV, 16384, 0.1, 512, ""),
    Limit(MISTRAL, "Mistral-7B, papers, 0.5 s", ARXIV, 16384, 0.5, 2048, ""),
    Limit(YI, "Yi-34B, chat, 0.2 s", CHAT, 8192, 0.2, 512, "3.7"),
    Limit(YI, "Yi-34B, chat, 1 s", CHAT, 8192, 1.0, 2048, ""),
    Limit(YI, "Yi-34B, papers, 0.2 s", ARXIV, 16384, 0.2, 512, ""),
    Limit(YI, "Yi-34B, papers, 1 s", ARXIV, 16384, 1.0, 2048, ""),
]


def sarathi(out: Path, checks: Checks) -> dict[str, tuple[float, float]]:
    lines, found = [], {}
    for limit in LIMITS:
        before, after = limit.whole(), limit.chunked()
        lines.append([limit.name, f"{before:.2f}", f"{after:.2f}", f"{after / before:.2f}", limit.published])
        if limit.published:
            found[limit.name] = (float(limit.published), after / before)
            checks.that(after > 1.5 * before, f"{limit.name}: chunks raise capacity")
    table("Sarathi-Serve; requests/s", ["limit on p99 gap", "vLLM v0", "chunks", "ratio", "published, up to"], lines)
    save(out, "anchors-sarathi", lines, _tail(LIMITS[0]))
    return found


def _tail(limit: Limit) -> Chart:
    chart = Chart("Mistral-7B on an A100: chunks hold the tail of token gaps", "Requests/s", "p99 gap (s)", log_y=True)
    workload = Workload.of(read_source(limit.data[1]))
    rates = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
    for name, batching in (("whole prompts", "prefill-first"), ("chunks of 512", "chunked")):
        tokens = limit.longest if batching == "prefill-first" else limit.chunk
        fleet = read_fleet({**limit.model, "batching": batching, "max_tokens": tokens, "max_sequences": 128})
        scores = [
            ol.score(simulate_fleet(fleet, workload, Poisson(rate), REQUESTS / rate, 1), "ttft<=1s") for rate in rates
        ]
        chart.line(rates, [score.itl_s.p99 if score.itl_s else float("nan") for score in scores], name)
    chart.mark_y(limit.gap_s, "limit")
    return chart


# DistServe: OPT-13B on A100s. Its own measurements of one phase alone give two factors on the preset's step times;
# what happens with both phases follows.
SHORT = "synthetic:prompt=512,output=64"
SHAREGPT = f"synthetic:prompt={lengths(680, 1850, 1700)},output={lengths(150, 480, 900)}"
PLACEMENTS = [(2, 2, 1), (3, 1, 1), (1, 2, 2)]  # on four GPUs: replicas that prefill, that decode, tp of the first
PREFILL_RPS, DECODE_RPS = 5.6, 10.0  # published, of one GPU each
Factors = tuple[float, float]  # on arithmetic, and on everything else


def replica(factors: Factors, tp: int = 1) -> dict[str, Any]:
    found = preset("13b", "a100", tp)
    scale = {"token": factors[0], "attention": factors[0]}
    step = {name: scale.get(name, factors[1]) * value for name, value in vars(found.step).items()}
    return {
        "step": {name: f"{1e9 * value:.5f}ns" for name, value in step.items()},
        "memory_tokens": found.kv_tokens,
        "batching": "prefill-first",
    }


def apart(factors: Factors, prefill: int, decode: int, prefill_tp: int = 1) -> dict[str, Any]:
    """So many replicas for each phase; memory of prompts is handed over by NVLink."""
    return {
        "groups": [
            {**replica(factors, prefill_tp), "replicas": prefill, "role": "prefill"},
            {**replica(factors), "replicas": decode, "role": "decode"},
        ],
        "routing": "least-requests",
        "transfer": {"bandwidth": 300e9, "latency": "1ms", "bytes_per_token": preset("13b", "a100").model.kv_bytes},
    }


def first_in_time(score: ol.Score) -> bool:
    return score.ttft_s is not None and score.ttft_s.p90 <= 0.4


def others_in_time(score: ol.Score) -> bool:
    return score.tpot_s is not None and score.tpot_s.p90 <= 0.04


def both_in_time(score: ol.Score) -> bool:
    return first_in_time(score) and others_in_time(score)


def nine_of_ten(score: ol.Score) -> bool:
    return score.attainment >= 0.9


def fit() -> Factors:
    """To the two rates of one phase alone."""

    def solve(rate: Callable[[float], float], published: float) -> float:
        low, high = 1.0, 4.0
        while high / low > 1.005:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if rate(middle) > published else (low, middle)
        return low

    alone = "synthetic:prompt=512,output=1"
    arithmetic = solve(lambda factor: capacity(replica((factor, 1.0)), alone, first_in_time), PREFILL_RPS)
    rest = solve(lambda factor: capacity(apart((1.0, factor), 8, 1), SHORT, others_in_time), DECODE_RPS)
    return arithmetic, rest


def distserve(out: Path, checks: Checks) -> dict[str, tuple[float, float]]:
    factors = fit()
    print(f"\nfitted to one phase alone: arithmetic takes {factors[0]:.2f} times as long as by the preset,", end=" ")
    print(f"everything else {factors[1]:.2f} times")
    lines: list[list[str]] = []
    rates = {}
    for name, used in (("fitted", factors), ("preset", (1.0, 1.0))):
        together = capacity(replica(used), SHORT, both_in_time)
        split = capacity(apart(used, 2, 1), SHORT, both_in_time) / 3
        rates[name] = together, split
        published = ["1.6", "3.3", "2.1"]
        lines.append([f"512 / 64, {name}", f"{together:.2f}", f"{split:.2f}", f"{split / together:.2f}", *published])
    for name, used in (("fitted", factors), ("preset", (1.0, 1.0))):
        one, two = (
            capacity({**replica(used, tp), "replicas": 4 // tp, "routing": "least-requests"}, SHAREGPT, nine_of_ten) / 4
            for tp in (1, 2)
        )
        split = max(capacity(apart(used, *place), SHAREGPT, nine_of_ten) / 4 for place in PLACEMENTS)
        ratio = f"{split / one:.2f}" if one else "-"
        lines.append([f"ShareGPT, {name}", f"{one:.2f} ({two:.2f} with tp 2)", f"{split:.2f}", ratio, "", "1.56", ""])
        rates[f"ShareGPT, {name}"] = one, split
    head = ["DistServe; requests/s per GPU", "together", "apart", "ratio", "published: together", "apart", "ratio"]
    table(
        "OPT-13B on A100s; apart: two GPUs prefill and one decodes, or with ShareGPT the best of four GPUs", head, lines
    )
    save(out, "anchors-distserve", {"factors": factors, "lines": lines})
    together, split = rates["fitted"]
    checks.that(abs(together / 1.6 - 1) < 0.25, "512 / 64: together within a quarter of 1.6/s")
    checks.that(abs(split / 3.3 - 1) < 0.25, "512 / 64: apart within a quarter of 3.3/s")
    checks.that(abs(rates["ShareGPT, fitted"][1] / 1.56 - 1) < 0.25, "ShareGPT: apart within a quarter of 1.56/s")
    return {"DistServe, 512 / 64": (2.1, split / together)}


def main() -> None:
    given = arguments(__doc__).parse_args()
    checks = Checks()
    found = sarathi(given.out, checks) | distserve(given.out, checks)
    chart = Chart("Capacity against the baseline: published, and by the simulator", "", "Ratio")
    for place, (published, ours) in enumerate(found.values()):
        chart.points(
            [place - 0.2, place + 0.2], [published, ours], [f"published {published:g}", f"openloop {ours:.1f}"]
        )
    chart.ticks(list(found))
    chart.limits(x=(-0.6, len(found) - 0.4), y=(0, 4.5))
    save(given.out, "anchors", found, chart)
    checks.end()


if __name__ == "__main__":
    main()
