"""What the proxy adds: latency and processor time, beside a direct connection and beside the sglang router.

    python bench/proxy.py [--rates 20,100] [--for 10] [--sglang PYTHON] [--alone]
    python bench/proxy.py --endure [--streams 1000] [--minutes 10] [-o FOLDER]

Two built-in endpoints serve streams of 50 tokens, one each 20 ms, and note when each request arrived and each token was
written. They are driven directly, through the proxy and through the router (PYTHON can import sglang_router). Added
latency is (received - sent) - (written - arrived), for first tokens and for later ones; processor time is that of the
proxy or router. It has the last core, everything else the first.

How many tokens it reads at once depends on how busy the machine is, and so does what one costs it. So there is also one
stream whose next token is written when the last has arrived: each is read and passed on by itself. The least of several
rounds is what that costs. With --alone it is the only thing that is measured.

With --endure, as many streams as are asked for are kept open for so long, and the memory and files of the proxy are
read every ten seconds; it fails if a stream is lost, if rows are missing, or if memory grows.
"""

import argparse
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

import openloop as ol
from openloop.arrivals import Poisson
from openloop.clock import stolen_s
from openloop.distributions import Fixed
from openloop.load.address import find_place
from openloop.load.targets import Chat
from openloop.serve.process import RunningEndpoint
from openloop.workload import Synthetic, Workload

PROMPT, TOKENS, GAP_S = 50, 50, 0.020
TICK = os.sysconf("SC_CLK_TCK")
CORES = sorted(os.sched_getaffinity(0))
GROWTH = 1.05  # of memory, from the second tenth of the time to the last


@contextmanager
def started(command: list[str], url: str, core: int | None = None) -> Iterator[int]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/v1/models", timeout=2).read()
                break
            except OSError:
                time.sleep(0.1)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def endpoint(engine: str, core: int | None = None) -> Iterator[RunningEndpoint]:
    """In the session of this process, so that all share its priority."""
    port = free_port()
    command = [sys.executable, "-m", "openloop", "serve", "--port", str(port), "--engine", engine]
    with started(command, f"http://127.0.0.1:{port}", core):
        yield RunningEndpoint(f"http://127.0.0.1:{port}")


@contextmanager
def proxy(
    replicas: list[RunningEndpoint], folder: Path, core: int | None = None, **keys: object
) -> Iterator[tuple[str, int]]:
    port = free_port()
    file = folder / f"proxy-{port}.yaml"
    told = {"replicas": [each.url for each in replicas], "routing": "round-robin", **keys}
    file.write_text(json.dumps({**told, "listen": f"127.0.0.1:{port}", "run": str(folder / f"proxied-{port}")}))
    url = f"http://127.0.0.1:{port}"
    with started([sys.executable, "-m", "openloop", "proxy", str(file)], url, core) as pid:
        yield url, pid


@contextmanager
def sglang(python: str, replicas: list[RunningEndpoint], core: int | None = None) -> Iterator[tuple[str, int]]:
    port = free_port()
    command = [python, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", *(each.url for each in replicas), "--policy", "round_robin"]
    url = f"http://127.0.0.1:{port}"
    with started([*command, "--prometheus-port", str(free_port())], url, core) as pid:
        yield url, pid


def drive(urls: list[str], out: Path, rate: float, seconds: float, tokens: int = TOKENS) -> ol.Run:
    places = [find_place(url) for url in urls]
    sites = [(place, Chat(place.host, "openloop", place.base)) for place in places]
    workload = Workload.of(Synthetic(Fixed(PROMPT), Fixed(tokens)))
    return ol.drive(ol.Load(sites, workload, Poisson(rate), seconds, timeout_s=600.0, drain_s=600.0), out)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def added(run: ol.Run, replicas: list[RunningEndpoint]) -> tuple[np.ndarray, np.ndarray, int]:
    """Milliseconds, of first tokens and of later ones; and how many tokens there were."""
    truth = {number: found for each in replicas for number, found in each.truth().items()}
    first, later, count = [], [], 0
    for batch in run.batches():
        for row in batch.select(["request_id", "sent_ns", "event_ns", "status"]).to_pylist():
            arrived, written = truth.get(row["request_id"], (0, []))
            if row["status"] != "ok" or len(written) != len(row["event_ns"]):
                continue
            extra = (np.array(row["event_ns"]) - row["sent_ns"] - np.array(written) + arrived) / 1e6
            first.append(extra[0])
            later.append(extra[1:])
            count += len(extra)
    return np.array(first), np.concatenate(later), count


class Lockstep:
    """A replica that writes the next token when the client has the last."""

    REQUEST = b'{"model":"openloop","stream":true,"messages":[{"role":"user","content":"hello"}]}'
    HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        self.asked: queue.Queue[socket.socket] = queue.Queue()

    def _accept(self) -> None:
        while True:
            threading.Thread(target=self._answer, args=[self.listener.accept()[0]], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """Whatever a router wants to know of its workers; a completion is handed over."""
        told = b'{"data":[{"id":"openloop"}],"model_path":"openloop","status":"ok"}'
        seen = b""
        while data := connection.recv(65536):
            seen += data
            head, _, body = seen.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            if len(body) < int(length[1] if length else 0) or head == seen:
                continue
            if head.startswith(b"POST /v1/chat"):
                self.asked.put(connection)
                return
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(told)
            connection.sendall(head + told)
            seen = b""

    def cost_us(self, url: str, pid: int, tokens: int = 3000) -> float:
        """Processor time of whoever stands between, for each token."""
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: {len(self.REQUEST)}\r\n\r\n".encode() + self.REQUEST)
            replica = self.asked.get(timeout=30)
            replica.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            replica.sendall(self.HEAD)
            began = 0.0
            for number in range(tokens + 200):
                began = cpu_s(pid) if number == 200 else began
                word = b"w%d;" % number
                event = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % word
                replica.sendall(b"%x\r\n%b\r\n" % (len(event), event))
                seen = b""
                while word not in seen:
                    seen += client.recv(65536)
            used = cpu_s(pid) - began
            last = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
            replica.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))
            replica.close()
        return 1e6 * used / tokens


def alone(python: str | None, rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        replica = Lockstep()
        url, pid = stack.enter_context(proxy([RunningEndpoint(replica.url)], Path(scratch), CORES[-1], health=None))
        ways = {"the proxy": (url, pid)}
        if python:
            url, pid = stack.enter_context(sglang(python, [RunningEndpoint(replica.url)], CORES[-1]))
            ways["sglang router"] = (url, pid)
            time.sleep(3.0)  # it asks its workers who they are before it uses them
        os.sched_setaffinity(0, {CORES[0]})
        found: dict[str, float] = {}
        for _ in range(rounds):
            for name, (at, who) in ways.items():
                found[name] = min(found.get(name, np.inf), replica.cost_us(at, who))
        headline("processor time per token, one at a time", "us", found["the proxy"], found.get("sglang router"))


def headline(what: str, unit: str, ours: float, other: float | None) -> None:
    against = f"sglang router {other:.3g} {unit} | {ours / other:.1f}x" if other else "no router | "
    print(f"=> proxy: {what} | {ours:.3g} {unit} | {against} | 2x of a compiled one", flush=True)


def compare(rates: list[float], seconds: float, python: str | None) -> None:
    print("through          offered  streams  first token +ms p50 / p99   later +ms p50 / p99   cpu us/token  stolen")
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        engine = f"slots:count=100000,gap={1000 * GAP_S:g}ms"
        replicas = [stack.enter_context(endpoint(engine, CORES[0])) for _ in range(2)]
        os.sched_setaffinity(0, {CORES[0]})
        ways: dict[str, tuple[list[str], int | None]] = {"nothing": ([each.url for each in replicas], None)}
        url, pid = stack.enter_context(proxy(replicas, folder, CORES[-1]))
        ways["openloop proxy"] = ([url], pid)
        url, pid = stack.enter_context(proxy(replicas, folder, CORES[-1], retry="1"))
        ways["the same, retry"] = ([url], pid)
        if python:
            url, pid = stack.enter_context(sglang(python, replicas, CORES[-1]))
            ways["sglang router"] = ([url], pid)
        for urls, _ in ways.values():
            drive(urls, folder / f"warm-{free_port()}", 20.0, 1.0)
        for rate in rates:
            typical: dict[str, float] = {}
            for name, (urls, who) in ways.items():
                for each in replicas:
                    each.truth()
                used, stolen, began = cpu_s(who) if who else 0.0, stolen_s(), time.monotonic()
                run = drive(urls, folder / f"run-{name.replace(' ', '')}-{rate:g}", rate, seconds)
                used = cpu_s(who) - used if who else 0.0
                taken = (stolen_s() - stolen) / (time.monotonic() - began) / (os.cpu_count() or 1)
                first, later, count = added(run, replicas)
                p, q = np.percentile(first, [50, 99]), np.percentile(later, [50, 99])
                print(
                    f"{name:<16} {rate:>6g}/s {rate * TOKENS * GAP_S:>8.0f}  {p[0]:>14.2f} / {p[1]:>8.2f}"
                    f"   {q[0]:>9.2f} / {q[1]:>7.2f}   {1e6 * used / count:>12.1f}  {taken:>6.1%}",
                    flush=True,
                )
                typical[name] = q[0]
            streams = f"{rate * TOKENS * GAP_S:.0f} streams"
            headline(f"added to a token, p50, {streams}", "ms", typical["openloop proxy"], typical.get("sglang router"))


def endure(streams: int, minutes: float, folder: Path) -> int:
    """Tokens come every half second, so that the streams, and not the tokens, are what there is much of."""
    gap_s, tokens, seen = 0.5, 120, []
    rate = streams / (gap_s * tokens)
    with ExitStack() as stack:
        replicas = [stack.enter_context(endpoint(f"slots:count=100000,gap={gap_s}s")) for _ in range(2)]
        folder.mkdir(parents=True, exist_ok=True)
        url, pid = stack.enter_context(proxy(replicas, folder))
        child = os.fork()
        if child == 0:
            drive([url], folder / "driven", rate, 60 * minutes + gap_s * tokens, tokens)
            os._exit(0)
        began, used = time.monotonic(), cpu_s(pid)
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            status = Path(f"/proc/{pid}/status").read_text()
            rss = int(status.partition("VmRSS:")[2].split()[0]) / 1024
            page = urllib.request.urlopen(f"{url}/metrics", timeout=30).read().decode()
            open_now = int(page.rpartition("openloop_in_flight ")[2].split()[0])
            files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            seen.append((time.monotonic() - began, rss, open_now, files))
            print(f"{seen[-1][0]:>6.0f} s  {rss:>6.0f} MiB  {open_now:>5} streams  {files:>5} files", flush=True)
            time.sleep(10)
        used = cpu_s(pid) - used
    return judge(folder, seen, used)


def judge(folder: Path, seen: list[tuple[float, float, int, int]], used: float) -> int:
    driven, proxied = ol.open_run(folder / "driven"), ol.open_run(next(folder.glob("proxied-*")))
    status = {run: [s for b in run.batches() for s in b["status"].to_pylist()] for run in (driven, proxied)}
    tokens = sum(len(b["event_ns"].values) for b in proxied.batches())
    steady = [rss for _, rss, open_now, _ in seen if open_now >= 0.8 * max(each[2] for each in seen)]
    tenth = max(len(steady) // 10, 1)
    early, late = np.median(steady[tenth : 2 * tenth]), np.median(steady[-tenth:])
    lost = [each for each in status[driven] if each != "ok"]
    print(
        f"{len(status[driven]):,} streams, {len(lost)} lost, {max(each[2] for each in seen)} at a time; "
        f"{len(status[proxied]):,} rows of the proxy, {status[proxied].count('ok'):,} of them ok; {tokens:,} tokens; "
        f"memory {early:.0f} MiB early, {late:.0f} MiB late; files {seen[-1][3]} at the end; "
        f"{1e6 * used / tokens:.0f} us of processor time per token"
    )
    whole = not lost and len(status[proxied]) == len(status[driven]) == status[proxied].count("ok")
    return 0 if whole and late <= GROWTH * early else 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="20,100")
    parser.add_argument("--for", dest="seconds", type=float, default=10.0)
    parser.add_argument(
        "--sglang", default=os.environ.get("OPENLOOP_SGLANG"), help="a Python that can import sglang_router"
    )
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--endure", action="store_true")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("-o", "--out", type=Path, help="a folder for the runs of --endure")
    given = parser.parse_args()
    if not given.endure:
        alone(given.sglang)
        if given.alone:
            return
        compare([float(each) for each in given.rates.split(",")], given.seconds, given.sglang)
        return
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(endure(given.streams, given.minutes, given.out or Path(scratch) / "endure"))


if __name__ == "__main__":
    main()
