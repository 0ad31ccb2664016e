"""A run while it goes on: one line that changes on a terminal, one line now and then elsewhere."""

import select
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Self

import click
import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from openloop.arrays import Floats
from openloop.load.conductor import Snapshot
from openloop.load.rows import Row
from openloop.load.selftest import Error, RateTrial
from openloop.slo import E2E, TPOT, TTFT, Objectives
from openloop.units import format_rate, format_seconds

KEPT = 10_000  # requests that percentiles are taken over
PLAIN_S = 5.0
SHOWN_ERRORS = 3


def _is_read() -> bool:
    """Whether a line on standard error can be written at once: a reader who does not read must not hold up the load."""
    try:
        return bool(select.select([], [sys.stderr], [], 0)[1])
    except (OSError, ValueError):  # no file: a string, in which there is always room
        return True


class InPlace:
    """Something on standard error that changes while it is entered; nothing where nobody looks."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()


class LiveView(InPlace):
    """Called with snapshots of a run; shows them on standard error."""

    def __init__(self, seconds: float, objectives: Objectives | None, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._tally = Tally(seconds, objectives)
        self._shown = 0.0

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for error, count in self._tally.errors.most_common(SHOWN_ERRORS):
            click.echo(f"{count:,} requests: {error}", err=True)

    def __call__(self, snapshot: Snapshot) -> None:
        if self._quiet:
            return
        self._tally.add(snapshot.finished)
        if self._live:
            self._live.update(Text(self._tally.line(snapshot)))
        elif time.monotonic() - self._shown >= PLAIN_S and _is_read():
            click.echo(self._tally.line(snapshot), err=True)
            self._shown = time.monotonic()


class Tally:
    """What is known of a run while it goes on, and one line that tells it."""

    def __init__(self, seconds: float, objectives: Objectives | None) -> None:
        self._seconds, self._objectives = seconds, objectives
        self._ttft, self._tpot, self._lag = (array("d", bytes(8 * KEPT)) for _ in range(3))  # nan: there is none
        self._sent = self._accepted = self._counted = 0
        self.errors: Counter[str] = Counter()

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._count(row)

    def line(self, now: Snapshot) -> str:
        elapsed = min(max(now.seconds, 1e-9), self._seconds)
        ended = now.statuses.total() - now.statuses["cancelled"]  # a copy that was not needed
        done = now.due - now.in_flight  # requests, however often each was tried
        parts = [
            f"{max(now.seconds, 0):.0f} of {self._seconds:.0f} s",
            f"offered {format_rate(now.due / elapsed)}",
            f"done {format_rate(done / elapsed)}",
            f"in flight {now.in_flight:,}",
        ]
        if self._objectives is not None:
            share = self._accepted / max(self._counted, 1)  # of many that end on several machines, some are told of
            parts.append(f"within latency {format_rate(min(share * max(ended, self._counted), done) / elapsed)}")
        if self._sent:
            ttft, tpot, lag = (np.frombuffer(each)[: self._sent] for each in (self._ttft, self._tpot, self._lag))
            parts += [
                f"ttft {_quantiles(ttft, 0.5, 0.99)}",
                f"tpot {_quantiles(tpot, 0.5, 0.99)}",
                f"lag p99 {_quantiles(lag, 0.99)}",
            ]
        parts.append(f"failed {ended - now.statuses['ok']:,}")
        return ", ".join(parts)

    def _count(self, row: Row) -> None:
        if row.outcome.status == "cancelled":
            return
        self._counted += 1
        if row.outcome.error:
            self.errors[row.outcome.error] += 1
        if row.sent_ns is None:
            return
        tokens = row.outcome.output_tokens or len(row.outcome.event_ns)
        ttft = tpot = np.nan
        if row.first_ns is not None and row.last_ns is not None:
            ttft = (row.first_ns - row.due_ns) / 1e9
            tpot = (row.last_ns - row.first_ns) / 1e9 / (tokens - 1) if tokens > 1 else np.nan
        lag = (row.sent_ns - row.due_ns) / 1e9 if row.kind == "first" else np.nan
        place = self._sent % KEPT
        self._ttft[place], self._tpot[place], self._lag[place] = ttft, tpot, lag
        self._sent += 1
        self._accepted += row.outcome.status == "ok" and self._in_time(row, ttft, tpot)

    def _in_time(self, row: Row, ttft: float, tpot: float) -> bool:
        """By the gates that can be judged at once; the score at the end judges all of them."""
        if self._objectives is None:
            return False
        e2e = ((row.ended_ns or 0 if row.last_ns is None else row.last_ns) - row.due_ns) / 1e9
        bounds = {TTFT: ttft, TPOT: tpot, E2E: e2e}
        gates = self._objectives.of(row.ask.workload_class if row.ask else None).gates
        single = row.outcome.output_tokens is not None and row.outcome.output_tokens <= 1
        if row.last_ns is None and any(isinstance(gate, TTFT if single else TTFT | TPOT) for gate in gates):
            return False  # what is not known does not pass
        return not any(bounds[type(gate)] > gate.within_s for gate in gates if isinstance(gate, TTFT | TPOT | E2E))


def _quantiles(values: Floats, *shares: float) -> str:
    known = values[~np.isnan(values)]
    found = np.quantile(known, shares).tolist() if len(known) else [np.nan] * len(shares)
    return " / ".join(map(format_seconds, found))


def show_trials_header() -> None:
    click.echo("error against the truth, p50 / p99 / max in ms")
    click.echo(
        f"{'offered':>9} {'achieved':>9} {'cv':>5}  {'sending late':>20}  {'ttft':>20}  {'itl':>20}  {'e2e':>20}"
        f"  {'cpu s/1000':>10}  {'stolen':>6}"
    )


def show_trial(trial: RateTrial) -> None:
    errors = "  ".join(_errors(each) for each in (trial.lag, trial.ttft, trial.itl, trial.e2e))
    click.echo(
        f"{trial.offered_rps:>7g}/s {trial.achieved_rps:>7.0f}/s {trial.arrivals_cv:>5.2f}  {errors}"
        f"  {trial.cpu_s_per_1000:>10.2f}  {trial.stolen:>6.1%}{'' if trial.trusted else '  not to be trusted'}"
    )


def _errors(error: Error) -> str:
    return f"{1000 * error.p50:.3f} / {1000 * error.p99:.3f} / {1000 * error.max:.2f}".rjust(20)
