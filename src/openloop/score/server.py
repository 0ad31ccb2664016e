"""What the servers' own figures add up to over the measured window."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from openloop.arrays import Counts, Floats, Ints
from openloop.records.beside import MEASURES
from openloop.records.schema import words

Series = tuple[Ints, Floats]  # times and values


@dataclass(frozen=True)
class ServerScore:
    """Of one replica or GPU, or of all together: gauges and counters of replicas add up, shares are averaged.

    NaN where no server tells.
    """

    queue_mean: float
    queue_peak: float
    running_mean: float
    running_peak: float
    kv_use_mean: float
    kv_use_peak: float
    preemptions: float
    prefix_hit_rate: float
    draft_acceptance: float
    drafted_tokens_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    gpu_use: float
    gpu_memory_use: float
    gpu_power_w: float
    replicas: "dict[str, ServerScore]" = field(default_factory=dict)


def server_score(table: pa.Table | None, window_ns: tuple[int, int]) -> ServerScore | None:
    """None where nothing was read in the window."""
    if table is None or not table.num_rows:
        return None
    inside = {replica: cut for replica, series in by_replica(table).items() if (cut := _cut(series, window_ns))}
    if not inside:
        return None
    apart = {replica: _score([series]) for replica, series in inside.items()}
    whole = _score(list(inside.values()))
    return ServerScore(**{**vars(whole), "replicas": apart if len(apart) > 1 else {}})


def _score(replicas: list[Mapping[str, Series]]) -> ServerScore:
    def told(name: str) -> list[Series]:
        return [series[name] for series in replicas if name in series]

    def over(name: str, of_one: Callable[[Series], float]) -> float:
        each = [of_one(series) for series in told(name)]
        if not each:
            return math.nan
        return float(np.mean(each)) if MEASURES[name].kind == "share" else float(np.sum(each))

    def ratio(part: str, whole: str, reckoned: str) -> float:
        both = [series for series in replicas if part in series and whole in series]
        grown = sum(_growth(series[whole]) for series in both)
        return sum(_growth(series[part]) for series in both) / grown if grown else over(reckoned, _mean)

    return ServerScore(
        queue_mean=over("queue", _mean),
        queue_peak=_peak(told("queue")),
        running_mean=over("running", _mean),
        running_peak=_peak(told("running")),
        kv_use_mean=over("kv_use", _mean),
        kv_use_peak=max((float(values.max()) for _, values in told("kv_use")), default=math.nan),
        preemptions=over("preemptions", _growth),
        prefix_hit_rate=ratio("prefix_hits", "prefix_queries", "prefix_hit_rate"),
        draft_acceptance=ratio("accepted", "drafted", "draft_acceptance"),
        drafted_tokens_per_s=over("drafted", _rate),
        prompt_tokens_per_s=over("prompt_tokens", _rate),
        output_tokens_per_s=over("output_tokens", _rate),
        gpu_use=over("gpu_use", _mean),
        gpu_memory_use=over("gpu_memory_use", _mean),
        gpu_power_w=over("gpu_power_w", _mean),
    )


def _mean(series: Series) -> float:
    return float(series[1].mean())


def _growth(series: Series) -> float:
    """Sum of the differences; where a counter falls its server began anew, and it grew from zero."""
    steps = np.diff(series[1])
    return float(np.where(steps < 0, series[1][1:], steps).sum())


def _rate(series: Series) -> float:
    """Per second, between the first reading and the last: the window's edges lie somewhere between two readings."""
    times = series[0]
    return _growth(series) / (times[-1] - times[0]) * 1e9 if times[-1] > times[0] else math.nan


def _peak(replicas: list[Series]) -> float:
    return float(summed(replicas)[1].max()) if replicas else math.nan


def summed(replicas: list[Series]) -> Series:
    """Over replicas, each of which stays as it was until it is read again."""
    moments = np.unique(np.concatenate([times for times, _ in replicas]))
    total = np.zeros(len(moments))
    for times, values in replicas:
        total += np.concatenate([[0.0], values])[np.searchsorted(times, moments, side="right")]
    return moments, total


def by_replica(table: pa.Table) -> dict[str, dict[str, Series]]:
    """By replica and name, in order of time."""
    table = table.sort_by("time_ns")
    (replica, replicas), (name, names) = (_codes(table.column(each)) for each in ("replica", "name"))
    times, values = table.column("time_ns").to_numpy(), table.column("value").to_numpy()
    found: dict[str, dict[str, Series]] = {each: {} for each in replicas}
    both = replica.astype(np.int64) * len(names) + name
    for code in np.unique(both):
        rows = both == code
        found[replicas[code // len(names)]][names[code % len(names)]] = times[rows], values[rows]
    return found


def _codes(column: pa.ChunkedArray) -> tuple[Counts, list[str]]:
    known: dict[str, int] = {}
    return np.concatenate([words(chunk, known) for chunk in column.chunks]), list(known)


def _cut(replica: Mapping[str, Series], window_ns: tuple[int, int]) -> dict[str, Series]:
    """What was read in the window; of a counter also its last value before, which it grew from.

    A counter that a page does not have at first was zero: some servers show it when they first count something.
    """
    began = min(int(times[0]) for times, _ in replica.values())
    found: dict[str, Series] = {}
    for name, (times, values) in replica.items():
        counter = name in MEASURES and MEASURES[name].kind == "counter"
        if counter and times[0] > began:
            times, values = np.insert(times, 0, began), np.insert(values, 0, 0.0)
        first, last = np.searchsorted(times, window_ns)
        if first < last:
            first = max(first - counter, 0)
            found[name] = times[first:last], values[first:last]
    return found
