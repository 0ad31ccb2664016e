"""Where records come from: a run in progress, one that is over, and spans of calls as they are written."""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openloop.arrays import Bools, Floats, Ints
from openloop.errors import OpenloopError, RunError
from openloop.importers.foreign import Call
from openloop.importers.otel import calls, run_of
from openloop.records import Manifest, Now, Prices, Run
from openloop.records.tail import Tail
from openloop.said import BOM
from openloop.score.judged import JudgedRun, Scope, judge_run
from openloop.score.metrics import stragglers
from openloop.score.requests import CENSORED
from openloop.slo import Objectives, SLOGate
from openloop.units import NS_PER_S, format_seconds, to_ns
from openloop.watch.frame import GOODPUT, ReplicaTails, RollingTail, SecondCounts, TimedMark, columns

AT_ONCE = 20_000  # rows that are judged together while catching up
SETTLE_S = 1.0  # what ended just now is not written yet
OPEN_SPAN_S = 3600.0  # a span is written when it ends: so long before watching it may have begun
UNUSED = "lines or spans could not be used"
BAD = (OpenloopError, LookupError, ArithmeticError, ValueError, TypeError, AttributeError, RecursionError)
MOST_S = 10_000_000  # that are counted one by one: four months
AHEAD_S = 86400.0  # so far another machine's clock may be ahead of ours
MOST_TOKENS = 2**31 - 1
OLDEST_NS = 946_684_800 * NS_PER_S  # the year 2000: clocks that were never set are before it
METRICS = {"ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_s"}


class Feed:
    """What a watch is fed by. Seconds count from the start of the run, or of watching."""

    def __init__(self, source: str, objectives: Objectives, keep_s: int) -> None:
        self.source, self.slo = source, str(objectives)
        gates = dict.fromkeys(gate.name for slo in objectives.slos for gate in slo.gates)
        self.signals = (GOODPUT, "success", *gates)  # each has its columns in the ledger
        self.ledger = SecondCounts(columns(self.signals), keep_s)
        self.anew = False  # another run was begun in the same place: nothing that was counted is of it
        self.limits: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.marks: list[TimedMark] = []
        self.started_s: float | None = None  # by the wall clock
        self.over = False  # nothing more will come
        self.undated = False  # nobody knows since when it was counted
        self.per_hour, self.priced = 0.0, False

    def read(self) -> None:
        """Take in what is new."""

    def clock(self) -> float:
        """Up to when everything is known."""
        return float(self.ledger.end)

    def tails(self, start_s: float, end_s: float) -> tuple[dict[str, RollingTail], list[ReplicaTails]]:
        raise NotImplementedError

    def traffic(self, start_s: float, end_s: float) -> tuple[float | None, int | None]:
        """Requests per second that were due, and how many are in flight at the end."""
        raise NotImplementedError


class _Records(Feed):
    """Judged requests by when they left; what was judged before is replaced as far back as all rows are still held."""

    lead_s = 0.0  # how much earlier the times of rows begin than the seconds that are watched

    def __init__(self, source: str, objectives: Objectives, prices: Prices | None, keep_s: int = 1 << 40) -> None:
        super().__init__(source, objectives, keep_s)
        self.objectives, self.prices = objectives, prices
        self.judged: JudgedRun | None = None
        self._left_s = self._due_s = np.empty(0)
        self._accepted: Bools = np.empty(0, np.bool_)
        self._order: Ints = np.empty(0, np.int64)

    def hear(self, manifest: Manifest) -> None:
        self.marks = [TimedMark(event.at_ns / 1e9, event.kind, event.detail) for event in manifest.events]
        with suppress(ValueError):
            self.started_s = datetime.fromisoformat(manifest.started_at or "").timestamp() + self.lead_s

    def take(self, run: Run, covered_ns: int = -1) -> None:
        self.hear(run.manifest)
        if not run.num_rows:
            return
        judged = judge_run(run, self.objectives, prices=self.prices)
        scope = judged.everyone
        counted = scope.deliveries.of_attempt(judged.attempts.status) != CENSORED
        self._due_s = scope.due_ns / 1e9 - self.lead_s
        left_s = np.where(counted, scope.left_ns / 1e9 - self.lead_s, np.inf)
        self._order = np.argsort(left_s, kind="stable")
        self._left_s = left_s[self._order]
        self.judged, self.per_hour, self.priced = judged, judged.per_hour, judged.priced
        self._count(scope, left_s, counted, covered_ns, run.manifest.source != "import")

    def _count(self, scope: Scope, left_s: Floats, counted: Bools, covered_ns: int, ours: bool) -> None:
        judgement = scope.judgement
        gates = (gate for slo in scope.run.slos for gate in slo.gates)
        unknown = dict.fromkeys(gate.name for gate in gates if not _told(scope, gate, ours))  # in their order
        accepted = judgement.ok & ~np.any(
            [missed for name, missed in judgement.missed.items() if name not in unknown] or [~judgement.ok], axis=0
        )
        self._accepted = accepted
        self.notes = tuple(f"no row tells {name}: it is not judged, and goodput is without it" for name in unknown)
        first = int(covered_ns // NS_PER_S) + 1 if covered_ns >= 0 else 0
        mine = counted & (left_s >= first)
        if not mine.any():
            return
        latest = int(left_s[mine].max())
        if latest - first > 2 * self.ledger.keep_s:  # after a long pause: what was before would be forgotten at once
            first = latest - self.ledger.keep_s
            mine &= left_s >= first
        place = left_s[mine].astype(np.int64) - first
        if place.max() > MOST_S:
            long, most = (format_seconds(float(each)) for each in (place.max(), MOST_S))
            raise RunError(
                f"it goes on for {long}, and a watch goes through {most} at most: is one of its times wrong?"
            )

        def by_second(values: NDArray[Any]) -> Floats:
            return np.asarray(np.bincount(place, weights=np.asarray(values, np.float64)[mine]), np.float64)

        ended, nothing = by_second(np.ones(scope.n)), by_second(np.zeros(scope.n))
        counts = {
            "ended": ended,
            "ok": by_second(judgement.ok),
            "tokens": by_second(np.where(judgement.ok, scope.deliveries.tokens, 0)),
            "spent": by_second(scope.spent),
        }
        for signal in self.signals:
            missed = judgement.missed.get(signal)
            passed = accepted if signal == GOODPUT else judgement.ok if missed is None else judgement.ok & ~missed
            told = signal not in unknown
            counts[f"{signal}.of"] = ended if told else nothing
            counts[f"{signal}.low"] = counts[f"{signal}.high"] = by_second(passed) if told else nothing
        self.ledger.write(first, counts)

    def tails(self, start_s: float, end_s: float) -> tuple[dict[str, RollingTail], list[ReplicaTails]]:
        if self.judged is None:
            return {}, []
        a, b = np.searchsorted(self._left_s, (start_s, end_s))
        places = np.sort(self._order[a:b])
        start_ns, end_ns = (int((at + self.lead_s) * 1e9) for at in (start_s, end_s))
        scope = Scope(self.judged, places, (start_ns, max(end_ns, start_ns + 1)))
        codes = scope.deliveries.of_attempt(self.judged.attempts.replica)
        far = stragglers(scope)
        replicas = []
        for code in np.unique(codes[codes >= 0]).tolist():
            name = self.judged.attempts.words["replica"][code]
            part = scope.part(codes == code)
            slow = {
                each.metric.removesuffix("_s"): each.p95_s / each.fleet_p95_s for each in far if each.replica == name
            }
            share = float(self._accepted[part.places].mean())
            replicas.append(ReplicaTails(name, part.n, share, _ladders(part), slow))
        return _ladders(scope), replicas

    def traffic(self, start_s: float, end_s: float) -> tuple[float | None, int | None]:
        due = np.searchsorted(self._due_s, (start_s, end_s))
        gone = int(np.searchsorted(self._left_s, end_s))
        return float(due[1] - due[0]) / max(end_s - start_s, 1e-9), int(due[1]) - gone


def _told(scope: Scope, gate: SLOGate, ours: bool) -> bool:
    """Whether any completed request tells what the gate looks at; where none could, the gate has its say. It has, too,
    on token times of answers that `ours` could have timed, and did not stream."""
    if ours and gate.name not in ("quality", "cost"):
        return True
    answers, ok = scope.answers, scope.deliveries.ok
    several = ok & ~answers.single
    known = {
        "ttft": (ok, ~np.isnan(answers.ttft_s)),
        "tpot": (several, ~np.isnan(answers.tpot_s)),
        "quality": (ok, (answers.quality >= 0) | ~np.isnan(answers.quality_score)),
        **dict.fromkeys(("e2e", "window", "retries"), (ok, ok)),
        "cost": (ok, ~np.isnan(answers.cost)),
    }
    could, does = known.get(gate.name, (several, scope.deliveries.gaps_told))
    return not could.any() or bool((could & does).any())


def _ladders(scope: Scope) -> dict[str, RollingTail]:
    found = {}
    for name, column in METRICS.items():
        values = getattr(scope.answers, column)[scope.deliveries.ok]
        values = values[~np.isnan(values)]
        if len(values):
            found[name] = RollingTail(len(values), *np.quantile(values, (0.5, 0.95, 0.99)).tolist())
    return found


class FinishedFeed(_Records):
    """A run that is over, all of it at once."""

    def __init__(self, source: str, run: Run, objectives: Objectives, prices: Prices | None) -> None:
        super().__init__(source, objectives, prices)
        self.limits, self.over = run.manifest.notes if run.manifest.source == "import" else (), True
        self.take(run)
        waiting = int(np.isinf(self._left_s).sum())
        late = f"{waiting:,} requests were in flight at its end: they are not judged here, and the score counts them"
        self.notes = (*run.missing, *self.notes, *([late] if waiting else []))


class RunFeed(_Records):
    """A run that `openloop run` or `openloop proxy` is writing."""

    def __init__(self, folder: Path, objectives: Objectives, prices: Prices | None, keep_s: int, held_s: float) -> None:
        super().__init__(folder.name, objectives, prices, keep_s)
        self.limits = ("rows are written when requests end: what is in flight is counted, and judged later",)
        self._held_s = held_s
        self._look: Now | None = None  # the last, and by this machine's steady clock, when it was
        self._looked_s = 0.0
        self._read_s = time.monotonic()
        self._begin(folder)

    def _begin(self, folder: Path) -> None:
        self.tail = Tail(folder, self._held_s)
        self.ledger = SecondCounts(columns(self.signals), self.ledger.keep_s)
        self.judged = None
        self.hear(self.tail.manifest)

    def read(self) -> None:
        self._read_s = time.monotonic()
        self.anew = self.tail.stale
        if self.anew:
            self._begin(self.tail.folder)
        while new := self.tail.read_on(AT_ONCE):
            self.take(self.tail.run, self.tail.covered_ns)
            if new < AT_ONCE:
                break
        self.hear(self.tail.manifest)
        self.over = self.tail.over

    def clock(self) -> float:
        """When it was read. Wall clocks are compared once for each look of the writer: a set one does not move it."""
        latest, now = self.tail.latest_ns / 1e9, self.tail.looks[-1] if self.tail.looks else None
        if self.over:
            return super().clock()
        if now is None:
            return max(latest, time.time() - self.started_s if self.started_s else 0.0) - SETTLE_S
        if now != self._look:
            self._look, self._looked_s = now, time.monotonic() - max(time.time() - now.at, 0.0)
        return max(now.seconds + self._read_s - self._looked_s, latest) - SETTLE_S

    def traffic(self, start_s: float, end_s: float) -> tuple[float | None, int | None]:
        looks = [look for look in self.tail.looks if start_s <= look.seconds <= end_s + 2 * SETTLE_S]
        if self.over or not looks:
            return None, None
        seconds = looks[-1].seconds - looks[0].seconds
        return (looks[-1].due - looks[0].due) / seconds if seconds else None, looks[-1].in_flight


def _usable(found: Sequence[Call], now_s: float) -> list[Call]:
    """Those that can be rows, of about the same time."""
    soon_ns = to_ns(now_s + AHEAD_S)
    sane = [call for call in found if _can_be(call) and (call.ended_ns or 0) <= soon_ns]
    earliest_ns = max((call.ended_ns or 0 for call in sane), default=0) - MOST_S * NS_PER_S
    return [call for call in sane if (call.sent_ns or 0) >= earliest_ns]


def _can_be(call: Call) -> bool:
    sent = call.sent_ns or 0
    counts = [call.prompt_tokens, call.cached_tokens, call.output_tokens, call.requested_tokens]
    words = [call.replica, call.workload_class, call.finish_reason, call.error]
    return (
        OLDEST_NS < sent <= (sent if call.first_ns is None else call.first_ns) <= (call.ended_ns or 0)
        and all(each is None or (type(each) is int and 0 <= each <= MOST_TOKENS) for each in counts)
        and (call.cached_tokens or 0) <= (MOST_TOKENS if call.prompt_tokens is None else call.prompt_tokens)
        and all(each is None or isinstance(each, str) for each in words)
        and not isinstance(call.session, list | dict)
    )


class SpanFeed(_Records):
    """OpenTelemetry spans of calls to models, one JSON object a line, as they are appended to a file; or, if it is
    `over`, all that is there."""

    def __init__(
        self, path: Path, objectives: Objectives, prices: Prices | None, keep_s: int, held_s: float, *, over: bool
    ) -> None:
        super().__init__(path.name, objectives, prices, 1 << 40 if over else keep_s)
        self.path, self._held_s, self.over = path, 1e9 if over else held_s, over
        self._file = -1  # which one that path was
        self._read = self._refused = 0
        self.lead_s = 0.0 if over else OPEN_SPAN_S
        self._clock_s = time.time() - time.monotonic()  # a clock that is set later does not move this one
        self._began_s = self._looked_s = time.monotonic()
        self._calls: list[Call] = []
        self._asked = False  # somebody tells as a client: then those who answer are not counted as well
        self._origin_ns: int | None = None
        self._covered_ns = -1

    def read(self) -> None:
        self._looked_s = time.monotonic()
        new = self._new_calls()
        usable = _usable(new, self._clock_s + self._looked_s)
        self._refused += len(new) - len(usable)
        if usable:
            self._keep(usable)
        if self._refused:
            others = (note for note in self.notes if not note.endswith(UNUSED))
            self.notes = (*others, f"{self._refused:,} {UNUSED}")

    def _keep(self, new: Sequence[Call]) -> None:
        if self._origin_ns is None and self.over:
            self._origin_ns = min(call.sent_ns or 0 for call in new)
        elif self._origin_ns is None:  # what is there already was seen from the first that ended
            began_ns = int((self._clock_s + self._began_s) * 1e9)
            self._origin_ns = min(began_ns, *(call.ended_ns or 0 for call in new))
        start_ns = self._origin_ns - int(self.lead_s * 1e9)
        kept = [call for call in new if (call.sent_ns or 0) >= start_ns and (call.ended_ns or 0) >= self._origin_ns]
        self._refused += len(new) - len(kept)
        self._calls += kept
        latest = max((call.ended_ns or 0 for call in self._calls), default=0)
        old = latest - int(self._held_s * 1e9)
        gone = [call.ended_ns or 0 for call in self._calls if (call.ended_ns or 0) < old]
        self._covered_ns = max([self._covered_ns, *(ended - self._origin_ns for ended in gone)])
        if kept:
            run = run_of(self._calls, start_ns)
            self.limits = run.manifest.notes
            self.take(run, self._covered_ns)
        self._calls = [call for call in self._calls if (call.ended_ns or 0) >= old]

    def _new_calls(self) -> Sequence[Call]:
        try:
            with self.path.open("rb") as file:
                facts = os.fstat(file.fileno())
                if facts.st_ino != self._file or facts.st_size < self._read:
                    self._read = 0  # somebody began the file anew
                self._file = facts.st_ino
                file.seek(self._read)
                text = file.read()
        except OSError:
            return []
        whole = text if self.over else text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        found: list[tuple[bool, Call]] = []
        for line in whole.splitlines():
            if line.strip():
                try:
                    found += calls([json.loads(line.removeprefix(BOM))])
                except BAD:
                    self._refused += 1
        if not self._asked and any(client for client, _ in found):
            self._asked, self._calls = True, []  # those held are told by who answered
        return [call for client, call in found if client or not self._asked]

    def clock(self) -> float:
        """When it was read: what came while that was judged is not known yet."""
        if self.over:
            return super().clock()
        if self._origin_ns is None:
            return max(self._looked_s - self._began_s - SETTLE_S, 0.0)
        now = self._clock_s + self._looked_s
        return max(now - self._origin_ns / 1e9, float(self.ledger.end)) - SETTLE_S

    def traffic(self, *_: float) -> tuple[float | None, int | None]:
        return None, None  # a span is seen when it ends
