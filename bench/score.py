"""How fast is the scorer, and how much memory does it need?

    python bench/score.py [--vllm-python PATH]

Everything runs on one core. The full score of a run is set against one pass over the same bytes (a numpy sum of its
event times), which no scorer can beat, and against the loop over requests that load testers use: a plain one, and
vLLM's own `calculate_metrics` where a Python that has vLLM is named. Then a run several times larger than 2 GiB is
written to disk and scored in a process of its own, whose peak memory is reported.
"""

import argparse
import itertools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import openloop as ol

SLO = "ttft<=500ms, tpot<=40ms"
ROWS = 5_000
REPEATS = 5
SAMPLE = 2_000  # requests that the slow loops are timed on


def batches(requests: int, tokens: int, seed: int = 0) -> Iterator[pa.RecordBatch]:
    """Poisson arrivals at 1,000/s; first tokens about 0.2 s and further ones about 20 ms apart, both lognormal."""
    rng = np.random.default_rng(seed)
    now = 0.0
    for first in range(0, requests, ROWS):
        due = now + np.cumsum(rng.exponential(1e6, ROWS))
        now = due[-1]
        gaps = rng.lognormal(np.log(20e6), 0.5, (ROWS, tokens))
        gaps[:, 0] = due + rng.lognormal(np.log(200e6), 0.5, ROWS)
        times = np.cumsum(gaps, axis=1).astype(np.int64)
        yield ol.make_batch(
            {
                "request_id": np.arange(first, first + ROWS),
                "scheduled_ns": due.astype(np.int64),
                "sent_ns": due.astype(np.int64) + 20_000,
                "ended_ns": times[:, -1] + 1_000,
                "event_ns": ol.make_lists("event_ns", times.ravel(), np.full(ROWS, tokens)),
                "prompt_tokens": rng.integers(100, 2000, ROWS),
                "output_tokens": np.full(ROWS, tokens),
            }
        )


def best(what: Callable[[], Any]) -> float:
    """Seconds of the fastest of several calls; the first, which may compile, is not counted."""
    what()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        what()
        times.append(time.perf_counter() - start)
    return min(times)


def loop_over_requests(rows: list[dict[str, Any]]) -> float:
    """Seconds per event of a plain Python loop over requests and tokens for the same numbers, on lists of floats."""
    streams = [(row["scheduled_ns"] / 1e9, [t / 1e9 for t in row["event_ns"]]) for row in rows]

    def summarise() -> None:
        found: dict[str, list[float]] = {
            name: [] for name in ("ttft", "tpot", "e2e", "itl", "tbt", "jitter", "idle", "qoe", "fluidity")
        }
        good = good_tokens = benefit = 0.0
        for due, times in streams:
            n = len(times)
            gaps = [b - a for a, b in itertools.pairwise(times)]
            idle = delay = delays = missed = 0.0
            deadline = due + 0.5
            for i, t in enumerate(times, start=1):
                idle = max(idle, t - due - i * 0.05)
                delay = max(delay, t - due - 0.5 - (i - 1) * 0.05)
                delays += delay
                if t <= deadline:
                    deadline += 0.05
                else:
                    missed += 1 + (t - deadline) // 0.05
                    deadline = t + 0.05
            ttft, e2e = times[0] - due, times[-1] - due
            tpot = (e2e - ttft) / (n - 1)
            found["ttft"].append(ttft)
            found["tpot"].append(tpot)
            found["e2e"].append(e2e)
            found["itl"] += gaps
            found["tbt"].append(max(gaps))
            found["jitter"].append(max(gaps) - min(gaps))
            found["idle"].append(idle)
            found["qoe"].append(1 - delays / (n * (delay + 0.05) + 0.05 * n * (n - 1) / 2))
            found["fluidity"].append(1 - missed / (n + missed))
            benefit += n - 5 * idle
            if ttft <= 0.5 and tpot <= 0.04:
                good += 1
                good_tokens += n
        for values in found.values():
            np.mean(values)
            np.percentile(values, [50, 90, 95, 99, 99.9])

    return best(summarise) / sum(len(times) for _, times in streams)


def vllm_loop(python: str, requests: int, tokens: int) -> tuple[str, float]:
    """vLLM's version, and seconds per event of its calculate_metrics on requests like ours."""
    code = f"""
        import random, time
        from vllm import __version__
        from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
        from vllm.benchmarks.serve import calculate_metrics

        draw, now, outputs = random.Random(0), 0.0, []
        for _ in range({requests}):
            now += draw.expovariate(1000)
            itl = [draw.lognormvariate(-3.9, 0.5) for _ in range({tokens} - 1)]
            outputs.append(RequestFuncOutput(success=True, latency=0.2 + sum(itl), ttft=0.2, itl=itl,
                                             output_tokens={tokens}, prompt_len=100, start_time=now))
        times = []
        for _ in range({REPEATS}):
            start = time.perf_counter()
            calculate_metrics([], outputs, now, None, [50, 90, 95, 99, 99.9], {{"ttft": 500, "tpot": 40}})
            times.append(time.perf_counter() - start)
        print("RESULT", __version__, min(times) / ({requests} * {tokens}))
    """
    done = subprocess.run([python, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    _, version, seconds = next(line for line in done.stdout.splitlines() if line.startswith("RESULT")).split()
    return version, float(seconds)


def report(name: str, seconds: float, events: int, against: str = "") -> None:
    print(f"  {name:<46} {seconds:8.3f} s {events / seconds / 1e6:9,.1f} M events/s  {against}", flush=True)


def in_memory(requests: int, tokens: int, folder: Path) -> tuple[float, float, float]:
    """Seconds of one pass and of the full score, and seconds per event of a plain loop; leaves the run in `folder`."""
    events = requests * tokens
    run = ol.Run.of(ol.Manifest(source="bench"), list(batches(requests, tokens)))
    print(f"{requests:,} requests, {events:,} token events ({events * 8 / 1e9:.1f} GB of event times)")
    flat = np.concatenate([batch.column("event_ns").values.to_numpy() for batch in run.batches(["event_ns"])])
    one_pass = best(flat.sum)
    del flat
    report("one pass over the events (numpy sum)", one_pass, events)
    full = best(lambda: ol.score(run, SLO))
    report("full score, run in memory", full, events, f"{full / one_pass:.1f}x the pass")
    run.save(folder)
    return one_pass, full, loop_over_requests(run.head(SAMPLE))


def speed(requests: int, tokens: int, folder: Path, vllm_python: str | None) -> None:
    events = requests * tokens
    one_pass, full, plain = in_memory(requests, tokens, folder)
    stored = sum(path.stat().st_size for path in folder.iterdir())
    from_disk = best(lambda: ol.score(folder, SLO))
    report("full score, run folder", from_disk, events, f"{from_disk / one_pass:.1f}x the pass, {stored / 1e9:.2f} GB")
    ratio = plain * events / full
    what = f"=> score of {requests:,} requests, {events:,} tokens | {full:.2f} s"
    print(f"{what} | adding up their times once: {one_pass:.2f} s | {full / one_pass:.1f}x as long | at most 8x")
    print(f"{what} | a plain loop over requests: {plain * events:.0f} s | {ratio:,.0f}x as fast | 100x")
    report(f"plain loop, the same numbers ({SAMPLE:,})", plain * events, events, f"score is {ratio:,.0f}x as fast")
    if vllm_python:
        version, seconds = vllm_loop(vllm_python, SAMPLE, tokens)
        name = f"vLLM {version} calculate_metrics ({SAMPLE:,})"
        report(name, seconds * events, events, f"score is {seconds * events / full:,.0f}x as fast")
        loop = f"vLLM {version}'s loop: {seconds * events:.0f} s"
        print(f"{what} | {loop} | {seconds * events / full:,.0f}x as fast | 100x")
    else:
        print("  vLLM's own loop: not measured; name a Python that has vLLM with --vllm-python")


SCORE_ALONE = """
    import sys, time
    from pathlib import Path
    import openloop as ol

    start = time.perf_counter()
    score = ol.score(sys.argv[1], sys.argv[2])
    seconds = time.perf_counter() - start
    # VmHWM and not ru_maxrss, which a child inherits from the process that started it.
    peak = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    print(seconds, peak, score.requests, score.itl_s.n)
"""


def memory(requests: int, tokens: int, folder: Path) -> None:
    events = requests * tokens
    print(f"larger than memory: {requests:,} requests, {events:,} token events ({events * 8 / 2**30:.1f} GiB)")
    start = time.perf_counter()
    with ol.RunWriter(folder, ol.Manifest(source="bench")) as writer:
        for batch in batches(requests, tokens):
            writer.append(batch)
    print(f"  written in {time.perf_counter() - start:.0f} s")
    command = [sys.executable, "-c", textwrap.dedent(SCORE_ALONE), str(folder), SLO]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, peak_kib, scored, gaps = map(float, done.stdout.split())
    assert (scored, gaps) == (requests, events - requests), "the whole run must have been scored"
    report("full score, run folder", seconds, events, f"peak memory {peak_kib / 2**20:.2f} GiB, limit 2.00")
    size, peak = events * 8 / 2**30, peak_kib / 2**20
    print(
        f"=> memory to score {size:.1f} GiB of token times | {peak:.2f} GiB | all of them"
        f" | {peak / size:.0%} | at most 2 GiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--large", type=int, default=4_000_000, help="requests of the run larger than memory; 0: skip")
    parser.add_argument("--vllm-python", default=os.environ.get("VLLM_PYTHON"), help="a Python that can import vllm")
    parser.add_argument("--folder", type=Path, default=None, help="where to put the runs (default: a temporary folder)")
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    print(f"scorer on one core, best of {REPEATS}: Python {platform.python_version()}, load {os.getloadavg()[0]:.2f}")
    home = Path(tempfile.mkdtemp(dir=args.folder))
    try:
        speed(args.requests, args.tokens, home / "run", args.vllm_python)
        if args.large:
            memory(args.large, args.tokens, home / "large")
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
