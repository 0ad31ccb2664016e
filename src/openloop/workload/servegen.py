"""ServeGen's recordings of production: many clients, whose rates, bursts and lengths change by the hour.

A folder holds for each client `chunk-N-trace.csv` (windows of ten minutes: start, rate, variation of gaps, Gamma or
Weibull, its shape and scale) and `chunk-N-dataset.json` (windows of some hours: how often each length was seen).
"""

import ast
import csv
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openloop.arrays import Floats, Ints
from openloop.arrivals import MOST_ARRIVALS, GammaArrivals, Weibull
from openloop.errors import SpecError
from openloop.spec import read_text
from openloop.terms import RATE, SECONDS, TEXT, Term, param
from openloop.workload.demand import Demand, one_piece

LEAST_SHAPE, MOST_SHAPE = 0.1, 100.0


@dataclass(frozen=True)
class _Window:
    start_s: float
    end_s: float
    rate: float
    kind: str
    shape: float

    def arrivals(self, factor: float, rng: np.random.Generator) -> Floats:
        """In seconds from the start of the recording, at `factor` times the rate; as bursty as it was."""
        shape = min(max(self.shape, LEAST_SHAPE * 1.001), MOST_SHAPE)
        rate = self.rate * factor
        process = Weibull(rate, shape) if self.kind == "weibull" else GammaArrivals(rate, 1 / math.sqrt(shape))
        return self.start_s + process.times(self.end_s - self.start_s, rng)


@dataclass(frozen=True)
class ServeGen(Term):
    """The clients of a folder from `start` of their recording on; `rate` scales all of them alike, so that together
    they have this rate on average over the time that is asked for. A run ends with the recording."""

    name = "servegen"
    path: str = param(TEXT)
    start: float = param(SECONDS, 0.0)
    rate: float | None = param(RATE, None)
    timed = True

    def demand(self, starts_s: Floats | None, horizon_s: float, rng: np.random.Generator) -> Demand:
        if starts_s is not None:
            raise SpecError("servegen brings its own arrivals: leave --rate and --arrivals out, or scale it by rate=")
        end = self.start + horizon_s
        windows = {path: _windows(path, self.start, end) for path in _clients(Path(self.path))}
        expected = sum(each.rate * (each.end_s - each.start_s) for found in windows.values() for each in found)
        if not expected:
            raise SpecError(f"{self.path} has no requests from {self.start:g} s to {end:g} s; choose another start")
        factor = 1.0 if self.rate is None else self.rate * horizon_s / expected
        if expected * factor > MOST_ARRIVALS:
            raise SpecError(f"{expected * factor:,.0f} requests are too many for one run: at most {MOST_ARRIVALS:,}")
        parts = []
        for path in sorted(windows, key=_number):
            times = np.concatenate([np.empty(0), *(each.arrivals(factor, rng) for each in windows[path])])
            if len(times):
                parts.append((f"client-{_number(path)}", times, *_lengths(path, times, rng)))
        if not parts:
            raise SpecError(f"nothing is due in {horizon_s:g} s of {self}: raise the rate, or run longer")
        due = np.concatenate([times for _, times, _, _ in parts]) - self.start
        client = np.repeat(np.arange(len(parts)), [len(times) for _, times, _, _ in parts])
        prompts, outputs = (np.concatenate([part[place] for part in parts]) for place in (2, 3))
        return Demand(due, one_piece(prompts), outputs, tenant=client, tenants=[name for name, *_ in parts]).in_order()

    def lasts_s(self) -> float:
        """Until the last of its windows ends."""
        windows = [each for path in _clients(Path(self.path)) for each in _windows(path, self.start, math.inf)]
        return max((each.end_s for each in windows), default=math.inf) - self.start


def _number(path: Path) -> int:
    match = re.search(r"chunk-(\d+)-trace", path.name)
    return int(match[1]) if match else 0


def _clients(folder: Path) -> list[Path]:
    found = sorted(folder.glob("chunk-*-trace.csv"))
    if not found:
        raise SpecError(f"{folder} holds no clients of ServeGen: it has no chunk-0-trace.csv")
    return found


def _windows(path: Path, start_s: float, end_s: float) -> list[_Window]:
    """Those of a client that reach into the time asked for, cut to it."""
    try:
        rows = [row for row in csv.reader(read_text(path).splitlines()) if row]
        starts = [float(row[0]) for row in rows]
        step = min(np.diff(starts), default=600.0)
        if not step > 0:
            raise SpecError(f"{path} has windows that are not in order of time: sort its lines")
        found = [
            _Window(max(at, start_s), min(at + step, end_s), float(row[1]), row[3].strip().lower(), float(row[4]))
            for at, row in zip(starts, rows, strict=True)
            if at < end_s and at + step > start_s and float(row[1]) > 0
        ]
    except (ValueError, IndexError):
        raise SpecError(f"{path} is no client of ServeGen: a line is start,rate,cv,pattern,shape,scale") from None
    for each in found:
        if each.kind not in ("gamma", "weibull") or not math.isfinite(each.rate) or not each.shape > 0:
            raise SpecError(f"{path}: {each.kind!r} with shape {each.shape:g} is no pattern of ServeGen")
    return found


def _lengths(path: Path, times_s: Floats, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Of prompts and answers, drawn from what was seen at the time, or at the nearest time at which any was."""
    source = path.with_name(path.name.replace("-trace.csv", "-dataset.json"))
    try:
        raw = json.loads(read_text(source))
        seen = {
            float(at): tuple(_histogram(each[name]) for name in ("input_tokens", "output_tokens"))
            for at, each in raw.items()
        }
    except (ValueError, SyntaxError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise SpecError(f"{source} is no record of lengths: {error}") from None
    known = np.array(sorted(at for at, pair in seen.items() if all(len(values) for values, _ in pair)))
    if not len(known):
        raise SpecError(f"{source} has no lengths at all")
    window = known[np.maximum(np.searchsorted(known, times_s, side="right") - 1, 0)]
    found = np.zeros((2, len(times_s)), np.int64)
    for at in np.unique(window):
        mine = np.flatnonzero(window == at)
        for place, (values, weights) in enumerate(seen[float(at)]):
            found[place, mine] = rng.choice(values, len(mine), p=weights)
    return np.maximum(found[0], 1), np.maximum(found[1], 1)


def _histogram(text: str | dict[str, float]) -> tuple[Ints, Floats]:
    """Written as a Python dictionary: {143: 0.02, 149: 0.98}."""
    found = ast.literal_eval(text) if isinstance(text, str) else text
    values, weights = np.array([int(value) for value in found], np.int64), np.array([*map(float, found.values())])
    if not len(weights):
        return values, weights
    if not (np.all(weights >= 0) and 0 < weights.sum() < math.inf):
        raise ValueError(f"{weights.tolist()[:5]} do not tell how often each length was seen")
    return values, weights / weights.sum()
