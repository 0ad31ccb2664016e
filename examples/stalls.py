"""Which stalls does a reader notice? (Smooth-goodput paper, sections 3 and 5.3, figures 6 to 8.)

An 8B model on an A100 serves long prompts, about 1,600 tokens, one a second. Prompts that are read at once stop
everybody who is being answered; in chunks of 512 tokens they do not. Two imitations of that: tokens made ahead of each
prompt and handed out while it is read (decode-prepone), and tokens kept back until 50 ms after the one before (output
delay). A reader takes 20 tokens a second from the first one on.

Sixteen tokens ahead match the p99 of chunks, and the prompts that wait for them pay with TTFT. A few gaps stay long: no
more are made ahead than until the next answer ends.
"""

import sys
from pathlib import Path

import numpy as np

import openloop as ol
from openloop.arrivals import Poisson
from openloop.report.chart import Chart
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.workload import Workload, read_source

LONG = "synthetic:prompt=lognormal(median=1400,sigma=0.5),output=lognormal(median=240,sigma=0.85)"
WHOLE = {"batching": "prefill-first", "max_tokens": 32768}
SYSTEMS = {
    "whole prompts": WHOLE,
    "chunks of 512": {"batching": "chunked", "max_tokens": 512},
    "prepone 4": WHOLE | {"batching": "prepone:steps=4"},
    "prepone 8": WHOLE | {"batching": "prepone:steps=8"},
    "prepone 16": WHOLE | {"batching": "prepone:steps=16"},
    "delay 50 ms": WHOLE | {"delay": "50ms"},
}
PACE_S = 1 / 20  # of the reader
STALL_S = 0.1  # a gap that a dashboard would count

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def serve(system: dict[str, object]) -> ol.Run:
    fleet = read_fleet({"model": "8b", "gpu": "a100", **system})
    return simulate_fleet(fleet, Workload.of(read_source(LONG)), Poisson(1.0), 600.0, seed=1)


def streams(run: ol.Run) -> dict[int, Floats]:
    """Times of the tokens of each request, in seconds after it was due."""
    found = {}
    for batch in run.batches(["request_id", "scheduled_ns", "event_ns"]):
        for number, due, events in zip(*(batch[name].to_pylist() for name in batch.schema.names), strict=True):
            found[number] = (np.array(events) - due) / 1e9
    return found


def stalls(times: Floats) -> tuple[int, int]:
    """Long gaps, and those of them after which the reader had nothing left to read.

    The reader has read token i by the latest t_j + (i - j) * pace of all j <= i, and waits for token i + 1 beyond that.
    """
    place = PACE_S * np.arange(len(times))
    read_up = np.maximum.accumulate(times - place)[:-1] + place[:-1] + PACE_S
    long = np.diff(times) > STALL_S
    return int(long.sum()), int(np.sum(long & (times[1:] > read_up)))


def main(folder: Path | None) -> None:
    print("               gaps between tokens       stalls over 100 ms   mean user        mean")
    print("                  p99   p99.9  longest     all    noticed      idle time    TTFT    E2E")
    runs = {name: serve(system) for name, system in SYSTEMS.items()}
    told = {name: streams(run) for name, run in runs.items()}
    for name, run in runs.items():
        score = ol.score(run, "tbt<=100ms")
        assert score.itl_s
        assert score.idle_s
        assert score.ttft_s
        assert score.e2e_s
        counts = np.array([stalls(times) for times in told[name].values()]).sum(0)
        longest = max(float(np.diff(times).max(initial=0.0)) for times in told[name].values())
        print(
            f"{name:14} {1e3 * score.itl_s.p99:>4.0f}ms {1e3 * score.itl_s.p99_9:>5.0f}ms {1e3 * longest:>6.0f}ms"
            f" {counts[0]:>7,} {counts[1]:>6} ({counts[1] / max(counts[0], 1):>4.0%}) {score.idle_s.mean:>8.3f} s"
            f" {score.ttft_s.mean:>6.2f}s {score.e2e_s.mean:>5.1f}s"
        )
    one = unnoticed(told["whole prompts"])
    times = told["whole prompts"][one]
    print(f"request {one}: {len(times)} tokens, {stalls(times)[0]} stalls, none of them noticed")
    for name in ("chunks of 512", "delay 50 ms"):
        other = told[name][one]
        print(
            f"  with {name}: first token {other[0] - times[0]:+.2f} s, last {other[-1] - times[-1]:+.1f} s,"
            f" longest gap {1e3 * np.diff(times).max():.0f} -> {1e3 * np.diff(other).max():.0f} ms"
        )
    if folder:
        draw({name: told[name][one] for name in ("whole prompts", "chunks of 512", "delay 50 ms")}, folder)


def unnoticed(told: dict[int, Floats]) -> int:
    """The request with the most stalls, of those whose reader noticed none."""
    kept = {number: stalls(times)[0] for number, times in told.items() if len(times) < 250 and not stalls(times)[1]}
    return max(kept, key=kept.__getitem__)


def draw(told: dict[str, Floats], folder: Path) -> None:
    chart = Chart("A reader does not see most stalls", "Seconds after the request", "Tokens delivered")
    until = 1.4 * told["whole prompts"][-1]
    for name, times in told.items():
        label = "delay 50 ms (the reader's pace)" if name.startswith("delay") else name
        shown = times[times < until]
        chart.line(shown, np.arange(1, len(shown) + 1), label, dashed=name.startswith("delay"))
    chart.save(folder / "stalls_stream.svg")
    chart.save(folder / "stalls_stream.png")
    chart = Chart("The gaps of the same request", "Token", "Time since the one before (ms)")
    for name, times in told.items():
        chart.line(np.arange(2, len(times) + 1), 1e3 * np.diff(times), name, dashed=name.startswith("delay"))
    chart.save(folder / "stalls_gaps.svg")
    chart.save(folder / "stalls_gaps.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
