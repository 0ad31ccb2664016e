"""Throughput, goodput and smooth goodput under rising load, and when late requests are given up.

The experiments of the smooth-goodput paper (sections 4.1 and 5.2, figure 5) on a model of its system: an 8B model on an
A100 whose memory holds 360,000 tokens, prompts read at once, at most 256 answers at a time, questions and answers of
chat lengths (means about 165 and 345 tokens). As in the paper a reader takes 10 tokens a second, a second of idle time
costs 5 tokens, and rates divide by the time until the last answer. The paper's server saturates below 9 requests/s: its
engine took longer for a step than the measured steps that are used here.
"""

import sys
from pathlib import Path

import openloop as ol
from openloop.arrivals import Arrivals, Poisson, read_arrivals
from openloop.report.chart import Chart
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.slo import read_slo
from openloop.workload import Workload, read_source

CHAT = "synthetic:prompt=lognormal(median=110,sigma=0.9),output=lognormal(median=240,sigma=0.85)"
SYSTEM = {"model": "8b", "gpu": "a100", "memory_tokens": 360_000, "batching": "prefill-first", "max_tokens": 32_768}
SLO = {"default": {"gates": "ttft<=1s, tpot<=100ms", "smooth": {"alpha": 5, "read": "10tok/s"}}}
SECONDS = 300.0
RATES = [2, 4, 6, 8, 10, 12, 14, 16, 17, 18, 19, 20, 21, 22, 23, 24]
BURSTS = [12, 18, 24, 30, 36, 42, 48, 54]
ORDERS = {
    "first come, first served": "first",
    "in time first": "goodput:late=defer",
    "late ones refused": "goodput:late=shed",
}


def serve(arrivals: Arrivals, seconds: float, order: str = "first") -> ol.Run:
    fleet = read_fleet({**SYSTEM, "order": order})
    return simulate_fleet(fleet, Workload.of(read_source(CHAT)), arrivals, seconds, 1, read_slo("ttft<=1s"))


def load(folder: Path | None) -> None:
    print("  rate   throughput   goodput    smooth    mean TTFT   p99 TBT   TPOT   idle")
    rates: dict[str, list[float]] = {"throughput": [], "smooth goodput": [], "goodput": []}
    waits: dict[str, list[float]] = {"TTFT, mean": [], "longest gap, p99": [], "TPOT, mean": []}
    for rate in RATES:
        run = serve(Poisson(rate), SECONDS)
        score = ol.score(run, SLO)
        assert score.ttft_s
        assert score.tbt_s
        assert score.tpot_s
        assert score.idle_s
        share = SECONDS / ((run.manifest.stopped_ns or 0) / 1e9)  # of the time until the last answer
        found = (score.output_tokens_per_s, score.smooth_goodput, score.output_token_goodput)
        for values, value in zip(rates.values(), found, strict=True):
            values.append(share * value)
        for values, value in zip(waits.values(), (score.ttft_s.mean, score.tbt_s.p99, score.tpot_s.mean), strict=True):
            values.append(value)
        total, smooth, good = (values[-1] for values in rates.values())
        print(
            f"{rate:>4}/s {total:>8,.0f} tok/s {good:>7,.0f} {smooth:>9,.0f} {score.ttft_s.mean:>10.2f} s"
            f" {1e3 * score.tbt_s.p99:>6.0f} ms {1e3 * score.tpot_s.mean:>3.0f} ms {score.idle_s.mean:>5.1f} s"
        )
    best = {name: RATES[values.index(max(values))] for name, values in rates.items()}
    print(f"smooth goodput is highest at {best['smooth goodput']}/s, goodput at {best['goodput']}/s")
    if not folder:
        return
    title = "Throughput saturates; what users get from it rises, then falls"
    chart = Chart(title, "Offered load (requests/s)", "Tokens per second")
    for (name, values), color in zip(rates.items(), ("orange", "green", "blue"), strict=True):
        chart.line(RATES, values, name, color=color)
    chart.limits(y=(0, 1.1 * max(rates["throughput"])))
    chart.save(folder / "smooth_load.svg")
    chart.save(folder / "smooth_load.png")
    title = "Beyond capacity, requests wait for their first token"
    chart = Chart(title, "Offered load (requests/s)", "Seconds", log_y=True)
    for name, values in waits.items():
        chart.line(RATES, values, name)
    chart.save(folder / "smooth_waits.svg")
    chart.save(folder / "smooth_waits.png")


def giving_up(folder: Path | None) -> None:
    """Half a minute of too much: goodput has no use for who is late already, smooth goodput has."""
    print()
    print("burst  order                      served   in time   goodput    smooth          p99 TTFT")
    lines: dict[str, list[float]] = {}
    for rate in BURSTS:
        for name, order in ORDERS.items():
            arrivals = read_arrivals(f"piecewise:12@0s,{rate}@60s,12@90s")
            score = ol.score(serve(arrivals, 240.0, order), SLO)
            assert score.ttft_s
            print(
                f"{rate:>3}/s  {name:25} {score.completed / score.requests:>7.0%} {score.attainment:>9.0%}"
                f" {score.output_token_goodput:>9,.0f} {score.smooth_goodput:>9,.0f} tok/s {score.ttft_s.p99:>9.1f} s"
            )
            if order != "goodput:late=defer":
                lines.setdefault(f"goodput, {name}", []).append(score.output_token_goodput)
                lines.setdefault(f"smooth, {name}", []).append(score.smooth_goodput)
    first, refused = (lines[f"smooth, {name}"] for name in ("first come, first served", "late ones refused"))
    worse = [rate for rate, one, other in zip(BURSTS, first, refused, strict=True) if one > other]
    print(f"refusing lowers smooth goodput from {worse[0]}/s to {worse[-1]}/s; beyond, waiting costs more")
    if folder:
        title = "Refusing late requests gains goodput and costs users"
        chart = Chart(title, "Load during half a minute of four (requests/s)", "Tokens per second")
        for name, values in lines.items():
            color = "blue" if name.startswith("goodput") else "green"
            chart.line(BURSTS, values, name, color=color, dashed=name.endswith("refused"))
        chart.save(folder / "smooth_burst.svg")
        chart.save(folder / "smooth_burst.png")


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    load(where)
    giving_up(where)
