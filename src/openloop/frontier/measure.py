"""Measure one offered rate after another into a folder, live or simulated, until the knee is known; and do so for each
state that caches are brought into, in folders beside each other."""

import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, fields, replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import msgspec
import numpy as np

from openloop.arrivals import Arrivals, Poisson
from openloop.cluster import connected, spread_over
from openloop.errors import RunError, SpecError
from openloop.frontier.folder import (
    FRONTIER_FILE,
    POINTS,
    Frontier,
    SweepAsked,
    make_frontier,
    point_key,
    read_asked,
    trials_in,
)
from openloop.frontier.knee import START_RPS, next_run
from openloop.frontier.point import PointRun, read_trial
from openloop.frontier.steady import LEAST_DUE, BacklogWatch, ended_early, flow_of, growth
from openloop.load.address import shown
from openloop.load.conductor import Snapshot
from openloop.load.scenario import SIMULATED_FOR, Limits, Scenario, read_scenario, run_scenario, wait_until_free
from openloop.records import Run, open_run
from openloop.records.tables import write_json
from openloop.sim.fleet import FleetSpec, read_fleet, simulate_fleet
from openloop.sim.warmth import simulate_warm
from openloop.slo import Objectives, read_slo
from openloop.spec import Strict, convert, read_json, read_yaml
from openloop.units import format_money, format_seconds, write_seconds
from openloop.workload.corpus import Corpus
from openloop.workload.warmth import Disrupted

STATES_FILE = "states.json"
INTERRUPTED = "interrupted: the same command goes on from here"
DONE = "done"
DRAFT = ".draft"  # a simulated run that is being written
HORIZONS = (0.25, 0.5, 1.0)  # of a simulated run: it ends with the first that shows a growing backlog
FREE_SHARE = 2.0  # times the drain: as long as the next point waits for the one before

Key = tuple[float, int]  # rate, and which run of it


class View(Protocol):
    """Somebody who watches a sweep."""

    def begin(self, found: Frontier, rate: float, seconds: float, why: str) -> None: ...
    def __call__(self, snapshot: Snapshot) -> None: ...


@dataclass(frozen=True)
class _Todo:
    key: Key
    seconds: float
    why: str


def sweep(
    out: str | Path,
    scenario: Scenario | Mapping[str, Any],
    fleet: FleetSpec | str | Path | dict[str, Any] | None = None,
    *,
    rates: Sequence[float] | None = None,
    repeat: int = 1,
    target: float = 0.99,
    precision: float = 0.05,
    start: float = START_RPS,
    current: float | None = None,
    budget_s: float | None = None,
    view: View | None = None,
    command: list[str] | None = None,
    processes: int | None = None,
    ray: str | None = None,
) -> Frontier:
    """Offer rates to a live server, or to a simulated fleet, and find the knee; a sweep that was cut off goes on.

    `scenario` is what `openloop run` takes, as an object or by its flags (`{"target.url": ..., "slo": ...}`); simulated
    points last 10 minutes where these do not say. Without `rates` they are looked for, from `start` up, until half the
    knee's interval is within `precision` of it. `ray` is the address of a cluster: simulated points are spread over it,
    and live ones driven by all of its machines.
    """
    if not isinstance(scenario, Scenario):
        usual = {"arrivals": "poisson:rate=1"} | ({} if fleet is None else {"for": SIMULATED_FOR})
        scenario = read_scenario(None, usual | {**scenario}, live=fleet is None)
    if fleet is not None and not isinstance(fleet, FleetSpec):
        fleet = read_fleet(fleet)
    asked = SweepAsked(
        source="load" if fleet is None else "sim",
        slo=_written(scenario.whole_slo()),
        target=target,
        rates=None if rates is None else sorted({float(_named(rate)) for rate in rates}),
        seconds=scenario.horizon_s,
        repeat=repeat,
        precision=precision,
        scenario=_without_secrets(scenario),
        fleet=None if fleet is None else msgspec.to_builtins(fleet),
        seed=scenario.seed,
        current=current,
        notes=_notes(scenario),
    )
    _check(asked, scenario, fleet, start)
    if ray is not None and fleet is not None and rates is None:
        raise SpecError("a search makes one run after another, which a cluster does not speed up: give --rates")
    folder = Path(out)
    _prepare(folder, asked)
    objectives, cores = read_slo(asked.slo), processes or len(os.sched_getaffinity(0))
    return _Sweep(folder, asked, objectives, scenario, fleet, start, budget_s, view, command, cores, ray).run()


def _named(rate: float) -> str:
    """In names of folders."""
    return f"{rate:.12g}"


def _check(asked: SweepAsked, scenario: Scenario, fleet: FleetSpec | None, start: float) -> None:
    if asked.slo is None:
        raise SpecError("there is no knee without an SLO: give one, for example --slo 'ttft<=500ms, tpot<=40ms'")
    if scenario.closed is not None:
        raise SpecError("a sweep offers rates, and a closed loop has none: leave closed out")
    if asked.rates is not None and not (asked.rates and all(0 < rate < np.inf for rate in asked.rates)):
        raise SpecError(f"rates are {asked.rates}; they are requests per second, such as 5, 10, 20")
    if not (isinstance(asked.repeat, int) and asked.repeat >= 1):
        raise SpecError(f"repeat is {asked.repeat}; every rate is measured at least once")
    if not 0 < asked.target < 1:
        raise SpecError(f"the target is {asked.target:g}; it is a share of requests below 100%, such as 99%")
    if not 0.001 <= asked.precision <= 1:
        raise SpecError(
            f"the precision is {asked.precision:g}; it is a share of the knee from 0.1% to 100%, such as 5%"
        )
    for name, value in (("start", start), ("current", asked.current)):
        if value is not None and not 0 < value < np.inf:
            raise SpecError(f"{name} is {value:g}; it is a rate above 0")
    if fleet is not None and scenario.target.url:
        raise SpecError("a sweep is of a live target or of a simulated fleet: leave one of them out")
    if fleet is not None:
        _check_simulated(scenario)
    _at(scenario, 1.0)


def _check_simulated(scenario: Scenario) -> None:
    """Who asks a modelled fleet, and how good its answers are, is in the fleet's own file."""
    usual = Scenario()
    for name in ("retry", "hedge", "timeout", "repair"):
        if getattr(scenario, name) != getattr(usual, name):
            value = getattr(scenario, name)
            raise SpecError(
                f"{name} is of a live run: give it to the fleet instead, as client: {{{name}: {str(value)!r}}}"
            )
    if scenario.limits.requests is not None or scenario.connections is not None:
        what = "max-requests" if scenario.connections is None else "connections"
        raise SpecError(
            f"{what} is of a live run, and limits no simulated one: leave it out; --for says how long one is"
        )
    if scenario.events:
        raise SpecError(
            "events is of a live run: say in the fleet's file what happens to it, as events: [crash:at=30s]"
        )
    if scenario.gates is not None:
        raise SpecError(
            "answers of a simulated fleet have no words to grade: say in its file how many fail, as quality:fail=2%"
        )


def _at(scenario: Scenario, rate: float) -> Arrivals:
    """Users as the scenario has them come, at another rate."""
    arrivals = scenario.read_arrivals() or Poisson(rate)
    if "rate" not in (field.name for field in fields(arrivals)):  # type: ignore[arg-type]
        raise SpecError(
            f"a sweep sets the rate, and {arrivals} has none to set: use constant, poisson, gamma or weibull"
        )
    found: Arrivals = replace(arrivals, rate=rate)  # type: ignore[type-var]
    return found


def _timed(scenario: Scenario, fleet: FleetSpec | None) -> bool:
    """Whether something happens at a given time: a run that ends before that, or soon after, does not tell."""
    warming = scenario.read_warming()
    return bool(fleet and fleet.events) or (isinstance(warming, Disrupted) and warming.at is not None)


def _written(slo: Any) -> Any:
    """What can be read again wherever the folder goes."""
    if isinstance(slo, str) and slo.endswith((".yaml", ".yml")):
        read_slo(slo)
        return read_yaml(Path(slo))
    return slo


def _without_secrets(scenario: Scenario) -> dict[str, Any]:
    """As it can be written down and compared: budgets may change."""
    target = msgspec.structs.replace(
        scenario.target,
        url=[shown(url) for url in scenario.urls],
        headers=dict.fromkeys(scenario.target.headers, "..."),
    )
    found: dict[str, Any] = msgspec.to_builtins(
        msgspec.structs.replace(scenario, target=target, limits=Limits(), restart=scenario.restart and "...")
    )
    return found


def _notes(scenario: Scenario) -> tuple[str, ...]:
    if not any(isinstance(each.source, Corpus) for each in scenario.read_workload().classes):
        return ()
    return ("texts of a corpus are the same at every point: a prefix cache may know them from the points before",)


def _prepare(folder: Path, asked: SweepAsked) -> None:
    """Make the folder, or see that the sweep in it is this one."""
    if (folder / FRONTIER_FILE).exists() and any((folder / POINTS).glob("*")):
        before = read_asked(folder)
        for name in ("source", "slo", "rates", "seconds", "repeat", "seed", "fleet", "scenario"):
            if msgspec.json.encode(getattr(before, name)) != msgspec.json.encode(getattr(asked, name)):
                what = f"{folder} holds a sweep with another {name}"
                raise RunError(f"{what}: choose another folder, or repeat the command that made it to go on with it")
    elif folder.is_file() or (
        folder.is_dir() and any(each.name not in (FRONTIER_FILE, POINTS) for each in folder.iterdir())
    ):
        raise RunError(f"{folder} is there already and is no sweep: choose another folder")
    write_json(folder / FRONTIER_FILE, asked)


@dataclass
class _Sweep:
    folder: Path
    asked: SweepAsked
    objectives: Objectives
    scenario: Scenario
    fleet: FleetSpec | None
    start: float
    budget_s: float | None
    view: View | None
    command: list[str] | None
    processes: int
    ray: str | None
    trials: dict[Key, PointRun] = field(default_factory=dict)
    asked_before: bool = False

    def run(self) -> Frontier:
        stopped = None
        try:
            self._read()
            self._put_aside()
            while stopped is None:
                stopped = self._go_on()
        except KeyboardInterrupt:
            stopped = INTERRUPTED
            self._read()  # what was simulated beside the run that was waited for
        write_json(self.folder / FRONTIER_FILE, msgspec.structs.replace(self.asked, stopped=stopped))
        return replace(self._found(), stopped=stopped)

    def _found(self) -> Frontier:
        return make_frontier(self.asked, str(self.objectives), self.trials, str(self.folder))

    def _read(self) -> None:
        for key, where in trials_in(self.folder):
            if key not in self.trials:
                self.trials[key] = read_trial(open_run(where), self.objectives, self.asked.target)

    def _put_aside(self) -> None:
        """Runs that were cut off are made again; what there is of them stays beside, but for drafts of simulations."""
        for where in sorted((self.folder / POINTS).glob("*")):
            if DRAFT in where.name:
                shutil.rmtree(where, ignore_errors=True)
                continue
            key = point_key(where)
            if key is not None and key not in self.trials:
                copy = 1
                while (aside := where.with_name(f"{where.name}.cut{copy}")).exists():
                    copy += 1
                where.rename(aside)

    def _go_on(self) -> str | None:
        """Make the next run, or say why there is none."""
        found = self._found()
        todo, why = self._todo(found)
        if not todo:
            return why
        used, spent = found.took_s, found.spent
        if self.budget_s is not None:
            fits = int(np.searchsorted(np.cumsum([each.seconds for each in todo]), self.budget_s - used, side="right"))
            if not fits:
                return f"the time budget is used: {format_seconds(used)} of {format_seconds(self.budget_s)}"
            todo = todo[:fits]
        limit = self.scenario.limits.spend
        if limit is not None:
            if spent >= limit:
                return _spent(spent, limit)
            todo = todo[:1]  # the budget may end with it
        for each, run in self._measure(todo, None if limit is None else limit - spent):
            if run.manifest.cut_short == "interrupt":
                return INTERRUPTED
            self.trials[each.key] = read_trial(run, self.objectives, self.asked.target)
            if limit is not None and run.manifest.cut_short == "spend":
                return _spent(spent + self.trials[each.key].spent, limit)
        return None

    def _todo(self, found: Frontier) -> tuple[list[_Todo], str]:
        asked = self.asked
        if asked.rates is not None:
            keys = [(rate, number) for number in range(1, asked.repeat + 1) for rate in asked.rates]
            return [_Todo(key, asked.seconds, "as asked") for key in keys if key not in self.trials], DONE
        step = next_run(found.points, found.knee, asked.seconds, asked.precision, asked.repeat, self.start)
        if step.rate is None:
            return [], step.why
        number = 1 + max((number for rate, number in self.trials if rate == step.rate), default=0)
        seconds = asked.seconds if _timed(self.scenario, self.fleet) else step.seconds
        return [_Todo((step.rate, number), seconds, step.why)], ""

    def _measure(self, todo: Sequence[_Todo], most_spend: float | None) -> Iterator[tuple[_Todo, Run]]:
        """Simulated runs side by side; live ones one at a time, and only the first, for budgets may end with it."""
        if self.fleet is None:
            yield todo[0], self._live(todo[0], most_spend)
            return
        how = self.fleet, self.scenario, self.asked.slo, self.command
        calls = [(self._where(each), each.key[0], each.seconds, self._seed(each.key), *how) for each in todo]
        if self.ray is not None:
            yield from self._elsewhere(self.ray, todo, calls)
            return
        if len(todo) == 1 or self.processes == 1:
            for each, call in zip(todo, calls, strict=True):
                self._tell(each)
                _simulate(*call)
                yield each, open_run(self._where(each))
            return
        with ProcessPoolExecutor(min(self.processes, len(todo)), get_context("spawn")) as pool:
            waiting = {pool.submit(_simulate, *call): each for each, call in zip(todo, calls, strict=True)}
            try:
                for done in as_completed(waiting):
                    done.result()
                    yield waiting[done], open_run(self._where(waiting[done]))
                    self._tell(waiting[done])
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _elsewhere(
        self, address: str, todo: Sequence[_Todo], calls: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[_Todo, Run]]:
        """Simulated on a cluster; the files of each run come back from wherever that was."""
        with connected(address) as cluster:
            for place, files in spread_over(cluster, _simulate_there, calls):
                where = self._where(todo[place])
                draft = where.with_name(f"{where.name}{DRAFT}")
                draft.mkdir(parents=True)
                for name, content in files.items():
                    (draft / name).write_bytes(content)
                draft.rename(where)
                yield todo[place], open_run(where)
                self._tell(todo[place])

    def _live(self, each: _Todo, most_spend: float | None) -> Run:
        rate = each.key[0]
        if self.asked_before:
            wait_until_free(self.scenario, FREE_SHARE * self.scenario.drain_s)
        self.asked_before = True
        self._tell(each)
        given = msgspec.structs.replace(
            self.scenario,
            arrivals=str(_at(self.scenario, rate)),
            seconds=write_seconds(each.seconds),
            seed=self._seed(each.key),
            slo=self.asked.slo,
            limits=msgspec.structs.replace(self.scenario.limits, spend=most_spend),
        )
        return run_scenario(given, self._where(each), BacklogWatch(each.seconds, self.view), self.command, self.ray)

    def _tell(self, each: _Todo) -> None:
        if self.view is not None:
            self.view.begin(self._found(), each.key[0], each.seconds, each.why)

    def _where(self, each: _Todo) -> Path:
        return self.folder / POINTS / f"{_named(each.key[0])}-{each.key[1]}"

    def _seed(self, key: Key) -> int:
        """Prompts and arrivals of their own for every run, whatever was run before."""
        return zlib.crc32(f"{self.asked.seed} {_named(key[0])} {key[1]}".encode())


def _spent(spent: float, limit: float) -> str:
    return f"the cost budget is used: {format_money(spent)} of {format_money(limit)}"


def _simulate_there(where: Path, *how: Any) -> dict[str, bytes]:
    """On another machine, which may share no disk with this one."""
    with TemporaryDirectory(prefix="openloop-") as scratch:
        there = Path(scratch) / where.name
        _simulate(there, *how)
        return {each.name: each.read_bytes() for each in there.iterdir()}


def _simulate(
    where: Path,
    rate: float,
    seconds: float,
    seed: int,
    fleet: FleetSpec,
    scenario: Scenario,
    slo: Any,
    command: list[str] | None,
) -> None:
    """One run into its folder, all at once; it ends early where a shorter one shows that the backlog grows."""
    facts = {"slo": slo, "command": command} | ({} if scenario.prices is None else {"prices": scenario.prices})
    objectives, warming = read_slo(slo), scenario.read_warming()
    for share in HORIZONS:
        if share < 1 and (rate * share * seconds < LEAST_DUE or _timed(scenario, fleet)):
            continue  # too few to tell, maybe none
        how = scenario.read_workload(), _at(scenario, rate), share * seconds, seed, objectives
        run = simulate_warm(fleet, warming, *how, **facts) if warming else simulate_fleet(fleet, *how, **facts)
        grown = growth(flow_of(run), share * seconds) if share < 1 else 0.0
        if grown:
            notes = (*run.manifest.notes, ended_early(share * seconds, seconds, grown))
            run = replace(run, manifest=msgspec.structs.replace(run.manifest, cut_short="overload", notes=notes))
            break
    draft = where.with_name(f"{where.name}{DRAFT}{os.getpid()}")
    run.save(draft)
    draft.rename(where)


class _States(Strict, frozen=True):
    """states.json: which sweeps belong together, by their folders."""

    warmth: dict[str, str]


@dataclass(frozen=True)
class State:
    warmth: str
    path: Path
    frontier: Frontier


def sweep_states(
    out: str | Path, scenario: Scenario, fleet: Any, states: Sequence[str], *, budget_s: float | None = None, **how: Any
) -> list[State]:
    """As `sweep`, state after state; a budget is shared evenly. One that is interrupted is the last."""
    folder, names = Path(out), {re.sub(r"[^\w.]+", "-", state): state for state in states}
    if len(names) < len(states) or len(states) < 2:
        raise SpecError(f"the states are {', '.join(states)}: give two or more, each once")
    if (folder / FRONTIER_FILE).exists():
        raise RunError(f"{folder} holds the sweep of one state: choose another folder")
    asked = {"warmth": names}
    if (folder / STATES_FILE).exists() and read_json(folder / STATES_FILE) != asked:
        raise RunError(f"{folder} holds sweeps of other states: choose another folder, or repeat the same command")
    write_json(folder / STATES_FILE, asked)
    share = scenario.limits.spend and scenario.limits.spend / len(states)
    limits: Limits = msgspec.structs.replace(scenario.limits, spend=share)
    found: list[State] = []
    for name, state in names.items():
        one = msgspec.structs.replace(scenario, warmth=state, limits=limits)
        time_s = None if budget_s is None else budget_s / len(states)
        found.append(State(state, folder / name, sweep(folder / name, one, fleet, budget_s=time_s, **how)))
        if found[-1].frontier.stopped == INTERRUPTED:
            break
    return found


def states_in(folder: Path) -> dict[str, Path]:
    """The folders of sweeps that belong together, by state."""
    told = convert(read_json(folder / STATES_FILE), _States, str(folder / STATES_FILE))
    names = {state: name for name, state in told.warmth.items() if re.fullmatch(r"\w[\w.-]*", name)}
    return {state: folder / name for state, name in names.items() if (folder / name / FRONTIER_FILE).exists()}
