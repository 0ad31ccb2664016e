"""The folder of a frontier, read and scored: points over offered load, and what they show together."""

import math
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np

from openloop.errors import RunError, SpecError
from openloop.frontier.knee import Knee, find_knee
from openloop.frontier.point import Point, PointRun, make_point, read_trial
from openloop.records import Prices, locate, open_run
from openloop.records.writer import TABLE_FILE
from openloop.slo import SLO, Objectives, read_slo
from openloop.spec import Strict, convert, plain, read_json

FRONTIER_FILE: Final = "frontier.json"
POINTS: Final = "points"
CLOSE_BY: Final = 0.03  # of a rate: what is measured there is taken for the same, to say which is the best
LONG_SHARE: Final = 0.49  # of the time of a point: warm-up is at most half of it, and a probe a tenth
LONG_ENOUGH: Final = 100.0  # times as long as an answer takes: from then on intervals of knees hold what they promise
LASTING: Final = 0.12  # of the longest run: probes are shorter, and runs that end early are longer

TargetShare = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class SweepAsked(Strict, frozen=True):
    """frontier.json: what was asked for, and how it went so far."""

    source: Literal["load", "sim"]
    slo: str | dict[str, Any]
    target: TargetShare
    rates: list[float] | None  # null: looked for
    seconds: float
    repeat: int
    precision: float  # of the knee, where rates are looked for: half of its interval over it
    scenario: dict[str, Any]
    fleet: dict[str, Any] | None = None
    seed: int = 0
    current: float | None = None  # rate at which the system is used today
    version: int = 1
    stopped: str | None = None  # why no more was measured; null: it goes on, or was cut off
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Frontier:
    """Points by offered rate, and what they show together."""

    path: str | None
    source: str
    slo: str
    points: tuple[Point, ...]
    knee: Knee
    peak: Point | None  # where goodput is highest, with what was measured close to it
    cheapest: Point | None  # where an accepted result costs least, in the same way
    half_rate: float | None  # the first rate measured from which on goodput is below half of throughput
    current: float | None
    headroom: float | None  # at the current rate, as a share of it
    headroom_interval: tuple[float, float] | None
    took_s: float  # all runs, with warm-up and drain
    spent: float
    stopped: str | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without the scores of single runs."""
        found = dict(vars(self))
        found["points"] = [{**vars(point), "runs": [score.run for score in point.scores]} for point in self.points]
        for point in found["points"]:
            del point["scores"]
        for place, name in (("peak", "goodput_rps"), ("cheapest", "cost_per_accepted")):
            point = found[place]
            found[place] = point and {"rate": point.rate, name: getattr(point, name)}
        result: dict[str, Any] = plain(found)
        return result


def open_frontier(
    path: str | Path,
    slo: "str | Path | Mapping[str, Any] | SLO | Objectives | None" = None,
    prices: Prices | None = None,
) -> Frontier:
    """The sweep in a folder, scored from its runs: against its own SLO and prices, or against others."""
    folder = locate(path)
    asked = read_asked(folder)
    objectives = read_slo(asked.slo if slo is None else slo)
    trials = {
        each: read_trial(open_run(where), objectives, asked.target, prices=prices) for each, where in trials_in(folder)
    }
    return make_frontier(asked, str(objectives), trials, str(folder))


def read_asked(folder: Path) -> SweepAsked:
    path = folder / FRONTIER_FILE
    if not folder.is_dir():
        raise RunError(f"{folder} {'is a file; give the folder it is in' if folder.exists() else 'does not exist'}")
    if not path.exists():
        raise RunError(f"{folder} is not a frontier: it has no {FRONTIER_FILE}; openloop sweep makes one")
    try:
        return convert(read_json(path), SweepAsked, str(path))
    except SpecError as error:
        raise RunError(str(error)) from None


def trials_in(folder: Path, known: Container[Path] = ()) -> Iterator[tuple[tuple[float, int], Path]]:
    """Rate and number of each run that was driven to its end or was ended on purpose, and its folder; of those that
    are `known` it is known that they were."""
    found = []
    for where in (folder / POINTS).iterdir() if (folder / POINTS).is_dir() else ():
        key = point_key(where)
        if key and (where in known or _is_over(where)):
            found.append((key, where))
    yield from sorted(found)


def _is_over(where: Path) -> bool:
    try:
        manifest = open_run(where).manifest
    except RunError as error:
        if (where / TABLE_FILE).exists():
            raise RunError(f"{error}; remove {where} to go on without that run") from None
        return False  # it is not there yet
    return manifest.finished and manifest.cut_short != "interrupt"


def point_key(where: Path) -> tuple[float, int] | None:
    """Rate and number of a run, by the name of its folder; None: something else, or put aside."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)-(\d+)", where.name)
    return None if found is None else (float(found[1]), int(found[2]))


def make_frontier(
    asked: SweepAsked, slo: str, trials: Mapping[tuple[float, int], PointRun], path: str | None = None
) -> Frontier:
    rates = sorted({rate for rate, _ in trials})
    points = [make_point(rate, [trials[key] for key in sorted(trials) if key[0] == rate]) for rate in rates]
    knee = find_knee(points, asked.target)
    named = tuple(replace(point, name=_name(point, knee)) for point in points)
    room = None if asked.current is None else knee.headroom(asked.current)
    steady = [point for point in named if not point.overloaded]
    steady = [point for point in steady if not is_probe(point, asked)] or steady
    priced = [point for point in steady if point.cost_per_accepted is not None]
    cheapest = _best(priced, trials, lambda points: -sum(each.cost or 0.0 for each in points) / _accepted(points))
    return Frontier(
        path=path,
        source=asked.source,
        slo=slo,
        points=named,
        knee=knee,
        peak=_best(steady or named, trials, lambda points: _accepted(points) / sum(each.seconds for each in points)),
        cheapest=cheapest if cheapest and math.isfinite(cheapest.cost_per_accepted or 0.0) else None,
        half_rate=_half_rate(named),
        current=asked.current,
        headroom=room and room[0],
        headroom_interval=room and room[1],
        took_s=sum(trial.took_s for trial in trials.values()),
        spent=sum(trial.spent for trial in trials.values()),
        stopped=asked.stopped,
        notes=(*asked.notes, *_notes(named), *short_points(named, knee, asked.seconds)),
    )


def requests_per_user(points: Sequence[Point]) -> float:
    """Over all points that keep up, for in overload users wait for answers before they ask again."""
    steady = [point for point in points if not point.overloaded and point.requests] or points
    users = sum(point.requests / point.requests_per_user for point in steady)
    return sum(point.requests for point in steady) / users if users else 1.0


def is_probe(point: Point, asked: SweepAsked) -> bool:
    """Whether it is too short to show that its backlog grows."""
    return point.seconds < LONG_SHARE * asked.seconds


def lasting(points: Sequence[Point]) -> list[Point]:
    """Those that show what a system completes at most: in a short run that is the first burst of one that fills."""
    longest = max(point.seconds / point.repeats for point in points)
    return [point for point in points if point.seconds / point.repeats >= LASTING * longest]


def _half_rate(points: Sequence[Point]) -> float | None:
    """No higher rate did better; what ended early may have, before its backlog was felt."""
    wasted = {point.rate: 2 * point.goodput_rps < point.completed_in_window_rps for point in points}
    worth = max((point.rate for point in points if point.goodput_rps and not wasted[point.rate]), default=0.0)
    return next((rate for rate in wasted if wasted[rate] and rate > worth), None)


def short_points(points: Sequence[Point], knee: Knee, seconds: float) -> Iterator[str]:
    """Said where points are too short to show what a long time at their rates would."""
    told = [point for point in points if point.usable and not point.overloaded and point.e2e_s]
    if knee.rate is None or not told:
        return
    near = min(told, key=lambda point: abs(point.rate - (knee.rate or 0.0)))
    answer_s = near.e2e_s.p50 if near.e2e_s else 0.0
    if seconds < LONG_ENOUGH * answer_s:
        yield (
            f"a point lasts {seconds / answer_s:.0f} times as long as an answer near the knee: knees of short points "
            f"come out too high, and intervals too narrow; --for {np.ceil(LONG_ENOUGH * answer_s / 60):.0f}m is enough"
        )


def _best(
    points: Sequence[Point], trials: Mapping[tuple[float, int], PointRun], worth: Callable[[Sequence[Point]], float]
) -> Point | None:
    """The point that is best together with those close to it, as one: of many short runs, the best by itself is the
    luckiest."""
    near = {point.rate: [each for each in points if abs(each.rate / point.rate - 1) <= CLOSE_BY] for point in points}
    if not near:
        return None
    rate = max(near, key=lambda rate: worth(near[rate]))
    rates = [each.rate for each in near[rate]]
    found = make_point(rate, [trials[key] for key in sorted(trials) if key[0] in rates])
    return replace(found, name=next(each.name for each in points if each.rate == rate))


def _accepted(points: Sequence[Point]) -> float:
    return sum(each.goodput_rps * each.seconds for each in points) or 1e-9


# Up to which share of the knee a point is called so.
NAMES = {"comfortable": 0.6, "moderate": 0.85, "busy": 1.0, "stressed": 1.25}


def _name(point: Point, knee: Knee) -> str | None:
    if knee.rate is None:
        return None
    return next((name for name, most in NAMES.items() if point.rate <= most * knee.rate), "overloaded")


def _notes(points: Sequence[Point]) -> Iterator[str]:
    bad = [point for point in points if not point.usable]
    if bad:
        rates = ", ".join(f"{point.rate:g}/s" for point in bad)
        yield f"not used for the knee: {rates}; {bad[0].why_unusable}"
    several = requests_per_user(points)
    if several > 1:
        yield (
            f"offered rates and the knee are users per second, of {several:.3g} requests each; throughput and goodput "
            "are requests per second"
        )
