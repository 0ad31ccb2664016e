"""What a request costs the machine that sends it, and so how many cores a rate takes.

    python bench/scale.py [--rate 1000] [--for 5]

The built-in endpoint has the first core and the client the last. Printed are seconds of processor time for 1,000
requests (those of a run less those of a run of one second), of the worker and of the conductor behind it; what a pair
of them sends, when neither is busy for more than 70% of the time; and how many of them, and of cores, 100,000 requests
per second take. Processor time hardly depends on what else the machine does: it can be measured where latency cannot.
"""

import argparse
import os
import resource
import tempfile
from pathlib import Path

import openloop as ol
from openloop.arrivals import Poisson
from openloop.distributions import Fixed
from openloop.load.address import find_place
from openloop.load.targets import Chat
from openloop.serve.process import RunningEndpoint, endpoint_process
from openloop.workload import Synthetic, Workload

ENGINE = "slots:count=100000,prefill=0s,overhead=5ms,gap=5ms"
WANTED_RPS = 100_000
SHARE = 0.7  # of a core that may be busy, so that sends are on time


def used(who: int) -> float:
    found = resource.getrusage(who)
    return found.ru_utime + found.ru_stime


def cost(server: RunningEndpoint, rate: float, seconds: float, tokens: int) -> tuple[float, float, int]:
    """Seconds of the workers and of the conductor, and how many requests these were."""
    place = find_place(server.url)
    workload = Workload.of(Synthetic(Fixed(20), Fixed(tokens)))
    load = ol.Load([(place, Chat(place.host, "openloop", place.base))], workload, Poisson(rate), seconds)
    before = [used(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    with tempfile.TemporaryDirectory() as folder:
        run = ol.drive(load, Path(folder) / "run")
    after = [used(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    return after[0] - before[0], after[1] - before[1], run.num_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--for", dest="seconds", type=float, default=5.0)
    given = parser.parse_args()
    cores, rows = sorted(os.sched_getaffinity(0)), list[str]()
    with endpoint_process(ENGINE, cores[0]) as server:
        os.sched_setaffinity(0, cores[-1:])
        print(f"{'tokens':>6} {'worker':>9} {'conductor':>9} {'a worker sends':>15} {'workers':>8} {'cores':>6}")
        for tokens in (1, 20, 100):
            rate = given.rate if tokens < 100 else given.rate / 4
            short, long = cost(server, rate, 1.0, tokens), cost(server, rate, 1.0 + given.seconds, tokens)
            spent = [1000 * (b - a) / (long[2] - short[2]) for a, b in zip(short[:2], long[:2], strict=True)]
            sends = SHARE * 1000 / max(spent)
            wanted = WANTED_RPS * sum(spent) / 1000 / SHARE
            told = f"{tokens:6} {spent[0]:7.3f} s {spent[1]:7.3f} s {sends:13.0f}/s"
            print(f"{told} {WANTED_RPS / sends:8.0f} {wanted:6.0f}")
            rows.append(
                f"=> client, 1,000 answers of {tokens} token{'s' * (tokens > 1)} | {sum(spent):.2f} s of CPU"
                f" | {WANTED_RPS:,}/s at {SHARE:.0%} of a core: {wanted:.0f} cores | |"
            )
    print("\n".join(rows))


if __name__ == "__main__":
    main()
