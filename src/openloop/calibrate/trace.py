"""A measured run as calibration needs it: when each request left, how long it was, and when its tokens came."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from openloop.arrays import Bools, Floats, Ints
from openloop.arrivals import read_arrivals
from openloop.errors import OpenloopError, RunError
from openloop.importers import open_any
from openloop.records import MISSING, Run, ints
from openloop.units import NS_PER_S
from openloop.workload import Workload, read_source

MOST_GAPS = 4000  # of a run: more tell no more
SEVERAL = 1.2  # tokens in a delivery: then the time between two is not a step
SLACK = 0.4  # of a short step: first tokens further apart are of different steps


@dataclass(frozen=True, eq=False)
class MeasuredTrace:
    """Attempts that reached a server, in the order in which they left; seconds from the run's start."""

    name: str
    sent_s: Floats
    prompt: Ints
    cached: Ints
    output: Ints  # tokens that were made, or would have been
    came: Ints  # of these, tokens that came before the run ended
    first_s: Floats  # when the first token came; NaN: none did
    last_s: Floats  # and the last of those that came
    gap_s: Floats  # the longest time between two deliveries; NaN: only first and last are known
    used: Bools  # its times are to be explained
    waited_s: Floats  # without a first token: how long it waited in vain; else NaN
    gaps: Floats  # begin and end of some of the times between two tokens of a request; none: ends only
    replicas: int = 1  # that served it
    beside: int = 1  # replicas of the run, each with a trace of its own
    asked: float | None = None  # rate, of the whole run
    put_back: bool = True  # somebody may have been, for want of memory
    running_peak: float = np.nan  # by the server's own account
    memory_tokens: float = np.nan  # by the share of it that the server says is taken
    kv_peak: float = np.nan  # the largest such share

    def __len__(self) -> int:
        return len(self.sent_s)

    @property
    def ttft_s(self) -> Floats:
        return self.first_s - self.sent_s

    @property
    def tpot_s(self) -> Floats:
        """Of those with enough tokens to tell."""
        return np.where(self.came > 1, (self.last_s - self.first_s) / np.maximum(self.came - 1, 1), np.nan)

    @property
    def offered(self) -> float:
        """The rate, as the run was asked for where it says; runs of one rate belong together."""
        return len(self) / max(float(np.ptp(self.sent_s)), 1e-9) if self.asked is None else self.asked

    @property
    def to_read(self) -> tuple[Floats, Floats]:
        """Of each prompt: tokens that no cache had, and pairs of them with all before them."""
        prompt, cached = self.prompt.astype(np.float64), self.cached.astype(np.float64)
        return prompt - cached, (prompt**2 - cached**2) / 2

    @property
    def crowd(self) -> Floats:
        """How many get tokens when each request is sent."""
        return crowd(self, self.sent_s)

    def between(self, low_s: float, high_s: float) -> "MeasuredTrace":
        """Only what was sent then is to be explained; the others are served all the same."""
        mine = (self.sent_s >= low_s) & (self.sent_s < high_s)
        return replace(
            self, used=self.used & mine, gaps=self.gaps[(self.gaps[:, 0] >= low_s) & (self.gaps[:, 0] < high_s)]
        )

    def amounts(self) -> Floats:
        """Of each gap: how long; how many decode; tokens in memory; tokens of prompts that were done; pairs of them;
        tokens of all prompts of which a part may have been read then, or right before; of one that was there all the
        time and is not done, and in how many such gaps it will be; how many were done, and at how many moments."""
        if not len(self.gaps):
            return np.empty((0, 10))
        begin, end = self.gaps.T
        long = end - begin > 0.2 * np.median(end - begin)  # the others came together, by chance or design
        begin, end = begin[long], end[long]
        middle = (begin + end) / 2
        order = np.argsort(self.first_s)[: int(np.count_nonzero(~np.isnan(self.first_s)))]
        first = self.first_s[order]
        tokens, pairs = (np.concatenate([[0.0], np.cumsum(each[order])]) for each in self.to_read)
        slack = SLACK * np.quantile(end - begin, 0.2)  # tokens of one step do not arrive at once
        low, high = (np.searchsorted(first, each + slack, "right") for each in (begin, end))
        moment = np.cumsum(np.diff(first, prepend=-np.inf) > slack)
        moments = np.where(high > low, moment[high - 1] - moment[np.minimum(low, len(first) - 1)] + 1, 0)
        several = np.maximum(crowd(self, middle), 1.0)
        read = [tokens[high] - tokens[low], pairs[high] - pairs[low], *self._around(begin, end, slack)]
        return np.column_stack([end - begin, several, held(self, middle), *read, high - low, moments])

    def _around(self, begin: Floats, end: Floats, slack: float) -> tuple[Floats, Floats, Floats]:
        """Prompts are read in the order in which they came, each from when those before it are done. Nobody's first
        token comes sooner than almost all the others': who was sent so long before is there."""
        some = ~np.isnan(self.first_s)
        sent, new = self.sent_s[some], (self.prompt - self.cached)[some]
        done, total = np.maximum.accumulate(self.first_s[some]), np.concatenate([[0.0], np.cumsum(new)])
        before = begin - np.quantile(end - begin, 0.99)
        low = np.searchsorted(done, before + slack, "right")
        there, next_ = np.searchsorted(sent, begin), np.searchsorted(done, end + slack, "right")
        around: Floats = np.maximum(total[np.minimum(there, next_ + 1)] - total[low], 0.0)
        there = np.searchsorted(sent + np.quantile(self.first_s[some] - sent, 0.05), begin)
        left = (np.append(done, np.inf)[next_] - begin) / (end - begin)
        return around, np.where(next_ < there, np.append(new, 0)[next_], 0.0), left


def crowd(trace: MeasuredTrace, at_s: Floats) -> Floats:
    """How many are getting tokens at each moment."""
    some = ~np.isnan(trace.first_s)
    began, over = np.sort(trace.first_s[some]), np.sort(trace.last_s[some])
    found = np.searchsorted(began, at_s, "right") - np.searchsorted(over, at_s, "right")
    return found.astype(np.float64)


def open_runs(paths: Sequence[str | Path | Run]) -> list[Run]:
    """Runs, and those in folders of runs (sweeps), each once."""
    found: dict[object, Run] = {}
    for path in paths:
        if isinstance(path, Run):
            found[id(path)] = path
            continue
        folder = Path(path)
        alone = (folder / "run.json").exists() or not folder.is_dir()
        inside = [path] if alone else sorted(each.parent for each in folder.rglob("run.json"))
        if not inside:
            raise RunError(f"{path} holds no run: give runs, or a frontier")
        found |= {Path(each).resolve(): open_any(each) for each in inside}
    return list(found.values())


def read_traces(paths: Sequence[str | Path | Run]) -> list[MeasuredTrace]:
    return [trace for run in open_runs(paths) for trace in read_trace(run)]


def read_trace(run: Run) -> list[MeasuredTrace]:
    """A trace of each replica that the run names; of all together where it names none."""
    name = str(run.path or "the run")
    batch = _rows(run, name)
    counts = np.diff(batch.column("event_ns").offsets.to_numpy()).astype(np.int64)
    status = np.array(batch.column("status").to_pylist())
    sent, told, asked = (ints(batch, each) for each in ("sent_ns", "output_tokens", "requested_tokens"))
    if run.manifest.source == "import" and len(sent) > 1 and not np.ptp(sent):
        why = "its file does not tell when requests were sent, so what ran together is not known"
        raise RunError(f"{name} cannot be calibrated to: {why}; measure with openloop run, or import a file with times")
    prompt = _prompts(run, batch)
    _refuse(name, prompt, counts, status == "ok")
    some = counts > 0
    came = _delivered(batch, counts)
    whole = status == "ok"
    came = np.where(whole & (told > 0), told, came)
    output = np.where(status == "censored", np.maximum(asked, came), came)  # whom its client left is not served further
    only = batch.column("ends_only").fill_null(False).to_numpy(zero_copy_only=False) | (came > SEVERAL * counts)
    first, last, gap = _times(batch, counts, only)
    stopped = (run.manifest.stopped_ns or int(np.nanmax(last) * NS_PER_S)) / NS_PER_S
    served = (sent != MISSING) & (prompt > 0) & (output > 0) & (some | (status == "censored"))
    order = np.flatnonzero(served)[np.argsort(sent[served], kind="stable")]
    replica = np.array([str(each) for each in batch.column("replica").to_pylist()])
    names = np.unique(replica[order])
    if len(names) > 1:  # who was cut off before a replica was named cannot be placed
        names = names[names != "None"]
    asked_rps = run.manifest.offered_rps
    if asked_rps is None and len(names) > 1:
        asked_rps = len(order) / max(float(np.ptp(sent[order])) / NS_PER_S, 1e-9)
    found = []
    for each in names:
        rows = order[replica[order] == each]
        if not some[rows].any():  # who was never answered tells nothing about how long an answer takes
            continue
        trace = MeasuredTrace(
            name=name if len(names) == 1 else f"{name}, replica {each}",
            sent_s=sent[rows] / NS_PER_S,
            prompt=prompt[rows],
            cached=np.clip(ints(batch, "cached_tokens"), 0, prompt - 1)[rows],
            output=output[rows],
            came=came[rows],
            first_s=first[rows],
            last_s=last[rows],
            gap_s=gap[rows],
            used=whole[rows] | (status[rows] == "censored"),
            gaps=_some_gaps(batch, counts, (replica == each) & ~only),
            waited_s=np.where(some[rows], np.nan, stopped - sent[rows] / NS_PER_S),
            replicas=1 if len(names) > 1 else max(run.manifest.replicas or 1, 1),
            beside=len(names),
            asked=asked_rps,
            put_back=bool(np.any(ints(batch, "preemptions")[rows])),  # also where it is not told
        )
        found.append(replace(trace, **_told(trace, run)) if len(names) == 1 else trace)
    return found


def _rows(run: Run, name: str) -> pa.RecordBatch:
    names = (
        "request_id sent_ns scheduled_ns event_ns event_tokens ends_only prompt_tokens cached_tokens output_tokens "
        "requested_tokens status replica preemptions"
    )
    table = pa.Table.from_batches(list(run.batches(names.split())))
    if not table.num_rows:
        raise RunError(f"{name} has no rows: there is nothing to calibrate to")
    return table.combine_chunks().to_batches()[0]


def _times(batch: pa.RecordBatch, counts: Ints, only: Bools) -> tuple[Floats, Floats, Floats]:
    """First and last delivery of each row, and the longest gap between two, unless it tells these ends `only`."""
    times = batch.column("event_ns").flatten().to_numpy()
    some, ends = counts > 0, np.cumsum(counts)
    first, last, gap = (np.full(len(counts), np.nan) for _ in range(3))
    begin = ends[some] - counts[some]
    if len(begin):
        first[some], last[some] = times[begin] / NS_PER_S, times[ends[some] - 1] / NS_PER_S
        gaps = np.diff(times, prepend=times[:1]) / NS_PER_S
        gaps[begin] = 0.0
        gap[some] = np.maximum.reduceat(gaps, begin)
    gap[only | (counts < 3)] = np.nan
    return first, last, gap


def _some_gaps(batch: pa.RecordBatch, counts: Ints, mine: Bools) -> Floats:
    """Of neighbouring deliveries of one request of `mine`, at most MOST_GAPS, in the order of time."""
    times = batch.column("event_ns").flatten().to_numpy()
    within = np.ones(max(len(times) - 1, 0), bool)
    ends = np.cumsum(counts[counts > 0])[:-1]
    within[ends - 1] = False
    within &= np.repeat(mine, counts)[1:]
    found = np.column_stack([times[:-1], times[1:]])[within] / NS_PER_S
    found = found[np.argsort(found[:, 0], kind="stable")]
    return found[:: max(1, len(found) // MOST_GAPS)]


def _prompts(run: Run, batch: pa.RecordBatch) -> Ints:
    """As servers counted them. Of what was cut off, whose count never came, as the workload has it: it follows from
    the seed in the manifest, and moments that are the same show that it is the same."""
    found = ints(batch, "prompt_tokens").copy()
    unknown, m = found < 0, run.manifest
    if unknown.any() and m.workload and m.arrivals and m.seed is not None and m.window_ns:
        try:
            drawn = Workload.of(read_source(m.workload)).demand(
                read_arrivals(m.arrivals), m.window_ns[1] / NS_PER_S, m.seed
            )
        except OpenloopError:
            return found
        number, due = ints(batch, "request_id"), ints(batch, "scheduled_ns") / NS_PER_S
        if number.max() < len(drawn) and np.allclose(drawn.due_s[number], due, atol=1e-6):
            found[unknown] = drawn.prompt_tokens[number][unknown]
    return found


def _refuse(name: str, prompt: Ints, counts: Ints, ok: Bools) -> None:
    if not np.any(counts > 0) and not ok.any():
        why = "no request was answered, and errors tell nothing about how long an answer takes"
        raise RunError(f"{name} cannot be calibrated to: {why}; measure at a rate that the server can bear")
    if not np.any(counts > 0):
        fix = "measure with streaming, or import a file with TTFT and E2E"
        raise RunError(f"{name} cannot be calibrated to: it has no times of tokens; {fix}")
    if not np.any(prompt > 0):
        fix = "measure a server that reports usage, or give --tokenizer"
        raise RunError(f"{name} cannot be calibrated to: it does not tell how long prompts were; {fix}")


def _delivered(batch: pa.RecordBatch, counts: Ints) -> Ints:
    tokens = batch.column("event_tokens")
    if tokens.null_count == len(tokens):
        return counts
    return np.array([counts[row] if each is None else sum(each) for row, each in enumerate(tokens.to_pylist())])


def _told(trace: MeasuredTrace, run: Run) -> dict[str, Any]:
    """By the server's own account."""
    table, found = run.server(), dict[str, Any]()
    if table is None:
        return found
    names = np.array(table.column("name").to_pylist())
    at, value = table.column("time_ns").to_numpy() / NS_PER_S, table.column("value").to_numpy()
    running, taken = names == "running", names == "kv_use"
    if running.any():
        found["running_peak"] = float(value[running].max()) / trace.replicas
    if taken.any():
        found["kv_peak"] = float(value[taken].max(initial=0.0))
        busy = taken & (value > 0.02)
        if np.count_nonzero(busy) >= 5:
            found["memory_tokens"] = float(np.median(held(trace, at[busy]) / value[busy])) / trace.replicas
    return found


def held(trace: MeasuredTrace, at_s: Floats) -> Floats:
    """Tokens in memory at these times: prompts and what was made, of those that get tokens."""
    some = ~np.isnan(trace.first_s)
    began, over, came = trace.first_s[some], trace.last_s[some], trace.came[some]
    pace = (came - 1) / np.maximum(over - began, 1e-9)
    total = np.zeros(len(at_s))
    for place in range(0, len(at_s), 256):
        at = at_s[place : place + 256, None]
        inside = (at >= began) & (at <= over)
        total[place : place + 256] = np.sum(inside * (trace.prompt[some] + pace * (at - began)), axis=1)
    return total
