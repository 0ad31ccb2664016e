"""What the scripts share: an engine in a process of its own, runs against it, and how quiet the machine was meanwhile.

The engine has the first core and everything else the last, so that neither disturbs the other.
"""

import argparse
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import openloop as ol
from openloop.clock import stolen_s
from openloop.load.scenario import read_scenario, run_scenario
from openloop.report.chart import Chart

T = TypeVar("T")

ALL = 1 << 30
MOST_STOLEN = 0.02
MOST_OTHERS = 0.05
TICK = os.sysconf("SC_CLK_TCK")
CORES = sorted(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Engine:
    url: str
    pid: int

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return str(answer.read().decode())

    def figures(self) -> dict[str, float]:
        """Its /metrics by name: the sum over labels, buckets left out."""
        found: dict[str, float] = {}
        for line in self.get("/metrics").splitlines():
            if line and line[0] != "#" and "_bucket{" not in line:
                name, value = line.rsplit(" ", 1)
                name = name.partition("{")[0]
                found[name] = found.get(name, 0.0) + float(value)
        return found


@contextmanager
def engine(
    command: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None, patience_s: float = 600.0
) -> Iterator[Engine]:
    """Start it on a free port and the first core, wait until it answers, and end all of its processes afterwards."""
    port = free_port()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(CORES[0]), *command, "--host", "127.0.0.1", "--port", str(port)],
            env=os.environ | dict(env or {}),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        found = Engine(f"http://127.0.0.1:{port}", process.pid)
        wait_until_up(found, process, log, patience_s)
        yield found
    finally:
        _end(process)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_until_up(found: Engine, process: "subprocess.Popen[bytes]", log: Path, patience_s: float) -> None:
    until = time.monotonic() + patience_s
    while process.poll() is None and time.monotonic() < until:
        try:
            found.get("/health")
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit(f"the engine did not start; the end of {log}:\n{log.read_text(errors='replace')[-2000:]}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


@dataclass
class Noise:
    """Shares of the machine's processor time: what its host took away, and what other programs had."""

    stolen: float = 0.0
    others: float = 0.0

    def __str__(self) -> str:
        return f"{self.stolen:.1%} / {self.others:.0%}"

    @property
    def quiet(self) -> bool:
        return self.stolen <= MOST_STOLEN and self.others <= MOST_OTHERS


def quietest(server: Engine, work: Callable[[], T], tries: int = 2) -> tuple[T, Noise]:
    """Wait for a quiet moment and work; if it does not stay quiet, again; the best of all."""
    found: list[tuple[T, Noise]] = []
    while len(found) < tries and not (found and found[-1][1].quiet):
        _wait_until_quiet(server)
        with noise(server) as around:
            result = work()
        found.append((result, around))
    return min(found, key=lambda each: each[1].stolen / MOST_STOLEN + each[1].others / MOST_OTHERS)


def _wait_until_quiet(server: Engine, patience_s: float = 30.0) -> None:
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        with noise(server) as around:
            time.sleep(2.0)
        if around.quiet:
            return


@contextmanager
def noise(server: Engine) -> Iterator[Noise]:
    """Filled in when the block is over."""
    found = Noise()
    began, stolen, busy, ours = time.monotonic(), stolen_s(), _busy_s(), _ours_s(server)
    yield found
    all_s = (time.monotonic() - began) * (os.cpu_count() or 1)
    found.stolen = (stolen_s() - stolen) / all_s
    found.others = max(_busy_s() - busy - (_ours_s(server) - ours), 0.0) / all_s


def _busy_s() -> float:
    user, nice, system, _, _, irq, soft = (int(each) for each in Path("/proc/stat").read_text().split(None, 8)[1:8])
    return (user + nice + system + irq + soft) / TICK


def _ours_s(server: Engine) -> float:
    """Of the engine's processes, of this one and of those it has waited for."""
    ours = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in ours) + _session_s(server.pid)


def _session_s(leader: int) -> float:
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[3]) == leader:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICK


def drive(server: Engine, out: Path, **flags: Any) -> ol.Run:
    """As `openloop run` does it; flags are the keys of a scenario."""
    return run_scenario(read_scenario(None, {"target.url": server.url, **flags}), out)


def fresh(folder: Path) -> Path:
    """A name that no folder has yet."""
    number = 1
    while (named := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return named


def rows(run: ol.Run) -> list[dict[str, Any]]:
    return run.head(ALL)


def table(title: str, head: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    cells = [[str(each) for each in line] for line in (head, *lines)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(head))]
    print(f"\n{title}")
    for line in cells:
        first, *rest = (
            f"{cell:<{width}}" if place == 0 else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join([first, *rest]).rstrip(), flush=True)


class Checks:
    """What must hold, said as it is looked at."""

    def __init__(self) -> None:
        self.failed = 0

    def that(self, holds: bool, what: str) -> None:
        self.failed += not holds
        print(f"{'ok' if holds else 'NOT SO'}: {what}", flush=True)

    def end(self) -> None:
        raise SystemExit(1 if self.failed else 0)


def ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def save(out: Path, name: str, numbers: Any, chart: Chart | None = None) -> None:
    """The numbers as JSON, and the picture of them."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(numbers, indent=1, default=_plain) + "\n")
    if chart:
        for kind in ("svg", "png"):
            chart.save(out / f"{name}.{kind}")


def _plain(value: Any) -> Any:
    return asdict(value)


def arguments(about: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=Path("validation-output"), help="folder for all results")
    return parser


def stay_off_the_engines_core() -> None:
    """And leave no engine behind when told to end."""
    os.sched_setaffinity(0, {CORES[-1]})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
