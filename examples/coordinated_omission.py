"""The cost of coordinated omission: a server that stalls for 1 s in every 10 s, at 1,000 requests per second.

It answers in 5 ms otherwise. A tester that has a connection for everyone sees what users see. One that waits for a free
connection sends late, and counts from when it sent: it hides the wait, and with it nearly all of the stall. With five
connections it is always behind, so it is a closed loop: its lateness is then as long as the run.
"""

import sys
from pathlib import Path

import openloop as ol
from openloop.arrivals import Constant
from openloop.distributions import Fixed
from openloop.report.chart import Chart
from openloop.sim import Fcfs

TESTERS = {"open loop": None, "50 connections": 50, "5 connections (closed loop)": 5}
SHARES = [50, 90, 95, 99, 99.9]


def main(folder: Path | None) -> None:
    chart = Chart("The same stalls, as two testers report them", "Percentile", "Latency (ms)", log_y=True)
    print(f"{'tester':<28} {'reported p50':>12} {'p99':>8} {'p99.9':>8} {'from schedule p99':>18}  verdict")
    p99 = {}
    for name, connections in TESTERS.items():
        server = Fcfs(Fixed(0.005), servers=None, connections=connections, stall=1.0, every=10.0)
        score = ol.score(ol.simulate(server, Constant(1000), 300.0), "e2e<=100ms")
        assert score.e2e_s is not None
        assert score.e2e_s.from_sent is not None
        sent, due = score.e2e_s.from_sent, score.e2e_s
        p99[name] = sent.p99
        print(
            f"{name:<28} {sent.p50 * 1000:>9.0f} ms {sent.p99 * 1000:>5.0f} ms {sent.p99_9 * 1000:>5.0f} ms"
            f" {due.p99 * 1000:>15,.0f} ms  {score.reasons[0].partition(':')[0] if score.reasons else 'valid'}"
        )
        if connections != 5:
            values = [sent.p50, sent.p90, sent.p95, sent.p99, sent.p99_9]
            chart.line(range(len(SHARES)), [1000 * value for value in values], name)
    for name, reported in list(p99.items())[1:]:
        print(f"{name}: a p99 that is {p99['open loop'] / reported:.0f} times too low")
    if folder:
        chart.ticks([f"p{share:g}" for share in SHARES])
        chart.mark_y(100, "SLO 100 ms", color="red")
        chart.save(folder / "coordinated_omission.svg")
        chart.save(folder / "coordinated_omission.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
