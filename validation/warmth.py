"""Cache warmth as a controlled state, against vLLM with its prefix cache on.

    python -m validation.warmth --vllm PYTHON --model FOLDER [-o OUT] [--rate 2] [--for 55] [--rounds 3]

PYTHON can import vllm; FOLDER holds a small model and its tokenizer. One server, one workload (three long prefixes that
prompts share), and the states one after the other. What each found in the cache is read off vLLM's own counters.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

import openloop as ol
from openloop.report.chart import Chart
from validation.engines import (
    Checks,
    Engine,
    Noise,
    arguments,
    drive,
    fresh,
    ms,
    noise,
    rows,
    save,
    stay_off_the_engines_core,
    table,
)
from validation.vllm_server import SAMPLING, SLO, Setup

WORKLOAD = "synthetic:prompt=20,output=8,prefixes=3,prefix=2500"
HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"

# By name: what is asked for, and whether the salt is a field of the request or stands before the prompt.
STATES: dict[str, dict[str, Any]] = {
    "left to chance, first": {},
    "left to chance, again": {},
    "cold-cache": {"warmth": "cold-cache"},
    "cold-cache, by cache_salt": {"warmth": "cold-cache", "target.cache_salt": True},
    "warm-cache": {"warmth": "warm-cache"},
    "warm-cache, by cache_salt": {"warmth": "warm-cache", "target.cache_salt": True},
    "hot": {"warmth": "hot:most=60s"},
    "disrupted": {"warmth": "disrupted"},
}


REPEATED = ("cold-cache", "cold-cache, by cache_salt", "warm-cache", "warm-cache, by cache_salt", "disrupted")


@dataclass(frozen=True)
class Measured:
    score: ol.Score
    manifest: ol.Manifest
    hits: float
    queries: float
    noise: Noise


def measure(setup: Setup, server: Engine, name: str, how: dict[str, Any]) -> Measured:
    """A run in this state; in all of it, and by the server's counters, how many prompt tokens were found."""
    flags = {
        "target.model": "tiny",
        "target.extra": SAMPLING,
        "tokenizer": setup.model,
        "tokens_per_word": 1.0,  # the server is not asked how it counts: that would be a hit of its own
        "workload": WORKLOAD,
        "arrivals": f"poisson:rate={setup.rate}",
        "for": f"{setup.seconds}s",
        "slo": SLO,
        **how,
    }
    before = server.figures()
    with noise(server) as around:
        run = drive(server, fresh(setup.out / "runs" / name.replace(" ", "-").replace(",", "")), **flags)
    after = server.figures()
    hits, queries = (after[each] - before[each] for each in (HITS, QUERIES))
    return Measured(ol.score(run), run.manifest, hits, queries, around)


def split_at_rotation(found: ol.Score) -> tuple[list[float], list[float]]:
    """TTFT before the salt changed, and of the ten requests after."""
    run = ol.open_run(str(found.run))
    at = run.manifest.events[0].at_ns
    told = sorted(
        (row["scheduled_ns"], row["event_ns"][0] - row["scheduled_ns"]) for row in rows(run) if row["event_ns"]
    )
    before = [wait / 1e6 for due, wait in told if due < at]
    return before, [wait / 1e6 for due, wait in told if due >= at][:10]


def warmth(setup: Setup) -> None:
    """Rounds, so that what others do on this machine meets every state."""
    found: dict[str, list[Measured]] = {name: [] for name in STATES}
    with setup.serve("warmth") as server:
        for number in range(setup.repeats):
            for name, how in STATES.items():
                if number == 0 or name in REPEATED:
                    found[name].append(measure(setup, server, name, how))
    table(
        f"three prefixes of 2,500 tokens, {setup.repeats} rounds; milliseconds, median (least to most)",
        ["asked for", "manifest", "ttft p50", "p90", "cached, by rows", "by the server", "hits", "stolen / others"],
        [_line(name, each) for name, each in found.items()],
    )
    check(setup.checks, found)
    before, after = split_at_rotation(found["disrupted"][0].score)
    print(
        f"around the salt rotation: p50 {np.median(before):.1f} ms before; after it {[round(each) for each in after]}"
    )
    chart = Chart(
        "The same prompts, by what caches know",
        "TTFT (ms)",
        "Share of requests at most so long",
        shares=True,
        log_x=True,
    )
    for name in ("cold-cache", "warm-cache"):
        values = sorted(wait for each in found[name] for wait in _first_ms(each.score))
        chart.line(values, np.arange(1, len(values) + 1) / len(values), name)
    kept = {name: [_numbers(each) for each in several] for name, several in found.items()}
    save(setup.out, "warmth", {**kept, "rotation": {"before_ms": before, "after_ms": after}}, chart)


def _line(name: str, several: list[Measured]) -> list[object]:
    ladders = [each.score.ttft_s for each in several if each.score.ttft_s]
    rows_say = [each.score.cache_hit_rate for each in several]
    server_says = [each.hits / each.queries for each in several]
    return [
        name,
        several[0].manifest.cache_warmth or "unknown",
        _spread([1000 * each.p50 for each in ladders], "{:.0f}"),
        _spread([1000 * each.p90 for each in ladders], "{:.0f}"),
        _spread(rows_say, "{:.1%}"),
        _spread(server_says, "{:.1%}"),
        _spread([each.hits for each in several], "{:,.0f}"),
        ", ".join(str(each.noise) for each in several),
    ]


def _spread(values: list[float], form: str) -> str:
    low, mid, high = (form.format(each) for each in (min(values), float(np.median(values)), max(values)))
    return mid if low == high else f"{mid} ({low} to {high})"


def _first_ms(found: ol.Score) -> list[float]:
    run = ol.open_run(str(found.run))
    return [(row["event_ns"][0] - row["scheduled_ns"]) / 1e6 for row in rows(run) if row["event_ns"]]


def _numbers(each: Measured) -> dict[str, Any]:
    return {
        "ttft_s": each.score.ttft_s,
        "rows": each.score.cache_hit_rate,
        "hits": each.hits,
        "queries": each.queries,
        "noise": each.noise,
        "warmth": each.manifest.cache_warmth,
        "notes": each.manifest.notes,
        "valid": each.score.valid,
        "reasons": each.score.reasons,
    }


def check(checks: Checks, found: dict[str, list[Measured]]) -> None:
    cold = [each.hits for name in STATES if name.startswith("cold-cache") for each in found[name]]
    checks.that(not any(cold), f"salts defeat the cache: {cold} hits by vLLM's counter")
    known = [each.score.cache_hit_rate for name in STATES if name.startswith("warm-cache") for each in found[name]]
    checks.that(min(known) > 0.9, f"a primed cache knows {min(known):.1%} to {max(known):.1%} of prompts")
    p50 = {
        name: float(np.median([each.score.ttft_s.p50 for each in several if each.score.ttft_s]))
        for name, several in found.items()
    }
    checks.that(
        p50["warm-cache"] < p50["cold-cache"] / 2,
        f"warm TTFT p50 {ms(p50['warm-cache'])} ms, cold {ms(p50['cold-cache'])} ms",
    )
    for name, several in found.items():
        told = {each.manifest.cache_warmth for each in several}
        checks.that((None not in told) == ("warmth" in STATES[name]), f"{name}: the manifest says {told}")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--vllm", required=True, help="a Python that can import vllm")
    parser.add_argument("--model", required=True, help="a folder with a small model and its tokenizer")
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--for", dest="seconds", type=float, default=55.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    stay_off_the_engines_core()
    checks = Checks()
    warmth(Setup(given.vllm, given.model, given.out, given.rounds, given.seconds, given.rate, 0.0, 1, checks))
    checks.end()


if __name__ == "__main__":
    main()
