"""Known systems, simulated with noise in their times, and what calibration finds of them.

    python -m validation.recovery [--systems 10] -o OUT

Each system has random step times, batching and limits; the last one reads many prompts in several steps. It is
measured at three rates, one of them beyond what it can do; every delivery is late by a random time, and one in two
hundred by ten times that.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from openloop.arrivals import read_arrivals
from openloop.calibrate import calibrate, fleet_of
from openloop.calibrate.match import PARAMETERS
from openloop.records import Run, make_batch, make_lists
from openloop.report.chart import Chart
from openloop.score import score
from openloop.sim.fleet import FleetSpec, read_fleet, simulate_fleet
from openloop.sim.steps import StepTime
from openloop.workload import Workload, read_source
from validation.engines import table

MIX = "synthetic:prompt=lognormal(median=300,sigma=0.8),output=lognormal(median=80,sigma=0.6)"
SECONDS = 20
HELD_S = 120
NOISE_S = 0.001
CHUNKS = {"step": {"floor": "9.3ms", "token": "65us", "context": "20ns"}, "max_tokens": 1024}


def system(rng: np.random.Generator) -> dict[str, Any]:
    floor = rng.uniform(4, 20) * 1e-3
    token = rng.uniform(15, 80) * 1e-6
    return {
        "step": {
            "fixed": f"{1e6 * rng.uniform(0, 4e-3):.1f}us", "floor": f"{1e6 * floor:.1f}us",
            "token": f"{1e6 * token:.2f}us",
            "context": f"{rng.uniform(20, 150):.1f}ns", "attention": f"{rng.uniform(0, 4):.2f}ns",
            "sequence": f"{rng.uniform(5, 100):.1f}us",
        },
        "batching": str(rng.choice(["chunked", "prefill-first"])),
        "max_tokens": int(rng.choice([512, 1024, 2048, 4096])),
        "max_sequences": int(rng.choice([16, 32, 64])),
        "overhead": f"{rng.uniform(2, 20):.2f}ms",
    }  # fmt: skip


def noisy(run: Run, rng: np.random.Generator) -> Run:
    """As a client would see it: each delivery late, none before the one before it."""
    rows = run.head(1 << 30)
    times, counts = [], []
    for row in rows:
        seen = np.array(row["event_ns"], np.int64)
        late = rng.exponential(NOISE_S, len(seen)) * np.where(rng.random(len(seen)) < 0.005, 10, 1)
        times.append(np.maximum.accumulate(seen + np.rint(1e9 * late).astype(np.int64)))
        counts.append(len(seen))
    names = ("request_id", "scheduled_ns", "sent_ns", "prompt_tokens", "cached_tokens", "output_tokens", "status")
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in names}
    columns["event_ns"] = make_lists("event_ns", np.concatenate(times), np.array(counts))
    columns["ended_ns"] = [
        int(each[-1]) if len(each) else row["ended_ns"] for each, row in zip(times, rows, strict=True)
    ]
    return Run.of(run.manifest, [make_batch(columns)])


def measure(fleet: FleetSpec, rate: float, seed: int, seconds: float = SECONDS) -> Run:
    arrivals = read_arrivals(f"poisson:rate={rate!r}")
    return simulate_fleet(fleet, Workload.of(read_source(MIX)), arrivals, seconds, seed, offered_rps=rate)


def capacity(fleet: FleetSpec) -> float:
    run = measure(fleet, 200.0, 9)
    ended = np.array([row["ended_ns"] for row in run.head(1 << 30)]) / 1e9
    return float(len(ended) / ended.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", type=int, default=10)
    parser.add_argument("-o", "--out", type=Path, default=Path("validation-output"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    steps, lines, inside, offs, eights = [], [], [], [], []
    for number in range(given.systems + 1):
        rng = np.random.default_rng(number)
        true = read_fleet(system(rng) if number < given.systems else CHUNKS)
        most = capacity(true)
        runs = [noisy(measure(true, share * most, 10 * number + n), rng) for n, share in enumerate((0.3, 0.7, 1.2))]
        found = calibrate(runs)
        model = fleet_of(found)
        one, other = true.step_time(), model.step_time()
        probes = [(1, 400), (8, 400), (int(true.max_sequences), 400)]
        pairs = [(one.decode(*each), other.decode(*each)) for each in probes] + [(one.prefill(500), other.prefill(500))]
        steps.append([made / seen - 1 for seen, made in pairs])
        eights.append((1e3 * pairs[1][0], 1e3 * pairs[1][1]))
        draws = [one_draw(found, n) for n in range(len(found.draws))]
        for place, each in enumerate(probes):
            low, high = np.quantile([draw.decode(*each) for draw in draws], [0.05, 0.95])
            inside.append(bool(low <= pairs[place][0] <= high))
        seen = noisy(measure(true, 0.5 * most, 77, HELD_S), np.random.default_rng(77))  # overhead is what a client sees
        held = score(seen, "ttft<=1s"), score(measure(model, 0.5 * most, 77, HELD_S), "ttft<=1s")
        off = [getattr(held[1], name).__getattribute__(share) / getattr(held[0], name).__getattribute__(share) - 1
               for name in ("ttft_s", "tpot_s", "e2e_s") for share in ("p50", "p99")]  # fmt: skip
        offs.append(off)
        lines.append([
            number, f"{true.batching}, {true.max_tokens}, {true.max_sequences}", str(found.limits),
            *(f"{each:+.1%}" for each in steps[-1]), *(f"{each:+.1%}" for each in off),
        ])  # fmt: skip
        print(lines[-1], flush=True)
    head = [
        "",
        "true",
        "found",
        "decode 1",
        "8",
        "full",
        "prefill 500",
        "ttft p50",
        "p99",
        "tpot p50",
        "p99",
        "e2e p50",
        "p99",
    ]
    table("modelled over true, less one; the last six at a rate that was not measured", head, lines)
    for name, column in zip(head[3:], np.abs(np.column_stack([np.array(steps), np.array(offs)])).T, strict=True):
        print(f"{name}: median |off| {np.median(column):.1%}, largest {column.max():.1%}")
    print(f"90% intervals of decode steps hold the truth in {np.mean(inside):.0%} of {len(inside)}")
    chart = Chart("Recovery of known systems", "True decode step of 8 sequences (ms)", "Found (ms)")
    eights.sort()
    chart.line([one for one, _ in eights], [other for _, other in eights], "found", color="blue")
    chart.line([one for one, _ in eights], [one for one, _ in eights], "true", color="orange", dashed=True)
    chart.save(given.out / "calibrate-recovery.svg")
    chart.save(given.out / "calibrate-recovery.png")


def one_draw(found: Any, number: int) -> Any:
    return StepTime(*found.draws[number][1:])


assert PARAMETERS[0] == "overhead"

if __name__ == "__main__":
    main()
