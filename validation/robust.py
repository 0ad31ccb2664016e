"""Whatever happens to a run: nothing that was flushed is lost, what is there can be read, and nothing hangs.

    python -m validation.robust [coordinator] [worker] [server] [proxy] [hostile] [disk] [files] [memory] [network]
        [secrets] [streams] [soak] [clock] [--times 50] [--minutes 60]

Without a name, all but `clock` and `soak`, one after the other; lines say what was tried and found, and a failure ends
the script. `disk`, `network` and `clock` need root, and `clock` sets the clock of the whole machine. The results are in
docs/reliability.md.
"""

import argparse
import contextlib
import fcntl
import gzip
import heapq
import json
import os
import random
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from urllib.parse import quote

import openloop as ol
from openloop.arrivals import Poisson
from openloop.errors import OpenloopError
from openloop.seeds import stream

ENGINE = "slots:count=10000,prefill=0s,overhead=20ms,gap=5ms"
OPENLOOP = [sys.executable, "-m", "openloop"]
RATE, SECONDS = 60.0, 4.0
DUE = Poisson(RATE).times(SECONDS, stream(0, "arrivals"))
PATIENCE_S = 300.0

HERE, THERE = "10.78.0.1", "10.78.0.2"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
WELL = {"delay_s": 0.0, "jitter_s": 0.0, "loss": 0.0}
FAULTS: dict[str, list[dict[str, float]]] = {
    "well": [WELL],
    "delay of 30 to 70 ms each way": [{"delay_s": 0.05, "jitter_s": 0.02}],
    "loss of 5%": [{"loss": 0.05}],
    "delay and loss of 20%": [{"delay_s": 0.05, "jitter_s": 0.02, "loss": 0.2}],
    "cut for a second": [{"loss": 1.0}, WELL],
    "cut for good": [{"loss": 1.0}],
}


@contextlib.contextmanager
def served(
    *prefix: str, host: str = "127.0.0.1", engine: str = ENGINE
) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    call = [*prefix, *OPENLOOP, "serve", "--host", host, "--port", "0", "--engine", engine]
    with listening(call) as found:
        yield found


@contextlib.contextmanager
def listening(call: Sequence[str]) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A command that serves, and the address in its first line."""
    process = subprocess.Popen(call, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield next(word.rstrip(",;") for word in line.split() if word.startswith("http")), process
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def command(url: str, out: Path, *more: str, rate: float = RATE, seconds: float = SECONDS) -> list[str]:
    found = [*OPENLOOP, "run", "--target", url, "--model", "openloop", "--rate", f"{rate:g}", "--for", f"{seconds:g}s"]
    found += ["--output", "6", "--tokens-per-word", "1", "--timeout", "5s", "--drain", "6s", "-o", str(out)]
    return [*found, "--slo", "ttft<=1s", *more]


def start(call: Sequence[str], **how: object) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return subprocess.Popen(call, stdout=pipe, stderr=pipe, text=True, start_new_session=True, **how)  # type: ignore[call-overload,no-any-return]


def below(pid: int) -> list[int]:
    """The processes that a process started."""
    with contextlib.suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def rows_in(folder: Path) -> int:
    try:
        return ol.open_run(folder).num_rows
    except OpenloopError:
        return 0


def whole(folder: Path, due: int) -> Counter[str]:
    """Every request that was due is a row, and every row keeps the rules."""
    run = ol.open_run(folder)
    run.validate()
    assert run.num_rows == due, f"{run.num_rows} rows of {due} that were due"
    return Counter(row["status"] for row in run.head(due))


def _kill(what: str, folder: Path, times: int) -> None:
    """kill -9 at a moment of chance."""
    chance = random.Random(what)
    found: Counter[str] = Counter()
    for number in range(times):
        found += _kill_one(what, folder / f"{what}{number}", chance.uniform(0.0, SECONDS))
    print(f"{what}: killed {times} times: {dict(found)}", flush=True)


def _kill_one(what: str, out: Path, after_s: float) -> Counter[str]:
    with served() as (url, server):
        process = start(command(url, out, "--workers", "2"))
        until = time.monotonic() + PATIENCE_S
        while not (out / "now.json").exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(after_s)
        workers = below(process.pid)
        flushed = rows_in(out)
        victim = {"coordinator": process.pid, "worker": next(iter(workers), 0), "server": server.pid}[what]
        late = victim == 0 or process.poll() is not None
        if not late:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        told = process.communicate(timeout=PATIENCE_S)[1]
    assert "Traceback" not in told, told
    kept = rows_in(out)
    assert kept >= flushed, f"{kept} rows are left of {flushed} that were flushed"
    if what == "coordinator" and not late:
        until = time.monotonic() + 20
        while any(map(alive, workers)) and time.monotonic() < until:
            time.sleep(0.1)
        assert not any(map(alive, workers)), "workers outlive their coordinator"
        ol.open_run(out).validate()
        return Counter({"runs that open": 1, "rows kept": kept})
    fates = whole(out, len(DUE))
    shutil.rmtree(out)
    return Counter({"whole runs": 1, "too late": int(late)}) + fates


@contextlib.contextmanager
def proxied(folder: Path, out: Path, *urls: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    (folder / "proxy.yaml").write_text(json.dumps({"replicas": list(urls), "listen": "127.0.0.1:0", "slo": "ttft<=1s"}))
    with listening([*OPENLOOP, "proxy", str(folder / "proxy.yaml"), "-o", str(out)]) as found:
        yield found


def proxy(folder: Path, times: int) -> None:
    """kill -9 of a proxy at a moment of chance: what it had flushed stays, and so does all that the client has."""
    chance, found = random.Random("proxy"), Counter[str]()
    with served() as (server, _):
        for number in range(times):
            client, record = folder / f"client{number}", folder / f"proxy{number}"
            with proxied(folder, record, server) as (url, process):
                run = start(command(url, client))
                until = time.monotonic() + PATIENCE_S
                while not (client / "now.json").exists() and run.poll() is None and time.monotonic() < until:
                    time.sleep(0.02)
                time.sleep(chance.uniform(0.0, SECONDS))
                flushed = rows_in(record)
                os.kill(process.pid, signal.SIGKILL)
                told = run.communicate(timeout=PATIENCE_S)[1]
            assert "Traceback" not in told, told
            kept = rows_in(record)
            assert kept >= flushed, f"{kept} rows are left of {flushed} that were flushed"
            if kept:
                ol.open_run(record).validate()
            found += Counter({"runs that open": int(kept > 0), "rows of the proxy": kept}) + whole(client, len(DUE))
            shutil.rmtree(client)
    print(f"proxy: killed {times} times: {dict(found)}", flush=True)


# Servers that mean no good. Each gets the socket, after the request was read.


def _flood(first: bytes, again: bytes) -> Callable[[socket.socket], None]:
    def act(sock: socket.socket) -> None:
        sock.sendall(first)
        while True:
            sock.sendall(again)

    return act


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
TOKEN = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
BLOCK = b"x" * (1 << 16)


@cache
def _packed() -> bytes:
    return gzip.compress(b"data: " + bytes(1 << 28))


def _bomb(sock: socket.socket) -> None:
    sock.sendall(OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(_packed()) + _packed())


def _drip(sock: socket.socket) -> None:
    sock.sendall(OK + b"\r\n")
    while True:
        sock.sendall(TOKEN)
        time.sleep(0.1)


HOSTILE: dict[str, Callable[[socket.socket], None]] = {
    "endless header": _flood(b"HTTP/1.1 200 OK\r\nX-Long: ", BLOCK),
    "endless headers": _flood(b"HTTP/1.1 200 OK\r\n", b"X-More: again\r\n" * 1000),
    "endless continue": _flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "endless line": _flood(OK + b"\r\ndata: ", BLOCK),
    "event of a gigabyte": _flood(OK + b"Content-Length: 1073741824\r\n\r\ndata: ", BLOCK),
    "chunk of an exabyte": _flood(OK + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n", BLOCK),
    "endless chunk size": _flood(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1" * 1000),
    "endless stream, fast": _flood(OK + b"\r\n", TOKEN * 1000),
    "endless stream, slow": _drip,
    "compressed bomb": _bomb,
    "deep JSON": lambda sock: sock.sendall(OK + b"\r\ndata: " + b"[" * 1_000_000 + b"\n\n"),
    "nothing": lambda _: time.sleep(60),
}


@contextlib.contextmanager
def acting(act: Callable[[socket.socket], None]) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:

        def one(sock: socket.socket) -> None:
            with contextlib.suppress(OSError), sock:
                if sock.recv(1 << 16):
                    act(sock)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def hostile(folder: Path, _: int) -> None:
    """A run against each, and the question for its models, end in time and take little memory."""
    _packed()  # so that the first to ask does not wait for it
    for name, act in HOSTILE.items():
        out = folder / name.replace(" ", "-").replace(",", "")
        began = time.monotonic()
        with acting(act) as url:
            process = start(command(url, out, "--no-metrics", rate=4, seconds=2))
            most = _watch(process)
            asked = subprocess.run(
                [*OPENLOOP, "run", "--target", url, "--rate", "1", "-o", str(out / "no")],
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE_S,
            )
        run = ol.open_run(out)
        run.validate()
        fates = Counter(row["status"] for row in run.head(1000))
        why = next((row["error"] for row in run.head(1000) if row["error"]), "")
        print(
            f"hostile: {name}: {dict(fates)}, {most >> 20} MB, {time.monotonic() - began:.0f} s; {why[:70]}", flush=True
        )
        assert "ok" not in fates
        assert most < 1 << 30, f"{most >> 20} MB"
        assert asked.returncode == 2, asked.stderr
        assert "Traceback" not in asked.stderr


def _watch(process: "subprocess.Popen[str]") -> int:
    """Until it is over; the most memory that it and its workers took together."""
    most, until = 0, time.monotonic() + PATIENCE_S
    while process.poll() is None:
        most = max(most, sum(_memory(pid) for pid in [process.pid, *below(process.pid)]))
        assert time.monotonic() < until, "it hangs"
        time.sleep(0.05)
    told = process.communicate()[1]
    assert "Traceback" not in told, told
    return most


def _memory(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def disk(folder: Path, _: int) -> None:
    """A disk that fills up in the middle: what was written before is kept, and one sentence says so."""
    small = folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(small)], check=True)
    try:
        with served() as (url, _process):
            process = start(command(url, small / "run", rate=300, seconds=6))
            told = process.communicate(timeout=PATIENCE_S)[1]
        run = ol.open_run(small / "run")
        run.validate()
        print(
            f"disk: exit {process.returncode}, {run.num_rows} rows kept; {told.strip().splitlines()[-1][:110]}",
            flush=True,
        )
        assert process.returncode == 2
        assert run.num_rows > 0
        assert "the disk is full" in told
        assert "Traceback" not in told
    finally:
        subprocess.run(["umount", str(small)], check=True)


def _limited(what: int, most: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(what, (most, most))


def files(folder: Path, _: int) -> None:
    """Not enough file descriptors: requests wait for a connection and are late, or fail with a sentence."""
    with served() as (url, _process):
        limit = _limited(resource.RLIMIT_NOFILE, 40)
        process = start(command(url, folder / "run", "--output", "200", rate=100, seconds=3), preexec_fn=limit)
        told = process.communicate(timeout=PATIENCE_S)[1]
    assert "Traceback" not in told, told
    run = ol.open_run(folder / "run")
    fates = whole(folder / "run", len(Poisson(100).times(3.0, stream(0, "arrivals"))))
    print(f"files: 40 descriptors: {dict(fates)}, exit {process.returncode}; rows {run.num_rows}", flush=True)
    assert process.returncode == 1


def memory(folder: Path, _: int) -> None:
    """Too little memory for the run: a sentence or a kill, and what was flushed can be read."""
    with served() as (url, _process):
        for megabytes in (400, 800, 1200, 2000, 3000):
            out = folder / str(megabytes)
            limit = _limited(resource.RLIMIT_AS, megabytes << 20)
            env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
            process = start(command(url, out), preexec_fn=limit, env=env)
            told = process.communicate(timeout=PATIENCE_S)[1]
            last = (told.strip().splitlines() or [""])[-1]
            print(f"memory: {megabytes} MB: exit {process.returncode}, {rows_in(out)} rows; {last[:90]}", flush=True)
            if process.returncode == 0:
                whole(out, len(DUE))


CLOCK = """
import sys, time
time.sleep(float(sys.argv[1]))
for step in (-60, 120, -60):
    time.clock_settime(time.CLOCK_REALTIME, time.time() + step)
    time.sleep(0.5)
"""


def clock(folder: Path, _: int) -> None:
    """The wall clock is set a minute back, two ahead and a minute back while a run goes on."""
    with served() as (url, _process):
        process = start(command(url, folder / "run"))
        while not (folder / "run" / "now.json").exists() and process.poll() is None:
            time.sleep(0.02)
        subprocess.run([sys.executable, "-c", CLOCK, "1.0"], check=True)
        told = process.communicate(timeout=PATIENCE_S)[1]
    assert "Traceback" not in told, told
    fates = whole(folder / "run", len(DUE))
    slowest = max(row["ended_ns"] - row["scheduled_ns"] for row in ol.open_run(folder / "run").head(10**6)) / 1e9
    print(f"clock: three steps of the wall clock: {dict(fates)}, the slowest took {slowest:.2f} s", flush=True)
    assert set(fates) == {"ok"}
    assert slowest < 10, "a step of the clock is in the times"


class Link:
    """A link into a network space of its own, packet by packet through this process: as slow and lossy as it is told.

    Two tunnel devices, one of which is moved there. It needs no queueing discipline of the kernel, which not all have.
    """

    def __init__(self, space: str) -> None:
        self.delay_s = self.jitter_s = self.loss = 0.0
        self.carried = self.lost = 0
        self.rng = random.Random(7)
        self.on_the_way: list[tuple[float, int, int, bytes]] = []  # a heap: when, a number, where to, what
        self.ends = [self._tunnel(f"{space}{side}") for side in "ab"]
        subprocess.run(["ip", "netns", "add", space], check=True)
        subprocess.run(["ip", "link", "set", f"{space}b", "netns", space], check=True)
        for where, side, address in (([], "a", HERE), (["-n", space], "b", THERE)):
            subprocess.run(["ip", *where, "address", "add", f"{address}/24", "dev", f"{space}{side}"], check=True)
            subprocess.run(["ip", *where, "link", "set", f"{space}{side}", "up"], check=True)
        threading.Thread(target=self._carry, daemon=True).start()

    @staticmethod
    def _tunnel(name: str) -> int:
        found = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(found, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
        return found

    def _carry(self) -> None:
        with contextlib.suppress(OSError):  # an end is gone, and the link with it
            while True:
                self._pass_on()

    def _pass_on(self) -> None:
        wait = max(self.on_the_way[0][0] - time.monotonic(), 0.0) if self.on_the_way else None
        for end in select.select(self.ends, [], [], wait)[0]:
            packet = os.read(end, 65536)
            self.carried += 1
            if self.rng.random() < self.loss:
                self.lost += 1
                continue
            due = time.monotonic() + self.delay_s + self.rng.uniform(-self.jitter_s, self.jitter_s)
            other = self.ends[1 - self.ends.index(end)]
            heapq.heappush(self.on_the_way, (due, self.carried, other, packet))
        while self.on_the_way and self.on_the_way[0][0] <= time.monotonic():
            _, _, end, packet = heapq.heappop(self.on_the_way)
            with contextlib.suppress(BlockingIOError):
                os.write(end, packet)


def network(folder: Path, _: int) -> None:
    """A server behind a link that is slow, lossy or cut; and one that resets connections."""
    space = f"ol{os.getpid()}"
    link = Link(space)
    try:
        with served("ip", "netns", "exec", space, host=THERE) as (url, _process):
            for name, faults in FAULTS.items():
                _fault(folder / name.replace(" ", "-"), url, link, name, faults)
    finally:
        subprocess.run(["ip", "netns", "delete", space], check=False)
    with served() as (url, _process):
        asked = urllib_request(f"{url}/behaviour", {"fault": "reset", "share": 0.5})
        assert asked
        process = start(command(url, folder / "reset"))
        process.communicate(timeout=PATIENCE_S)
        print(f"network: reset of half the connections: {dict(whole(folder / 'reset', len(DUE)))}", flush=True)


def _fault(out: Path, url: str, link: Link, name: str, faults: Sequence[dict[str, float]]) -> None:
    """A run of which the link is at fault from its second on; each fault lasts a second, the last one to the end."""
    process = start(command(url, out))
    while not (out / "now.json").exists() and process.poll() is None:
        time.sleep(0.02)
    link.carried = link.lost = 0
    for fault in faults:
        time.sleep(1.0)
        vars(link).update(fault)
    told = process.communicate(timeout=PATIENCE_S)[1]
    vars(link).update(WELL)
    assert "Traceback" not in told, told
    fates, waits = whole(out, len(DUE)), ol.score(ol.open_run(out), "ttft<=10s").ttft_s
    seen = f"TTFT p50 {1e3 * waits.p50:.0f} ms, p99 {1e3 * waits.p99:.0f} ms" if waits else "no answer"
    print(f"network: {name}: {dict(fates)}; {link.lost:,} of {link.carried:,} packets lost; {seen}", flush=True)


def urllib_request(url: str, body: dict[str, object]) -> bytes:
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    data = json.dumps(body).encode()
    with socket.create_connection((name, int(port)), 10) as sock:
        sock.sendall(b"POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
        return sock.recv(4096)


def secrets(folder: Path, _: int) -> None:
    """A key and a header of ours are in no file, no output and no list of processes."""
    key, header = "sk-robust-0123456789abcdef", "token-robust-fedcba9876543210"
    env = os.environ | {"OPENAI_API_KEY": key, "ROBUST_HEADER": header}
    scenario = folder / "scenario.yaml"
    with served() as (url, _process):
        scenario.write_text(f"target: {{url: {url}, headers: {{X-Token: {header}}}}}\nslo: ttft<=1s\n")
        run = folder / "run"
        call = [*OPENLOOP, "run", str(scenario), "--rate", "30", "--for", "4s", "--keep-texts", "-o", str(run)]
        process = start(call, env=env)
        seen = ""
        while process.poll() is None:
            for each in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    seen += each.read_text(errors="replace")
            time.sleep(0.3)
        out = "".join(process.communicate())
        sweep = [*OPENLOOP, "sweep", str(scenario), "--rates", "20", "--for", "2s", "-o", str(folder / "sweep")]
        for call in (
            sweep,
            [*OPENLOOP, "report", str(run), "-o", str(folder / "report.html")],
            [*OPENLOOP, "inspect", str(run)],
        ):
            done = subprocess.run(call, capture_output=True, text=True, check=False, env=env)
            out += done.stdout + done.stderr
    files = [each for each in folder.rglob("*") if each.is_file() and each != scenario]
    for secret in (key, header):
        assert secret not in seen, "a secret is in the list of processes"
        assert secret not in out, "a secret is in an output"
        for each in files:
            assert secret.encode() not in each.read_bytes(), f"a secret is in {each}"
    print(f"secrets: none in {len(files)} files, the outputs of four commands and the list of processes", flush=True)


def streams(folder: Path, _: int) -> None:
    """10,000 answers at once, each of them slow."""
    rate, seconds, tokens, gap = 500.0, 40.0, 40, 0.6
    with served(engine=f"slots:count=20000,prefill=0s,overhead=20ms,gap={gap}s") as (url, _process):
        call = command(url, folder / "run", rate=rate, seconds=seconds)
        for name, value in (("--output", str(tokens)), ("--timeout", "60s"), ("--drain", "60s")):
            call[call.index(name) + 1] = value
        most = _watch(start(call))
    run = ol.open_run(folder / "run")
    run.validate()
    rows = run.head(run.num_rows)
    begun = [(row["sent_ns"], 1) for row in rows if row["sent_ns"]]
    over = [(row["event_ns"][-1], -1) for row in rows if row["event_ns"]]
    peak = max(accumulate(change for _, change in sorted(begun + over)))
    fates = Counter(row["status"] for row in rows)
    assert fates["ok"] == len(rows), fates
    assert peak >= 10_000, peak
    print(f"streams: {len(rows):,} requests, {peak:,} at once, all ok; {most >> 20} MB", flush=True)


def soak(folder: Path, minutes: int) -> None:
    """Load, proxy and view for an hour: after a tenth of it, none of them grows."""
    slos = [f"ttft<={200 + 10 * each}ms" for each in range(20)]
    with (
        served() as (first, one),
        served() as (second, other),
        proxied(folder, folder / "record", first, second) as (url, door),
    ):
        with (folder / "told").open("w") as told:  # a pipe that nobody reads is full after a while
            call = command(url, folder / "run", rate=10.0, seconds=60.0 * minutes)
            run = subprocess.Popen(call, stdout=told, stderr=told, text=True, start_new_session=True)
        while not (folder / "run" / "now.json").exists() and run.poll() is None:
            time.sleep(0.1)
        seen = folder / "shelf" / "seen"
        subprocess.run(command(first, seen, seconds=10.0), check=False, capture_output=True)
        with listening([*OPENLOOP, "view", str(seen.parent), "--port", "0"]) as (page, viewer):
            processes = {"server": one, "other server": other, "proxy": door, "view": viewer, "client": run}
            sizes: list[dict[str, int]] = []
            asked = 0
            while run.poll() is None:
                with urllib.request.urlopen(f"{page}api/score?what=seen&slo={quote(slos[asked % 20])}") as answer:
                    json.load(answer)
                asked += 1
                now = {name: _memory(each.pid) for name, each in processes.items()}
                sizes.append(now | {"worker": sum(map(_memory, below(run.pid)))})
                time.sleep(10.0)
    assert "Traceback" not in (folder / "told").read_text()
    fates = Counter(row["status"] for row in ol.open_run(folder / "run").head(1 << 30))
    recorded = ol.open_run(folder / "record").num_rows
    print(
        f"soak: {minutes} minutes, {dict(fates)}; the proxy recorded {recorded:,}; {asked} scores by view", flush=True
    )
    begin, end = len(sizes) // 10, -max(len(sizes) // 10, 1)
    for name in sizes[0]:
        early, late = (
            sorted(each[name] for each in part) for part in (sizes[begin : begin - end], sizes[end - 1 : -1])
        )
        before, after = early[len(early) // 2] / 2**20, late[len(late) // 2] / 2**20
        print(f"  {name}: {before:.0f} MB after a tenth, {after:.0f} MB at the end", flush=True)
        assert after <= 1.1 * before + 5, f"{name} grows"
    assert fates["ok"] == sum(fates.values())
    assert recorded == fates["ok"]


ALL: dict[str, Callable[[Path, int], None]] = {
    **{what: partial(_kill, what) for what in ("coordinator", "worker", "server")},
    **{each.__name__: each for each in (proxy, hostile, disk, files, memory, network, secrets, streams, soak, clock)},
}
APART = ("clock", "soak")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=list(ALL), metavar="what", help=", ".join(ALL))
    parser.add_argument("--times", type=int, default=50, help="Kills of each.")
    parser.add_argument("--minutes", type=int, default=60, help="Of the soak.")
    given = parser.parse_args()
    for what in given.what or [each for each in ALL if each not in APART]:
        with tempfile.TemporaryDirectory(prefix="openloop-robust-") as folder:
            ALL[what](Path(folder), given.minutes if what == "soak" else given.times)


if __name__ == "__main__":
    main()
