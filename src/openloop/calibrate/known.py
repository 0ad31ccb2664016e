"""Runs in, a calibration out; and what is known beforehand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openloop.calibrate.fit import Calibration, calibrate_traces
from openloop.calibrate.match import UNLIMITED, BatchLimits
from openloop.calibrate.trace import MeasuredTrace, held, read_traces
from openloop.errors import SpecError
from openloop.records import Run
from openloop.spec import suggest


def calibrate(
    runs: Sequence[str | Path | Run], known: str = "", tell: Callable[[str], None] = lambda _: None
) -> Calibration:
    """Fit a model to runs, or to folders of them. `known` are limits that need not be found, as `max_tokens=2048`."""
    limits, given = read_known(known)
    traces = read_traces(runs)
    _check_known(limits, traces)
    return calibrate_traces(traces, limits, given, tell)


def _check_known(limits: BatchLimits, traces: Sequence[MeasuredTrace]) -> None:
    """Whoever was put back for want of memory seems to hold some, and what is shared counts for each."""
    for trace in traces:
        peak = float(np.quantile(trace.crowd, 0.99)) / trace.replicas
        if limits.max_sequences is not None and limits.max_sequences < 0.75 * peak:
            raise SpecError(
                f"max_sequences={limits.max_sequences} cannot be: in {trace.name} {peak:.0f} answers came at once;"
                " give the limit of a replica, or leave it out to find it"
            )
        full = float(np.quantile(held(trace, trace.sent_s), 0.5)) / trace.replicas
        if limits.memory_tokens is not None and limits.memory_tokens < 0.5 * full and not np.any(trace.cached > 0):
            raise SpecError(
                f"memory_tokens={limits.memory_tokens} cannot be: in {trace.name} answers held about {full:,.0f} tokens"
                " at once, half of the time; give the limit of a replica, or leave it out to find it"
            )


def read_known(text: str) -> tuple[BatchLimits, frozenset[str]]:
    """`batching=chunked,max_tokens=2048` as limits, and which of them are given."""
    given: dict[str, Any] = {}
    names = list(BatchLimits.__dataclass_fields__)
    for each in filter(None, (part.strip() for part in text.split(","))):
        name, value = (side.strip() for side in (each.partition("=")[::2]))
        name = "batching" if name == "policy" else name  # as it was called before
        if name not in names:
            raise SpecError(f"{name!r} is no limit that can be known{suggest(name, names)}")
        if name != "batching" and not (value.isdecimal() and len(value) < 16 and 0 < int(value) <= UNLIMITED):
            raise SpecError(f"{each!r}: {name} is a number of tokens or sequences, as {name}=2048")
        if name == "batching" and value not in ("chunked", "prefill-first", "static"):
            raise SpecError(f"{each!r}: batching is chunked, prefill-first or static")
        given[name] = value if name == "batching" else int(value)
    return BatchLimits(**given), frozenset(given)
