"""Routing that matters: two real replicas with prefix caching behind the proxy, round-robin against prefix-aware.

    python -m validation.proxy --server BINARY --gguf FILE [--sglang PYTHON] [-o OUT] [--rounds 3]
    python -m validation.proxy --vllm PYTHON --model FOLDER [--sglang PYTHON] [-o OUT] [--rounds 3]

Eight prefixes of 1,000 tokens are asked for at random. A replica has room for about four: it can hold the prefixes if
it gets half of them, and cannot if it gets all. llama-servers are started anew for every run, of vLLM the caches are
emptied. What they found in their caches is read off their own counters. vLLM also publishes what its cache holds,
which the policy kv-aware then goes by; what that expected is held against what vLLM found, request by request. The
Python of --sglang can import sglang_router, which then is measured, too.
"""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import openloop as ol
from openloop.report.chart import Chart
from validation.engines import (
    Checks,
    Engine,
    Noise,
    arguments,
    drive,
    engine,
    free_port,
    fresh,
    ms,
    noise,
    rows,
    save,
    stay_off_the_engines_core,
    table,
    wait_until_up,
)
from validation.vllm_server import Setup

SLOTS, PREFIXES, PREFIX, BLOCK = 4, 8, 1000, 32
WORKLOAD = f"synthetic:prompt=20,output=8,prefixes={PREFIXES},prefix={PREFIX}"
SLO = "ttft<=200ms"
CACHED = ("llamacpp:prompt_tokens_cached_total", "vllm:prefix_cache_hits_total")
ASKED = ("llamacpp:prompt_tokens_cached_total", "llamacpp:prompt_tokens_total", "vllm:prefix_cache_queries_total")


@dataclass(frozen=True)
class Measured:
    score: ol.Score
    hit_rate: float  # by the servers
    split: str  # share of prompt tokens at the busier replica
    noise: Noise
    knew: tuple[int, int] | None = None  # requests whose cached tokens the policy knew exactly, and all


@contextmanager
def front(command: list[str], url: str, log: Path) -> Iterator[Engine]:
    """A router, on the core that the engines do not have."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        found = Engine(url, process.pid)
        wait_until_up(found, process, log, 300.0)
        yield found
    finally:
        process.terminate()
        process.wait(30)


@dataclass(frozen=True)
class Replica:
    engine: Engine
    publishes: dict[str, str]  # where

    def counted(self) -> np.ndarray:
        """Tokens of prompts that were found, and all of them."""
        told = self.engine.figures()
        return np.array([sum(told.get(name, 0.0) for name in names) for names in (CACHED, ASKED)])


@contextmanager
def llamas(given: Any) -> Iterator[list[Replica]]:
    flags = (
        f"-t 1 -c {SLOTS * 2048} -np {SLOTS} -cb --metrics --slots --alias tiny --cache-ram 0 --no-kv-unified".split()
    )
    with ExitStack() as stack:
        command, logs = [given.server, "-m", given.gguf, *flags], [given.out / f"llama-{n}.log" for n in range(2)]
        yield [Replica(stack.enter_context(engine(command, log)), {}) for log in logs]


@contextmanager
def vllms(given: Any) -> Iterator[list[Replica]]:
    setup = Setup(given.vllm, given.model, given.out, 1, 0.0, 0.0, 0.0, 1, Checks())
    blocks = str(SLOTS * (PREFIX + 200) // BLOCK)
    flags = ["--enable-prefix-caching", "--block-size", str(BLOCK), "--num-gpu-blocks-override", blocks]
    with ExitStack() as stack:
        found = []
        for n in range(2):
            ports = {"endpoint": free_port(), "replay_endpoint": free_port()}
            told = {"enable_kv_cache_events": True, **{key: f"tcp://*:{port}" for key, port in ports.items()}}
            server = setup.serve(f"vllm-{n}", *flags, "--max-model-len", "2048", "--kv-events-config", json.dumps(told))
            keys = zip(("kv_events", "kv_replay"), ports.values(), strict=True)
            publishes = {key: f"tcp://127.0.0.1:{port}" for key, port in keys}
            found.append(Replica(stack.enter_context(server), publishes))
        yield found


@contextmanager
def behind(way: str, replicas: list[Replica], out: Path, python: str | None) -> Iterator[Engine]:
    port, urls = free_port(), [each.engine.url for each in replicas]
    address = f"http://127.0.0.1:{port}"
    who, _, policy = way.partition(" ")
    if who == "openloop":
        file = out / f"proxy-{port}.yaml"
        known = [{"url": each.engine.url, **each.publishes} for each in replicas]
        file.write_text(json.dumps({"replicas": known, "listen": f"127.0.0.1:{port}", "routing": policy, "slo": SLO}))
        command = [sys.executable, "-m", "openloop", "proxy", str(file), "-o", str(out / f"proxied-{port}")]
    else:
        command = [str(python), "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--worker-urls", *urls, "--policy", policy, "--prometheus-port", str(free_port())]
    with front(command, address, out / f"{who}.log") as found:
        time.sleep(1.0 if who == "openloop" else 5.0)  # a router asks its workers who they are before it uses them
        yield found


def measure(given: Any, way: str, kept: list[Replica] | None) -> Measured:
    with ExitStack() as stack:
        replicas = kept or stack.enter_context(llamas(given))
        for each in kept or ():
            urllib.request.urlopen(f"{each.engine.url}/reset_prefix_cache", data=b"", timeout=30).read()
        before = [each.counted() for each in replicas]
        server = stack.enter_context(behind(way, replicas, given.out, given.sglang))
        around = stack.enter_context(noise(replicas[0].engine))
        scenario = {
            "target.model": "tiny",
            "target.metrics": False,
            "target.extra": {"ignore_eos": True},
            "target.replica_header": "x-openloop-replica",
            "workload": WORKLOAD,
            "arrivals": f"poisson:rate={given.rate}",
            "for": f"{given.seconds}s",
            "slo": SLO,
        }
        run = drive(server, fresh(given.out / "runs" / way.replace(" ", "-")), **scenario)
        counts = np.array([each.counted() for each in replicas]) - before
    cached, asked = counts.sum(axis=0)
    folder = given.out / f"proxied-{server.url.rpartition(':')[2]}"
    knew = expected(folder) if kept and folder.exists() else None
    split = f"{counts[:, 1].max() / max(asked, 1.0):.0%}"
    return Measured(ol.score(run), cached / max(asked, 1.0), split, around, knew)


def expected(folder: Path) -> tuple[int, int]:
    """By the proxy's log: of how many requests the replica found as much in its cache as the policy had thought."""
    head, *lines = [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]
    column = head["view"].index("cached")
    found = {row["request_id"]: row["cached_tokens"] for row in rows(ol.open_run(folder)) if row["status"] == "ok"}
    thought = {line["ask"][0]: line["views"][line["place"]][column] for line in lines}
    return sum(found[number] == thought[number] for number in found), len(found)


def _line(way: str, several: list[Measured]) -> list[object]:
    ladders = [each.score.ttft_s for each in several if each.score.ttft_s]
    return [
        way,
        _spread([100 * each.hit_rate for each in several], "%"),
        _spread([1000 * each.p50 for each in ladders]),
        _spread([1000 * each.p90 for each in ladders]),
        _spread([1000 * each.p99 for each in ladders]),
        _spread([100 * each.score.attainment for each in several], "%"),
        ", ".join(each.split for each in several),
        ", ".join(str(each.noise) for each in several),
    ]


def _spread(values: list[float], unit: str = "") -> str:
    low, mid, high = (f"{each:.0f}{unit}" for each in (min(values), float(np.median(values)), max(values)))
    return mid if low == high else f"{mid} ({low} to {high})"


def _first_ms(found: ol.Score) -> list[float]:
    run = ol.open_run(str(found.run))
    return [(row["event_ns"][0] - row["scheduled_ns"]) / 1e6 for row in rows(run) if row["event_ns"]]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--server", help="the program llama-server")
    parser.add_argument("--gguf", help="a small model for it")
    parser.add_argument("--vllm", help="a Python that can import vllm, in place of llama-server")
    parser.add_argument("--model", help="a small model for it")
    parser.add_argument("--sglang", help="a Python that can import sglang_router")
    parser.add_argument("--rate", type=float, default=6.0)
    parser.add_argument("--for", dest="seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    stay_off_the_engines_core()
    ways = ["openloop round-robin", "openloop prefix-aware"]
    ways += ["openloop kv-aware"] if given.vllm else []
    ways += ["sglang round_robin", "sglang cache_aware"] if given.sglang else []
    found: dict[str, list[Measured]] = {way: [] for way in ways}
    name = "vLLMs" if given.vllm else "llama-servers"
    with vllms(given) if given.vllm else nullcontext() as kept:
        for _ in range(given.rounds):
            for way in ways:
                found[way].append(measure(given, way, kept))
    table(
        f"two {name}, {PREFIXES} prefixes of {PREFIX:,} tokens, {given.rate:g}/s for {given.seconds:g} s, "
        f"{given.rounds} rounds; TTFT in milliseconds, median (least to most)",
        ["in front", "hits, by servers", "ttft p50", "p90", "p99", SLO, "busier one", "stolen / others"],
        [_line(way, several) for way, several in found.items()],
    )
    checks = Checks()
    hits = {way: float(np.median([each.hit_rate for each in several])) for way, several in found.items()}
    p50 = {
        way: float(np.median([each.score.ttft_s.p50 for each in several if each.score.ttft_s]))
        for way, several in found.items()
    }
    blind, aware = ways[:2]
    checks.that(hits[aware] > hits[blind] + 0.2, f"prefix-aware finds {hits[aware]:.0%}, round-robin {hits[blind]:.0%}")
    checks.that(p50[aware] < p50[blind], f"its TTFT p50 is {ms(p50[aware])} ms, round-robin's {ms(p50[blind])} ms")
    for way in ways[1:]:
        for right, of in [each.knew for each in found[way] if each.knew]:
            told = f"{way} knew exactly what vLLM found in its cache for {right} of {of} requests"
            checks.that(way != "openloop kv-aware" or right > 0.9 * of, told)
    chart = Chart(f"Two {name}, by who sends requests where", "Percent of requests", "TTFT at most (ms)")
    for way, several in found.items():
        values = [wait for each in several for wait in _first_ms(each.score)]
        shares = np.arange(1, 96)
        chart.line(shares, np.percentile(values, shares), way)
    chart.limits(y=(0, 75 if given.vllm else 250))
    figures = {
        way: [{"hits": e.hit_rate, "ttft_s": e.score.ttft_s, "noise": e.noise} for e in s] for way, s in found.items()
    }
    save(given.out, "proxy", figures, chart)
    checks.end()


if __name__ == "__main__":
    main()
