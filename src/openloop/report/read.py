"""A report of whatever is in a folder."""

from pathlib import Path

from openloop.errors import RunError
from openloop.frontier.frontier import FRONTIER_FILE
from openloop.records import open_run
from openloop.report.frontier import frontier_report, read_frontier_subject
from openloop.report.page import Report
from openloop.report.run import read_run_subject, run_report
from openloop.score.streams import Progress

__all__ = ["read_report"]


def read_report(
    path: Path,
    slo: str | None = None,
    *,
    request: int | None = None,
    point: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Of a run or of a frontier; `slo` is used instead of the one that stands there."""
    if (path / FRONTIER_FILE).exists():
        return frontier_report(read_frontier_subject(path, slo, point, request))
    if point is not None:
        raise RunError(f"{path} is no frontier, so it has no point at {point:g}/s")
    return run_report(read_run_subject(open_run(path), slo, request, progress))
