"""What is in a folder, opened once and kept, so that another SLO is answered at once."""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

import pyarrow as pa

from openloop.errors import OpenloopError, RunError, SpecError
from openloop.frontier.folder import FRONTIER_FILE, POINTS, make_frontier, read_asked, trials_in
from openloop.frontier.point import PointRun, judge_again, judge_trial
from openloop.records import PARTS, Manifest, Run, open_run, read_now
from openloop.records.manifest import MANIFEST_FILE, read_manifest
from openloop.records.run import MemorySource
from openloop.records.tail import Tail
from openloop.records.writer import SPOOL_FILE, TABLE_FILE
from openloop.report.compare_page import Subject, comparison_report
from openloop.report.curve import (
    FrontierSubject,
    frontier_data,
    frontier_headline,
    frontier_report,
    frontier_subject,
)
from openloop.report.marks import Unit
from openloop.report.page import Report, show
from openloop.report.run import RunSubject, command_of, read_run_subject, run_headline, run_report
from openloop.score.judged import JudgedRun, judge_run
from openloop.slo import Objectives, parse_objectives, read_slo
from openloop.view.live import live_report

DEEPEST = 6
MOST_ENTRIES = 2000
KEPT_BYTES = 2_000_000_000  # of runs in memory
JUDGED_BYTES = 800  # of a row, where what is known of it is kept as well
KEPT_SUBJECTS = 6
PARTS_READ = (PARTS, f"{PARTS}/*", f"{PARTS}/*/*")
READ = (  # of a run or a frontier
    *("*.json", "*.parquet", "*.arrows", POINTS, f"{POINTS}/*", f"{POINTS}/*/*"),
    *(f"{below}{each}" for below in ("", f"{POINTS}/*/") for each in PARTS_READ),
)
ALIVE_S = 10.0  # a run that nobody wrote to for so long is not going on

SHOWN: dict[str, Unit] = {  # numbers of the list, and how they are written there
    "offered": "rate",
    "goodput": "rate",
    "attainment": "share",
    "p99": "seconds",
    "requests": "count",
}

EntryKind = Literal["run", "frontier"]
S = TypeVar("S", RunSubject, FrontierSubject)


class NoSLOError(SpecError):
    """A run that has none of its own is held against nothing until a visitor gives one."""


@dataclass(frozen=True)
class Entry:
    name: str  # its path inside the folder
    kind: EntryKind
    path: Path

    @property
    def stamp(self) -> tuple[float, ...]:
        """Changes when what is in it does."""
        names = (MANIFEST_FILE, TABLE_FILE, SPOOL_FILE, FRONTIER_FILE, POINTS)
        return tuple(_changed(self.path / name) for name in names)

    @property
    def live(self) -> bool:
        """Whether somebody is still writing it."""
        now = read_now(self.path)
        latest = max(_changed(self.path / SPOOL_FILE), now.at if now else 0.0)
        return self.kind == "run" and not (self.path / TABLE_FILE).exists() and time.time() - latest < ALIVE_S


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def entries(root: Path, towards: PurePosixPath | None = None) -> Iterator[Entry]:
    """Runs and frontiers below a folder, or on the way to one of them; nothing behind a link is looked at, and no
    folder is inside a run."""
    root = root.resolve()
    found = 0
    for where, folders, files in os.walk(root, followlinks=False):
        folder = Path(where)
        kind: EntryKind | None = "frontier" if FRONTIER_FILE in files else "run" if MANIFEST_FILE in files else None
        parts = folder.relative_to(root).parts
        folders[:] = [] if kind or len(parts) >= DEEPEST else sorted(_followed(folders, parts, towards))
        if kind and _inside(folder, root):
            yield Entry(folder.relative_to(root).as_posix(), kind, folder)
            found += 1
            if found >= MOST_ENTRIES:
                return


def _followed(folders: list[str], parts: tuple[str, ...], towards: PurePosixPath | None) -> Iterator[str]:
    for each in folders:
        if not each.startswith(".") and (towards is None or towards.parts[: len(parts) + 1] == (*parts, each)):
            yield each


def _inside(folder: Path, root: Path) -> bool:
    """Whether every file that would be read lies in the root itself, and not behind a link that leads out of it."""
    read = [folder, *(each for pattern in READ for each in folder.glob(pattern))]
    return all(not each.is_symlink() or each.resolve().is_relative_to(root) for each in read)


def _objectives(slo: str | dict[str, Any] | Objectives) -> Objectives:
    """Text is gates, of a visitor's as of what stands in a folder: it names no file."""
    return parse_objectives(slo) if isinstance(slo, str) else read_slo(slo)


def _facts(manifest: Manifest) -> dict[str, Any]:
    return {"model": manifest.model or manifest.engine or manifest.source, "started": manifest.started_at}


class Shelf:
    """Everything in a folder by name. One thing is scored at a time."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise RunError(f"{root} is not a folder; give the one that holds your runs")
        self.root = root.resolve()
        self._lock, self._scoring = threading.RLock(), threading.Lock()
        self._runs: OrderedDict[str, tuple[tuple[float, ...], Run, int]] = OrderedDict()
        self._trials: dict[str, tuple[tuple[float, ...], PointRun, JudgedRun]] = {}  # of frontiers, as of late
        self._kept: OrderedDict[tuple[Any, ...], tuple[tuple[float, ...], Subject]] = OrderedDict()
        self._cards: dict[str, tuple[tuple[float, ...], dict[str, Any]]] = {}
        self._tails: dict[str, Tail] = {}

    def find(self, name: str) -> Entry:
        """Only what the folder lists has a name: no path of a visitor's is ever opened."""
        for entry in entries(self.root, PurePosixPath(name)):
            if entry.name == name:
                return entry
        raise RunError(f"there is no run or frontier {name!r} in {self.root.name}")

    def cards(self) -> list[dict[str, Any]]:
        """What the list shows of each, at once: what is not scored yet is pending, and scored meanwhile."""
        found, unknown = [], []
        for entry in entries(self.root):
            card: dict[str, Any] = {"name": entry.name, "kind": entry.kind, "live": entry.live}
            kept = self._cards.get(entry.name)
            if card["live"]:
                card |= {"verdict": "live", "headline": "in progress"}
            elif kept and kept[0] == entry.stamp:
                card |= kept[1]
            else:
                card["pending"] = True
                unknown.append(entry)
            found.append(card)
        if unknown and not self._scoring.locked():
            threading.Thread(target=self._score, args=(unknown,), daemon=True).start()
        return found

    def _score(self, unknown: list[Entry]) -> None:
        with self._scoring:
            for entry in unknown:
                stamp = entry.stamp
                try:
                    told = self._summary(entry)
                    shown = {name: show(told[name], unit) for name, unit in SHOWN.items() if name in told}
                    self._cards[entry.name] = stamp, told | {"shown": shown}
                except NoSLOError:
                    told = {"verdict": "unscored", "headline": "no SLO of its own: open it and give one"}
                    self._cards[entry.name] = stamp, told | _facts(read_manifest(entry.path))
                except (OpenloopError, OSError, MemoryError) as error:
                    self._cards[entry.name] = stamp, {"verdict": "invalid", "headline": str(error)}

    def _summary(self, entry: Entry) -> dict[str, Any]:
        with self._lock:
            if entry.kind == "frontier":
                frontier = self.frontier(entry, None).frontier
                return {
                    "verdict": "good" if any(point.usable for point in frontier.points) else "invalid",
                    "headline": frontier_headline(frontier)[0],
                    "offered": frontier.knee.rate,
                    "goodput": frontier.peak.goodput_rps if frontier.peak else None,
                    "slo": frontier.slo,
                }
            score = self.subject(entry, None).score
        p99 = score.ttft_s or score.e2e_s
        return {
            "verdict": "good" if score.valid else "invalid",
            "headline": score.reasons[0] if score.reasons else run_headline(score)[0],
            **_facts(read_manifest(entry.path)),
            "offered": score.offered_rps,
            "goodput": score.goodput_rps,
            "attainment": score.attainment,
            "p99": p99.p99 if p99 else None,
            "requests": score.requests,
            "slo": score.slo,
        }

    def subject(self, entry: Entry, slo: str | Objectives | None, request: int | None = None) -> RunSubject:
        """A run held against an SLO: gates as text, for a file of a visitor's choice must not be read."""

        def read() -> RunSubject:
            stamp = entry.stamp
            same = [each for when, each in self._kept.values() if when == stamp and isinstance(each, RunSubject)]
            before = next((each.judged for each in reversed(same) if each.run.path == entry.path), None)
            run = self._open(entry, stamp)
            if not slo and run.manifest.slo is None:
                raise NoSLOError(f"{entry.name} has no SLO of its own: give one, such as ttft<=500ms, tpot<=40ms")
            found = read_run_subject(run, slo and _objectives(slo), request, before=before)
            return replace(found, asked=command_of(entry.path, slo, request))

        return self._keep(entry, (slo and str(slo), request), read)

    def frontier(
        self, entry: Entry, slo: str | Objectives | None, point: float | None = None, request: int | None = None
    ) -> FrontierSubject:
        def read() -> FrontierSubject:
            asked = read_asked(entry.path)
            objectives = _objectives(slo or asked.slo)
            inside = trials_in(entry.path, self._unchanged())
            trials = {key: self._trial(where, objectives, asked.target) for key, where in inside}
            found = make_frontier(asked, str(objectives), trials, str(entry.path))
            kept = {str(trial.run.path): (trial.run, judged) for _, trial, judged in self._trials.values()}
            subject = frontier_subject(found, objectives, point, request, kept)
            return replace(subject, asked=command_of(entry.path, slo, request, point))

        return self._keep(entry, (slo and str(slo), point, request), read)

    def _unchanged(self) -> set[Path]:
        """Runs of points that are as they were when they were judged."""
        known = ((Entry(name, "run", self.root / name), stamp) for name, (stamp, *_) in self._trials.items())
        return {entry.path for entry, stamp in known if entry.stamp == stamp}

    def _trial(self, where: Path, objectives: Objectives, target: float) -> PointRun:
        """From what is known since it was last held against something, if its rows are kept as well."""
        entry = Entry(where.relative_to(self.root).as_posix(), "run", where)
        stamp = entry.stamp
        run = self._open(entry, stamp)
        when, trial, judged = self._trials.get(entry.name, (None, None, None))
        if trial and when == stamp:
            judged = judge_run(trial.run, objectives, before=judged)
            trial = judge_again(trial, objectives, target, judged)
        else:
            trial, judged = judge_trial(run, objectives, target)
        if entry.name in self._runs:
            self._trials[entry.name] = stamp, trial, judged
        return trial

    def _keep(self, entry: Entry, asked: tuple[Any, ...], read: Callable[[], S]) -> S:
        """What was asked for lately is not worked out again, unless its folder has changed."""
        with self._lock:
            key, stamp = (entry.name, *asked), entry.stamp
            kept = self._kept.get(key)
            found: Any = kept[1] if kept and kept[0] == stamp else read()
            self._kept[key] = stamp, found
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT_SUBJECTS:
                self._kept.popitem(last=False)
            return found  # type: ignore[no-any-return]

    def _open(self, entry: Entry, stamp: tuple[float, ...]) -> Run:
        """A run with its rows in memory, as long as there is room."""
        kept = self._runs.get(entry.name)
        if kept and kept[0] == stamp:
            self._runs.move_to_end(entry.name)
            return kept[1]
        run = open_run(entry.path)
        if 8 * run.num_events + 300 * run.num_rows > KEPT_BYTES:
            return run
        batches: list[pa.RecordBatch] = list(run.batches())
        run = replace(run, source=MemorySource(batches))
        size = sum(batch.nbytes for batch in batches) + JUDGED_BYTES * run.num_rows
        self._runs[entry.name] = stamp, run, size
        while sum(size for *_, size in self._runs.values()) > KEPT_BYTES:
            self._trials.pop(self._runs.popitem(last=False)[0], None)
        return run

    def report(
        self, entry: Entry, slo: str | None = None, *, request: int | None = None, point: float | None = None
    ) -> Report:
        with self._lock:
            if entry.live:
                if entry.name not in self._tails or self._tails[entry.name].stale:
                    self._tails[entry.name] = Tail(entry.path)
                return live_report(self._tails[entry.name], slo)
            self._tails.pop(entry.name, None)
            if entry.kind == "run":
                return run_report(self.subject(entry, slo, request))
            return frontier_report(self.frontier(entry, slo, point, request))

    def data(
        self, entry: Entry, slo: str | None = None, *, request: int | None = None, point: float | None = None
    ) -> dict[str, Any]:
        """What its report is made of."""
        if entry.live:
            return self.report(entry, slo).data
        if entry.kind == "run":
            return self.subject(entry, slo, request).score.to_dict()
        return frontier_data(self.frontier(entry, slo, point, request))

    def objectives(self, entry: Entry, slo: str | None) -> Objectives | None:
        """What it is held against; None where that is not known yet."""
        if slo is not None or entry.live:
            return None if slo is None else _objectives(slo)
        if entry.kind == "frontier":
            return _objectives(read_asked(entry.path).slo)
        return self.subject(entry, None).objectives

    def compare(self, a: Entry, b: Entry, slo: str | None = None) -> Report:
        """Two compared, both held against the SLO that is given, or else against that of the first."""
        with self._lock:
            subjects: list[Subject] = []
            for entry in (a, b):
                if entry.live:
                    raise RunError(f"{entry.name} is still in progress")
                same: str | Objectives | None = slo or (subjects[0].objectives if subjects else None)
                subjects.append(self.subject(entry, same) if entry.kind == "run" else self.frontier(entry, same))
            sources = [each.run if isinstance(each, RunSubject) else Path(str(each.frontier.path)) for each in subjects]
            return comparison_report(subjects, (a.name, b.name), sources)
