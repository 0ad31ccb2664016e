"""What the scripts about calibration share: a fit to some runs, and how well it predicts the others.

Predictions meet the same requests at the same times as the measured runs: both follow from the seed in the manifest.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from openloop.arrivals import read_arrivals
from openloop.calibrate import Calibration, calibrate, fleet_of, write_model
from openloop.calibrate.match import Seen, TraceReplay
from openloop.calibrate.model import limits_evidence
from openloop.calibrate.trace import MeasuredTrace, read_traces
from openloop.frontier import Knee
from openloop.frontier.knee import find_knee
from openloop.frontier.point import make_point, read_trial
from openloop.records import Run, open_run
from openloop.report.chart import Chart
from openloop.sim.fleet import FleetSpec, simulate_fleet
from openloop.slo import read_slo
from openloop.units import NS_PER_S
from openloop.workload import Workload, read_source
from validation.engines import table

AIMS = {"p50": 0.05, "p99": 0.15}
HEAD = ["rate", "", "requests", "ttft p50", "off", "p99", "off", "tpot p50", "off", "p99", "off", "e2e p50", "p99"]


@dataclass(frozen=True)
class Line:
    """A rate: measured quantiles and how far the predicted ones are off."""

    name: str
    rate: float
    fitted: bool
    requests: int
    measured: dict[str, tuple[float, float]]  # p50 and p99, by kind
    predicted: dict[str, tuple[float, float]]
    spread: dict[str, float]  # of the measured p99: half of its 90% interval, relative to it

    def off(self, kind: str) -> tuple[float, float]:
        pairs = zip(self.predicted[kind], self.measured[kind], strict=True)
        one, other = (made / seen - 1 for made, seen in pairs)
        return one, other

    def cells(self) -> list[str]:
        found = [self.name, "fitted" if self.fitted else "", str(self.requests)]
        for kind in ("ttft", "tpot"):
            for value, off in zip(self.measured[kind], self.off(kind), strict=True):
                found += [f"{1e3 * value:.1f}", f"{off:+.1%}"]
        return [*found, *(f"{each:+.1%}" for each in self.off("e2e"))]


def predict(found: Calibration, name: str, traces: Sequence[MeasuredTrace], fitted: bool) -> Line:
    kinds: dict[str, tuple[list[Any], list[Any]]] = {kind: ([], []) for kind in ("ttft", "tpot", "e2e")}
    for trace in traces:
        replay = TraceReplay(trace)
        made = replay.serve(found.limits, found.theta)
        more = found.theta[0] * (np.exp(found.jitter * np.random.default_rng(1).standard_normal(len(trace))) - 1)
        made = Seen(made.ttft + more, made.tpot, made.gap)
        some = trace.used & (trace.came > 1)
        for times, place in ((replay.seen, 0), (made, 1)):
            whole = times.ttft + np.nan_to_num(times.tpot) * (trace.came - 1)
            for kind, values in (("ttft", times.ttft), ("tpot", times.tpot), ("e2e", whole)):
                kinds[kind][place].append(values[some])
    quantiles = {
        kind: [
            (float(p50), float(p99))
            for p50, p99 in (np.nanquantile(np.concatenate(side), [0.5, 0.99]) for side in both)
        ]
        for kind, both in kinds.items()
    }
    rng = np.random.default_rng(0)
    spread = {}
    for kind, (seen, _) in kinds.items():
        values = np.concatenate(seen)
        tails = [np.nanquantile(rng.choice(values, len(values)), 0.99) for _ in range(200)]
        low, high = np.quantile(tails, [0.05, 0.95])
        spread[kind] = float((high - low) / 2 / quantiles[kind][0][1])
    count = sum(int(np.count_nonzero(trace.used)) for trace in traces)
    measured, predicted = ({kind: pair[n] for kind, pair in quantiles.items()} for n in (0, 1))
    return Line(name, traces[0].offered, fitted, count, measured, predicted, spread)


def knees(fleet: FleetSpec, runs: Sequence[Run], slo: str, target: float) -> tuple[Knee, Knee]:
    """Measured, and predicted for the same rates, seeds and lengths."""
    objectives = read_slo(slo)
    sides: tuple[dict[float, list[Any]], dict[float, list[Any]]] = ({}, {})
    for run in runs:
        m = run.manifest
        assert m.workload
        assert m.arrivals
        assert m.window_ns
        assert m.seed is not None
        how = Workload.of(read_source(m.workload)), read_arrivals(m.arrivals), m.window_ns[1] / NS_PER_S, m.seed
        made = simulate_fleet(fleet, *how, objectives)
        rate = float(m.offered_rps or len(run.head(1 << 30)) / how[2])
        for side, each in zip(sides, (run, made), strict=True):
            side.setdefault(rate, []).append(read_trial(each, objectives, target))
    one, other = ([make_point(rate, trials) for rate, trials in sorted(side.items())] for side in sides)
    return find_knee(one, target), find_knee(other, target)


def report(
    title: str, groups: Mapping[str, Sequence[Path]], fit_to: Sequence[str], out: Path, known: str = "",
    slo: str | None = None, target: float = 0.99,
) -> tuple[Calibration, list[Line]]:  # fmt: skip
    """Fit to the groups `fit_to`, predict all; a table, a picture, and the numbers."""
    found = calibrate([path for name in fit_to for path in groups[name]], known)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_model(found, out.with_suffix(".yaml"))
    lines = [predict(found, name, read_traces(paths), name in fit_to) for name, paths in groups.items()]
    table(f"{title}: {found.limits}", HEAD, [line.cells() for line in lines])
    summary(lines)
    print(f"overhead varies by a factor of {np.exp(found.jitter):.2f} (one standard deviation)")
    for each in limits_evidence(found):
        print(f"  {each}")
    numbers: dict[str, Any] = {"limits": str(found.limits), "lines": [vars(line) for line in lines]}
    if slo:
        runs = [open_run(path) for paths in groups.values() for path in paths]
        seen, made = knees(fleet_of(found), runs, slo, target)
        print(f"knee at {slo}: measured {seen.sentence}; predicted {made.sentence}")
        numbers["knee"] = {"measured": seen.sentence, "predicted": made.sentence}
    out.with_suffix(".json").write_text(json.dumps(numbers, indent=1, default=str) + "\n")
    draw(title, lines, out)
    return found, lines


def summary(lines: Sequence[Line]) -> None:
    held = [line for line in lines if not line.fitted]
    for kind in ("ttft", "tpot", "e2e"):
        sizes = np.abs([line.off(kind) for line in held])
        met = [int(np.sum(sizes[:, n] <= aim)) for n, aim in enumerate(AIMS.values())]
        print(
            f"{kind} held out: median |off| p50 {np.median(sizes[:, 0]):.1%}, p99 {np.median(sizes[:, 1]):.1%};"
            f" p50 within 5% at {met[0]} of {len(held)}, p99 within 15% at {met[1]}"
        )


def draw(title: str, lines: Sequence[Line], out: Path) -> None:
    """Measured and predicted quantiles over the rate; a picture for each mix, where names are MIX-RATE."""
    mixes = sorted({line.name.rpartition("-")[0] for line in lines})
    if len(mixes) > 1:
        for mix in mixes:
            mine = [line for line in lines if line.name.rpartition("-")[0] == mix]
            draw(f"{title}, {mix}", mine, out.with_name(f"{out.name}-{mix}"))
        return
    for kind in ("ttft", "tpot"):
        chart = Chart(title, "Offered load (requests/s)", f"{kind.upper()} (ms)", log_y=True)
        ordered = sorted(lines, key=lambda line: line.rate)
        rates = [line.rate for line in ordered]
        for n, (share, color) in enumerate((("p50", "blue"), ("p99", "orange"))):
            chart.line(rates, [1e3 * line.measured[kind][n] for line in ordered], f"{share} measured", color=color)
            chart.line(
                rates,
                [1e3 * line.predicted[kind][n] for line in ordered],
                f"{share} predicted",
                color=color,
                dashed=True,
            )
        fitted = ", ".join(f"{line.rate:.3g}" for line in ordered if line.fitted)
        chart.note(f"fitted to {fitted}/s" if fitted else "all predicted")
        chart.save(out.with_name(f"{out.name}-{kind}.svg"))
        chart.save(out.with_name(f"{out.name}-{kind}.png"))
