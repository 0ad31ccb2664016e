"""openloop against llama-server, which computes as many requests at once as it has slots and lets the others wait.

    python -m validation.llama_server --server BINARY --gguf FILE [--tokenizer FOLDER] [-o OUT]

First at a comfortable rate, with prompts made by asking the server how it counts; then at rising rates, until it
cannot keep up.
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

import openloop as ol
from openloop.report.chart import Chart
from validation.comfortable import check_run
from validation.engines import Checks, Engine, arguments, drive, engine, fresh, ms, quietest, save, table
from validation.engines import stay_off_the_engines_core as stay_off

SLOTS = 4
EXTRA = {"ignore_eos": True, "cache_prompt": False}
SLO = "ttft<=250ms, tpot<=50ms"
HEAD = ["offered", "throughput", "goodput", "ttft p50", "p99", "running peak", "queue peak", "valid", "stolen / others"]


def command(server: str, gguf: str) -> list[str]:
    flags = f"-t 1 -c 8192 -np {SLOTS} -cb --metrics --slots --alias tiny".split()
    return [server, "-m", gguf, *flags]


def comfortable(server: Engine, out: Path, checks: Checks, rate: float, tokenizer: str | None) -> None:
    flags: dict[str, Any] = {"arrivals": f"poisson:rate={rate}", "for": "20s", "target.extra": EXTRA}
    for name, more in {"llama-server": {}, "llama-server-tokenizer": {"tokenizer": tokenizer}}.items():
        if more.get("tokenizer", "") is None:
            continue
        score, each = check_run(server, out, name, checks, prompt=100, output=32, **flags, **more)
        checks.that(
            all(row["output_tokens"] == 32 for row in each), "every answer has the 32 tokens that were asked for"
        )
        assert score.server is not None
        told, seen = score.server.output_tokens_per_s, score.output_tokens_per_s
        checks.that(abs(told / seen - 1) < 0.2, f"output tokens/s: {seen:.0f} seen, {told:.0f} by the server's counter")


def rising(server: Engine, out: Path, checks: Checks, rates: list[float]) -> None:
    found = {}
    for rate in rates:
        flags = {
            "workload": "synthetic:prompt=100,output=32",
            "arrivals": f"poisson:rate={rate}",
            "for": "10s",
            "slo": SLO,
        }
        given = {"target.model": "tiny", "target.extra": EXTRA, "drain": "60s", **flags}
        run, noise = quietest(
            server, partial(drive, server, fresh(out / "runs" / f"rising-{rate:g}"), **given), tries=1
        )
        found[rate] = ol.score(run), noise
    table(
        f"rising rates, {SLOTS} slots, {SLO}; rates per second, times in ms",
        HEAD,
        [_line(*each) for each in found.values()],
    )
    peak = max(_peaks(score)[0] for score, _ in found.values())
    checks.that(peak <= SLOTS, f"it never computed more than {SLOTS} at once, by its own account ({peak:g})")
    first, last = found[rates[0]][0], found[rates[-1]][0]
    waited = _peaks(first)[1], max(_peaks(score)[1] for score, _ in found.values())
    checks.that(waited[0] < waited[1], "beyond capacity, requests wait in its queue")
    checks.that(last.goodput_rps < 0.5 * max(score.goodput_rps for score, _ in found.values()), "and goodput collapses")
    chart = Chart(f"llama-server with {SLOTS} slots on one core", "Offered load (requests/s)", "Requests per second")
    chart.line(
        [score.offered_rps for score, _ in found.values()],
        [score.completed_in_window_rps for score, _ in found.values()],
        "throughput",
        color="orange",
    )
    chart.line(
        [score.offered_rps for score, _ in found.values()],
        [score.goodput_rps for score, _ in found.values()],
        "goodput",
        color="green",
    )
    chart.limits(y=(0, 1.1 * max(score.completed_in_window_rps for score, _ in found.values())))
    chart.note(f"goodput: {SLO}")
    save(out, "rising", [{"score": score.to_dict(), "noise": noise} for score, noise in found.values()], chart)


def _line(score: ol.Score, noise: object) -> list[object]:
    assert score.ttft_s is not None
    rates = [f"{each:.1f}" for each in (score.offered_rps, score.completed_in_window_rps, score.goodput_rps)]
    return [
        *rates,
        ms(score.ttft_s.p50),
        ms(score.ttft_s.p99),
        *(f"{each:g}" for each in _peaks(score)),
        score.valid,
        noise,
    ]


def _peaks(score: ol.Score) -> tuple[float, float]:
    return (score.server.running_peak, score.server.queue_peak) if score.server else (math.nan, math.nan)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--server", required=True, help="the program llama-server")
    parser.add_argument("--gguf", required=True, help="a small model")
    parser.add_argument("--tokenizer", help="a folder with its tokenizer.json: prompts of exactly so many tokens")
    parser.add_argument("--rate", type=float, default=8.0, help="one that the server has no trouble with")
    parser.add_argument("--rates", default="10,20,30,40,60", help="up to one that it cannot serve")
    given = parser.parse_args()
    stay_off()
    checks = Checks()
    with engine(command(given.server, given.gguf), given.out / "llama-server.log") as server:
        comfortable(server, given.out, checks, given.rate, given.tokenizer)
        rising(server, given.out, checks, [float(each) for each in given.rates.split(",")])
    checks.end()


if __name__ == "__main__":
    main()
