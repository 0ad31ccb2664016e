"""Cache warmth as a controlled state, against vLLM with its prefix cache on.

    python -m validation.warmth --vllm PYTHON --model FOLDER [-o OUT] [--rate 2] [--for 60]

PYTHON can import vllm; FOLDER holds a small model and its tokenizer. One server, one workload (three long prefixes that
prompts share), and the states one after the other. What each found in the cache is read off vLLM's own counters.
"""

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


def measure(setup: Setup, server: Engine, name: str, how: dict[str, Any]) -> tuple[ol.Score, dict[str, float], Noise]:
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
    counted = {each: after[each] - before[each] for each in (HITS, QUERIES)}
    return ol.score(run), counted, around


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
    kept: dict[str, Any] = {}
    lines = []
    with setup.serve("warmth") as server:
        for name, how in STATES.items():
            found, counted, around = measure(setup, server, name, how)
            assert found.ttft_s is not None
            manifest = ol.open_run(str(found.run)).manifest
            share = counted[HITS] / counted[QUERIES]
            lines.append(
                [
                    name,
                    manifest.cache_warmth or "unknown",
                    *(ms(getattr(found.ttft_s, step)) for step in ("p50", "p90", "p99")),
                    f"{found.cache_hit_rate:.1%}",
                    f"{share:.1%}",
                    f"{counted[HITS]:,.0f}",
                    around,
                ]
            )
            kept[name] = {
                "ttft_s": found.ttft_s,
                "rows": found.cache_hit_rate,
                "counted": counted,
                "noise": around,
                "warmth": manifest.cache_warmth,
                "notes": manifest.notes,
                "valid": found.valid,
                "score": found,
            }
    table(
        "three prefixes of 2,500 tokens; milliseconds",
        [
            "asked for",
            "manifest",
            "ttft p50",
            "p90",
            "p99",
            "cached, by rows",
            "by the server",
            "hits",
            "stolen / others",
        ],
        lines,
    )
    check(setup.checks, kept)
    before, after = split_at_rotation(kept["disrupted"]["score"])
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
    for name in ("cold-cache", "warm-cache", "disrupted"):
        run = ol.open_run(str(kept[name]["score"].run))
        values = sorted((row["event_ns"][0] - row["scheduled_ns"]) / 1e6 for row in rows(run) if row["event_ns"])
        chart.line(values, np.arange(1, len(values) + 1) / len(values), name)
    for each in kept.values():
        del each["score"]
    save(setup.out, "warmth", kept | {"rotation": {"before_ms": before, "after_ms": after}}, chart)


def check(checks: Checks, kept: dict[str, Any]) -> None:
    cold = [kept[name]["counted"][HITS] for name in STATES if name.startswith("cold-cache")]
    checks.that(cold == [0, 0], f"salts defeat the cache: {cold} hits by vLLM's counter")
    checks.that(kept["warm-cache"]["rows"] > 0.9, f"a primed cache knows {kept['warm-cache']['rows']:.1%} of prompts")
    p50 = {name: each["ttft_s"].p50 for name, each in kept.items()}
    checks.that(
        p50["warm-cache"] < p50["cold-cache"] / 2,
        f"warm TTFT p50 {ms(p50['warm-cache'])} ms, cold {ms(p50['cold-cache'])} ms",
    )
    for name, each in kept.items():
        asked = "warmth" in STATES[name]
        checks.that((each["warmth"] is not None) == asked, f"{name}: the manifest says {each['warmth']}")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--vllm", required=True, help="a Python that can import vllm")
    parser.add_argument("--model", required=True, help="a folder with a small model and its tokenizer")
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--for", dest="seconds", type=float, default=60.0)
    given = parser.parse_args()
    stay_off_the_engines_core()
    checks = Checks()
    warmth(Setup(given.vllm, given.model, given.out, 1, given.seconds, given.rate, 0.0, 1, checks))
    checks.end()


if __name__ == "__main__":
    main()
