"""Pipelining: the same three steps done one request at a time, and as stages that work side by side.

Latency of a single request is the sum of the stages either way; what can be served is set by the sum when one worker
does all, and by the slowest stage alone in a pipeline.
"""

import sys
from pathlib import Path

import openloop as ol
from openloop.arrivals import Poisson
from openloop.distributions import Fixed
from openloop.report.chart import Chart
from openloop.sim import Fcfs, Pipeline, QueueModel
from openloop.sim.theory import pipeline_latency, pipeline_throughput

STAGES_S = [0.005, 0.020, 0.010]  # read, model, write
LOADS = [1, 10, 20, 25, 28, 30, 40, 45, 49, 60]


def serve(queue: QueueModel, load: float) -> ol.Score:
    return ol.score(ol.simulate(queue, Poisson(load), 600.0), "e2e<=200ms")


def main(folder: Path | None) -> None:
    whole = Fcfs(Fixed(sum(STAGES_S)))
    line = Pipeline(tuple(Fixed(stage) for stage in STAGES_S))
    print(f"theory: latency {1000 * pipeline_latency(STAGES_S):.0f} ms, one worker {1 / sum(STAGES_S):.1f}/s,", end=" ")
    print(f"pipeline {pipeline_throughput(STAGES_S):.1f}/s")
    print("          one worker                      pipeline")
    print("  load  throughput     p50  goodput     throughput     p50  goodput")
    goodput: dict[str, list[float]] = {"one worker": [], "pipeline": []}
    for load in LOADS:
        cells = []
        for name, queue in (("one worker", whole), ("pipeline", line)):
            score = serve(queue, load)
            assert score.e2e_s is not None
            goodput[name].append(score.goodput_rps)
            cells.append(
                f"{score.completed_in_window_rps:>10.1f} {1000 * score.e2e_s.p50:>6,.0f}ms {score.goodput_rps:>6.1f}/s"
            )
        print(f"{load:>4}/s {'     '.join(cells)}")
    if folder:
        chart = Chart(
            "A pipeline carries what its slowest stage carries", "Offered load (requests/s)", "Goodput (requests/s)"
        )
        for name, values in goodput.items():
            chart.line(LOADS, values, name)
        chart.mark_x(1 / sum(STAGES_S), "1 / sum of stages")
        chart.mark_x(pipeline_throughput(STAGES_S), "1 / slowest stage")
        chart.save(folder / "pipelining.svg")
        chart.save(folder / "pipelining.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
