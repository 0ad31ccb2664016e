"""openloop against vLLM, and beside `vllm bench serve`.

    python -m validation.vllm --vllm PYTHON --model FOLDER [-o OUT] [--only agree,overload]

PYTHON can import vllm; FOLDER holds a small model and its tokenizer. Parts:

agree     at a comfortable rate, both tools see the same TTFT and TPOT, and so does the server
overload  beyond capacity, with and without a cap on concurrency: what the cap hides
prefix    prefix cache on and off
chunked   chunked prefill on and off
preempt   too little KV cache: preemptions
refused   prompts beyond the context: the server's own message
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import openloop as ol
from openloop.report.chart import Chart
from openloop.score.quantiles import Percentiles
from openloop.score.server import ServerScore
from validation.engines import (
    Checks,
    Engine,
    Noise,
    arguments,
    drive,
    fresh,
    ms,
    quietest,
    rows,
    save,
    stay_off_the_engines_core,
    table,
)
from validation.vllm_bench import agree, overload
from validation.vllm_server import NO_CACHE, SAMPLING, SLO, Setup

WHOLE_PREFILL = ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096")
IN_CHUNKS = ("--max-num-batched-tokens", "256")
PREFIX_RATE, PREFIX_SECONDS = 3, 40
CHUNKED_RATE, CHUNKED_SECONDS = 4, 40

Floats = NDArray[np.float64]


def prefix(setup: Setup) -> None:
    flags: dict[str, Any] = {
        "workload": "synthetic:prompt=20,output=8,prefixes=3,prefix=1000",
        "arrivals": f"poisson:rate={PREFIX_RATE}",
        "for": f"{PREFIX_SECONDS}s",
        "slo": SLO,
    }
    on, off = _both(setup, "prefix", flags, (), NO_CACHE)
    table(
        "three prefixes of 1,000 tokens; milliseconds",
        ["prefix cache", "ttft p50", "p90", "p99", "cached share of rows", "server's hit rate", "stolen / others"],
        [
            [
                name,
                *_ladder(each[0].ttft_s),
                f"{_cached(each[1]):.1%}",
                f"{_server(each[0]).prefix_hit_rate:.1%}",
                each[2],
            ]
            for name, each in (("on", on), ("off", off))
        ],
    )
    told, counted = _server(on[0]).prefix_hit_rate, _cached(on[1])
    setup.checks.that(abs(told - counted) < 0.02, f"hit rate: rows say {counted:.1%}, the server {told:.1%}")
    setup.checks.that(_cached(off[1]) == 0, "nothing is cached when the cache is off")
    assert on[0].ttft_s is not None
    assert off[0].ttft_s is not None
    setup.checks.that(on[0].ttft_s.p50 < off[0].ttft_s.p50, "the cache lowers the median TTFT")
    chart = Chart(
        "A prefix cache, seen from outside", "TTFT (ms)", "Share of requests at most so long", shares=True, log_x=True
    )
    for name, each in (("cache on", on), ("cache off", off)):
        _shares(chart, [1e-6 * (row["event_ns"][0] - row["scheduled_ns"]) for row in each[1]], name)
    save(setup.out, "prefix", {name: _numbers(each) for name, each in (("on", on), ("off", off))}, chart)


def chunked(setup: Setup) -> None:
    classes = [
        {"class": "short", "share": "90%", "source": "synthetic:prompt=50,output=64"},
        {"class": "long", "share": "10%", "source": "synthetic:prompt=3000,output=8"},
    ]
    flags: dict[str, Any] = {
        "workload": classes,
        "arrivals": f"poisson:rate={CHUNKED_RATE}",
        "for": f"{CHUNKED_SECONDS}s",
        "slo": SLO,
    }
    whole, pieces = _both(setup, "chunked", flags, (*NO_CACHE, *WHOLE_PREFILL), (*NO_CACHE, *IN_CHUNKS))
    gaps = {name: _gaps_ms(each[1]) for name, each in (("whole", whole), ("in chunks of 256", pieces))}
    ttft = {name: _first_ms(each[1]) for name, each in (("whole", whole), ("in chunks of 256", pieces))}
    noises = {"whole": whole[2], "in chunks of 256": pieces[2]}
    table(
        "gaps between tokens of short requests, and TTFT of long ones; milliseconds",
        ["prefill", "gap p50", "p99", "p99.9", "most", "long ttft p50", "stolen / others"],
        [
            [
                name,
                *(f"{each:.1f}" for each in (*np.quantile(values, [0.5, 0.99, 0.999, 1.0]), np.median(ttft[name]))),
                noises[name],
            ]
            for name, values in gaps.items()
        ],
    )
    one, other = (float(np.quantile(values, 0.999)) for values in gaps.values())
    setup.checks.that(other < one / 2, f"chunks more than halve the p99.9 gap: {one:.0f} ms to {other:.0f} ms")
    chart = Chart(
        "Chunked prefill, seen by those who are reading",
        "Gap between tokens (ms)",
        "Share of gaps longer than so",
        log_x=True,
        log_y=True,
    )
    chart.limits(x=(1.0, 2 * max(float(values.max()) for values in gaps.values())))
    for name, values in gaps.items():
        ordered = np.sort(values)
        chart.line(ordered[:-1], 1 - np.arange(1, len(ordered)) / len(ordered), name)
    save(
        setup.out,
        "chunked",
        {
            name: _numbers(each) | {"gaps_ms": gaps[name].tolist()}
            for name, each in (("whole", whole), ("in chunks of 256", pieces))
        },
        chart,
    )


def preempt(setup: Setup) -> None:
    flags = (
        "--max-model-len",
        "1024",
        "--block-size",
        "32",
        "--num-gpu-blocks-override",
        "64",
        "--max-num-seqs",
        "32",
        *NO_CACHE,
    )
    lines, kept = [], {}
    with setup.serve("preempt", *flags) as server:
        for rate in (1.0, 8.0):
            asked = {
                "workload": "synthetic:prompt=100,output=200",
                "arrivals": f"poisson:rate={rate}",
                "for": "15s",
                "slo": SLO,
            }
            before = server.figures()["vllm:num_preemptions_total"]
            (found, each), noise = quietest(
                server,
                partial(_measure, setup, server, f"preempt-{rate:g}", asked),
                tries=1,
            )
            truth = server.figures()["vllm:num_preemptions_total"] - before
            told = _server(found)
            assert found.itl_s is not None
            lines.append(
                [
                    f"{rate:g}/s",
                    found.requests,
                    f"{told.preemptions:g}",
                    f"{truth:g}",
                    f"{told.kv_use_peak:.0%}",
                    f"{told.queue_peak:g}",
                    ms(found.itl_s.p50),
                    ms(found.itl_s.p99),
                    noise,
                ]
            )
            kept[f"{rate:g}/s"] = _numbers((found, each, noise)) | {"counted": truth}
            setup.checks.that(
                all(row["status"] == "ok" and row["output_tokens"] == 200 for row in each), "every answer is whole"
            )
            recorded = _growth(found, "preemptions")
            setup.checks.that(
                recorded == truth, f"preemptions with the drain: recorded {recorded:g}, counted {truth:g}"
            )
    table(
        "KV cache of 2,048 tokens, requests of 300",
        [
            "rate",
            "requests",
            "preemptions",
            "by the counter",
            "KV peak",
            "queue peak",
            "itl p50",
            "p99",
            "stolen / others",
        ],
        lines,
    )
    save(setup.out, "preempt", kept)


def refused(setup: Setup) -> None:
    classes = [
        {"class": "fits", "share": "70%", "source": "synthetic:prompt=50,output=8"},
        {"class": "does not", "share": "30%", "source": "synthetic:prompt=5000,output=8"},
    ]
    with setup.serve("refused") as server:
        found, each = _measure(
            setup, server, "refused", {"workload": classes, "arrivals": "poisson:rate=5", "for": "10s", "slo": SLO}
        )
    fits = [row for row in each if row["workload_class"] == "fits"]
    others = [row for row in each if row["workload_class"] != "fits"]
    setup.checks.that(all(row["status"] == "ok" for row in fits), f"{len(fits)} that fit went well")
    setup.checks.that(
        all(row["http_status"] == 400 for row in others), f"{len(others)} that do not were refused with 400"
    )
    said = sorted({str(row["error"]) for row in others})
    for text in said[:3]:
        print(f"  {text}")
    save(
        setup.out, "refused", {"fits": len(fits), "refused": len(others), "said": said, "attainment": found.attainment}
    )


Measured = tuple[ol.Score, list[dict[str, Any]], Noise]


def _measure(setup: Setup, server: Engine, name: str, flags: dict[str, Any]) -> tuple[ol.Score, list[dict[str, Any]]]:
    given = {"target.model": "tiny", "target.extra": SAMPLING, "tokenizer": setup.model, **flags}
    run = drive(server, fresh(setup.out / "runs" / name), **given)
    return ol.score(run), rows(run)


def _both(setup: Setup, name: str, flags: dict[str, Any], *servers: tuple[str, ...]) -> list[Measured]:
    """The same load on a server with these flags, then on one with those."""
    found: list[Measured] = []
    for number, more in enumerate(servers):
        with setup.serve(f"{name}-{number}", *more) as server:
            _measure(setup, server, "warm", flags | {"for": "5s"})  # the cache is hot, whatever number the try has
            (score, each), noise = quietest(
                server, partial(_measure, setup, server, f"{name}-{number}", flags), setup.tries
            )
        setup.checks.that(all(row["status"] == "ok" for row in each), f"{len(each)} requests went well")
        found.append((score, each, noise))
    return found


def _growth(found: ol.Score, name: str) -> float:
    """Of a counter over all of a run, not only while requests were due."""
    figures = ol.open_run(str(found.run)).server()
    assert figures is not None
    values = [row["value"] for row in figures.to_pylist() if row["name"] == name]
    return float(values[-1] - values[0])


def _server(found: ol.Score) -> ServerScore:
    assert found.server is not None
    return found.server


def _ladder(found: Percentiles | None) -> list[str]:
    assert found is not None
    return [ms(found.p50), ms(found.p90), ms(found.p99)]


def _cached(each: list[dict[str, Any]]) -> float:
    return float(sum(row["cached_tokens"] or 0 for row in each) / sum(row["prompt_tokens"] for row in each))


def _gaps_ms(each: list[dict[str, Any]]) -> Floats:
    return np.concatenate([np.diff(row["event_ns"]) / 1e6 for row in each if row["workload_class"] == "short"])


def _first_ms(each: list[dict[str, Any]]) -> list[float]:
    return [(row["event_ns"][0] - row["scheduled_ns"]) / 1e6 for row in each if row["workload_class"] == "long"]


def _numbers(found: Measured) -> dict[str, Any]:
    score, each, noise = found
    kept = {
        name: getattr(score, name)
        for name in ("requests", "goodput_rps", "ttft_s", "tpot_s", "itl_s", "tbt_s", "server")
    }
    return kept | {"cached_share": _cached(each), "noise": noise}


def _shares(chart: Chart, values: list[float], name: str) -> None:
    chart.line(np.sort(values), np.arange(1, len(values) + 1) / len(values), name)


PARTS = {each.__name__: each for each in (agree, overload, prefix, chunked, preempt, refused)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--vllm", required=True, help="a Python that can import vllm")
    parser.add_argument("--model", required=True, help="a folder with a small model and its tokenizer")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--for", dest="seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=8.0, help="one that the server has no trouble with")
    parser.add_argument("--overload", type=float, default=80.0, help="one that it cannot serve")
    parser.add_argument("--tries", type=int, default=2, help="at a quiet run, where one is not enough")
    given = parser.parse_args()
    stay_off_the_engines_core()
    checks = Checks()
    setup = Setup(
        given.vllm,
        given.model,
        given.out,
        given.repeats,
        given.seconds,
        given.rate,
        given.overload,
        given.tries,
        checks,
    )
    for part in given.only.split(","):
        PARTS[part](setup)
    checks.end()


if __name__ == "__main__":
    main()
