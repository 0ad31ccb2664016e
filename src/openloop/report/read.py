"""A report of whatever is in a folder."""

from pathlib import Path

from openloop.compare.decide import compare
from openloop.errors import RunError
from openloop.frontier.folder import FRONTIER_FILE
from openloop.plan import read_plan
from openloop.records import open_run
from openloop.report.beside import Pair, names_of, pair_report
from openloop.report.curve import FrontierSubject, frontier_report, read_frontier_subject
from openloop.report.page import Report
from openloop.report.plan import plan_report
from openloop.report.run import RunSubject, read_run_subject, run_report
from openloop.score.streams import Progress
from openloop.slo import Objectives

__all__ = ["read_pair", "read_report"]


def read_report(
    path: Path,
    slo: str | None = None,
    *,
    request: int | None = None,
    point: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Of a run, of a frontier or of a plan; `slo` is used instead of the one that stands there."""
    if path.suffix == ".json" and path.is_file() and path.name != "run.json":
        if slo is not None or request is not None or point is not None:
            raise RunError(f"{path} is a plan, and has no requests: leave out --slo, --request and --point")
        return plan_report(read_plan(path))
    found = _read(path, slo, request, point, progress)
    return run_report(found) if isinstance(found, RunSubject) else frontier_report(found)


def read_pair(a: Path, b: Path, slo: str | None = None) -> Report:
    """Two runs or two frontiers, both held against the SLO that is given, or else against that of the first."""
    first = _read(a, slo)
    second = _read(b, slo or first.objectives)
    if type(first) is not type(second):
        raise RunError(f"{a} and {b} are a run and a frontier: compare two of one kind")
    return pair_report(Pair((first, second), names_of((a, b)), compare(a, b, first.objectives)))


def _read(
    path: Path,
    slo: str | Objectives | None,
    request: int | None = None,
    point: float | None = None,
    progress: Progress | None = None,
) -> RunSubject | FrontierSubject:
    if (path / FRONTIER_FILE).exists():
        return read_frontier_subject(path, slo, point, request)
    if point is not None:
        raise RunError(f"{path} is no frontier, so it has no point at {point:g}/s")
    return read_run_subject(open_run(path), slo, request, progress)
