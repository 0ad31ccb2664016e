"""A run on several machines: one schedule, dealt out; one clock, ours; and what each of them writes, as one run.

Every machine has the same conductor and workers that a run on one machine has. Here they are told when to start, are
listened to, and are given up when they are not heard of. The last class is what each machine hosts.
"""

import contextlib
import math
import shutil
import threading
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import msgspec
import numpy as np

from openloop import __version__
from openloop.arrays import Ints
from openloop.clock import Offset, offset_of
from openloop.cluster import Host
from openloop.errors import OpenloopError, RunError, SpecError
from openloop.load.conductor import FLUSH_ROWS, TELL_NS, Conductor, Share, Snapshot, Watch, interrupts_heard, watched_by
from openloop.load.plan import Load, demand_of, due_ns_of, manifest_of, pages_of, share_of
from openloop.load.rows import Row, batch_of
from openloop.load.salts import Salter, prime
from openloop.load.scraper import Scraper
from openloop.load.targets import Outcome
from openloop.records import (
    MANIFEST_FILE,
    PARTS,
    SERVER,
    Manifest,
    Now,
    Prices,
    Run,
    RunWriter,
    copy_run,
    forget_now,
    ints,
    is_url,
    locate,
    open_run,
    write_now,
)
from openloop.records.manifest import Node
from openloop.units import to_ns
from openloop.workload import Demand, Prompts, Words

LOST_S = 15.0  # without a word from a machine, and it is lost
START_S = 120.0
LEAD_NS = 1_000_000_000  # for everybody to hear when the run starts
READINGS = 30  # of each clock, before the run and after it
CHUNK = 8 << 20
SHOWN = 1000  # requests of half a second that are told of: enough for percentiles, and all where there are few


@dataclass
class _Node:
    host: Host
    share: Share
    offset: Offset = field(default_factory=lambda: Offset(0, 0))
    aligned: Offset = field(default_factory=lambda: Offset(0, 0))  # before the run
    done: "Future[Any] | None" = None
    news: "Future[Any] | None" = None
    asked_ns: int = 0
    heard_ns: int = 0
    snapshot: Snapshot = field(default_factory=Snapshot)
    facts: Manifest | None = None
    fetched: bool = True
    lost: str | None = None

    @property
    def busy(self) -> bool:
        return self.facts is None and self.lost is None

    def told(self) -> Node:
        requests = int(np.sum(~np.isnan(self.share.demand.due_s)))
        return Node(self.host.name, requests, self.aligned.ns, self.aligned.error_ns, self.lost)


def deal(demand: Demand, machines: int) -> list[Ints]:
    """Which requests each machine drives: in turn, and all turns of a session by the same."""
    keys = np.arange(len(demand))
    if demand.session is not None:
        keys = np.where(demand.session >= 0, demand.session, keys)
    return [np.flatnonzero(keys % machines == number) for number in range(machines)]


def spread(load: Load, out: str | Path, hosts: Sequence[Host], watch: Watch | None = None) -> Run:
    """As `drive`, on machines that host a Part each. `out` may be a URL: each of them then puts its rows there."""
    if load.warming is not None and load.warming.settles:
        raise SpecError("--warmth hot watches what one machine sees: use warm-cache with --ray, and a longer run")
    if not is_url(out):
        _Spread(load, out, Path(out).resolve(), hosts, watch).run()
    elif (locate(out) / MANIFEST_FILE).exists():
        raise RunError(f"{out} already holds a run ({MANIFEST_FILE}): choose another folder or remove it")
    else:
        with TemporaryDirectory() as here:
            _Spread(load, out, Path(here) / "run", hosts, watch).run()
            copy_run(Path(here) / "run", locate(out))
    return open_run(out)


class _Spread:
    def __init__(self, load: Load, out: str | Path, folder: Path, hosts: Sequence[Host], watch: Watch | None) -> None:
        self.load, self.folder = load, folder
        self.out = str(out) if is_url(out) else str(folder)
        self.end_ns = to_ns(load.seconds)
        self.demand = demand_of(load, load.seconds)
        self.salter = Salter(load.warming, load.seconds, as_field=load.cache_salt) if load.warming else None
        self.words = load.words or Words(load.seed)
        self.notes = [*load.facts.get("notes", ()), *self.demand.notes]
        self.watch = watched_by(watch, self.notes)
        self.primed = True
        shares = [Share(self.demand.take(each), each, self.salter) for each in deal(self.demand, len(hosts))]
        self.nodes = [_Node(host, share) for host, share in zip(hosts, shares, strict=True)]
        self.interrupts = self.passed_on = 0
        self.start_ns = 0

    def run(self) -> None:
        with interrupts_heard(self._interrupt):
            try:
                self._align()
                facts = manifest_of(self.load, self.demand, self.end_ns)
                nodes = tuple(node.told() for node in self.nodes)
                self.writer = RunWriter(self.folder, msgspec.structs.replace(facts, nodes=nodes))
                try:
                    self._start()
                    self._follow()
                    self._end()
                finally:
                    self.writer.close()
                    forget_now(self.folder)
            finally:
                for node in self.nodes:
                    node.host.end()

    def _interrupt(self) -> None:
        self.interrupts += 1

    # Before the run.

    def _align(self) -> None:
        for node in self.nodes:
            self._first(node, node.host.ask("clock"))
            node.offset = node.aligned = offset_of([_reading(node.host) for _ in range(READINGS)])

    def _first(self, node: _Node, *answers: "Future[Any]") -> None:
        """Wait for one of these; what fails now is told, for nothing is sent yet."""
        name = node.host.name
        done, _ = wait(answers, START_S, FIRST_COMPLETED)
        if not done:
            raise SpecError(f"{name} is not ready after {START_S:.0f} s: see that its processors are free")
        for each in done:
            if error := each.exception():
                if isinstance(error, OpenloopError):
                    raise SpecError(f"{name}: {_line(error)}")
                raise SpecError(f"{name} cannot take part, see that openloop is installed there: {_line(error)}")

    def _start(self) -> None:
        told = (self.folder / MANIFEST_FILE).read_bytes()
        for number, node in enumerate(self.nodes):
            load, where = _part_of(self.load, self.words, number, len(self.nodes)), f"{self.out}/{PARTS}/{number}"
            node.done = node.host.ask("run", load, node.share, where, str(number), told)
        for node in self.nodes:
            assert node.done is not None
            self._first(node, node.done, node.host.ask("ready"))
        if self.salter:
            stop = lambda: bool(self.interrupts)  # noqa: E731
            told_of, self.primed = prime(self.load, self.demand, self.salter, self.words, stop)
            self.notes += told_of
        self.start_ns = time.monotonic_ns() + LEAD_NS
        for node in self.nodes:
            node.host.ask("begin", self.start_ns + node.offset.ns, LOST_S)
        self.scraper = None
        if self.load.metrics is not None:
            self.scraper = Scraper.of(SERVER.writer(self.folder), pages_of(self.load), self.load.metrics)
            self.scraper.start(self.start_ns)

    # Meanwhile.

    def _follow(self) -> None:
        while busy := [node for node in self.nodes if node.busy]:
            wait([node.done for node in busy if node.done], TELL_NS / 1e9)
            for node in busy:
                self._hear(node, time.monotonic_ns())
            for _ in range(self.interrupts - self.passed_on):
                self.passed_on += 1
                self._ask_all("interrupt")
            self._tell()

    def _hear(self, node: _Node, now: int) -> None:
        assert node.done is not None
        try:
            if node.done.done():
                to_fetch, facts = node.done.result()
                node.fetched, node.facts = not to_fetch, msgspec.convert(facts, Manifest)
            elif node.news is None:
                node.asked_ns = now
                node.news = node.host.ask("news")
                node.news.add_done_callback(lambda _: setattr(node, "heard_ns", time.monotonic_ns()))
            elif node.news.done() and node.heard_ns > node.asked_ns:
                latest, there = node.news.result()
                node.news = None
                node.snapshot = replace(latest, finished=[*node.snapshot.finished, *latest.finished])
                known = node.offset.corrected(offset_of([(node.asked_ns, there, node.heard_ns)]))
                if known != node.offset:
                    node.offset = known
                    node.host.ask("shift", self.start_ns + known.ns)
            elif now - node.asked_ns > LOST_S * 1e9:
                raise TimeoutError(f"nothing was heard of it for {LOST_S:g} s")
        except Exception as error:  # it is gone, or stopped and said why: a full disk, for example
            node.lost = _line(error)
            node.host.end()

    def _ask_all(self, method: str, *args: Any) -> None:
        for node in self.nodes:
            if node.busy:
                node.host.ask(method, *args)

    def _tell(self) -> None:
        parts = [node.snapshot for node in self.nodes]
        seconds = (time.monotonic_ns() - self.start_ns) / 1e9
        due, in_flight = sum(each.due for each in parts), sum(each.in_flight for each in parts)
        write_now(self.folder, Now(seconds, due, in_flight))
        statuses = sum((each.statuses for each in parts), Counter[str]())
        read_s = min(each.read_s for each in parts)
        finished = [row for each in parts for row in each.finished]
        why = self.watch(Snapshot(seconds, due, in_flight, statuses, finished, read_s))
        for each in parts:
            each.finished = []
        if why and seconds < self.load.seconds:
            self._ask_all("halt", why)

    # Afterwards.

    def _end(self) -> None:
        if self.scraper:
            self.notes += self.scraper.stop()
        for node in self.nodes:
            if node.lost is None:
                self._compare_clocks(node)
                self._fetch(node)
        known = [node.facts for node in self.nodes if node.facts]
        end = min([self.end_ns, *(facts.window_ns[1] for facts in known if facts.window_ns)])
        for number, node in enumerate(self.nodes):
            if node.lost is not None:
                self._drop(node, self.folder / PARTS / str(number), end)
        stopped = [facts.stopped_ns for facts in known if facts.stopped_ns]
        self.writer.finish(
            window_ns=(0, end),
            stopped_ns=max([*stopped, time.monotonic_ns() - self.start_ns if not known else 1]),
            stamps="; ".join(sorted({facts.stamps for facts in known if facts.stamps})) or None,
            notes=(*self.notes, *_said(self.nodes)),
            cut_short=next((facts.cut_short for facts in known if facts.cut_short), None),
            offered_rps=self._offered(end),
            cache_warmth=self.writer.manifest.cache_warmth if self.primed else None,
            nodes=tuple(node.told() for node in self.nodes),
        )

    def _compare_clocks(self, node: _Node) -> None:
        """Once more, with the machine at rest: how far its times can be wrong."""
        try:
            now = offset_of([_reading(node.host) for _ in range(READINGS)])
        except Exception as error:
            self.notes.append(f"{node.host.name} did not tell its time after the run: {_line(error)}")
            return
        worst = abs(node.offset.ns - now.ns) + now.error_ns
        node.aligned = replace(node.aligned, error_ns=max(node.aligned.error_ns, worst))

    def _fetch(self, node: _Node) -> None:
        if node.fetched:
            return
        folder = self.folder / PARTS / str(self.nodes.index(node))
        folder.mkdir(parents=True)
        try:
            for name in node.host.ask("files").result(LOST_S):
                with (folder / name).open("wb") as file:
                    while piece := node.host.ask("read", name, file.tell(), CHUNK).result(LOST_S):
                        file.write(piece)
            node.host.ask("forget").result(LOST_S)
        except Exception as error:
            node.lost = f"its rows did not arrive: {_line(error)}"

    def _drop(self, node: _Node, part: Path, end: int) -> None:
        """Keep what a lost machine has written so far, if that can be reached; the rest becomes rows that say so.

        It may not know that it is lost, and write on: so its rows are copied, and its own are not looked at again.
        """
        known: set[int] = set()
        with contextlib.suppress(OpenloopError):
            for batch in open_run(part).batches():
                self.writer.append(batch)
                known.update(ints(batch, "request_id").tolist())
        if self.load.users:
            return
        demand, prompts = node.share.demand, Prompts(node.share.demand, self.words)
        due, rows = due_ns_of(self.load, demand, self.end_ns), []
        why = "the machine that was to send it was lost"
        for place, number in enumerate(node.share.numbers.tolist()):
            if due[place] < end and number not in known:
                rows.append(Row(number, due[place], Outcome("dropped", error=why), ask=prompts.bare(place)))
            if len(rows) >= FLUSH_ROWS:
                self.writer.append(batch_of(rows))
                rows = []
        if rows:
            self.writer.append(batch_of(rows))

    def _offered(self, end: int) -> float | None:
        offered = self.writer.manifest.offered_rps
        if offered is None or end == self.end_ns:
            return offered
        return float(np.sum(self.demand.due_s * 1e9 < end) / (end / 1e9)) or None


def _reading(host: Host) -> tuple[int, int, int]:
    before = time.monotonic_ns()
    there = host.ask("clock").result(LOST_S)
    return before, there, time.monotonic_ns()


def _part_of(load: Load, words: Words, number: int, machines: int) -> Load:
    """What one of the machines is told: limits are shared, and what is done once is done here."""
    facts = {**load.facts, "notes": ()}
    prices: Prices | None = facts.get("prices")
    if prices is not None:
        hourly = {name: getattr(prices, name) / machines for name in ("per_hour", "per_gpu_hour")}
        facts["prices"] = msgspec.structs.replace(prices, **hourly)
    limits: dict[str, Any] = {
        name: share_of(getattr(load, name), number, machines) or None
        for name in ("users", "connections", "most_requests")
    }
    spend = None if load.most_spend is None else load.most_spend / machines
    return replace(load, words=words, warming=None, metrics=None, most_spend=spend, facts=facts, workers=1, **limits)


def _said(nodes: Sequence[_Node]) -> list[str]:
    """Notes of machines: once, where all have the same to say."""
    said = Counter(note for node in nodes if node.facts for note in set(node.facts.notes))
    told = list(dict.fromkeys(note for note, count in said.items() if count == len(nodes)))
    for node in nodes:
        told += [f"{node.host.name}: {note}" for note in (node.facts.notes if node.facts else ()) if note not in told]
    return told


def _line(error: BaseException) -> str:
    """What went wrong; of a long story, the first sentence of its last line."""
    told = str(getattr(error, "cause", None) or error)
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return lines[-1].partition(". ")[0] if lines else type(error).__name__


class MachinePart:
    """Asked from elsewhere, `run` once and the others meanwhile. Times are of this machine's clock."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._conductor: Conductor | None = None
        self._folder = Path()
        self._ready, self._begun = threading.Event(), threading.Event()
        self._start_ns = 0
        self._patience_s = self._asked = math.inf
        self._lock = threading.Lock()
        self._now = Snapshot()
        self._why: str | None = None

    def clock(self) -> int:
        if self._version != __version__:
            raise SpecError(f"it has openloop {__version__}, and {self._version} is asked for: install the same")
        return time.monotonic_ns()

    def run(self, load: Load, share: Share, out: str, number: str, told: bytes) -> tuple[bool, dict[str, Any]]:
        """Drive it; whether its files are to be fetched, and what is known of it afterwards.

        It is written where it belongs if that can be reached from here (the manifest there is the one that was
        `told`), else beside, and copied to a URL at the end.
        """
        there = not is_url(out) and _same(Path(out).parent.parent / MANIFEST_FILE, told)
        self._folder = Path(out) if there else Path(mkdtemp(prefix="openloop-")) / number
        self._conductor = Conductor(load, self._folder, self._watch, share, self._begin)
        try:
            self._conductor.run()
        finally:
            self._ready.set()
            if is_url(out):
                copy_run(self._folder, locate(out))
                self.forget()
        facts: dict[str, Any] = msgspec.to_builtins(self._conductor.writer.manifest)
        return not there and not is_url(out), facts

    def ready(self) -> None:
        """Returns when nothing is missing but the moment to start at."""
        self._ready.wait()

    def begin(self, start_ns: int, patience_s: float) -> None:
        """Start at a moment; and stop when nobody has asked for news for so long: then it is taken for lost."""
        self._start_ns, self._patience_s, self._asked = start_ns, patience_s, time.monotonic()
        self._begun.set()

    def shift(self, start_ns: int) -> None:
        """The moment that the run started at, as it is known now."""
        if self._conductor:
            self._conductor.start_ns = start_ns

    def interrupt(self) -> None:
        if self._conductor:
            self._conductor.interrupt()

    def halt(self, why: str) -> None:
        """The system cannot keep up: end the schedule."""
        self._why = why

    def news(self) -> tuple[Snapshot, int]:
        """Where it is, with the requests that ended since it was asked last; and the time."""
        self._asked = time.monotonic()
        with self._lock:
            found, self._now = self._now, replace(self._now, finished=[])
        return found, self.clock()

    def files(self) -> list[str]:
        return sorted(each.name for each in self._folder.iterdir())

    def read(self, name: str, start: int, size: int) -> bytes:
        with (self._folder / name).open("rb") as file:
            file.seek(start)
            return file.read(size)

    def forget(self) -> None:
        """What was written beside, and is elsewhere now."""
        shutil.rmtree(self._folder.parent)

    def _begin(self) -> int:
        self._ready.set()
        self._begun.wait()
        return self._start_ns

    def _watch(self, now: Snapshot) -> str | None:
        rows = [_slim(row) for row in now.finished[:: 1 + len(now.finished) // SHOWN]]
        with self._lock:
            self._now = replace(now, statuses=Counter(now.statuses), finished=[*self._now.finished, *rows])
        if time.monotonic() - self._asked > self._patience_s and self._conductor and not self._conductor.interrupts:
            self._conductor.interrupt()
            self._conductor.interrupt()
        return self._why


def _slim(row: Row) -> Row:
    """As much of it as whoever watches looks at."""
    tokens = row.outcome.output_tokens or len(row.outcome.event_ns)
    outcome = msgspec.structs.replace(
        row.outcome, text=None, event_ns=array("q"), event_tokens=None, output_tokens=tokens
    )
    return msgspec.structs.replace(row, outcome=outcome, ask=row.ask and row.ask._replace(messages=(), context=None))


def _same(path: Path, told: bytes) -> bool:
    try:
        return path.read_bytes() == told
    except OSError:
        return False
