"""A run from several hosts, each a network namespace with an address, a link and a monotonic clock of its own.

    sudo env PATH=$PATH python -m validation.hosts [-o FOLDER]

It needs root, iproute2, util-linux with time namespaces, and the extra `ray`. Five namespaces hang on one bridge: a
server (`openloop serve`), the head of a Ray cluster, from which load is started, and three more nodes of it. One of
these does not see the folder of the run, and the way from another one is 5 ms longer than the way to it, where the
kernel has netem. The first run must be whole, with each node's clock within its error of what it was set to. In the
second, the link of the node without our disk is cut in the middle: its requests must become dropped rows, and the run
must end.
"""

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import openloop as ol

NET = "10.77.0"
SERVER, HEAD = "server", "head"
CLOCKS = {HEAD: 1_000, "node1": 50_000, "node2": 9_000, "node3": 300_000}  # seconds ahead of this machine's
SLOW, BLIND = "node2", "node3"
DELAY_MS = 5
PORT, RAY_PORT = 8000, 6379


class Hosts:
    """Namespaces on a bridge, and what runs in them."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self.mark = f"ol{os.getpid()}"
        self.addresses = {name: f"{NET}.{number}" for number, name in enumerate(names, 10)}
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def up(self) -> None:
        hub = f"{self.mark}-hub"
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for name, address in self.addresses.items():
            space = f"{self.mark}-{name}"
            _ip("netns", "add", space)
            _ip("-n", hub, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", hub, "link", "set", name, "master", "bridge", "up")
            _ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            for link in ("eth0", "lo"):
                _ip("-n", space, "link", "set", link, "up")

    def inside(self, name: str, *command: str, hidden: Sequence[Path] = ()) -> list[str]:
        """A command as it is run on a host, with that host's clock, and with empty folders in place of hidden ones."""
        clock = (
            ["unshare", "--time", "--fork", "--kill-child", "--monotonic", str(CLOCKS[name])] if name in CLOCKS else []
        )
        if hidden:
            script = "".join(f"mount -t tmpfs none {shlex.quote(str(each))} && " for each in hidden)
            command = ("unshare", "--mount", "sh", "-c", f"{script}exec {shlex.join(command)}")
        return ["ip", "netns", "exec", f"{self.mark}-{name}", *clock, *command]

    def start(self, name: str, *command: str, hidden: Sequence[Path] = ()) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            call = self.inside(name, *command, hidden=hidden)
            self.running.append(subprocess.Popen(call, stdout=log, stderr=log, start_new_session=True))

    def delay(self, name: str, milliseconds: int) -> None:
        where = ["tc", "-n", f"{self.mark}-{name}", "qdisc", "add", "dev", "eth0", "root", "netem"]
        if subprocess.run([*where, "delay", f"{milliseconds}ms"], check=False, capture_output=True).returncode:
            print(f"this kernel has no netem: the way from {name} is as short as the others")

    def cut(self, name: str) -> None:
        _ip("-n", f"{self.mark}-hub", "link", "set", name, "down")

    def down(self) -> None:
        for each in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGTERM)
        for each in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(20)
        spaces = [f"{self.mark}-{name}" for name in ("hub", *self.addresses)]
        for space in spaces:
            listed = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False).stdout
            for pid in listed.split():  # of our own namespaces: what Ray left behind
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", space], check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def cluster(folder: Path, runs: Path) -> Iterator[Hosts]:
    hosts = Hosts([SERVER, *CLOCKS], folder)
    ray = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--disable-usage-stats", "--num-cpus", "2"]
    ray += ["--object-store-memory", "100000000"]
    head = f"{hosts.addresses[HEAD]}:{RAY_PORT}"
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as session, contextlib.ExitStack() as stack:
        stack.callback(hosts.down)
        hosts.up()
        serve = [sys.executable, "-m", "openloop", "serve", "--host", hosts.addresses[SERVER], "--port", str(PORT)]
        hosts.start(SERVER, *serve, "--engine", "slots:count=10000,prefill=0s,overhead=20ms,gap=5ms")
        for name, address in hosts.addresses.items():
            own = [*ray, "--node-ip-address", address]
            if name == HEAD:
                own += ["--head", "--port", str(RAY_PORT), "--include-dashboard=false", "--temp-dir", session]
                hosts.start(name, *own)
                time.sleep(8)
            elif name != SERVER:
                hidden = [Path(session), runs] if name == BLIND else [Path(session)]
                hosts.start(name, *own, "--address", head, hidden=hidden)
        hosts.delay(SLOW, DELAY_MS)
        wait_for(hosts, head)
        yield hosts


def wait_for(hosts: Hosts, head: str) -> None:
    """Until all nodes have joined."""
    script = (
        f"import ray, time; ray.init(address={head!r}, logging_level='ERROR')\n"
        f"while sum(each['Alive'] for each in ray.nodes()) < {len(CLOCKS)}: time.sleep(0.5)"
    )
    subprocess.run(hosts.inside(HEAD, sys.executable, "-c", script), check=True, timeout=180)


def drive(hosts: Hosts, out: Path, rate: float, seconds: float) -> "subprocess.Popen[bytes]":
    call = [sys.executable, "-m", "openloop", "run", "--target", f"http://{hosts.addresses[SERVER]}:{PORT}"]
    call += ["--rate", str(rate), "--for", f"{seconds}s", "--output", "8", "--slo", "ttft<=500ms, tpot<=40ms"]
    call += ["--ray", f"{hosts.addresses[HEAD]}:{RAY_PORT}", "-o", str(out)]
    log = (hosts.folder / f"{out.name}.log").open("wb")
    return subprocess.Popen(hosts.inside(HEAD, *call), stdout=log, stderr=log, start_new_session=True)


def whole(hosts: Hosts, out: Path) -> None:
    drive(hosts, out, 200, 10).wait(300)
    run = ol.open_run(out)
    run.validate()
    names = {address: name for name, address in hosts.addresses.items()}
    print(f"{'host':8} {'requests':>8} {'clock set to':>14} {'measured, ms off':>17} {'error, ms':>10}")
    for node in run.manifest.nodes:
        name = names[node.name]
        ahead_s = CLOCKS[name] - CLOCKS[HEAD]
        off = node.offset_ns - ahead_s * 10**9
        print(f"{name:8} {node.requests:8} {ahead_s:+13}s {off / 1e6:17.3f} {node.error_ns / 1e6:10.3f}")
        assert abs(off) <= node.error_ns, f"the clock of {name} is wrong by more than its error"
        assert node.lost is None
    fates = Counter(row["status"] for row in run.head(10**9))
    score = ol.score(run, "ttft<=500ms, tpot<=40ms")
    assert score.client_lag_s is not None
    print(f"{run.num_rows} rows {dict(fates)}, client lag p50 {1e3 * score.client_lag_s.p50:.2f} ms")
    assert set(fates) == {"ok"}
    assert run.missing == ()


def cut(hosts: Hosts, out: Path) -> None:
    process = drive(hosts, out, 100, 20)
    while not (out / "now.json").exists():
        time.sleep(0.2)
    time.sleep(6)
    hosts.cut(BLIND)
    print(f"the link of {BLIND} is cut")
    process.wait(300)
    run = ol.open_run(out)
    run.validate()
    score = ol.score(run, "ttft<=500ms, tpot<=40ms")
    fates = Counter(row["status"] for row in run.head(10**9))
    stopped_s = (run.manifest.stopped_ns or 0) / 1e9
    print(f"exit {process.returncode}; {run.num_rows} rows {dict(fates)}; stopped after {stopped_s:.1f} s")
    print(f"{'valid' if score.valid else 'INVALID'}: {score.reasons[0] if score.reasons else ''}")
    lost = [node.name for node in run.manifest.nodes if node.lost]
    assert lost == [hosts.addresses[BLIND]]
    assert fates["dropped"] > 100
    assert process.returncode == 1
    assert not score.valid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, help="Folder to keep runs and logs in.")
    out = parser.parse_args().out or Path(tempfile.mkdtemp(prefix="openloop-hosts-"))
    runs = out.resolve() / "runs"
    runs.mkdir(parents=True)
    print(f"runs and logs are in {out}")
    with cluster(out, runs) as hosts:
        whole(hosts, runs / "whole")
        cut(hosts, runs / "cut")


if __name__ == "__main__":
    main()
