"""Try fleets of a space on all cores, keep every result in a folder, and confirm the best on fresh seeds."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import yaml

from openloop.errors import OpenloopError, RunError, SpecError, StorageError
from openloop.frontier.point import Point, make_point, read_trial
from openloop.load.scenario import Scenario
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.slo import E2E, TPOT, TTFT, Objectives, read_slo
from openloop.spec import plain, read_json, suggest
from openloop.tune.search import first_places, next_places
from openloop.tune.space import Place, Space

ASKED, TRIALS, BEST_FLEET = "tune.json", "trials.jsonl", "best.yaml"
ROUND = 4  # tried at a time, whatever the number of cores: the same seed finds the same
FIRST_SHARE, LAST_SHARE = 0.35, 0.4  # of the trials: spread out before any is chosen; near the best
WARM_UP = 0.2  # of the time
CONFIRM, FRESH = 3, 2  # best ones, each simulated with so many fresh seeds
TARGET = 0.99
LEFT_ALONE = signal.SIGINT, signal.SIG_IGN  # Ctrl-C is for the one who waits


@dataclass(frozen=True)
class Trial:
    """A fleet of the space, simulated. Intervals are 95%."""

    place: Place
    chosen: dict[str, Any]
    fresh: bool  # on fresh seeds: it confirms
    goodput_rps: float
    goodput_interval: tuple[float, float]
    token_goodput: float
    attainment: float
    cost_per_hour: float | None
    tail_s: float | None  # p99
    tail_interval: tuple[float, float | None] | None
    refused: str | None = None  # why it could not be simulated


@dataclass(frozen=True)
class Tuning:
    """What was found. `best` was confirmed on fresh seeds; None: none accepts anything, or what is required, or it was
    cut off."""

    maximize: str
    slo: str
    tail: str
    rate: str
    seconds: float
    size: int
    trials: tuple[Trial, ...]
    simulations: int
    front: tuple[Trial, ...]
    best: Trial | None
    best_value: float | None
    best_interval: tuple[float, float] | None
    confirmed: tuple[Trial, ...]
    stopped: str
    fleet: dict[str, Any] | None
    kind: Literal["tuning"] = "tuning"

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(self)
        return found


def _per_dollar(value: float, trial: Trial) -> float:
    return value * 3600 / trial.cost_per_hour if trial.cost_per_hour else 0.0


MAXIMIZED: dict[str, Callable[[Trial], float]] = {
    "goodput_per_dollar": lambda trial: _per_dollar(trial.goodput_rps, trial),
    "token_goodput_per_dollar": lambda trial: _per_dollar(trial.token_goodput, trial),
    "goodput": lambda trial: trial.goodput_rps,
}


Watch = Callable[[int, int, Trial], None]


def tune(
    space: Space,
    scenario: Scenario,
    maximize: str = "goodput_per_dollar",
    *,
    trials: int | None = None,
    attain: float = 0.0,
    out: str | Path | None = None,
    processes: int | None = None,
    watch: Watch | None = None,
) -> Tuning:
    """Search `space` at the load of `scenario`, the same requests for every fleet. What is in `out` is not repeated."""
    objectives = scenario.objectives()
    if objectives is None:
        raise SpecError("there is no goodput without an SLO: give one, for example --slo 'ttft<=1s, tpot<=40ms'")
    if maximize not in MAXIMIZED:
        raise SpecError(f"cannot maximize {maximize!r}{suggest(maximize, MAXIMIZED)}")
    priced = _priced(space)
    if maximize.endswith("per_dollar") and not priced:
        raise SpecError(f"{maximize} needs a price: write price_per_hour: 3 into the fleet, or maximize goodput")
    dearer = [name for name, values in space.values.items() if _changes_hardware(name, values)]
    if dearer and priced:
        fix = "search groups, each with its price_per_hour, or leave the price out and maximize goodput"
        raise SpecError(f"{dearer[0]} changes what a replica costs, and price_per_hour would stay the same: {fix}")
    scenario.read_workload().demand(scenario.read_arrivals(), scenario.horizon_s, scenario.seed)  # no fleet's fault
    tenth = space.size // 10 - CONFIRM * FRESH  # of the space, less what confirms
    budget = min(trials or int(np.clip(tenth, 20, 200)), space.size)
    asked = {"base": space.base, "values": space.values, "scenario": scenario, "maximize": maximize, "attain": attain}
    store = _Store(None if out is None else Path(out), {**asked, "seed": scenario.seed})
    with _pool(processes or len(os.sched_getaffinity(0))) as simulate:
        return _Search(space, scenario, objectives, maximize, attain, budget, store, watch, simulate).run()


def _changes_hardware(name: str, values: Sequence[Any]) -> bool:
    """Whether what a replica costs would change, and nobody says to what."""
    if name != "groups":
        return name.split(".")[-1] in ("gpu", "tp")
    groups = [group for several in values for group in several or ()]
    return any({"gpu", "tp"} & group.keys() and group.get("price_per_hour") is None for group in groups)


def _priced(space: Space) -> bool:
    """Whether there is a price in the fleet, or in all groups that are searched."""
    base, groups = space.base, space.values.get("groups", ())
    if any(each.get("price_per_hour") for each in (base, *(base.get("groups") or ()))):
        return True
    return bool(groups) and all(several and all(each.get("price_per_hour") for each in several) for several in groups)


Call = tuple[dict[str, Any], Scenario, Sequence[int]]
Simulate = Callable[[list[Call]], Iterator[tuple[int, Any]]]


@dataclass(frozen=True)
class _Search:
    space: Space
    scenario: Scenario
    objectives: Objectives
    maximize: str
    attain: float
    budget: int
    store: "_Store"
    watch: Watch | None
    simulate: Simulate

    def value(self, trial: Trial) -> float:
        return MAXIMIZED[self.maximize](trial)

    def run(self) -> Tuning:
        stopped = "done"
        searched: list[Trial] = []
        fresh: list[Trial] = []
        try:
            for places in self._rounds(searched):
                searched += self._try(places, False, len(searched))
            best = sorted((each for each in searched if self._meets(each)), key=self._better, reverse=True)[:CONFIRM]
            fresh += self._try([each.place for each in best], True, len(searched))
        except KeyboardInterrupt:
            stopped = "interrupted: the same command goes on from here"
            searched = [each for each in self.store.found.values() if not each.fresh]
            fresh = []
        return self._told(searched, fresh, stopped)

    def _rounds(self, searched: list[Trial]) -> Iterator[list[Place]]:
        """Spread out first, then where it is promising; by what was found, which grows meanwhile."""
        shape, seed = self.space.shape, self.scenario.seed
        first = first_places(shape, max(int(FIRST_SHARE * self.budget), min(2 * len(shape), self.budget)), seed)
        yield from (first[i : i + ROUND] for i in range(0, len(first), ROUND))
        while len(searched) < self.budget:
            seen = {each.place: (self._score(each), self._better(each)[1]) for each in searched}
            left = self.budget - len(searched)
            around = max(seen, key=seen.__getitem__) if left <= LAST_SHARE * self.budget else None
            places = next_places(shape, self.space.ordered, seen, min(ROUND, left), seed, around)
            if not places:
                return
            yield places

    def _score(self, trial: Trial) -> float:
        """What is searched by: those that accept too few come last, the better the more they accept."""
        return self.value(trial) if self._meets(trial) else trial.attainment - 2.0

    def _better(self, trial: Trial) -> tuple[float, float]:
        """Of equals, the one with the shorter tail."""
        return self.value(trial), -np.inf if trial.tail_s is None else -trial.tail_s

    def _meets(self, trial: Trial) -> bool:
        return trial.refused is None and trial.attainment >= self.attain

    def _try(self, places: Sequence[Place], fresh: bool, done: int) -> list[Trial]:
        """In the order of the places, from the folder or simulated."""
        seed = self.scenario.seed
        seeds = [seed + 1 + n for n in range(FRESH)] if fresh else [seed]
        todo = [place for place in places if (place, fresh) not in self.store.found]
        calls: list[Call] = [(self.space.fleet(place), self.scenario, seeds) for place in todo]
        before = done + len(places) - len(todo)
        for count, (number, result) in enumerate(self.simulate(calls), start=1):
            place = todo[number]
            trial = trial_of(place, self.space.chosen(place), fresh, result, _tail_of(self.objectives))
            self.store.keep(trial)
            if self.watch:
                self.watch(min(before + count, self.budget), self.budget, trial)
        return [self.store.found[place, fresh] for place in places]

    def _told(self, searched: list[Trial], fresh: list[Trial], stopped: str) -> Tuning:
        good = [each for each in fresh if self._meets(each) and each.goodput_rps > 0]
        best = max(good, key=self._better, default=None)
        value = None if best is None else self.value(best)
        interval = None
        if best is not None and value is not None and best.goodput_rps > 0:
            low, high = best.goodput_interval
            interval = (value * low / best.goodput_rps, value * high / best.goodput_rps)
        fleet = None if best is None else self.space.fleet(best.place)
        self.store.name(fleet)
        runs = len(searched) + FRESH * len(fresh)
        return Tuning(
            maximize=self.maximize,
            slo=str(self.objectives),
            tail=_tail_of(self.objectives),
            rate=str(self.scenario.arrivals),
            seconds=self.scenario.horizon_s,
            size=self.space.size,
            trials=tuple(searched),
            simulations=runs,
            front=tuple(_front([each for each in searched if self._meets(each)])),
            best=best,
            best_value=value,
            best_interval=interval,
            confirmed=tuple(fresh),
            stopped=stopped,
            fleet=fleet,
        )


def _tail_of(objectives: Objectives) -> str:
    """The latency that the SLO asks for first."""
    kinds = {TTFT: "ttft_s", E2E: "e2e_s", TPOT: "tpot_s"}
    gates = [gate for slo in objectives.slos for gate in slo.gates]
    found = (name for kind, name in kinds.items() if any(isinstance(gate, kind) for gate in gates))
    return next(found, "e2e_s")


def trial_of(place: Place, chosen: dict[str, Any], fresh: bool, result: Any, tail: str) -> Trial:
    if isinstance(result, str):
        return Trial(place, chosen, fresh, 0.0, (0.0, 0.0), 0.0, 0.0, None, None, None, refused=result)
    point, hourly = result
    ladder = getattr(point, tail)
    span = ladder.intervals["p99"] if ladder else None
    return Trial(
        place=place,
        chosen=chosen,
        fresh=fresh,
        goodput_rps=point.goodput_rps,
        goodput_interval=point.goodput_rps_interval,
        token_goodput=point.output_token_goodput,
        attainment=point.attainment,
        cost_per_hour=hourly,
        tail_s=ladder.p99 if ladder else None,
        tail_interval=None if span is None else (span[0], span[1] if np.isfinite(span[1]) else None),
    )


def _front(trials: Sequence[Trial]) -> Iterator[Trial]:
    """Those that no other beats in goodput, cost and tail at once, the cheapest first."""
    rows = np.array(
        [(-t.goodput_rps, t.cost_per_hour or 0.0, np.inf if t.tail_s is None else t.tail_s) for t in trials]
    )
    kept = [
        trial
        for trial, row in zip(trials, rows, strict=True)
        if not np.any(np.all(rows <= row, axis=1) & np.any(rows < row, axis=1))
    ]
    yield from sorted(kept, key=lambda t: (t.cost_per_hour or 0.0, -t.goodput_rps))


def simulate_one(call: Call) -> tuple[Point, float | None] | str:
    """A fleet under the same requests as all others; a sentence where it cannot be."""
    raw, scenario, seeds = call
    objectives = read_slo(scenario.whole_slo())
    how = scenario.read_workload(), scenario.read_arrivals(), scenario.horizon_s
    try:
        fleet = read_fleet(raw)
        runs = [simulate_fleet(fleet, *how, seed, objectives) for seed in seeds]
    except OpenloopError as error:
        return str(error)
    prices = [run.manifest.prices for run in runs]
    hourly = float(np.mean([each.hourly for each in prices if each])) if all(prices) else None
    warm_up_s = WARM_UP * scenario.horizon_s  # the same for all: other seconds would be other requests
    return make_point(1.0, [read_trial(run, objectives, TARGET, warm_up_s) for run in runs]), hourly


@contextmanager
def _pool(processes: int) -> Iterator[Simulate]:
    """Simulations side by side; as each is done, its number and what came of it."""
    if processes == 1:
        yield lambda calls: ((number, simulate_one(call)) for number, call in enumerate(calls))
        return
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=signal.signal, initargs=LEFT_ALONE)

    def simulate(calls: list[Call]) -> Iterator[tuple[int, Any]]:
        waiting = {pool.submit(simulate_one, call): number for number, call in enumerate(calls)}
        for done in as_completed(waiting):
            yield waiting[done], done.result()

    try:
        yield simulate
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Store:
    """Every trial, a line each, as it ends."""

    def __init__(self, folder: Path | None, asked: dict[str, Any]) -> None:
        """The same question goes on, another needs a folder of its own."""
        self.folder = folder
        self.found: dict[tuple[Place, bool], Trial] = {}
        if folder is None:
            return
        try:
            if (folder / ASKED).exists():
                self._read(folder, asked)
            elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise RunError(f"{folder} is there already and is no tuning: choose another folder")
            else:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / ASKED).write_bytes(msgspec.json.format(msgspec.json.encode(asked), indent=2) + b"\n")
        except OSError as error:
            raise StorageError(f"{folder} cannot be written: {error.strerror}") from None

    def _read(self, folder: Path, asked: dict[str, Any]) -> None:
        raw = read_json(folder / ASKED)
        before = raw if isinstance(raw, dict) else {}
        for name, value in msgspec.json.decode(msgspec.json.encode(asked)).items():
            if before.get(name) != value:
                raise RunError(f"{folder} holds a tuning with another {name}: choose another folder")
        kept = (folder / TRIALS).read_bytes() if (folder / TRIALS).exists() else b""
        for line in kept.splitlines():
            try:
                trial = msgspec.json.decode(line, type=Trial)
            except msgspec.MsgspecError:
                continue  # cut off in the middle
            self.found[trial.place, trial.fresh] = trial
        if kept and not kept.endswith(b"\n"):
            with (folder / TRIALS).open("ab") as file:
                file.write(b"\n")

    def keep(self, trial: Trial) -> None:
        self.found[trial.place, trial.fresh] = trial
        if self.folder is not None:
            with (self.folder / TRIALS).open("ab") as file:
                file.write(msgspec.json.encode(plain(trial)) + b"\n")

    def name(self, fleet: dict[str, Any] | None) -> None:
        if self.folder is not None and fleet is not None:
            text = yaml.safe_dump(fleet, sort_keys=False)
            (self.folder / BEST_FLEET).write_text(text, encoding="utf-8")
